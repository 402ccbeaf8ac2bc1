//! Files that are sealed by fs-verity, on ext4, F2FS and btrfs, with Debian's kernel in a virtual
//! machine.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use byteback_checksums::source::{FileChecksums, Kind, Run, Source, SourceError, VerifyError, verify};
use byteback_host::random::SplitMix64;
use byteback_sources::fsverity::{VeritySource, compare, tree};

use crate::btrfs::noise;
use crate::disk::{run, text};
use crate::machine::{Machine, find, must_be_inside};
use crate::program::{against, as_nobody, checksums};
use crate::sky;

/// The file systems and their disks in the virtual machine.
const FILESYSTEMS: [(&str, &str); 3] = [("ext4", "/dev/vdb"), ("f2fs", "/dev/vdc"), ("btrfs", "/dev/vdd")];

fn machine() -> Machine {
    Machine::new(&["ext4", "f2fs", "btrfs", "sha512_generic"])
        .disk(512, &["mkfs.ext4", "-q", "-O", "verity"])
        .disk(512, &["mkfs.f2fs", "-q", "-O", "extra_attr,verity"])
        .disk(512, &["mkfs.btrfs", "-q"])
}

#[test]
#[ignore = "starts a virtual machine: make test-systems"]
fn machine_fs_verity() {
    machine().run("fsverity::guest_");
}

#[test]
#[ignore = "measures: prints rows of the table of docs/skysync.md"]
fn costs_of_fs_verity() {
    machine().run("fsverity::inside_costs");
}

/// A file system, mounted as long as this lives.
struct Mounted(PathBuf);

impl Mounted {
    fn new((kind, device): (&str, &str)) -> Self {
        let path = Path::new("/mnt").join(kind);
        std::fs::create_dir_all(&path).unwrap();
        run("mount", &["-t", kind, device, text(&path)]);
        Self(path)
    }

    fn put(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A new file that is sealed.
    fn seal(&self, name: &str, content: &[u8], kind: Kind, salt: &[u8]) -> PathBuf {
        let path = self.put(name, content);
        seal(&path, kind, salt);
        path
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Seals a file with `FS_IOC_ENABLE_VERITY`.
fn seal(path: &Path, kind: Kind, salt: &[u8]) {
    #[repr(C)]
    #[derive(Default)]
    struct Enable {
        version: u32,
        algorithm: u32,
        block_len: u32,
        salt_len: u32,
        salt: u64,
        signature_len: u32,
        reserved: u32,
        signature: u64,
        reserved_too: [u64; 11],
    }
    let enable = Enable {
        version: 1,
        algorithm: if kind == Kind::Sha256 { 1 } else { 2 },
        block_len: 4096,
        salt_len: salt.len() as u32,
        salt: salt.as_ptr() as u64,
        ..Enable::default()
    };
    let file = File::open(path).unwrap();
    // SAFETY: the call reads `enable`, which has the length that its number says, and the salt that
    // it points to.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), 0x4080_6685, &raw const enable) };
    assert_eq!(done, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
}

fn sums(reported: &FileChecksums) -> Vec<u8> {
    let mut all = Vec::new();
    for run in reported.runs() {
        match run {
            Run::Sums { sums, .. } => all.extend_from_slice(sums),
            run => panic!("{run:?}"),
        }
    }
    all
}

#[test]
#[ignore = "runs in the machine that machine_fs_verity starts"]
fn guest_what_is_sealed_is_told_and_true() {
    must_be_inside();
    for filesystem in FILESYSTEMS {
        let disk = Mounted::new(filesystem);
        for (kind, salt) in [
            (Kind::Sha256, &b""[..]),
            (Kind::Sha256, b"eight by"),
            (Kind::Sha512, b""),
            (Kind::Sha512, b"thirty-two bytes are the longest"),
        ] {
            for len in [0, 1, 4096, 4097, 128 << 12, (128 << 12) + 1, 3_000_001] {
                let path = disk.seal("file", &noise(len as u64 + 1, len), kind, salt);
                let file = File::open(&path).unwrap();
                let source = VeritySource::new(&file).unwrap();
                let reported = source.collect().unwrap();
                assert_eq!((reported.layout().kind, reported.layout().block_len), (kind, 4096));
                let verified = verify(&source, &reported).unwrap();
                assert_eq!(
                    (verified.blocks, verified.bytes),
                    (len.div_ceil(4096) as u64, len as u64)
                );
                assert!(source.is_unchanged(reported.stamp()).unwrap());
                // Times do not count here.
                file.set_modified(std::time::UNIX_EPOCH).unwrap();
                assert!(source.is_unchanged(reported.stamp()).unwrap());
            }
        }
        let path = disk.put("sparse", b"begins");
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"ends", 999_990).unwrap();
        drop(file);
        seal(&path, Kind::Sha256, b"");
        let said = checksums(&path, &[]).fine();
        assert_eq!(
            (said["source"].as_str(), said["kind"].as_str()),
            (Some("fs-verity"), Some("sha256"))
        );
        assert_eq!(
            (
                &said["summed_bytes"],
                &said["verified"]["blocks"],
                &said["checksum_bytes"]
            ),
            (&999_994.into(), &245.into(), &(245 * 32).into())
        );
    }
}

#[test]
#[ignore = "runs in the machine that machine_fs_verity starts"]
fn guest_who_may_read_a_sealed_file_is_told_its_hashes() {
    must_be_inside();
    for filesystem in FILESYSTEMS {
        let disk = Mounted::new(filesystem);
        let path = disk.seal("file", &noise(1, 100_000), Kind::Sha256, b"");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let said = as_nobody(&[OsStr::new("--verify"), path.as_os_str()]);
        match filesystem.0 {
            "btrfs" => said.fails_with("only to root"),
            _ => assert_eq!(said.fine()["verified"]["bytes"], 100_000),
        }
        checksums(disk.put("open", b"nobody sealed it"), &[]).fails_with(match filesystem.0 {
            // btrfs has checksums besides, but the content of a short file lies in the metadata.
            "btrfs" => continue,
            _ => "not sealed by fs-verity; the file's device is not a dm-verity device; the file is not on ZFS; the file is not on btrfs",
        });
    }
    checksums("/proc/self/status", &[]).fails_with("is not on ext4, F2FS or btrfs");
}

/// A sealed file stays the same; a file that takes its name is another one.
#[test]
#[ignore = "runs in the machine that machine_fs_verity starts"]
fn guest_a_file_that_takes_the_name_is_another_one() {
    must_be_inside();
    for filesystem in FILESYSTEMS {
        let disk = Mounted::new(filesystem);
        let content = noise(1, 100_000);
        let path = disk.seal("file", &content, Kind::Sha256, b"");
        let refused = File::options().write(true).open(&path).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let file = File::open(&path).unwrap();
        let source = VeritySource::new(&file).unwrap();
        let reported = source.collect().unwrap();
        let other = disk.seal("other", &noise(2, 100_000), Kind::Sha256, b"");
        std::fs::rename(&other, &path).unwrap();
        // The open file is unchanged.
        assert!(source.is_unchanged(reported.stamp()).unwrap());
        assert_eq!(verify(&source, &reported).unwrap().blocks, 25);
        let file = File::open(&path).unwrap();
        let source = VeritySource::new(&file).unwrap();
        assert!(!source.is_unchanged(reported.stamp()).unwrap());
        let said = verify(&source, &reported);
        assert!(
            matches!(said, Err(VerifyError::Source(SourceError::ChangedMeanwhile))),
            "{said:?}"
        );
        // The same content in another file has the same checksums.
        let again = disk.seal("again", &content, Kind::Sha256, b"");
        let file = File::open(&again).unwrap();
        assert_eq!(
            sums(&VeritySource::new(&file).unwrap().collect().unwrap()),
            sums(&reported)
        );
    }
}

/// With SHA-256 without a salt, SkySync-F reads only the changed block, between any two of the file
/// systems.
#[test]
#[ignore = "runs in the machine that machine_fs_verity starts"]
fn guest_a_sync_of_sealed_files_reads_what_changed() {
    must_be_inside();
    let disks = FILESYSTEMS.map(Mounted::new);
    let old = noise(1, 4 << 20);
    let mut new = old.clone();
    new[3_000_000..3_000_300].copy_from_slice(&noise(9, 300));
    new.truncate(new.len() - 1000);
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let base_path = disks[from].seal("old", &old, Kind::Sha256, b"");
        let path = disks[to].seal("new", &new, Kind::Sha256, b"");
        let (base_file, file) = (File::open(base_path).unwrap(), File::open(path).unwrap());
        let (base, source) = (
            VeritySource::new(&base_file).unwrap(),
            VeritySource::new(&file).unwrap(),
        );
        let synced = sky::fixed(&base, &source, 4096, &new);
        // The block with the change, and the last one, which is shorter now.
        assert_eq!(synced.stats.literal_bytes, 4096 + 3096, "{:?}", synced.stats);
        assert!(synced.new_read_bytes <= 3 * 4096, "{}", synced.new_read_bytes);
    }
}

/// Trees of three levels: equal parts are not read, neither of the files nor of the trees.
#[test]
#[ignore = "runs in the machine that machine_fs_verity starts"]
fn guest_trees_are_compared_from_the_root_down() {
    must_be_inside();
    let mut random = SplitMix64::new(7);
    for (filesystem, kind, salt) in [
        (FILESYSTEMS[0], Kind::Sha256, &b"some salt"[..]),
        (FILESYSTEMS[1], Kind::Sha512, b""),
        (FILESYSTEMS[2], Kind::Sha256, b""),
    ] {
        let disk = Mounted::new(filesystem);
        let len = match kind {
            Kind::Sha512 => (64 * 64 + 70) << 12,
            _ => (128 * 128 + 200) << 12,
        };
        let old = noise(1, len);
        let mut new = old.clone();
        let mut places: Vec<_> = (0..3).map(|_| random.below(len as u64) as usize).collect();
        places.iter().for_each(|&at| new[at] ^= 1);
        new.extend(noise(2, 5000));
        let (old_path, new_path) = (disk.seal("old", &old, kind, salt), disk.seal("new", &new, kind, salt));
        let (old_file, new_file) = (File::open(old_path).unwrap(), File::open(new_path).unwrap());
        let (mut old_tree, mut new_tree) = (tree(&old_file).unwrap(), tree(&new_file).unwrap());
        let differing = compare(&mut old_tree, &mut new_tree).unwrap();
        places.iter_mut().for_each(|at| *at /= 4096);
        places.sort_unstable();
        places.dedup();
        let found: Vec<_> = differing
            .iter()
            .map(|range| (range.start(), range.len_bytes()))
            .collect();
        let mut expected: Vec<_> = places.iter().map(|at| (*at as u64 * 4096, 4096)).collect();
        expected.push((len as u64, 5000));
        assert_eq!(found, expected, "{}", filesystem.0);
        // A root, and two nodes at most for each change and for the end.
        assert!(old_tree.nodes_read() <= 1 + 4 * 2, "{}", old_tree.nodes_read());
        assert!(new_tree.nodes_read() <= 1 + 4 * 2, "{}", new_tree.nodes_read());
        let (base, source) = (
            VeritySource::new(&old_file).unwrap(),
            VeritySource::new(&new_file).unwrap(),
        );
        // The command works in the same way.
        let said = against(disk.0.join("old"), disk.0.join("new"), &[]).fine();
        let read_bytes = (old_tree.read_bytes() + new_tree.read_bytes()).into();
        assert_eq!(
            (&said["checksum_bytes"], &said["differing_bytes"]),
            (&read_bytes, &differing.total_len_bytes().into())
        );
        let synced = sky::in_place(&base, &source, &differing, &new);
        assert_eq!(synced.new_read_bytes, places.len() as u64 * 4096 + 5000);
        assert_eq!(synced.base_read_bytes, 0);
        drop((old_file, new_file));
        for name in ["old", "new"] {
            std::fs::remove_file(disk.0.join(name)).unwrap();
        }
    }
}

/// A hash that rots on the disk, and a byte of the file: nothing wrong is reported.
#[test]
#[ignore = "runs in the machine that machine_fs_verity starts"]
fn guest_what_rots_on_the_disk_is_noticed() {
    must_be_inside();
    for filesystem in FILESYSTEMS {
        let content = noise(5, 1_000_000);
        let (path, expected) = {
            let disk = Mounted::new(filesystem);
            let path = disk.seal("file", &content, Kind::Sha256, b"a salt");
            let file = File::open(&path).unwrap();
            (path, sums(&VeritySource::new(&file).unwrap().collect().unwrap()))
        };
        let spoil = |wanted: &[u8]| {
            let places = find(filesystem.1, wanted);
            assert!(!places.is_empty(), "it is not on {}", filesystem.0);
            let disk = File::options().read(true).write(true).open(filesystem.1).unwrap();
            for at in places {
                disk.write_all_at(&[!wanted[0]], at).unwrap();
            }
            disk.sync_all().unwrap();
        };
        // btrfs keeps the tree in its metadata, which has checksums of its own: rotten bytes there
        // are never read.
        if filesystem.0 != "btrfs" {
            let leaf = &expected[3200..3232];
            spoil(leaf);
            {
                let _disk = Mounted::new(filesystem);
                let file = File::open(&path).unwrap();
                let reported = VeritySource::new(&file).unwrap().collect();
                assert!(
                    matches!(reported, Err(SourceError::Malformed(_))),
                    "{}: {reported:?}",
                    filesystem.0
                );
            }
            let rotten = [&[!leaf[0]], &leaf[1..]].concat();
            spoil(&rotten);
        }
        // The tree is sound again, the content is not: the checksums are those of the sealed
        // content, and the present bytes are not returned.
        spoil(&content[500_000..500_064]);
        let _disk = Mounted::new(filesystem);
        let file = File::open(&path).unwrap();
        let source = VeritySource::new(&file).unwrap();
        let reported = source.collect().unwrap();
        assert_eq!(sums(&reported), expected);
        let said = verify(&source, &reported);
        assert!(
            matches!(said, Err(VerifyError::Source(SourceError::Io { .. }))),
            "{said:?}"
        );
    }
}

#[test]
#[ignore = "runs in the machine that costs_of_fs_verity starts"]
fn inside_costs() {
    must_be_inside();
    for filesystem in FILESYSTEMS {
        for (kind, name) in [(Kind::Sha256, "SHA-256"), (Kind::Sha512, "SHA-512")] {
            let disk = Mounted::new(filesystem);
            let old = noise(1, 25 << 20);
            let mut new = old.clone();
            for at in 0..10 {
                new[at * 2_500_000..][..256].copy_from_slice(&noise(9, 256));
            }
            let (base_path, path) = (disk.seal("old", &old, kind, b""), disk.seal("new", &new, kind, b""));
            let (base_file, file) = (File::open(base_path).unwrap(), File::open(path).unwrap());
            let (base, source) = (
                VeritySource::new(&base_file).unwrap(),
                VeritySource::new(&file).unwrap(),
            );
            crate::costs::print_row(
                &format!("fs-verity on {}, {name}", filesystem.0),
                &base,
                &source,
                4096,
                &new,
            );
        }
    }
}
