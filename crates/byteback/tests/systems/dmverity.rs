//! ext4 on a device that the kernel verifies (dm-verity), with Debian's kernel in a virtual
//! machine.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use byteback_checksums::source::{FileChecksums, Run, Source, SourceError, VerifyError, verify};
use byteback_sources::dmverity::DmVeritySource;

use crate::btrfs::noise;
use crate::disk::{run, text};
use crate::machine::{Machine, find, must_be_inside};
use crate::program::{as_nobody, checksums};
use crate::sky;

const DATA: &str = "/dev/vdb";
const HASHES: &str = "/dev/vdc";

fn machine() -> Machine {
    Machine::new(&["ext4", "dm-verity", "sha512_generic"])
        .disk(80, &["mkfs.ext4", "-q", "-b", "4096"])
        .disk(16, &[])
        .program("/usr/sbin/veritysetup")
}

#[test]
#[ignore = "starts a virtual machine: make test-systems"]
fn machine_dm_verity() {
    machine().run("dmverity::guest_");
}

#[test]
#[ignore = "measures: prints rows of the table of docs/skysync.md"]
fn costs_of_dm_verity() {
    machine().run("dmverity::inside_costs");
}

fn veritysetup(arguments: &[&str]) -> String {
    let output = Command::new("/usr/sbin/veritysetup")
        .args(arguments)
        // The machine has no udev that would make names of devices.
        .env("DM_DISABLE_UDEV", "1")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "veritysetup {arguments:?}: {said}{errors}");
    said
}

fn mount(device: &str, options: &str) -> PathBuf {
    let path = Path::new("/mnt/device");
    std::fs::create_dir_all(path).unwrap();
    run("mount", &["-t", "ext4", "-o", options, device, text(path)]);
    path.to_owned()
}

/// Writes to the device while it is not verified.
fn write(contents: &[(&str, &[u8])]) {
    let path = mount(DATA, "rw");
    for (name, content) in contents {
        std::fs::write(path.join(name), content).unwrap();
    }
    run("umount", &[text(&path)]);
}

/// Hashes the device; returns the root hash.
fn format(options: &[&str]) -> String {
    let said = veritysetup(&[&["format", DATA, HASHES][..], options].concat());
    let root = said.lines().find_map(|line| line.strip_prefix("Root hash:"));
    root.unwrap().trim().to_owned()
}

/// The device, verified and mounted as long as this lives.
struct Verified(PathBuf);

impl Verified {
    fn open(root: &str, options: &[&str]) -> Self {
        veritysetup(&[&["open", DATA, "sealed", HASHES, root][..], options].concat());
        Self(mount("/dev/mapper/sealed", "ro"))
    }
}

impl Drop for Verified {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
        veritysetup(&["close", "sealed"]);
    }
}

fn sums(reported: &FileChecksums) -> Vec<u8> {
    reported
        .runs()
        .flat_map(|run| match run {
            Run::Sums { sums, .. } => sums.to_vec(),
            _ => Vec::new(),
        })
        .collect()
}

const WAYS: [&[&str]; 4] = [
    &["--hash=sha256", "--salt=-"],
    &["--hash=sha256", "--salt=aabbccdd"],
    &["--hash=sha512", "--salt=00112233445566778899"],
    &["--hash=sha1", "--salt=-", "--data-block-size=1024"],
];

#[test]
#[ignore = "runs in the machine that machine_dm_verity starts"]
fn guest_files_on_a_verified_device_are_told_and_true() {
    must_be_inside();
    let lengths = [0, 1, 4096, 4097, 600_000, 3_000_001];
    for len in lengths {
        write(&[(&format!("of{len}"), &noise(len as u64 + 1, len))]);
    }
    let path = mount(DATA, "rw");
    let file = File::create(path.join("sparse")).unwrap();
    file.write_all_at(&noise(3, 8192), 81_920).unwrap();
    file.set_len(1_000_000).unwrap();
    drop(file);
    // Reads are not verified here.
    checksums(path.join("of4096"), &[]).fails_with("not a dm-verity device");
    run("umount", &[text(&path)]);
    for way in WAYS {
        let root = format(way);
        let disk = Verified::open(&root, &[]);
        for len in lengths {
            let file = File::open(disk.0.join(format!("of{len}"))).unwrap();
            let source = DmVeritySource::new(&file).unwrap();
            let reported = source.collect().unwrap();
            let block_len = u64::from(reported.layout().block_len);
            let verified = verify(&source, &reported).unwrap();
            assert_eq!(verified.blocks, len as u64 / block_len, "{way:?}, {len}");
            assert_eq!(reported.unknown_bytes(), len as u64 % block_len);
            assert!(source.is_unchanged(reported.stamp()).unwrap());
        }
        let said = checksums(disk.0.join("sparse"), &[]).fine();
        assert_eq!(said["source"], "dm-verity");
        assert_eq!(
            (&said["summed_bytes"], &said["zero_bytes"]),
            (&8192.into(), &991_808.into())
        );
        as_nobody(&[disk.0.join("sparse").as_os_str()]).fails_with("only to root");
    }
}

#[test]
#[ignore = "runs in the machine that machine_dm_verity starts"]
fn guest_sync_on_a_verified_device_reads_only_what_changed() {
    must_be_inside();
    let old = noise(1, 4 << 20);
    let mut new = old.clone();
    new[3_000_000..3_000_300].copy_from_slice(&noise(9, 300));
    write(&[("old", &old), ("new", &new)]);
    let disk = Verified::open(&format(WAYS[0]), &[]);
    let [old_file, new_file] = ["old", "new"].map(|name| File::open(disk.0.join(name)).unwrap());
    let (base, source) = (
        DmVeritySource::new(&old_file).unwrap(),
        DmVeritySource::new(&new_file).unwrap(),
    );
    let synced = sky::fixed(&base, &source, 4096, &new);
    assert_eq!(
        (synced.stats.literal_bytes, synced.new_read_bytes),
        (4096, 4096),
        "{:?}",
        synced.stats
    );
}

/// A hash that rots, a block of the file that rots, and a device through which that can be read.
#[test]
#[ignore = "runs in the machine that machine_dm_verity starts"]
fn guest_what_rots_on_the_devices_is_noticed() {
    must_be_inside();
    let content = noise(5, 1_000_000);
    write(&[("file", &content)]);
    let root = format(WAYS[1]);
    let expected = {
        let disk = Verified::open(&root, &[]);
        let file = File::open(disk.0.join("file")).unwrap();
        sums(&DmVeritySource::new(&file).unwrap().collect().unwrap())
    };
    let spoil = |device: &str, wanted: &[u8]| {
        let places = find(device, wanted);
        assert!(!places.is_empty(), "it is not on {device}");
        let disk = File::options().write(true).open(device).unwrap();
        for at in places {
            disk.write_all_at(&[!wanted[0]], at).unwrap();
        }
        disk.sync_all().unwrap();
        [&[!wanted[0]], &wanted[1..]].concat()
    };
    let rotten = spoil(HASHES, &expected[3200..3232]);
    {
        let disk = Verified::open(&root, &[]);
        let file = File::open(disk.0.join("file")).unwrap();
        let reported = DmVeritySource::new(&file).unwrap().collect();
        assert!(matches!(reported, Err(SourceError::Malformed(_))), "{reported:?}");
    }
    spoil(HASHES, &rotten);
    spoil(DATA, &content[500_000..500_064]);
    {
        let disk = Verified::open(&root, &[]);
        let file = File::open(disk.0.join("file")).unwrap();
        let source = DmVeritySource::new(&file).unwrap();
        let reported = source.collect().unwrap();
        assert_eq!(sums(&reported), expected);
        let said = verify(&source, &reported);
        assert!(
            matches!(said, Err(VerifyError::Source(SourceError::Io { .. }))),
            "{said:?}"
        );
    }
    for option in ["--ignore-corruption", "--check-at-most-once"] {
        let disk = Verified::open(&root, &[option]);
        checksums(disk.0.join("file"), &[]).fails_with("that allows damaged blocks to be read");
    }
}

/// A device that takes the place of another one, with the same names on it.
#[test]
#[ignore = "runs in the machine that machine_dm_verity starts"]
fn guest_another_device_is_not_what_was_described() {
    must_be_inside();
    write(&[("file", &noise(5, 100_000))]);
    let stamp = {
        let disk = Verified::open(&format(WAYS[0]), &[]);
        let file = File::open(disk.0.join("file")).unwrap();
        *DmVeritySource::new(&file).unwrap().collect().unwrap().stamp()
    };
    // In place, so that nothing but the content tells the two apart.
    let places = find(DATA, &noise(5, 100_000)[8192..8256]);
    let disk = File::options().write(true).open(DATA).unwrap();
    places.iter().for_each(|&at| disk.write_all_at(b"!", at).unwrap());
    disk.sync_all().unwrap();
    drop(disk);
    let disk = Verified::open(&format(WAYS[0]), &[]);
    let file = File::open(disk.0.join("file")).unwrap();
    let source = DmVeritySource::new(&file).unwrap();
    assert!(!source.is_unchanged(&stamp).unwrap());
    assert_eq!(verify(&source, &source.collect().unwrap()).unwrap().blocks, 24);
}

#[test]
#[ignore = "runs in the machine that costs_of_dm_verity starts"]
fn inside_costs() {
    must_be_inside();
    let old = noise(1, 25 << 20);
    let mut new = old.clone();
    for at in 0..10 {
        new[at * 2_500_000..][..256].copy_from_slice(&noise(9, 256));
    }
    write(&[("old", &old), ("new", &new)]);
    let disk = Verified::open(&format(WAYS[0]), &[]);
    let [old_file, new_file] = ["old", "new"].map(|name| File::open(disk.0.join(name)).unwrap());
    let (base, source) = (
        DmVeritySource::new(&old_file).unwrap(),
        DmVeritySource::new(&new_file).unwrap(),
    );
    crate::costs::print_row("dm-verity with ext4, SHA-256", &base, &source, 4096, &new);
}
