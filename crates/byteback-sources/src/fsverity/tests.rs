//! Sealed files of a simulated kernel with impossible answers. The real ones:
//! `crates/byteback/tests/systems/fsverity`.

use byteback_host::random::SplitMix64;
use byteback_host::tree::Identity;

use super::kernel::Measured;
use super::*;
use crate::merkle::tests::{Made, sum};
use byteback_checksums::source::{Kind, Tail};

/// A sealed file, as the kernel would report it.
#[derive(Clone)]
struct Sealed {
    stat: Stat,
    measured: Measured,
    descriptor: [u8; DESCRIPTOR_LEN],
    nodes: Vec<u8>,
    /// The length of an answer, at most.
    piece_len: usize,
    error: Option<i32>,
}

fn stat(len: usize) -> Stat {
    let file = tempfile::tempfile().unwrap();
    file.set_len(len as u64).unwrap();
    byteback_host::tree::stat_fd(file.as_fd()).unwrap()
}

impl Sealed {
    fn new(kind: Kind, salt: &[u8], content: &[u8]) -> Self {
        let mut descriptor = [0; DESCRIPTOR_LEN];
        let algorithm = if kind == Kind::Sha256 { 1 } else { 2 };
        descriptor[..4].copy_from_slice(&[1, algorithm, 12, salt.len() as u8]);
        descriptor[8..16].copy_from_slice(&(content.len() as u64).to_le_bytes());
        descriptor[80..80 + salt.len()].copy_from_slice(salt);
        let shape = Descriptor::parse(&descriptor).unwrap().shape().unwrap();
        let made = Made::new(shape.layout(), content, 4096, kind.len_bytes());
        descriptor[16..16 + made.root.len()].copy_from_slice(&made.root);
        let mut sealed = Self {
            stat: stat(content.len()),
            measured: Measured {
                algorithm: u16::from(algorithm),
                digest: Vec::new(),
            },
            descriptor,
            nodes: made.nodes,
            piece_len: 5000,
            error: None,
        };
        sealed.remeasure();
        sealed
    }

    /// A kernel that opened the file with this descriptor.
    fn remeasure(&mut self) {
        let layout = Layout {
            kind: if self.measured.algorithm == 1 {
                Kind::Sha256
            } else {
                Kind::Sha512
            },
            salt: Vec::new(),
            block_len: 1,
            tail: Tail::AsIs,
        };
        self.measured.digest = sum(&layout, &self.descriptor);
    }

    fn reported(&self) -> Result<FileChecksums> {
        FileChecksums::collect(1, || Passage::begin(self.clone()))
    }
}

impl Kernel for Sealed {
    fn stat(&self) -> io::Result<Stat> {
        Ok(self.stat)
    }

    fn measure(&self) -> io::Result<Measured> {
        match self.error {
            Some(code) => Err(io::Error::from_raw_os_error(code)),
            None => Ok(self.measured.clone()),
        }
    }

    fn descriptor(&mut self, bytes: &mut [u8; DESCRIPTOR_LEN]) -> io::Result<()> {
        *bytes = self.descriptor;
        Ok(())
    }

    fn tree(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.nodes.get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(buffer.len()).min(self.piece_len);
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

const CASES: [(Kind, &[u8]); 4] = [
    (Kind::Sha256, b""),
    (Kind::Sha256, b"eight   "),
    (Kind::Sha512, b""),
    (Kind::Sha512, b"thirty-two bytes are the longest"),
];

const LENGTHS: [usize; 7] = [0, 1, 4096, 4097, 128 * 4096, 128 * 4096 + 1, 2_000_001];

#[test]
fn every_block_of_a_sealed_file_has_its_hash() {
    for (kind, salt) in CASES {
        for len in LENGTHS {
            let content = SplitMix64::new(9).bytes(len);
            let reported = Sealed::new(kind, salt, &content).reported().unwrap();
            let mut padded = salt.to_vec();
            if !salt.is_empty() {
                padded.resize(if kind == Kind::Sha512 { 128 } else { 64 }, 0);
            }
            assert_eq!((reported.layout().kind, &reported.layout().salt), (kind, &padded));
            let expected: Vec<_> = content
                .chunks(4096)
                .flat_map(|block| sum(reported.layout(), block))
                .collect();
            let mut sums = Vec::new();
            for run in reported.runs() {
                match run {
                    Run::Sums { sums: more, .. } => sums.extend_from_slice(more),
                    run => panic!("{run:?}"),
                }
            }
            assert_eq!((sums, reported.unknown_bytes()), (expected, 0), "{len}");
        }
    }
}

/// The length of a signature is not part of the measurement.
#[test]
fn a_signed_file_is_measured_without_its_signature() {
    let mut sealed = Sealed::new(Kind::Sha256, b"", &[7; 9000]);
    sealed.descriptor[5] = 3;
    sealed.reported().unwrap();
}

/// Damage or forgery of anything beside the kernel's measurement: no checksums are returned.
#[test]
fn fsverity_reports_only_what_its_measurement_proves() {
    let content = SplitMix64::new(9).bytes(700_000);
    for (kind, salt) in CASES {
        let sealed = Sealed::new(kind, salt, &content);
        let mut random = SplitMix64::new(1);
        for at in (0..DESCRIPTOR_LEN).filter(|at| !(4..8).contains(at)) {
            let mut other = sealed.clone();
            other.descriptor[at] ^= 1 << random.below(8);
            let reported = other.reported();
            assert!(
                matches!(reported, Err(SourceError::Malformed(_))),
                "byte {at}: {reported:?}"
            );
        }
        for _ in 0..50 {
            let mut other = sealed.clone();
            let at = random.below(other.nodes.len() as u64) as usize;
            other.nodes[at] ^= 1;
            assert!(
                matches!(other.reported(), Err(SourceError::Malformed(_))),
                "byte {at} of the tree"
            );
            let mut other = sealed.clone();
            other.nodes.truncate(at);
            assert!(
                matches!(other.reported(), Err(SourceError::Malformed(_))),
                "{at} bytes of the tree"
            );
        }
    }
}

/// A measured descriptor that makes no sense.
#[test]
fn descriptors_that_cannot_be_are_refused() {
    let spoil = |at: usize, byte: u8| {
        let mut sealed = Sealed::new(Kind::Sha256, b"", &[7; 9000]);
        sealed.descriptor[at] = byte;
        sealed.remeasure();
        sealed.reported()
    };
    for (at, byte) in [
        (0, 0),
        (0, 2),
        (1, 0),
        (1, 3),
        (2, 9),
        (2, 17),
        (2, 255),
        (3, 33),
        (3, 255),
        (8, 1),
        (15, 255),
    ] {
        let reported = spoil(at, byte);
        assert!(
            matches!(reported, Err(SourceError::Malformed(_))),
            "{at}: {byte}: {reported:?}"
        );
    }
    // Another block length makes another tree.
    assert!(matches!(spoil(2, 13), Err(SourceError::Malformed(_))));
}

#[test]
fn refusals_say_what_is_missing() {
    let mut sealed = Sealed::new(Kind::Sha256, b"", &[7; 9000]);
    for (code, text) in [
        (libc::ENODATA, "is not sealed"),
        (libc::EOPNOTSUPP, "has no fs-verity"),
        (libc::ENOTTY, "has no fs-verity"),
        (libc::EPERM, "only to root"),
        (libc::EIO, "cannot read the file's hash tree"),
    ] {
        sealed.error = Some(code);
        let said = sealed.reported().unwrap_err().to_string();
        assert!(said.contains(text), "{said}");
    }
}

/// Files that are not sealed, on whatever file system this runs.
#[test]
fn files_that_are_not_sealed_have_no_hashes() {
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(
        VeritySource::new(&file),
        Err(SourceError::NotHere(_) | SourceError::NeedsRoot)
    ));
    let proc = std::fs::File::open("/proc/self/stat").unwrap();
    assert!(matches!(VeritySource::new(&proc), Err(SourceError::NotHere(_))));
    assert!(matches!(tree(&proc), Err(SourceError::NotHere(_))));
}

#[test]
fn another_seal_is_another_stamp_and_times_are_not() {
    let (mut one, two) = (
        Sealed::new(Kind::Sha256, b"", &[7; 9000]),
        Sealed::new(Kind::Sha256, b"", &[8; 9000]),
    );
    let stamp = |sealed: &Sealed, stat: Stat| Seal::of(&mut Sealed { stat, ..sealed.clone() }).unwrap().stamp();
    let same = one.stat;
    assert_ne!(stamp(&one, same), stamp(&two, same));
    let before = stamp(&one, same);
    one.stat.mtime_ns += 1;
    assert_eq!(before, stamp(&one, one.stat));
    let identity: Identity = one.stat.identity();
    assert_eq!(before.identity, identity);
}
