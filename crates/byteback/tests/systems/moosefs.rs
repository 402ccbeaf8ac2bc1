//! Files on MooseFS: master, chunk server and mount, in namespaces of their own
//! (`evaluation/systems/moosefs`), where this very program is started with the names of some of its
//! tests.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use byteback_checksums::source::{FileChecksums, Kind, Source, SourceError, VerifyError, verify};
use byteback_delta::chunks::ChunkParams;
use byteback_sources::Programs;
use byteback_sources::moosefs::MooseFsSource;

use crate::btrfs::{noise, versions};
use crate::disk::run;
use crate::program::{as_nobody_with, checksums_with, in_namespaces};
use crate::sky;
use crate::tools::{Interrupted, installed, path_of};

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

/// The checksums of a source, all compared with the file's bytes, and the number of blocks
/// compared.
#[track_caller]
fn compared(source: &dyn Source) -> (FileChecksums, u64) {
    let reported = source.collect().unwrap();
    let verified = verify(source, &reported).unwrap();
    assert_eq!(verified.bytes + verified.zero_bytes, reported.stamp().len_bytes);
    (reported, verified.blocks)
}

#[track_caller]
fn verified(path: &Path) -> (FileChecksums, u64) {
    let (file, programs, folders) = (File::open(path).unwrap(), installed(), folders());
    compared(&MooseFsSource::new(&file, &programs, &folders).unwrap())
}

#[test]
#[ignore = "runs where moosefs_in_a_real_mount starts MooseFS"]
fn guest_files_are_told_and_true() {
    for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3_000_001, CHUNK, CHUNK + 5] {
        let path = path(&format!("of{len}"));
        std::fs::write(&path, noise(len as u64 + 1, len)).unwrap();
        let (reported, blocks) = verified(&path);
        assert_eq!(
            (reported.layout().kind, blocks),
            (Kind::Crc32, len.div_ceil(BLOCK) as u64),
            "{len}"
        );
    }
    // A chunk that was never written to, one with few blocks, a file that became shorter within a
    // block, and one that became longer again.
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
    // A folder without chunks, a path outside MooseFS, paths that are no files, and a missing tool.
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
    checksums_with(address(&elsewhere.path().join("file")), &store).fails_with("is not in a mount of MooseFS");
    // The folders of another MooseFS: the same numbers, other CRCs.
    let other = tempfile::tempdir().unwrap();
    run(
        "cp",
        &["-r", &format!("{}/.", store[1]), other.path().to_str().unwrap()],
    );
    let mut spoiled = 0;
    for entry in (0..=0xff_u8).flat_map(|below| {
        std::fs::read_dir(other.path().join(format!("{below:02X}")))
            .into_iter()
            .flatten()
    }) {
        let chunk = File::options().write(true).open(entry.unwrap().path()).unwrap();
        chunk.write_all_at(&[7; 2], 4097).unwrap();
        chunk.write_all_at(&[7; 2], 1025).unwrap();
        spoiled += 1;
    }
    assert!(spoiled > 8, "{spoiled}");
    let others = ["--store", other.path().to_str().unwrap()];
    checksums_with(address(&path("of3000001")), &others).fails_with("name the folders of the chunk servers");
    // A user who may read the file, but not the chunk server's files.
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::copy(path_of("mfsfileinfo"), open.path().join("mfsfileinfo")).unwrap();
    let asked = address(&path("of1"));
    let arguments = [OsStr::new("--store"), folder.as_os_str(), OsStr::new(&asked)];
    as_nobody_with(&arguments, &[("PATH", open.path().to_str().unwrap())])
        .fails_with("only root may read the chunk server's files");
    let (file, none, folders) = (File::open(path("of1")).unwrap(), Programs::default(), folders());
    let said = MooseFsSource::new(&file, &none, &folders)
        .unwrap()
        .collect()
        .unwrap_err()
        .to_string();
    assert!(said.contains("mfsfileinfo is not installed"), "{said}");
}

/// Writes of programs wait in the mount, and the chunk server's CRCs wait in its memory.
#[test]
#[ignore = "runs where moosefs_in_a_real_mount starts MooseFS"]
fn guest_what_was_written_just_now_is_told() {
    let path = path("fresh");
    std::fs::write(&path, noise(77, 40 * BLOCK)).unwrap();
    let writer = File::options().write(true).open(&path).unwrap();
    let (file, programs, folders) = (File::open(&path).unwrap(), installed(), folders());
    let source = MooseFsSource::new(&file, &programs, &folders).unwrap();
    let mut before = source.collect().unwrap();
    for round in 0..60 {
        // Without a sync, within the same second, and of the same length.
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
        let (reported, blocks) = compared(&source);
        assert_eq!(blocks, 40, "{round}");
        assert_ne!(reported.stamp(), before.stamp());
        before = reported;
    }
    // The file is not touched any more, and stays unchanged: the master notes the change of the
    // inode up to a second later, which is waited for here.
    let noted = |file: &File| rustix::fs::fstat(file).unwrap().st_ctime;
    let at_first = noted(&file);
    for _ in 0..100 {
        assert!(source.is_unchanged(before.stamp()).unwrap());
        if noted(&file) != at_first {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // A change of its attributes is no change of its content.
    let rights = std::fs::Permissions::from_mode(0o600);
    file.set_permissions(rights).unwrap();
    assert!(source.is_unchanged(before.stamp()).unwrap());
    // The same bytes written again, later.
    let mut same = [0; 100];
    let again = File::options().read(true).write(true).open(&path).unwrap();
    again.read_exact_at(&mut same, 7).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    again.write_all_at(&same, 7).unwrap();
    assert!(!source.is_unchanged(before.stamp()).unwrap());
    let (reported, _) = compared(&source);
    assert!(reported.runs().eq(before.runs()));
    before = reported;
    // A block that rots in the chunk's file: neither the server nor --verify takes it for the
    // original.
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
        // From the mount's memory: the bytes are the original ones.
        Ok(verified) => assert_eq!(verified.blocks, 40),
        Err(error) => assert!(
            matches!(error, VerifyError::Differs { .. } | VerifyError::Source(_)),
            "{error}"
        ),
    }
}

/// A program writes after each of the calls of mfsfileinfo that a description makes.
#[test]
#[ignore = "runs where moosefs_in_a_real_mount starts MooseFS"]
fn guest_file_written_to_meanwhile_is_told_as_of_one_moment() {
    let (path, folders) = (path("meanwhile"), folders());
    let old = noise(1, 40 * BLOCK);
    for call in 0..2 {
        std::fs::write(&path, &old).unwrap();
        let file = File::open(&path).unwrap();
        // A recently written file may be described twice anyway; descriptions are counted below.
        compared(&MooseFsSource::new(&file, &installed(), &folders).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(2100));
        let write = format!(
            "printf changed | dd of='{}' bs=1 seek=500000 conv=notrunc",
            path.display()
        );
        let info = Interrupted::new("mfsfileinfo", call, &write);
        let programs = info.programs();
        let source = MooseFsSource::new(&file, &programs, &folders).unwrap();
        // After either call the time of the last write shows the change, if not the digests; then
        // the file is described as it is now.
        let reported = source.collect().unwrap();
        assert!(info.calls() > 2, "{call}: {} calls", info.calls());
        assert!(std::fs::read(&path).unwrap() != old);
        assert!(source.is_unchanged(reported.stamp()).unwrap(), "{call}");
        assert_eq!(verify(&source, &reported).unwrap().blocks, 40);
    }
}

/// A program writes during the last look at the file, and sets its times back: only the digests
/// show it.
#[test]
#[ignore = "runs where moosefs_in_a_real_mount starts MooseFS"]
fn guest_what_is_written_and_dated_back_meanwhile_is_noticed() {
    let (path, folders) = (path("dated-back"), folders());
    let old = noise(1, 40 * BLOCK);
    std::fs::write(&path, &old).unwrap();
    let file = File::open(&path).unwrap();
    compared(&MooseFsSource::new(&file, &installed(), &folders).unwrap());
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let written = file.metadata().unwrap().mtime();
    let write = format!(
        "printf changed | dd of='{path}' bs=1 seek=500000 conv=notrunc,fsync && touch -d @{written} '{path}'",
        path = path.display()
    );
    let info = Interrupted::before("mfsfileinfo", 1, &write);
    let programs = info.programs();
    let source = MooseFsSource::new(&file, &programs, &folders).unwrap();
    let reported = source.collect().unwrap();
    assert!(info.calls() >= 4, "{} calls", info.calls());
    assert!(std::fs::read(&path).unwrap() != old);
    assert_eq!(file.metadata().unwrap().mtime(), written);
    assert!(source.is_unchanged(reported.stamp()).unwrap());
    assert_eq!(verify(&source, &reported).unwrap().blocks, 40);
}

/// Another machine has mounted the same MooseFS.
#[test]
#[ignore = "runs where moosefs_in_a_real_mount starts MooseFS"]
fn guest_what_other_mounts_write_is_told() {
    let (master, second) = (
        std::env::var("BYTEBACK_MOOSEFS_MASTER").unwrap(),
        Path::new("/mnt/second"),
    );
    std::fs::create_dir(second).unwrap();
    run("mfsmount", &[second.to_str().unwrap(), "-H", &master]);
    let (here, there) = (path("shared"), second.join("shared"));
    std::fs::write(&here, noise(5, 10 * BLOCK)).unwrap();
    let (file, programs, folders) = (File::open(&here).unwrap(), installed(), folders());
    let source = MooseFsSource::new(&file, &programs, &folders).unwrap();
    let mut before = source.collect().unwrap();
    let writer = File::options().read(true).write(true).open(&there).unwrap();
    for round in 0..12 {
        // The length is known at once, even if this mount had the content in memory, which is read
        // here.
        verify(&source, &before).map(drop).or_else(only_changed).unwrap();
        let len = writer.metadata().unwrap().len();
        match round % 3 {
            0 => writer
                .write_all_at(&noise(round + 30, 1000), 3 * BLOCK as u64 + 9)
                .unwrap(),
            1 => writer.write_all_at(&noise(round + 30, BLOCK), len).unwrap(),
            _ => writer.set_len(len - 20_000).unwrap(),
        }
        writer.sync_all().unwrap();
        let len = writer.metadata().unwrap().len();
        assert!(!source.is_unchanged(before.stamp()).unwrap(), "{round}");
        // The time follows later.
        let verified = (0..3).find_map(|_| {
            before = source.collect().unwrap();
            verify(&source, &before)
                .map(Some)
                .or_else(|error| only_changed(error).map(|()| None))
                .unwrap()
        });
        let verified = verified.expect("it changes all the time");
        assert_eq!((before.stamp().len_bytes, verified.bytes), (len, len), "{round}");
    }
    // Another file of the same length takes its place: its chunks are not those of the file that is
    // open here.
    let len = file.metadata().unwrap().len();
    std::fs::write(second.join("other"), noise(99, len as usize)).unwrap();
    std::fs::rename(second.join("other"), &there).unwrap();
    for _ in 0..20 {
        let said = source.collect();
        match &said {
            Ok(reported) => assert!(reported.runs().eq(before.runs()), "the CRCs of another file"),
            Err(error) => assert!(
                matches!(error, SourceError::Missing(what) if what.contains("removed or replaced")),
                "{error}"
            ),
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(source.collect().is_err());
    drop(writer);
    run("umount", &[second.to_str().unwrap()]);
}

fn only_changed(error: VerifyError) -> Result<(), VerifyError> {
    match error {
        VerifyError::Source(SourceError::ChangedMeanwhile) => Ok(()),
        error => Err(error),
    }
}

#[test]
#[ignore = "runs where moosefs_in_a_real_mount starts MooseFS"]
fn guest_syncs_are_right() {
    let (old, new) = versions(32 << 20);
    std::fs::write(path("old"), &old).unwrap();
    std::fs::write(path("new"), &new).unwrap();
    let (programs, folders) = (installed(), folders());
    let [old_file, new_file] = ["old", "new"].map(|name| File::open(path(name)).unwrap());
    let base = MooseFsSource::new(&old_file, &programs, &folders).unwrap();
    let source = MooseFsSource::new(&new_file, &programs, &folders).unwrap();
    let synced = sky::fixed(&base, &source, BLOCK as u32, &new);
    // Three places, the one with the insertion and the bytes behind it up to the next block, and
    // the end.
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
    let (programs, folders) = (installed(), folders());
    let [old_file, new_file] = ["old", "new"].map(|name| File::open(path(name)).unwrap());
    let base = MooseFsSource::new(&old_file, &programs, &folders).unwrap();
    let source = MooseFsSource::new(&new_file, &programs, &folders).unwrap();
    crate::costs::print_row("MooseFS, CRC-32", &base, &source, BLOCK as u32, &new);
}
