//! Bytes that change although no program wrote them: on a file system in an image, whose blocks are
//! changed below it.

mod healing;

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use byteback_control::{
    ChangesCursor, DamagedFile, ErrorKind, LiveContent, LiveGroup, LiveTree, ServiceError, TreeService, Work,
};
use byteback_daemon::ChecksumOptions;
use byteback_daemon::integrity::scrub::ScrubOptions;
use byteback_host::random::SplitMix64;
use byteback_model::{NodeId, NodeKind};
use byteback_mount::CacheMode;
use rustix::fs::{Advice, CWD, FallocateFlags, Mode, OFlags, fadvise, fallocate, openat};

use crate::btrfs_disk::{run, text};
use crate::fixture::{Fixture, Served, until};

const BLOCK: u64 = 4096;

/// Reads of programs are compared, and the disk all the time.
pub(crate) fn watchful() -> ChecksumOptions {
    ChecksumOptions {
        verify_reads: true,
        scrub: Some(ScrubOptions {
            bytes_per_s: 1 << 30,
            rest: Duration::from_millis(10),
        }),
    }
}

/// An ext4 in an image file, mounted as long as this lives.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("byteback-rot-")
            .tempdir_in("/var/tmp")
            .unwrap();
        let disk = Self { dir };
        File::create(disk.image()).unwrap().set_len(64 << 20).unwrap();
        run("mkfs.ext4", &["-q", "-b", "4096", "-I", "256", text(&disk.image())]);
        fs::create_dir(disk.path()).unwrap();
        run("mount", &["-o", "loop", text(&disk.image()), text(&disk.path())]);
        disk
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// Changes a bit on the disk at an offset of a file, and drops it from all memory.
    fn flip(&self, below: &OwnedFd, name: &str, at: u64) {
        let flags = OFlags::RDONLY | OFlags::NOATIME;
        let file = File::from(openat(below, name, flags, Mode::empty()).unwrap());
        file.sync_all().unwrap();
        let mut block = i32::try_from(at / BLOCK).unwrap();
        const FIBMAP: libc::c_ulong = 1;
        // SAFETY: the call reads and writes one int, which lives while it lasts.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), FIBMAP, std::ptr::from_mut(&mut block)) };
        assert!(
            done == 0 && block > 0,
            "block {} of {name} has no place on the disk",
            at / BLOCK
        );
        let image = File::options().read(true).write(true).open(self.image()).unwrap();
        let place = u64::try_from(block).unwrap() * BLOCK + at % BLOCK;
        let mut byte = [0];
        image.read_exact_at(&mut byte, place).unwrap();
        image.write_all_at(&[byte[0] ^ 0x10], place).unwrap();
        forget_pages(&file);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.path())
            .stderr(Stdio::null())
            .status();
    }
}

fn forget_pages(file: &File) {
    fadvise(file, 0, None, Advice::DontNeed).unwrap();
}

/// The directory below a mount that is about to be made.
fn below(fixture: &Fixture) -> OwnedFd {
    openat(CWD, fixture.tree(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

fn damaged(fixture: &Fixture) -> Vec<DamagedFile> {
    fixture.client().status().unwrap().damaged
}

/// Waits until a later change of a file would give it other times: checksums of a file that was
/// changed just before the end are not kept.
fn until_it_has_other_times(path: &Path) {
    until("a later change would have other times", || {
        let changed = fs::metadata(path).unwrap().modified().unwrap();
        changed.elapsed().is_ok_and(|age| age > Duration::from_millis(100))
    });
}

/// Reads all of a file through the mount, past the kernel's memory.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    forget_pages(&file);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The bytes that a backup reads of the file at a path.
fn read_to_send(fixture: &Fixture, name: &str) -> Result<Vec<u8>, String> {
    let client = fixture.client();
    let cut = client.cut(&byteback_control::CutRequest {
        anonymous: true,
        everything: true,
        ..byteback_control::CutRequest::of("")
    });
    let cut = cut.unwrap().cut;
    let node = client.find(cut, &name.into()).unwrap().unwrap();
    let mut bytes = Vec::new();
    let read = client.peek(cut, node, &[(0, 1 << 30)], &mut |piece| {
        match piece {
            byteback_control::Piece::Data { bytes: data, .. } => bytes.extend_from_slice(data),
            byteback_control::Piece::Hole(range) => bytes.resize(bytes.len() + range.len_bytes() as usize, 0),
        }
        Ok(())
    });
    client.finish(cut, &byteback_control::Outcome::Abandoned).unwrap();
    read.map(|_| bytes).map_err(|error| error.to_string())
}

/// The history of a file before it rots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    Written,
    InPieces,
    Mapped,
    CutOffAndLengthened,
    Punched,
    Renamed,
    Linked,
    Restarted,
    Learned,
}

fn make(fixture: &mut Fixture, history: History, random: &mut SplitMix64) -> (String, Vec<u8>) {
    let path = fixture.tree().join("file");
    let mut content = random.bytes(5 * BLOCK as usize + 100);
    if history != History::Learned {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        let step = if history == History::InPieces {
            777
        } else {
            content.len()
        };
        for (number, piece) in content.chunks(step).enumerate() {
            file.write_all_at(piece, (number * step) as u64).unwrap();
        }
        match history {
            History::Mapped => {
                // SAFETY: nobody else has the mapping, and it is gone before the file is cut off.
                unsafe {
                    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
                    let protection = ProtFlags::READ | ProtFlags::WRITE;
                    let len = content.len();
                    let map = mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0).unwrap();
                    let bytes = std::slice::from_raw_parts_mut(map.cast::<u8>(), len);
                    for at in [17, 5000, 9000, len - 1] {
                        bytes[at] ^= 0x55;
                        content[at] ^= 0x55;
                    }
                    munmap(map, len).unwrap();
                }
            }
            History::CutOffAndLengthened => {
                file.set_len(3 * BLOCK + 7).unwrap();
                file.write_all_at(b"the end", 4 * BLOCK + 50).unwrap();
                content.truncate(3 * BLOCK as usize + 7);
                content.resize(4 * BLOCK as usize + 50, 0);
                content.extend(b"the end");
            }
            History::Punched => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, mode, 1000, 2 * BLOCK).unwrap();
                content[1000..1000 + 2 * BLOCK as usize].fill(0);
            }
            _ => {}
        }
        file.sync_all().unwrap();
    }
    let mut name = "file".to_owned();
    match history {
        History::Renamed => {
            name = "other".to_owned();
            fs::rename(&path, fixture.tree().join(&name)).unwrap();
        }
        History::Linked => {
            name = "other".to_owned();
            fs::hard_link(&path, fixture.tree().join(&name)).unwrap();
            fs::remove_file(&path).unwrap();
        }
        History::Restarted => {
            until_it_has_other_times(&path);
            fixture.umount();
            fixture.mount();
        }
        History::Learned => {
            fixture.umount();
            fs::write(&path, &content).unwrap();
            fixture.mount();
        }
        _ => {}
    }
    (name, content)
}

const HISTORIES: [History; 9] = [
    History::Written,
    History::InPieces,
    History::Mapped,
    History::CutOffAndLengthened,
    History::Punched,
    History::Renamed,
    History::Linked,
    History::Restarted,
    History::Learned,
];

#[test]
fn rot_below_the_mount_is_found_anywhere_and_not_sent() {
    let disk = Disk::new();
    for history in HISTORIES {
        let mut fixture = Fixture::inside(&disk.path(), CacheMode::Exact);
        let below = below(&fixture);
        fixture.checksums = Some(ChecksumOptions {
            verify_reads: true,
            // Without known checksums the scrub has to learn them.
            scrub: watchful().scrub.filter(|_| history == History::Learned),
        });
        fixture.mount();
        let mut random = SplitMix64::new(7);
        let (name, content) = make(&mut fixture, history, &mut random);
        let path = fixture.tree().join(&name);
        let node = {
            let client = fixture.client();
            let cut = client.cut(&byteback_control::CutRequest {
                look_only: true,
                ..byteback_control::CutRequest::of("")
            });
            client.find(cut.unwrap().cut, &name.as_str().into()).unwrap().unwrap()
        };
        let blocks = (content.len() as u64).div_ceil(BLOCK);
        let backing = byteback_host::tree::Inode::from(openat(&below, &name, OFlags::RDONLY, Mode::empty()).unwrap());
        let sums = fixture.integrity().clone();
        until(&format!("all blocks are known: {history:?}"), || {
            sums.sums().known_blocks(node.0, &backing) == blocks
        });
        assert_eq!(read(&path).unwrap(), content, "{history:?}");
        assert_eq!(read_to_send(&fixture, &name).unwrap(), content, "{history:?}");
        for block in 0..blocks {
            let last = (content.len() as u64 - 1).min((block + 1) * BLOCK - 1);
            let at = block * BLOCK + random.below(last + 1 - block * BLOCK);
            if history == History::Punched && block == 1 {
                // A hole: nothing lies on the disk that could change.
                continue;
            }
            let note = format!("{history:?}, byte {at}");
            disk.flip(&below, &name, at);
            let sent = read_to_send(&fixture, &name).expect_err(&note);
            assert!(
                sent.contains("changed although no program wrote them"),
                "{note}: {sent}"
            );
            assert!(sent.contains(&format!("bytes {} to", block * BLOCK)), "{note}: {sent}");
            let reported = damaged(&fixture);
            assert_eq!(reported.len(), 1, "{note}");
            assert_eq!(reported[0].path, Some(name.as_str().into()), "{note}");
            assert_eq!(reported[0].ranges, [(block * BLOCK, BLOCK)], "{note}");
            assert!(!reported[0].after_crash, "{note}");
            // Programs do not get this block, and get the rest.
            let file = File::options().read(true).write(true).open(&path).unwrap();
            forget_pages(&file);
            let mut byte = [0];
            let refused = file.read_exact_at(&mut byte, at).expect_err(&note);
            assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{note}");
            // A program that writes the block anew has put it right.
            let from = (block * BLOCK) as usize;
            let whole = &content[from..content.len().min(from + BLOCK as usize)];
            if whole.len() as u64 == BLOCK {
                file.write_all_at(whole, block * BLOCK).unwrap();
            } else {
                file.set_len(block * BLOCK).unwrap();
                file.write_all_at(whole, block * BLOCK).unwrap();
            }
            file.sync_all().unwrap();
            drop(file);
            assert!(damaged(&fixture).is_empty(), "{note}: {:?}", damaged(&fixture));
            assert_eq!(read(&path).unwrap(), content, "{note}");
            assert_eq!(read_to_send(&fixture, &name).unwrap(), content, "{note}");
        }
        drop(backing);
        drop(sums);
        fixture.umount();
    }
}

/// The experiment of DeltaCFS, section IV-E: a bit flips, the client starts anew, and a byte of the
/// file is written.
#[test]
fn a_byte_that_is_written_beside_a_flipped_bit_does_not_hide_it() {
    let disk = Disk::new();
    let mut fixture = Fixture::inside(&disk.path(), CacheMode::Exact);
    let below = below(&fixture);
    fixture.checksums = Some(ChecksumOptions::default());
    fixture.mount();
    let content = SplitMix64::new(3).bytes(3 * BLOCK as usize);
    fs::write(fixture.tree().join("file"), &content).unwrap();
    fs::write(fixture.tree().join("good"), b"good").unwrap();
    until_it_has_other_times(&fixture.tree().join("good"));
    fixture.umount();
    disk.flip(&below, "file", BLOCK + 100);
    fixture.mount();
    let file = File::options().write(true).open(fixture.tree().join("file")).unwrap();
    // In the same block, and in another.
    file.write_all_at(b"x", BLOCK + 7).unwrap();
    file.write_all_at(b"y", 5).unwrap();
    let sent = read_to_send(&fixture, "file").expect_err("the flipped bit is sent");
    assert!(sent.contains("bytes 4096 to 8192 changed"), "{sent}");
    assert_eq!(read_to_send(&fixture, "good").unwrap(), b"good");
    // The damage is reported after a restart, too, and not any more once the block is written as it
    // was.
    drop(file);
    fixture.umount();
    fixture.mount();
    assert_eq!(damaged(&fixture).len(), 1);
    let file = File::options().write(true).open(fixture.tree().join("file")).unwrap();
    file.write_all_at(&content[BLOCK as usize..2 * BLOCK as usize], BLOCK)
        .unwrap();
    assert!(damaged(&fixture).is_empty());
    assert!(read_to_send(&fixture, "file").is_ok());
    drop(file);
    fixture.umount();
}

/// The bytes that continuous sync reads of a content, whole or up to where it is refused.
fn read_live(live: &dyn LiveTree, content: &LiveContent) -> (Vec<u8>, Option<ServiceError>) {
    let mut bytes = Vec::new();
    let read = live.read(content, &mut |piece| {
        match piece {
            byteback_control::Piece::Data { bytes: data, .. } => bytes.extend_from_slice(data),
            byteback_control::Piece::Hole(range) => bytes.resize(bytes.len() + range.len_bytes() as usize, 0),
        }
        Ok(())
    });
    (bytes, read.err())
}

/// Cuts a fold as the sender does at its turn: the content of each file that can be read, and the
/// files that cannot.
fn send_fold(served: &Served) -> (Vec<(NodeId, Vec<u8>)>, Vec<NodeId>) {
    let group = loop {
        match served.live.poll().unwrap() {
            Work::Ask(id) => served.live.never_arrived(id).unwrap(),
            Work::Cut => break served.live.cut_fold(&[]).unwrap(),
            Work::Idle(_) => served.live.wait(Duration::from_millis(5)),
            other => panic!("{other:?}"),
        }
    };
    let cut = group.fold.as_ref().unwrap().cut.cut;
    let (mut read, mut unsaved) = (Vec::new(), Vec::new());
    let page = served.tree.changes(cut, &ChangesCursor::default()).unwrap();
    assert!(page.next.is_none());
    for change in page.nodes.iter().filter(|change| change.kind == NodeKind::File) {
        let mut bytes = Vec::new();
        let all = [(0, 1 << 30)];
        let peeked = served.tree.peek(cut, change.node, &all, &mut |piece| {
            if let byteback_control::Piece::Data { bytes: data, .. } = piece {
                bytes.extend_from_slice(data);
            }
            Ok(())
        });
        match peeked {
            Ok(_) => read.push((change.node, bytes)),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Node, "{error}");
                unsaved.push(change.node);
            }
        }
    }
    let note = Vec::new();
    let saved = unsaved.clone();
    let outcome = byteback_control::Outcome::Saved { note, unsaved: saved };
    served.tree.finish(cut, &outcome).unwrap();
    served.live.applied(group.id).unwrap();
    (read, unsaved)
}

/// The next group of names and contents.
fn next_group(served: &Served) -> std::sync::Arc<LiveGroup> {
    loop {
        match served.live.poll().unwrap() {
            Work::Send(group) if !group.contents.is_empty() => return group,
            Work::Send(group) => served.live.applied(group.id).unwrap(),
            Work::Idle(_) => served.live.wait(Duration::from_millis(5)),
            other => panic!("{other:?}"),
        }
    }
}

/// The bit flips (DeltaCFS, section IV-E) after a file was written and before continuous sync has
/// read it.
#[test]
fn rot_before_continuous_sync_reads_is_not_sent_but_the_rest_is() {
    let disk = Disk::new();
    let mut fixture = Fixture::inside(&disk.path(), CacheMode::Exact);
    let below = below(&fixture);
    fixture.checksums = Some(ChecksumOptions::default());
    fixture.live = Some(crate::live::options(Duration::ZERO));
    fixture.mount();
    let served = fixture.served();
    send_fold(&served);
    let content = SplitMix64::new(11).bytes(3 * BLOCK as usize);
    let at = |name: &str| fixture.tree().join(name);
    let is_quiet = || {
        // Only what a file is made of may still come, and attributes.
        loop {
            match served.live.poll().unwrap() {
                Work::Send(group) => served.live.applied(group.id).unwrap(),
                Work::Idle(_) => break,
                other => panic!("{other:?}"),
            }
        }
    };
    fs::write(at("good"), b"good").unwrap();
    is_quiet();
    fs::write(at("bad"), &content).unwrap();
    let group = next_group(&served);
    let bad = group.contents[0].clone();
    assert_eq!(bad.len_bytes, content.len() as u64);
    disk.flip(&below, "bad", BLOCK + 9);
    let (bytes, error) = read_live(&*served.live, &bad);
    let error = error.expect("the flipped bit is sent");
    assert_eq!(error.kind, ErrorKind::Node, "{error}");
    assert_eq!(error.path, Some("bad".into()));
    assert!(content.starts_with(&bytes), "bytes that nobody wrote are handed out");
    assert_eq!(damaged(&fixture)[0].ranges, [(BLOCK, BLOCK)]);
    // Everything else goes on: at once, without it, and once.
    fs::write(at("good"), b"better").unwrap();
    let node = bad.node;
    let (sent, unsaved) = send_fold(&served);
    assert_eq!(unsaved, [node]);
    assert!(sent.iter().any(|(_, bytes)| bytes == b"better"), "{sent:?}");
    is_quiet();
    assert!(
        matches!(served.live.poll().unwrap(), Work::Idle(_)),
        "it is tried for ever"
    );
    fs::write(at("new"), b"new").unwrap();
    let group = next_group(&served);
    assert_eq!(read_live(&*served.live, &group.contents[0]).0, b"new");
    served.live.applied(group.id).unwrap();
    is_quiet();
    // A retry is refused again while the bytes are bad, and is sent when the good bytes are back.
    served.live.give_up("files that could not be read are tried again");
    assert_eq!(send_fold(&served).1, [node]);
    let file = File::options().write(true).open(at("bad")).unwrap();
    file.write_all_at(&content[BLOCK as usize..2 * BLOCK as usize], BLOCK)
        .unwrap();
    drop(file);
    assert_eq!(damaged(&fixture), []);
    is_quiet();
    served.live.give_up("files that could not be read are tried again");
    let (sent, unsaved) = send_fold(&served);
    assert_eq!(unsaved, []);
    assert!(sent.contains(&(node, content)), "the good version is sent");
    drop(served);
    fixture.umount();
}

/// Bytes that are put aside before they are overwritten are compared as well: the old bytes of a
/// file that is being sent.
#[test]
fn spool_does_not_take_rotten_blocks() {
    let disk = Disk::new();
    let mut fixture = Fixture::inside(&disk.path(), CacheMode::Exact);
    let below = below(&fixture);
    fixture.checksums = Some(ChecksumOptions::default());
    fixture.live = Some(crate::live::options(Duration::ZERO));
    fixture.mount();
    let served = fixture.served();
    send_fold(&served);
    let content = SplitMix64::new(12).bytes(3 * BLOCK as usize);
    let path = fixture.tree().join("bad");
    fs::write(&path, &content).unwrap();
    let group = next_group(&served);
    let bad = group.contents[0].clone();
    disk.flip(&below, "bad", BLOCK + 9);
    // All of the block, so that its new bytes are beyond doubt; its old ones belong to what is in
    // flight.
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[7; BLOCK as usize], BLOCK).unwrap();
    drop(file);
    let (bytes, error) = read_live(&*served.live, &bad);
    assert!(error.is_some(), "what was given up is handed out");
    assert!(content.starts_with(&bytes), "bytes that nobody wrote are handed out");
    assert!(
        served
            .live
            .status()
            .abandoned_because
            .unwrap()
            .contains("changed although no program wrote them")
    );
    let (sent, unsaved) = send_fold(&served);
    assert_eq!(unsaved, []);
    let mut now = content;
    now[BLOCK as usize..2 * BLOCK as usize].fill(7);
    assert!(sent.iter().any(|(_, bytes)| *bytes == now), "what was written is sent");
    drop(served);
    fixture.umount();
}

#[test]
fn the_scrub_finds_what_rots_and_that_it_was_put_right_below() {
    let disk = Disk::new();
    let mut fixture = Fixture::inside(&disk.path(), CacheMode::Exact);
    let below = below(&fixture);
    fixture.checksums = Some(ChecksumOptions {
        verify_reads: false,
        ..watchful()
    });
    fixture.mount();
    let mut random = SplitMix64::new(5);
    for name in ["one", "two", "three"] {
        fs::write(fixture.tree().join(name), random.bytes(3 << 20)).unwrap();
    }
    for at in [0, (1 << 20) + 5, (3 << 20) - 1] {
        disk.flip(&below, "two", at);
        until("the scrub finds it", || !damaged(&fixture).is_empty());
        let reported = damaged(&fixture);
        assert_eq!(reported[0].path, Some("two".into()));
        assert_eq!(reported[0].ranges, [(at / BLOCK * BLOCK, BLOCK)]);
        disk.flip(&below, "two", at);
        until("the scrub sees that it is right again", || damaged(&fixture).is_empty());
    }
    fixture.umount();
}

#[test]
fn scrub_raises_no_alarm_for_files_rewritten_meanwhile() {
    let disk = Disk::new();
    let mut fixture = Fixture::inside(&disk.path(), CacheMode::Exact);
    let below = below(&fixture);
    let rest = Duration::ZERO;
    fixture.checksums = Some(ChecksumOptions {
        verify_reads: false,
        scrub: watchful().scrub.map(|scrub| ScrubOptions { rest, ..scrub }),
    });
    fixture.mount();
    let mut random = SplitMix64::new(9);
    let content = random.bytes(16 * BLOCK as usize);
    let path = fixture.tree().join("file");
    fs::write(&path, &content).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    for round in 0..300 {
        let from = (random.below(16) * BLOCK) as usize;
        disk.flip(&below, "file", from as u64 + random.below(BLOCK));
        // The scrub is between its look and its verdict, or not.
        file.write_all_at(&content[from..from + BLOCK as usize], from as u64)
            .unwrap();
        assert_eq!(damaged(&fixture), [], "round {round}");
    }
    drop(file);
    fixture.umount();
}

#[test]
fn integrity_raises_no_alarm_for_writes_past_the_mount() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let below = below(&fixture);
    fixture.checksums = Some(watchful());
    fixture.mount();
    fs::write(fixture.tree().join("file"), vec![1; 20_000]).unwrap();
    assert_eq!(read_to_send(&fixture, "file").unwrap(), vec![1; 20_000]);
    let past = File::from(openat(&below, "file", OFlags::RDWR, Mode::empty()).unwrap());
    past.write_all_at(&[2; 10], 5000).unwrap();
    let sent = read_to_send(&fixture, "file").unwrap();
    assert_eq!(sent[5000..5010], [2; 10]);
    assert_eq!(read(&fixture.tree().join("file")).unwrap()[5000], 2);
    assert_eq!(damaged(&fixture), []);
    drop(past);
    fixture.umount();
}
