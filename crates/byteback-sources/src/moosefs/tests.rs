//! Files of a simulated MooseFS with impossible output. A real one:
//! `crates/byteback/tests/systems/moosefs`.

use std::cell::{Cell, RefCell};

use byteback_host::random::SplitMix64;
use md5::{Digest, Md5};

use super::answers::{CHUNK_BLOCKS, Chunk, HEADER_LEN};
use super::*;

/// A chunk on its server.
#[derive(Clone, Debug)]
struct Held {
    id: u64,
    version: u32,
    /// The CRCs in memory.
    crcs: Vec<u32>,
    /// The CRCs in the chunk's file, which is written later than memory.
    written: Vec<u32>,
    /// Whether the file is in the older format.
    is_old: bool,
    /// Whether the file is on this machine.
    is_here: bool,
    /// Other copies: those elsewhere, and invalid ones.
    copies: u64,
    invalid: u64,
}

impl Held {
    fn digest(&self) -> String {
        let crcs: Vec<u8> = self.crcs.iter().flat_map(|crc| crc.to_be_bytes()).collect();
        Md5::digest(crcs).iter().map(|byte| format!("{byte:02X}")).collect()
    }

    fn header(&self) -> Vec<u8> {
        let mut header = b"MFSC 1.0".to_vec();
        header.extend(self.id.to_be_bytes());
        header.extend(self.version.to_be_bytes());
        header.resize(if self.is_old { 1024 } else { 4096 }, 0);
        header.extend(self.written.iter().flat_map(|crc| crc.to_be_bytes()));
        header.resize(HEADER_LEN, 0);
        header
    }
}

#[derive(Clone, Debug)]
struct Model {
    size: u64,
    mtime_ns: i64,
    chunks: Vec<Option<Held>>,
}

impl Model {
    fn drawn(random: &mut SplitMix64) -> Self {
        let count = random.below(4);
        let chunks = (0..count).map(|number| {
            (random.below(4) > 0).then(|| {
                let blocks = [0, 1, 5, CHUNK_BLOCKS][random.below(4) as usize];
                let crcs: Vec<_> = (0..blocks).map(|_| random.next_u64() as u32).collect();
                Held {
                    id: number + 7 + (random.below(2) << 40),
                    version: 1 + random.below(20) as u32,
                    written: crcs.clone(),
                    crcs,
                    is_old: random.below(3) == 0,
                    is_here: random.below(4) > 0,
                    copies: random.below(3),
                    invalid: random.below(2),
                }
            })
        });
        let chunks: Vec<_> = chunks.collect();
        let most = CHUNK_LEN * count;
        Self {
            size: most.saturating_sub(random.below(CHUNK_LEN)).max(u64::from(count > 0)),
            mtime_ns: 1_700_000_000_000_000_000,
            chunks,
        }
    }

    fn text(&self) -> String {
        let mut text = "/proc/1/fd/3:\n".to_owned();
        if self.chunks.is_empty() {
            text += "\tno chunks - empty file\n";
        }
        for (number, chunk) in self.chunks.iter().enumerate() {
            let Some(held) = chunk else {
                text += &format!("\tchunk {number}: empty\n");
                continue;
            };
            text += &format!(
                "\tchunk {number}: {:016X}_{:08X} / (id:{} ver:{})\n",
                held.id, held.version, held.id, held.version
            );
            for copy in 0..held.invalid {
                text += &format!("\t\tcopy {}: 10.99.0.3:9422 (status:INVALID)\n", copy + 1);
            }
            for copy in 0..=held.copies {
                text += &format!(
                    "\t\tcopy {}: 10.99.0.{copy}:9422 (status:VALID ; blocks: {} ; checksum digest: {})\n",
                    copy + held.invalid + 1,
                    held.crcs.len(),
                    held.digest()
                );
            }
        }
        text
    }

    /// The expected knowledge about each block up to the file's end.
    fn expected(&self) -> Vec<std::result::Result<Vec<u8>, Unknown>> {
        let of = |block: u64| match self.chunks.get((block / CHUNK_BLOCKS) as usize) {
            Some(Some(held)) if !held.is_here => Err(Unknown::NotSummed),
            Some(Some(held)) => {
                let crc = held.crcs.get((block % CHUNK_BLOCKS) as usize);
                Ok(crc.map_or_else(Vec::new, |crc| crc.to_le_bytes().to_vec()))
            }
            _ => Ok(Vec::new()),
        };
        (0..self.size.div_ceil(BLOCK_LEN)).map(of).collect()
    }
}

/// A file that is queried repeatedly.
struct ScriptedFile {
    model: Model,
    stat: Stat,
    asked: RefCell<Vec<&'static str>>,
    /// The number of requests for its times.
    stats: Cell<i64>,
    /// The number of descriptions so far; from `changes_at` on, `later` is described.
    times: Cell<usize>,
    changes_at: usize,
    later: Option<Model>,
    copies_differ: bool,
    /// The chunk that the chunks' files belong to according to their headers, if not 0.
    headers_are_of: u64,
}

impl ScriptedFile {
    fn new(model: Model) -> Self {
        let mut stat = byteback_host::tree::stat_fd(tempfile::tempfile().unwrap()).unwrap();
        stat.size = model.size;
        Self {
            model,
            stat,
            asked: RefCell::default(),
            stats: Cell::new(0),
            times: Cell::new(0),
            changes_at: usize::MAX,
            later: None,
            copies_differ: false,
            headers_are_of: 0,
        }
    }

    fn present(&self) -> &Model {
        let later = self.later.as_ref().filter(|_| self.times.get() >= self.changes_at);
        later.unwrap_or(&self.model)
    }
}

impl System for &ScriptedFile {
    fn stat(&self) -> std::io::Result<Stat> {
        self.stats.set(self.stats.get() + 1);
        Ok(Stat {
            size: self.present().size,
            mtime_ns: self.present().mtime_ns.into(),
            // Earlier writes reach the master only now, again and again.
            ctime_ns: self.stats.get() * 1_000_000_000,
            inode_flags: byteback_host::tree::InodeFlags::NONE,
            ..self.stat
        })
    }

    fn flush(&self) -> Result<()> {
        self.asked.borrow_mut().push("flush");
        Ok(())
    }

    fn describe(&self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.asked.borrow_mut().push("describe");
        let mut text = self.present().text();
        if self.copies_differ {
            let at = text.rfind("blocks: ").unwrap() + "blocks: ".len();
            text.insert(at, '1');
        }
        self.times.set(self.times.get() + 1);
        text.lines().try_for_each(|line| each(line.as_bytes()))
    }

    fn headers(&self, chunk: &Chunk) -> Result<Vec<Vec<u8>>> {
        let mut all = self.present().chunks.iter().flatten();
        let held = all.find(|held| held.id == chunk.id).unwrap();
        Ok(match held.is_here {
            true if self.headers_are_of > 0 => vec![
                Held {
                    id: self.headers_are_of,
                    ..held.clone()
                }
                .header(),
            ],
            true => vec![held.header()],
            false => Vec::new(),
        })
    }
}

/// 300 seeds, unless `BYTEBACK_SEED` is set.
fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("BYTEBACK_SEED").map(|seed| seed.parse().unwrap());
    given.map_or(1..301, |seed: u64| seed..seed + 1)
}

#[test]
fn every_block_is_told_as_it_is() {
    for seed in seeds() {
        let reported = ScriptedFile::new(Model::drawn(&mut SplitMix64::new(seed)));
        let model = &reported.model;
        let sums = FileChecksums::collect(1, || Passage::begin(&reported));
        let sums = sums.unwrap_or_else(|error| panic!("BYTEBACK_SEED={seed}: {error}\n{}", model.text()));
        assert_eq!(*reported.asked.borrow(), ["flush", "describe"].repeat(2));
        let (layout, mut at, mut found) = (sums.layout(), 0, Vec::new());
        for run in sums.runs() {
            assert_eq!(run.range().start(), at, "BYTEBACK_SEED={seed}: a gap");
            at = run.range().end();
            match run {
                Run::Sums { sums, .. } => found.extend(sums.chunks(4).map(|sum| Ok(sum.to_vec()))),
                Run::Zeros { range } => found.extend((0..layout.block_count(range)).map(|_| Ok(Vec::new()))),
                Run::Unknown { range, why } => found.extend((0..layout.block_count(range)).map(|_| Err(why))),
                Run::Chunks { .. } => panic!("chunks"),
            }
        }
        assert_eq!(at, model.size, "BYTEBACK_SEED={seed}: not all of it");
        assert!(found == model.expected(), "BYTEBACK_SEED={seed}\n{}", model.text());
    }
}

/// The server has the CRCs, but its file does not yet; or the file is another chunk's or missing,
/// or the copies differ.
#[test]
fn crcs_that_are_not_those_of_the_server_are_not_told() {
    let mut spoiled = 0;
    for seed in seeds() {
        let mut random = SplitMix64::new(seed);
        let model = Model::drawn(&mut random);
        for number in 0..model.chunks.len() {
            let mut stale = model.clone();
            let Some(held) = stale.chunks[number]
                .as_mut()
                .filter(|held| held.is_here && !held.crcs.is_empty())
            else {
                continue;
            };
            spoiled += 1;
            let block = random.below(held.crcs.len() as u64) as usize;
            held.crcs[block] ^= 1;
            let reported = ScriptedFile::new(stale.clone());
            let said = collect(2, || &reported);
            assert!(
                matches!(said, Err(SourceError::Missing(what)) if what.contains("chunk server's files")),
                "BYTEBACK_SEED={seed}: {said:?}"
            );
            // Where it is seen to change, that is the reason.
            let mut later = [stale.clone(), stale.clone()];
            later[0].mtime_ns += 1_000_000_000;
            later[1].chunks[number].as_mut().unwrap().crcs[block] ^= 2;
            for (later, changes_at) in later.into_iter().flat_map(|model| [(model.clone(), 1), (model, 2)]) {
                let reported = ScriptedFile {
                    changes_at,
                    later: Some(later),
                    ..ScriptedFile::new(stale.clone())
                };
                let said = collect(3, || &reported);
                assert!(matches!(said, Err(SourceError::Busy)), "BYTEBACK_SEED={seed}: {said:?}");
            }
            // Then it does.
            let mut written = stale.clone();
            let held = written.chunks[number].as_mut().unwrap();
            held.written = held.crcs.clone();
            let reported = ScriptedFile {
                changes_at: 1,
                later: Some(written),
                ..ScriptedFile::new(stale)
            };
            FileChecksums::collect(2, || Passage::begin(&reported)).unwrap();
            let chunk = model.chunks[number].as_ref().unwrap();
            let reported = |header: &[u8], id, version| {
                let held = super::answers::Held {
                    blocks: chunk.crcs.len() as u64,
                    digest: Md5::digest(chunk.crcs.iter().flat_map(|crc| crc.to_be_bytes()).collect::<Vec<_>>()).into(),
                };
                let chunk = Chunk {
                    id,
                    version,
                    held: None,
                };
                table(header, &chunk, &held).map(|table| table.is_some())
            };
            let header = chunk.header();
            assert_eq!(reported(&header, chunk.id, chunk.version), Ok(true));
            assert!(reported(&header, chunk.id + 1, chunk.version).is_err());
            assert!(reported(&header, chunk.id, chunk.version + 1).is_err());
            assert!(reported(&[b"NFSC 1.0", &header[8..]].concat(), chunk.id, chunk.version).is_err());
            for len in [0, 8, 19, 20, 1024] {
                assert_ne!(reported(&header[..len], chunk.id, chunk.version), Ok(true));
            }
        }
    }
    assert!(spoiled > 100 || seeds().count() == 1, "{spoiled}");
}

#[test]
fn a_file_that_changes_meanwhile_is_not_told() {
    let mut changed = 0;
    for seed in seeds() {
        let mut random = SplitMix64::new(seed);
        let model = Model::drawn(&mut random);
        let mut later = model.clone();
        match later.chunks.iter_mut().flatten().next() {
            // Written, and written back, in another second.
            _ if random.below(4) == 0 => later.mtime_ns += 1_000_000_000,
            Some(held) if random.below(2) == 0 && !held.crcs.is_empty() => {
                held.crcs[0] ^= 1;
                held.written = held.crcs.clone();
            }
            Some(held) if random.below(2) == 0 => held.version += 1,
            _ => later.size += 1,
        }
        let reported = ScriptedFile {
            changes_at: 1,
            later: Some(later.clone()),
            ..ScriptedFile::new(model.clone())
        };
        let said = FileChecksums::collect(1, || Passage::begin(&reported));
        assert!(
            matches!(said, Err(SourceError::Busy | SourceError::Malformed(_))),
            "BYTEBACK_SEED={seed}: {said:?}"
        );
        // Its length or time would be another one within what is asked last.
        if (later.size, later.mtime_ns) != (model.size, model.mtime_ns) {
            continue;
        }
        let reported = ScriptedFile {
            changes_at: 3,
            later: Some(later),
            ..ScriptedFile::new(model)
        };
        let before = FileChecksums::collect(1, || Passage::begin(&reported)).unwrap();
        assert_eq!(State::of(&&reported).unwrap().stamp(), *before.stamp());
        let after = FileChecksums::collect(2, || Passage::begin(&reported)).unwrap();
        assert_ne!(before.stamp(), after.stamp(), "BYTEBACK_SEED={seed}");
        changed += 1;
    }
    assert!(changed > 50 || seeds().count() == 1, "{changed}");
}

/// Copies that differ, another chunk's file, and a chunk that replaced another one with the same
/// content.
#[test]
fn moosefs_reports_nothing_inconsistent() {
    let crcs = vec![1, 2, 3];
    let held = Held {
        id: 7,
        version: 1,
        written: crcs.clone(),
        crcs,
        is_old: false,
        is_here: true,
        copies: 1,
        invalid: 0,
    };
    let model = Model {
        size: 3 * BLOCK_LEN,
        mtime_ns: 0,
        chunks: vec![Some(held.clone())],
    };
    let reported = ScriptedFile::new(model.clone());
    let fine = collect(2, || &reported).unwrap();
    let differing = ScriptedFile {
        copies_differ: true,
        ..ScriptedFile::new(model.clone())
    };
    let said = collect(2, || &differing);
    assert!(matches!(said, Err(SourceError::Busy)), "{said:?}");
    let strange = ScriptedFile {
        headers_are_of: 8,
        ..ScriptedFile::new(model.clone())
    };
    let said = collect(2, || &strange);
    assert!(
        matches!(said, Err(SourceError::Malformed("the file of another chunk"))),
        "{said:?}"
    );
    for (id, version) in [(8, 1), (7, 2)] {
        let mut other = model.clone();
        other.chunks[0] = Some(Held {
            id,
            version,
            ..held.clone()
        });
        let other = ScriptedFile::new(other);
        let now = Stamp {
            identity: fine.stamp().identity,
            ..State::of(&&other).unwrap().stamp()
        };
        assert_ne!(now, *fine.stamp());
    }
}

#[test]
fn lists_that_contradict_themselves_are_refused() {
    let parse = |text: &str| {
        let mut parser = Parser::default();
        text.lines().try_for_each(|line| parser.line(line.as_bytes()))?;
        parser.end().map_err(Wrong::Shape)
    };
    let name = "\tchunk 0: 0000000000000001_00000002 / (id:1 ver:2)\n";
    let copy = |number, blocks: &str, digest: &str| {
        format!("\t\tcopy {number}: 10.99.0.1:9422 (status:VALID ; blocks: {blocks} ; checksum digest: {digest})\n")
    };
    let (one, other) = ("87C3A4E06E88319665331DA29A35DC10", "87C3A4E06E88319665331DA29A35DC11");
    let fine = format!("a:\n{name}{}{}", copy(1, "46", one), copy(2, "46", one));
    let reported = parse(&fine).unwrap();
    assert!(reported.is_agreed && reported.chunks[0].unwrap().held.unwrap().blocks == 46);
    // Two copies agree and the third one does not, in any order.
    for digests in [[one, other, other], [one, one, other], [other, one, other]] {
        let copies = (1..).zip(digests).map(|(number, digest)| copy(number, "46", digest));
        let list = format!("a:\n{name}{}", copies.collect::<String>());
        assert!(!parse(&list).unwrap().is_agreed, "{list}");
    }
    for second in [copy(2, "46", other), copy(2, "45", one)] {
        assert!(
            !parse(&format!("a:\n{name}{}{second}", copy(1, "46", one)))
                .unwrap()
                .is_agreed
        );
    }
    // No server has a valid copy.
    let none = parse(&format!("a:\n{name}\t\tno valid copies !!!\n")).unwrap();
    assert_eq!(none.chunks[0].unwrap().held, None);
    for wrong in [
        String::new(),
        "a:\n".to_owned(),
        "a\n".to_owned(),
        format!("a:\n\tno chunks - empty file\n{name}"),
        format!("a:\n{name}{name}"),
        format!("a:\n{}", copy(1, "46", one)),
        format!("a:\n\tchunk 0: empty\n{}", copy(1, "46", one)),
        format!("a:\n{name}{}", copy(1, "1025", one)),
        format!("a:\n{name}{}", copy(1, "-1", one)),
        format!("a:\n{name}{}", copy(1, "46", &one[1..])),
        format!("a:\n{name}{}", copy(1, "46", &one.replace('C', "G"))),
        format!("a:\n{}", name.replace("_", "")),
        format!("a:\n{}", name.replace("0001_", "+001_")),
        format!("a:\n{}", name.replace("_0000", "_+000")),
        format!("a:\n{name}{}", copy(1, "46", &format!("{one} ; more: 1"))),
        format!("a:\n{name}whatever\n"),
    ] {
        assert!(parse(&wrong).is_err(), "{wrong}");
    }
    // Output that is not a list.
    let long = "x".repeat(5000);
    for (line, wrong) in [
        ("/proc/4/fd/3: not MFS object", Wrong::NotMooseFs),
        ("/proc/4/fd/3: no", Wrong::Complaint("/proc/4/fd/3: no".to_owned())),
        (&long, Wrong::Complaint(long[..500].to_owned())),
        ("/a\x1b[2J: no", Wrong::Complaint("/a\u{fffd}[2J: no".to_owned())),
    ] {
        assert_eq!(parse(line).unwrap_err(), wrong);
    }
}

/// Other programs may put anything into a chunk server's folders. Opening a pipe would wait for its
/// other end for ever.
#[test]
fn a_pipe_in_place_of_a_chunks_file_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("07");
    std::fs::create_dir(&below).unwrap();
    let chunk = Chunk {
        id: 7,
        version: 1,
        held: None,
    };
    let pipe = below.join("chunk_0000000000000007_00000001.mfs");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let folders = [folder.path().to_owned()];
    let (reported, tells) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let file = tempfile::tempfile().unwrap();
        let programs = Programs::default();
        let system = RealSystem::new(file.as_fd(), &programs, &folders);
        reported.send(system.headers(&chunk)).unwrap();
    });
    let headers = tells.recv_timeout(std::time::Duration::from_secs(10));
    assert_eq!(headers.expect("it waits").unwrap(), [Vec::<u8>::new()]);
}
