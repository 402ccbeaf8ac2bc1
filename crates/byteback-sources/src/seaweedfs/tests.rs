//! A filer in memory, whose answers are spoiled in every conceivable way: the result for a file is
//! true of its bytes, or an error.

use std::cell::{Cell, RefCell};

use byteback_host::random::SplitMix64;

use super::*;
use byteback_checksums::source::{VerifyError, verify};

/// A write at a time: its place and its bytes.
#[derive(Clone)]
struct Part {
    offset: u64,
    bytes: Vec<u8>,
    is_compressed: bool,
    is_encrypted: bool,
}

#[derive(Clone, Default)]
struct File {
    parts: Vec<Part>,
    len_bytes: u64,
    version: u64,
}

impl File {
    /// The file's content, computed naively, one part after the other.
    fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.len_bytes as usize];
        for part in &self.parts {
            let (start, end) = (part.offset as usize, part.offset as usize + part.bytes.len());
            content.resize(content.len().max(end), 0);
            content[start..end].copy_from_slice(&part.bytes);
        }
        content
    }

    fn id(&self, number: usize) -> String {
        format!("{},{:02x}{:08x}", number % 3 + 1, number + 1, self.version)
    }

    fn entry(&self) -> String {
        let chunks = self.parts.iter().enumerate().map(|(number, part)| {
            let mut chunk = format!("{{\"file_id\":\"{}\",\"size\":{}", self.id(number), part.bytes.len());
            // The filer omits fields that are 0.
            if part.offset > 0 {
                chunk.push_str(&format!(",\"offset\":{}", part.offset));
            }
            if part.is_compressed {
                chunk.push_str(",\"is_compressed\":true");
            }
            if part.is_encrypted {
                chunk.push_str(",\"cipher_key\":\"AAAA\"");
            }
            format!(
                "{chunk},\"modified_ts_ns\":{},\"e_tag\":\"r3PoeERRgtE3YARl/TWDHQ==\"}}",
                number + 7
            )
        });
        let chunks: Vec<_> = chunks.collect();
        format!(
            "{{\"FullPath\":\"/a/f\",\"Mtime\":\"2026-11-23T13:52:10.08433787{}Z\",\"Mode\":432,\"Md5\":null,\"FileSize\":{},\"chunks\":[{}],\"Content\":null,\"Remote\":null}}",
            self.version,
            self.len_bytes,
            chunks.join(",")
        )
    }

    fn drawn(random: &mut SplitMix64) -> Self {
        let mut file = Self::default();
        let block_len = 1 + random.below(2000);
        let count = random.below(6);
        for index in 0..count {
            let is_at_random = random.below(4) == 0;
            let offset = match is_at_random {
                true => random.below(block_len * 6),
                false => block_len * index,
            };
            let len = match (index + 1 == count, is_at_random) {
                (false, false) => block_len,
                _ => 1 + random.below(block_len),
            };
            let bytes = (0..len).map(|_| random.next_u64() as u8).collect();
            file.parts.push(Part {
                offset,
                bytes,
                is_compressed: random.below(8) == 0,
                is_encrypted: random.below(8) == 0,
            });
        }
        let end = file.content().len() as u64;
        file.len_bytes = match random.below(3) {
            // A file written through a mount gets its length later than its chunks.
            0 => 0,
            1 => end + random.below(3000),
            _ => end,
        };
        file
    }
}

type Spoil = Box<dyn Fn(&Filer, &Request, &mut Answer)>;

struct Filer {
    file: RefCell<File>,
    asked: Cell<u64>,
    spoil: RefCell<Spoil>,
}

impl Filer {
    fn of(file: File) -> Self {
        Self {
            file: RefCell::new(file),
            asked: Cell::new(0),
            spoil: RefCell::new(Box::new(|_, _, _| {})),
        }
    }

    fn source(&self) -> SeaweedFsSource<'_> {
        SeaweedFsSource::new(self, Place::new("seaweedfs://127.0.0.1:8888/a b/f").unwrap())
    }
}

impl Http for Filer {
    fn ask(&self, request: &Request) -> io::Result<Answer> {
        self.asked.set(self.asked.get() + 1);
        let file = self.file.borrow().clone();
        let what = request.url.strip_prefix("http://127.0.0.1:8888").unwrap();
        let mut answer = Answer {
            status: 200,
            ..Answer::default()
        };
        if what == "/a%20b/f?metadata=true" {
            answer.body = file.entry().into_bytes();
        } else if let Some(id) = what.strip_prefix("/?proxyChunkId=") {
            assert_eq!(request.method, Method::Head);
            match (0..file.parts.len()).find(|number| file.id(*number) == id) {
                Some(number) => {
                    let part = &file.parts[number];
                    let crc = crc32c::crc32c(&part.bytes);
                    answer.headers = vec![
                        ("Content-Length".to_owned(), part.bytes.len().to_string()),
                        ("Etag".to_owned(), format!("\"{crc:08x}\"")),
                    ];
                }
                None => answer.status = 404,
            }
        } else {
            assert_eq!(what, "/a%20b/f");
            let content = file.content();
            let (_, range) = request.headers.iter().find(|header| header.0 == "range").unwrap();
            let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
            match content.get(first..content.len().min(last + 1)) {
                Some(part) if !part.is_empty() => {
                    answer.status = 206;
                    answer.body = part.to_vec();
                    let reported = format!("bytes {first}-{}/{}", first + part.len() - 1, content.len());
                    answer.headers = vec![("Content-Range".to_owned(), reported)];
                }
                _ => answer.status = 416,
            }
        }
        self.spoil.borrow()(self, request, &mut answer);
        Ok(answer)
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

#[test]
fn seaweedfs_checksums_are_true_for_any_overlap() {
    let (mut even, mut uneven) = (0, 0);
    for seed in seeds(400) {
        let file = File::drawn(&mut SplitMix64::new(seed));
        let content = file.content();
        let filer = Filer::of(file.clone());
        let source = filer.source();
        let reported = source.collect().unwrap();
        assert_eq!(reported.stamp().len_bytes, content.len() as u64);
        let verified = verify(&source, &reported).unwrap();
        let mut end = 0;
        for run in reported.runs() {
            assert_eq!(run.range().start(), end, "a gap");
            end = run.range().end();
            match run {
                Run::Sums { range, .. } => {
                    even += 1;
                    assert!(range.start().is_multiple_of(u64::from(reported.layout().block_len)));
                }
                Run::Chunks { .. } => uneven += 1,
                _ => {}
            }
        }
        assert_eq!(end, content.len() as u64);
        // Each part that no other overlaps, and that is stored as it is, has its checksum.
        let overlaps = |one: &Part, other: &Part| {
            let end = |part: &Part| part.offset + part.bytes.len() as u64;
            one.offset < end(other) && other.offset < end(one)
        };
        let alone = file.parts.iter().enumerate().filter(|(number, part)| {
            let mut others = file.parts.iter().enumerate().filter(|(other, _)| other != number);
            !part.is_compressed && !part.is_encrypted && !others.any(|(_, other)| overlaps(part, other))
        });
        assert_eq!(verified.blocks, alone.count() as u64);
        // Three requests and one for each chunk.
        let mut bytes = vec![0; content.len() + 5];
        assert_eq!(source.read_at(0, &mut bytes).unwrap(), content.len());
        assert!(bytes[..content.len()] == content);
    }
    assert!(
        std::env::var("BYTEBACK_SEED").is_ok() || (even > 50 && uneven > 50),
        "{even} {uneven}"
    );
}

/// Answers with other numbers, words and lengths than the filer's: an error, or verification finds
/// that they are not true of the bytes; nothing panics.
#[test]
fn answers_that_are_spoiled_are_not_believed() {
    let mut taken = 0;
    for seed in seeds(1500) {
        let mut random = SplitMix64::new(seed);
        let filer = Filer::of(File::drawn(&mut random));
        let (which, place, kind) = (random.below(4), random.next_u64(), random.below(5));
        *filer.spoil.borrow_mut() = Box::new(move |filer, _, answer| {
            if filer.asked.get() != which + 1 {
                return;
            }
            let at = |len: usize| (place % len.max(1) as u64) as usize;
            match kind {
                0 => answer.status = [404, 500, 401, 204, 301][at(5)],
                1 if !answer.body.is_empty() => {
                    let at = at(answer.body.len());
                    answer.body[at] = b"0123456789\"{,"[(place >> 32) as usize % 13];
                }
                2 => answer.body.truncate(at(answer.body.len())),
                3 => answer
                    .headers
                    .iter_mut()
                    .for_each(|header| header.1.insert(at(header.1.len()), '1')),
                _ => answer.headers.clear(),
            }
        });
        let source = filer.source();
        if let Ok(reported) = source.collect() {
            // The filer is well again afterwards.
            *filer.spoil.borrow_mut() = Box::new(|_, _, _| {});
            let content = filer.file.borrow().content();
            taken += 1;
            assert_eq!(reported.stamp().len_bytes, content.len() as u64);
            match verify(&source, &reported) {
                Ok(_) | Err(VerifyError::Source(_)) => {}
                // Checksums are those of the needles, however the answer was spoiled.
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(std::env::var("BYTEBACK_SEED").is_ok() || taken > 100, "{taken}");
}

fn whole() -> File {
    let part = |offset, byte| Part {
        offset,
        bytes: vec![byte; 1000],
        is_compressed: false,
        is_encrypted: false,
    };
    File {
        parts: vec![part(0, 1), part(1000, 2), part(2000, 3)],
        len_bytes: 3000,
        version: 1,
    }
}

/// At every request of a description, the file becomes another one of the same length: the result
/// is of one of the two.
#[test]
fn a_file_that_is_replaced_meanwhile_is_noticed() {
    for replaced_at in 1..=8 {
        let filer = Filer::of(whole());
        *filer.spoil.borrow_mut() = Box::new(move |filer, _, _| {
            if filer.asked.get() == replaced_at {
                let mut file = filer.file.borrow_mut();
                file.parts[1].bytes = vec![9; 1000];
                file.version += 1;
            }
        });
        let source = filer.source();
        let reported = source.collect().unwrap();
        match verify(&source, &reported) {
            Ok(verified) => assert_eq!(verified.blocks, 3),
            // The entry and three needles were requested; requesting the entry once more ends the
            // description.
            Err(VerifyError::Source(SourceError::ChangedMeanwhile)) if replaced_at > 4 => {}
            Err(error) => panic!("{error}"),
        }
    }
    // The file changes at every attempt, which the error says.
    let filer = Filer::of(whole());
    *filer.spoil.borrow_mut() = Box::new(|filer, _, _| filer.file.borrow_mut().version += 1);
    assert!(matches!(filer.source().collect(), Err(SourceError::Busy)));
    // After the description: the successor's bytes are not returned.
    let filer = Filer::of(whole());
    let source = filer.source();
    let reported = source.collect().unwrap();
    filer.file.borrow_mut().version += 1;
    assert!(!source.is_unchanged(reported.stamp()).unwrap());
    assert!(matches!(
        source.read_at(0, &mut [0; 10]),
        Err(SourceError::ChangedMeanwhile)
    ));
}

#[test]
fn other_bytes_than_were_asked_for_are_refused() {
    type Change = fn(&mut Answer);
    let spoiled: [(&str, Change); 6] = [
        ("from elsewhere", |answer| {
            answer.headers[0].1 = "bytes 1-10/3000".to_owned()
        }),
        ("of a longer file", |answer| {
            answer.headers[0].1 = "bytes 0-9/3001".to_owned()
        }),
        ("without a place", |answer| answer.headers.clear()),
        ("all", |answer| answer.status = 200),
        ("cut short", |answer| answer.body.truncate(9)),
        ("too many", |answer| answer.body.push(0)),
    ];
    for (what, change) in spoiled {
        let filer = Filer::of(whole());
        let source = filer.source();
        source.collect().unwrap();
        assert_eq!(source.read_at(0, &mut [0; 10]).unwrap(), 10);
        *filer.spoil.borrow_mut() = Box::new(move |_, request, answer| {
            if !request.headers.is_empty() {
                change(answer);
            }
        });
        assert!(source.read_at(0, &mut [0; 10]).is_err(), "{what}");
    }
    // More than the file has, where there is room for it.
    let filer = Filer::of(whole());
    *filer.spoil.borrow_mut() = Box::new(|_, request, answer| {
        if !request.headers.is_empty() {
            answer.body.push(0);
        }
    });
    assert!(filer.source().read_at(2990, &mut [0; 20]).is_err());
}

/// A volume server compresses what it considers compressible, with or without the filer's
/// knowledge; its checksum is that of the stored bytes.
#[test]
fn checksums_of_needles_that_are_stored_otherwise_do_not_count() {
    let reported = |change: fn(&mut Answer)| {
        let filer = Filer::of(whole());
        *filer.spoil.borrow_mut() = Box::new(move |_, request, answer| {
            if request.method == Method::Head {
                change(answer);
            }
        });
        filer.source().collect()
    };
    let compressed = reported(|answer| answer.headers.push(("content-encoding".to_owned(), "gzip".to_owned())));
    assert_eq!(compressed.unwrap().unknown_bytes(), 3000);
    for change in [
        |answer: &mut Answer| answer.headers[0].1 = "999".to_owned(),
        |answer: &mut Answer| drop(answer.headers.remove(0)),
        |answer: &mut Answer| drop(answer.headers.remove(1)),
    ] {
        assert!(matches!(reported(change), Err(SourceError::Malformed(_))));
    }
}

/// If the last chunk is shorter than the others, they are blocks; if it is longer, they are chunks.
#[test]
fn a_last_chunk_that_is_longer_makes_no_blocks() {
    for (len, are_blocks) in [(1, true), (1000, true), (1500, false)] {
        let mut file = whole();
        file.parts[2].bytes.resize(len, 7);
        file.len_bytes = 2000 + len as u64;
        let filer = Filer::of(file);
        let reported = filer.source().collect().unwrap();
        assert!(
            reported.runs().all(|run| matches!(run, Run::Sums { .. }) == are_blocks),
            "{len}"
        );
        assert_eq!(verify(&filer.source(), &reported).unwrap().blocks, 3);
    }
}

/// Verification finds damage to the stored bytes of a file.
#[test]
fn a_checksum_that_is_not_the_needles_is_found() {
    let filer = Filer::of(whole());
    *filer.spoil.borrow_mut() = Box::new(|_, request, answer| {
        if request
            .headers
            .iter()
            .any(|(_, range)| range.starts_with("bytes=1000-"))
        {
            answer.body[500] ^= 1;
        }
    });
    let source = filer.source();
    let reported = source.collect().unwrap();
    assert!(matches!(
        verify(&source, &reported),
        Err(VerifyError::Differs {
            offset: 1000,
            len_bytes: 1000
        })
    ));
}

/// Each field that distinguishes two states of a file.
#[test]
fn all_that_is_told_of_a_state_is_in_its_digest() {
    let entry = "{\"FullPath\":\"/f\",\"Mtime\":\"t1\",\"Mode\":432,\"FileSize\":9,\"Md5\":\"m\",\"Content\":\"QUJD\",\"SymlinkTarget\":\"\",\"chunks\":[\
                 {\"file_id\":\"3,01ab\",\"offset\":1,\"size\":7,\"modified_ts_ns\":5,\"e_tag\":\"e\",\"cipher_key\":\"k\",\"is_compressed\":false,\"is_chunk_manifest\":false}]}";
    let digest = |from: &str, to: &str| {
        assert!(entry.contains(from));
        Entry::parse(entry.replacen(from, to, 1).as_bytes()).unwrap().digest()
    };
    let changes = [
        ("", ""),
        ("/f", "/g"),
        ("t1", "t2"),
        ("432", "433"),
        ("\"FileSize\":9", "\"FileSize\":8"),
        ("\"m\"", "\"n\""),
        ("QUJD", "QUJE"),
        ("\"SymlinkTarget\":\"\"", "\"SymlinkTarget\":\"x\""),
        ("3,01ab", "3,01ac"),
        ("\"offset\":1", "\"offset\":2"),
        ("\"size\":7", "\"size\":6"),
        ("_ns\":5", "_ns\":4"),
        ("\"e\"", "\"f\""),
        ("\"k\"", "\"l\""),
        ("\"is_compressed\":false", "\"is_compressed\":true"),
        ("\"is_chunk_manifest\":false", "\"is_chunk_manifest\":true"),
        // One more, with nothing in it.
        ("[{", "[{},{"),
    ];
    let digests: std::collections::BTreeSet<_> = changes.iter().map(|(from, to)| digest(from, to)).collect();
    assert_eq!(digests.len(), changes.len());
}

#[test]
fn entries_that_are_no_files_or_make_no_sense_are_refused() {
    let shape = |text: &str| Entry::parse(text.as_bytes()).and_then(|entry| entry.shape());
    let chunk = |rest: &str| {
        format!("{{\"FullPath\":\"/f\",\"FileSize\":9,\"chunks\":[{{\"file_id\":\"3,01ab\",\"size\":9{rest}}}]}}")
    };
    assert_eq!(shape(&chunk("")).unwrap().stretches.len(), 1);
    for text in [
        "{\"FullPath\":\"/f\",\"Mode\":2147484153}".to_owned(),
        "{\"FullPath\":\"/f\",\"SymlinkTarget\":\"x\"}".to_owned(),
        "{\"FullPath\":\"/f\",\"Remote\":{}}".to_owned(),
        chunk(",\"is_chunk_manifest\":true"),
    ] {
        assert!(matches!(shape(&text), Err(Refusal::NotHere(_))), "{text}");
    }
    for text in [
        String::new(),
        "[]".to_owned(),
        "{}".to_owned(),
        "{\"FullPath\":\"\",\"FileSize\":9}".to_owned(),
        "{\"FullPath\":\"/f\",\"FileSize\":-1}".to_owned(),
        "{\"FullPath\":\"/f\",\"FileSize\":18446744073709551615}".to_owned(),
        "{\"FullPath\":\"/f\",\"Content\":\"%\"}".to_owned(),
        "{\"FullPath\":\"/f\",\"FileSize\":5,\"Content\":\"QUJD\"}".to_owned(),
        chunk(",\"offset\":-1"),
        chunk(",\"offset\":9223372036854775807"),
        chunk("").replace("\"size\":9", "\"size\":0"),
        chunk("").replace("3,01ab", "3,01ab&x=/"),
        chunk("").replace("3,01ab", ""),
        chunk("").replace("3,01ab", "3/01ab"),
        chunk("").replace("\"FileSize\"", "\"Content\":\"QUJD\",\"FileSize\""),
    ] {
        assert!(matches!(shape(&text), Err(Refusal::Malformed(_))), "{text}");
    }
    let inline = shape("{\"FullPath\":\"/f\",\"FileSize\":3,\"Content\":\"QUJD\"}").unwrap();
    assert_eq!(inline.stretches[0].1, What::Unknown(Unknown::Inline));
    for (etag, crc) in [
        ("\"0000002a\"", Some(42)),
        ("\"2a\"", None),
        ("0000002a", None),
        ("\"+000002a\"", None),
        ("\"\"", None),
    ] {
        assert_eq!(needle_crc(etag), crc, "{etag}");
    }
    for bad in [
        "http://a/b",
        "seaweedfs://",
        "seaweedfs://a",
        "seaweedfs://a/",
        "seaweedfs:///a",
        "seaweedfs://a/../b",
        "seaweedfs://a@b/c",
    ] {
        assert!(Place::new(bad).is_err(), "{bad}");
    }
}
