//! From the argument of the command to the source that has checksums of it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use byteback_checksums::btrfs::BtrfsSource;
use byteback_checksums::source::{Source, SourceError};
use byteback_host::clock::RealClock;
use byteback_sources::ceph::{self, CephSource};
use byteback_sources::deduplicated::DeduplicatedFile;
use byteback_sources::dmverity::DmVeritySource;
use byteback_sources::fsverity::VeritySource;
use byteback_sources::hdfs::{self, HdfsSource};
use byteback_sources::moosefs::MooseFsSource;
use byteback_sources::s3::{Credentials, Place, S3Source};
use byteback_sources::seaweedfs::{self, SeaweedFsSource};
use byteback_sources::zfs::ZfsSource;

use crate::error::{CommandError, Result, chain};
use crate::http::Network;
use crate::settings::Settings;

const ELSEWHERE: &str = "'byteback checksums --help' lists the supported kinds of storage.";

/// Prefixes of names that are not paths of files.
const PREFIXES: [&str; 8] = [
    "s3://",
    "seaweedfs://",
    "hdfs://",
    "webhdfs://",
    "ceph://",
    "moosefs:",
    "casync:",
    "recipe:",
];

/// Opens `what` and passes its source to `then`. `store` holds casync's chunks, if they are not
/// beside the index, or the folders of MooseFS's chunk server.
pub(super) fn with_source(
    what: &OsStr,
    store: &[PathBuf],
    settings: &Settings,
    then: &mut dyn FnMut(&dyn Source) -> Result<()>,
) -> Result<()> {
    let name = what.to_string_lossy();
    if name.starts_with("s3://") {
        return with_object(&name, settings, then);
    }
    if name.starts_with("seaweedfs://") {
        let place = seaweedfs::Place::new(&name).map_err(|wrong| CommandError::new(format!("{name}: {wrong}")))?;
        let network = Network::new(None);
        return then(&SeaweedFsSource::new(&network, place));
    }
    if name.starts_with("hdfs://") || name.starts_with("webhdfs://") {
        let place = hdfs::Place::new(&name).map_err(|wrong| CommandError::new(format!("{name}: {wrong}")))?;
        let network = Network::new(None);
        return then(&HdfsSource::new(&network, &network, place));
    }
    if let Some(index) = after(what, b"casync:") {
        if store.len() > 1 {
            return Err(CommandError::new("casync:INDEX takes at most one --store"));
        }
        return then(&DeduplicatedFile::casync(index.into(), store.first().cloned()));
    }
    if let Some(recipe) = after(what, b"recipe:") {
        return then(&DeduplicatedFile::recipe(recipe.into()));
    }
    let programs = settings.programs();
    if let Some(path) = after(what, b"moosefs:") {
        if store.is_empty() {
            let said = CommandError::new(format!(
                "{name}: the folders of this machine's chunk server are not given"
            ));
            return Err(said.next("Name each of its folders with --store; mfshdd.cfg lists them."));
        }
        let file = open(path)?;
        let source = MooseFsSource::new(&file, &programs, store).map_err(|error| refused(&name, error))?;
        return then(&source);
    }
    if name.starts_with("ceph://") {
        let place = ceph::Place::new(&name).map_err(|wrong| CommandError::new(format!("{name}: {wrong}")))?;
        let spool = tempfile::tempfile_in(&settings.scratch).map_err(|error| {
            let said = CommandError::file("create a temporary file in", &settings.scratch, &error);
            said.next("Set TMPDIR to use another folder for the data of the object.")
        })?;
        return then(&CephSource::new(place, &programs, spool));
    }
    if let Some(scheme) = scheme_of(what) {
        return Err(unknown(&name, scheme));
    }
    let path = Path::new(what);
    let file = open(path).map_err(|error| match path.symlink_metadata() {
        Err(missing) if missing.kind() == ErrorKind::NotFound => hinted(error, &name),
        _ => error,
    })?;
    let mut reasons = Vec::new();
    // A seal proves more, and at less cost, than checksums kept beside the file.
    if let Some(source) = here(&name, VeritySource::new(&file), &mut reasons)? {
        return then(&source);
    }
    if let Some(source) = here(&name, DmVeritySource::new(&file), &mut reasons)? {
        return then(&source);
    }
    if let Some(source) = here(&name, ZfsSource::new(&file, &programs), &mut reasons)? {
        return then(&source);
    }
    if let Some(source) = here(&name, BtrfsSource::new(&file, &RealClock), &mut reasons)? {
        return then(&source);
    }
    let said = CommandError::new(format!("{name}: no checksums found: {}", reasons.join("; ")));
    Err(said.next(ELSEWHERE))
}

/// The source, if it supports this file; otherwise the reason is added to `reasons`.
fn here<S>(
    name: &str,
    source: std::result::Result<S, SourceError>,
    reasons: &mut Vec<&'static str>,
) -> Result<Option<S>> {
    match source {
        Ok(source) => Ok(Some(source)),
        Err(SourceError::NotHere(why)) => {
            // Sources with the same reason need it only once.
            if !reasons.contains(&why) {
                reasons.push(why);
            }
            Ok(None)
        }
        Err(error) => Err(refused(name, error)),
    }
}

/// Opens a regular file. Other kinds are refused: opening a pipe would wait for a writer, and
/// opening some devices has side effects.
pub(super) fn open(path: &Path) -> Result<File> {
    let cannot = |error| CommandError::file("read", path, &error);
    let kind = std::fs::metadata(path).map_err(cannot)?.file_type();
    let other = [
        (kind.is_dir(), "a directory"),
        (kind.is_fifo(), "a pipe"),
        (kind.is_socket(), "a socket"),
        (kind.is_block_device() || kind.is_char_device(), "a device"),
    ];
    match other.iter().find(|(is_it, _)| *is_it) {
        Some((_, kind)) => {
            let said = CommandError::new(format!("{} is {kind}, not a regular file", path.display()));
            Err(said.next("Name one regular file."))
        }
        None => File::open(path).map_err(cannot),
    }
}

/// The path in `what`; `None` if `what` is not a path.
pub(super) fn path_of(what: &OsStr) -> Option<&Path> {
    let is_other = PREFIXES.iter().any(|prefix| after(what, prefix.as_bytes()).is_some());
    (!is_other && scheme_of(what).is_none()).then(|| Path::new(what))
}

/// The text before `://`, if it can be a scheme (RFC 3986, section 3.1).
fn scheme_of(what: &OsStr) -> Option<&str> {
    let bytes = what.as_bytes();
    let len = bytes.windows(3).position(|window| window == b"://")?;
    let scheme = std::str::from_utf8(bytes.get(..len)?).ok()?;
    let is_scheme = scheme.starts_with(|char: char| char.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char));
    is_scheme.then_some(scheme)
}

fn unknown(name: &str, scheme: &str) -> CommandError {
    let [all @ .., last] = PREFIXES;
    CommandError::new(format!("{name}: no checksum source has addresses with '{scheme}://'")).next(format!(
        "Supported are {} and {last} (see 'byteback checksums --help'). For a file of this name, write ./{name}",
        all.join(", ")
    ))
}

/// Adds a hint to the error of a missing file that may have been meant as an address: `hdfs:/x`.
fn hinted(error: CommandError, name: &str) -> CommandError {
    let meant = PREFIXES.iter().find(|prefix| {
        let scheme = prefix.strip_suffix("//");
        scheme.is_some_and(|scheme| name.starts_with(scheme))
    });
    match meant {
        Some(prefix) => error.next(format!(
            "An address begins with {prefix}; see 'byteback checksums --help'."
        )),
        None => error,
    }
}

/// The rest of `what` after a prefix.
pub(super) fn after<'a>(what: &'a OsStr, prefix: &[u8]) -> Option<&'a Path> {
    let rest = what.as_bytes().strip_prefix(prefix)?;
    Some(Path::new(OsStr::from_bytes(rest)))
}

fn with_object(url: &str, settings: &Settings, then: &mut dyn FnMut(&dyn Source) -> Result<()>) -> Result<()> {
    let known = &settings.s3;
    let region = known.region.as_deref().unwrap_or("us-east-1");
    let place = Place::new(url, known.endpoint.as_deref(), region)
        .map_err(|what| CommandError::new(format!("{url}: {what}")).next("AWS_ENDPOINT_URL names the server."))?;
    let credentials = match (&known.access_key, &known.secret_key) {
        (Some(access_key), Some(secret_key)) => Some(Credentials {
            access_key: access_key.clone(),
            secret_key: secret_key.clone(),
            session_token: known.session_token.clone(),
        }),
        (None, None) => None,
        _ => {
            return Err(
                CommandError::new("only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set")
                    .next("Set both, or neither for public objects."),
            );
        }
    };
    let network = Network::new(settings.roots()?.as_deref());
    then(&S3Source::new(&network, &RealClock, place, credentials))
}

/// The error for a path whose checksums cannot be had.
pub(super) fn refused(path: &str, error: SourceError) -> CommandError {
    let said = CommandError::new(format!("{path}: {}", chain(&error)));
    match error {
        SourceError::NotHere(_) => said.next(ELSEWHERE),
        _ => said,
    }
}
