//! Files in a store of casync, and recipes of them: listed, verified against the bytes, and synced
//! by their chunks.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use byteback_checksums::btrfs::BtrfsSource;
use byteback_checksums::source::{FileChecksums, Run, Source, SourceError, VerifyError, verify};
use byteback_host::clock::RealClock;
use byteback_sources::deduplicated::DeduplicatedFile;

use crate::btrfs::{noise, versions};
use crate::disk::{Disk, run, text};
use crate::plain::PlainFile;
use crate::program::{as_nobody, checksums};
use crate::sky;

/// A folder with a store and the files that are put into it.
struct Store(tempfile::TempDir);

impl Store {
    fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("byteback-casync-")
            .tempdir_in("/var/tmp");
        Self(folder.unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Puts a content into the store; returns its index.
    fn put(&self, name: &str, content: &[u8], options: &[&str]) -> PathBuf {
        let (file, index) = (self.at(name), self.at(&format!("{name}.caibx")));
        std::fs::write(&file, content).unwrap();
        let store = format!("--store={}", text(&self.at("default.castr")));
        let arguments = [options, &[&store, "make", text(&index), text(&file)]].concat();
        run("casync", &arguments);
        index
    }

    /// The content that casync itself extracts by an index.
    fn extracted(&self, index: &Path) -> Vec<u8> {
        let file = self.at("extracted");
        let store = format!("--store={}", text(&self.at("default.castr")));
        run("casync", &[&store, "extract", text(index), text(&file)]);
        let bytes = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        bytes
    }
}

fn source_argument(what: &str, path: &Path) -> String {
    format!("{what}:{}", text(path))
}

#[test]
fn what_casync_keeps_is_told_and_true() {
    let store = Store::new();
    let content = [noise(1, 3_000_001), vec![0; 2_000_000], noise(1, 3_000_001)].concat();
    for (digest, kind) in [("sha512-256", "sha512_256"), ("sha256", "sha256")] {
        let index = store.put(kind, &content, &[&format!("--digest={digest}")]);
        let said = checksums(source_argument("casync", &index), &[]).fine();
        assert_eq!(
            (said["source"].as_str(), said["kind"].as_str()),
            (Some("casync"), Some(kind))
        );
        assert_eq!(
            (&said["summed_bytes"], &said["len_bytes"]),
            (&content.len().into(), &content.len().into())
        );
        assert_eq!(
            (said["is_strong"].as_bool(), said["are_lengths_varied"].as_bool()),
            (Some(true), Some(true))
        );
        let chunks = said["verified"]["blocks"].as_u64().unwrap();
        assert!((20..500).contains(&chunks), "{chunks}");
        assert_eq!(said["checksum_bytes"], chunks * 32);
        // The index has 40 bytes for each chunk, and 104 in addition.
        assert_eq!(std::fs::metadata(&index).unwrap().len(), chunks * 40 + 104);
        // The bytes read here are those that casync extracts from the store.
        let source = DeduplicatedFile::casync(index.clone(), None);
        let mut bytes = vec![0; content.len() + 1];
        assert_eq!(source.read_at(0, &mut bytes).unwrap(), content.len());
        assert!(bytes[..content.len()] == content && store.extracted(&index) == content);
    }
    // Unusual lengths of chunks; no content; a short one.
    for (name, len) in [("empty", 0), ("short", 1), ("small", 300_000)] {
        let content = noise(3, len);
        let index = store.put(name, &content, &["--chunk-size=1024:4096:16384"]);
        let said = checksums(source_argument("casync", &index), &[]).fine();
        assert_eq!(said["verified"]["bytes"], len);
    }
    // The output in words, and a store in another place.
    std::fs::rename(store.at("default.castr"), store.at("elsewhere")).unwrap();
    checksums(source_argument("casync", &store.at("small.caibx")), &[]).fails_with("is not in the store");
    let output = Command::new(env!("CARGO_BIN_EXE_byteback"))
        .args(["checksums", "--verify", "--store", text(&store.at("elsewhere"))])
        .arg(source_argument("casync", &store.at("small.caibx")))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for line in [
        "  source       casync\n",
        " KiB; equal checksums prove equal content",
        "  verified     ",
    ] {
        assert!(said.contains(line), "{said}");
    }
}

#[test]
fn what_casync_does_not_have_is_refused() {
    let store = Store::new();
    let content = noise(1, 500_000);
    let index = store.put("file", &content, &[]);
    checksums(source_argument("casync", &store.at("missing")), &[]).fails_with("No such file");
    checksums(source_argument("casync", &store.at("file")), &[]).fails_with("not a casync index");
    checksums(source_argument("recipe", &index), &[]).fails_with("not a recipe of version 1");
    checksums(source_argument("casync", store.0.path()), &[]).fails_with("not a regular file");
    // A user who may not read the index; then one who may, but not the store.
    let closed = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    let (asked, chunks) = (source_argument("casync", &index), store.at("default.castr"));
    closed(store.0.path(), 0o755);
    closed(&index, 0o600);
    as_nobody(&[OsStr::new(&asked)]).fails_with("Permission denied");
    closed(&index, 0o644);
    closed(&chunks, 0o700);
    assert_eq!(as_nobody(&[OsStr::new(&asked)]).fine()["summed_bytes"], content.len());
    as_nobody(&[OsStr::new("--verify"), OsStr::new(&asked)])
        .fails_with("may not be read; run as the owner of the store");
    closed(&chunks, 0o755);
    as_nobody(&[OsStr::new("--verify"), OsStr::new(&asked)]).fine();
    let whole = std::fs::read(&index).unwrap();
    std::fs::write(&index, &whole[..whole.len() - 40]).unwrap();
    checksums(source_argument("casync", &index), &[]).fails_with("a truncated casync index");
    std::fs::write(&index, &whole).unwrap();
    // The store drops unused chunks: the index still describes the file.
    let source = DeduplicatedFile::casync(index.clone(), None);
    let reported = source.collect().unwrap();
    let other = store.put("other", &noise(2, 500_000), &[]);
    let gone = format!("--store={}", text(&store.at("default.castr")));
    run("casync", &[&gone, "gc", text(&other)]);
    assert_eq!(source.collect().unwrap(), reported);
    let said = verify(&source, &reported);
    assert!(
        matches!(said, Err(VerifyError::Source(SourceError::Chunk { .. }))),
        "{said:?}"
    );
    // A chunk with another one's bytes, as casync compressed them: one byte differs.
    let spoiled = Store::new();
    let mut flipped = content.clone();
    flipped[250_000] ^= 1;
    let indexes = [("file", &content), ("flipped", &flipped)].map(|(name, content)| spoiled.put(name, content, &[]));
    let chunks = indexes.clone().map(|index| {
        let reported = DeduplicatedFile::casync(index, None).collect().unwrap();
        let sums = reported.runs().flat_map(|run| match run {
            Run::Chunks { sums, .. } => sums.chunks(32).map(<[u8]>::to_vec).collect(),
            _ => Vec::new(),
        });
        sums.collect::<Vec<_>>()
    });
    assert_eq!(chunks[0].len(), chunks[1].len());
    let differing: Vec<_> = chunks[0]
        .iter()
        .zip(&chunks[1])
        .filter(|(one, other)| one != other)
        .collect();
    assert_eq!(differing.len(), 1);
    let at = |sum: &[u8]| {
        let name: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        spoiled
            .at("default.castr")
            .join(&name[..4])
            .join(format!("{name}.cacnk"))
    };
    run(
        "cp",
        &[
            "--remove-destination",
            text(&at(differing[0].1)),
            text(&at(differing[0].0)),
        ],
    );
    checksums(source_argument("casync", &indexes[0]), &[]).fails_with("does not match its fingerprint");
    checksums(source_argument("casync", &indexes[1]), &[]).fine();
    // Compressed as xz, which is not supported.
    let index = store.put("xz", &noise(3, 100_000), &["--compression=xz"]);
    checksums(source_argument("casync", &index), &[]).fails_with("xz");
    // The index is rewritten for other bytes while the old one is in use.
    let index = store.put("changing", &content, &[]);
    let source = DeduplicatedFile::casync(index, None);
    let reported = source.collect().unwrap();
    store.put("changing", &noise(4, 500_000), &[]);
    assert!(!source.is_unchanged(reported.stamp()).unwrap());
    let said = verify(&source, &reported);
    assert!(
        matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
        "{said:?}"
    );
}

/// Two indexes keep replacing each other: each list is that of one of them, and never a mix.
#[test]
fn casync_index_replaced_all_the_time_is_told_as_one_of_both() {
    let store = Store::new();
    let contents = [noise(1, 3_000_000), noise(2, 3_000_000)];
    let indexes = ["one", "other"].map(|name| {
        let content = &contents[usize::from(name == "other")];
        std::fs::read(store.put(name, content, &["--chunk-size=1024:4096:16384"])).unwrap()
    });
    let expected = ["one", "other"].map(|name| {
        let source = DeduplicatedFile::casync(store.at(&format!("{name}.caibx")), None);
        source.collect().unwrap()
    });
    let index = store.at("index.caibx");
    std::fs::write(&index, &indexes[0]).unwrap();
    let ends = AtomicBool::new(false);
    let mut met = [0; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1_usize.. {
                let next = store.at("next");
                std::fs::write(&next, &indexes[round % 2]).unwrap();
                std::fs::rename(&next, &index).unwrap();
                // In place, too, without the protection of a rename.
                if round.is_multiple_of(16) {
                    std::fs::write(&index, &indexes[1]).unwrap();
                }
                if ends.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        // Also if an assertion fails: the scope waits for the writer.
        scopeguard::defer! { ends.store(true, Ordering::Relaxed) }
        let source = DeduplicatedFile::casync(index.clone(), Some(store.at("default.castr")));
        for round in 0.. {
            assert!(round < 100_000, "not told as both: {met:?}");
            if round >= 1000 && met.iter().all(|count| *count >= 10) {
                break;
            }
            // The index may be cut short for a moment, or differ at each look.
            let Ok(reported) = source.collect() else { continue };
            let which = expected.iter().position(|one| one.runs().eq(reported.runs()));
            met[which.expect("a list of both")] += 1;
        }
    });
}

/// Both versions in stores: the lists alone tell which chunks are equal, wherever they moved, and
/// only new chunks are read.
#[test]
fn a_sync_between_two_stores_of_casync_reads_what_is_new() {
    let (here, there) = (Store::new(), Store::new());
    let (old, new) = versions(8 << 20);
    for digest in ["sha512-256", "sha256"] {
        let option = format!("--digest={digest}");
        let base = DeduplicatedFile::casync(there.put("old", &old, &[&option]), None);
        let source = DeduplicatedFile::casync(here.put("new", &new, &[&option]), None);
        let synced = sky::named(&base, &source, &new);
        assert_eq!(synced.base_read_bytes, 0);
        assert_eq!(synced.new_read_bytes, synced.stats.literal_bytes);
        // Four places, and the end; a chunk has 256 KiB at most.
        assert!(synced.stats.literal_bytes < 8 * (256 << 10), "{:?}", synced.stats);
    }
}

/// The base is a file in no store, or on btrfs: it is summed where the chunks would lie.
#[test]
fn a_sync_from_casync_to_a_file() {
    let Some(disk) = Disk::new("crc32c", 256, "") else {
        return;
    };
    let store = Store::new();
    let old = noise(1, 8 << 20);
    let mut new = old.clone();
    new[3_000_000..3_000_300].copy_from_slice(&noise(9, 300));
    new.extend(noise(10, 12_345));
    let source = DeduplicatedFile::casync(store.put("new", &new, &[]), None);
    std::fs::write(disk.path().join("old"), &old).unwrap();
    let file = std::fs::File::open(disk.path().join("old")).unwrap();
    let on_btrfs = BtrfsSource::new(&file, &RealClock).unwrap();
    let plain = PlainFile::open(&disk.path().join("old"));
    for base in [&on_btrfs as &dyn Source, &plain] {
        let synced = sky::named(base, &source, &new);
        assert!(synced.stats.literal_bytes < 4 * (256 << 10), "{:?}", synced.stats);
        assert_eq!(synced.new_read_bytes, synced.stats.literal_bytes);
    }
}

/// A recipe as any program can write it from its store's knowledge, with a folder of its chunks:
/// here from casync's index, with sha256sum.
fn recipe_of(store: &Store, reported: &FileChecksums, content: &[u8]) -> PathBuf {
    let chunks = store.at("chunks");
    std::fs::create_dir(&chunks).unwrap();
    let mut recipe = format!(
        "byteback-recipe 1\nsums {}\nlength {}\nchunks chunks\n",
        reported.layout().kind.name(),
        content.len()
    );
    for run in reported.runs() {
        let Run::Chunks { ends, sums, .. } = run else { panic!() };
        let mut start = 0;
        for (end, sum) in ends.iter().zip(sums.chunks(32)) {
            let name: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
            recipe.push_str(&format!("{} {name}\n", end - start));
            std::fs::write(chunks.join(name), &content[start as usize..*end as usize]).unwrap();
            start = *end;
        }
    }
    let path = store.at("recipe");
    std::fs::write(&path, &recipe).unwrap();
    // The last line, as docs/formats/recipe.md says.
    let script = "printf 'end %s\\n' \"$(sha256sum <\"$1\" | cut -d' ' -f1)\" >>\"$1\"";
    run("sh", &["-c", script, "sh", text(&path)]);
    path
}

#[test]
fn a_recipe_of_what_another_store_keeps() {
    let store = Store::new();
    let content = noise(1, 1 << 20);
    let index = store.put("file", &content, &["--digest=sha256"]);
    let source = DeduplicatedFile::casync(index, None);
    let reported = source.collect().unwrap();
    let path = recipe_of(&store, &reported, &content);
    let said = checksums(source_argument("recipe", &path), &[]).fine();
    assert_eq!(
        (said["source"].as_str(), said["kind"].as_str()),
        (Some("recipe"), Some("sha256"))
    );
    assert_eq!(said["verified"]["bytes"], content.len());
    // The recipe agrees with the index, and syncs with it.
    let described = DeduplicatedFile::recipe(path.clone());
    let again = described.collect().unwrap();
    assert!(again.runs().eq(reported.runs()));
    let synced = sky::named(&source, &described, &content);
    assert_eq!(
        (
            synced.stats.literal_bytes,
            synced.new_read_bytes,
            synced.base_read_bytes
        ),
        (0, 0, 0)
    );
    // A chunk that another program wrote to.
    let victim = std::fs::read_dir(store.at("chunks"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut bytes = std::fs::read(&victim).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&victim, bytes).unwrap();
    checksums(source_argument("recipe", &path), &[]).fails_with("does not match its fingerprint");
}

#[test]
#[ignore = "measures: prints rows of the table of docs/skysync.md"]
fn costs_of_casync() {
    let (here, there) = (Store::new(), Store::new());
    let old = noise(1, 100 << 20);
    let mut new = old.clone();
    for at in 0..10 {
        new[at * 10_000_000..][..256].copy_from_slice(&noise(9, 256));
    }
    for (digest, name) in [("sha512-256", "SHA-512/256"), ("sha256", "SHA-256")] {
        let option = format!("--digest={digest}");
        let base = DeduplicatedFile::casync(there.put("old", &old, &[&option]), None);
        let source = DeduplicatedFile::casync(here.put("new", &new, &[&option]), None);
        crate::costs::print_row(&format!("casync, {name}"), &base, &source, 0, &new);
        // The same chunks, as described by recipes.
        if digest == "sha256" {
            let recipe = |at: &Store, listed: &DeduplicatedFile, content: &[u8]| {
                DeduplicatedFile::recipe(recipe_of(at, &listed.collect().unwrap(), content))
            };
            let (base, source) = (recipe(&there, &base, &old), recipe(&here, &source, &new));
            crate::costs::print_row(&format!("recipe, {name}"), &base, &source, 0, &new);
        }
    }
}
