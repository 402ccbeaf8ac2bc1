//! The server's nodes whose contents or identities may be wanted under another path.

use byteback_api::messages::EntryInfo;
use byteback_model::{ByteString, FileId, NodeInfo, NodeKind};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Most files of the server that are remembered: 48 bytes each.
const FILES_MAX: usize = 1 << 18;

/// Most nodes that are remembered of those that only the server has.
pub(super) const LOOSE_MAX: usize = 1 << 16;

/// Most candidates for one content.
const CANDIDATES_MAX: u64 = 16;

/// A file pays for one more candidate with this length: a digest on the wire has some 100 bytes.
const LEN_PER_CANDIDATE: u64 = 512;

/// Shortest file, in bytes, that is looked for by its length alone.
const SAME_LEN_MIN: u64 = 4096;

/// Most candidates that have nothing but the length of the file.
const SAME_LEN_MAX: usize = 2;

/// Shortest file, in bytes, that is compared with a file of the same name elsewhere.
pub(super) const NAMESAKE_LEN_MIN: u64 = 64 * 1024;

/// Directories of one time or name that are looked at.
const DIRS_MAX: usize = 16;

/// A file with a content.
#[derive(Clone, Copy, Debug)]
struct KnownFile {
    size: u64,
    mtime_ns: i128,
    id: FileId,
}

/// Files of the server by length and time.
#[derive(Debug, Default)]
pub(super) struct KnownFiles {
    files: Vec<KnownFile>,
    are_sorted: bool,
}

impl KnownFiles {
    /// Remembers a node, if it is a file with bytes and there is room.
    pub(super) fn add(&mut self, node: &NodeInfo) {
        let attributes = &node.attributes;
        if attributes.kind != NodeKind::File || attributes.size == 0 || self.files.len() >= FILES_MAX {
            return;
        }
        self.files.push(KnownFile {
            size: attributes.size,
            mtime_ns: attributes.mtime_ns,
            id: node.id,
        });
        self.are_sorted = false;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Files of this length: those of the same time, then a few others.
    pub(super) fn alike(&mut self, size: u64, mtime_ns: i128) -> Vec<FileId> {
        if !self.are_sorted {
            // Stable: of equal ones, the first met comes first.
            self.files.sort_by_key(|file| (file.size, file.mtime_ns));
            self.are_sorted = true;
        }
        let from = |least: (u64, i128)| {
            let at = self.files.partition_point(|file| (file.size, file.mtime_ns) < least);
            self.files.get(at..).unwrap_or_default()
        };
        let most = usize::try_from((size / LEN_PER_CANDIDATE).clamp(2, CANDIDATES_MAX)).unwrap_or(1);
        let mut found = Vec::new();
        let stamped = from((size, mtime_ns)).iter();
        for file in stamped.take_while(|file| (file.size, file.mtime_ns) == (size, mtime_ns)) {
            if found.len() == most {
                return found;
            }
            if !found.contains(&file.id) {
                found.push(file.id);
            }
        }
        let stamped = found.len();
        if size >= SAME_LEN_MIN {
            for file in from((size, i128::MIN)).iter().take_while(|file| file.size == size) {
                if found.len() == stamped.saturating_add(SAME_LEN_MAX) {
                    break;
                }
                if !found.contains(&file.id) {
                    found.push(file.id);
                }
            }
        }
        found
    }
}

/// A node that loses its name with this batch.
#[derive(Clone, Debug)]
pub(super) struct Loose {
    pub(super) parent: FileId,
    pub(super) name: ByteString,
    /// For reports.
    pub(super) path: Vec<u8>,
    pub(super) node: NodeInfo,
}

/// Nodes that lose their names.
#[derive(Debug, Default)]
pub(super) struct LooseNodes {
    nodes: HashMap<FileId, Loose>,
    dirs_by_time: HashMap<i128, Vec<FileId>>,
    dirs_by_name: HashMap<ByteString, Vec<FileId>>,
}

impl LooseNodes {
    pub(super) fn add(&mut self, loose: Loose) {
        let id = loose.node.id;
        if loose.node.attributes.kind == NodeKind::Directory {
            let times = self.dirs_by_time.entry(loose.node.attributes.mtime_ns).or_default();
            let names = self.dirs_by_name.entry(loose.name.clone()).or_default();
            for dirs in [times, names] {
                if dirs.len() < DIRS_MAX && !dirs.contains(&id) {
                    dirs.push(id);
                }
            }
        }
        self.nodes.insert(id, loose);
    }

    pub(super) fn get(&self, id: FileId) -> Option<&Loose> {
        self.nodes.get(&id)
    }

    pub(super) fn take(&mut self, id: FileId) -> Option<Loose> {
        self.nodes.remove(&id)
    }

    /// Directories that one with this time and name may have been.
    pub(super) fn dirs(&self, mtime_ns: i128, name: &ByteString) -> Vec<FileId> {
        let by_time = self.dirs_by_time.get(&mtime_ns);
        let by_name = self.dirs_by_name.get(name);
        let mut found: Vec<FileId> = Vec::new();
        for id in by_time.into_iter().chain(by_name).flatten() {
            if self.nodes.contains_key(id) && !found.contains(id) {
                found.push(*id);
            }
        }
        found
    }
}

/// A name that is removed at the end.
#[derive(Clone, Debug)]
pub(super) struct Removal {
    pub(super) path: Vec<u8>,
    /// Whether its node has another name now.
    pub(super) is_moved: bool,
}

/// A name that waits until the server's side is known.
#[derive(Debug)]
pub(super) struct Later {
    pub(super) parent: FileId,
    /// Below the source.
    pub(super) path: Vec<u8>,
    pub(super) is_directory: bool,
    pub(super) size: u64,
    pub(super) mtime_ns: i128,
    pub(super) there: Option<Box<EntryInfo>>,
}

/// The server's nodes and digests, for names that are not there under their paths.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// Whether contents and nodes are looked for under other paths.
    pub(super) is_sought: bool,
    /// Whether the directories that both ends have are still being compared.
    pub(super) is_gathering: bool,
    pub(super) known: KnownFiles,
    pub(super) loose: LooseNodes,
    /// Names to be removed, by directory.
    pub(super) removals: BTreeMap<(FileId, ByteString), Removal>,
    pub(super) later: Vec<Later>,
    /// Directories that only the server has, with their paths for messages.
    pub(super) dirs_there: VecDeque<(FileId, Vec<u8>)>,
    /// The entries of such directories.
    pub(super) listed: HashMap<FileId, Vec<EntryInfo>>,
    /// Large files that only the server has, by name; `None`: several.
    pub(super) namesakes: HashMap<ByteString, Option<FileId>>,
    /// Digests that the server has reported; `None`: it does not.
    pub(super) digests: HashMap<FileId, Option<[u8; 32]>>,
}

impl Elsewhere {
    /// Remembers an entry that only the server has.
    pub(super) fn only_there(&mut self, entry: &EntryInfo, path: &[u8]) {
        let attributes = &entry.node.attributes;
        match attributes.kind {
            NodeKind::Directory if self.dirs_there.len() < LOOSE_MAX => {
                self.dirs_there.push_back((entry.node.id, path.to_vec()));
            }
            NodeKind::File if attributes.size >= NAMESAKE_LEN_MIN && self.namesakes.len() < LOOSE_MAX => {
                let of_name = self.namesakes.entry(entry.name.clone());
                let id = entry.node.id;
                of_name
                    .and_modify(|known| *known = known.filter(|known| *known == id))
                    .or_insert(Some(id));
            }
            _ => {}
        }
    }
}
