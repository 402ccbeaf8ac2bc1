//! Programs that were in the directory before it was mounted over.
//!
//! A working directory, a descriptor and a mapping stay what they are when something is mounted
//! above them: changes made through them pass the mount by for as long as the program lives. No
//! program can be moved over, but the user can be told which ones they are.
//!
//! Found by `/proc`: links that lead below the mount point, but to the backing file system. Only
//! root sees other users' programs. A program that holds nothing but a directory's descriptor is
//! not counted.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A program that can change the tree without passing the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramBelow {
    /// Its process.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// Its working directory lies there.
    pub works_there: bool,
    /// How many files there it can write through descriptors or shared mappings.
    pub open_files: usize,
}

/// The programs that are below the mount at `point`, on the file system `device`; not those of our
/// own program.
pub(super) fn programs_below(point: &Path, device: u64) -> Vec<ProgramBelow> {
    let ours = fs::read_link("/proc/self/exe").ok();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut programs = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let process = entry.path();
        if pid == std::process::id() || (ours.is_some() && fs::read_link(process.join("exe")).ok() == ours) {
            continue;
        }
        let works_there = is_below(&process.join("cwd"), point, device);
        let open_files = writable_descriptors(&process, point, device) + writable_mappings(&process, point, device);
        if works_there || open_files > 0 {
            let name = fs::read(process.join("comm")).unwrap_or_default();
            programs.push(ProgramBelow {
                pid,
                name: String::from_utf8_lossy(name.trim_ascii_end()).into_owned(),
                works_there,
                open_files,
            });
        }
    }
    programs.sort_unstable_by_key(|program| program.pid);
    programs
}

/// Whether the magic link leads below `point`, yet not through the mount.
fn is_below(link: &Path, point: &Path, device: u64) -> bool {
    // The text first: looking at the file itself may wait for a network.
    fs::read_link(link).is_ok_and(|target| target.starts_with(point))
        && fs::metadata(link).is_ok_and(|metadata| metadata.dev() == device)
}

fn writable_descriptors(process: &Path, point: &Path, device: u64) -> usize {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return 0;
    };
    let is_writable = |number: &OsStr| {
        let info = fs::read_to_string(process.join("fdinfo").join(number)).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        // Octal; the lowest two bits tell the access.
        flags
            .and_then(|flags| flags.trim().bytes().last())
            .is_some_and(|digit| matches!(digit & 3, 1 | 2))
    };
    descriptors
        .flatten()
        .filter(|descriptor| is_below(&descriptor.path(), point, device) && is_writable(&descriptor.file_name()))
        .count()
}

/// Shared mappings that can be written, one for each file.
fn writable_mappings(process: &Path, point: &Path, device: u64) -> usize {
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let on_device = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.split(|byte| *byte == b'\n') {
        // Addresses, rights, offset, device, inode; then the path.
        let fields: Vec<&[u8]> = line
            .split(|byte| *byte == b' ')
            .filter(|field| !field.is_empty())
            .take(5)
            .collect();
        let &[_, rights, _, on, ..] = fields.as_slice() else {
            continue;
        };
        let Some(start) = line.iter().position(|byte| *byte == b'/') else {
            continue;
        };
        let path = Path::new(OsStr::from_bytes(line.get(start..).unwrap_or_default()));
        if rights.get(1) == Some(&b'w')
            && rights.get(3) == Some(&b's')
            && path.starts_with(point)
            && on == on_device.as_bytes()
            && !files.iter().any(|file| file == path)
        {
            files.push(path.to_owned());
        }
    }
    files.len()
}
