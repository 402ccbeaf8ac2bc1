//! The destination of a push: the directory at the server, and the missing ones on the way to it.

use super::Job;
use super::resume::Begun;
use crate::error::{BackupError, Result};
use crate::tree_reader::{TreeReader, join_path};
use byteback_client::ServerErrorKind;
use byteback_host::tree::check_component;
use byteback_model::{Attributes, ByteString, FileId, NodeInfo, NodeKind};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The place of a push.
pub(super) struct Place {
    /// The folder's root, existing or to be made.
    pub(super) root: FileId,
    /// Directories that have to be made, with their parent and name in it; the root has none.
    pub(super) missing: Vec<(FileId, Option<(FileId, ByteString)>)>,
    /// The directory whose content the source becomes, or that the file goes into.
    pub(super) dir: FileId,
    /// The parent of that directory and its name there; the root has none.
    pub(super) above: Option<(FileId, ByteString)>,
    /// The server's node of that directory.
    pub(super) dir_node: Option<NodeInfo>,
    /// Its path in the folder.
    pub(super) path: Vec<u8>,
    /// The name under which a file goes into it, and the server's node there.
    pub(super) file: Option<(ByteString, Option<NodeInfo>)>,
}

/// Looks for the place; `is_directory`: a directory is pushed.
pub(super) fn destination(job: &Job<'_>, begun: &Begun, is_directory: bool) -> Result<Place> {
    let mut tree = TreeReader::new(job.server, job.folder, begun.base_seq);
    let mut node_at = |path: &[u8]| match begun.base_seq {
        0 => Ok(None),
        _ => match tree.node_at(path) {
            Ok(node) => Ok(Some(node)),
            Err(BackupError::Server(error)) if error.kind == ServerErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        },
    };
    let names: Vec<&[u8]> = match job.to {
        b"" => Vec::new(),
        to => to.split(|byte| *byte == b'/').collect(),
    };
    for name in &names {
        if check_component(OsStr::from_bytes(name)).is_err() || name.len() > 255 {
            return Err(BackupError::BadDestination {
                path: shown(job.to),
                why: "one of its components is not a file name",
            });
        }
    }
    let own_name = job.source.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
    let there = node_at(job.to)?;
    let is_a_directory_there = there
        .as_ref()
        .is_some_and(|node| node.attributes.kind == NodeKind::Directory);
    // A file becomes the last name, unless that is a directory.
    let goes_into = is_directory || job.to.is_empty() || job.to_is_directory || is_a_directory_there;
    let (dir_names, file_name) = match names.split_last() {
        Some((last, above)) if !goes_into => (above, Some(*last)),
        _ => (&names[..], (!is_directory).then_some(own_name)),
    };
    let mut path = Vec::new();
    let mut dir_node = match names.is_empty() {
        true => there,
        false => node_at(b"")?,
    };
    let root = dir_node.as_ref().map_or_else(|| begun.node_id(b""), |node| node.id);
    let mut missing = Vec::new();
    let mut dir = root;
    let mut above = None;
    if dir_node.is_none() && !(is_directory && names.is_empty()) {
        missing.push((root, None));
    }
    for (at, name) in dir_names.iter().enumerate() {
        let parent = dir;
        above = Some((parent, ByteString::from(*name)));
        path = join_path(&path, name);
        if dir_node.is_some() {
            dir_node = node_at(&path)?;
        }
        if let Some(node) = &dir_node {
            if node.attributes.kind != NodeKind::Directory {
                return Err(BackupError::BadDestination {
                    path: shown(&path),
                    why: "it is not a directory at the server",
                });
            }
            dir = node.id;
            continue;
        }
        dir = begun.node_id(&path);
        // The last one is made with the attributes of the source.
        if !(is_directory && at + 1 == dir_names.len()) {
            missing.push((dir, Some((parent, ByteString::from(*name)))));
        }
    }
    let mut file = None;
    if let Some(name) = file_name {
        let there = match dir_node {
            Some(_) => node_at(&join_path(&path, name))?,
            None => None,
        };
        file = Some((ByteString::from(name), there));
    }
    Ok(Place {
        root,
        missing,
        dir,
        above,
        dir_node,
        path,
        file,
    })
}

fn shown(path: &[u8]) -> String {
    ByteString::from(path).to_string()
}

/// The attributes of a directory that is made on the way.
pub(super) fn made_directory(created_ns: i64) -> Attributes {
    Attributes {
        kind: NodeKind::Directory,
        mode: 0o755,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        size: 0,
        mtime_ns: created_ns.into(),
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    }
}
