//! A lane: a directory in which one operation begins only after the previous one has returned,
//! whichever process performs them.
//!
//! So its states have an order, and a snapshot of it is right if it is one of them: if it holds
//! operation n, it holds every one before n, in all files. The possible states are known, too: none
//! older than the operations that had returned when the backup was started, none with operations
//! that had not begun when it ended.
//!
//! Two questions can be asked of a restored tree:
//!
//! - [`Window::moment_of`]: is it exactly the state after some operation of the window?
//! - [`Window::is_blend`]: is each name as in one state of the window, and each byte as in any?
//!   That is what remains where the kernel collects writes: nothing that had returned before the
//!   backup began is missing, nothing is invented.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use byteback_host::random::SplitMix64;
use byteback_testkit::local_tree::{Entry, Tree, first_difference};
use byteback_testkit::seed::Draw;

use super::hand::Hand;
use super::operation::{Choice, Inode, Kind, Model, Node, Operation, Touched, XATTR, record, usize_of};

/// The operations of a lane so far, and the resulting state.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The state after operation `done`.
    pub(crate) model: Model,
    /// The last operation that has returned.
    pub(crate) done: u64,
    /// All operations that have begun since `base`, in order.
    begun: Vec<Operation>,
    base: u64,
}

/// The parameters of a lane's work.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) choice: Choice,
    /// Rest after each operation, so that backups get their share of the machine.
    pub(crate) pace: Duration,
}

/// A lane that is at work.
pub(crate) struct Lane {
    /// The lane's directory, below the tree.
    pub(crate) name: String,
    history: Arc<Mutex<History>>,
    stop: Arc<AtomicBool>,
    worker: JoinHandle<Option<(Operation, io::Error)>>,
}

/// The state of a lane at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    model: Model,
    done: u64,
}

/// The states between two moments, both included, and those of operations that had begun by the
/// second.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    from: Moment,
    operations: Vec<Operation>,
}

impl History {
    /// A history that begins with the content of a directory.
    pub(crate) fn adopt(files: &Tree, base: u64) -> Self {
        let mut model = Model::default();
        let mut known: HashMap<&Path, Inode> = HashMap::new();
        for (path, entry) in files {
            let path = path.to_str().unwrap();
            if let Some(inode) = known.get(&*entry.first_name) {
                model.names.insert(path.to_owned(), *inode);
                continue;
            }
            let kind = if entry.is_dir() {
                Kind::Directory
            } else if entry.is_symlink() {
                Kind::Symlink(String::from_utf8(entry.content.to_vec()).unwrap())
            } else {
                Kind::File(Arc::clone(&entry.content))
            };
            let node = Node {
                kind,
                mode: (!entry.is_symlink()).then_some(entry.mode & 0o7777),
                xattr: entry.xattrs.get(OsStr::new(XATTR)).cloned(),
            };
            let inode = model.adopt(path, node);
            known.insert(&entry.first_name, inode);
        }
        Self {
            model,
            done: base,
            begun: Vec::new(),
            base,
        }
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment {
            model: self.model.clone(),
            done: self.done,
        }
    }

    /// The last operations that concern the files named in `text`, for messages.
    pub(crate) fn recent_of(&self, text: &str) -> String {
        let named = |path: &str| text.split([' ', '\n']).any(|word| word == path);
        let inodes: BTreeSet<Inode> = self
            .model
            .names
            .iter()
            .filter(|(path, _)| named(path))
            .map(|(_, inode)| *inode)
            .collect();
        let mut lines: Vec<String> = self
            .begun
            .iter()
            .filter(|operation| operation.file().is_some_and(|file| inodes.contains(&file.inode)))
            .map(|operation| format!("  {operation:?}"))
            .collect();
        lines.drain(..lines.len().saturating_sub(30));
        lines.join("\n")
    }

    pub(crate) fn since(&self, from: &Moment) -> Window {
        let first = usize::try_from(from.done - self.base).unwrap();
        Window {
            from: from.clone(),
            operations: self.begun[first..].to_vec(),
        }
    }
}

impl Lane {
    /// Starts work in `name` below `tree`, a directory with the content that `history` says. The
    /// hands take turns at random.
    pub(crate) fn start(name: &str, history: History, mut hands: Vec<Hand>, plan: Plan) -> Self {
        let history = Arc::new(Mutex::new(history));
        let stop = Arc::new(AtomicBool::new(false));
        let worker = std::thread::Builder::new()
            .name(format!("lane {name}"))
            .spawn({
                let (history, stop) = (Arc::clone(&history), Arc::clone(&stop));
                move || {
                    let mut random = SplitMix64::new(plan.seed);
                    let mut planned = VecDeque::new();
                    while !stop.load(Ordering::Relaxed) {
                        let operation = {
                            let mut history = history.lock().unwrap();
                            let seq = history.done + 1;
                            let operation = history.model.generate(&mut random, seq, &plan.choice, &mut planned);
                            history.begun.push(operation.clone());
                            operation
                        };
                        let turn = random.index(hands.len());
                        if let Err(error) = hands[turn].perform(&operation) {
                            return Some((operation, error));
                        }
                        {
                            let mut history = history.lock().unwrap();
                            history.model.apply(&operation);
                            history.done = operation.seq;
                        }
                        if !plan.pace.is_zero() {
                            std::thread::sleep(plan.pace);
                        }
                    }
                    None
                }
            })
            .unwrap();
        Self {
            name: name.to_owned(),
            history,
            stop,
            worker,
        }
    }

    /// The state now: after the last operation that has returned.
    pub(crate) fn moment(&self) -> Moment {
        self.history.lock().unwrap().moment()
    }

    /// All states since `from`.
    pub(crate) fn since(&self, from: &Moment) -> Window {
        self.history.lock().unwrap().since(from)
    }

    /// Lets no further operation begin.
    pub(crate) fn stop_starting(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends the work, waiting for an operation under way; returns the operation that failed, if
    /// any.
    pub(crate) fn stop(self) -> (History, Option<(Operation, io::Error)>) {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.worker.join().unwrap();
        let history = self.history.lock().unwrap().clone();
        (history, failed)
    }
}

/// The part of a tree below `directory`.
pub(crate) fn part_of(tree: &Tree, directory: &str) -> Tree {
    let below = |path: &PathBuf| path.strip_prefix(directory).ok().map(Path::to_owned);
    tree.iter()
        .filter_map(|(path, entry)| Some((below(path)?, entry.clone())))
        .filter(|(path, _)| !path.as_os_str().is_empty())
        .collect()
}

/// The difference between a node and an entry, in words; `None` if they agree.
fn mismatch(node: Option<&Node>, entry: Option<&Entry>) -> Option<String> {
    let (node, entry) = match (node, entry) {
        (None, None) => return None,
        (Some(_), None) => return Some("is missing".to_owned()),
        (None, Some(_)) => return Some("should not be there".to_owned()),
        (Some(node), Some(entry)) => (node, entry),
    };
    match &node.kind {
        Kind::Directory if !entry.is_dir() => return Some("is no directory".to_owned()),
        Kind::Symlink(target) if !entry.is_symlink() || *target.as_bytes() != **entry.content => {
            return Some("is not the symlink".to_owned());
        }
        Kind::File(_) if !entry.is_file() => return Some("is no file".to_owned()),
        Kind::File(bytes) => {
            if let Some(offset) = first_difference(bytes, &entry.content) {
                let (expected, found) = (bytes.len(), entry.content.len());
                return Some(format!(
                    "has other bytes from offset {offset} on; {expected} bytes, found {found}"
                ));
            }
        }
        _ => {}
    }
    mismatched_attributes(node, entry)
}

fn mismatched_attributes(node: &Node, entry: &Entry) -> Option<String> {
    if let Some(mode) = node.mode
        && mode != entry.mode & 0o7777
    {
        return Some(format!("has mode {:o} instead of {mode:o}", entry.mode & 0o7777));
    }
    (node.xattr.as_ref() != entry.xattrs.get(OsStr::new(XATTR))).then(|| "has another extended attribute".to_owned())
}

/// Whether the names of one inode in the model are exactly those of one inode in the tree.
fn links_agree(model: &Model, restored: &Tree) -> bool {
    let (mut there, mut back) = (BTreeMap::new(), BTreeMap::new());
    model.names.iter().all(|(path, inode)| {
        restored.get(Path::new(path)).is_some_and(|entry| {
            *there.entry(*inode).or_insert(&entry.first_name) == &entry.first_name
                && *back.entry(&entry.first_name).or_insert(*inode) == *inode
        })
    })
}

/// A model that follows the operations of a window, and the paths at which it differs from a tree.
struct Comparison<'a> {
    model: Model,
    restored: &'a Tree,
    wrong: BTreeSet<String>,
}

impl<'a> Comparison<'a> {
    fn new(window: &Window, restored: &'a Tree) -> Self {
        let model = window.from.model.clone();
        let mut paths: BTreeSet<String> = model.names.keys().cloned().collect();
        paths.extend(restored.keys().map(|path| path.to_str().unwrap().to_owned()));
        let mut comparison = Self {
            model,
            restored,
            wrong: BTreeSet::new(),
        };
        for path in paths {
            comparison.look_again(path);
        }
        comparison
    }

    fn what_is_wrong(&self, path: &str) -> Option<String> {
        mismatch(
            self.model.node(path).map(|(_, node)| node),
            self.restored.get(Path::new(path)),
        )
    }

    fn look_again(&mut self, path: String) {
        if self.what_is_wrong(&path).is_some() {
            self.wrong.insert(path);
        } else {
            self.wrong.remove(&path);
        }
    }

    fn apply(&mut self, operation: &Operation) {
        let Touched { inodes, mut names } = self.model.apply(operation);
        for inode in inodes {
            let paths = self.model.names.iter().filter(|(_, named)| **named == inode);
            names.extend(paths.map(|(path, _)| path.clone()));
        }
        for path in names {
            self.look_again(path);
        }
    }

    fn is_equal(&self) -> bool {
        self.wrong.is_empty() && links_agree(&self.model, self.restored)
    }

    /// Whether the tree has nothing in addition but the first pages of a `write`.
    fn is_equal_with_a_beginning_of(&self, operation: Option<&Operation>) -> bool {
        let Some(operation) = operation.filter(|_| !self.wrong.is_empty()) else {
            return false;
        };
        let Some((inode, at, lens)) = operation.beginnings(&self.model) else {
            return false;
        };
        let mut wrong = self.wrong.iter();
        if !wrong.all(|path| self.model.names.get(path) == Some(&inode)) || !links_agree(&self.model, self.restored) {
            return false;
        }
        let node = &self.model.nodes[&inode];
        let (Kind::File(before), Some(path)) = (&node.kind, self.wrong.first()) else {
            return false;
        };
        let Some(entry) = self.restored.get(Path::new(path)) else {
            return false;
        };
        let (at, longest) = (usize_of(at), lens.last().copied().unwrap_or(0));
        let bytes = record(operation.seq, longest);
        lens.into_iter().map(usize_of).any(|len| {
            let mut with = before.to_vec();
            with.resize(with.len().max(at + len), 0);
            with[at..at + len].copy_from_slice(&bytes[..len]);
            let with = Node {
                kind: Kind::File(Arc::new(with)),
                ..node.clone()
            };
            mismatch(Some(&with), Some(entry)).is_none()
        })
    }
}

impl Window {
    /// The first state.
    pub(crate) fn beginning(&self) -> &Moment {
        &self.from
    }

    /// The number of states.
    pub(crate) fn len(&self) -> usize {
        self.operations.len() + 1
    }

    /// The number of the operation after which the lane was as `restored`.
    ///
    /// # Errors
    /// The differences from the nearest state, and in which states each of the paths concerned was
    /// as restored.
    pub(crate) fn moment_of(&self, restored: &Tree) -> Result<u64, String> {
        let mut comparison = Comparison::new(self, restored);
        let mut nearest = (usize::MAX, 0, Vec::new());
        for step in 0..=self.operations.len() {
            if step > 0 {
                comparison.apply(&self.operations[step - 1]);
            }
            if comparison.is_equal() || comparison.is_equal_with_a_beginning_of(self.operations.get(step)) {
                return Ok(self.from.done + step as u64);
            }
            if comparison.wrong.len() < nearest.0 {
                let wrong = comparison.wrong.iter();
                let wrong = wrong.map(|path| format!("{path} {}", comparison.what_is_wrong(path).unwrap_or_default()));
                nearest = (comparison.wrong.len(), step, wrong.collect());
            }
        }
        Err(self.explain(restored, &nearest))
    }

    fn explain(&self, restored: &Tree, (_, step, wrong): &(usize, usize, Vec<String>)) -> String {
        let first = self.from.done;
        let mut text = format!(
            "it is no state from {first} to {}; nearest is {}:\n",
            first + self.operations.len() as u64,
            first + *step as u64
        );
        for line in wrong {
            text.push_str(&format!("  {line}\n"));
        }
        let paths: Vec<&str> = wrong.iter().filter_map(|line| line.split(' ').next()).collect();
        for path in paths {
            let mut comparison = Comparison::new(self, restored);
            let mut right: Vec<(u64, u64)> = Vec::new();
            for at in 0..=self.operations.len() {
                if at > 0 {
                    comparison.apply(&self.operations[at - 1]);
                }
                let seq = first + at as u64;
                if !comparison.wrong.contains(path) {
                    match right.last_mut() {
                        Some((_, last)) if *last + 1 == seq => *last = seq,
                        _ => right.push((seq, seq)),
                    }
                }
            }
            text.push_str(&format!("  {path} is as restored in the states {right:?}\n"));
        }
        let from = step.saturating_sub(8);
        for operation in self.operations.iter().skip(from).take(16) {
            text.push_str(&format!("  {operation:?}\n"));
        }
        text
    }

    /// Whether `restored` has names as in one state of the window, and in each file only bytes that
    /// it had there in some state.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn is_blend(&self, restored: &Tree) -> Result<(), String> {
        // Every state of each inode.
        let mut versions: HashMap<Inode, Vec<Node>> = HashMap::new();
        let mut model = self.from.model.clone();
        for (inode, node) in &model.nodes {
            versions.insert(*inode, vec![node.clone()]);
        }
        for operation in &self.operations {
            let touched = model.apply(operation);
            let made = touched.names.iter().filter_map(|name| model.names.get(name).copied());
            for inode in touched.inodes.iter().copied().chain(made) {
                let known = versions.entry(inode).or_default();
                if known.last() != Some(&model.nodes[&inode]) {
                    known.push(model.nodes[&inode].clone());
                }
            }
        }
        let mut model = self.from.model.clone();
        let mut why = String::from("its names are those of no state");
        for step in 0..=self.operations.len() {
            if step > 0 && model.apply(&self.operations[step - 1]).names.is_empty() {
                continue;
            }
            let paths_agree = model.names.len() == restored.len() && links_agree(&model, restored);
            if !paths_agree {
                continue;
            }
            let wrong = model.names.iter().find_map(|(path, inode)| {
                let wrong = blend_mismatch(&versions[inode], &restored[Path::new(path)])?;
                Some(format!("{path} {wrong}"))
            });
            match wrong {
                None => return Ok(()),
                Some(wrong) => why = format!("with the names after {}: {wrong}", self.from.done + step as u64),
            }
        }
        let last = self.from.done + self.operations.len() as u64;
        Err(format!("between {} and {last}: {why}", self.from.done))
    }
}

fn blend_mismatch(versions: &[Node], entry: &Entry) -> Option<String> {
    let contents: Vec<&[u8]> = versions
        .iter()
        .filter_map(|node| match &node.kind {
            Kind::File(bytes) => Some(bytes.as_slice()),
            _ => None,
        })
        .collect();
    if contents.is_empty() {
        return mismatch(versions.last(), Some(entry));
    }
    if !entry.is_file() {
        return Some("is no file".to_owned());
    }
    if versions.iter().all(|node| mismatched_attributes(node, entry).is_some()) {
        return mismatched_attributes(&versions[0], entry);
    }
    let found = &entry.content;
    let shortest = contents.iter().map(|bytes| bytes.len()).min().unwrap_or(0);
    let longest = contents.iter().map(|bytes| bytes.len()).max().unwrap_or(0);
    if !(shortest..=longest).contains(&found.len()) {
        return Some(format!("has {} bytes instead of {shortest} to {longest}", found.len()));
    }
    // A write far beyond the end may be there before the bytes in between.
    let mut unexplained: Vec<usize> = (0..found.len())
        .filter(|at| *at < shortest || found[*at] != 0)
        .collect();
    for bytes in contents.iter().rev() {
        unexplained.retain(|at| bytes.get(*at) != Some(&found[*at]));
    }
    let first = unexplained.first()?;
    let zeros = unexplained.iter().filter(|at| found[**at] == 0).count();
    Some(format!(
        "has {} bytes ({zeros} of them zeros), of its {}, that it never had in these states, the first at {first}",
        unexplained.len(),
        found.len()
    ))
}
