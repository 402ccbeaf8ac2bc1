//! `byteback volume`: makes volumes on files and devices, checks them, and copies files out of
//! them.

mod extract;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use byteback_host::block::{Access, BLOCK_LEN_BYTES, BlockDevice, DeviceInUse, RealBlockDevice};
use byteback_host::random::{Randomness, RealRandomness};
use byteback_model::ByteString;
use byteback_volume::{
    CheckOptions, CreateOptions, OpenOptions, Problem, RepairOptions, Repaired, Report, Volume, VolumeError,
};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::error::{CommandError, Result, chain};
use crate::exit_code::Exit;
use crate::output::Output;
use crate::settings::Settings;
use crate::when;
use crate::wording::{counted, size, size_exact};

/// Blocks at the beginning of a device that must be zeros before it is overwritten without
/// `--force`.
const LOOKED_AT_BLOCKS: u64 = 256;

/// Longest label, in bytes.
const LABEL_LEN_BYTES_MAX: usize = 64;

/// Problems shown without `-v`.
const PROBLEMS_SHOWN: usize = 50;

/// Flags of `volume`.
#[derive(Args, Debug)]
#[command(
    after_help = "A volume is a file system in one file or on one device that stores overwritten pages as small
deltas and so writes less:
  byteback volume create card.img --size 4G
  byteback volume check card.img
  byteback volume extract card.img rescued"
)]
pub(crate) struct VolumeArguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create an empty volume in a new file, or on a device
    Create(Create),
    /// Check whether a volume is intact, and repair it with --repair
    Check(Check),
    /// Copy what can be read of a volume into a directory, without mounting it or writing to it
    Extract(extract::Extract),
}

#[derive(Args, Debug)]
struct Create {
    /// A file that does not exist yet, or a device
    #[arg(value_name = "FILE_OR_DEVICE")]
    place: PathBuf,
    /// Size of a new file (4G); a device is used as a whole
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Label of the volume, at most 64 bytes
    #[arg(long, value_name = "NAME", default_value = "")]
    label: String,
    /// Compress pages where that writes fewer blocks, for devices that wear out. Reading takes
    /// longer; no space is saved
    #[arg(long)]
    compress: bool,
    /// Overwrite existing content
    #[arg(long)]
    force: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Exit code 1 if problems are found, or remain after --repair. A repair invents no content:
damaged parts cannot be read until their file is removed or overwritten, and files that lost their
names get new ones in lost+found. Copy the image before you repair it, if you can."
)]
struct Check {
    /// The file or device, which must not be mounted
    #[arg(value_name = "FILE_OR_DEVICE")]
    place: PathBuf,
    /// Repair what can be repaired
    #[arg(long)]
    repair: bool,
    /// Do not read the contents of files
    #[arg(long)]
    no_contents: bool,
}

#[derive(Serialize)]
struct Created {
    path: ByteString,
    id: String,
    label: ByteString,
    compressed: bool,
    size: u64,
    usable: u64,
}

#[derive(Serialize)]
struct ProblemLine<'a> {
    kind: &'a str,
    message: String,
    path: Option<ByteString>,
    inode: Option<u32>,
    is_loss: bool,
    is_left: bool,
}

#[derive(Serialize)]
struct Checked {
    path: ByteString,
    label: ByteString,
    size: u64,
    sound: bool,
    closed: bool,
    problems: u64,
    files: u64,
    directories: u64,
    used: u64,
    pages: u64,
    deltas: u64,
    repair: Option<RepairLine>,
}

#[derive(Serialize)]
struct RepairLine {
    problems_before: u64,
    gave_up_synced: bool,
    named: u64,
    unproven_pages: u64,
}

pub(crate) fn run(arguments: &VolumeArguments, settings: &Settings) -> Result<()> {
    match &arguments.verb {
        Verb::Create(create) => self::create(create, settings.output),
        Verb::Check(check) => self::check(check, settings.output),
        Verb::Extract(extract) => extract::run(extract, settings),
    }
}

fn said(path: &Path) -> ByteString {
    use std::os::unix::ffi::OsStrExt;
    ByteString::from(path.as_os_str().as_bytes())
}

/// An error of a device; its text names the device.
fn device_error(error: &io::Error) -> CommandError {
    let is_in_use = error.get_ref().is_some_and(|inner| inner.is::<DeviceInUse>());
    let exit = if is_in_use { Exit::Locked } else { Exit::Failed };
    CommandError::with_exit(exit, chain(error))
}

fn volume_error(place: &Path, error: &VolumeError) -> CommandError {
    match error {
        VolumeError::Device(error) => device_error(error),
        other => CommandError::new(format!("{}: {other}", place.display())),
    }
}

fn create(arguments: &Create, output: Output) -> Result<()> {
    let place = &arguments.place;
    if arguments.label.len() > LABEL_LEN_BYTES_MAX {
        return Err(CommandError::new(format!(
            "the label is longer than {LABEL_LEN_BYTES_MAX} bytes"
        )));
    }
    let wanted = arguments.size.as_deref().map(when::amount).transpose();
    let wanted_bytes = wanted.map_err(CommandError::new)?;
    let is_new = !place.exists();
    let device = match (is_new, wanted_bytes) {
        (true, Some(bytes)) => {
            RealBlockDevice::create(place, bytes / BLOCK_LEN_BYTES as u64).map_err(|error| device_error(&error))?
        }
        (true, None) => {
            return Err(CommandError::new(format!("{} does not exist", place.display()))
                .next("To create it, give its size: --size 4G. It takes up space as it is filled."));
        }
        (false, Some(_)) => {
            return Err(CommandError::new(format!("{} already exists", place.display()))
                .next("Leave out --size to use a device, or with --force a file, as it is; or name another file."));
        }
        (false, None) => RealBlockDevice::open(place, Access::ReadWrite).map_err(|error| device_error(&error))?,
    };
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let made = make(&device, arguments, is_new);
    if made.is_err() && is_new {
        let _ = std::fs::remove_file(place);
    }
    let created = made?;
    match output.json {
        true => output.object("summary", &created),
        false => output.say(format!(
            "Created a volume of {} in {}, of which files can use {}.",
            size(created.size),
            place.display(),
            size(created.usable)
        )),
    }
}

fn make(device: &Arc<dyn BlockDevice>, arguments: &Create, is_new: bool) -> Result<Created> {
    let place = &arguments.place;
    if !is_new && !arguments.force {
        look_for_something(&**device, place)?;
    }
    let mut id = [0; 16];
    let mut draw = || -> io::Result<u64> {
        RealRandomness.fill(&mut id)?;
        RealRandomness.next_u64()
    };
    let hash_seed = draw().map_err(|error| device_error(&error))?;
    let options = CreateOptions {
        label: arguments.label.clone().into_bytes(),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        is_compressed: arguments.compress,
        ..CreateOptions::new(byteback_volume::format::VolumeId(id), hash_seed)
    };
    let failed = |error: VolumeError| volume_error(place, &error);
    byteback_volume::create(device, &options).map_err(failed)?;
    let reading = OpenOptions {
        is_writable: false,
        ..OpenOptions::default()
    };
    let usage = Volume::open(Arc::clone(device), &reading).map_err(failed)?.usage();
    Ok(Created {
        path: said(place),
        id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
        label: ByteString::from(arguments.label.as_bytes()),
        compressed: arguments.compress,
        size: device.len_blocks().saturating_mul(BLOCK_LEN_BYTES as u64),
        usable: usage.blocks.saturating_mul(BLOCK_LEN_BYTES as u64),
    })
}

/// Refuses to overwrite a device that is not empty.
fn look_for_something(device: &dyn BlockDevice, place: &Path) -> Result<()> {
    let len_blocks = device.len_blocks();
    let beginning = 0..len_blocks.min(LOOKED_AT_BLOCKS);
    let mut block = [0; BLOCK_LEN_BYTES];
    for at in beginning.chain(len_blocks.checked_sub(1)) {
        device
            .read_blocks(at, &mut block)
            .map_err(|error| device_error(&error))?;
        if block.iter().any(|byte| *byte != 0) {
            return Err(CommandError::new(format!("{} is not empty", place.display()))
                .next("If its content is not needed, add --force."));
        }
    }
    Ok(())
}

fn check(arguments: &Check, output: Output) -> Result<()> {
    let place = &arguments.place;
    let access = if arguments.repair {
        Access::ReadWrite
    } else {
        Access::Read
    };
    let device = RealBlockDevice::open(place, access).map_err(|error| device_error(&error))?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let options = CheckOptions {
        reads_contents: !arguments.no_contents,
    };
    let (report, repaired) = match arguments.repair {
        false => (byteback_volume::check(&*device, options), None),
        true => {
            let options = RepairOptions {
                check: options,
                ..RepairOptions::default()
            };
            match byteback_volume::repair(&device, &options) {
                Ok(repaired) => (Ok(repaired.after.clone()), Some(repaired)),
                Err(error) => (Err(error), None),
            }
        }
    };
    let report = report.map_err(|error| volume_error(place, &error))?;
    match output.json {
        true => print_objects(place, &report, repaired.as_ref(), output)?,
        false => print(place, &report, repaired.as_ref(), output)?,
    }
    match report.is_sound() {
        true => Ok(()),
        false => Err(CommandError::Reported(Exit::Failed)),
    }
}

fn print_objects(place: &Path, report: &Report, repaired: Option<&Repaired>, output: Output) -> Result<()> {
    let first = repaired.map_or(report, |repaired| &repaired.before);
    let is_again = |problem: &Problem| first.problems.contains(problem);
    let new_ones = report.problems.iter().filter(|problem| !is_again(problem));
    for problem in first.problems.iter().chain(new_ones) {
        let line = ProblemLine {
            kind: problem.trouble.kind(),
            message: problem.trouble.to_string(),
            path: problem.path.as_deref().map(ByteString::from),
            inode: problem.trouble.nid().map(|nid| nid.0),
            is_loss: problem.trouble.is_loss(),
            is_left: report.problems.contains(problem),
        };
        output.object("problem", &line)?;
    }
    let in_bytes = |blocks: u64| blocks.saturating_mul(BLOCK_LEN_BYTES as u64);
    let checked = Checked {
        path: said(place),
        label: ByteString::from(&report.label[..]),
        size: in_bytes(report.len_blocks),
        sound: report.is_sound(),
        closed: report.is_closed,
        problems: report.problem_count,
        files: report.files,
        directories: report.directories,
        used: in_bytes(report.used_blocks),
        pages: report.pages,
        deltas: report.deltas,
        repair: repaired.map(|repaired| RepairLine {
            problems_before: repaired.before.problem_count,
            gave_up_synced: repaired.gave_up_synced,
            named: repaired.named,
            unproven_pages: repaired.unproven_pages,
        }),
    };
    output.object("summary", &checked)
}

fn print_problems(report: &Report, output: Output) -> Result<()> {
    let shown = match output.verbosity {
        0 => PROBLEMS_SHOWN,
        _ => usize::MAX,
    };
    for problem in report.problems.iter().take(shown) {
        output.line(format!("  {problem}"))?;
    }
    let more = report
        .problem_count
        .saturating_sub(report.problems.len().min(shown) as u64);
    match more {
        0 => Ok(()),
        more => output.line(format!(
            "  and {}; -v shows up to 10,000",
            counted(more, "more problem", "more problems")
        )),
    }
}

fn print(place: &Path, report: &Report, repaired: Option<&Repaired>, output: Output) -> Result<()> {
    let place = place.display();
    if let Some(repaired) = repaired.filter(|repaired| !repaired.before.is_sound()) {
        output.say(format!(
            "{place} had {}:",
            counted(repaired.before.problem_count, "problem", "problems")
        ))?;
        print_problems(&repaired.before, output)?;
        if repaired.gave_up_synced {
            output.say("Data synced after the last checkpoint could not be recovered.")?;
        }
        if repaired.named > 0 {
            let files = counted(repaired.named, "file or directory", "files and directories");
            output.say(format!("Now in lost+found, as their names were lost: {files}."))?;
        }
        if repaired.unproven_pages > 0 {
            let pages = counted(repaired.unproven_pages, "page", "pages");
            output.say(format!(
                "The checksums of {pages} of 4 KiB were lost: whether their content is correct is not known."
            ))?;
        }
        if report.is_sound() {
            return output.say(format!("Everything is repaired. {}", contents(report, output)));
        }
        output.say("These problems remain:")?;
        print_problems(report, output)?;
        return output
            .say("Those parts cannot be read until the file is removed or overwritten. A backup has what was lost.");
    }
    match report.is_sound() {
        true => output.say(format!("{place} is intact. {}", contents(report, output)))?,
        false => {
            output.say(format!(
                "{place} has {}:",
                counted(report.problem_count, "problem", "problems")
            ))?;
            print_problems(report, output)?;
            output.say(
                "'byteback volume check --repair' repairs what can be repaired; copy the image first, if you can. \
                     'byteback volume extract' copies what can be read, and writes nothing to it.",
            )?;
        }
    }
    match report.is_closed {
        true => Ok(()),
        false => output
            .say("It was not unmounted cleanly: the data synced last is recovered when it is mounted, or by --repair."),
    }
}

fn contents(report: &Report, output: Output) -> String {
    let used = size_exact(
        report.used_blocks.saturating_mul(BLOCK_LEN_BYTES as u64),
        output.verbosity > 0,
    );
    let files = counted(report.files.saturating_sub(report.directories), "file", "files");
    let directories = counted(report.directories, "directory", "directories");
    format!(
        "{files} in {directories}, {used} in use, {}.",
        counted(report.deltas, "delta", "deltas")
    )
}
