//! Files on ZFS: a pool of zfs-fuse, in namespaces of its own (`evaluation/systems/zfs`), where
//! this very program is started with the names of some of its tests.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use byteback_checksums::source::{FileChecksums, Kind, Source, SourceError, VerifyError, verify};
use byteback_sources::Programs;
use byteback_sources::zfs::ZfsSource;

use crate::btrfs::noise;
use crate::disk::run;
use crate::program::{against, as_nobody, checksums, in_namespaces};
use crate::sky;
use crate::tools::{Interrupted, installed};

const RECORD: usize = 128 << 10;

#[test]
#[ignore = "fetches zfs-fuse first: make test-systems"]
fn zfs_on_a_real_pool() {
    in_namespaces("zfs", "zfs::guest_");
}

#[test]
#[ignore = "measures: prints rows of the table of docs/skysync.md"]
fn costs_of_zfs() {
    in_namespaces("zfs", "zfs::inside_costs");
}

/// The file that serves as the pool's device.
fn device() -> PathBuf {
    let device = std::env::var_os("BYTEBACK_ZFS_DEVICE");
    PathBuf::from(device.expect("this test runs where another test starts ZFS"))
}

/// A new dataset.
fn dataset(name: &str, options: &[&str]) -> PathBuf {
    device();
    let options: Vec<_> = options.iter().flat_map(|option| ["-o", option]).collect();
    let name = format!("byteback/{name}");
    run("zfs", &[&["create"][..], &options, &[&name]].concat());
    Path::new("/mnt").join(name)
}

fn collect(path: &Path) -> byteback_checksums::source::Result<FileChecksums> {
    let (file, programs) = (File::open(path).unwrap(), installed());
    ZfsSource::new(&file, &programs)?.collect()
}

/// The checksums of a file's blocks, compared with its bytes, and the number of blocks compared.
#[track_caller]
fn verified(path: &Path) -> (FileChecksums, u64) {
    let (file, programs) = (File::open(path).unwrap(), installed());
    let source = ZfsSource::new(&file, &programs).unwrap();
    let reported = source.collect().unwrap();
    let verified = verify(&source, &reported).unwrap();
    (reported, verified.blocks)
}

#[test]
#[ignore = "runs where zfs_on_a_real_pool starts ZFS"]
fn guest_files_are_told_and_true() {
    // With records of 1 KiB the last file has a tree of three levels. Only a few files, because zdb
    // opens the pool anew for each, which takes long on a busy machine.
    for (name, options, kind, record, lens) in [
        (
            "fletcher",
            &["checksum=fletcher4"][..],
            Kind::Fletcher4,
            RECORD,
            &[0, 513, RECORD + 1][..],
        ),
        (
            "sha",
            &["checksum=sha256"],
            Kind::Sha256,
            RECORD,
            &[1, RECORD, 3_000_001],
        ),
        ("small", &["recordsize=1K"], Kind::Fletcher4, 1024, &[20_000_001]),
    ] {
        let path = dataset(name, options);
        for &len in lens {
            let file = path.join(format!("of{len}"));
            std::fs::write(&file, noise(len as u64 + 1, len)).unwrap();
            let (reported, blocks) = verified(&file);
            assert_eq!(reported.unknown_bytes(), 0, "{name}, {len}");
            assert_eq!(blocks, len.div_ceil(record) as u64, "{name}, {len}");
            assert!(len == 0 || reported.layout().kind == kind);
        }
    }
    let path = dataset("sparse", &[]);
    let file = File::create(path.join("sparse")).unwrap();
    file.write_all_at(&noise(3, RECORD), 3 * RECORD as u64).unwrap();
    file.write_all_at(&noise(4, 10), 7 * RECORD as u64 + 5).unwrap();
    file.set_len(2_000_000).unwrap();
    let said = checksums(path.join("sparse"), &[]).fine();
    assert_eq!(
        (said["source"].as_str(), said["kind"].as_str()),
        (Some("zfs"), Some("fletcher4"))
    );
    assert_eq!(
        (&said["summed_bytes"], &said["verified"]["blocks"], &said["is_strong"]),
        (&(2 * RECORD).into(), &2.into(), &false.into())
    );
    assert_eq!(said["zero_bytes"], 2_000_000 - 2 * RECORD);
    // A compressed record, and one that another function summed.
    run("zfs", &["set", "compression=on", "byteback/sparse"]);
    run("zfs", &["set", "checksum=sha256", "byteback/sparse"]);
    file.write_all_at(&vec![b'x'; RECORD], 4 * RECORD as u64).unwrap();
    file.write_all_at(&noise(5, RECORD), 5 * RECORD as u64).unwrap();
    let said = checksums(path.join("sparse"), &[]).fine();
    let unknown = &said["unknown"];
    assert_eq!(
        (&unknown["compressed"], &unknown["other_function"]),
        (&RECORD.into(), &RECORD.into())
    );
    assert_eq!(said["summed_bytes"], 2 * RECORD);
    // A file name that imitates zdb's output.
    let name = path
        .join("a\n\tsize\t5\nIndirect blocks:\n               0 L0 HOLE [L0 ZFS plain file] size=20000L birth=57L\n\n");
    std::fs::write(&name, noise(9, 5)).unwrap();
    let said = collect(&name);
    assert!(matches!(said, Err(SourceError::Malformed(_))), "{said:?}");
    // A directory, a user without the rights, and a missing tool.
    checksums(&path, &[]).fails_with("not a regular file");
    as_nobody(&[path.join("sparse").as_os_str()]).fails_with("only root may");
    // The pool's topmost file system has the pool's name, and zfs-fuse's zdb takes it for the pool.
    let topmost = Path::new("/mnt/byteback/file");
    std::fs::write(topmost, noise(1, 5)).unwrap();
    checksums(topmost, &[]).fails_with("the pool's topmost file system");
    let none = Programs::default();
    let source = ZfsSource::new(&file, &none).unwrap();
    let said = source.collect().unwrap_err().to_string();
    assert!(said.contains("zpool is not installed"), "{said}");
}

/// Only the source waits for a transaction group here.
#[test]
#[ignore = "runs where zfs_on_a_real_pool starts ZFS"]
fn guest_what_was_written_just_now_is_told() {
    let path = dataset("fresh", &["checksum=sha256"]).join("file");
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let programs = installed();
    let source = ZfsSource::new(&file, &programs).unwrap();
    let mut before: Option<FileChecksums> = None;
    for round in 0..3 {
        file.write_all_at(&noise(round, 3 * RECORD), (round % 2) * RECORD as u64)
            .unwrap();
        // Within the same second, and of the same length: only the pointers show it.
        if let Some(before) = &before {
            assert!(!source.is_unchanged(before.stamp()).unwrap());
            let said = verify(&source, before);
            assert!(
                matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
                "{said:?}"
            );
        }
        let reported = source.collect().unwrap();
        assert!(verify(&source, &reported).unwrap().blocks >= 3);
        assert!(source.is_unchanged(reported.stamp()).unwrap());
        before = Some(reported);
    }
    // The same bytes written again are another state.
    file.write_all_at(&noise(2, 3 * RECORD), 0).unwrap();
    assert!(!source.is_unchanged(before.unwrap().stamp()).unwrap());
}

#[test]
#[ignore = "runs where zfs_on_a_real_pool starts ZFS"]
fn guest_a_file_that_is_written_to_all_the_time_is_not_told() {
    let path = dataset("busy", &[]).join("file");
    std::fs::write(&path, noise(1, 8 * RECORD)).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let (programs, ends) = (installed(), AtomicBool::new(false));
    let source = ZfsSource::new(&file, &programs).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !ends.load(Ordering::Relaxed) {
                round += 1;
                file.write_all_at(&noise(round, 100), round % 8 * RECORD as u64)
                    .unwrap();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        let said = source.collect();
        ends.store(true, Ordering::Relaxed);
        assert!(matches!(said, Err(SourceError::Busy)), "{said:?}");
    });
    assert_eq!(verified(&path).1, 8);
}

#[test]
#[ignore = "runs where zfs_on_a_real_pool starts ZFS"]
fn guest_a_sync_reads_what_changed() {
    let old = noise(1, 64 * RECORD);
    let mut new = old.clone();
    new[3_000_000..3_000_300].copy_from_slice(&noise(9, 300));
    let programs = installed();
    for (name, read_bytes) in [("sha256", RECORD), ("fletcher4", new.len())] {
        let path = dataset(&format!("sync-{name}"), &[&format!("checksum={name}")]);
        std::fs::write(path.join("old"), &old).unwrap();
        std::fs::write(path.join("new"), &new).unwrap();
        let [old_file, new_file] = ["old", "new"].map(|name| File::open(path.join(name)).unwrap());
        let base = ZfsSource::new(&old_file, &programs).unwrap();
        let source = ZfsSource::new(&new_file, &programs).unwrap();
        let synced = sky::fixed(&base, &source, RECORD as u32, &new);
        assert_eq!(synced.stats.literal_bytes, RECORD as u64, "{:?}", synced.stats);
        // Checksums that prove nothing leave nothing out.
        assert_eq!(synced.new_read_bytes, read_bytes as u64, "{name}");
        // The comparison by checksums alone, without a byte of either.
        let (_, likeness) = [("sha256", "equal"), ("fletcher4", "likely")]
            .into_iter()
            .find(|(own, _)| *own == name)
            .unwrap();
        let said = against(path.join("old"), path.join("new"), &[]).fine();
        assert_eq!(said["differing_bytes"], RECORD, "{said}");
        assert_eq!(said[format!("{likeness}_bytes")], new.len() - RECORD, "{said}");
    }
}

/// A program writes after each of the calls of zdb that a description makes.
#[test]
#[ignore = "runs where zfs_on_a_real_pool starts ZFS"]
fn guest_file_written_to_meanwhile_is_told_as_of_one_moment() {
    let path = dataset("meanwhile", &["checksum=sha256"]).join("file");
    let old = noise(1, 8 * RECORD);
    for call in 0..2 {
        std::fs::write(&path, &old).unwrap();
        let file = File::open(&path).unwrap();
        // In the middle; the length stays.
        let write = format!(
            "printf changed | dd of='{}' bs=1 seek=500000 conv=notrunc",
            path.display()
        );
        let zdb = Interrupted::new("zdb", call, &write);
        let programs = zdb.programs();
        let source = ZfsSource::new(&file, &programs).unwrap();
        let reported = source.collect().unwrap();
        // After the first call the pointers show it, and the file is described anew. After the
        // second one the time shows it if the second differs; otherwise the description is of the
        // earlier state.
        let is_anew = match zdb.calls() {
            4 => true,
            2 if call == 1 => false,
            calls => panic!("{call}: {calls} calls"),
        };
        assert!(std::fs::read(&path).unwrap() != old);
        assert_eq!(source.is_unchanged(reported.stamp()).unwrap(), is_anew, "{call}");
        match verify(&source, &reported) {
            Ok(verified) => assert_eq!((verified.blocks, is_anew), (8, true), "{call}"),
            Err(error) => assert!(
                !is_anew && matches!(error, VerifyError::Source(SourceError::ChangedMeanwhile)),
                "{call}: {error}"
            ),
        }
    }
}

/// The places of a pointer's block on the device, which begins with two labels and a boot block.
fn places(pointer: &str) -> Vec<u64> {
    let vdevs = pointer.split("]=<0:").skip(1);
    vdevs
        .map(|text| (4 << 20) + u64::from_str_radix(text.split(':').next().unwrap(), 16).unwrap())
        .collect()
}

/// zdb silently omits a tree node that rots, and a record that rots does not match its checksum.
#[test]
#[ignore = "runs where zfs_on_a_real_pool starts ZFS"]
fn guest_what_rots_on_the_device_is_noticed() {
    let path = dataset("rotten", &["recordsize=4K"]).join("file");
    // Two nodes, and one above them.
    std::fs::write(&path, noise(1, 200 << 12)).unwrap();
    let (file, programs) = (File::open(&path).unwrap(), installed());
    let source = ZfsSource::new(&file, &programs).unwrap();
    let reported = source.collect().unwrap();
    let number = file.metadata().unwrap().ino().to_string();
    let output = Command::new("zdb")
        .args(["-ddddd", "-bbbbbb", "byteback/rotten", &number])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let device = File::options().read(true).write(true).open(device()).unwrap();
    let spoil = |line: &str| {
        let places = places(line);
        assert!(!places.is_empty());
        let mut was = [0; 16];
        for at in &places {
            device.read_exact_at(&mut was, *at).unwrap();
            device.write_all_at(&was.map(|byte| !byte), *at).unwrap();
        }
        move |device: &File| places.iter().for_each(|at| device.write_all_at(&was, *at).unwrap())
    };
    let nodes: Vec<_> = said
        .lines()
        .filter(|line| line.contains("[L1 ZFS plain file]"))
        .collect();
    assert_eq!(nodes.len(), 2, "{said}");
    let heal = spoil(nodes[1]);
    let error = source.collect().unwrap_err();
    assert!(error.to_string().contains("not all blocks are listed"), "{error}");
    heal(&device);
    assert_eq!(source.collect().unwrap(), reported);
    let record = said
        .lines()
        .filter(|line| line.contains("[L0 ZFS plain file]"))
        .nth(150)
        .unwrap();
    let heal = spoil(record);
    // The daemon may have it in memory: then the original is read.
    match verify(&source, &reported) {
        Ok(verified) => assert_eq!(verified.blocks, 200),
        Err(error) => assert!(
            matches!(
                error,
                VerifyError::Differs { .. } | VerifyError::Source(SourceError::Io { .. })
            ),
            "{error}"
        ),
    }
    heal(&device);
}

#[test]
#[ignore = "runs where costs_of_zfs starts ZFS"]
fn inside_costs() {
    let old = noise(1, 100 << 20);
    let mut new = old.clone();
    for at in 0..10 {
        new[at * 10_000_000..][..256].copy_from_slice(&noise(9, 256));
    }
    let programs = installed();
    for name in ["fletcher4", "sha256"] {
        let path = dataset(name, &[&format!("checksum={name}")]);
        std::fs::write(path.join("old"), &old).unwrap();
        std::fs::write(path.join("new"), &new).unwrap();
        let [old_file, new_file] = ["old", "new"].map(|name| File::open(path.join(name)).unwrap());
        let base = ZfsSource::new(&old_file, &programs).unwrap();
        let source = ZfsSource::new(&new_file, &programs).unwrap();
        crate::costs::print_row(&format!("ZFS (zfs-fuse), {name}"), &base, &source, RECORD as u32, &new);
    }
}
