//! `byteback checksums`: which checksums storage already keeps of a file, and whether they match
//! its bytes.
//!
//! | room | what it does |
//! |---|---|
//! | `opening` | from the argument to the source that has checksums of it |
//! | `comparing` | compares two copies by their checksums |

mod comparing;
mod opening;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use byteback_checksums::source::{
    Description, FileChecksums, Run, Source, Tail, Unknown, Verified, VerifyError, verify,
};
use byteback_host::clock::{Clock, RealClock};
use byteback_model::ByteString;
use clap::Args;
use serde::Serialize;

use self::opening::{after, refused, with_source};
use crate::error::{CommandError, Result};
use crate::settings::Settings;
use crate::wording::{counted, duration, size, size_exact};

/// Flags of `checksums`.
#[derive(Args, Debug)]
#[command(after_help = "\
Checksums that storage already keeps make it unnecessary to read unchanged data.
This command shows those of one file: their function, their block length, how
much of the file they cover, and what it cost to get them.

  FILE
      a file sealed by fs-verity, on ext4, F2FS or btrfs;
      a file on btrfs (as root);
      a file on ext4 on a dm-verity device (as root);
      a file on ZFS (as root, by ZFS's own zdb);
      if its name looks like one of the following, write ./NAME
  s3://BUCKET/KEY
      an object in S3 or a compatible server (AWS_ENDPOINT_URL,
      AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)
  seaweedfs://HOST:PORT/PATH
      a file in SeaweedFS, through its filer
  hdfs://[USER@]HOST[:PORT]/PATH
      a file in HDFS, through its NameNode's HTTP port (default 9870)
  moosefs:FILE
      a file in a MooseFS mount, on a machine with a chunk server; --store names
      the server's folders (mfshdd.cfg)
  ceph://FOLDER?pg=PG&object=NAME
      an object in the store of a stopped Ceph OSD; FOLDER is the OSD's
      (/var/lib/ceph/osd/ceph-0), and 'ceph osd map POOL NAME' prints PG.
      &namespace=NAMESPACE and &snap=NUMBER may follow; '&' in a name is %26
      (as root, by Ceph's own ceph-objectstore-tool)
  casync:INDEX
      a file in a casync store, by its index (.caibx, .caidx); --store names
      the folder with its chunks
  recipe:FILE
      a file described by a recipe, which lists its chunks
      (docs/formats/recipe.md)

With --against, the file is compared with another copy by checksums alone; each
is named in one of these ways. Both must use the same function; for CRCs, the
block lengths may differ. Of two files sealed by fs-verity, only the parts of
the hash trees that lie above a difference are read.

The exit code is 1 if the file has no checksums, or if --verify finds one that
does not match. Parts without checksums are reported, but are no failure.")]
pub(crate) struct ChecksumsArguments {
    /// File or object
    #[arg(value_name = "PATH_OR_URL")]
    what: OsString,
    /// Read the whole file and check it against its checksums
    #[arg(long)]
    verify: bool,
    /// Compare with this other copy by the checksums of both, without reading either
    #[arg(long, value_name = "PATH_OR_URL", conflicts_with = "verify")]
    against: Option<OsString>,
    /// List the ranges (with --against)
    #[arg(long, requires = "against")]
    ranges: bool,
    /// Folder with casync's chunks (default: default.castr beside the index), or a folder of
    /// MooseFS's chunk server; the latter may be given several times
    #[arg(long, value_name = "DIR")]
    store: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Line<'a> {
    path: ByteString,
    source: &'a str,
    kind: &'a str,
    is_strong: bool,
    salt: String,
    block_len_bytes: u32,
    are_lengths_varied: bool,
    is_tail_padded: bool,
    len_bytes: u64,
    summed_bytes: u64,
    zero_bytes: u64,
    /// Bytes without a checksum, by reason.
    unknown: &'a BTreeMap<&'static str, u64>,
    checksum_bytes: u64,
    extract_ns: u64,
    coverage: &'a str,
    cost: &'a str,
    permissions: &'a str,
    verified: Option<VerifiedLine>,
}

#[derive(Serialize)]
struct VerifiedLine {
    blocks: u64,
    bytes: u64,
    zero_bytes: u64,
    ns: u64,
}

/// Bytes of a file by whether they have checksums.
#[derive(Default)]
struct Coverage {
    summed_bytes: u64,
    zero_bytes: u64,
    unknown: BTreeMap<&'static str, u64>,
    checksum_bytes: u64,
    /// Number of blocks of varying length.
    chunks: u64,
}

impl Coverage {
    fn of(reported: &FileChecksums) -> Self {
        let mut coverage = Self::default();
        for run in reported.runs() {
            let len_bytes = run.range().len_bytes();
            match run {
                Run::Sums { sums, .. } => {
                    coverage.summed_bytes += len_bytes;
                    coverage.checksum_bytes += sums.len() as u64;
                }
                Run::Chunks { ends, sums, .. } => {
                    coverage.summed_bytes += len_bytes;
                    coverage.checksum_bytes += sums.len() as u64;
                    coverage.chunks += ends.len() as u64;
                }
                Run::Zeros { .. } => coverage.zero_bytes += len_bytes,
                Run::Unknown { why, .. } => *coverage.unknown.entry(why.name()).or_default() += len_bytes,
            }
        }
        coverage
    }
}

pub(crate) fn run(arguments: &ChecksumsArguments, settings: &Settings) -> Result<()> {
    let (what, store) = (&arguments.what, &arguments.store[..]);
    let has_store = |what: &OsString| {
        [&b"casync:"[..], b"moosefs:"]
            .iter()
            .any(|prefix| after(what, prefix).is_some())
    };
    if !store.is_empty() && !has_store(what) && !arguments.against.as_ref().is_some_and(has_store) {
        return Err(CommandError::new("--store is for casync:INDEX and moosefs:FILE only"));
    }
    // A missing folder of chunks would look as if nothing had checksums.
    for folder in store {
        match std::fs::read_dir(folder) {
            // The source knows whom such a folder is for, and reports it.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            looked => drop(looked.map_err(|error| CommandError::file("read", folder, &error))?),
        }
    }
    match &arguments.against {
        Some(against) => comparing::run(what, against, store, arguments.ranges, settings),
        None => with_source(what, store, settings, &mut |source| {
            tell(what, source, arguments.verify, settings)
        }),
    }
}

fn tell(what: &OsStr, source: &dyn Source, wants_proof: bool, settings: &Settings) -> Result<()> {
    let output = settings.output;
    let path = &what.to_string_lossy();
    let description = source.description();
    let started_ns = RealClock.monotonic_ns();
    let reported = source.collect().map_err(|error| refused(path, error))?;
    let extract_ns = RealClock.monotonic_ns() - started_ns;
    let (layout, coverage) = (reported.layout(), Coverage::of(&reported));
    if !output.json {
        print(path, &description, &reported, &coverage, extract_ns, settings)?;
    }
    let verified = match wants_proof {
        false => None,
        true => {
            let started_ns = RealClock.monotonic_ns();
            let verified = verify(source, &reported).map_err(|error| disproved(path, error))?;
            Some((verified, RealClock.monotonic_ns() - started_ns))
        }
    };
    if output.json {
        let line = Line {
            path: ByteString::from(what.as_bytes()),
            source: description.name,
            kind: layout.kind.name(),
            is_strong: layout.kind.is_strong(),
            salt: layout.salt.iter().map(|byte| format!("{byte:02x}")).collect(),
            block_len_bytes: layout.block_len,
            are_lengths_varied: coverage.chunks > 0,
            is_tail_padded: layout.tail == Tail::ZeroPadded,
            len_bytes: reported.stamp().len_bytes,
            summed_bytes: coverage.summed_bytes,
            zero_bytes: coverage.zero_bytes,
            unknown: &coverage.unknown,
            checksum_bytes: coverage.checksum_bytes,
            extract_ns,
            coverage: description.coverage,
            cost: description.cost,
            permissions: description.permissions,
            verified: verified.map(|(verified, ns)| VerifiedLine {
                blocks: verified.blocks,
                bytes: verified.bytes,
                zero_bytes: verified.zero_bytes,
                ns,
            }),
        };
        return output.object("summary", &line);
    }
    match verified {
        Some((verified, ns)) => output.line(format!("  verified     {} in {}", in_words(&verified), duration(ns))),
        None => Ok(()),
    }
}

fn print(
    path: &str,
    description: &Description,
    reported: &FileChecksums,
    coverage: &Coverage,
    extract_ns: u64,
    settings: &Settings,
) -> Result<()> {
    let output = settings.output;
    let is_exact = output.verbosity > 0;
    let layout = reported.layout();
    output.line(format!("{path}: {}", size_exact(reported.stamp().len_bytes, is_exact)))?;
    output.line(format!("  source       {}", description.name))?;
    let tail = match layout.tail {
        Tail::AsIs => "",
        Tail::ZeroPadded => ", a short last one padded with zeros",
    };
    let proof = match layout.kind.is_strong() {
        true => "equal checksums prove equal content",
        false => "equal checksums make equal content likely",
    };
    let blocks = match coverage.chunks {
        0 => format!("blocks of {}{tail}", size(u64::from(layout.block_len))),
        chunks => format!(
            "{} of at most {}",
            counted(chunks, "chunk", "chunks"),
            size(u64::from(layout.block_len))
        ),
    };
    output.line(format!("  checksums    {} of {blocks}; {proof}", layout.kind.name()))?;
    if !layout.salt.is_empty() {
        output.line(format!("  salt         {} bytes before each block", layout.salt.len()))?;
    }
    let mut parts = vec![format!(
        "{} have checksums",
        size_exact(coverage.summed_bytes, is_exact)
    )];
    if coverage.zero_bytes > 0 {
        parts.push(format!("{} are zeros", size_exact(coverage.zero_bytes, is_exact)));
    }
    for (why, bytes) in &coverage.unknown {
        parts.push(format!("{} have none ({})", size_exact(*bytes, is_exact), reason(why)));
    }
    output.line(format!("  coverage     {}", parts.join(", ")))?;
    output.line(format!(
        "  cost         {} of checksums in {}: {}",
        size_exact(coverage.checksum_bytes, is_exact),
        duration(extract_ns),
        description.cost
    ))?;
    output.line(format!("  permissions  {}", description.permissions))
}

/// The reason that bytes have no checksum, in words.
fn reason(name: &str) -> &'static str {
    let all = [
        (Unknown::Inline, "stored in the metadata"),
        (Unknown::Compressed, "compressed"),
        (Unknown::Encoded, "encoded"),
        (Unknown::NotSummed, "never checksummed"),
        (Unknown::Tail, "the last block is incomplete"),
        (Unknown::OtherFunction, "summed by another function"),
    ];
    all.iter()
        .find(|(why, _)| why.name() == name)
        .map_or("", |(_, text)| text)
}

fn in_words(verified: &Verified) -> String {
    let mut text = format!(
        "{} ({})",
        counted(verified.blocks, "checksum matches", "checksums match"),
        size(verified.bytes)
    );
    if verified.zero_bytes > 0 {
        text.push_str(&format!(", and {} are zeros", size(verified.zero_bytes)));
    }
    text
}

fn disproved(path: &str, error: VerifyError) -> CommandError {
    match error {
        VerifyError::Source(error) => refused(path, error),
        error => CommandError::new(format!("{path}: {error}")),
    }
}
