//! The tree of a volume beside a directory of the machine: the same calls, the same answers and
//! error numbers.

mod power;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use byteback_host::block::SimBlockDevice;
use byteback_host::clock::RealClock;
use byteback_host::durable::OpenMode;
use byteback_host::errno_of;
use byteback_host::random::SplitMix64;
use byteback_host::tree::{Creator, FallocateFlags, NewInode, SetTime, SetXattr};
use byteback_model::NodeKind;
use byteback_volume::format::VolumeId;
use byteback_volume::{CreateOptions, create};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, SeekFrom, openat};

use super::*;

/// 256 MiB.
const LEN_BLOCKS: u64 = 65_536;

const LEN_BYTES_MAX: u64 = 1 << 20;

fn device() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(SimBlockDevice::new(LEN_BLOCKS));
    create(&device, &CreateOptions::new(VolumeId([7; 16]), 7)).unwrap();
    device
}

fn open(device: &Arc<dyn BlockDevice>) -> VolumeTree {
    VolumeTree::on(Arc::clone(device), Path::new("volume"), Arc::new(RealClock)).unwrap()
}

fn creator() -> Creator {
    Creator {
        umask: 0o022,
        ..Creator::process()
    }
}

/// Something that is open in both trees.
struct Pair {
    volume: Inode,
    system: Inode,
    kind: NodeKind,
}

/// The compared part of an answer: the answer, or the error number.
type Answer = Result<String, Option<i32>>;

fn answer<T: std::fmt::Debug>(done: io::Result<T>) -> Answer {
    done.map(|done| format!("{done:?}")).map_err(|error| errno_of(&error))
}

impl Pair {
    /// Does the same in both.
    fn both<T: std::fmt::Debug>(&self, what: &str, call: impl Fn(&Inode) -> io::Result<T>) -> Answer {
        let (volume, system) = (answer(call(&self.volume)), answer(call(&self.system)));
        assert_eq!(volume, system, "{what}: the volume, and the system");
        volume
    }
}

/// The part of a `stat` that must be alike.
fn looks(inode: &Inode) -> io::Result<String> {
    let stat = inode.stat()?;
    let size = match stat.kind {
        NodeKind::Directory => 0,
        _ => stat.size,
    };
    let (kind, mode, nlink) = (stat.kind, stat.mode, stat.nlink);
    Ok(format!(
        "{kind:?} {mode:o} {nlink} {} {} {} {size}",
        stat.uid, stat.gid, stat.rdev
    ))
}

fn content(inode: &Inode) -> Vec<u8> {
    let len = usize::try_from(inode.stat().unwrap().size).unwrap();
    let mut bytes = vec![0; len + 10];
    let mut filled = 0;
    loop {
        match inode.read_at(filled as u64, &mut bytes[filled..]).unwrap() {
            0 => break,
            count => filled += count,
        }
    }
    assert_eq!(filled, len);
    bytes.truncate(len);
    bytes
}

fn names(inode: &Inode) -> BTreeMap<OsString, Option<NodeKind>> {
    let entries: Vec<_> = inode.read_dir(0).unwrap().map(Result::unwrap).collect();
    let all: BTreeMap<_, _> = entries
        .iter()
        .map(|entry| (entry.name.clone(), entry.kind_hint))
        .collect();
    assert_eq!(all.len(), entries.len(), "a name is listed twice");
    // From any entry on, the rest is listed, and no more.
    if let Some(middle) = entries.get(entries.len() / 2) {
        let rest: BTreeSet<_> = inode
            .read_dir(middle.cookie)
            .unwrap()
            .map(|entry| entry.unwrap().name)
            .collect();
        let expected: BTreeSet<_> = entries[entries.len() / 2 + 1..]
            .iter()
            .map(|entry| entry.name.clone())
            .collect();
        assert_eq!(rest, expected);
    }
    let dots: Vec<_> = inode
        .read_dir(0)
        .unwrap()
        .with_dots()
        .map(|entry| entry.unwrap().name)
        .collect();
    assert_eq!(dots.len(), entries.len() + 2);
    all
}

/// Checks that holes read as zeros.
fn check_holes(inode: &Inode) {
    let bytes = content(inode);
    let mut at = 0;
    for data in inode.data_ranges(0, u64::MAX) {
        let data = data.unwrap();
        assert!(
            bytes[at..usize::try_from(data.start).unwrap()]
                .iter()
                .all(|byte| *byte == 0)
        );
        at = usize::try_from(data.end).unwrap();
    }
    assert!(bytes[at..].iter().all(|byte| *byte == 0));
    let len = bytes.len() as u64;
    assert_eq!(
        inode.seek(SeekFrom::Data(len)).unwrap_err().raw_os_error(),
        Some(libc::ENXIO)
    );
    assert_eq!(inode.seek_hole(len).unwrap(), None);
    if len > 0 {
        assert!(inode.seek_hole(len - 1).unwrap().is_some());
    }
}

fn xattrs(inode: &Inode) -> BTreeMap<OsString, Option<Vec<u8>>> {
    let names = inode.list_xattrs().unwrap().into_iter();
    names
        .map(|name| (name.clone(), inode.get_xattr(&name).unwrap()))
        .collect()
}

/// Everything below is alike.
fn compare(pair: &Pair, path: &Path) {
    pair.both(&format!("{}", path.display()), looks).unwrap();
    assert_eq!(xattrs(&pair.volume), xattrs(&pair.system), "{}", path.display());
    match pair.kind {
        NodeKind::Directory => {
            let all = names(&pair.volume);
            assert_eq!(all, names(&pair.system), "{}", path.display());
            for name in all.keys() {
                compare(&opened(pair, name).unwrap(), &path.join(name));
            }
        }
        NodeKind::File => assert!(content(&pair.volume) == content(&pair.system), "{}", path.display()),
        NodeKind::Symlink => drop(pair.both("a symlink", Inode::read_link)),
        _ => {}
    }
}

fn opened(dir: &Pair, name: &OsStr) -> Option<Pair> {
    let kind = dir.system.stat_at(name).ok()?.kind;
    let flags = match kind {
        NodeKind::File => OFlags::RDWR,
        NodeKind::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
        _ => OFlags::PATH,
    };
    Some(Pair {
        volume: dir.volume.open_at(name, flags).unwrap(),
        system: dir.system.open_at(name, flags).unwrap(),
        kind,
    })
}

struct Life<'a> {
    random: SplitMix64,
    tree: &'a VolumeTree,
    dirs: Vec<Pair>,
    open: Vec<Pair>,
}

const NAMES: [&str; 7] = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "f",
    "a name that is long enough to take two slots of a directory",
];

impl Life<'_> {
    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn name(&mut self) -> OsString {
        match self.below(60) {
            0 => OsString::from("x".repeat(256)),
            1 => OsString::from("y".repeat(255)),
            2 => OsStr::from_bytes(b"\xff\xfe").to_owned(),
            _ => NAMES[self.random.below(NAMES.len() as u64) as usize].into(),
        }
    }

    fn mode(&mut self) -> u32 {
        [0o644, 0o600, 0o755, 0o777, 0o4755, 0o2755, 0o2644, 0o1777, 0][self.random.below(9) as usize]
    }

    fn range(&mut self) -> (u64, u64) {
        let at = self.below(LEN_BYTES_MAX / 2);
        let at = if self.below(2) == 0 { at / 4096 * 4096 } else { at };
        let len_max = if self.below(3) == 0 { 60_000 } else { 5000 };
        (at, self.below(len_max))
    }

    fn step(&mut self, step: u32) {
        let (mut name, mut other) = (self.name(), self.name());
        let mode = self.mode();
        let at = self.below(self.dirs.len() as u64) as usize;
        let to = self.below(self.dirs.len() as u64) as usize;
        if [at, to]
            .iter()
            .any(|at| self.dirs[*at].system.stat().unwrap().nlink == 0)
        {
            // Which of two things that are wrong is said first is nobody's business.
            [&mut name, &mut other]
                .into_iter()
                .filter(|name| name.len() > 255)
                .for_each(|name| *name = "a".into());
        }
        let open = self.below(self.open.len().max(1) as u64) as usize;
        let kind = self.below(33);
        let (offset, len) = self.range();
        let choice = self.below(3) as usize;
        let byte = self.below(256) as u8;
        let what = format!("step {step}: {kind} {name:?} {other:?} {choice}");
        let dir = &self.dirs[at];
        match kind {
            0..=3 => {
                let make = |dir: &Inode| dir.create_at(&name, OFlags::RDWR, mode, creator()).map(drop);
                drop(dir.both(&what, make));
            }
            4 | 5 => drop(dir.both(&what, |dir| dir.make_at(&name, NewInode::Directory(mode), creator()))),
            6 => {
                let target = OsString::from("t".repeat(1 + len as usize % 4095));
                drop(dir.both(&what, |dir| dir.make_at(&name, NewInode::Symlink(&target), creator())));
            }
            7 => {
                let kinds = [FileType::Fifo, FileType::Socket, FileType::CharacterDevice];
                let new = NewInode::Special(kinds[choice], mode, if choice == 2 { 0x103 } else { 0 });
                drop(dir.both(&what, |dir| dir.make_at(&name, new, creator())));
            }
            8 => drop(dir.both(&what, |dir| dir.unlink_at(&name, AtFlags::empty()))),
            9 => drop(dir.both(&what, |dir| dir.unlink_at(&name, AtFlags::REMOVEDIR))),
            10..=12 => {
                let flags = [RenameFlags::empty(), RenameFlags::NOREPLACE, RenameFlags::EXCHANGE][choice];
                let to = &self.dirs[to];
                // Of a directory in which the other end lies the kernel says something else first,
                // for every file system.
                let is_taken = |error| {
                    if error == Some(libc::EISDIR) {
                        Some(libc::ENOTEMPTY)
                    } else {
                        error
                    }
                };
                let volume = answer(dir.volume.rename_at(&name, &to.volume, &other, flags));
                let system = answer(dir.system.rename_at(&name, &to.system, &other, flags));
                assert_eq!(volume.map_err(is_taken), system.map_err(is_taken), "{what}");
            }
            13 => {
                if let Some(pair) = self.open.get(open) {
                    let volume = answer(dir.volume.link_at(&name, &pair.volume));
                    let system = answer(dir.system.link_at(&name, &pair.system));
                    assert_eq!(volume, system, "{what}");
                }
            }
            14 => drop(dir.both(&what, |dir| dir.stat_at(&name).map(|stat| stat.kind))),
            15 | 16 => {
                if let Some(pair) = opened(dir, &name) {
                    match pair.kind {
                        NodeKind::Directory if self.dirs.len() < 12 => self.dirs.push(pair),
                        _ => self.open.push(pair),
                    }
                }
            }
            17 => drop(dir.both(&what, |dir| {
                dir.open_at(&name, OFlags::RDONLY | OFlags::DIRECTORY).map(drop)
            })),
            18 => drop(dir.both(&what, |dir| {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK;
                // A pipe without a reader and a socket are nothing that a library knows how to
                // open.
                match dir.stat_at(&name)?.kind {
                    NodeKind::File | NodeKind::Directory | NodeKind::Symlink => dir.open_at(&name, flags).map(drop),
                    _ => Ok(()),
                }
            })),
            19 => {
                if dir.system.stat().unwrap().nlink > 0 {
                    assert_eq!(names(&dir.volume), names(&dir.system), "{what}");
                }
            }
            20 if at > 0 && self.dirs.len() > 3 => drop(self.dirs.swap_remove(at)),
            21 => self.tree.shared.volume.sync().unwrap(),
            _ => self.on_file(open, kind, (offset, len), (mode, choice, byte), &what),
        }
    }

    fn on_file(&mut self, open: usize, kind: u64, (offset, len): (u64, u64), values: (u32, usize, u8), what: &str) {
        let (mode, choice, byte) = values;
        let Some(pair) = self.open.get(open) else { return };
        let is_file = pair.kind == NodeKind::File;
        let attribute = ["trusted.one", "trusted.two", "trusted.three"][choice];
        let attribute = OsStr::new(if is_file && len % 2 == 0 {
            "user.four"
        } else {
            attribute
        });
        match kind {
            22..=24 if is_file => {
                let data = vec![byte; usize::try_from(len).unwrap()];
                drop(pair.both(what, |inode| inode.write_at(offset, &data)));
            }
            25 if is_file => drop(pair.both(what, |inode| inode.truncate(if choice == 0 { 0 } else { offset }))),
            26 if is_file => {
                let keep = FallocateFlags::KEEP_SIZE;
                let modes = [
                    FallocateFlags::empty(),
                    keep,
                    FallocateFlags::PUNCH_HOLE | keep,
                    FallocateFlags::ZERO_RANGE,
                    FallocateFlags::ZERO_RANGE | keep,
                ];
                drop(pair.both(what, |inode| inode.fallocate(modes[usize::from(byte) % 5], offset, len)));
            }
            27 => drop(pair.both(what, |inode| inode.set_mode(mode))),
            28 => {
                let (uid, gid) = [(Some(5), None), (None, Some(6)), (Some(0), Some(0))][choice];
                drop(pair.both(what, |inode| inode.set_owner(uid, gid)));
            }
            29 => {
                let set = |inode: &Inode| {
                    inode.set_times(SetTime::To(len as i128 * 1_000_000_007), SetTime::To(-3))?;
                    inode.set_times(SetTime::Keep, SetTime::To(offset.into()))?;
                    Ok((inode.stat()?.atime_ns, inode.stat()?.mtime_ns))
                };
                drop(pair.both(what, set));
            }
            30 => {
                let value = vec![byte; usize::try_from(len).unwrap() % 300];
                let how = || {
                    [SetXattr::Any, SetXattr::Create, SetXattr::Replace]
                        .into_iter()
                        .nth(choice)
                        .unwrap()
                };
                drop(pair.both(what, |inode| inode.set_xattr(attribute, &value, how())));
                drop(pair.both(what, |inode| inode.get_xattr(attribute)));
            }
            31 => drop(pair.both(what, |inode| inode.remove_xattr(attribute))),
            32 if choice == 0 => drop(self.open.swap_remove(open)),
            32 => {
                pair.both(what, looks).unwrap();
                assert_eq!(xattrs(&pair.volume), xattrs(&pair.system), "{what}");
                if is_file {
                    assert!(content(&pair.volume) == content(&pair.system), "{what}");
                    check_holes(&pair.volume);
                    pair.volume.sync(choice == 1).unwrap();
                }
            }
            _ => {}
        }
    }
}

#[test]
fn a_volume_answers_as_a_directory_of_the_machine() {
    assert!(rustix::process::geteuid().is_root(), "owners and devices need root");
    let seeds = match std::env::var("BYTEBACK_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..std::env::var("BYTEBACK_SEEDS").map_or(12, |count| count.parse().unwrap())).collect(),
    };
    for seed in seeds {
        println!("BYTEBACK_SEED={seed}");
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let system = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            Inode::from(openat(CWD, dir.path(), flags, Mode::empty()).unwrap())
        };
        let device = device();
        let tree = open(&device);
        let pair = |tree: &VolumeTree| Pair {
            volume: tree.root(),
            system: system(),
            kind: NodeKind::Directory,
        };
        let mut life = Life {
            random: SplitMix64::new(seed),
            dirs: vec![pair(&tree)],
            open: Vec::new(),
            tree: &tree,
        };
        for step in 0..1500 {
            life.step(step);
        }
        drop(life);
        compare(&pair(&tree), Path::new("."));
        tree.close().unwrap();
        let tree = open(&device);
        compare(&pair(&tree), Path::new("again"));
        tree.close().unwrap();
    }
}

#[test]
fn volume_closed_under_open_files_can_be_read_but_not_changed() {
    let device = device();
    let tree = open(&device);
    let (name, gone) = (OsStr::new("f"), OsStr::new("gone"));
    let file = tree.root().create_at(name, OFlags::RDWR, 0o644, creator()).unwrap();
    let nameless = tree.root().create_at(gone, OFlags::RDWR, 0o644, creator()).unwrap();
    tree.root().unlink_at(gone, AtFlags::empty()).unwrap();
    for file in [&file, &nameless] {
        file.write_at(0, b"bytes").unwrap();
    }
    tree.close().unwrap();
    for file in [&file, &nameless] {
        assert_eq!(content(file), b"bytes");
        assert_eq!(errno_of(&file.write_at(0, b"other").unwrap_err()), Some(libc::EROFS));
    }
    drop((file, nameless));
    let tree = open(&device);
    assert_eq!(names(&tree.root()).len(), 1);
    assert_eq!(content(&tree.root().open_at(name, OFlags::RDONLY).unwrap()), b"bytes");
}

#[test]
fn no_name_of_the_tree_leads_to_what_the_daemon_keeps() {
    let device = device();
    let tree = open(&device);
    let kept = tree.state().open("log", OpenMode::CreateNew).unwrap();
    kept.write_all_at(0, b"kept").unwrap();
    kept.sync_data().unwrap();
    let root = tree.root();
    assert!(names(&root).is_empty());
    for name in [STATE, FILES, "..", "../state", "state/log"] {
        assert!(root.stat_at(OsStr::new(name)).is_err(), "{name}");
    }
    drop((kept, root));
    tree.close().unwrap();
    let tree = open(&device);
    let kept = tree.state().open("log", OpenMode::Existing).unwrap();
    let mut bytes = [0; 4];
    kept.read_exact_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
}

#[test]
fn what_is_written_through_is_there_after_the_power_was_cut() {
    let device = Arc::new(SimBlockDevice::new(LEN_BLOCKS));
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    create(&shared, &CreateOptions::new(VolumeId([7; 16]), 7)).unwrap();
    let tree = open(&shared);
    let name = OsStr::new("f");
    let flags = OFlags::RDWR | OFlags::SYNC;
    let file = tree.root().create_at(name, flags, 0o644, creator()).unwrap();
    file.write_at(0, b"through").unwrap();
    let plain = tree.root().open_at(name, OFlags::RDWR).unwrap();
    plain.write_at(7, b" and not").unwrap();
    device.cut_power();
    drop((file, plain));
    drop(tree);
    let after: Arc<dyn BlockDevice> = Arc::new(device.recover(1));
    let tree = open(&after);
    let bytes = content(&tree.root().open_at(name, OFlags::RDONLY).unwrap());
    assert!(bytes.starts_with(b"through"), "{bytes:?}");
}

#[test]
fn what_is_asked_of_two_trees_at_once_is_refused() {
    let (one, other) = (device(), device());
    let (one, other) = (open(&one), open(&other));
    let dir = tempfile::tempdir().unwrap();
    let system = Inode::from(std::fs::File::open(dir.path()).unwrap());
    let name = OsStr::new("f");
    let file = one.root().create_at(name, OFlags::RDWR, 0o644, creator()).unwrap();
    for elsewhere in [&other.root(), &system] {
        let refused = [
            elsewhere.link_at(name, &file),
            one.root().rename_at(name, elsewhere, name, RenameFlags::empty()),
        ];
        for refused in refused {
            assert_eq!(errno_of(&refused.unwrap_err()), Some(libc::EXDEV));
        }
    }
}

#[test]
fn nobody_has_an_acl_and_nobody_gets_one() {
    let device = device();
    let tree = open(&device);
    let acl = OsStr::new("system.posix_acl_access");
    // Any other answer and the kernel lets nobody through who is not the owner.
    assert_eq!(tree.root().get_xattr(acl).unwrap(), None);
    let refused = tree.root().set_xattr(acl, b"", SetXattr::Any).unwrap_err();
    assert_eq!(errno_of(&refused), Some(libc::EOPNOTSUPP));
}
