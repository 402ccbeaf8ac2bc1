//! The tree of directories: each entry leads to a file, each file has as many names as it says, and
//! nothing is without a name.

use std::collections::{BTreeMap, BTreeSet};

use super::{Counted, Files, Image, Problems, Trouble};
use crate::format::{Address, Dentry, DirectoryBlock, INLINE_DENTRIES, Inode, Kind, Nid, Slots};

/// Most levels of buckets in a directory.
const LEVELS_MAX: u8 = 48;

/// Most nested directories that are followed for a path.
const DEPTH_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Number of names of each file.
    pub(crate) count: Counted,
    /// Number of subdirectories of each directory.
    pub(crate) subdirectories: Counted,
    /// The first directory and name met for each file.
    pub(crate) first: BTreeMap<Nid, (Nid, Vec<u8>)>,
    /// Files that no name leads to and that are not below another such file: the topmost.
    pub(crate) lost: Vec<Nid>,
    /// Entries that lead to nothing, that should not exist, or that state another file type than
    /// the file's.
    pub(crate) wrong: Vec<WrongEntry>,
    /// Pages of directories that are damaged.
    pub(crate) lost_pages: Vec<(Nid, u64)>,
    reached: BTreeSet<Nid>,
}

/// A wrong entry, by its place.
#[derive(Debug)]
pub(crate) struct WrongEntry {
    pub(crate) dir: Nid,
    /// The page; `None` if the entry is in the inode.
    pub(crate) page: Option<u64>,
    pub(crate) slot: usize,
    pub(crate) name: Vec<u8>,
    /// Its file, if the entry is to stay.
    pub(crate) stays: Option<Nid>,
}

/// An entry as it was found.
struct Entry {
    slot: usize,
    hash: u32,
    ino: Nid,
    kind: u8,
    name: Vec<u8>,
    /// The page; `None` if the entry is in the inode.
    page: Option<u64>,
}

impl Names {
    /// Walks all directories, from the root on and then those that the root does not lead to.
    pub(crate) fn walk(image: &mut Image<'_>, files: &Files, problems: &mut Problems) -> Self {
        let mut names = Self::default();
        match files.known.get(&Nid::ROOT) {
            Some(root) if root.is_directory() => names.walk_from(Nid::ROOT, image, files, problems),
            _ => problems.add(Trouble::Inode {
                ino: Nid::ROOT,
                what: "the root directory is missing",
            }),
        }
        names.find_lost(image, files, problems);
        names.compare(image, files, problems);
        names
    }

    /// A path of a file, from the root on.
    pub(crate) fn path(&self, ino: Nid) -> Option<Vec<u8>> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while at != Nid::ROOT {
            let (dir, name) = self.first.get(&at)?;
            if parts.len() >= DEPTH_MAX {
                return None;
            }
            parts.push(name);
            at = *dir;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    fn walk_from(&mut self, top: Nid, image: &Image<'_>, files: &Files, problems: &mut Problems) {
        let mut to_visit = vec![top];
        self.reached.insert(top);
        while let Some(dir) = to_visit.pop() {
            let mut names = BTreeSet::new();
            for entry in self.entries(dir, image, files, problems) {
                let wrong = self.wrong_in(&entry, dir, image, files, &mut names);
                if let Some((what, is_to_go)) = wrong {
                    let name = entry.name.clone();
                    self.wrong.push(WrongEntry {
                        dir,
                        page: entry.page,
                        slot: entry.slot,
                        name: name.clone(),
                        stays: (!is_to_go).then_some(entry.ino),
                    });
                    problems.add(Trouble::Entry { dir, name, what });
                    if is_to_go {
                        continue;
                    }
                }
                let Some(known) = files.known.get(&entry.ino) else {
                    continue;
                };
                *self.count.entry(entry.ino).or_default() += 1;
                self.first.entry(entry.ino).or_insert((dir, entry.name));
                if known.is_directory() {
                    *self.subdirectories.entry(dir).or_default() += 1;
                    if known.parent != dir {
                        let (found, said) = (dir, known.parent);
                        problems.add(Trouble::Parent {
                            dir: entry.ino,
                            found,
                            said,
                        });
                    }
                    to_visit.push(entry.ino);
                }
                self.reached.insert(entry.ino);
            }
        }
    }

    /// The fault of an entry, if it has one, and whether the entry should not exist at all.
    fn wrong_in(
        &self,
        entry: &Entry,
        dir: Nid,
        image: &Image<'_>,
        files: &Files,
        names: &mut BTreeSet<Vec<u8>>,
    ) -> Option<(&'static str, bool)> {
        let Some(known) = files.known.get(&entry.ino) else {
            return Some(("its file is missing", true));
        };
        let is_name =
            !entry.name.contains(&b'/') && !entry.name.contains(&0) && entry.name != b"." && entry.name != b"..";
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(&entry.name, image.superblock.hash_seed);
        if !is_name {
            Some(("not a valid name", true))
        } else if u64::from(entry.hash) != hash & u64::from(u32::MAX) {
            Some(("its hash does not match its name", true))
        } else if !names.insert(entry.name.clone()) {
            Some(("the name occurs twice", true))
        } else if known.is_directory() && self.reached.contains(&entry.ino) {
            Some(("the directory already has another name", true))
        } else if entry
            .page
            .is_some_and(|page| !is_in_bucket(page, entry.hash, levels(files, dir)))
        {
            Some(("it is in the wrong bucket", true))
        } else if u32::from(entry.kind) != known.sort() {
            Some(("its file has another type", false))
        } else {
            None
        }
    }

    fn entries(&mut self, dir: Nid, image: &Image<'_>, files: &Files, problems: &mut Problems) -> Vec<Entry> {
        let mut all = Vec::new();
        let Some(known) = files.known.get(&dir) else { return all };
        let of = |page: Option<u64>, (slot, entry): (usize, Dentry<'_>)| Entry {
            slot,
            hash: entry.hash,
            ino: entry.ino,
            kind: entry.kind,
            name: entry.name.to_vec(),
            page,
        };
        if known.flags.has_inline_entries {
            let address = image.nodes.get(&dir).map_or(Address::NONE, |entry| entry.address);
            if let Some(block) = image.sealed(address, Kind::Node) {
                let inode = Inode(block.into());
                let area = Slots(INLINE_DENTRIES).area(inode.inline());
                all.extend(area.entries().map(|entry| of(None, entry)));
            }
            return all;
        }
        for (page, address) in files.directory_pages.get(&dir).into_iter().flatten() {
            match image.sealed(*address, Kind::Directory) {
                Some(block) => all.extend(
                    DirectoryBlock::area(&block)
                        .entries()
                        .map(|entry| of(Some(*page), entry)),
                ),
                None => {
                    problems.add(Trouble::DirectoryPage { dir, page: *page });
                    self.lost_pages.push((dir, *page));
                }
            }
        }
        all
    }

    /// Finds the files that nothing leads to, and which of them lead to others.
    fn find_lost(&mut self, image: &Image<'_>, files: &Files, problems: &mut Problems) {
        let is_orphan =
            |ino: &Nid| image.orphans.contains(ino) && files.known.get(ino).is_some_and(|known| known.links == 0);
        let lost = |names: &Self| -> Vec<Nid> {
            let unreached = files.known.keys().filter(|ino| !names.reached.contains(*ino));
            unreached.copied().filter(|ino| !is_orphan(ino)).collect()
        };
        let all = lost(self);
        let directories = all
            .iter()
            .filter(|ino| files.known.get(*ino).is_some_and(super::Known::is_directory));
        let mut below = BTreeSet::new();
        // Damage in a directory is reported when it is walked.
        for dir in directories.clone() {
            let entries = Self::default().entries(*dir, image, files, &mut Problems::default());
            below.extend(entries.into_iter().map(|entry| entry.ino).filter(|ino| ino != dir));
        }
        let tops: Vec<Nid> = directories.copied().filter(|dir| !below.contains(dir)).collect();
        for top in tops {
            self.lost.push(top);
            self.walk_from(top, image, files, problems);
        }
        // Directories in a cycle, and files.
        for ino in all {
            if self.reached.contains(&ino) {
                continue;
            }
            self.lost.push(ino);
            match files.known.get(&ino).is_some_and(super::Known::is_directory) {
                true => self.walk_from(ino, image, files, problems),
                false => {
                    self.reached.insert(ino);
                }
            }
        }
        for ino in &self.lost {
            problems.add(Trouble::Lost(*ino));
        }
    }

    /// Number of names that a file should state, with lost ones left as they are.
    pub(crate) fn links(&self, ino: Nid, files: &Files) -> u32 {
        let names = self.count.get(&ino).copied().unwrap_or(0);
        match files.known.get(&ino).is_some_and(super::Known::is_directory) {
            true => 2 + self.subdirectories.get(&ino).copied().unwrap_or(0),
            false => names,
        }
    }

    fn compare(&self, image: &Image<'_>, files: &Files, problems: &mut Problems) {
        for ino in &image.orphans {
            let is_one = files.known.get(ino).is_some_and(|known| known.links == 0) && !self.reached.contains(ino);
            if !is_one {
                problems.add(Trouble::Orphan(*ino));
            }
        }
        for (ino, known) in &files.known {
            if !self.reached.contains(ino) || self.lost.contains(ino) {
                continue;
            }
            let (found, said) = (self.links(*ino, files), known.links);
            if found != said {
                let ino = *ino;
                problems.add(Trouble::Links { ino, found, said });
            }
        }
    }
}

fn levels(files: &Files, dir: Nid) -> u8 {
    files.known.get(&dir).map_or(0, |known| known.levels.min(LEVELS_MAX))
}

/// Whether a page is in the bucket of this hash, in one of the levels: level `n` has `2^min(n, 16)`
/// buckets of 2 pages, of 4 from level 16 on.
fn is_in_bucket(page: u64, hash: u32, levels: u8) -> bool {
    let mut first = 0;
    for level in 0..u32::from(levels) {
        let buckets = 1u64 << level.min(16);
        let pages_each = if level < 16 { 2 } else { 4 };
        let end = first + buckets * pages_each;
        if page < end {
            return (page - first) / pages_each == u64::from(hash) % buckets;
        }
        first = end;
    }
    false
}
