//! Files that change at random between backups that may fail midway: every saved state comes back,
//! snapshot by snapshot.

use byteback_backup::{BackupReport, SnapshotSpec};
use byteback_extents::ByteRange;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{NodeId, NodeKind};
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_tree::{Picture, State};

/// A life: three files, and their saved states.
pub(super) struct RandomLife {
    pub(super) rig: Rig,
    pub(super) random: SplitMix64,
    files: Vec<(NodeId, Vec<u8>)>,
    pictures: Vec<(u64, Picture)>,
    seed: u64,
}

impl RandomLife {
    /// Files of noise, of 70,000 bytes and up to `more_bytes` more. Lives with an odd seed keep
    /// block checksums.
    pub(super) fn new(seed: u64, more_bytes: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut rig = Rig::new(seed);
        if seed % 2 == 1 {
            rig.keep_checksums();
        }
        let mut files = Vec::new();
        for index in 0..3_u64 {
            let name = format!("f{index}");
            let file = rig.tree.lock().create(NodeId::ROOT, name.as_bytes(), NodeKind::File);
            let bytes = noise(random.next_u64(), 70_000 + random.below(more_bytes) as usize);
            rig.tree.lock().write(file, 0, &bytes);
            files.push((file, bytes));
        }
        Self {
            rig,
            random,
            files,
            pictures: Vec::new(),
            seed,
        }
    }

    /// A backup in parts of some length, which saves everything.
    pub(super) fn save(&mut self) -> BackupReport {
        self.rig.options.part_len_bytes = [4 * 1024, 32 * 1024, 1 << 24][self.random.below(3) as usize];
        let report = self.rig.backup().unwrap();
        assert!(report.is_complete(), "seed {}: {:?}", self.seed, report.unsaved);
        self.pictures
            .push((report.snapshot_id.unwrap(), self.rig.tree.picture()));
        report
    }

    /// Edits each file up to three times, in pieces shorter than `piece_len`, and lets `write` put
    /// the result into the tree. Then there may be a backup in which some files fail; the next one
    /// brings them.
    pub(super) fn change(&mut self, piece_len: u64, write: impl Fn(&mut State, &mut SplitMix64, NodeId, &mut Vec<u8>)) {
        for (file, bytes) in &mut self.files {
            for _ in 0..self.random.below(4) {
                edit(&mut self.random, bytes, piece_len);
            }
            let mut state = self.rig.tree.lock();
            write(&mut state, &mut self.random, *file, bytes);
            if self.random.below(5) == 0 {
                let fails_at = self.random.below(100_000) as usize;
                state.failing.insert(*file, fails_at);
            }
        }
        if !self.rig.tree.lock().failing.is_empty() {
            self.rig.backup().unwrap();
            self.rig.tree.lock().failing.clear();
        }
    }

    /// Every snapshot equals the tree of its moment.
    pub(super) fn check(&self) {
        for (id, picture) in &self.pictures {
            self.rig.assert_snapshot(SnapshotSpec::Id(*id), picture);
        }
    }
}

/// Inserts, cuts, copies or overwrites a piece.
pub(super) fn edit(random: &mut SplitMix64, bytes: &mut Vec<u8>, piece_len: u64) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    let len = random.below(piece_len) as usize;
    let end = (at + len).min(bytes.len());
    match random.below(4) {
        0 => drop(bytes.splice(at..at, noise(random.next_u64(), len))),
        1 => drop(bytes.drain(at..end)),
        2 => {
            let copied = bytes[at..end].to_vec();
            let to = random.below(bytes.len() as u64 + 1) as usize;
            bytes.splice(to..to, copied);
        }
        _ => bytes[at..end].fill(random.below(2) as u8),
    }
}

/// Makes a part of a file a hole.
pub(super) fn punch(state: &mut State, random: &mut SplitMix64, file: NodeId, bytes: &mut [u8]) {
    let start = random.below(bytes.len() as u64 + 1);
    let end = (start + random.below(200_000)).min(bytes.len() as u64);
    if let Some(hole) = ByteRange::new(start, end) {
        state.punch(file, hole);
        bytes[start as usize..end as usize].fill(0);
    }
}
