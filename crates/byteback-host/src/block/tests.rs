use super::*;
use crate::random::SplitMix64;
use crate::sim::{CrashPhase, is_power_cut};
use std::collections::BTreeMap;
use std::os::linux::fs::MetadataExt;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};

fn block_of(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_LEN_BYTES]
}

fn read(device: &dyn BlockDevice, block: u64) -> Vec<u8> {
    let mut bytes = block_of(0xee);
    device.read_blocks(block, &mut bytes).unwrap();
    bytes
}

/// The contract of every device.
fn conforms(device: &dyn BlockDevice) {
    let len_blocks = device.len_blocks();
    assert_eq!(len_blocks, 64);
    assert_eq!(read(device, 63), block_of(0));
    let mut model: BTreeMap<u64, u8> = BTreeMap::new();
    let mut random = SplitMix64::new(7);
    for byte in 0..200 {
        let first = random.below(64);
        let count = 1 + random.below((64 - first).min(5));
        let data = block_of(byte).repeat(usize::try_from(count).unwrap());
        if random.coin() {
            device.write_blocks(first, &data).unwrap();
        } else if random.coin() {
            let blocks = data.as_chunks().0.iter().map(|block| Box::new(*block)).collect();
            device.write_owned_blocks(first, blocks).unwrap();
        } else {
            // Pieces of whole blocks, also empty ones.
            let (one, rest) = data.split_at(random.below(count + 1) as usize * BLOCK_LEN_BYTES);
            let (two, three) = rest.split_at(rest.len() / BLOCK_LEN_BYTES / 2 * BLOCK_LEN_BYTES);
            device.write_blocks_vectored(first, &[one, two, three]).unwrap();
        }
        (first..first + count).for_each(|block| {
            model.insert(block, byte);
        });
        if random.below(10) == 0 {
            device.flush().unwrap();
        }
    }
    for block in 0..64 {
        assert_eq!(
            read(device, block),
            block_of(model.get(&block).copied().unwrap_or(0)),
            "{block}"
        );
    }
    let mut all = vec![0; 64 * BLOCK_LEN_BYTES];
    device.read_blocks(0, &mut all).unwrap();
    assert_eq!(all[..BLOCK_LEN_BYTES], read(device, 0));
    device.discard(3, 4).unwrap();
    assert_eq!(read(device, 2), all[2 * BLOCK_LEN_BYTES..3 * BLOCK_LEN_BYTES]);
    device.write_blocks(3, &block_of(1)).unwrap();
    assert_eq!(read(device, 3), block_of(1));
    // In order, whatever their lengths.
    let two: Vec<u8> = (0..2 * BLOCK_LEN_BYTES).map(|at| (at / 7) as u8).collect();
    device.write_blocks_vectored(9, &[&two, &block_of(5)]).unwrap();
    let mut three = vec![0; 3 * BLOCK_LEN_BYTES];
    device.read_blocks(9, &mut three).unwrap();
    assert!(three == [two, block_of(5)].concat());
    // Beside the device, and no whole blocks.
    let refused = |result: io::Result<()>| assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    refused(device.read_blocks(64, &mut block_of(0)));
    refused(device.write_blocks(63, &block_of(0).repeat(2)));
    refused(device.write_blocks(u64::MAX, &block_of(0)));
    refused(device.write_blocks_vectored(63, &[&block_of(0), &block_of(0)]));
    refused(device.write_blocks_vectored(u64::MAX, &[&block_of(0)]));
    refused(
        device
            .write_owned_blocks(64, vec![Box::new([0; BLOCK_LEN_BYTES])])
            .map(drop),
    );
    device.write_blocks_vectored(0, &[]).unwrap();
    refused(device.write_blocks(0, &[0; 100]));
    refused(device.discard(63, 2));
    refused(device.discard(u64::MAX, 2));
}

#[test]
fn simulated_and_counted_devices_conform() {
    let device = CountedDevice::new(SimBlockDevice::new(64));
    conforms(&device);
    let counters = device.counters();
    assert!(counters.flushes > 5 && counters.writes == 209, "{counters:?}");
    assert!(counters.written_bytes > 200 * 4096);
}

#[test]
fn a_file_conforms_and_is_held_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = RealBlockDevice::create(&path, 64).unwrap();
    conforms(&device);
    for access in [Access::Read, Access::ReadWrite] {
        let error = RealBlockDevice::open(&path, access).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("is in use"), "{error}");
    }
    let kept = read(&device, 9);
    drop(device);
    assert_eq!(
        RealBlockDevice::create(&path, 64).unwrap_err().kind(),
        io::ErrorKind::AlreadyExists
    );
    let one = RealBlockDevice::open(&path, Access::Read).unwrap();
    let two = RealBlockDevice::open(&path, Access::Read).unwrap();
    assert_eq!((read(&one, 9), read(&two, 9)), (kept.clone(), kept));
    assert!(one.write_blocks(0, &block_of(0)).is_err());
    assert!(RealBlockDevice::open(&path, Access::ReadWrite).is_err());
}

/// A block device of the kernel whose blocks lie in a file, with discards punching holes in it.
/// Dropping this value detaches it.
struct LoopDevice {
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
    file: std::path::PathBuf,
}

impl LoopDevice {
    fn new(len_blocks: u64) -> Self {
        // Not in a file system in memory: such a device may have no way to give blocks back.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = dir.path().join("blocks");
        drop(RealBlockDevice::create(&file, len_blocks).unwrap());
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let path = String::from_utf8(made.stdout).unwrap().trim().into();
        Self { path, _dir: dir, file }
    }

    fn used_bytes(&self) -> u64 {
        std::fs::metadata(&self.file).unwrap().st_blocks() * 512
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

#[test]
fn a_device_conforms_and_gives_back_what_is_discarded() {
    const BLOCKS: u64 = 1024;
    let loop_device = LoopDevice::new(BLOCKS);
    let device = RealBlockDevice::open(&loop_device.path, Access::ReadWrite).unwrap();
    assert_eq!(device.len_blocks(), BLOCKS);
    let error = RealBlockDevice::open(&loop_device.path, Access::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    let all = block_of(7).repeat(BLOCKS as usize);
    device.write_blocks(0, &all).unwrap();
    device.flush().unwrap();
    let full = loop_device.used_bytes();
    assert!(full >= BLOCKS * 4096, "{full}");
    device.discard(256, 512).unwrap();
    device.flush().unwrap();
    let rest = loop_device.used_bytes();
    assert!(rest <= full - 512 * 4096, "{rest} of {full} bytes");
    for block in [0, 255, 768, 1023] {
        assert_eq!(read(&device, block), block_of(7), "{block}");
    }
    device.write_blocks(300, &block_of(9)).unwrap();
    assert_eq!(read(&device, 300), block_of(9));
    assert!(device.discard(BLOCKS, 1).is_err());
}

#[test]
fn block_device_refuses_other_files() {
    let dir = tempfile::tempdir().unwrap();
    assert!(RealBlockDevice::open(dir.path(), Access::Read).is_err());
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let error = RealBlockDevice::open(&pipe, Access::ReadWrite).unwrap_err();
    assert!(
        error.to_string().contains("neither a file nor a block device"),
        "{error}"
    );
    let odd = dir.path().join("odd");
    std::fs::write(&odd, vec![1; 10_000]).unwrap();
    assert_eq!(RealBlockDevice::open(&odd, Access::Read).unwrap().len_blocks(), 2);
    assert!(RealBlockDevice::create(dir.path().join("huge"), u64::MAX / 2).is_err());
    assert!(!dir.path().join("huge").exists());
}

/// Every sector that comes back is one that was there, everything that was flushed is, and all
/// kinds of loss do happen.
#[test]
fn a_crash_leaves_what_was_flushed_and_any_of_the_rest() {
    let (mut lost, mut kept, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..300 {
        let device = SimBlockDevice::new(8);
        device.write_blocks(0, &block_of(1).repeat(8)).unwrap();
        device.flush().unwrap();
        device.write_blocks(0, &block_of(2)).unwrap();
        device.write_blocks(1, &block_of(3)).unwrap();
        device.write_blocks(0, &block_of(4)).unwrap();
        let after = device.recover(seed);
        assert!(is_power_cut(&device.flush().unwrap_err()));
        let [first, second] = [read(&after, 0), read(&after, 1)];
        assert!(first.iter().all(|byte| [1, 2, 4].contains(byte)), "seed {seed}");
        assert!(second.iter().all(|byte| [1, 3].contains(byte)), "seed {seed}");
        (2..8).for_each(|block| assert_eq!(read(&after, block), block_of(1), "seed {seed}"));
        lost += u32::from(first == block_of(1) && second == block_of(1));
        kept += u32::from(first == block_of(4) && second == block_of(3));
        torn += u32::from(first.iter().any(|byte| *byte != first[0]));
        reordered += u32::from(first == block_of(4) && second == block_of(1));
        assert_eq!(
            read(&device.recover(seed), 0),
            first,
            "the same seed is the same survivor"
        );
    }
    assert!(
        [lost, kept, torn, reordered].iter().all(|count| *count > 5),
        "{lost} {kept} {torn} {reordered}"
    );
}

#[test]
fn flushes_crash_before_or_after_and_fail_for_good() {
    let phases = [
        (CrashPhase::Before, false),
        (CrashPhase::Middle, false),
        (CrashPhase::After, true),
    ];
    for (phase, survives) in phases {
        let device = SimBlockDevice::new(4);
        device.write_blocks(0, &block_of(1)).unwrap();
        device.flush().unwrap();
        device.write_blocks(0, &block_of(2)).unwrap();
        device.crash_at_flush(2, phase);
        assert!(is_power_cut(&device.flush().unwrap_err()));
        let always = (0..50).all(|seed| read(&device.recover(seed), 0) == block_of(2));
        assert_eq!(always, survives, "{phase:?}");
    }
    let device = SimBlockDevice::new(4);
    device.write_blocks(0, &block_of(2)).unwrap();
    device.fail_call(2, 5);
    assert_eq!(device.flush().unwrap_err().raw_os_error(), Some(5));
    device.flush().unwrap();
    assert_eq!(
        read(&device.recover(1), 0),
        block_of(0),
        "what a failed flush lost stays lost"
    );
    let device = SimBlockDevice::new(4);
    device.crash_at_call(2);
    device.write_blocks(0, &block_of(2)).unwrap();
    assert!(is_power_cut(&device.write_blocks(1, &block_of(2)).unwrap_err()));
    assert_eq!((device.calls(), device.is_cut()), (2, true));
}

#[test]
fn sim_device_draws_other_survivors_in_the_middle_of_a_flush() {
    let survivors = [CrashPhase::Before, CrashPhase::Middle].map(|phase| {
        let device = SimBlockDevice::new(4);
        for block in 0..4 {
            device.write_blocks(block, &block_of(1)).unwrap();
        }
        device.crash_at_flush(1, phase);
        assert!(is_power_cut(&device.flush().unwrap_err()));
        let of = |seed| {
            (0..4)
                .map(|block| read(&device.recover(seed), block))
                .collect::<Vec<_>>()
        };
        (0..50).map(of).collect::<Vec<_>>()
    });
    let [before, middle] = survivors;
    let different = before.iter().zip(&middle).filter(|(before, middle)| before != middle);
    assert!(different.count() > 10);
}

#[test]
fn faults_are_where_they_were_put() {
    let device = SimBlockDevice::new(4);
    device.write_blocks(0, &block_of(2).repeat(4)).unwrap();
    device.make_unreadable(2);
    device.rot(1, 77, 0x10);
    assert!(device.read_blocks(0, &mut block_of(0).repeat(4)).is_err());
    let rotten = read(&device, 1);
    assert_eq!(rotten.iter().filter(|byte| **byte != 2).count(), 1);
    assert_eq!(rotten[77], 0x12);
    device.write_blocks(2, &block_of(5)).unwrap();
    assert_eq!(read(&device, 2), block_of(5));
    assert_eq!(read(&device.copy(), 2), block_of(5));
}

/// More slices than the kernel takes with one call.
#[test]
fn a_file_takes_thousands_of_slices_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let device = RealBlockDevice::create(dir.path().join("device"), 3_000).unwrap();
    let blocks: Vec<Vec<u8>> = (0..2_500).map(|number| block_of((number % 251) as u8)).collect();
    let slices: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
    device.write_blocks_vectored(400, &slices).unwrap();
    for (number, block) in (400..).zip(&blocks) {
        assert_eq!(read(&device, number), *block, "{number}");
    }
    assert_eq!(read(&device, 399), block_of(0));
    assert_eq!(read(&device, 2_900), block_of(0));
}

fn owned(bytes: impl IntoIterator<Item = u8>) -> Vec<OwnedBlock> {
    bytes
        .into_iter()
        .map(|byte| Box::new([byte; BLOCK_LEN_BYTES]))
        .collect()
}

#[test]
fn a_queue_is_a_device() {
    conforms(&QueuedDevice::new(SimBlockDevice::new(64)).unwrap());
}

/// A device that writes when it is let, and counts what it is doing.
#[derive(Debug)]
struct Slow {
    inner: SimBlockDevice,
    gate: Arc<(Mutex<u64>, Condvar)>,
}

impl Slow {
    fn wait(&self) {
        let (left, changed) = &*self.gate;
        let mut left = changed.wait_while(left.lock().unwrap(), |left| *left == 0).unwrap();
        *left -= 1;
    }
}

impl BlockDevice for Slow {
    fn len_blocks(&self) -> u64 {
        self.inner.len_blocks()
    }

    fn read_blocks(&self, first: u64, blocks: &mut [u8]) -> io::Result<()> {
        self.inner.read_blocks(first, blocks)
    }

    fn write_blocks(&self, first: u64, blocks: &[u8]) -> io::Result<()> {
        self.wait();
        self.inner.write_blocks(first, blocks)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, first: u64, count: u64) -> io::Result<()> {
        self.inner.discard(first, count)
    }
}

/// Callers that hand over blocks continue while these are written; readers of the blocks, and
/// flushes, wait for them.
#[test]
fn block_queue_shows_queued_writes_to_later_reads() {
    let inner = SimBlockDevice::new(64);
    let gate = Arc::new((Mutex::new(0), Condvar::new()));
    let slow = Slow {
        inner: inner.clone(),
        gate: Arc::clone(&gate),
    };
    let let_pass = |count: u64| {
        *gate.0.lock().unwrap() += count;
        gate.1.notify_all();
    };
    let queue = QueuedDevice::new(slow).unwrap();
    // Nothing passes yet: this would wait forever otherwise.
    queue.write_owned_blocks(3, owned([1, 2])).unwrap();
    queue.write_owned_blocks(8, owned([3])).unwrap();
    assert_eq!(read(&queue, 20), block_of(0), "apart from what is queued");
    assert_eq!(read(&inner, 3), block_of(0), "it was not let pass");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&queue, 4));
        let_pass(1);
        assert_eq!(reader.join().unwrap(), block_of(2));
        assert_eq!(inner.flushes(), 0);
        let flusher = scope.spawn(|| queue.flush());
        let_pass(1);
        flusher.join().unwrap().unwrap();
    });
    assert_eq!((inner.flushes(), read(&inner, 8)), (1, block_of(3)));
    // Written over while it is queued: the later one stays, whichever way it comes.
    queue.write_owned_blocks(5, owned([4])).unwrap();
    let_pass(2);
    queue.write_blocks(5, &block_of(5)).unwrap();
    queue.write_owned_blocks(6, owned([6])).unwrap();
    let_pass(2);
    let spare = queue.write_owned_blocks(6, owned([7])).unwrap();
    assert!(!spare.is_empty(), "memory comes back");
    queue.write_owned_blocks(7, owned([8])).unwrap();
    let_pass(1);
    queue.discard(7, 1).unwrap();
    let_pass(1);
    queue.write_owned_blocks(9, owned([9])).unwrap();
    drop(queue);
    assert_eq!(read(&inner, 5), block_of(5));
    assert_eq!(read(&inner, 6), block_of(7));
    assert_ne!(read(&inner, 7), block_of(8), "discarded before it was written");
    assert_eq!(read(&inner, 9), block_of(9), "dropping waits");
}

#[test]
fn block_queue_fails_everything_after_a_failure() {
    let inner = SimBlockDevice::new(64);
    let queue = QueuedDevice::new(inner.clone()).unwrap();
    queue.write_owned_blocks(1, owned([1])).unwrap();
    queue.flush().unwrap();
    inner.fail_call(inner.calls() + 1, libc::EIO);
    // Accepted: it is not known yet.
    queue.write_owned_blocks(2, owned([2])).unwrap();
    for _ in 0..2 {
        let error = queue.flush().unwrap_err();
        assert_eq!(crate::errno_of(&error), Some(libc::EIO), "{error}");
    }
    assert!(queue.write_blocks(3, &block_of(3)).is_err());
    assert!(queue.write_blocks_vectored(3, &[&block_of(3)]).is_err());
    assert!(queue.write_owned_blocks(3, owned([3])).is_err());
    assert_eq!(read(&queue, 1), block_of(1));
    assert_eq!((read(&queue, 2), read(&queue, 3)), (block_of(0), block_of(0)));
}

/// More than may wait: who gives it waits, and nothing is lost.
#[test]
fn block_queue_carries_more_than_it_holds() {
    let queue = QueuedDevice::new(SimBlockDevice::new(20_000)).unwrap();
    let mut random = SplitMix64::new(5);
    let mut model = BTreeMap::new();
    for byte in 0..60u8 {
        let first = random.below(18_000);
        let count = 1 + random.below(1_500);
        queue
            .write_owned_blocks(first, owned((0..count).map(|_| byte)))
            .unwrap();
        model.extend((first..first + count).map(|block| (block, byte)));
    }
    for (block, byte) in model {
        assert_eq!(read(&queue, block), block_of(byte), "{block}");
    }
}
