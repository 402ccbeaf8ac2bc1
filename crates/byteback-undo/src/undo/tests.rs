//! Random lives of a few files beside a model that remembers every state: what is read as of a time
//! was there within the quantum before it, or the answer is that it was not kept. Never other
//! bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use byteback_host::clock::SimClock;
use byteback_host::random::SplitMix64;
use byteback_host::sim::SimDisk;

use super::*;
use crate::undo::reading::Piece;
use crate::undo::session::Gap;
use byteback_oplog::TreeId;

const SECOND: i64 = 1_000_000_000;
const QUANTUM: i64 = 2 * SECOND;
const TREE: TreeId = TreeId(99);
const RIGHTS: Rights = Rights {
    mode: 0o640,
    uid: 1000,
    gid: 70_000,
};

fn options(window_s: i64, budget_bytes: u64) -> UndoOptions {
    UndoOptions {
        window_ns: window_s * SECOND,
        budget_bytes,
        quantum_ns: QUANTUM,
    }
}

fn reader(content: &[u8]) -> impl FnMut(u64, &mut [u8]) -> io::Result<usize> {
    |at, buffer| {
        let rest = content.get(usize::try_from(at).unwrap()..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Reads a file as of a time; `None` stands for a file that has no name now.
fn read_at(undo: &Undo, node: NodeId, at_ns: i64, present: Option<&[u8]>) -> Result<Vec<u8>, UndoError> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let as_of = undo.as_of(node, at_ns)?;
    let size = undo.size(&as_of, || Ok(present.map(|present| present.len() as u64)))?;
    let mut content = vec![0xAA; usize::try_from(size).unwrap()];
    if let Some(range) = ByteRange::new(0, size) {
        let mut present = present.map(reader);
        let read = |at, buffer: &mut [u8]| present.as_mut().map_or_else(|| Err(gone()), |read| read(at, buffer));
        undo.read(&as_of, range, read, &mut |piece| {
            match piece {
                Piece::Data(at, bytes) => content[usize::try_from(at).unwrap()..][..bytes.len()].copy_from_slice(bytes),
                Piece::Zeros(range) => content[usize::try_from(range.start()).unwrap()..]
                    [..usize::try_from(range.len_bytes()).unwrap()]
                    .fill(0),
            }
            Ok(())
        })?;
    }
    Ok(content)
}

/// A file of the model: each state with the time from which on it was.
#[derive(Default)]
struct File {
    states: Vec<(i64, Option<Vec<u8>>)>,
}

impl File {
    fn now(&self) -> Option<&Vec<u8>> {
        self.states.last()?.1.as_ref()
    }

    /// The states that were there at some instant from `from_ns` to `to_ns`.
    fn between(&self, from_ns: i64, to_ns: i64) -> Vec<Option<&Vec<u8>>> {
        let mut found = Vec::new();
        for (index, (since_ns, state)) in self.states.iter().enumerate() {
            let until_ns = self.states.get(index + 1).map_or(i64::MAX, |next| next.0);
            if *since_ns <= to_ns && until_ns >= from_ns {
                found.push(state.as_ref());
            }
        }
        found
    }
}

struct Life {
    seed: u64,
    random: SplitMix64,
    disk: SimDisk,
    clock: Arc<SimClock>,
    undo: Option<Undo>,
    options: UndoOptions,
    files: BTreeMap<u64, File>,
    /// Files that the log would not be sure of after a crash.
    unsure: BTreeSet<u64>,
    next: u64,
    exact: u64,
    refused: BTreeMap<NotKept, u64>,
}

impl Life {
    fn new(seed: u64, options: UndoOptions) -> Self {
        let mut life = Self {
            seed,
            random: SplitMix64::new(seed),
            disk: SimDisk::new(seed),
            clock: Arc::new(SimClock::new(1_700_000_000 * SECOND)),
            undo: None,
            options,
            files: BTreeMap::new(),
            unsure: BTreeSet::new(),
            next: 2,
            exact: 0,
            refused: BTreeMap::new(),
        };
        life.start(&Gap {
            everything: true,
            ..Gap::default()
        });
        life
    }

    fn start(&mut self, gap: &Gap) {
        let undo = Undo::open(
            Arc::new(self.disk.clone()),
            Arc::clone(&self.clock) as Arc<dyn Clock>,
            self.options,
        )
        .unwrap();
        undo.ready(TREE, gap).unwrap();
        self.undo = Some(undo);
    }

    fn undo(&self) -> &Undo {
        self.undo.as_ref().unwrap()
    }

    fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }

    fn pass(&mut self, ms_max: u64) {
        let ms = 1 + self.random.below(ms_max);
        self.clock.advance(Duration::from_millis(ms));
    }

    fn set(&mut self, node: u64, state: Option<Vec<u8>>) {
        let now_ns = self.now_ns();
        self.files.entry(node).or_default().states.push((now_ns, state));
        self.unsure.insert(node);
    }

    fn change(&mut self, node: u64) {
        let Some(mut content) = self.files[&node].now().cloned() else {
            return;
        };
        let before = content.clone();
        let size = content.len() as u64;
        let at = self.random.below(size + 1);
        let len = 1 + self.random.below(3000);
        let what = self.random.below(10);
        let is_unreadable = self.random.below(200) == 0;
        let mut read_before = reader(&before);
        let mut read = |at: u64, buffer: &mut [u8]| {
            if is_unreadable {
                Err(io::Error::other("a bad sector"))
            } else {
                read_before(at, buffer)
            }
        };
        let range = |from: u64, to: u64| ByteRange::new(from, to).into_iter().collect::<Vec<_>>();
        let (ranges, how) = match what {
            0 => {
                let to = self.random.below(size * 2 + 2);
                content.resize(usize::try_from(to).unwrap(), 0);
                (range(to.min(size), to.max(size)), ContentHow::Truncated)
            }
            1 => {
                let end = (at + len).min(size);
                content[usize::try_from(at).unwrap()..usize::try_from(end.max(at)).unwrap()].fill(0);
                (range(at, end.max(at)), ContentHow::Allocated)
            }
            _ => {
                let at = if what == 2 { size + self.random.below(100) } else { at };
                let end = usize::try_from(at + len).unwrap();
                content.resize(content.len().max(end), 0);
                let byte = self.random.next_u64() as u8;
                content[usize::try_from(at).unwrap()..end].fill(byte);
                (range(at, at + len), ContentHow::Written)
            }
        };
        let change = BeforeChange {
            ranges: &ranges,
            how,
            size_bytes: size,
            read: &mut read,
        };
        self.undo().before_content(NodeId(node), change);
        self.set(node, Some(content));
    }

    fn step(&mut self) {
        let living: Vec<u64> = self
            .files
            .iter()
            .filter(|(_, file)| file.now().is_some())
            .map(|(node, _)| *node)
            .collect();
        match self.random.below(100) {
            _ if living.len() < 2 => self.create(),
            0..=3 => self.create(),
            4..=6 => {
                let node = living[self.random.below(living.len() as u64) as usize];
                let content = self.files[&node].now().unwrap().clone();
                self.undo()
                    .before_removal(NodeId(node), content.len() as u64, RIGHTS, &mut reader(&content));
                self.set(node, None);
            }
            7..=9 => self.pass(20_000),
            10..=12 => self.undo().maintain(),
            13 => {
                self.undo().sync();
                self.unsure.clear();
            }
            14 => self.restart(),
            15 if self.random.below(3) == 0 => self.crash(),
            _ => {
                let node = living[self.random.below(living.len() as u64) as usize];
                self.change(node);
            }
        }
        self.pass(400);
    }

    fn create(&mut self) {
        let node = self.next;
        self.next += 1;
        self.undo().name_changed(
            NodeId::ROOT,
            OsStr::new(&format!("file {node}")),
            NameHow::Created,
            None,
            Some(NodeId(node)),
        );
        self.set(node, Some(Vec::new()));
    }

    fn restart(&mut self) {
        self.undo().end(TREE).unwrap();
        self.undo = None;
        self.pass(3000);
        // Somebody changes files while nobody looks; the log finds out which.
        let living: Vec<u64> = self.files.keys().copied().collect();
        let mut gap = Gap::default();
        if self.random.coin() {
            let node = living[self.random.below(living.len() as u64) as usize];
            if self.files[&node].now().is_some() {
                self.set(node, Some(b"from elsewhere".to_vec()));
                gap.nodes.push(NodeId(node));
            }
        }
        self.pass(3000);
        self.unsure.clear();
        self.start(&gap);
    }

    fn crash(&mut self) {
        let recover = self.random.next_u64();
        self.disk = self.disk.crash(recover);
        self.undo = None;
        let unsure = std::mem::take(&mut self.unsure);
        // The content of the files themselves that reached the disk is unknown, too; the log says
        // that it is not sure.
        self.pass(3000);
        for node in &unsure {
            if self.random.coin() && self.files[node].now().is_some() {
                self.set(*node, Some(b"after the crash".to_vec()));
            }
        }
        self.unsure.clear();
        self.start(&Gap {
            nodes: unsure.into_iter().map(NodeId).collect(),
            was_interrupted: true,
            ..Gap::default()
        });
    }

    fn check(&mut self) {
        let nodes: Vec<u64> = self.files.keys().copied().collect();
        let node = nodes[self.random.below(nodes.len() as u64) as usize];
        let (first_ns, now_ns) = (self.files[&node].states[0].0, self.now_ns());
        // Somewhere in the past, often right at a change, or beside it.
        let states = &self.files[&node].states;
        let at_ns = match self.random.below(3) {
            0 => first_ns + (self.random.next_u64() as i64).rem_euclid((now_ns - first_ns).max(1)),
            _ => states[self.random.below(states.len() as u64) as usize].0 + self.random.below(3) as i64 - 1,
        };
        let file = &self.files[&node];
        match read_at(self.undo(), NodeId(node), at_ns, file.now().map(Vec::as_slice)) {
            Ok(content) => {
                let allowed = file.between(at_ns - QUANTUM, at_ns);
                assert!(
                    allowed.contains(&Some(&content)),
                    "seed {}: file {node} as of {} ns ago: {} bytes that were not there in the quantum before",
                    self.seed,
                    now_ns - at_ns,
                    content.len()
                );
                self.exact += 1;
            }
            Err(UndoError::NotKept { why, .. }) => *self.refused.entry(why).or_default() += 1,
            // The file has no name now, and nothing of it was told since.
            Err(UndoError::NoFile) => assert!(
                file.now().is_none() && file.between(at_ns - QUANTUM, at_ns).contains(&None),
                "seed {}: file {node} was there and is not found",
                self.seed
            ),
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let first = std::env::var("BYTEBACK_SEED").ok().and_then(|seed| seed.parse().ok());
    first.map_or(0..40, |first: u64| first..first + 1)
}

#[test]
fn undo_reads_what_was_there_at_a_time_or_says_it_is_not_kept() {
    let (mut exact, mut refused) = (0, BTreeMap::new());
    for seed in seeds() {
        let budget = [64 << 20, 2 << 20, 600 << 10][seed as usize % 3];
        let mut life = Life::new(seed, options([100_000, 60][seed as usize / 3 % 2], budget));
        for _ in 0..1200 {
            life.step();
            if life.random.below(3) == 0 {
                life.check();
            }
        }
        for _ in 0..200 {
            life.check();
        }
        exact += life.exact;
        life.refused
            .iter()
            .for_each(|(why, count)| *refused.entry(*why).or_insert(0) += count);
    }
    println!("{exact} read, not kept: {refused:?}");
    assert!(
        exact > 3000 || seeds().count() == 1,
        "a test of refusals only proves little"
    );
}

#[test]
fn a_full_disk_gives_up_and_never_answers_wrongly() {
    for seed in seeds() {
        let mut life = Life::new(seed, options(100_000, 64 << 20));
        for step in 0..600 {
            if step == 200 {
                life.disk.set_capacity(900 << 10);
            }
            if step == 400 {
                life.disk.set_capacity(1 << 30);
            }
            life.step();
            life.check();
        }
    }
}

/// A reader sees the file as it was when the read began, while the file is written.
#[test]
fn a_reader_sees_one_state_while_the_file_changes() {
    let mut life = Life::new(1, options(100_000, 64 << 20));
    life.create();
    let node = NodeId(2);
    let old: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    life.set(2, Some(old.clone()));
    life.pass(5000);
    let at_ns = life.now_ns();
    let now = std::cell::RefCell::new(old.clone());
    let write = |range: ByteRange| {
        let before = now.borrow().clone();
        let change = BeforeChange {
            ranges: &[range],
            how: ContentHow::Written,
            size_bytes: before.len() as u64,
            read: &mut reader(&before),
        };
        life.undo().before_content(node, change);
        now.borrow_mut()[usize::try_from(range.start()).unwrap()..usize::try_from(range.end()).unwrap()].fill(0xEE);
    };
    write(ByteRange::new(100, 200).unwrap());
    let as_of = life.undo().as_of(node, at_ns).unwrap();
    let mut read = Vec::new();
    let all = ByteRange::new(0, old.len() as u64).unwrap();
    let present = |at: u64, buffer: &mut [u8]| reader(&now.borrow())(at, buffer);
    life.undo()
        .read(&as_of, all, present, &mut |piece| {
            if let Piece::Data(at, bytes) = piece {
                assert_eq!(at, read.len() as u64);
                read.extend_from_slice(bytes);
            }
            // Both a part that was read already and one that was not, each time.
            write(ByteRange::new(0, 50).unwrap());
            write(ByteRange::new(2_500_000, 2_600_000).unwrap());
            Ok(())
        })
        .unwrap();
    assert!(read == old);
}

fn write_to(undo: &Undo, node: NodeId, content: &mut [u8], range: ByteRange) {
    let before = content.to_vec();
    let change = BeforeChange {
        ranges: &[range],
        how: ContentHow::Written,
        size_bytes: before.len() as u64,
        read: &mut reader(&before),
    };
    undo.before_content(node, change);
    content[usize::try_from(range.start()).unwrap()..usize::try_from(range.end()).unwrap()].fill(0xEE);
}

#[test]
fn undo_keeps_what_came_into_a_history_since_it_was_seen_empty() {
    let life = Life::new(7, options(100_000, 64 << 20));
    let (undo, node) = (life.undo(), NodeId(2));
    let seen_empty = undo.history_of(node);
    assert!(seen_empty.lock().is_empty());
    write_to(undo, node, &mut [0; 100], ByteRange::new(0, 10).unwrap());
    undo.forget_if_empty(node, &seen_empty);
    assert_eq!(undo.moments(node).len(), 1);
}

#[test]
fn undo_reader_of_an_old_file_gets_nothing_written_meanwhile() {
    let mut life = Life::new(7, options(100, 64 << 20));
    let node = NodeId(2);
    let old: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    let now = std::cell::RefCell::new(old.clone());
    for at in 0..3 {
        write_to(
            life.undo(),
            node,
            &mut now.borrow_mut(),
            ByteRange::new(at, at + 1).unwrap(),
        );
        life.pass(1);
        life.clock.advance(Duration::from_secs(10));
    }
    let old = now.borrow().clone();
    // The segment with these moments ends, and becomes too old.
    life.undo().end(TREE).unwrap();
    life.undo = None;
    life.start(&Gap::default());
    life.clock.advance(Duration::from_secs(500));
    life.undo().maintain();
    let as_of = life.undo().as_of(node, life.now_ns()).unwrap();
    assert!(life.undo().moments(node).is_empty());
    let mut read = Vec::new();
    let all = ByteRange::new(0, old.len() as u64).unwrap();
    let present = |at: u64, buffer: &mut [u8]| reader(&now.borrow())(at, buffer);
    life.undo()
        .read(&as_of, all, present, &mut |piece| {
            if let Piece::Data(_, bytes) = piece {
                read.extend_from_slice(bytes);
            }
            life.undo().maintain();
            write_to(
                life.undo(),
                node,
                &mut now.borrow_mut(),
                ByteRange::new(2_500_000, 2_500_100).unwrap(),
            );
            Ok(())
        })
        .unwrap();
    assert!(read == old, "it was told what was written while it was read");
}

#[test]
fn names_stand_for_what_they_stood_for() {
    let mut life = Life::new(7, options(100_000, 64 << 20));
    let name = OsStr::new("document");
    let mut bindings: Vec<(i64, Option<NodeId>)> = vec![(life.now_ns(), None)];
    for step in 0..300_u64 {
        life.pass(3000);
        let before = bindings.last().unwrap().1;
        let after = (life.random.below(4) > 0).then_some(NodeId(100 + step));
        if before == after {
            continue;
        }
        let how = if after.is_some() {
            NameHow::MovedHere
        } else {
            NameHow::Removed
        };
        life.undo().name_changed(NodeId::ROOT, name, how, before, after);
        bindings.push((life.now_ns(), after));
        if step % 50 == 49 {
            life.undo().end(TREE).unwrap();
            life.undo = None;
            life.start(&Gap::default());
        }
        let (at_ns, expected) = bindings[life.random.below(bindings.len() as u64) as usize];
        let now = bindings.last().unwrap().1;
        let found = life.undo().child_at(NodeId::ROOT, name, at_ns + 1, || Ok(now)).unwrap();
        assert_eq!(found, expected, "step {step}");
    }
    let gap = Gap {
        names: vec![(NodeId::ROOT, name.to_owned())],
        ..Gap::default()
    };
    life.undo().end(TREE).unwrap();
    life.undo = None;
    life.pass(1000);
    life.start(&gap);
    let refused = life.undo().child_at(NodeId::ROOT, name, bindings[3].0, || Ok(None));
    assert!(
        matches!(refused, Err(UndoError::NotKept { why: NotKept::Gap, .. })),
        "{refused:?}"
    );
}

#[test]
fn undo_drops_a_journal_of_another_log_or_of_a_half_made_start() {
    let is_known = |life: &Life, at_ns: i64| life.undo().as_of(NodeId(2), at_ns).is_ok();
    let prepared = || {
        let mut life = Life::new(3, options(100_000, 64 << 20));
        life.create();
        life.pass(20_000);
        let at_ns = life.now_ns();
        life.pass(20_000);
        life.change(2);
        assert!(is_known(&life, at_ns));
        (life, at_ns)
    };
    let (mut life, at_ns) = prepared();
    life.undo().end(TREE).unwrap();
    life.start(&Gap::default());
    assert!(is_known(&life, at_ns), "a start in good order keeps everything");
    // Killed, and the log says so.
    life.start(&Gap {
        was_interrupted: true,
        ..Gap::default()
    });
    assert!(is_known(&life, at_ns));
    // Killed, and the log does not know: an odd pair.
    life.start(&Gap::default());
    assert!(!is_known(&life, at_ns));

    let (mut life, at_ns) = prepared();
    life.undo().end(TREE).unwrap();
    let opened = Undo::open(
        Arc::new(life.disk.clone()),
        Arc::clone(&life.clock) as Arc<dyn Clock>,
        life.options,
    )
    .unwrap();
    drop(opened);
    life.start(&Gap {
        was_interrupted: true,
        ..Gap::default()
    });
    assert!(!is_known(&life, at_ns), "the start before was not ready");

    let (mut life, at_ns) = prepared();
    life.undo().end(TREE).unwrap();
    let opened = Undo::open(
        Arc::new(life.disk.clone()),
        Arc::clone(&life.clock) as Arc<dyn Clock>,
        life.options,
    )
    .unwrap();
    opened.ready(TreeId(5), &Gap::default()).unwrap();
    life.undo = Some(opened);
    assert!(!is_known(&life, at_ns), "another log");
}

#[test]
fn undo_does_not_mistake_the_past_after_the_clock_is_set_back() {
    for is_restarted in [false, true] {
        let mut life = Life::new(7, options(3600, 64 << 20));
        let (node, minute) = (NodeId(2), Duration::from_secs(60));
        let write = |life: &Life, now: &mut Vec<u8>, byte: u8| {
            let before = now.clone();
            let change = BeforeChange {
                ranges: &[ByteRange::new(0, 100).unwrap()],
                how: ContentHow::Written,
                size_bytes: 100,
                read: &mut reader(&before),
            };
            life.undo().before_content(node, change);
            now.fill(byte);
        };
        let mut now = vec![0; 100];
        write(&life, &mut now, 1);
        life.clock.advance(minute);
        // Somebody reads meanwhile, as of a time that the clock has shown once only.
        let reading = life.undo().as_of(node, life.now_ns()).unwrap();
        life.clock.set_wall_ns(life.now_ns() - 24 * 3600 * SECOND);
        if is_restarted {
            life.undo().end(TREE).unwrap();
            life.undo = None;
            life.start(&Gap::default());
        }
        let set_back_ns = life.now_ns();
        write(&life, &mut now, 2);
        life.clock.advance(minute);
        write(&life, &mut now, 3);
        life.clock.advance(minute);
        write(&life, &mut now, 4);
        let ago = |life: &Life, seconds: i64| read_at(life.undo(), node, life.now_ns() - seconds * SECOND, Some(&now));
        assert_eq!(ago(&life, 0).unwrap()[0], 3);
        assert_eq!(ago(&life, 30).unwrap()[0], 3);
        assert_eq!(ago(&life, 90).unwrap()[0], 2);
        // Before it was set back, by either reckoning, and what may still have been under way then.
        for at_ns in [
            set_back_ns - minute.as_nanos() as i64,
            set_back_ns,
            set_back_ns + 9 * SECOND,
        ] {
            let refused = read_at(life.undo(), node, at_ns, Some(&now));
            assert!(
                matches!(
                    refused,
                    Err(UndoError::NotKept {
                        why: NotKept::ClockSetBack,
                        ..
                    })
                ),
                "{refused:?}"
            );
        }
        let all = ByteRange::new(0, 100).unwrap();
        if !is_restarted {
            let read = life.undo().read(&reading, all, reader(&now), &mut |_| Ok(()));
            assert!(read.is_err(), "a reader of before went on");
        }
        // Also of names.
        let (name, child) = (OsStr::new("name"), NodeId(9));
        life.undo()
            .name_changed(NodeId::ROOT, name, NameHow::Removed, Some(child), None);
        life.clock.advance(minute);
        life.clock.set_wall_ns(life.now_ns() - 3600 * SECOND);
        let then = life
            .undo()
            .child_at(NodeId::ROOT, name, life.now_ns() - minute.as_nanos() as i64, || {
                Ok(None)
            });
        assert!(then.is_err(), "{then:?}");
        life.clock.advance(minute);
        let then = life.undo().child_at(NodeId::ROOT, name, life.now_ns(), || Ok(None));
        assert_eq!(then.unwrap(), None);
    }
}

#[test]
fn a_length_that_was_given_up_is_not_taken_for_the_present_one() {
    let life = Life::new(7, options(100_000, 64 << 20));
    let (undo, node) = (life.undo(), NodeId(2));
    let as_of = undo.as_of(node, life.now_ns()).unwrap();
    // The file is emptied, and is too long to be kept.
    undo.not_kept(node);
    let size = undo.size(&as_of, || Ok(Some(0)));
    assert!(matches!(size, Err(UndoError::NotKept { .. })), "{size:?}");
}

#[test]
fn undo_finds_no_file_between_its_removal_and_its_names_removal() {
    let life = Life::new(8, options(100_000, 64 << 20));
    let (undo, node, name) = (life.undo(), NodeId(2), OsStr::new("short-lived"));
    undo.name_changed(NodeId::ROOT, name, NameHow::Created, None, Some(node));
    assert!(!undo.wants_removed(node));
    life.clock.advance(Duration::from_nanos(10));
    let between_ns = life.now_ns();
    life.clock.advance(Duration::from_nanos(10));
    undo.name_changed(NodeId::ROOT, name, NameHow::Removed, Some(node), None);
    let bore = undo.child_at(NodeId::ROOT, name, between_ns, || Ok(None));
    assert_eq!(bore.unwrap(), Some(node));
    let content = read_at(undo, node, between_ns, None);
    assert!(matches!(content, Err(UndoError::NoFile)), "{content:?}");
}

/// Seen on a busy disk: removing took longer than a quantum, and the time of the removal, as the
/// history tells it, brought nothing back.
#[test]
fn undo_restores_a_slowly_removed_file_by_the_end_of_removal() {
    let mut life = Life::new(9, options(100_000, 64 << 20));
    let (node, name) = (NodeId(2), OsStr::new("gone"));
    let content = vec![7; 5000];
    life.undo()
        .before_removal(node, content.len() as u64, RIGHTS, &mut reader(&content));
    life.clock.advance(Duration::from_secs(60));
    life.undo()
        .name_changed(NodeId::ROOT, name, NameHow::Removed, Some(node), None);
    let at_ns = life.undo().name_events(NodeId::ROOT, name)[0].at_ns;
    life.clock.advance(Duration::from_secs(60));
    for _ in 0..2 {
        let bore = life.undo().child_at(NodeId::ROOT, name, at_ns, || Ok(None));
        assert_eq!(bore.unwrap(), Some(node));
        assert!(read_at(life.undo(), node, at_ns, None).unwrap() == content);
        assert_eq!(life.undo().as_of(node, at_ns).unwrap().rights, Some(RIGHTS));
        assert_eq!(
            life.undo().as_of(node, life.now_ns()).unwrap().rights,
            None,
            "it is gone by then"
        );
        // As a later start knows it.
        life.undo().end(TREE).unwrap();
        life.undo = None;
        life.start(&Gap::default());
    }
}
