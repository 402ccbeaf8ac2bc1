//! Creation of an empty volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use byteback_host::block::BlockDevice;
use byteback_host::clock::{Clock, RealClock};

use crate::crash::Durability;
use crate::crash::checkpoint::segment_table_address;
use crate::error::Result;
use crate::format::{Address, FEATURE_COMPRESSION, Kind, Nid, SegmentEntry, Superblock, VolumeId, zeros};
use crate::log::geometry::divide;
use crate::log::media::Media;
use crate::log::node_table::NodeTable;
use crate::log::segments::Segments;
use crate::log::{Counts, Space};
use crate::small::deltas::DeltaMode;
use crate::state::State;
use crate::statistics::Written;
use crate::tree::Tree;
use crate::tree::attributes::DIRECTORY;
use crate::tree::names::NewFile;
use crate::volume::OpenOptions;

/// Options for a new volume.
#[derive(Clone)]
pub struct CreateOptions {
    /// Identity of the volume, drawn at random.
    pub id: VolumeId,
    /// Seed for the hashes of names in directories, drawn at random.
    pub hash_seed: u64,
    /// Label: up to 64 bytes.
    pub label: Vec<u8>,
    /// The owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Whether pages of files are compressed where that saves writes, for the lifetime of the
    /// volume. Versions of this program without compression cannot open it.
    pub is_compressed: bool,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for CreateOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateOptions")
            .field("id", &self.id)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

impl CreateOptions {
    /// Default options, for a volume owned by root.
    #[must_use]
    pub fn new(id: VolumeId, hash_seed: u64) -> Self {
        Self {
            id,
            hash_seed,
            label: Vec::new(),
            uid: 0,
            gid: 0,
            is_compressed: false,
            clock: Arc::new(RealClock),
        }
    }
}

/// Creates an empty volume on a device, whatever was there.
///
/// The superblock comes last: before it is written, there is no volume.
///
/// # Errors
/// [`crate::VolumeError::TooSmall`], [`crate::VolumeError::TooLarge`], or an error of the device.
pub fn create(device: &Arc<dyn BlockDevice>, options: &CreateOptions) -> Result<()> {
    let areas = divide(device.len_blocks())?;
    let media = Media {
        device: Arc::clone(device),
        id: options.id,
        areas,
        written: Arc::default(),
    };
    let ends = [Address(0), Address(areas.len_blocks - 1)];
    let nothing = zeros();
    for end in ends {
        media.write(end, &nothing[..], Written::Tables)?;
    }
    media.device.flush()?;
    // Blocks of a previous volume are not sealed for this one, so they need not be erased.
    media.device.discard(0, u64::from(areas.len_blocks))?;
    for block in 0..areas.node_table_blocks {
        let mut empty = zeros();
        media.write_sealed(NodeTable::address(&media, block, false), Kind::NodeTable, &mut empty)?;
    }
    let valid = vec![0; usize::try_from(areas.segment_blocks / 8).unwrap_or(0)];
    let entry = SegmentEntry {
        valid,
        ..SegmentEntry::default()
    };
    for block in 0..areas.segment_table_blocks {
        let mut empty = zeros();
        media.write_sealed(
            segment_table_address(&media, block, false),
            Kind::SegmentTable,
            &mut empty,
        )?;
    }
    let entries = vec![entry; usize::try_from(areas.main_segments).unwrap_or(0)];
    let copies = |blocks: u32| vec![false; usize::try_from(blocks).unwrap_or(0)];
    let mut segments = Segments::new(areas, entries);
    segments.open_logs()?;
    let open = OpenOptions {
        delta_mode: DeltaMode::Off,
        moved_slots_min: u32::MAX,
        ..OpenOptions::default()
    };
    let mut state = State {
        clock: Arc::clone(&options.clock),
        space: Space::new(
            segments,
            NodeTable::new(copies(areas.node_table_blocks), BTreeMap::new(), Nid::NONE),
            Counts::default(),
            copies(areas.segment_table_blocks),
        ),
        tree: Tree::new(open.pages(), BTreeSet::new(), options.hash_seed),
        small: open.small(options.is_compressed, Nid::NONE, 0),
        durability: Durability::new(0, 0),
        media,
    };
    let root = NewFile {
        mode: DIRECTORY | 0o755,
        uid: options.uid,
        gid: options.gid,
        device: 0,
    };
    let ino = state.new_file(Some((Nid::ROOT, b"/")), &root)?;
    debug_assert_eq!(ino, Nid::ROOT, "the first number is the root's");
    state.checkpoint(true)?;
    // Both places: no older checkpoint may remain.
    state.checkpoint(true)?;
    let features = match options.is_compressed {
        true => FEATURE_COMPRESSION,
        false => 0,
    };
    let superblock = Superblock {
        id: options.id,
        features,
        areas,
        created_s: state.now().seconds,
        hash_seed: options.hash_seed,
        label: options.label.clone(),
    };
    for end in ends {
        state.media.write(end, &superblock.block(end)[..], Written::Tables)?;
    }
    Ok(state.media.device.flush()?)
}
