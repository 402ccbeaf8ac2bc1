//! Compares files here with the server's, without fetching these.
//!
//! Of many files the short ones are compared by digests, which the server sends many at once: a
//! request for each would take longer than all the rest. Long ones, and those without a digest from
//! the server, are compared one by one ([`is_same_content`]). A file is read once, as it is at a
//! cut.
//!
//! Out of scope: deciding which files are worth it; remembering answers.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use byteback_api::FolderName;
use byteback_api::messages::DIGESTED_LEN_MAX;
use byteback_control::{CutId, ErrorKind, LandingTree, Piece, Result as Served, ServiceError, TreeService};
use byteback_delta::{ContentDigest, DIGEST_LEN};
use byteback_model::{Attributes, FileId, NodeId, NodeKind, Seq};

use byteback_backup::BackupError;
use byteback_backup::{Event, Monitor, check_cancelled};
use byteback_backup::{PieceSink, is_same_content};
use byteback_client::ServerClient;

/// Number of files whose digests are asked for at once: enough that a request costs little, and few
/// enough that all threads have some.
const FILES_AT_ONCE: RangeInclusive<usize> = 16..=250;

/// Number of threads: the server works on one request while files are read for another.
const THREADS: usize = 8;

/// Compares files, on several threads.
#[derive(Clone, Copy)]
pub(super) struct Comparing<'a> {
    pub(super) landing: &'a dyn LandingTree,
    pub(super) tree: &'a dyn TreeService,
    pub(super) server: &'a ServerClient,
    pub(super) folder: &'a FolderName,
    pub(super) monitor: &'a dyn Monitor,
}

/// A file here, and the server's that it is compared with.
pub(super) struct Compared<'a> {
    pub(super) node: NodeId,
    pub(super) id: FileId,
    /// Attributes of the server's file.
    pub(super) there: &'a Attributes,
}

/// Reason why a file was not compared.
pub(super) enum NotCompared {
    Tree(ServiceError),
    Server(BackupError),
}

impl From<ServiceError> for NotCompared {
    fn from(error: ServiceError) -> Self {
        Self::Tree(error)
    }
}

type Result<T> = std::result::Result<T, NotCompared>;

/// The common length, if the contents have to be compared; otherwise whether both are the same.
fn len_of_both(here: &Attributes, there: &Attributes) -> std::result::Result<u64, bool> {
    let are_files = here.kind == NodeKind::File && there.kind == NodeKind::File;
    match here.size {
        size if !are_files || size != there.size => Err(false),
        0 => Err(true),
        size => Ok(size),
    }
}

impl Comparing<'_> {
    /// Whether a file at a cut has the server's content at a moment.
    pub(super) fn compare(&self, cut: CutId, at: Seq, file: &Compared<'_>) -> Result<bool> {
        let Some(here) = self.tree.attributes(cut, &[file.node])?.pop() else {
            return Err(ServiceError::new(ErrorKind::Protocol, "the tree did not answer").into());
        };
        match len_of_both(&here?, file.there) {
            Ok(len_bytes) => self.compare_contents(cut, at, file, len_bytes),
            Err(is_same) => Ok(is_same),
        }
    }

    fn compare_contents(&self, cut: CutId, at: Seq, file: &Compared<'_>, len_bytes: u64) -> Result<bool> {
        let read = |ranges: &[(u64, u64)], sink: &mut PieceSink<'_>| self.tree.peek(cut, file.node, ranges, sink);
        let server = (self.server, self.folder, at);
        match is_same_content(server, file.id, read, len_bytes, self.monitor) {
            Ok(compared) => self.unless_damaged(file.node, compared),
            Err(error) => Err(NotCompared::Server(error)),
        }
    }

    /// A damaged file holds bytes that no program wrote, so it equals nothing that was ever sent:
    /// it is kept beside the new content, and everything else goes on.
    fn unless_damaged(&self, node: NodeId, compared: Served<bool>) -> Result<bool> {
        match compared {
            Err(error) if error.kind == ErrorKind::Node && self.landing.damage_of(node)?.is_some() => Ok(false),
            compared => Ok(compared?),
        }
    }

    /// Compares many files with the server's at one moment.
    pub(super) fn compare_all(&self, cut: CutId, at: Seq, files: &[Compared<'_>]) -> Result<Vec<bool>> {
        let (next, finished) = (AtomicUsize::new(0), AtomicU64::new(0));
        let total = files.len() as u64;
        let is_done = || {
            let done = finished.fetch_add(1, Ordering::Relaxed).saturating_add(1);
            self.monitor.event(Event::Comparing { done, total });
        };
        let count = files
            .len()
            .div_ceil(THREADS)
            .clamp(*FILES_AT_ONCE.start(), *FILES_AT_ONCE.end());
        let chunks: Vec<&[Compared<'_>]> = files.chunks(count).collect();
        let work = || -> Result<Vec<(usize, Vec<bool>)>> {
            let mut compared = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(chunk) = chunks.get(index) else {
                    return Ok(compared);
                };
                let same = self.compare_chunk(cut, at, chunk, &is_done);
                if same.is_err() {
                    // The other threads need not go on.
                    next.store(chunks.len(), Ordering::Relaxed);
                }
                compared.push((index, same?));
            }
        };
        let ended = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS.min(chunks.len())).map(|_| scope.spawn(work)).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.collect::<Vec<_>>()
        });
        let mut compared = Vec::with_capacity(chunks.len());
        for some in ended {
            let died = |_| ServiceError::new(ErrorKind::Refused, "a thread that compared files died");
            compared.extend(some.map_err(died)??);
        }
        compared.sort_unstable_by_key(|(index, _)| *index);
        Ok(compared.into_iter().flat_map(|(_, same)| same).collect())
    }

    /// Compares files, in their order, and calls `is_done` after each.
    fn compare_chunk(
        &self,
        cut: CutId,
        at: Seq,
        files: &[Compared<'_>],
        is_done: &(dyn Fn() + Sync),
    ) -> Result<Vec<bool>> {
        let nodes: Vec<NodeId> = files.iter().map(|file| file.node).collect();
        let here = self.tree.attributes(cut, &nodes)?;
        if here.len() != files.len() {
            return Err(ServiceError::new(ErrorKind::Protocol, "the tree did not answer for every file").into());
        }
        let mut lens = Vec::with_capacity(files.len());
        for (file, here) in files.iter().zip(here) {
            lens.push(len_of_both(&here?, file.there));
        }
        let is_short = |len: &std::result::Result<u64, bool>| len.is_ok_and(|len_bytes| len_bytes <= DIGESTED_LEN_MAX);
        let short = files.iter().zip(&lens).filter(|(_, len)| is_short(len));
        let short: Vec<FileId> = short.map(|(file, _)| file.id).collect();
        let mut digests = self.digests(at, &short)?.into_iter();
        let mut compared = Vec::with_capacity(files.len());
        for (file, len) in files.iter().zip(&lens) {
            check_cancelled(self.monitor).map_err(NotCompared::Server)?;
            let digest = is_short(len).then(|| digests.next().flatten()).flatten();
            compared.push(match (*len, digest) {
                (Err(is_same), _) => is_same,
                (Ok(len_bytes), Some(digest)) => {
                    let has_digest = self.has_digest(cut, file.node, len_bytes, &digest);
                    self.unless_damaged(file.node, has_digest)?
                }
                (Ok(len_bytes), None) => self.compare_contents(cut, at, file, len_bytes)?,
            });
            is_done();
        }
        Ok(compared)
    }

    /// Digests of short contents, as far as the server sends them.
    fn digests(&self, at: Seq, files: &[FileId]) -> Result<Vec<Option<[u8; DIGEST_LEN]>>> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let reported = self.server.digests(self.folder, at, files);
        reported.map_err(|error| NotCompared::Server(error.into()))
    }

    fn has_digest(&self, cut: CutId, node: NodeId, len_bytes: u64, digest: &[u8; DIGEST_LEN]) -> Served<bool> {
        let mut here = ContentDigest::new(len_bytes);
        self.tree.peek(cut, node, &[(0, len_bytes)], &mut |piece| {
            match piece {
                Piece::Data { bytes, .. } => {
                    let read_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    self.monitor.event(Event::BytesRead(read_bytes));
                    here.push(bytes);
                }
                Piece::Hole(range) => here.push_zeros(range.len_bytes()),
            }
            Ok(())
        })?;
        Ok(here.finish().as_ref() == Some(digest))
    }
}
