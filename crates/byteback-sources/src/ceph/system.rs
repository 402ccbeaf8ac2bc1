//! The calls of Ceph's own program, behind a trait so that the logic is tested with answers that no
//! real system gives.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;

use crate::programs::Programs;
use byteback_checksums::source::{Result, SourceError};

const PROGRAM: &str = "ceph-objectstore-tool";

/// Limit of an object's dump: some 40 bytes for each checksum, and 500 for each extent.
const DUMP_LEN_MAX: u64 = 128 << 20;

/// The queries to one store. Each query is answered while the store is locked.
pub(super) trait System {
    /// Passes a line for each object in a placement group to `each`; none if there is no such
    /// group.
    fn list(&self, pg: &str, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;

    /// The dump of an object, whose name is a line of the list.
    fn dump(&self, spec: &str) -> Result<Vec<u8>>;

    /// Writes the object's bytes to a file. Returns their number, which must be less than
    /// `len_max`.
    fn bytes(&self, spec: &str, len_max: u64, to: &File) -> Result<u64>;
}

/// The real store, queried by the tool.
#[derive(Debug)]
pub(super) struct RealSystem<'a> {
    osd: PathBuf,
    programs: &'a Programs,
}

impl<'a> RealSystem<'a> {
    pub(super) fn new(osd: PathBuf, programs: &'a Programs) -> Self {
        Self { osd, programs }
    }

    fn ask(&self, arguments: &[&str], take: impl FnOnce(&mut dyn Read) -> Result<()>) -> Result<()> {
        // Without asking the monitors, which may be gone, for settings.
        let mut all = vec![
            OsStr::new("--no-mon-config"),
            OsStr::new("--data-path"),
            self.osd.as_os_str(),
        ];
        all.extend(arguments.iter().map(OsStr::new));
        self.programs.read(PROGRAM, &all, &[], take).map_err(explained)
    }
}

/// The error that the program's complaint stands for.
pub(super) fn explained(error: SourceError) -> SourceError {
    let SourceError::Program { name, said } = error else {
        return error;
    };
    // The tool continues without its configuration, and says so each time.
    let said: Vec<_> = said
        .lines()
        .filter(|line| !line.starts_with("did not load config file"))
        .collect();
    let said = said.join("\n");
    let is_opening = said.contains("Mount failed") || said.contains("data-path");
    match said {
        said if is_opening && said.contains("(11) Resource temporarily unavailable") => SourceError::Denied(
            "the OSD's store is in use, usually by its running OSD, which reports no checksums; stop it ('ceph osd set \
             noout', then 'systemctl stop ceph-osd@NUMBER'), or read the object instead ('rados get')",
        ),
        said if is_opening && said.contains("Permission denied") => SourceError::Denied(
            "only ceph and root may open the OSD's store; run as one of them, or read the object instead ('rados get')",
        ),
        said if is_opening && said.contains("No such file or directory") => SourceError::Missing(
            "that folder has no OSD store, or its device is missing; name the folder that has 'type' and 'block' in it",
        ),
        // The message for an object that no longer exists.
        said if said.lines().any(|line| line.starts_with("Error getting attr on")) => {
            SourceError::Missing("the object is no longer in the OSD")
        }
        said => SourceError::Program { name, said },
    }
}

impl System for RealSystem<'_> {
    fn list(&self, pg: &str, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        // Without the object's name, which the tool would compare for us: a name may look like an
        // option.
        self.ask(&["--op", "list", "--pgid", pg], |said| {
            crate::programs::each_line(said, &mut |line: &[u8]| each(line))
        })
    }

    fn dump(&self, spec: &str) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        self.ask(&[spec, "dump"], |said| {
            let mut some = said.take(DUMP_LEN_MAX + 1);
            some.read_to_end(&mut text)
                .map_err(SourceError::io("read the output of a program"))?;
            match text.len() as u64 > DUMP_LEN_MAX {
                true => Err(SourceError::NotHere(
                    "the object has more extents than this program supports",
                )),
                false => Ok(()),
            }
        })?;
        Ok(text)
    }

    fn bytes(&self, spec: &str, len_max: u64, mut to: &File) -> Result<u64> {
        const WHAT: &str = "copy the object to a temporary file";
        to.rewind().map_err(SourceError::io(WHAT))?;
        let mut len_bytes = 0;
        self.ask(&[spec, "get-bytes"], |said| {
            len_bytes = std::io::copy(&mut said.take(len_max), &mut to).map_err(SourceError::io(WHAT))?;
            match len_bytes == len_max {
                // The tool has more to print; do not wait for a reader that never comes.
                true => Err(SourceError::ChangedMeanwhile),
                false => Ok(()),
            }
        })?;
        Ok(len_bytes)
    }
}
