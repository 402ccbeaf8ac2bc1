//! Compressed pages: blocks to which several pages of a file lead.
//!
//! A cluster belongs to the file that it names if it is whole, else to the one that its summary
//! names. Each page that leads there must be listed in it, and each keeps the room of a block
//! reserved, in place of the cluster's block itself.

use std::rc::Rc;

use byteback_host::block::BLOCK_LEN_BYTES;

use super::Trouble;
use super::files::{File, Opened, Walk, is_zero_behind};
use crate::format::{Address, CLUSTER_SLOT, Cluster, Kind, Summary, cluster_checksum};

impl Walk<'_, '_> {
    /// A block that is a cluster, and whole but for its contents.
    fn open_cluster(&mut self, address: Address) -> Option<Rc<Opened>> {
        if let Some((last, opened)) = &self.last_cluster
            && *last == address
        {
            return opened.clone();
        }
        let open = |block: &crate::format::Block| {
            let cluster = Cluster::read(block)?;
            let contents = match self.reads_contents {
                true => cluster.contents(block),
                false => None,
            };
            let checksum = cluster_checksum(block);
            Some(Rc::new(Opened {
                cluster,
                checksum,
                contents,
            }))
        };
        let opened = self.image.sealed(address, Kind::Cluster).and_then(|block| open(&block));
        self.last_cluster = Some((address, opened.clone()));
        opened
    }

    /// Whether the block of a page, which is not proven to be that page alone, is a cluster of the
    /// page's file.
    pub(super) fn is_cluster_of(&mut self, file: &File, address: Address, summary: Option<Summary>) -> bool {
        if !self.image.is_compressed() || file.is_directory {
            return false;
        }
        match self.open_cluster(address) {
            Some(opened) => opened.cluster.ino == file.ino,
            None => summary.is_some_and(|summary| is_of(file, &summary)),
        }
    }

    /// Checks a page that leads to a cluster of its file.
    pub(super) fn clustered_page(
        &mut self,
        file: &File,
        page: u64,
        address: Address,
        summary: Option<Summary>,
        has_delta: bool,
    ) {
        let ino = file.ino;
        let opened = self.open_cluster(address);
        let place = opened.as_ref().map(|opened| opened.cluster.place_of(page));
        let Some((segment, index)) = self.image.areas().segment_of(address).filter(|_| place != Some(None)) else {
            self.problems.add(Trouble::PageAddress { ino, page, address });
            self.files.to_clear.push((ino, page));
            return;
        };
        let at = segment * self.image.areas().segment_blocks + index;
        if !self.files.clusters.is_set(at) {
            if !self.claim_uncounted(ino, address) {
                self.files.to_clear.push((ino, page));
                return;
            }
            self.files.clusters.set(at);
            if !summary.is_some_and(|summary| is_of(file, &summary)) {
                let right = Summary {
                    nid: ino,
                    version: file.version,
                    slot: CLUSTER_SLOT,
                    checksum: 0,
                };
                self.is_unproven(address, right, summary.is_some());
            }
        }
        self.files.reserved_pages = self.files.reserved_pages.saturating_add(1);
        self.files.compressed_pages += 1;
        let is_proven = |opened: &Rc<Opened>| {
            let known = summary.filter(|summary| is_of(file, summary));
            known.is_none_or(|summary| summary.checksum == opened.checksum)
        };
        let Some(opened) = opened.filter(is_proven) else {
            return self.problems.add(Trouble::Page { ino, page, address });
        };
        if !self.reads_contents {
            return;
        }
        let start = place.flatten().unwrap_or(0) * BLOCK_LEN_BYTES;
        let content = opened.contents.as_ref();
        match content.and_then(|content| content.get(start..start + BLOCK_LEN_BYTES)) {
            None => self.problems.add(Trouble::Page { ino, page, address }),
            Some(content) => {
                let may_have_delta = has_delta || file.has_unknown_deltas;
                if !may_have_delta && !is_zero_behind(content, page, file.len_bytes) {
                    let what = "bytes beyond its end are not zero";
                    self.problems.add(Trouble::Inode { ino, what });
                }
            }
        }
    }
}

/// Whether a summary names a cluster of the file.
fn is_of(file: &File, summary: &Summary) -> bool {
    (summary.nid, summary.version, summary.slot) == (file.ino, file.version, CLUSTER_SLOT)
}
