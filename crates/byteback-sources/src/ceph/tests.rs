//! Objects of an imaginary OSD. Those of a real one: `crates/byteback/tests/systems/ceph.rs`.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::io::{Seek, Write};

use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use serde_json::{Value, json};

use super::system::explained;
use super::*;
use byteback_checksums::source::{Kind, Known, Tail, Unknown, VerifyError, verify};

/// A part of an object's content.
#[derive(Clone, Debug)]
struct Blob {
    bytes: Vec<u8>,
    /// The order of a chunk.
    order: u32,
    flags: u64,
    csum_type: u64,
}

impl Blob {
    fn drawn(random: &mut SplitMix64, usual_order: u32) -> Self {
        let order = match random.below(4) {
            0 => 4 + random.below(4) as u32,
            _ => usual_order,
        };
        let chunks = 1 + random.below(6);
        let (flags, csum_type) = match random.below(12) {
            0 => (COMPRESSED, CRC32C),
            1 => (0, NONE),
            2 => (SUMMED, NONE),
            3 => (SUMMED, [2, 3, 5, 6, 7][random.below(5) as usize]),
            4 => (SUMMED | 32, CRC32C),
            5 => (SUMMED | SHARED, CRC32C),
            _ => (SUMMED, CRC32C),
        };
        Self {
            bytes: (0..chunks << order).map(|_| random.next_u64() as u8).collect(),
            order,
            flags,
            csum_type,
        }
    }

    /// The reason why nothing is known of its content.
    fn unknown(&self) -> Option<Unknown> {
        match (self.flags, self.csum_type) {
            (SUMMED_AND_NEW, _) => Some(Unknown::Encoded),
            (COMPRESSED, _) => Some(Unknown::Compressed),
            (0, _) | (_, NONE) => Some(Unknown::NotSummed),
            (_, CRC32C) => None,
            _ => Some(Unknown::OtherFunction),
        }
    }

    fn json(&self) -> Value {
        // BlueStore's form, which is not inverted at the end.
        let sums = self.bytes.chunks(1 << self.order).map(|chunk| !crc32c::crc32c(chunk));
        let sums: Vec<_> = match self.unknown() {
            None => sums.collect(),
            Some(_) => vec![7; 3],
        };
        json!({
            "extents": [{"offset": 18_446_744_073_709_551_615_u64, "length": 4096}],
            "logical_length": self.bytes.len(),
            "compressed_length": if self.flags == COMPRESSED { 407 } else { 0 },
            "flags": self.flags,
            "csum_type": self.csum_type,
            "csum_chunk_order": self.order,
            "csum_data": sums,
            "unused": 0,
            "shared": {"loaded": false, "sbid_unloaded": 0},
        })
    }
}

const COMPRESSED: u64 = 2;
const SUMMED: u64 = 4;
const SHARED: u64 = 16;
const SUMMED_AND_NEW: u64 = SUMMED | 32;
const NONE: u64 = 1;
const CRC32C: u64 = 4;

/// An object in an OSD.
#[derive(Clone, Debug)]
struct Model {
    name: String,
    version: u64,
    len: usize,
    /// The extents, each of which shows a part of a blob at a place in the object.
    extents: Vec<(usize, usize, usize, Blob)>,
}

impl Model {
    fn drawn(random: &mut SplitMix64) -> Self {
        let usual_order = 4 + random.below(4) as u32;
        let mut extents = Vec::new();
        let mut at = 0;
        for _ in 0..random.below(8) {
            let blob = Blob::drawn(random, usual_order);
            let chunk = 1 << blob.order;
            // Mostly where chunks begin.
            match random.below(4) {
                0 => at += random.below(70) as usize,
                1 => at = (at + 1).next_multiple_of(1 << usual_order) + (random.below(4) as usize) * chunk,
                _ => at = at.next_multiple_of(1 << usual_order),
            }
            let (start, end) = match random.below(3) {
                0 => {
                    let start = random.below(blob.bytes.len() as u64) as usize;
                    (
                        start,
                        start + 1 + random.below((blob.bytes.len() - start) as u64) as usize,
                    )
                }
                1 => (0, blob.bytes.len()),
                _ => (blob.bytes.len() - chunk, blob.bytes.len()),
            };
            extents.push((at, end - start, start, blob));
            at += end - start;
        }
        let len = match random.below(3) {
            // Truncated in the midst of earlier extents.
            0 => at.saturating_sub(random.below(40) as usize),
            1 => at,
            _ => at + random.below(300) as usize,
        };
        Self {
            name: "name".to_owned(),
            version: 1,
            len,
            extents,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        for (at, len, start, blob) in &self.extents {
            for index in 0..*len {
                if let Some(byte) = bytes.get_mut(at + index) {
                    *byte = blob.bytes[start + index];
                }
            }
        }
        bytes
    }

    fn json(&self) -> Value {
        let extents = self.extents.iter().map(|(at, len, start, blob)| {
            json!({"logical_offset": at, "length": len, "blob_offset": start, "blob": blob.json()})
        });
        json!({
            "id": {"oid": self.name, "key": "", "snapid": -2, "hash": 1, "pool": 1, "namespace": ""},
            "info": {"version": format!("8'{}", self.version), "size": self.len, "flags": ["dirty"], "manifest": {"type": 0}},
            "stat": {"size": self.len},
            "onode": {"nid": 1046, "size": self.len, "attrs": {}, "extents": extents.collect::<Vec<_>>()},
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        write!(text, "{:#}", self.json()).unwrap();
        // Duplicate fields as in Ceph's output, which must be harmless.
        text.replacen("\"key\": \"\",", "\"max\": 0,\n\"key\": \"\",\n\"max\": 0,", 1)
    }

    /// The length of blocks: the one that most summed bytes have, of equal ones the shortest.
    fn block_len(&self) -> usize {
        let mut most = (0, 12);
        for order in 0..16 {
            let of_extent = |(at, len, start, blob): &(usize, usize, usize, Blob)| {
                let shown = (*at..at + len).take_while(|byte| *byte < self.len).count();
                let chunks = (0..blob.bytes.len() >> order).filter(|chunk| {
                    blob.order == order && chunk << order >= *start && (chunk + 1) << order <= start + shown
                });
                match blob.unknown() {
                    None => chunks.count() << order,
                    Some(_) => 0,
                }
            };
            let bytes: usize = self.extents.iter().map(of_extent).sum();
            if bytes > most.0 {
                most = (bytes, order);
            }
        }
        1 << most.1
    }

    /// For each block whether it has a checksum (true) or is zeros (false), or the reason why
    /// nothing is known.
    fn expected(&self, block_len: usize) -> Vec<std::result::Result<bool, Unknown>> {
        let of_byte = |byte: usize| -> std::result::Result<bool, Unknown> {
            let found = self
                .extents
                .iter()
                .find(|(at, len, ..)| (*at..at + len).contains(&byte));
            let Some((at, len, start, blob)) = found else {
                return Ok(false);
            };
            if let Some(why) = blob.unknown() {
                return Err(why);
            }
            // The place of the chunk's bytes in the object, if all of them show.
            let chunk_start = (byte - at + start) >> blob.order << blob.order;
            let chunk_len = 1 << blob.order;
            let shown_end = (start + len).min(self.len.saturating_sub(*at) + start);
            let whole =
                (chunk_start >= *start && chunk_start + chunk_len <= shown_end).then(|| chunk_start - start + at);
            match whole {
                Some(first) if first / block_len == (first + chunk_len - 1) / block_len => Ok(true),
                Some(_) => Err(Unknown::NotSummed),
                None if chunk_start + chunk_len >= shown_end && shown_end - start + at == self.len => {
                    Err(Unknown::Tail)
                }
                None => Err(Unknown::NotSummed),
            }
        };
        let blocks = (0..self.len).step_by(block_len);
        blocks
            .map(|first| {
                let bytes = (first..self.len.min(first + block_len)).map(of_byte);
                bytes
                    .collect::<std::result::Result<Vec<_>, _>>()
                    .map(|summed| summed.contains(&true))
            })
            .collect()
    }
}

fn place() -> Place {
    Place::new("ceph:///osd?pg=1.0&object=name").unwrap()
}

/// An OSD with one object that is queried repeatedly.
struct ScriptedOsd {
    model: RefCell<Option<Model>>,
    /// The object's later states, each with the number of the answer from which on it is given.
    later: RefCell<Vec<(usize, Option<Model>)>>,
    answers: Cell<usize>,
    /// How many bytes fewer (or, negative, more) the tool returns than it announces.
    missing: Cell<i64>,
}

impl ScriptedOsd {
    fn new(model: Model) -> Self {
        Self {
            model: RefCell::new(Some(model)),
            later: RefCell::default(),
            answers: Cell::new(0),
            missing: Cell::new(0),
        }
    }

    fn present(&self) -> Result<Model> {
        self.answers.set(self.answers.get() + 1);
        let mut later = self.later.borrow_mut();
        if later.first().is_some_and(|(from, _)| self.answers.get() >= *from) {
            *self.model.borrow_mut() = later.remove(0).1;
        }
        self.model.borrow().clone().ok_or(SourceError::Missing("gone"))
    }
}

const LINE: &str = r#"["1.0",{"oid":"name","key":"","snapid":-2,"hash":1,"max":0,"pool":1,"namespace":"","max":0}]"#;

impl System for &ScriptedOsd {
    fn list(&self, pg: &str, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        assert_eq!(pg, "1.0");
        match self.model.borrow().is_some() {
            true => each(LINE.as_bytes()),
            false => Ok(()),
        }
    }

    fn dump(&self, spec: &str) -> Result<Vec<u8>> {
        assert_eq!(spec, LINE);
        Ok(self.present()?.text().into_bytes())
    }

    fn bytes(&self, spec: &str, len_max: u64, mut to: &File) -> Result<u64> {
        assert_eq!(spec, LINE);
        let mut bytes = self.present()?.bytes();
        bytes.resize((bytes.len() as i64 - self.missing.get()) as usize, 9);
        if bytes.len() as u64 >= len_max {
            return Err(SourceError::ChangedMeanwhile);
        }
        to.rewind().unwrap();
        to.write_all(&bytes).unwrap();
        Ok(bytes.len() as u64)
    }
}

impl Source for Reader<&ScriptedOsd> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        Reader::collect(self)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Reader::read_at(self, offset, buffer)
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        Reader::is_unchanged(self, stamp)
    }
}

fn reader(reported: &ScriptedOsd) -> Reader<&ScriptedOsd> {
    Reader::new(reported, place(), tempfile::tempfile().unwrap())
}

/// 1500 seeds, unless `BYTEBACK_SEED` is set.
fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("BYTEBACK_SEED").map(|seed| seed.parse().unwrap());
    given.map_or(1..1501, |seed: u64| seed..seed + 1)
}

#[test]
fn every_block_is_told_as_it_is() {
    let (mut summed, mut combined) = (0, 0);
    for seed in seeds() {
        let model = Model::drawn(&mut SplitMix64::new(seed));
        let reported = ScriptedOsd::new(model.clone());
        let source = reader(&reported);
        let sums = source.collect();
        let sums = sums.unwrap_or_else(|error| panic!("BYTEBACK_SEED={seed}: {error}\n{}", model.text()));
        let (layout, bytes, mut at, mut found) = (sums.layout(), model.bytes(), 0, Vec::new());
        let block_len = layout.block_len as usize;
        assert_eq!((layout.kind, layout.tail), (Kind::Crc32c, Tail::ZeroPadded));
        assert_eq!(block_len, model.block_len(), "BYTEBACK_SEED={seed}");
        for run in sums.runs() {
            let range = run.range();
            assert_eq!(range.start(), at, "BYTEBACK_SEED={seed}: a gap");
            at = range.end();
            assert!(at == model.len as u64 || at.is_multiple_of(block_len as u64));
            let count = layout.block_count(range) as usize;
            let blocks = bytes[range.start() as usize..at as usize].chunks(block_len);
            match run {
                Run::Sums { sums, .. } => {
                    assert_eq!(sums.len(), count * 4);
                    for (block, sum) in blocks.zip(sums.chunks(4)) {
                        let mut block = block.to_vec();
                        block.resize(block_len, 0);
                        assert_eq!(sum, crc32c::crc32c(&block).to_le_bytes(), "BYTEBACK_SEED={seed}");
                    }
                    found.extend(vec![Ok(true); count]);
                    summed += count;
                }
                Run::Zeros { .. } => {
                    assert!(
                        blocks.flatten().all(|byte| *byte == 0),
                        "BYTEBACK_SEED={seed}: no zeros"
                    );
                    found.extend(vec![Ok(false); count]);
                }
                Run::Unknown { why, .. } => found.extend(vec![Err(why); count]),
                Run::Chunks { .. } => panic!("chunks"),
            }
        }
        assert_eq!(at, model.len as u64, "BYTEBACK_SEED={seed}: not all of it");
        let expected = model.expected(block_len);
        // Any one of several reasons will do.
        let is_same = |(found, expected): (&std::result::Result<_, _>, &std::result::Result<_, Unknown>)| match expected
        {
            Ok(_) => found == expected,
            Err(_) => found.is_err(),
        };
        assert_eq!(found.len(), expected.len());
        assert!(
            found.iter().zip(&expected).all(is_same),
            "BYTEBACK_SEED={seed}\n{found:?}\n{expected:?}\n{model:?}"
        );
        let is_mixed =
            |(_, _, _, blob): &(usize, usize, usize, Blob)| blob.unknown().is_none() && 1 << blob.order < block_len;
        combined += usize::from(model.extents.iter().any(is_mixed));
        // All of it is true of the bytes, as far as --verify goes.
        let verified = verify(&source, &sums).unwrap_or_else(|error| panic!("BYTEBACK_SEED={seed}: {error}"));
        assert_eq!(
            verified.bytes + verified.zero_bytes + sums.unknown_bytes(),
            model.len as u64
        );
    }
    assert!(
        summed > 2000 && combined > 100 || seeds().count() == 1,
        "{summed} {combined}"
    );
}

/// Each reason by itself.
#[test]
fn why_there_is_no_checksum_is_said() {
    let blob = |flags, csum_type| Blob {
        bytes: vec![5; 64],
        order: 4,
        flags,
        csum_type,
    };
    let known = blob(SUMMED, CRC32C);
    let runs = |len, extents: Vec<(usize, usize, usize, Blob)>| {
        let model = Model {
            name: "name".to_owned(),
            version: 1,
            len,
            extents,
        };
        let reported = ScriptedOsd::new(model);
        let sums = reader(&reported).collect().unwrap();
        let name = |run: Run<'_>| match run {
            Run::Sums { .. } => "sums",
            Run::Zeros { .. } => "zeros",
            Run::Unknown { why, .. } => why.name(),
            Run::Chunks { .. } => "chunks",
        };
        let runs = sums
            .runs()
            .map(|run| (run.range().start(), run.range().end(), name(run)));
        runs.collect::<Vec<_>>()
    };
    for (flags, csum_type, name) in [
        (COMPRESSED, CRC32C, "compressed"),
        (COMPRESSED | SUMMED, CRC32C, "compressed"),
        (0, CRC32C, "not_summed"),
        (SUMMED, NONE, "not_summed"),
        (SUMMED, 2, "other_function"),
        (SUMMED, 3, "other_function"),
        (SUMMED, 5, "other_function"),
        (SUMMED, 6, "other_function"),
        (SUMMED, 0, "other_function"),
        (SUMMED | 32, CRC32C, "encoded"),
        (SUMMED | 1 << 63, CRC32C, "encoded"),
        (SUMMED | SHARED | 8 | 1, CRC32C, "sums"),
    ] {
        let reported = runs(
            128,
            vec![(0, 64, 0, known.clone()), (64, 64, 0, blob(flags, csum_type))],
        );
        match name {
            "sums" => assert_eq!(reported, [(0, 128, "sums")]),
            name => assert_eq!(reported, [(0, 64, "sums"), (64, 128, name)], "{flags} {csum_type}"),
        }
    }
    // Truncated and lengthened again: the chunk's bytes behind the cut are hidden, and not known to
    // be zeros.
    assert_eq!(
        runs(40, vec![(0, 40, 0, known.clone())]),
        [(0, 32, "sums"), (32, 40, "tail")]
    );
    assert_eq!(
        runs(40, vec![(0, 64, 0, known.clone())]),
        [(0, 32, "sums"), (32, 40, "tail")]
    );
    assert_eq!(
        runs(200, vec![(0, 40, 0, known.clone())]),
        [(0, 32, "sums"), (32, 48, "not_summed"), (48, 200, "zeros")]
    );
    // Behind the end, as a whole.
    assert_eq!(
        runs(60, vec![(0, 48, 0, known.clone()), (64, 64, 0, known.clone())]),
        [(0, 48, "sums"), (48, 60, "zeros")]
    );
    // In the midst of blocks.
    assert_eq!(runs(72, vec![(8, 64, 0, known)]), [(0, 72, "not_summed")]);
    assert_eq!(runs(0, Vec::new()), []);
}

#[test]
fn objects_that_contradict_themselves_are_refused() {
    let model = Model {
        name: "name".to_owned(),
        version: 1,
        len: 192,
        extents: (0..3)
            .map(|at| {
                let blob = Blob {
                    bytes: vec![at as u8 + 1; 64],
                    order: 4,
                    flags: SUMMED,
                    csum_type: CRC32C,
                };
                (at * 64, 64, 0, blob)
            })
            .collect(),
    };
    let fine = model.json();
    let read = |json: &Value| parse(json.to_string().as_bytes(), &place());
    assert!(read(&fine).is_ok());
    let changed = |pointer: &str, value: Value| {
        let mut json = fine.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        read(&json)
    };
    for (pointer, value) in [
        // Extents over each other, out of order, twice, without bytes, of more than there is.
        ("/onode/extents/1/logical_offset", json!(63)),
        ("/onode/extents/1/logical_offset", json!(0)),
        ("/onode/extents/2/logical_offset", json!(64)),
        ("/onode/extents/0/length", json!(65)),
        ("/onode/extents/0/length", json!(0)),
        ("/onode/extents/2/length", json!(u64::MAX)),
        ("/onode/extents/2/logical_offset", json!(u64::MAX - 3)),
        ("/onode/extents/0/blob_offset", json!(1)),
        ("/onode/extents/0/blob_offset", json!(u64::MAX)),
        ("/onode/extents/0/blob/logical_length", json!(63)),
        ("/onode/extents/0/blob/logical_length", json!(1_u64 << 60)),
        // Checksums that are too few, too many, too long, or no numbers; chunks that are not the
        // blob's.
        ("/onode/extents/0/blob/csum_data", json!([1, 2, 3])),
        ("/onode/extents/0/blob/csum_data", json!([1, 2, 3, 4, 5])),
        ("/onode/extents/0/blob/csum_data", json!([])),
        ("/onode/extents/0/blob/csum_data", json!([1, 2, 3, 1_u64 << 32])),
        ("/onode/extents/0/blob/csum_data", json!([1, 2, 3, "4"])),
        ("/onode/extents/0/blob/csum_data", json!([1, 2, 3, -4])),
        ("/onode/extents/0/blob/csum_data", json!([1, 2, 3, 4.5])),
        ("/onode/extents/0/blob/csum_chunk_order", json!(3)),
        ("/onode/extents/0/blob/csum_chunk_order", json!(5)),
        ("/onode/extents/0/blob/csum_chunk_order", json!(31)),
        // Values that are not numbers.
        ("/onode/extents/0/length", json!("64")),
        ("/onode/extents/0/length", json!(-64)),
        ("/onode/extents/0/blob/flags", json!("csum")),
        ("/onode/extents", json!({})),
        ("/onode/size", json!(191)),
        ("/info/size", json!(193)),
        ("/info/size", json!("192")),
        // Another object.
        ("/id/oid", json!("nome")),
        ("/id/snapid", json!(1)),
        ("/id/namespace", json!("other")),
    ] {
        let said = changed(pointer, value.clone());
        assert!(
            matches!(said, Err(SourceError::Malformed(_))),
            "{pointer} {value}: {said:?}"
        );
    }
    let mut long = fine.clone();
    for pointer in ["/onode/size", "/info/size"] {
        *long.pointer_mut(pointer).unwrap() = json!(1_u64 << 32);
    }
    assert!(matches!(read(&long), Err(SourceError::Malformed(_))));
    // A chunk with more bits than a length counts as one with an unknown function.
    assert!(changed("/onode/extents/0/blob/csum_chunk_order", json!(64)).is_ok());
    // Not an object with bytes of its own.
    let whiteout = changed("/info/flags", json!(["dirty", "whiteout"]));
    assert!(matches!(whiteout, Err(SourceError::Missing(_))), "{whiteout:?}");
    for said in [changed("/info/manifest/type", json!(2)), changed("/onode", Value::Null)] {
        assert!(matches!(said, Err(SourceError::NotHere(_))), "{said:?}");
    }
    // Cut short anywhere, and with something behind it.
    let text = model.text();
    for len in 0..text.len() {
        let said = parse(&text.as_bytes()[..len], &place());
        assert!(matches!(said, Err(SourceError::Malformed(_))), "{len}");
    }
    assert!(parse(format!("{text}\n").as_bytes(), &place()).is_ok());
    assert!(parse(format!("{text}{text}").as_bytes(), &place()).is_err());
    // Each relevant field must be there once.
    for name in [
        "\"size\"",
        "\"logical_length\"",
        "\"csum_data\"",
        "\"oid\"",
        "\"flags\"",
    ] {
        let at = text.find(name).unwrap();
        let end = at + text[at..].find(':').unwrap() + 1;
        let value = match name {
            "\"csum_data\"" | "\"flags\"" => "[]",
            "\"oid\"" => "\"name\"",
            _ => "64",
        };
        let twice = format!("{}{} {value}, {}", &text[..at], &text[at..end], &text[at..]);
        assert!(parse(twice.as_bytes(), &place()).is_err(), "{name}");
    }
}

/// An object among many, by name, namespace and snapshot.
#[test]
fn the_object_is_found_in_the_list() {
    struct Listing(Vec<Vec<u8>>);
    impl System for Listing {
        fn list(&self, _: &str, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
            self.0.iter().try_for_each(|line| each(line))
        }
        fn dump(&self, _: &str) -> Result<Vec<u8>> {
            panic!("it is found first")
        }
        fn bytes(&self, _: &str, _: u64, _: &File) -> Result<u64> {
            panic!("it is found first")
        }
    }
    let line = |pg: &str, name: &str, namespace: &str, snap: i64, key: &str| {
        let id = json!({"oid": name, "key": key, "snapid": snap, "hash": 1, "pool": 1, "namespace": namespace});
        json!([pg, id]).to_string().into_bytes()
    };
    let lines = vec![
        b"did not expect this".to_vec(),
        b"[\"1.0\",{\"oid\":\"na\xffme\"}]".to_vec(),
        Vec::new(),
        b"[\"1.0\"]".to_vec(),
        line("1.1", "name", "", -2, ""),
        line("1.0", "name", "", 3, ""),
        line("1.0", "name", "ns", -2, ""),
        line("1.0", "name\",\"", "", -2, ""),
        line("1.0", "--op", "", -2, ""),
        line("1.0", "name", "", -2, ""),
        line("1.0", "a b/\u{e9}&=%", "", -2, ""),
        line("1.0", "placed", "", -2, "one"),
        line("1.0", "placed", "", -2, "two"),
    ];
    let find = |url: &str| {
        let reader = Reader::new(
            Listing(lines.clone()),
            Place::new(url).unwrap(),
            tempfile::tempfile().unwrap(),
        );
        let found = reader.spec(&mut reader.kept.lock());
        found.map(|spec| lines.iter().position(|line| line[..] == *spec.as_bytes()).unwrap())
    };
    for (fields, number) in [
        ("pg=1.0&object=name", 9),
        ("pg=1.1&object=name", 4),
        ("pg=1.0&object=name&snap=3", 5),
        ("namespace=ns&object=name&pg=1.0", 6),
        ("pg=1.0&object=name\",\"", 7),
        ("pg=1.0&object=--op", 8),
        ("pg=1.0&object=a b/\u{e9}%26=%25", 10),
        ("pg=1.0&object=a%20b/%C3%a9%26%3d%25", 10),
    ] {
        assert_eq!(find(&format!("ceph:///osd?{fields}")).unwrap(), number, "{fields}");
    }
    for fields in ["pg=1.0&object=nam", "pg=1.2&object=name", "pg=1.0&object=name&snap=2"] {
        let said = find(&format!("ceph:///osd?{fields}"));
        assert!(matches!(said, Err(SourceError::Missing(_))), "{fields}: {said:?}");
    }
    let said = find("ceph:///osd?pg=1.0&object=placed");
    assert!(matches!(said, Err(SourceError::NotHere(_))), "{said:?}");
}

#[test]
fn addresses_are_read_or_refused() {
    let place = Place::new("ceph:///var/lib/ceph/osd/ceph-0?pg=12.1f&object=a&namespace=b&snap=4").unwrap();
    let expected = Place {
        osd: "/var/lib/ceph/osd/ceph-0".into(),
        pg: "12.1f".to_owned(),
        object: "a".to_owned(),
        namespace: "b".to_owned(),
        snap: Some(4),
    };
    assert_eq!(place, expected);
    assert_eq!(
        Place::new("ceph:///a%3fb?pg=1.0&object=?").unwrap().osd.to_str(),
        Some("/a?b")
    );
    for wrong in [
        "ceph://host/osd?pg=1.0&object=a",
        "ceph:/osd?pg=1.0&object=a",
        "ceph:///osd",
        "ceph:///osd?pg=1.0",
        "ceph:///osd?object=a",
        "ceph:///osd?pg=1.0&object=",
        "ceph:///osd?pg=1.0&object=a&object=b",
        "ceph:///osd?pg=1.0&object=a&pool=b",
        "ceph:///osd?pg=1.0&object=a&snap=head",
        "ceph:///osd?pg=1.0&object=a&snap=-2",
        "ceph:///osd?pg=1.0&object=a%2",
        "ceph:///osd?pg=1.0&object=a%+1",
        "ceph:///osd?pg=1.0&object=%ff",
        "ceph:///osd?pg=1.0&object=a%00",
        "ceph:///osd?pg=1&object=a",
        "ceph:///osd?pg=1.&object=a",
        "ceph:///osd?pg=.1&object=a",
        "ceph:///osd?pg=1.G&object=a",
        "ceph:///osd?pg=--op&object=a",
    ] {
        assert!(Place::new(wrong).is_err(), "{wrong}");
    }
    let said = Place::new("ceph:///osd?pg=2.1fs0&object=a").unwrap_err();
    assert!(said.contains("erasure-coded"), "{said}");
}

/// Bytes are those of the described object, or not returned.
#[test]
fn an_object_that_changes_meanwhile_is_noticed() {
    let (mut changed, mut gone) = (0, 0);
    for seed in seeds().take(300) {
        let mut random = SplitMix64::new(seed);
        let model = Model::drawn(&mut random);
        let mut later = Model::drawn(&mut random);
        // Sometimes rewritten with the same bytes.
        if random.below(3) == 0 {
            later = model.clone();
        }
        later.version = 2;
        let later = (random.below(4) > 0).then_some(later);
        // The requests: the object, then its bytes and the object once more, then the object.
        for from in 2..=4 {
            let reported = ScriptedOsd::new(model.clone());
            reported.later.borrow_mut().push((from, later.clone()));
            let source = reader(&reported);
            let sums = source.collect().unwrap();
            let mut buffer = vec![0; model.len + 9];
            let read = source.read_at(0, &mut buffer);
            match from {
                2 | 3 => assert!(
                    matches!(
                        read,
                        Err(SourceError::ChangedMeanwhile | SourceError::Missing(_) | SourceError::Malformed(_))
                    ),
                    "BYTEBACK_SEED={seed}: {read:?}"
                ),
                _ => {
                    assert_eq!(read.unwrap(), model.len);
                    assert!(buffer[..model.len] == model.bytes());
                }
            }
            assert!(!source.is_unchanged(sums.stamp()).unwrap(), "BYTEBACK_SEED={seed}");
            let Some(later) = &later else {
                assert!(matches!(source.collect(), Err(SourceError::Missing(_))));
                gone += 1;
                continue;
            };
            let said = verify(&source, &sums);
            assert!(
                matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
                "BYTEBACK_SEED={seed}: {said:?}"
            );
            // A new description determines the bytes that are read, whatever is in the spool.
            let sums = source.collect().unwrap();
            let mut buffer = vec![0; later.len + 9];
            assert_eq!(source.read_at(0, &mut buffer).unwrap(), later.len);
            assert!(buffer[..later.len] == later.bytes(), "BYTEBACK_SEED={seed}");
            verify(&source, &sums).unwrap();
            changed += 1;
        }
    }
    assert!(changed > 300 && gone > 100 || seeds().count() == 1, "{changed} {gone}");
}

/// Missing or excess bytes are an error; and the bytes are fetched once.
#[test]
fn the_bytes_are_those_of_the_object() {
    let model = Model::drawn(&mut SplitMix64::new(11));
    assert!(model.len > 20, "{}", model.len);
    let reported = ScriptedOsd::new(model.clone());
    let source = reader(&reported);
    let mut buffer = [0; 10];
    for missing in [1, -1, 15] {
        reported.missing.set(missing);
        let said = source.read_at(0, &mut buffer);
        assert!(
            matches!(said, Err(SourceError::Malformed(_) | SourceError::ChangedMeanwhile)),
            "{missing}: {said:?}"
        );
    }
    reported.missing.set(0);
    reported.answers.set(0);
    let bytes = model.bytes();
    for offset in [7, 0, 3, model.len - 4, model.len, model.len + 1] {
        let len = source.read_at(offset as u64, &mut buffer).unwrap();
        let expected = bytes.get(offset..).unwrap_or_default();
        assert_eq!(buffer[..len], expected[..expected.len().min(10)], "{offset}");
    }
    assert_eq!(reported.answers.get(), 2);
}

/// The tool itself, replaced by a script.
#[test]
fn ceph_tool_is_asked_rightly_and_ended_if_it_says_too_much() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let tool = folder.path().join("ceph-objectstore-tool");
    let script = "#!/bin/sh\n\
        [ \"$1 $2 $3\" = '--no-mon-config --data-path /an osd' ] || exit 9\n\
        case \"$4 $5\" in\n\
            '--op list') echo \"[$6 $7]\"; echo last;;\n\
            '[a] dump') echo '{'; printf '}';;\n\
            '[a] get-bytes') printf 'abc\\0';;\n\
            '[long] get-bytes') yes;;\n\
            '[long] dump') head -c 200000000 /dev/zero;;\n\
            *) echo 'Error getting attr on : x' >&2; exit 1;;\n\
        esac\n";
    std::fs::write(&tool, script).unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    let folders = ["/usr/bin", "/bin"].map(Into::into);
    let programs = Programs::new([folder.path().to_owned()].into_iter().chain(folders));
    let system = RealSystem::new("/an osd".into(), &programs);
    let mut lines = Vec::new();
    let listed = system.list("1.0", &mut |line| {
        lines.push(String::from_utf8(line.to_vec()).unwrap());
        Ok(())
    });
    listed.unwrap();
    assert_eq!(lines, ["[--pgid 1.0]", "last"]);
    assert_eq!(system.dump("[a]").unwrap(), b"{\n}");
    let spool = tempfile::tempfile().unwrap();
    // Over what is there, from the beginning.
    for _ in 0..2 {
        assert_eq!(system.bytes("[a]", 5, &spool).unwrap(), 4);
    }
    let mut bytes = [0; 9];
    assert_eq!(read_file_at(spool.as_fd(), 0, &mut bytes).unwrap(), 4);
    assert_eq!(&bytes[..4], b"abc\0");
    for (spec, len_max) in [("[a]", 4), ("[a]", 1), ("[long]", 100_000)] {
        let said = system.bytes(spec, len_max, &spool);
        assert!(matches!(said, Err(SourceError::ChangedMeanwhile)), "{spec}: {said:?}");
    }
    assert!(spool.metadata().unwrap().len() <= 100_000);
    let said = system.dump("[long]").map(|text| text.len());
    assert!(matches!(said, Err(SourceError::NotHere(_))), "{said:?}");
    let said = system.dump("[none]");
    assert!(matches!(said, Err(SourceError::Missing(_))), "{said:?}");
    let nowhere = Programs::default();
    let said = RealSystem::new("/an osd".into(), &nowhere).dump("[a]");
    assert!(matches!(said, Err(SourceError::NoProgram { .. })), "{said:?}");
}

#[test]
fn ceph_tool_errors_are_explained() {
    let said = |text: &str| {
        let said = text.to_owned();
        explained(SourceError::Program { name: "x", said })
    };
    let settings = "did not load config file, using default settings.\n";
    let running = said(&format!(
        "{settings}Mount failed with '(11) Resource temporarily unavailable'\n"
    ));
    assert!(
        matches!(running, SourceError::Denied(why) if why.contains("stop")),
        "{running:?}"
    );
    let denied = said(&format!("{settings}Mount failed with '(13) Permission denied'"));
    assert!(
        matches!(denied, SourceError::Denied(why) if why.contains("root")),
        "{denied:?}"
    );
    for text in [
        "Mount failed with '(2) No such file or directory'",
        "data-path: d/nosd: No such file or directory",
    ] {
        let missing = said(text);
        assert!(
            matches!(missing, SourceError::Missing(why) if why.contains("folder")),
            "{missing:?}"
        );
    }
    let gone = said(&format!(
        "{settings}Error getting attr on : 1.0_head,#1:ff7b1f36:::obj2:head#, (2) No such file or directory\nError stat on : .."
    ));
    assert!(
        matches!(gone, SourceError::Missing(why) if why.contains("no longer")),
        "{gone:?}"
    );
    let other = said(&format!(
        "{settings}*** Caught signal (Segmentation fault) **\n in thread"
    ));
    assert_eq!(
        other.to_string(),
        "x failed: *** Caught signal (Segmentation fault) **\n in thread"
    );
    let none = explained(SourceError::NoProgram { name: "x" });
    assert!(matches!(none, SourceError::NoProgram { .. }));
}

/// Output of Ceph 16.2.15 for real objects. One has a clone that shares its blobs, was overwritten
/// and written to behind its end, and then truncated. The other one was written by a client that
/// announced long sequential writes, so that checksums cover up to 64 KiB, and was overwritten with
/// shorter ones.
#[test]
fn ceph_output_is_understood() {
    let [clone, hinted] = [
        (include_str!("recorded/ceph-16.2.15-clone.json"), "recorded"),
        (include_str!("recorded/ceph-16.2.15-hinted.json"), "hint65536"),
    ]
    .map(|(text, name)| {
        let place = Place::new(&format!("ceph:///osd?pg=1.0&object={name}")).unwrap();
        stretches(&parse(text.as_bytes(), &place).unwrap())
    });
    let range = |start, end| ByteRange::new(start, end).unwrap();
    assert_eq!(clone.layout.block_len, 4096);
    let expected = [
        (range(0, 4096), Known::Sums(0)),
        (range(4096, 8192), Known::Unknown(Unknown::NotSummed)),
        (range(8192, 16_384), Known::Sums(4)),
        (range(16_384, 20_480), Known::Unknown(Unknown::NotSummed)),
        (range(20_480, 36_864), Known::Zeros),
        (range(36_864, 40_200), Known::Unknown(Unknown::Tail)),
    ];
    assert_eq!(clone.runs, expected);
    assert_eq!(clone.sums[..4], (!1_996_324_500_u32).to_le_bytes());
    assert_eq!(hinted.layout.block_len, 65_536);
    let expected = [
        (range(0, 65_536), Known::Sums(0)),
        (range(65_536, 131_072), Known::Unknown(Unknown::NotSummed)),
        (range(131_072, 262_144), Known::Sums(4)),
        (range(262_144, 327_680), Known::Unknown(Unknown::NotSummed)),
        (range(327_680, 589_824), Known::Sums(12)),
        (range(589_824, 600_001), Known::Unknown(Unknown::Tail)),
    ];
    assert_eq!(hinted.runs, expected);
    assert_eq!(hinted.sums[..4], (!2_779_707_507_u32).to_le_bytes());
}
