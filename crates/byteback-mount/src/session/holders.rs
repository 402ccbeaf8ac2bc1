//! Finding out what still holds a mount that is gone from its place.
//!
//! The session lasts as long as anything refers to the mounted file system: a copy of the mount in
//! another mount namespace (a container, a service with a private `/tmp`, `unshare -m`), a bind
//! mount of it, a program that has a file of it open or works in it. Unmounting removes the one
//! mount that we made, and the kernel does not say what is left.
//!
//! Found by `/proc`: the tables of mounts of the namespaces that processes live in, and the device
//! behind what each process has open. No file system is asked. Root sees all processes, other users
//! see their own. A namespace without a process, and a mount that exists only as a descriptor
//! (`open_tree(2)`), are not found.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::mount_table::unescape;

/// Something that keeps a mount alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The process; `None` for a further mount in our own namespace.
    pub pid: Option<u32>,
    /// The name of that process.
    pub name: String,
    /// Where the mount namespace of that process, or ours, shows the file system.
    pub point: Option<PathBuf>,
    /// Whether the process works in the tree, or has its root directory there.
    pub works_there: bool,
    /// How many descriptors of the tree it has.
    pub open_files: usize,
}

/// The holders of the file system on `device`, written `MAJOR:MINOR`. Of each foreign mount
/// namespace one process is named.
pub(super) fn holders(device: &str) -> Vec<Holder> {
    let ours = fs::read_link("/proc/self/ns/mnt").ok();
    let mut namespaces: Vec<PathBuf> = Vec::new();
    let mut holders: Vec<Holder> = points(Path::new("/proc/self"), device)
        .into_iter()
        .map(|point| Holder {
            point: Some(point),
            ..Holder::default()
        })
        .collect();
    for pid in processes() {
        if pid == std::process::id() {
            continue;
        }
        let process = PathBuf::from(format!("/proc/{pid}"));
        let mut holder = Holder {
            pid: Some(pid),
            works_there: ["cwd", "root"].iter().any(|link| is_on(&process.join(link), device)),
            open_files: open_files(&process, device),
            ..Holder::default()
        };
        if let Ok(namespace) = fs::read_link(process.join("ns/mnt"))
            && Some(&namespace) != ours.as_ref()
            && !namespaces.contains(&namespace)
        {
            namespaces.push(namespace);
            holder.point = points(&process, device).into_iter().next();
        }
        if holder.point.is_some() || holder.works_there || holder.open_files > 0 {
            let name = fs::read(process.join("comm")).unwrap_or_default();
            holder.name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
            holders.push(holder);
        }
    }
    holders
}

/// All processes, in the order of their numbers.
fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids
}

/// Where the mount namespace of a process shows the device.
fn points(process: &Path, device: &str) -> Vec<PathBuf> {
    let table = fs::read(process.join("mountinfo")).unwrap_or_default();
    points_in(&table, device)
}

fn points_in(table: &[u8], device: &str) -> Vec<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| {
        // ID PARENT MAJOR:MINOR ROOT POINT ...
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        (fields.next() == Some(device.as_bytes())).then_some(())?;
        let point = unescape(fields.nth(1)?);
        Some(PathBuf::from(OsString::from_vec(point)))
    });
    points.collect()
}

fn open_files(process: &Path, device: &str) -> usize {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors
        .filter(|descriptor| is_on(&descriptor.path(), device))
        .count()
}

/// Whether a magic link of `/proc` leads to the device. Only what the kernel knows is asked for.
fn is_on(link: &Path, device: &str) -> bool {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    statx(CWD, link, flags, StatxFlags::empty())
        .is_ok_and(|told| format!("{}:{}", told.stx_dev_major, told.stx_dev_minor) == device)
}

#[cfg(test)]
mod tests;
