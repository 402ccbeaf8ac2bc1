//! Files on MooseFS: master, chunk server and mount, in namespaces of their own (`tests/systems/moosefs`), where this very program is started with the names of some of its tests.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use byteback_checksums::Programs;
use byteback_checksums::moosefs::MooseFsSource;
use byteback_checksums::source::{FileChecksums, Kind, Source, SourceError, VerifyError, verify};
use byteback_delta::chunks::ChunkParams;

use crate::btrfs::{noise, versions};
use crate::program::{checksums_with, in_namespaces};
use crate::sky;

const BLOCK: usize = 64 << 10;
const CHUNK: usize = 64 << 20;

#[test]
#[ignore = "fetches MooseFS first: make test-systems"]
fn moosefs_in_a_real_mount() {
    in_namespaces("moosefs", "moosefs::guest_");
}

#[test]
#[ignore = "measures: prints rows of the table of docs/skysync.md"]
fn costs_of_moosefs() {
    in_namespaces("moosefs", "moosefs::inside_costs");
}

/// The chunk server's folder.
fn folders() -> Vec<PathBuf> {
    let folder = std::env::var_os("BYTEBACK_MOOSEFS_FOLDER");
    vec![folder.expect("this test runs where another test starts MooseFS").into()]
}

fn path(name: &str) -> PathBuf {
    folders();
    Path::new("/mnt/moosefs").join(name)
}

fn programs() -> Programs {
    Programs::new(std::env::split_paths(&std::env::var_os("PATH").unwrap()))
}

/// All that is told, which is compared with the file's bytes, and how many blocks these are.
#[track_caller]
fn compared(source: &dyn Source) -> (FileChecksums, u64) {
    // The master notes the time of what was written a moment later: then it looks as if the file had changed, once.
    for _ in 0..3 {
        let told = source.collect().unwrap();
        match verify(source, &told) {
            Err(VerifyError::Source(SourceError::ChangedMeanwhile)) => {}
            verified => {
                let verified = verified.unwrap();
                assert_eq!(verified.bytes + verified.zero_bytes, told.stamp().len_bytes);
                return (told, verified.blocks);
            }
        }
    }
    panic!("it changes all the time");
}

#[track_caller]
fn verified(path: &Path) -> (FileChecksums, u64) {
    let (file, programs, folders) = (File::open(path).unwrap(), programs(), folders());
    compared(&MooseFsSource::new(&file, &programs, &folders).unwrap())
}

#[test]
#[ignore = "runs where moosefs_in_a_real_mount starts MooseFS"]
fn guest_files_are_told_and_true() {
    for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3_000_001, CHUNK, CHUNK + 5] {
        let path = path(&format!("of{len}"));
        std::fs::write(&path, noise(len as u64 + 1, len)).unwrap();
        let (told, blocks) = verified(&path);
        assert_eq!(
            (told.layout().kind, blocks),
            (Kind::Crc32, len.div_ceil(BLOCK) as u64),
            "{len}"
        );
    }
    // A chunk that was never written to, one with few blocks, a file that became shorter within a block, and one that became longer again.
    let sparse = path("sparse");
    let file = File::create(&sparse).unwrap();
    file.write_all_at(&noise(3, 100_000), (CHUNK + 10 * BLOCK) as u64)
        .unwrap();
    file.set_len(3 * CHUNK as u64 + 9).unwrap();
    verified(&sparse);
    let cut = path("of3000001");
    for len in [100_000, 5_000_000, 70_000] {
        File::options().write(true).open(&cut).unwrap().set_len(len).unwrap();
        verified(&cut);
    }
    let address = |path: &Path| format!("moosefs:{}", path.display());
    let folder = folders().remove(0);
    let store = ["--store", folder.to_str().unwrap()];
    let said = checksums_with(address(&path("of67108869")), &store).fine();
    assert_eq!(
        (said["source"].as_str(), said["kind"].as_str()),
        (Some("moosefs"), Some("crc32"))
    );
    assert_eq!(
        (&said["summed_bytes"], &said["verified"]["blocks"]),
        (&(CHUNK + 5).into(), &1025.into())
    );
    // Where there are no chunks, where is no MooseFS, what is no file, and nothing that could tell.
    let elsewhere = tempfile::tempdir().unwrap();
    let said = checksums_with(address(&path("of1")), &["--store", elsewhere.path().to_str().unwrap()]).fine();
    assert_eq!(
        (&said["unknown"]["not_summed"], &said["summed_bytes"]),
        (&1.into(), &0.into())
    );
    checksums_with(address(&path("of1")), &[]).fails_with("--store");
    checksums_with(address(&path("missing")), &store).fails_with("No such file");
    checksums_with(address(Path::new("/mnt/moosefs")), &store).fails_with("not a regular file");
    std::fs::write(elsewhere.path().join("file"), b"x").unwrap();
    checksums_with(address(&elsewhere.path().join("file")), &store).fails_with("the list of a file's chunks");
    let (file, none, folders) = (File::open(path("of1")).unwrap(), Programs::default(), folders());
    let said = MooseFsSource::new(&file, &none, &folders)
        .unwrap()
        .collect()
        .unwrap_err()
        .to_string();
    assert!(said.contains("mfsfileinfo is not installed"), "{said}");
}

/// What programs write waits in the mount, and the chunk server's CRCs wait in its memory.
#[test]
#[ignore = "runs where moosefs_in_a_real_mount starts MooseFS"]
fn guest_what_was_written_just_now_is_told() {
    let path = path("fresh");
    std::fs::write(&path, noise(77, 40 * BLOCK)).unwrap();
    let writer = File::options().write(true).open(&path).unwrap();
    let (file, programs, folders) = (File::open(&path).unwrap(), programs(), folders());
    let source = MooseFsSource::new(&file, &programs, &folders).unwrap();
    let mut before = source.collect().unwrap();
    for round in 0..60 {
        // Nobody syncs it; within the same second, and of the same length.
        writer
            .write_all_at(&noise(round + 9, 1000), round % 40 * BLOCK as u64 + 7)
            .unwrap();
        if round.is_multiple_of(2) {
            assert!(!source.is_unchanged(before.stamp()).unwrap(), "{round}");
            let said = verify(&source, &before);
            assert!(
                matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
                "{said:?}"
            );
        }
        let (told, blocks) = compared(&source);
        assert_eq!(blocks, 40, "{round}");
        assert_ne!(told.stamp(), before.stamp());
        before = told;
    }
    // A block that rots in the chunk's file: neither the server nor --verify takes it for what it was.
    let mut changed = 0;
    for below in 0..=0xff_u8 {
        for entry in std::fs::read_dir(folders[0].join(format!("{below:02X}")))
            .into_iter()
            .flatten()
        {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            let mut wanted = vec![0; 64];
            file.read_exact_at(&mut wanted, 20 * BLOCK as u64 + 5000).unwrap();
            if let Some(at) = bytes.windows(64).position(|window| window == wanted) {
                let chunk = File::options().write(true).open(&path).unwrap();
                chunk.write_all_at(&[!bytes[at]], at as u64).unwrap();
                changed += 1;
            }
        }
    }
    assert_eq!(changed, 1);
    assert!(source.collect().unwrap().runs().eq(before.runs()));
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    match verify(&source, &before) {
        // From the mount's memory: it is what it was.
        Ok(verified) => assert_eq!(verified.blocks, 40),
        Err(error) => assert!(
            matches!(error, VerifyError::Differs { .. } | VerifyError::Source(_)),
            "{error}"
        ),
    }
}

#[test]
#[ignore = "runs where moosefs_in_a_real_mount starts MooseFS"]
fn guest_syncs_are_right() {
    let (old, new) = versions(32 << 20);
    std::fs::write(path("old"), &old).unwrap();
    std::fs::write(path("new"), &new).unwrap();
    let (programs, folders) = (programs(), folders());
    let [old_file, new_file] = ["old", "new"].map(|name| File::open(path(name)).unwrap());
    let base = MooseFsSource::new(&old_file, &programs, &folders).unwrap();
    let source = MooseFsSource::new(&new_file, &programs, &folders).unwrap();
    let synced = sky::fixed(&base, &source, BLOCK as u32, &new);
    // Three places, the one where something was inserted and what is behind it up to the next block, and the end.
    assert!(synced.stats.literal_bytes < 7 * BLOCK as u64, "{:?}", synced.stats);
    // Long enough that most of a chunk's CRC follows from those of its blocks.
    let params = ChunkParams::new(256 << 10, 512 << 10, 768 << 10).unwrap();
    let synced = sky::chunked_to(params, &base, &source, &new);
    assert!(synced.stats.literal_bytes < 8 * (768 << 10), "{:?}", synced.stats);
}

#[test]
#[ignore = "runs where costs_of_moosefs starts MooseFS"]
fn inside_costs() {
    let old = noise(1, 100 << 20);
    let mut new = old.clone();
    for at in 0..10 {
        new[at * 10_000_000..][..256].copy_from_slice(&noise(9, 256));
    }
    std::fs::write(path("old"), &old).unwrap();
    std::fs::write(path("new"), &new).unwrap();
    let (programs, folders) = (programs(), folders());
    let [old_file, new_file] = ["old", "new"].map(|name| File::open(path(name)).unwrap());
    let base = MooseFsSource::new(&old_file, &programs, &folders).unwrap();
    let source = MooseFsSource::new(&new_file, &programs, &folders).unwrap();
    crate::costs::print_row("MooseFS, CRC-32", &base, &source, BLOCK as u32, &new);
}
