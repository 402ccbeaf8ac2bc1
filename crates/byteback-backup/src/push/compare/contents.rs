//! Files other than directories: whether they differ, and how their contents are sent.

use super::elsewhere::Sent;
use super::{Comparison, Name};
use crate::error::Result;
use crate::local_node::{LocalContent, LocalNode};
use crate::monitor::Change;
use crate::same_content::is_same_content;
use byteback_api::Digest;
use byteback_api::batch::ProofRecord;
use byteback_model::{FileId, NodeInfo, NodeKind};

/// Attempts to read a file that changes meanwhile.
const TRIES: usize = 2;

impl Comparison<'_, '_, '_> {
    /// Sends a node other than a directory; returns its identity if the server has it now, or will.
    pub(super) fn file(
        &mut self,
        place: &Name<'_>,
        mut node: LocalNode,
        id: FileId,
        there: Option<&NodeInfo>,
    ) -> Result<Option<FileId>> {
        let kind = node.kind();
        let mut reason = String::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                match LocalNode::open(place.dir, &place.name) {
                    Ok(again) if again.kind() == kind => node = again,
                    _ => break,
                }
            }
            match self.try_file(place, &mut node, id, there, attempt)? {
                Ok(id) => return Ok(Some(id)),
                Err(why) => reason = why,
            }
        }
        self.failed(&place.path, &reason);
        Ok(None)
    }

    /// The inner error is of this file, and the batch is then as if it had not been tried.
    fn try_file(
        &mut self,
        place: &Name<'_>,
        node: &mut LocalNode,
        id: FileId,
        there: Option<&NodeInfo>,
        attempt: usize,
    ) -> Result<Result<FileId, String>> {
        let attributes = match node.attributes() {
            Ok(attributes) => attributes,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let is_other_content = match (attributes.kind, there) {
            (NodeKind::File, None) => attributes.size > 0,
            (NodeKind::File, Some(there)) => match self.is_other_content(node, there, place.is_moved)? {
                Ok(is_other) => is_other,
                Err(why) => return Ok(Err(why)),
            },
            _ => false,
        };
        let sent = match is_other_content {
            true => match self.content(place, node, (id, there), attempt)? {
                Ok(sent) => Some(sent),
                Err(why) => return Ok(Err(why)),
            },
            false => {
                self.count_total(0);
                None
            }
        };
        let change = match (sent, there) {
            (None, Some(there)) => {
                // As of the moment when its content was compared.
                self.existing(id, &place.path, attributes, &there.attributes)?;
                return Ok(Ok(id));
            }
            (Some(Sent::Moved(id)), _) => {
                self.report.files_moved += 1;
                self.tell(&place.path, Change::Moved);
                return Ok(Ok(id));
            }
            (Some(Sent::Copied), _) => {
                self.report.files_copied += 1;
                Change::Copied
            }
            (Some(Sent::Content), Some(_)) => {
                self.report.files_changed += 1;
                Change::Content
            }
            (sent, None) => {
                match attributes.kind {
                    NodeKind::File => self.report.files_new += 1,
                    _ => self.report.others_new += 1,
                }
                if sent.is_none() {
                    self.node(id, attributes)?;
                }
                Change::New
            }
        };
        self.tell(&place.path, change);
        Ok(Ok(id))
    }

    /// Whether the content differs from the server's, as far as the options ask to look; in a moved
    /// directory, it is proven to be the same. The inner error is of this file.
    pub(super) fn is_other_content(
        &mut self,
        node: &mut LocalNode,
        there: &NodeInfo,
        is_moved: bool,
    ) -> Result<Result<bool, String>> {
        let size = node.stat.size;
        if size != there.attributes.size {
            return Ok(Ok(true));
        }
        let is_other_time = node.stat.mtime_ns != there.attributes.mtime_ns;
        if size == 0 || !(self.job.options.checksum || is_moved) || (is_other_time && !self.job.options.checksum) {
            return Ok(Ok(is_other_time));
        }
        let opened = node.settle(self.job.server.clock()).and_then(|()| node.content());
        let content = match opened {
            Ok(content) if node.stat.size == size => content,
            Ok(_) => return Ok(Ok(true)),
            Err(error) => return Ok(Err(error.to_string())),
        };
        if is_moved {
            let content = content.with_digest();
            let same = self.equal_one(&content, size, &[there.id])?;
            self.report.read_bytes += content.read_bytes();
            if let Ok(Some(_)) = same {
                self.report.found_bytes += size;
            }
            return Ok(same.map(|equal| equal.is_none()));
        }
        let base = (self.job.server, self.job.folder, self.record.begun().base_seq);
        let same = is_same_content(
            base,
            there.id,
            |ranges, sink| content.read(ranges, sink),
            size,
            self.job.monitor,
        )?;
        self.report.read_bytes += content.read_bytes();
        self.report.hashed_bytes += size;
        Ok(same.map(|is_same| !is_same).map_err(|error| error.message))
    }

    /// Sends a node with its content; the inner error is of this file, and the batch is then as if
    /// it had not been tried.
    fn content(
        &mut self,
        place: &Name<'_>,
        node: &mut LocalNode,
        (id, there): (FileId, Option<&NodeInfo>),
        attempt: usize,
    ) -> Result<Result<Sent, String>> {
        let own = there.map(|there| there.id);
        let is_dry = self.stream.is_none();
        if is_dry && self.alike((node.stat.size, node.stat.mtime_ns), own).is_empty() {
            return Ok(Ok(self.only_counted(node.stat.size)));
        }
        let settled = node.settle(self.job.server.clock());
        let opened = settled.and_then(|()| Ok((node.attributes()?, node.content()?)));
        let (attributes, content) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let alike = self.alike((attributes.size, attributes.mtime_ns), own);
        let content = match self.record.is_resumed() || !alike.is_empty() {
            true => content.with_digest(),
            false => content,
        };
        let content = match attempt {
            0 => content,
            _ => content.only_read(),
        };
        if !alike.is_empty() {
            let equal = self.equal_one(&content, attributes.size, &alike)?;
            match equal {
                Ok(Some(source)) => {
                    self.report.read_bytes += content.read_bytes();
                    return self.take_over((id, there), source, attributes, &content).map(Ok);
                }
                Ok(None) => {}
                Err(why) => return Ok(Err(why)),
            }
        }
        let base = match there {
            Some(there) => (there.attributes.size > 0).then_some(there.id),
            None => self.namesake(place, attributes.size),
        };
        if is_dry {
            return Ok(Ok(self.only_counted(attributes.size)));
        }
        self.count_total(attributes.size);
        let Some(stream) = &mut self.stream else {
            return Ok(Ok(Sent::Content));
        };
        let sent = self.contents.send(&content, id, &attributes, base, stream)?;
        self.report.read_bytes += content.read_bytes();
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) => return Ok(Err(error.message)),
        };
        if self.record.is_resumed() {
            self.note_unproven(&content, id, sent.is_proven);
        }
        self.report.changed_bytes += attributes.size;
        self.report.literal_bytes += sent.literal_bytes;
        self.report.hashed_bytes += sent.hashed_bytes;
        self.report.found_bytes += sent.found_bytes;
        Ok(Ok(Sent::Content))
    }

    /// Counts a content in a dry run.
    fn only_counted(&mut self, len_bytes: u64) -> Sent {
        self.report.changed_bytes += len_bytes;
        self.count_total(len_bytes);
        Sent::Content
    }

    fn note_unproven(&mut self, content: &LocalContent, id: FileId, is_proven: bool) {
        if let Some(digest) = content.digest().filter(|_| !is_proven) {
            self.unproven.push((id, Digest(digest)));
        }
    }

    /// Proves contents that may have gone with parts which an earlier run sent. Behind everything
    /// else, so that those parts stay as they are.
    pub(in crate::push) fn prove_resumed(&mut self) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        for (id, digest) in std::mem::take(&mut self.unproven) {
            stream.proof(&ProofRecord {
                id,
                digest,
                sums: None,
                ranges: Vec::new(),
            })?;
        }
        Ok(())
    }
}
