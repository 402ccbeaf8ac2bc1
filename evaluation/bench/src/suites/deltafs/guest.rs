//! F2FS, which this machine's kernel may not have: measured in a virtual machine with Debian's
//! kernel.
//!
//! This very program is started in there, with the trace and the initial tree, and prints a line of
//! JSON for each file system. The machine is emulated, so its counts are of use, but not its times.
//! It is started by the same script as for the tests.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::on_directory::{FileSystem, Mounted, OnDirectory, make_image};
use super::{database, stage};
use crate::SuiteError;
use crate::rig::process::{program, run};
use crate::rig::scratch::Scratch;
use crate::traces::{self, Trace, Unmasked};

/// The script, from the root of the repository.
const SCRIPT: &str = "evaluation/systems/machine";
const FOLDER_LEN_BYTES: u64 = 512 << 20;

/// The arguments of the program in the machine.
#[derive(Args, Debug)]
pub(crate) struct GuestArguments {
    /// A folder with the initial tree in `tree` and a trace without it in `trace`. Without a trace,
    /// the imitated database is replayed.
    folder: PathBuf,
}

/// The counts of one file system.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Counted {
    system: String,
    pub(crate) written_bytes: u64,
    pub(crate) tree: String,
}

/// Whether a machine can be started: the script, and the programs that it and the images need.
pub(crate) fn is_there() -> bool {
    let is_installed = |name: &str| program(name).arg("-V").output().is_ok();
    Path::new(SCRIPT).is_file() && is_installed("qemu-system-x86_64") && is_installed("mkfs.f2fs")
}

/// Replays a trace, whose initial tree is in `tree` of `folder`, on each file system that only the
/// machine has.
///
/// # Errors
/// If the machine does not start, or something fails in it; its output is in the error.
pub(crate) fn count(
    scratch: &Scratch,
    trace: &Trace,
    folder: &Path,
    len_bytes: u64,
) -> Result<Vec<(FileSystem, Counted)>, SuiteError> {
    let recorded = folder.join("trace");
    if let Some(source) = trace.source() {
        fs::create_dir(&recorded)?;
        trace.save_without_initial(source, &recorded)?;
    }
    let image = scratch.path().join("folder.image");
    fs::File::create(&image)?.set_len(FOLDER_LEN_BYTES)?;
    run(program("mkfs.ext4")
        .args(["-q", "-F", "-d"])
        .args([folder, image.as_path()]))?;
    let bench = std::env::current_exe()?;
    let mut machine = program(SCRIPT);
    machine.args(["run", "--module", "ext4", "--module", "f2fs", "--disk"]);
    machine.arg(&image).arg("--file").arg(&bench);
    for system in FileSystem::IN_GUEST {
        machine.arg("--disk").arg(make_image(scratch, system, len_bytes)?);
    }
    let mount = "mkdir /folder && mount -t ext4 -o ro /dev/vdb /folder";
    let inside = format!("{mount} && {} guest /folder", bench.display());
    let said = run(machine.arg("--").arg(&inside))?.text();
    fs::remove_file(&image)?;
    if recorded.is_dir() {
        fs::remove_dir_all(&recorded)?;
    }
    let lines = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Counted>(line).ok());
    let counted: Vec<_> = FileSystem::IN_GUEST.into_iter().zip(lines).collect();
    for (system, counted) in &counted {
        fs::remove_file(scratch.path().join(format!("{system:?}.image")))?;
        if counted.system != system.name() {
            return Err(format!(
                "the virtual machine answered for {} instead of {}",
                counted.system,
                system.name()
            )
            .into());
        }
    }
    if counted.len() < FileSystem::IN_GUEST.len() {
        return Err(format!("the virtual machine did not finish: {said}").into());
    }
    Ok(counted)
}

/// Runs in the machine: the disks behind the one with the initial tree are those of
/// [`FileSystem::IN_GUEST`].
///
/// # Errors
/// If something fails.
pub(crate) fn work(arguments: &GuestArguments) -> Result<(), SuiteError> {
    use std::io::Write;
    let recorded = arguments.folder.join("trace");
    let trace = match recorded.is_dir() {
        true => Trace::load(&recorded)?,
        false => database::trace()?,
    };
    let _unmasked = Unmasked::begin();
    for (system, letter) in FileSystem::IN_GUEST.into_iter().zip('c'..) {
        let point = PathBuf::from(format!("/mnt/{letter}"));
        fs::create_dir_all(&point)?;
        let mut mounted = Mounted::on_device(Path::new(&format!("/dev/vd{letter}")), system, &point)?;
        let tree = point.join("tree");
        run(program("cp").arg("-a").args([&arguments.folder.join("tree"), &tree]))?;
        mounted.mount_again()?;
        let before = mounted.written_bytes()?;
        stage::replay(&trace, &mut OnDirectory::begin(&trace, &tree)?)?;
        let written_bytes = mounted.written_bytes()? - before;
        mounted.mount_again()?;
        let counted = Counted {
            system: system.name().to_owned(),
            written_bytes,
            tree: traces::tree_hash(&tree)?,
        };
        writeln!(std::io::stdout(), "{}", serde_json::to_string(&counted)?)?;
    }
    Ok(())
}
