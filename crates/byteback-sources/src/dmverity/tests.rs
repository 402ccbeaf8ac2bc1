//! Devices and files of a simulated kernel with impossible answers. The real ones:
//! `crates/byteback/tests/systems/dmverity`.

use std::cell::Cell;

use byteback_host::random::SplitMix64;

use super::answers::{EXTENT_LEN, STATUS_HEADER_LEN};
use super::*;
use crate::merkle::tests::{Made, sum};
use byteback_checksums::source::{Kind, Tail};

const BLOCK: usize = 512;

/// A file on a device, as the kernel would report it.
#[derive(Clone)]
struct ScriptedDevice {
    stat: Stat,
    status: Vec<u8>,
    /// Flags beside place and length.
    extents: Vec<(u64, u64, u64, u32)>,
    hashes: Vec<u8>,
    /// The number of requests for the table; from `exchanged` on it is another one.
    asked: Cell<u32>,
    exchanged: u32,
}

fn status(text: &str, len_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; STATUS_HEADER_LEN];
    bytes[16..20].copy_from_slice(&(STATUS_HEADER_LEN as u32).to_ne_bytes());
    bytes[20..24].copy_from_slice(&1_u32.to_ne_bytes());
    let mut target = [0; 40];
    target[8..16].copy_from_slice(&(len_bytes / 512).to_ne_bytes());
    target[24..30].copy_from_slice(b"verity");
    bytes.extend(target);
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn extent(start: u64, address: u64, len: u64, flags: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [start, address, len, 0, 0] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes.extend(flags.to_ne_bytes());
    bytes.resize(EXTENT_LEN, 0);
    bytes
}

impl Kernel for ScriptedDevice {
    fn stat(&self) -> std::io::Result<Stat> {
        Ok(self.stat)
    }

    fn block_len_bytes(&self) -> Result<u64> {
        Ok(BLOCK as u64)
    }

    fn status(&self) -> Result<Vec<u8>> {
        self.asked.set(self.asked.get() + 1);
        let mut status = self.status.clone();
        if self.asked.get() > self.exchanged {
            // Another data device.
            let at = STATUS_HEADER_LEN + 40 + 2;
            status[at] = b'8';
        }
        Ok(status)
    }

    fn extents(&self, from: u64) -> Result<(Vec<u8>, usize)> {
        // Three at a time.
        let some: Vec<_> = self
            .extents
            .iter()
            .filter(|(start, _, len, _)| start + len > from)
            .take(3)
            .collect();
        let bytes = some
            .iter()
            .flat_map(|&&(start, address, len, flags)| extent(start, address, len, flags));
        Ok((bytes.collect(), some.len()))
    }

    fn open_hashes(&mut self, device: &str) -> Result<()> {
        assert_eq!(device, "7:2");
        Ok(())
    }

    fn read_hashes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let from = self
            .hashes
            .get(offset as usize..)
            .and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(from.ok_or(SourceError::Malformed("short"))?);
        Ok(())
    }
}

impl ScriptedDevice {
    fn collect(&self) -> Result<FileChecksums> {
        self.asked.set(0);
        FileChecksums::collect(1, || Passage::begin(self.clone()))
    }
}

/// A device with one file, and the expected knowledge about each of its blocks: a checksum, zeros
/// or nothing.
fn drawn(random: &mut SplitMix64) -> (ScriptedDevice, Vec<Option<Vec<u8>>>) {
    let kind = [Kind::Sha256, Kind::Sha512, Kind::Sha1][random.below(3) as usize];
    let salt_len = [0, 4, 32][random.below(3) as usize];
    let salt = random.bytes(salt_len);
    let layout = Layout {
        kind,
        salt,
        block_len: BLOCK as u32,
        tail: Tail::ZeroPadded,
    };
    let blocks = 1 + random.below(400);
    let device = random.bytes(blocks as usize * BLOCK);
    let made = Made::new(&layout, &device, 1024, kind.len_bytes().next_power_of_two());
    let salt = if layout.salt.is_empty() {
        "-".to_owned()
    } else {
        hex(&layout.salt)
    };
    let text = format!(
        "1 7:1 7:2 {BLOCK} 1024 {blocks} 3 {} {} {salt}",
        kind.name(),
        hex(&made.root)
    );
    let (mut extents, mut expected, mut at) = (Vec::new(), Vec::new(), 0);
    for _ in 0..random.below(8) {
        let len = 1 + random.below(blocks.min(30));
        let first = random.below(blocks - len + 1);
        let flags = [0, 0x800, 0x8, 0x1000, 0x200, 0x80][random.below(6) as usize];
        let what = random.below(5);
        for block in first..first + len {
            let sum = || sum(&layout, &device[block as usize * BLOCK..][..BLOCK]);
            expected.push(match flags {
                _ if what == 0 => Some(Vec::new()),
                0 | 0x1000 => Some(sum()),
                0x800 => Some(Vec::new()),
                _ => None,
            });
        }
        // A hole is a missing extent.
        if what > 0 {
            extents.push((at * BLOCK as u64, first * BLOCK as u64, len * BLOCK as u64, flags));
        }
        at += len;
    }
    // The end lies within the last block, or there is a hole.
    let cut = if at > 0 { random.below(BLOCK as u64) } else { 0 };
    let file = tempfile::tempfile().unwrap();
    file.set_len(at * BLOCK as u64 - cut).unwrap();
    if cut > 0
        && expected
            .last()
            .is_some_and(|last| last.as_ref().is_some_and(|sum| !sum.is_empty()))
    {
        *expected.last_mut().unwrap() = None;
    }
    let reported = ScriptedDevice {
        stat: byteback_host::tree::stat_fd(file.as_fd()).unwrap(),
        status: status(&text, blocks * BLOCK as u64),
        extents,
        hashes: [vec![0xff; 3 * 1024], made.nodes].concat(),
        asked: Cell::new(0),
        exchanged: u32::MAX,
    };
    (reported, expected)
}

/// The checksums of each block.
fn each(reported: &FileChecksums) -> Vec<Option<Vec<u8>>> {
    let mut all = Vec::new();
    for run in reported.runs() {
        match run {
            Run::Sums { sums, .. } => {
                all.extend(
                    sums.chunks(reported.layout().kind.len_bytes())
                        .map(|sum| Some(sum.to_vec())),
                );
            }
            Run::Zeros { range } => all.extend((0..reported.layout().block_count(range)).map(|_| Some(Vec::new()))),
            Run::Unknown { range, .. } => all.extend((0..reported.layout().block_count(range)).map(|_| None)),
            Run::Chunks { .. } => panic!("a device has blocks of one length"),
        }
    }
    all
}

fn seeds() -> impl Iterator<Item = u64> {
    let first = std::env::var("BYTEBACK_SEED").map_or(1, |seed| seed.parse().unwrap());
    let count = if std::env::var("BYTEBACK_SEED").is_ok() { 1 } else { 300 };
    (first..first + count).inspect(|seed| println!("BYTEBACK_SEED={seed}"))
}

#[test]
fn blocks_of_random_files_are_told_as_they_are_on_the_device() {
    for seed in seeds() {
        let (reported, expected) = drawn(&mut SplitMix64::new(seed));
        assert_eq!(each(&reported.collect().unwrap()), expected);
    }
}

#[test]
fn dmverity_reports_nothing_wrong_from_damaged_answers() {
    for seed in seeds() {
        let mut random = SplitMix64::new(seed);
        let (reported, expected) = drawn(&mut random);
        for _ in 0..20 {
            let mut spoiled = reported.clone();
            let bytes = match random.below(2) {
                0 => &mut spoiled.status,
                _ => &mut spoiled.hashes,
            };
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes.truncate(at),
                1 => bytes[at] = b"0123456789abcdef- :"[random.below(19) as usize],
                _ => bytes[at] ^= 1 << random.below(8),
            }
            match spoiled.collect_with_any_device() {
                Ok(found) => assert_eq!(each(&found), expected, "byte {at}"),
                Err(error) => assert!(
                    matches!(error, SourceError::Malformed(_) | SourceError::NotHere(_)),
                    "{error}"
                ),
            }
        }
    }
}

impl ScriptedDevice {
    /// Collects with any device accepted as the one with the hashes.
    fn collect_with_any_device(self) -> Result<FileChecksums> {
        struct Any(ScriptedDevice);
        impl Kernel for Any {
            fn stat(&self) -> std::io::Result<Stat> {
                self.0.stat()
            }
            fn block_len_bytes(&self) -> Result<u64> {
                self.0.block_len_bytes()
            }
            fn status(&self) -> Result<Vec<u8>> {
                self.0.status()
            }
            fn extents(&self, from: u64) -> Result<(Vec<u8>, usize)> {
                self.0.extents(from)
            }
            fn open_hashes(&mut self, _: &str) -> Result<()> {
                Ok(())
            }
            fn read_hashes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
                self.0.read_hashes(offset, buffer)
            }
        }
        FileChecksums::collect(1, || Passage::begin(Any(self.clone())))
    }
}

#[test]
fn a_device_that_is_exchanged_meanwhile_makes_it_void() {
    let (mut reported, _) = drawn(&mut SplitMix64::new(5));
    reported.exchanged = 1;
    assert!(matches!(reported.collect(), Err(SourceError::Busy)));
}

#[test]
fn tables_by_which_damage_passes_are_refused() {
    let root = "0".repeat(64);
    let table = |options: &str| Table::parse(&format!("1 7:1 7:2 4096 4096 100 1 sha256 {root} -{options}"), 409_600);
    table("").unwrap();
    table(" 1 ignore_zero_blocks").unwrap();
    table(" 9 use_fec_from_device 7:3 fec_blocks 100 fec_start 1 fec_roots 2 restart_on_corruption").unwrap();
    for option in [" 1 ignore_corruption", " 1 check_at_most_once", " 1 something_new"] {
        assert!(matches!(table(option), Err(SourceError::NotHere(_))), "{option}");
    }
    for text in [
        "",
        "1 7:1 7:2 4096",
        &format!("1 7:1 7:2 4095 4096 100 1 sha256 {root} -"),
        &format!("1 7:1 7:2 4096 4096 100 1 sha512 {root} -"),
        &format!("1 7:1 7:2 4096 4096 100 1 sha256 {root} 0"),
        &format!("1 7:1 7:2 4096 4096 -1 1 sha256 {root} -"),
        &format!("1 7:1 ../etc 4096 4096 100 1 sha256 {root} -"),
        &format!("1 7:1 7:2/.. 4096 4096 100 1 sha256 {root} -"),
    ] {
        assert!(
            matches!(Table::parse(text, 409_600), Err(SourceError::Malformed(_))),
            "{text}"
        );
    }
    let shorter = Table::parse(&format!("1 7:1 7:2 4096 4096 100 1 sha256 {root} -"), 409_600 - 4096);
    assert!(matches!(shorter, Err(SourceError::NotHere(_))));
    for text in [
        format!("0 7:1 7:2 4096 4096 100 1 sha256 {root} -"),
        format!("1 7:1 7:2 4096 4096 100 1 crc32c {root} -"),
    ] {
        assert!(
            matches!(Table::parse(&text, 409_600), Err(SourceError::NotHere(_))),
            "{text}"
        );
    }
}

#[test]
fn other_devices_have_no_hashes() {
    let mut other = status("0 8:1 0", 512);
    other[STATUS_HEADER_LEN + 24..][..6].copy_from_slice(b"linear");
    assert_eq!(target(&other), Ok(None));
    let mut two = status("", 512);
    two[20] = 2;
    assert_eq!(target(&two), Ok(None));
    let mut full = status("", 512);
    full[28..32].copy_from_slice(&(1_u32 << 8).to_ne_bytes());
    assert!(target(&full).is_err());
    assert!(target(&status("", 512)[..STATUS_HEADER_LEN + 20]).is_err());
    assert!(target(&[]).is_err());
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(DmVeritySource::new(&file), Err(SourceError::NotHere(_))));
}
