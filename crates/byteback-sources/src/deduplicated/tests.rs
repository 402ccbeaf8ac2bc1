//! Lists and stores in the formats of casync and others, spoiled in every conceivable way: the
//! returned bytes are the described ones, or none are returned.

use std::os::unix::fs::PermissionsExt;

use byteback_host::random::SplitMix64;

use super::*;
use byteback_checksums::source::{VerifyError, verify};

/// A store in a folder, and lists beside it.
struct Made {
    folder: tempfile::TempDir,
    table: Table,
    content: Vec<u8>,
    form: Kept,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kept {
    Casync,
    Recipe,
}

const FORMS: [Kept; 2] = [Kept::Casync, Kept::Recipe];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sum(kind: Kind, bytes: &[u8]) -> Vec<u8> {
    let layout = Layout {
        kind,
        salt: Vec::new(),
        block_len: u32::MAX,
        tail: Tail::AsIs,
    };
    let mut sum = Vec::new();
    layout.append_sum(bytes, &mut sum);
    sum
}

impl Made {
    fn new(random: &mut SplitMix64, form: Kept) -> Self {
        let kinds = match form {
            Kept::Casync => &[Kind::Sha512Of256, Kind::Sha256][..],
            Kept::Recipe => &[Kind::Sha256, Kind::Sha1, Kind::Blake3, Kind::Crc32c][..],
        };
        let mut table = Table::new(kinds[random.below(kinds.len() as u64) as usize]);
        let mut content = Vec::new();
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..random.below(12) {
            let len = 1 + random.below(3000) as usize;
            let kind = random.below(6);
            // The same chunk repeatedly, and zeros, which compress well.
            let chunk: Vec<u8> = match kind {
                0 => vec![0; len],
                1 => vec![9; 700],
                _ => (0..len).map(|_| random.next_u64() as u8).collect(),
            };
            let sum = sum(table.kind, &chunk);
            let id = hex(&sum);
            let store = folder.path().join("default.castr");
            let (path, bytes) = match (form, random.below(3)) {
                (Kept::Casync, 0) => (store.join(&id[..4]).join(&id), chunk.clone()),
                (Kept::Casync, _) => {
                    let stored = zstd::bulk::compress(&chunk, 3).unwrap();
                    (store.join(&id[..4]).join(format!("{id}.cacnk")), stored)
                }
                (Kept::Recipe, 0) => (store.join(&id[..2]).join(&id), chunk.clone()),
                (Kept::Recipe, _) => (store.join(&id), chunk.clone()),
            };
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
            content.extend(chunk);
            table.push(content.len() as u64, &sum).unwrap();
        }
        let made = Self {
            folder,
            table,
            content,
            form,
        };
        made.write(&made.list());
        made
    }

    fn list(&self) -> Vec<u8> {
        match self.form {
            Kept::Casync => casync::written(&self.table, 3000),
            Kept::Recipe => recipe::written(&self.table, Some("default.castr")),
        }
    }

    fn write(&self, list: &[u8]) {
        std::fs::write(self.folder.path().join("list"), list).unwrap();
    }

    fn source(&self) -> DeduplicatedFile {
        let list = self.folder.path().join("list");
        match self.form {
            Kept::Casync => DeduplicatedFile::casync(list, None),
            Kept::Recipe => DeduplicatedFile::recipe(list),
        }
    }

    /// Files of the store.
    fn chunks(&self) -> Vec<PathBuf> {
        let (mut found, mut folders) = (Vec::new(), vec![self.folder.path().join("default.castr")]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.push(path);
                }
            }
        }
        found.sort();
        found
    }
}

fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count = if std::env::var("BYTEBACK_SEED").is_ok() {
        1
    } else {
        count
    };
    (first..first + count).inspect(|seed| println!("BYTEBACK_SEED={seed}"))
}

fn all(source: &dyn Source, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len + 10];
    let read = source.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

#[test]
fn what_is_described_is_what_is_read() {
    for seed in seeds(60) {
        let mut random = SplitMix64::new(seed);
        let made = Made::new(&mut random, FORMS[seed as usize % 2]);
        let source = made.source();
        let reported = source.collect().unwrap();
        let runs: Vec<_> = reported.runs().collect();
        match made.content.len() as u64 {
            0 => assert!(runs.is_empty()),
            len => {
                let range = ByteRange::new(0, len).unwrap();
                let (ends, sums) = (&made.table.ends[..], &made.table.sums[..]);
                assert_eq!(runs, [Run::Chunks { range, ends, sums }]);
            }
        }
        let verified = verify(&source, &reported).unwrap();
        assert_eq!(
            (verified.blocks, verified.bytes),
            (made.table.ends.len() as u64, made.content.len() as u64)
        );
        assert!(all(&source, made.content.len()).unwrap() == made.content);
        assert_eq!(reported.stamp().len_bytes, made.content.len() as u64);
        // Any part of it, and one that was not described before.
        let other = made.source();
        for _ in 0..20 {
            let from = random.below(made.content.len() as u64 + 2) as usize;
            let mut part = vec![0; random.below(5000) as usize];
            let read = other.read_at(from as u64, &mut part).unwrap();
            let rest = made.content.get(from..).unwrap_or_default();
            assert!(part[..read] == rest[..rest.len().min(part.len())]);
        }
    }
}

/// Any byte of the list or the store is altered, or the end is missing: the result is an error, or
/// is true of the bytes. A recipe has a digest, so an altered one is never accepted.
#[test]
fn deduplicated_file_yields_only_described_bytes() {
    for seed in seeds(400) {
        let mut random = SplitMix64::new(seed);
        let form = FORMS[seed as usize % 2];
        let made = Made::new(&mut random, form);
        let chunks = made.chunks();
        let (path, is_list) = match (random.below(3), &chunks[..]) {
            (1.., [_, ..]) => (chunks[random.below(chunks.len() as u64) as usize].clone(), false),
            _ => (made.folder.path().join("list"), true),
        };
        let mut bytes = std::fs::read(&path).unwrap();
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next_u64() as u8),
            2 if is_list && form == Kept::Casync && bytes.len() > 144 => {
                // An item is taken away, with its length in the tail or not.
                bytes.drain(64..104);
                let tail = bytes.len() - 16;
                let len = bytes.len() as u64 - 48 + 40 * random.below(2);
                bytes[tail..tail + 8].copy_from_slice(&len.to_le_bytes());
            }
            _ => bytes[at] ^= 1 << random.below(8),
        }
        std::fs::write(&path, &bytes).unwrap();
        let source = made.source();
        let reported = match source.collect() {
            Ok(reported) => reported,
            Err(error) => {
                assert!(is_list, "{error}");
                assert!(matches!(error, SourceError::Malformed(_)), "{error}");
                continue;
            }
        };
        assert!(!is_list || form == Kept::Casync, "a spoiled recipe was taken");
        match verify(&source, &reported) {
            // The spoiled chunk is not used any more, or the index describes other existing chunks.
            Ok(verified) => assert_eq!(verified.bytes, reported.stamp().len_bytes),
            Err(VerifyError::Source(SourceError::Chunk { .. })) => {}
            Err(error) => panic!("{error}"),
        }
        if !is_list && let Ok(read) = all(&source, made.content.len()) {
            assert!(read == made.content);
        }
    }
}

#[test]
fn a_list_that_is_replaced_is_another_file() {
    for form in FORMS {
        let mut random = SplitMix64::new(3);
        let [made, other] = [(); 2].map(|()| Made::new(&mut random, form));
        let source = made.source();
        let reported = source.collect().unwrap();
        assert!(source.is_unchanged(reported.stamp()).unwrap());
        made.write(&other.list());
        assert!(!source.is_unchanged(reported.stamp()).unwrap());
        assert!(matches!(
            verify(&source, &reported),
            Err(VerifyError::Source(SourceError::ChangedMeanwhile))
        ));
        // The bytes are still those that were described.
        assert!(all(&source, made.content.len()).unwrap() == made.content);
        std::fs::remove_file(made.folder.path().join("list")).unwrap();
        assert!(!source.is_unchanged(reported.stamp()).unwrap());
        // Restored: only the content of the list counts.
        made.write(&made.list());
        assert!(source.is_unchanged(reported.stamp()).unwrap());
    }
}

/// A list replaced during the reading of it, too: the checksums are void.
#[test]
fn a_list_that_is_replaced_while_it_is_read_is_noticed() {
    for form in FORMS {
        let mut random = SplitMix64::new(4);
        let [made, other] = [(); 2].map(|()| Made::new(&mut random, form));
        let source = made.source();
        let listed = source.listed().unwrap();
        let passage = Passage {
            source: &source,
            layout: listed.table.layout(),
            listed,
            is_reported: false,
        };
        made.write(&other.list());
        assert!(matches!(passage.finish(), Err(SourceError::ChangedMeanwhile)));
    }
}

#[test]
fn deduplicated_file_names_missing_chunks() {
    let mut random = SplitMix64::new(5);
    let made = Made::new(&mut random, Kept::Casync);
    let source = made.source();
    let reported = source.collect().unwrap();
    let failed = |what: &str| {
        *source.last_read.lock() = None;
        let error = all(&source, made.content.len()).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    };
    let chunk = made.chunks()[0].clone();
    let whole = std::fs::read(&chunk).unwrap();
    std::fs::remove_file(&chunk).unwrap();
    failed("is not in the store");
    // The description is still that of the file.
    assert_eq!(source.collect().unwrap(), reported);
    // Opening a pipe would wait for its other end.
    rustix::fs::mknodat(rustix::fs::CWD, &chunk, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    failed("not a regular file");
    std::fs::remove_file(&chunk).unwrap();
    std::fs::write(&chunk, vec![0; 1 << 20]).unwrap();
    failed("or is too long");
    std::fs::write(&chunk, b"\xfd7zXZ\0 and so on").unwrap();
    if chunk.extension().is_some() {
        failed("compressed with xz");
    }
    // A bomb: more than the chunk has.
    let bomb = zstd::bulk::compress(&vec![0; 100 << 20], 3).unwrap();
    std::fs::write(&chunk, &bomb).unwrap();
    failed("chunk ");
    std::fs::write(&chunk, whole).unwrap();
    assert!(all(&source, made.content.len()).unwrap() == made.content);
    // Not a list.
    std::fs::set_permissions(made.folder.path().join("list"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::remove_file(made.folder.path().join("list")).unwrap();
    assert!(matches!(source.collect(), Err(SourceError::Io { .. })));
    std::fs::create_dir(made.folder.path().join("list")).unwrap();
    assert!(matches!(source.collect(), Err(SourceError::NotHere(_))));
    // A recipe without chunks.
    let made = Made::new(&mut random, Kept::Recipe);
    made.write(&recipe::written(&made.table, None));
    let source = made.source();
    source.collect().unwrap();
    assert!(matches!(all(&source, 10), Err(SourceError::NotHere(_))));
}

/// Byte for byte casync 2's output for an empty file.
#[test]
fn the_index_is_casyncs() {
    let mut made = Vec::new();
    let header = [
        0x30,
        0x9682_4d9c_7b12_9ff9,
        0xb000_0000_0000_0000,
        0x4000,
        0x1_0000,
        0x4_0000,
        u64::MAX,
        0xe75b_9e11_2f17_417d,
    ];
    let tail = [0, 0, 0x30, 0x38, 0x4b4f_050e_5549_ecd1];
    header
        .iter()
        .chain(&tail)
        .for_each(|number: &u64| made.extend(number.to_le_bytes()));
    let table = casync::parse(&made).unwrap();
    assert_eq!((table.kind, table.len_bytes()), (Kind::Sha512Of256, 0));
    for len in 0..made.len() {
        assert!(casync::parse(&made[..len]).is_err(), "{len}");
    }
    let mut longer = made.clone();
    longer.push(0);
    assert!(casync::parse(&longer).is_err());
    for at in [0, 8, 24, 48, 56, 64, 72, 80, 88, 96] {
        let mut other = made.clone();
        other[at] ^= 1;
        let is_fine = casync::parse(&other).is_ok();
        // The shortest chunk may have another length.
        assert_eq!(is_fine, at == 24, "{at}");
    }
}

#[test]
fn recipes_that_make_no_sense_are_refused() {
    let name = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let recipe = |body: &str| {
        let digest = sum(Kind::Sha256, body.as_bytes());
        format!("{body}end {}\n", hex(&digest)).into_bytes()
    };
    let good = format!("byteback-recipe 1\nsums sha256\nlength 3\nchunks a b/c\n3 {name}\n");
    let parsed = recipe::parse(&recipe(&good)).unwrap();
    assert_eq!(parsed.chunks, Some(PathBuf::from("a b/c")));
    assert_eq!(
        (&parsed.table.ends[..], hex(&parsed.table.sums)),
        (&[3][..], name.to_owned())
    );
    for (from, to) in [
        ("recipe 1", "recipe 2"),
        ("sha256", "md5"),
        ("sha256", "fletcher4"),
        ("sha256", "sha512"),
        ("length 3", "length 4"),
        ("length 3", "length +3"),
        ("length 3", "length"),
        ("chunks a b/c", "chunks "),
        ("chunks a b/c", "chunks a\nchunks b"),
        ("\n3 ", "\n0 "),
        ("\n3 ", "\n-3 "),
        ("\n3 ", "\n3  "),
        ("\n3 ", "\n99999999999999999999 "),
        ("\n3 ", "\n134217729 "),
        ("ad\n", "a\n"),
        ("ad\n", "ad1f\n"),
        ("ad\n", "ad\n\n"),
        ("ba78", "+a78"),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good);
        assert!(recipe::parse(&recipe(&bad)).is_err(), "{bad}");
    }
    // A chunk, and then the folder.
    assert!(recipe::parse(&recipe(&format!("{}chunks x\n", good.replace("chunks a b/c\n", "")))).is_err());
    let whole = recipe(&good);
    for len in 0..whole.len() {
        assert!(recipe::parse(&whole[..len]).is_err(), "{len}");
    }
    assert!(recipe::parse(&[&whole[..], b"\n"].concat()).is_err());
    assert!(recipe::parse(&recipe(&String::from_utf8(whole).unwrap())).is_err());
}

#[test]
fn as_many_chunks_as_there_can_be_are_counted_right() {
    let mut table = Table::new(Kind::Crc32c);
    assert!(table.push(0, &[0; 4]).is_err());
    assert!(table.push(CHUNK_LEN_MAX + 1, &[0; 4]).is_err());
    table.push(CHUNK_LEN_MAX, &[0; 4]).unwrap();
    assert!(table.push(CHUNK_LEN_MAX, &[0; 4]).is_err());
    assert!(table.push(CHUNK_LEN_MAX + 1, &[0; 5]).is_err());
    table.push(CHUNK_LEN_MAX + 1, &[1; 4]).unwrap();
    assert_eq!(
        (table.layout().block_len, table.len_bytes()),
        (128 << 20, (128 << 20) + 1)
    );
}
