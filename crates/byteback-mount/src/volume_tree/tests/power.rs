//! Power cuts under a volume with its log inside: what is reported since a mark leads from what a
//! consumer has to what came back.
//!
//! Tree and log live on the one simulated device, which drops, tears and reorders what was not
//! flushed. Programs change files through the gate; consumers make cuts, and their pictures of the
//! tree at these are kept. Whenever the power goes, each picture with the changes since then laid
//! over it must be the tree that came back: no byte, no name and no attribute is missing in what is
//! reported.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStringExt;

use byteback_host::clock::SimClock;
use byteback_host::random::SimRandomness;
use byteback_host::sim::CrashPhase;
use byteback_model::NodeId;
use byteback_oplog::{
    ChangesCursor, Close, ContentChange, Cut, Epoch, Log, LogError, LogOptions, PageLimits, WholeReason,
};

use super::*;
use crate::direct::Direct;
use crate::live::LiveTree;
use crate::picture::Pictures;
use crate::tracked::{Account, Tracked};

/// 24 MiB.
const BLOCKS: u64 = 6_000;

const CONSUMERS: [&str; 2] = ["ann", "bob"];

/// A node as a consumer saves it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    kind: NodeKind,
    mode: u32,
    mtime_ns: i128,
    content: Vec<u8>,
}

/// The tree at one moment.
#[derive(Clone, Debug, Default)]
struct Picture {
    nodes: BTreeMap<NodeId, Node>,
    names: BTreeMap<(NodeId, OsString), NodeId>,
}

/// Knowledge outside of the machine: it survives.
#[derive(Clone, Debug, Default)]
struct Known {
    pictures: BTreeMap<Epoch, Picture>,
    /// The possible marks of each consumer.
    marks: BTreeMap<&'static str, BTreeSet<Option<Epoch>>>,
    pending: BTreeMap<&'static str, Epoch>,
    /// The state reported beyond a mark, without a cut: continuous sync sends it.
    told: Option<(Epoch, Picture)>,
    /// The last steps, for finding out why a check failed.
    done: Vec<String>,
}

/// A machine that runs.
struct Machine {
    direct: Direct,
    live: LiveTree,
    log: Arc<Log>,
    volume: VolumeTree,
    clock: Arc<SimClock>,
}

/// Files that were told whole, because nobody knew what of them changed.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    interrupted: u64,
    untracked: u64,
    ranges: u64,
}

/// An error of a step; acceptable only if the power is cut.
type Gone = Box<dyn std::error::Error>;

impl Machine {
    fn start(device: &SimBlockDevice, clock: &Arc<SimClock>, seed: u64) -> Result<Self, Gone> {
        let shared: Arc<dyn Clock> = clock.clone();
        let device: Arc<dyn BlockDevice> = Arc::new(device.clone());
        let volume = VolumeTree::on(device, Path::new("volume"), Arc::clone(&shared))?;
        let random = SimRandomness::new(seed);
        let keeper = Some(volume.layers());
        let options = LogOptions::default();
        let log = Log::open_kept(&volume.state(), keeper, Arc::clone(&shared), &random, options)?;
        let log = Arc::new(log);
        let live = LiveTree::new(Arc::new(volume.root()), Arc::clone(&log), shared);
        log.scan(&live, &mut |_| {})?;
        log.begin_tracking()?;
        let account = Account {
            log: Arc::clone(&log),
            pictures: Arc::new(Pictures::default()),
            before_images: None,
            undo: None,
            observer: None,
            integrity: None,
        };
        let direct = Direct::on(volume.root(), Arc::new(Tracked::with_account(account)))?;
        Ok(Self {
            direct,
            live,
            log,
            volume,
            clock: Arc::clone(clock),
        })
    }

    fn stop(self) -> Result<(), Gone> {
        self.clock.advance(Duration::from_millis(100));
        self.log.checkpoint(&self.live, Close::All)?;
        self.log.end_tracking()?;
        let Self {
            direct,
            live,
            log,
            volume,
            ..
        } = self;
        drop((direct, live, log));
        Ok(volume.close()?)
    }

    fn picture(&self) -> Result<Picture, Gone> {
        let mut picture = Picture::default();
        let root = self.volume.root();
        let stat = root.stat()?;
        self.see(&mut picture, NodeId::ROOT, &root, &stat)?;
        Ok(picture)
    }

    fn see(
        &self,
        picture: &mut Picture,
        node: NodeId,
        inode: &Inode,
        stat: &byteback_host::tree::Stat,
    ) -> Result<(), Gone> {
        let mut bytes = Vec::new();
        match stat.kind {
            NodeKind::File => {
                bytes = vec![0; usize::try_from(stat.size)?];
                let file = inode.reopen(OFlags::RDONLY)?;
                let read = file.read_at(0, &mut bytes)?;
                assert_eq!(read, bytes.len());
            }
            NodeKind::Directory => {
                let dir = inode.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
                for entry in dir.read_dir(0)? {
                    let name = entry?.name;
                    let child = dir.open_at(&name, OFlags::PATH)?;
                    let stat = child.stat()?;
                    let id = self.log.node_of(&stat.identity())?;
                    let id = id.unwrap_or_else(|| panic!("nobody knows {name:?}"));
                    picture.names.insert((node, name), id);
                    if !picture.nodes.contains_key(&id) {
                        self.see(picture, id, &child, &stat)?;
                    }
                }
            }
            _ => {}
        }
        let (kind, mode, mtime_ns) = (stat.kind, stat.mode, stat.mtime_ns);
        let content = bytes;
        picture.nodes.insert(
            node,
            Node {
                kind,
                mode,
                mtime_ns,
                content,
            },
        );
        Ok(())
    }

    /// Runs one step. An error of a call that asks for the impossible is not a failure.
    fn step(&self, random: &mut SplitMix64, known: &mut Known) -> Result<(), Gone> {
        let step_ns = [1_000, 3_000_000, 40_000_000, 2_000_000_000][random.below(4) as usize];
        self.clock.advance(Duration::from_nanos(1 + random.below(step_ns)));
        let path = any_path(random);
        let direct = &self.direct;
        let kind = random.below(30);
        known
            .done
            .push(format!("{kind} {} at {}", path.display(), self.clock.now_ns()));
        let done = match kind {
            0..=3 => direct.create(&path, 0o644).and_then(|file| {
                let len = random.below(9_000) as usize;
                let written = direct.write(&file, 0, &random.bytes(len));
                direct.close(file);
                written
            }),
            4..=9 => direct.open(&path).and_then(|file| {
                let longest = [20, 500, 20_000][random.below(3) as usize];
                let mut done = Ok(());
                for _ in 0..=random.below(3) {
                    let len = 1 + random.below(longest) as usize;
                    let furthest = [300, 30_000][random.below(2) as usize];
                    let at = random.below(furthest);
                    done = done.and_then(|()| direct.write(&file, at, &random.bytes(len)));
                }
                if random.below(3) == 0 {
                    self.clock.advance(Duration::from_nanos(1));
                    done = done.and_then(|()| direct.sync(&file));
                }
                direct.close(file);
                done
            }),
            10 => direct.truncate(&path, random.below(12_000)),
            11 => direct.set_mode(&path, 0o400 + random.below(0o100) as u32),
            12 => direct.make_directory(Path::new(["d", "e"][random.below(2) as usize]), 0o755),
            13 => direct.link(&path, &any_path(random)),
            14 => direct.remove(&path),
            15 | 16 => direct.rename(&path, &any_path(random)),
            17 => direct.exchange(&path, &any_path(random)),
            18 => direct.remove_directory(Path::new(["d", "e"][random.below(2) as usize])),
            19 | 20 => direct.open(&path).and_then(|file| {
                let done = direct.sync(&file);
                direct.close(file);
                done
            }),
            21 => self.volume.root().sync_all(),
            22 | 23 => {
                let close = match random.below(3) {
                    0 => Close::All,
                    _ => Close::QuietFor {
                        ns: random.below(3_000_000_000),
                    },
                };
                self.log.checkpoint(&self.live, close)?;
                Ok(())
            }
            24 => {
                while !self.log.compact(1 + random.below(20) as usize)?.is_done {}
                Ok(())
            }
            25 => {
                for _ in 0..TIDY_STEPS {
                    self.volume.shared.volume.tidy()?;
                }
                Ok(())
            }
            26 => return self.tell(known),
            _ => return self.back_up(random, known),
        };
        match done {
            Err(error) if !is_refusal(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Reports the present state of the tree beyond the mark of the first consumer.
    fn tell(&self, known: &mut Known) -> Result<(), Gone> {
        let picture = self.picture()?;
        self.log.keep_numbers(&[])?;
        if let Some(mark) = self.log.consumer(CONSUMERS[0])?.mark {
            known.told = Some((mark, picture));
        }
        Ok(())
    }

    /// A step of a consumer.
    fn back_up(&self, random: &mut SplitMix64, known: &mut Known) -> Result<(), Gone> {
        let name = CONSUMERS[random.below(2) as usize];
        match known.pending.remove(name) {
            None => {
                let cut = self.log.cut(name, || {})?;
                let now = self.picture()?;
                self.check_cut(known, &cut, &now, &mut Told::default())?;
                known.pending.insert(name, cut.epoch());
                known.pictures.insert(cut.epoch(), now);
                Ok(())
            }
            Some(_) if random.below(4) == 0 => Ok(self.log.abandon(name, None)?),
            Some(epoch) => {
                let marks = known.marks.entry(name).or_insert_with(|| [None].into());
                marks.insert(Some(epoch));
                self.log.advance(name, Some(epoch), b"")?;
                *marks = [Some(epoch)].into();
                Ok(())
            }
        }
    }

    /// Everything that is known outside leads to what is here.
    fn check(&self, known: &mut Known, told: &mut Told) -> Result<(), Gone> {
        if let Some((newest, _)) = known.pictures.last_key_value() {
            assert!(self.log.epoch() > *newest, "an epoch came again");
        }
        let now = self.picture()?;
        for name in CONSUMERS {
            let mark = self.log.consumer(name)?.mark;
            let marks = known.marks.entry(name).or_insert_with(|| [None].into());
            assert!(marks.contains(&mark), "{name} has mark {mark:?}, not one of {marks:?}");
            *marks = [mark].into();
        }
        let cut = self.log.cut_held(|| {})?;
        if let Some((mark, picture)) = &known.told {
            // A consumer that follows each change knows the names itself: a name that came and went
            // since is in no layer.
            let mut picture = picture.clone();
            picture.names.clone_from(&now.names);
            picture.nodes.retain(|node, _| now.nodes.contains_key(node));
            for (node, is) in &now.nodes {
                picture.nodes.entry(*node).or_insert_with(|| is.clone());
            }
            check_content(&cut, *mark, &picture, &now)?;
        }
        self.check_cut(known, &cut, &now, told)
    }

    fn check_cut(&self, known: &Known, cut: &Cut, now: &Picture, told: &mut Told) -> Result<(), Gone> {
        let marks: BTreeSet<Epoch> = known.marks.values().flatten().flatten().copied().collect();
        for (since, saved) in &known.pictures {
            let reported_now = check_since(cut, *since, saved, now, marks.contains(since))?;
            if marks.contains(since) {
                told.interrupted += reported_now.interrupted;
                told.untracked += reported_now.untracked;
                told.ranges += reported_now.ranges;
            }
        }
        Ok(())
    }
}

fn any_path(random: &mut SplitMix64) -> PathBuf {
    let dir = ["", "", "d", "e"][random.below(4) as usize];
    Path::new(dir).join(["a", "b", "c", "f", "g"][random.below(5) as usize])
}

/// Whether any file system may answer these calls so.
fn is_refusal(error: &io::Error) -> bool {
    const REFUSALS: [i32; 7] = [
        libc::ENOENT,
        libc::EEXIST,
        libc::ENOTDIR,
        libc::EISDIR,
        libc::ENOTEMPTY,
        libc::EINVAL,
        libc::EPERM,
    ];
    errno_of(error).is_some_and(|errno| REFUSALS.contains(&errno)) || error.kind() == io::ErrorKind::NotFound
}

/// Checks that the changes reported since `since` lead from the state saved then to the present
/// one.
fn check_since(cut: &Cut, since: Epoch, saved: &Picture, now: &Picture, is_mark: bool) -> Result<Told, LogError> {
    let list = cut.changes(Some(since))?;
    assert!(
        !(is_mark && list.is_everything()),
        "the mark {since} is forgotten: everything is reported"
    );
    let limits = PageLimits {
        items: NonZeroUsize::MAX,
        ranges: NonZeroUsize::MAX,
    };
    let page = list.page(&ChangesCursor::default(), limits)?;
    let mut told = Told::default();
    let mut names = saved.names.clone();
    if list.is_everything() {
        names.clear();
    }
    for change in page.names {
        let place = (change.parent, OsString::from_vec(change.name.into_bytes()));
        match change.child {
            Some(child) => names.insert(place, child),
            None => names.remove(&place),
        };
    }
    assert_eq!(names, now.names, "names since {since}");
    let reported: BTreeMap<NodeId, _> = page.nodes.iter().map(|change| (change.node, change)).collect();
    for (node, is) in &now.nodes {
        let change = reported.get(node);
        let was = saved.nodes.get(node).filter(|_| !list.is_everything());
        let Some(was) = was else {
            let change = change.unwrap_or_else(|| panic!("since {since}: new {node} is missing"));
            let is_whole = matches!(change.content, ContentChange::Whole(_)) || is.kind != NodeKind::File;
            assert!(is_whole, "since {since}: new {node} is told as {:?}", change.content);
            continue;
        };
        let mut made = was.content.clone();
        made.resize(is.content.len(), 0);
        match change.map(|change| &change.content) {
            Some(ContentChange::Whole(reason)) => {
                told.interrupted += u64::from(*reason == WholeReason::Interrupted);
                told.untracked += u64::from(*reason == WholeReason::Untracked);
                made.clone_from(&is.content);
            }
            Some(ContentChange::Ranges(ranges)) => {
                told.ranges += 1;
                lay(&mut made, ranges, &is.content);
            }
            Some(ContentChange::Unchanged) | None => {}
        }
        let first = made.iter().zip(&is.content).position(|(made, is)| made != is);
        assert_eq!(
            first, None,
            "since {since}: this byte of {node} is missing in {change:?}"
        );
        let looks = |node: &Node| (node.kind, node.mode, node.mtime_ns, node.content.len());
        assert!(
            change.is_some() || looks(was) == looks(is),
            "since {since}: attributes of {node} are missing: {:?} became {:?}",
            looks(was),
            looks(is)
        );
    }
    Ok(told)
}

/// The same for the contents of files alone.
fn check_content(cut: &Cut, since: Epoch, saved: &Picture, now: &Picture) -> Result<(), LogError> {
    for (node, is) in now.nodes.iter().filter(|(_, is)| is.kind == NodeKind::File) {
        let change = cut.change_of(*node, Some(since))?;
        let mut made = saved.nodes.get(node).map_or_else(Vec::new, |was| was.content.clone());
        made.resize(is.content.len(), 0);
        match change.map(|change| change.content) {
            Some(ContentChange::Whole(_)) => continue,
            Some(ContentChange::Ranges(ranges)) => lay(&mut made, &ranges, &is.content),
            Some(ContentChange::Unchanged) | None => {}
        }
        assert!(made == is.content, "since {since}: something of {node} is missing");
    }
    Ok(())
}

/// Takes these ranges of another content over.
fn lay(made: &mut [u8], ranges: &byteback_extents::ExtentSet, from: &[u8]) {
    for range in ranges.iter() {
        let end = usize::try_from(range.end()).unwrap().min(made.len());
        let start = usize::try_from(range.start()).unwrap().min(end);
        made[start..end].copy_from_slice(&from[start..end]);
    }
}

fn made() -> SimBlockDevice {
    let device = SimBlockDevice::new(BLOCKS);
    let shared: Arc<dyn BlockDevice> = Arc::new(device.clone());
    create(&shared, &CreateOptions::new(VolumeId([9; 16]), 7)).unwrap();
    device
}

fn clock() -> Arc<SimClock> {
    Arc::new(SimClock::new(1_700_000_000_000_000_000))
}

/// Lives until this many steps are done, or the power is cut.
fn live(device: &SimBlockDevice, clock: &Arc<SimClock>, seed: u64, steps: u64, known: &mut Known) {
    let mut random = SplitMix64::new(seed);
    let mut lived = || -> Result<(), Gone> {
        let machine = Machine::start(device, clock, seed)?;
        for _ in 0..steps {
            machine.step(&mut random, known)?;
        }
        if random.coin() {
            known.done.push("stop".to_owned());
            machine.stop()?;
        }
        Ok(())
    };
    if let Err(error) = lived() {
        assert!(
            device.is_cut(),
            "the power is on, and still: {error}; {:#?}",
            known.done
        );
    }
}

/// Checks the tree that came back, and the changes reported for it.
fn check(device: &SimBlockDevice, clock: &Arc<SimClock>, seed: u64, known: &mut Known, told: &mut Told) {
    clock.advance(Duration::from_secs(1));
    let machine = Machine::start(device, clock, seed ^ 0xc0de).unwrap();
    machine.check(known, told).unwrap();
    machine.stop().unwrap();
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|number| number.parse::<u64>().expect("a number"))
    };
    let first = number("BYTEBACK_SEED").unwrap_or(1);
    let count = number("BYTEBACK_SEEDS").unwrap_or(count);
    (first..first + count).inspect(|seed| println!("BYTEBACK_SEED={seed}"))
}

#[test]
fn no_change_is_missed_wherever_the_power_is_cut() {
    const STEPS: u64 = 70;
    let mut told = Told::default();
    let mut cuts = 0;
    for seed in seeds(2) {
        let trial = made();
        live(&trial, &clock(), seed, STEPS, &mut Known::default());
        let (flushes, calls) = (trial.flushes(), trial.calls());
        let mut random = SplitMix64::new(seed ^ 0xcafe);
        // At every flush, and at any call in between.
        let plans = (1..=flushes).map(Some).chain((0..flushes / 2).map(|_| None));
        for plan in plans {
            let device = made();
            let note = match plan {
                Some(flush) => {
                    let phase = [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After][random.below(3) as usize];
                    device.crash_at_flush(flush, phase);
                    format!("flush {flush} of {flushes}, {phase:?}")
                }
                None => {
                    let call = 1 + random.below(calls);
                    device.crash_at_call(call);
                    format!("call {call} of {calls}")
                }
            };
            let clock = clock();
            let mut known = Known::default();
            live(&device, &clock, seed, STEPS, &mut known);
            let survivor = random.next_u64();
            let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let device = device.recover(survivor);
                check(&device, &clock, seed, &mut known, &mut told);
                // It goes on, and the power goes again.
                device.crash_at_call(device.calls() + 200 + random.below(2_000));
                known.done.push("again".to_owned());
                live(&device, &clock, seed ^ survivor, 25, &mut known);
                check(&device.recover(survivor ^ 1), &clock, seed, &mut known, &mut told);
            }));
            if let Err(panic) = lived {
                println!("seed {seed}, {note}, survivor {survivor}: {:#?}", known.done);
                std::panic::resume_unwind(panic);
            }
            cuts += 2;
        }
    }
    println!("{cuts} power cuts: {told:?}");
    // The paths that matter were taken.
    assert!(told.ranges > cuts / 4, "{told:?}");
}

/// Writes `bytes` to `a`, a while after what was before.
fn write_a(machine: &Machine, at: u64, bytes: &[u8]) {
    machine.clock.advance(Duration::from_millis(50));
    let file = machine.direct.open(Path::new("a")).unwrap();
    machine.direct.write(&file, at, bytes).unwrap();
    machine.direct.close(file);
}

/// A cut of `name` that is saved at once.
fn save(machine: &Machine, name: &'static str, known: &mut Known) -> Epoch {
    let cut = machine.log.cut(name, || {}).unwrap();
    known.pictures.insert(cut.epoch(), machine.picture().unwrap());
    machine.log.advance(name, Some(cut.epoch()), b"").unwrap();
    known.marks.insert(name, [Some(cut.epoch())].into());
    cut.epoch()
}

fn with_a(device: &SimBlockDevice, clock: &Arc<SimClock>) -> Machine {
    let machine = Machine::start(device, clock, 3).unwrap();
    let file = machine.direct.create(Path::new("a"), 0o644).unwrap();
    machine.direct.write(&file, 0, &[1; 50_000]).unwrap();
    machine.direct.close(file);
    machine
}

#[test]
fn layers_are_versioned_inodes_that_lead_from_one_to_the_next() {
    let (device, clock) = (made(), clock());
    let mut known = Known::default();
    let machine = with_a(&device, &clock);
    let mut marks = Vec::new();
    for (number, name) in (0..).zip(["ann", "bob", "cyd"]) {
        marks.push(save(&machine, name, &mut known));
        write_a(&machine, 1_000 * number, &[2; 10]);
    }
    machine.log.checkpoint(&machine.live, Close::All).unwrap();
    machine.log.compact_all().unwrap();
    let volume = &machine.volume.shared.volume;
    let listed = volume.list(machine.volume.layers, 0, 100).unwrap();
    let mut layers: Vec<_> = listed.iter().map(|entry| (entry.name.clone(), entry.ino)).collect();
    layers.sort_unstable();
    assert_eq!(layers.len(), 3);
    let mut older = 0u32;
    for ((name, ino), mark) in layers.into_iter().zip(marks) {
        assert!(
            name.ends_with(format!(".{:016x}", mark.0).as_bytes()),
            "{name:?} is not of {mark}"
        );
        let attribute = |name: &str| volume.xattr(ino, name.as_bytes()).unwrap();
        assert_eq!(attribute("ino_ver"), mark.0.to_le_bytes());
        assert_eq!(attribute("ver_link"), 1u32.to_le_bytes());
        assert_eq!(attribute("ino_flag"), [0]);
        assert_eq!(attribute("next_ino"), older.to_le_bytes());
        older = ino;
    }
    // None is left when everybody has everything, but for what is newest.
    for name in ["ann", "bob", "cyd"] {
        save(&machine, name, &mut known);
    }
    machine.log.compact_all().unwrap();
    write_a(&machine, 0, &[3; 10]);
    machine.log.checkpoint(&machine.live, Close::All).unwrap();
    assert_eq!(volume.list(machine.volume.layers, 0, 100).unwrap().len(), 1);
    machine.stop().unwrap();
}

#[test]
fn writes_between_checkpoints_are_told_exactly_after_a_crash() {
    for synced_alone in [false, true] {
        let (device, clock) = (made(), clock());
        let mut known = Known::default();
        let machine = with_a(&device, &clock);
        machine.clock.advance(Duration::from_secs(1));
        machine.log.checkpoint(&machine.live, Close::All).unwrap();
        save(&machine, "ann", &mut known);
        write_a(&machine, 20_000, &[2; 10]);
        if synced_alone {
            let file = machine.direct.open(Path::new("a")).unwrap();
            machine.direct.sync(&file).unwrap();
        } else {
            machine.volume.root().sync_all().unwrap();
        }
        // This is lost.
        write_a(&machine, 30_000, &[3; 10]);
        let device = device.recover(5);
        drop(machine);
        let mut told = Told::default();
        clock.advance(Duration::from_secs(1));
        let machine = Machine::start(&device, &clock, 4).unwrap();
        machine.check(&mut known, &mut told).unwrap();
        assert_eq!(
            (told.ranges, told.interrupted, told.untracked),
            (1, 0, 0),
            "{synced_alone}"
        );
    }
}

#[test]
fn what_a_full_volume_had_no_room_to_log_is_told_whole() {
    let (device, clock) = (made(), clock());
    let mut known = Known::default();
    let machine = with_a(&device, &clock);
    machine.clock.advance(Duration::from_secs(1));
    machine.log.checkpoint(&machine.live, Close::All).unwrap();
    save(&machine, "ann", &mut known);
    // As much as there is, by small pieces in the end.
    let volume = &machine.volume.shared.volume;
    let filler = volume.make(
        volume.root(),
        b"filler",
        &NewFile {
            mode: libc::S_IFREG | 0o600,
            ..NewFile::default()
        },
    );
    let filler = filler.unwrap().ino;
    let mut at = 0;
    loop {
        match volume.write(filler, at, &[7; 65_536]) {
            Ok(written) => at += written as u64,
            Err(VolumeError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    // Over what is there, which needs no room; its layer does.
    write_a(&machine, 4_096, &[2; 4_096]);
    machine.volume.root().sync_all().unwrap();
    assert!(
        volume.list(machine.volume.layers, 0, 100).unwrap().is_empty(),
        "there was room"
    );
    let device = device.recover(5);
    drop(machine);
    clock.advance(Duration::from_secs(1));
    // Somebody makes room.
    let shared: Arc<dyn Clock> = clock.clone();
    let tree = VolumeTree::on(Arc::new(device.clone()), Path::new("volume"), shared).unwrap();
    tree.shared.volume.unlink(tree.shared.volume.root(), b"filler").unwrap();
    tree.close().unwrap();
    let mut told = Told::default();
    let machine = Machine::start(&device, &clock, 4).unwrap();
    machine.check(&mut known, &mut told).unwrap();
    assert_eq!((told.ranges, told.interrupted + told.untracked), (0, 1), "{told:?}");
}

#[test]
fn what_was_told_without_a_cut_is_not_taken_back() {
    let (device, clock) = (made(), clock());
    let mut known = Known::default();
    let machine = with_a(&device, &clock);
    save(&machine, "ann", &mut known);
    write_a(&machine, 20_000, &[2; 10]);
    let told = machine.picture().unwrap();
    machine.log.keep_numbers(&[]).unwrap();
    let device = device.recover(5);
    drop(machine);
    clock.advance(Duration::from_secs(1));
    let machine = Machine::start(&device, &clock, 4).unwrap();
    machine.check(&mut known, &mut Told::default()).unwrap();
    assert_eq!(machine.picture().unwrap().nodes, told.nodes);
}
