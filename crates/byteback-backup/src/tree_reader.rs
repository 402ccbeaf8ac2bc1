//! Reads directories of a snapshot, and checks what the server says about them.
//!
//! A name is one component; names of a directory ascend, hence none comes twice and pages cannot go
//! in circles; a directory is met once, hence there are no cycles; all pages are of the moment that
//! was asked for. An answer that breaks one of these rules ends the operation: a server that
//! invents names could also invent contents, so nothing of it is used further.

use crate::error::{BackupError, Result};
use byteback_api::FolderName;
use byteback_api::messages::{EntryInfo, TreePage};
use byteback_client::{ServerClient, TreePlace};
use byteback_host::tree::check_component;
use byteback_model::{FileId, NodeInfo, NodeKind, Seq};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Longest name that Linux allows.
const NAME_LEN_MAX: usize = 255;

/// The directories of one folder at one moment.
pub(crate) struct TreeReader<'a> {
    server: &'a ServerClient,
    folder: &'a FolderName,
    at: Seq,
    /// The root, if it is known: it is asked for without its ID, which is longer than the question.
    root: Option<FileId>,
    /// Directories met so far.
    visited: HashSet<FileId>,
}

impl<'a> TreeReader<'a> {
    pub(crate) fn new(server: &'a ServerClient, folder: &'a FolderName, at: Seq) -> Self {
        Self {
            server,
            folder,
            at,
            root: None,
            visited: HashSet::new(),
        }
    }

    /// The same for a reader of a folder whose root is known.
    pub(crate) fn with_root(self, root: Option<FileId>) -> Self {
        Self { root, ..self }
    }

    /// The node at `path` below the root.
    pub(crate) fn node_at(&mut self, path: &[u8]) -> Result<NodeInfo> {
        let page = self.server.tree_node(self.folder, self.at, TreePlace::Path(path))?;
        let page = self.of_moment(page)?;
        check_attributes(&page.node, path)?;
        Ok(page.node)
    }

    /// Hands the entries of a directory to `each`, in byte order of their names; `path` is for
    /// messages.
    pub(crate) fn entries(
        &mut self,
        dir: FileId,
        path: &[u8],
        mut each: impl FnMut(EntryInfo) -> Result<()>,
    ) -> Result<()> {
        self.entries_while(dir, path, |entry| each(entry).map(|()| true))
            .map(drop)
    }

    /// Like [`Self::entries`], as long as `each` wants more; returns whether it got all.
    pub(crate) fn entries_while(
        &mut self,
        dir: FileId,
        path: &[u8],
        mut each: impl FnMut(EntryInfo) -> Result<bool>,
    ) -> Result<bool> {
        if !self.visited.insert(dir) {
            return Err(BackupError::hostile(format!(
                "directory {dir} occurs twice, the second time at '{}'",
                byteback_model::ByteString::from(path)
            )));
        }
        let mut last: Option<Vec<u8>> = None;
        let mut cursor: Option<String> = None;
        loop {
            let place = match self.root == Some(dir) {
                true => TreePlace::Path(b""),
                false => TreePlace::Node(dir),
            };
            let page = self.page(place, cursor.as_deref())?;
            if page.node.id != dir || page.node.attributes.kind != NodeKind::Directory {
                return Err(BackupError::hostile(format!(
                    "directory {dir} was requested, another node came"
                )));
            }
            if page.entries.is_empty() && page.next_cursor.is_some() {
                return Err(BackupError::hostile(format!(
                    "an empty page of directory {dir} announces another one"
                )));
            }
            for entry in page.entries {
                let name = entry.name.as_bytes();
                if name.len() > NAME_LEN_MAX || check_component(OsStr::from_bytes(name)).is_err() {
                    return Err(BackupError::hostile(format!("'{}' is not a file name", entry.name)));
                }
                if last.as_deref().is_some_and(|last| last >= name) {
                    return Err(BackupError::hostile(format!(
                        "the name '{}' is listed out of order",
                        entry.name
                    )));
                }
                last = Some(name.to_vec());
                check_attributes(&entry.node, name)?;
                if !each(entry)? {
                    return Ok(false);
                }
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return Ok(true),
            }
        }
    }

    fn page(&self, place: TreePlace<'_>, cursor: Option<&str>) -> Result<TreePage> {
        let page = self.server.tree_page(self.folder, self.at, place, cursor)?;
        self.of_moment(page)
    }

    fn of_moment(&self, page: TreePage) -> Result<TreePage> {
        if page.at != self.at {
            return Err(BackupError::hostile(format!(
                "sequence number {} was requested, {} came",
                self.at, page.at
            )));
        }
        Ok(page)
    }
}

/// Checks the rules without which attributes cannot be used at all.
fn check_attributes(node: &NodeInfo, name: &[u8]) -> Result<()> {
    let attributes = &node.attributes;
    let wrong = |what: &str| {
        let name = byteback_model::ByteString::from(name);
        Err(BackupError::hostile(format!("{what} of '{name}' ({})", node.id)))
    };
    if attributes.mode & !0o7777 != 0 {
        return wrong("impossible permissions");
    }
    if attributes.size > byteback_delta::FILE_LEN_MAX || (attributes.kind != NodeKind::File && attributes.size != 0) {
        return wrong("an impossible size");
    }
    match (&attributes.target, attributes.kind) {
        (Some(target), NodeKind::Symlink) => {
            if target.as_bytes().is_empty() || target.as_bytes().contains(&0) || target.as_bytes().len() > 4095 {
                return wrong("an impossible symlink target");
            }
        }
        (None, NodeKind::Symlink) => return wrong("a missing symlink target"),
        (Some(_), _) => return wrong("an unexpected symlink target"),
        (None, _) => {}
    }
    Ok(())
}

/// `dir/name`, or `name` in the root.
pub(crate) fn join_path(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    if !dir.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
