//! Contents of a folder by path, as any program sees them: of a machine's directory, and of the
//! server at any of its sequence numbers.

use byteback_api::FolderName;
use byteback_client::{ServerClient, TreePlace};
use byteback_delta::{DeltaReader, EmptyBase, apply_to_new};
use byteback_model::{FileId, NodeKind, Seq};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// A node with a name.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// `None` for a directory; of a symlink, its target.
    pub(crate) content: Option<Arc<Vec<u8>>>,
    mode: u32,
    /// Modification time; 0 where that is not compared, and of symlinks.
    modified_ns: i64,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content {
            None => write!(f, "directory {:o} of {}", self.mode, self.modified_ns),
            Some(content) => {
                let crc = content
                    .iter()
                    .fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
                write!(
                    f,
                    "{} bytes #{crc:08x} {:o} of {}",
                    content.len(),
                    self.mode,
                    self.modified_ns
                )
            }
        }
    }
}

/// Contents of a folder: see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State(pub(crate) BTreeMap<Vec<u8>, Entry>);

fn joined(at: &[u8], name: &[u8]) -> Vec<u8> {
    match at {
        [] => name.to_vec(),
        at => [at, b"/", name].concat(),
    }
}

impl State {
    pub(crate) fn of_directory(dir: &Path) -> Self {
        let mut state = Self::default();
        state.add_directory(dir, &[], false);
        state
    }

    /// As `of_directory`, with the times of files and directories, that of the root among them.
    pub(crate) fn of_directory_with_times(dir: &Path) -> Self {
        let mut state = Self::default();
        state.add_directory(dir, &[], true);
        let root = dir.symlink_metadata().unwrap();
        let root = Entry {
            content: None,
            mode: root.permissions().mode() & 0o7777,
            modified_ns: root.mtime() * 1_000_000_000 + root.mtime_nsec(),
        };
        state.0.insert(Vec::new(), root);
        state
    }

    /// State of a directory with these files.
    pub(crate) fn of_files(files: &[(&str, &str)]) -> Self {
        let entry = |content: &str| Entry {
            content: Some(Arc::new(content.as_bytes().to_vec())),
            mode: 0o644,
            modified_ns: 0,
        };
        let files = files.iter();
        Self(
            files
                .map(|(name, content)| (name.as_bytes().to_vec(), entry(content)))
                .collect(),
        )
    }

    /// A directory of it with all entries, under its names here.
    pub(crate) fn below(&self, directory: &[u8]) -> Self {
        let is_below = |name: &[u8]| {
            let rest = name.strip_prefix(directory);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        let entries = self.0.iter().filter(|(name, _)| is_below(name));
        Self(entries.map(|(name, entry)| (name.clone(), entry.clone())).collect())
    }

    fn add_directory(&mut self, dir: &Path, at: &[u8], with_times: bool) {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let (path, name) = (entry.path(), joined(at, entry.file_name().as_bytes()));
            let found = path.symlink_metadata().unwrap();
            let mode = found.permissions().mode() & 0o7777;
            let content = if found.is_dir() {
                self.add_directory(&path, &name, with_times);
                None
            } else if found.is_symlink() {
                Some(fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
            } else {
                Some(fs::read(&path).unwrap())
            };
            let modified_ns = match with_times && !found.is_symlink() {
                true => found.mtime() * 1_000_000_000 + found.mtime_nsec(),
                false => 0,
            };
            let content = content.map(Arc::new);
            self.0.insert(
                name,
                Entry {
                    content,
                    mode,
                    modified_ns,
                },
            );
        }
    }

    /// The first differences, in words.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let names = self.0.keys().chain(other.0.keys());
        let names = names.collect::<std::collections::BTreeSet<_>>();
        let different = names.into_iter().filter_map(|name| {
            let (one, two) = (self.0.get(name), other.0.get(name));
            (one != two).then(|| format!("{}: {one:?} and {two:?}", String::from_utf8_lossy(name)))
        });
        different.take(10).collect()
    }
}

/// Reads the server's folder, each content once.
pub(crate) struct Reader<'a> {
    pub(crate) client: &'a ServerClient,
    pub(crate) folder: &'a FolderName,
    contents: BTreeMap<(FileId, Seq), Arc<Vec<u8>>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(client: &'a ServerClient, folder: &'a FolderName) -> Self {
        Self {
            client,
            folder,
            contents: BTreeMap::new(),
        }
    }

    /// State of the folder after a batch.
    pub(crate) fn at(&mut self, seq: Seq) -> State {
        let mut state = State::default();
        self.add(seq, TreePlace::Path(&[]), &[], &mut state);
        state
    }

    fn add(&mut self, seq: Seq, place: TreePlace<'_>, at: &[u8], state: &mut State) {
        let mut cursor: Option<String> = None;
        loop {
            let page = self
                .client
                .tree_page(self.folder, seq, place, cursor.as_deref())
                .unwrap();
            for entry in page.entries {
                let (node, name) = (entry.node, joined(at, entry.name.as_bytes()));
                let content = match node.attributes.kind {
                    NodeKind::Directory => {
                        self.add(seq, TreePlace::Node(node.id), &name, state);
                        None
                    }
                    NodeKind::File => Some(self.content(node.id, seq, node.seq)),
                    _ => node
                        .attributes
                        .target
                        .as_ref()
                        .map(|target| Arc::new(target.as_bytes().to_vec())),
                };
                let mode = node.attributes.mode & 0o7777;
                let modified_ns = 0;
                state.0.insert(
                    name,
                    Entry {
                        content,
                        mode,
                        modified_ns,
                    },
                );
            }
            match page.next_cursor {
                Some(next) => cursor = Some(next),
                None => return,
            }
        }
    }

    fn content(&mut self, file: FileId, seq: Seq, changed: Seq) -> Arc<Vec<u8>> {
        if let Some(known) = self.contents.get(&(file, changed)) {
            return Arc::clone(known);
        }
        let reader = self.client.content(self.folder, file, seq, 0, &|_| true).unwrap();
        let mut held = Vec::new();
        apply_to_new(&EmptyBase, &mut DeltaReader::new(reader).unwrap(), &mut held).unwrap();
        let held = Arc::new(held);
        self.contents.insert((file, changed), Arc::clone(&held));
        held
    }
}
