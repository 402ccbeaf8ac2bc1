//! The hash of a tree, by the trace set's own definition.
//!
//! SHA-256 over one line per entry, in the order of their paths: kind, permissions, path, for files
//! length and hash of the content, for symlinks the target, and the extended attributes that users
//! can set; then one line per group of names of one file. Times and owners do not count.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::FileType;
use sha2::{Digest, Sha256};

use crate::SuiteError;
use crate::rig::interrupt;

#[cfg(test)]
mod tests;

const BLOCK_BYTES: usize = 1 << 20;

/// The hash of the tree below `root`, as hexadecimal digits.
///
/// # Errors
/// If a part of it cannot be read.
pub(crate) fn tree_hash(root: &Path) -> Result<String, SuiteError> {
    let mut listing = Listing::default();
    listing.walk(root, b"")?;
    let mut hash = Sha256::new();
    let groups = listing.groups.into_values().filter(|names| names.len() > 1);
    let mut groups: Vec<Vec<Vec<u8>>> = groups
        .map(|mut names| {
            names.sort();
            names
        })
        .collect();
    groups.sort();
    let groups = groups
        .iter()
        .map(|names| [b"= ".as_slice(), &names.join(&b' ')].concat());
    for (index, line) in listing.rows.into_values().chain(groups).enumerate() {
        if index > 0 {
            hash.update(b"\n");
        }
        hash.update(&line);
    }
    Ok(hex(&hash.finalize()))
}

#[derive(Default)]
struct Listing {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names of files with several names, by device and inode.
    groups: BTreeMap<(u64, u64), Vec<Vec<u8>>>,
}

impl Listing {
    fn walk(&mut self, folder: &Path, relative: &[u8]) -> Result<(), SuiteError> {
        interrupt::check()?;
        for entry in fs::read_dir(folder).map_err(|error| failed(folder, &error))? {
            let entry = entry.map_err(|error| failed(folder, &error))?;
            let path = entry.path();
            let name = entry.file_name();
            let relative = match relative {
                b"" => name.as_bytes().to_vec(),
                above => [above, b"/", name.as_bytes()].concat(),
            };
            let is_folder = self
                .add(&path, relative.clone())
                .map_err(|error| failed(&path, &error))?;
            if is_folder {
                self.walk(&path, &relative)?;
            }
        }
        Ok(())
    }

    /// Adds one entry. Returns whether it is a folder.
    fn add(&mut self, path: &Path, relative: Vec<u8>) -> std::io::Result<bool> {
        let metadata = fs::symlink_metadata(path)?;
        let mut mode = metadata.mode() & 0o7777;
        let mut after = Vec::new();
        let file_type = FileType::from_raw_mode(metadata.mode());
        let kind = match file_type {
            FileType::RegularFile => {
                after = format!("{} {}", metadata.size(), content_hash(path)?).into_bytes();
                if metadata.nlink() > 1 {
                    let names = self.groups.entry((metadata.dev(), metadata.ino())).or_default();
                    names.push(relative.clone());
                }
                "f".to_owned()
            }
            FileType::Directory => "d".to_owned(),
            FileType::Symlink => {
                after = fs::read_link(path)?.into_os_string().into_vec();
                mode = 0;
                "l".to_owned()
            }
            other => format!("o{:o}", other.as_raw_mode()),
        };
        if file_type != FileType::Symlink {
            after.extend(user_xattrs(path));
        }
        let head = format!("{kind} {mode:o} ");
        let row = [head.as_bytes(), &relative, b" ", &after].concat();
        self.rows.insert(relative, row);
        Ok(file_type == FileType::Directory)
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> SuiteError {
    format!("cannot read {}: {error}", path.display()).into()
}

fn content_hash(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hex(&hash.finalize())),
            len => hash.update(&block[..len]),
        }
    }
}

/// ` NAME=VALUE` for each, in order; empty without attributes or support for them.
fn user_xattrs(path: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    let mut names = [0_u8; 1 << 16];
    let Ok(len) = rustix::fs::listxattr(path, &mut names) else {
        return text;
    };
    let mut names: Vec<OsString> = names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| name.starts_with(b"user."))
        .map(|name| OsStr::from_bytes(name).to_owned())
        .collect();
    names.sort();
    let mut value = [0_u8; 1 << 16];
    for name in names {
        if let Ok(len) = rustix::fs::getxattr(path, &*name, &mut value) {
            text.extend_from_slice(b" ");
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(format!("={}", hex(&value[..len])).as_bytes());
        }
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
