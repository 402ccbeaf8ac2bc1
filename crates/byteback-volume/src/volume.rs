//! An open volume.
//!
//! Each call takes the one lock, and before it changes anything makes sure that there is room to
//! write its changes later. A completed call has changed memory; its changes are durable after
//! [`Volume::sync`], or [`Volume::sync_file`] of the file. After a crash, changes that were not
//! synced are whole or absent, in the order of checkpoints: only a file that was synced by itself
//! may be newer than the rest.
//!
//! Files are named by their number; [`Volume::hold`] keeps one that loses its last name.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use byteback_host::block::{BLOCK_LEN_BYTES, BlockDevice};
use byteback_host::clock::{Clock, RealClock};
use parking_lot::{Mutex, MutexGuard};

use crate::crash::Durability;
use crate::crash::checkpoint::{Pack, segment_table_address};
use crate::error::{Result, VolumeError};
use crate::format::{
    Address, DIRECT_SLOTS, FEATURE_COMPRESSION, Found, INDEX_LEN_BYTES, INODE_SLOTS, KNOWN_FEATURES, Kind, Nid,
    SegmentEntry, Superblock, VERSION, VolumeId, zeros,
};
use crate::inside::{Companion, Inside};
use crate::log::media::Media;
use crate::log::node_table::NodeTable;
use crate::log::segments::Segments;
use crate::log::{Counts, Space};
use crate::small::Small;
use crate::small::attempts::Attempts;
use crate::small::clusters::Clusters;
use crate::small::deltas::{Costs, DeltaCounts, DeltaMode};
use crate::small::hotness::{Heat, Hotness};
use crate::small::main_deltas::{MainDeltas, PACKED_MIN};
use crate::state::{Change, State};
use crate::statistics::VolumeStats;
use crate::tree::Tree;
use crate::tree::attributes::{Attributes, SetAttributes};
use crate::tree::directory::Listed;
use crate::tree::file::Allocate;
use crate::tree::names::{NewFile, Rename};
use crate::tree::pages::Pages;
use crate::tree::xattr::SetAttribute;

/// Allowed values of [`OpenOptions::packed_min`].
const PACKED_MIN_RANGE: RangeInclusive<usize> = 2..=64;

/// Fewest bytes used of a block of an index: enough for its entry of a compact page.
const DELTA_INDEX_LEN_BYTES_MIN: usize = 192;

/// Options for opening a volume.
#[derive(Clone)]
pub struct OpenOptions {
    /// Whether the volume may be changed. If not, nothing is written at all.
    pub is_writable: bool,
    /// Where overwritten pages are kept as deltas.
    pub delta_mode: DeltaMode,
    /// Fewest deltas in one page of the main area; a delta that is too long to share a page with as
    /// many is not put there (DeltaFS sections 4.2.1 and 6.3); 2 to 64. With a lower number more is
    /// kept as deltas, and each page that is read costs more reads of the device (figure 13).
    pub packed_min: usize,
    /// Bytes used of a block of an index of deltas in the main area: with fewer, files with few
    /// deltas have leaves, too.
    pub delta_index_len_bytes_max: usize,
    /// Least number of addresses in the inode that are moved to a node of their own if deltas need
    /// the room: the inode of a shorter file has some.
    pub moved_slots_min: u32,
    /// Window in which reads and writes of files are counted, in operations (`T`, DeltaFS section
    /// 4.2.1).
    pub hotness_window_operations: u64,
    /// Memory for pages that equal those on the device, in bytes.
    pub cache_len_bytes: usize,
    /// Memory for changed pages, in bytes; the volume may allow less.
    pub unwritten_len_bytes: usize,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("is_writable", &self.is_writable)
            .field("cache_len_bytes", &self.cache_len_bytes)
            .field("unwritten_len_bytes", &self.unwritten_len_bytes)
            .finish_non_exhaustive()
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            is_writable: true,
            delta_mode: DeltaMode::default(),
            moved_slots_min: INODE_SLOTS / 4 * 3,
            packed_min: PACKED_MIN,
            delta_index_len_bytes_max: INDEX_LEN_BYTES,
            hotness_window_operations: 1 << 14,
            cache_len_bytes: 64 << 20,
            unwritten_len_bytes: 16 << 20,
            clock: Arc::new(RealClock),
        }
    }
}

impl OpenOptions {
    pub(crate) fn pages(&self) -> Pages {
        let dirty_max = u32::try_from(self.unwritten_len_bytes / BLOCK_LEN_BYTES).unwrap_or(u32::MAX);
        Pages::new((self.cache_len_bytes / BLOCK_LEN_BYTES).max(64), dirty_max.max(64))
    }

    /// Pages in less than a block, as these options want them.
    pub(crate) fn small(&self, is_compressed: bool, delta_list: Nid, hotness_seed: u64) -> Small {
        Small {
            clusters: Clusters::default(),
            is_compressed,
            delta_mode: self.delta_mode,
            moved_slots_min: self.moved_slots_min,
            packed_min: self
                .packed_min
                .clamp(*PACKED_MIN_RANGE.start(), *PACKED_MIN_RANGE.end()),
            delta_index_len_bytes_max: self
                .delta_index_len_bytes_max
                .clamp(DELTA_INDEX_LEN_BYTES_MIN, INDEX_LEN_BYTES),
            main: MainDeltas::default(),
            delta_list,
            hotness: Hotness::new(self.hotness_window_operations, hotness_seed),
            attempts: Attempts::default(),
            costs: Costs::default(),
            delta_counts: DeltaCounts::default(),
        }
    }
}

/// Room in use and left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Blocks of 4 KiB that files may use.
    pub blocks: u64,
    /// Blocks among these that are not in use.
    pub free_blocks: u64,
    /// Blocks among these that one more file can have as content: without those for its inode, its
    /// name and its nodes.
    pub available_blocks: u64,
    /// Most files.
    pub files: u64,
    /// Files that can still be created.
    pub free_files: u64,
}

/// The most that a new file of this length takes beside its content: nodes for its addresses on up
/// to three levels, of which each may be begun with one block only, its inode, and a block of a
/// directory.
fn blocks_beside_content(content_blocks: u64) -> u64 {
    let slots = u64::from(DIRECT_SLOTS);
    let direct = content_blocks.div_ceil(slots);
    let indirect = direct.div_ceil(slots);
    let above = indirect.div_ceil(slots);
    let (inode, directory) = (1, 1);
    direct + indirect + above + inode + directory
}

/// See the module.
///
/// ```
/// use std::sync::Arc;
///
/// use byteback_host::block::{BlockDevice, SimBlockDevice};
/// use byteback_volume::format::VolumeId;
/// use byteback_volume::{CheckOptions, CreateOptions, NewFile, OpenOptions, Volume, check, create};
///
/// let device: Arc<dyn BlockDevice> = Arc::new(SimBlockDevice::new(20_000));
/// create(&device, &CreateOptions::new(VolumeId([7; 16]), 11))?;
///
/// let volume = Volume::open(Arc::clone(&device), &OpenOptions::default())?;
/// let new = NewFile { mode: 0o100_644, ..NewFile::default() };
/// let ino = volume.make(volume.root(), b"notes", &new)?.ino;
/// volume.write(ino, 0, b"durable after the sync")?;
/// volume.sync_file(ino)?;
/// volume.close()?;
///
/// let volume = Volume::open(Arc::clone(&device), &OpenOptions::default())?;
/// let mut start = [0; 7];
/// volume.read(volume.look_up(volume.root(), b"notes")?.ino, 0, &mut start)?;
/// assert_eq!(&start, b"durable");
/// volume.close()?;
/// assert!(check(&*device, CheckOptions::default())?.is_sound());
/// # Ok::<(), byteback_volume::VolumeError>(())
/// ```
pub struct Volume {
    state: Mutex<State>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("usage", &self.usage()).finish()
    }
}

/// The superblock, from the beginning or the end of a device.
fn find_superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let len_blocks = device.len_blocks();
    let last = u32::try_from(len_blocks.saturating_sub(1)).unwrap_or(0);
    let mut answer = VolumeError::NotAVolume;
    for address in [Address(0), Address(last)] {
        let mut block = crate::format::zeros();
        if let Err(error) = device.read_blocks(u64::from(address.0), &mut block[..]) {
            answer = error.into();
            continue;
        }
        match Superblock::find(&block, address) {
            Found::Superblock(found) => {
                let volume_blocks = u64::from(found.areas.len_blocks);
                if volume_blocks > len_blocks {
                    return Err(VolumeError::CutOff {
                        volume_blocks,
                        device_blocks: len_blocks,
                    });
                }
                let unknown = found.features & !KNOWN_FEATURES;
                return match unknown {
                    0 => Ok(found),
                    _ => Err(VolumeError::UnknownFeatures(unknown)),
                };
            }
            Found::Newer(found) => {
                let known = VERSION;
                return Err(VolumeError::NewerVersion { found, known });
            }
            Found::Damaged => {
                answer = VolumeError::Damaged {
                    address,
                    what: Kind::Superblock.name(),
                }
            }
            Found::Nothing => {}
        }
    }
    Err(answer)
}

impl Volume {
    /// Opens a volume, and recovers what was synced before a crash.
    ///
    /// # Errors
    /// The device holds no volume, one of a later version, or one that is cut off or damaged; an
    /// error of the device.
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self> {
        let superblock = find_superblock(&*device)?;
        let media = Media {
            device,
            id: superblock.id,
            areas: superblock.areas,
            written: Arc::default(),
        };
        let pack = Pack::read_last(&media, options.is_writable)?;
        let areas = media.areas;
        let segment_blocks = usize::try_from(areas.segment_table_blocks).unwrap_or(0);
        let node_blocks = usize::try_from(areas.node_table_blocks).unwrap_or(0);
        let bit = |at: usize| pack.bits.get(at).copied().unwrap_or(false);
        let second_segments: Vec<bool> = (0..segment_blocks).map(bit).collect();
        let second_nodes: Vec<bool> = (segment_blocks..segment_blocks + node_blocks).map(bit).collect();
        let entries = read_segment_table(&media, &second_segments, &pack, options.is_writable)?;
        let journal: BTreeMap<_, _> = pack.journal.nodes.iter().copied().collect();
        let header = &pack.header;
        let counts = Counts {
            used_blocks: header.used_blocks,
            nodes: header.nodes,
            inodes: header.inodes,
        };
        let small = options.small(
            superblock.features & FEATURE_COMPRESSION != 0,
            header.delta_list,
            superblock.hash_seed,
        );
        let mut state = State {
            clock: Arc::clone(&options.clock),
            space: Space::new(
                Segments::new(areas, entries),
                NodeTable::new(second_nodes, journal, header.last_nid),
                counts,
                second_segments,
            ),
            tree: Tree::new(
                options.pages(),
                pack.orphans.iter().copied().collect(),
                superblock.hash_seed,
            ),
            small,
            durability: Durability::new(header.version, pack.number),
            media,
        };
        for (number, _) in &pack.journal.segments {
            state.space.segments.mark_changed(*number);
        }
        match header.is_clean {
            true => state.space.segments.resume_logs(&header.logs, &pack.summaries),
            false => {
                state.space.segments.close_logs(&header.logs, &pack.summaries);
                state.roll_forward(&header.logs, options.is_writable)?;
                state.space.segments.reopen_logs(&header.logs)?;
            }
        }
        state.durability.is_writable = options.is_writable;
        if options.is_writable {
            state.free_orphans()?;
            state.checkpoint(false)?;
        }
        Ok(Self {
            state: Mutex::new(state),
        })
    }

    /// Makes everything durable, and says that nothing is to be recovered.
    ///
    /// # Errors
    /// The error of the device; the volume is recovered when it is opened again.
    pub fn close(self) -> Result<()> {
        self.look().tree.held.clear();
        self.finish()
    }

    /// As [`Volume::close`], where files may still be open: from then on nothing is changed any
    /// more, and a held file without a name is removed when the volume is opened again.
    ///
    /// # Errors
    /// As [`Volume::close`].
    pub fn finish(&self) -> Result<()> {
        let mut state = self.look();
        if !state.durability.is_writable {
            return Ok(());
        }
        state.free_orphans()?;
        state.checkpoint(true)?;
        // In both places: then no block is the only one that says how things stand.
        state.checkpoint(true)?;
        state.durability.is_writable = false;
        Ok(())
    }

    /// Why nothing is written any more, if the device refused a write.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.look().durability.failure().map(str::to_owned)
    }

    /// Sets the companion, which keeps files in step with those of programs; see [`Companion`].
    pub fn set_companion(&self, companion: Arc<dyn Companion>) {
        self.look().durability.companion = Some(companion);
    }

    /// Changes several things as one, with no other call in between. `act` is called with the
    /// volume's lock held.
    ///
    /// # Errors
    /// No room; those of `act`.
    pub fn at_once<T>(&self, act: impl FnOnce(&mut Inside<'_>) -> Result<T>) -> Result<T> {
        let mut state = self.change()?;
        act(&mut Inside::new(&mut state))
    }

    /// Looks at several things at once. `act` changes nothing.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn look_at_once<T>(&self, act: impl FnOnce(&mut Inside<'_>) -> Result<T>) -> Result<T> {
        let mut state = self.look();
        state.durability.since.is_changed = true;
        act(&mut Inside::new(&mut state))
    }

    /// The whole state, for a repair.
    pub(crate) fn with_state<T>(&self, change: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        change(&mut *self.change()?)
    }

    fn look(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The lock, with room for a change.
    fn change(&self) -> Result<MutexGuard<'_, State>> {
        self.change_by(Change::Any)
    }

    fn change_by(&self, change: Change) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        state.balance_for(change)?;
        state.durability.since.is_changed = true;
        Ok(state)
    }

    /// Identity of this volume.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.look().media.id
    }

    /// The number of the root directory.
    #[must_use]
    pub fn root(&self) -> u32 {
        Nid::ROOT.0
    }

    /// Room and files in use and left.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let state = self.look();
        let blocks = u64::from(Space::capacity_blocks(&state.media.areas));
        let free_blocks = u64::from(state.space.free_blocks(&state.media.areas));
        Usage {
            blocks,
            free_blocks,
            available_blocks: free_blocks.saturating_sub(blocks_beside_content(free_blocks)),
            files: u64::from(state.space.counts.inodes) + free_blocks,
            free_files: free_blocks,
        }
    }

    /// Statistics of deltas since the volume was opened.
    #[must_use]
    pub fn delta_counts(&self) -> DeltaCounts {
        self.look().small.delta_counts
    }

    /// Statistics since the volume was opened. Files that got their first deltas in the main area
    /// after the last checkpoint are not counted yet.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        let mut state = self.look();
        let (deltas_in_main, compact_pages) = state.count_main_deltas();
        VolumeStats {
            deltas_in_main,
            compact_pages,
            deltas: state.small.delta_counts,
            written: state.media.written.blocks(),
            write_hot_files: state.small.hotness.write_hot_files(),
        }
    }

    /// How a file is used at present, compared with the others.
    #[must_use]
    pub fn heat(&self, ino: u32) -> Heat {
        self.look().small.hotness.heat(Nid(ino))
    }

    /// Attributes of a file.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn attributes(&self, ino: u32) -> Result<Attributes> {
        self.look().attributes(Nid(ino))
    }

    /// Changes attributes of a file, also its length.
    ///
    /// # Errors
    /// As [`Volume::attributes`]; no room.
    pub fn set_attributes(&self, ino: u32, set: &SetAttributes) -> Result<Attributes> {
        self.change_by(Change::Little)?.set_attributes(Nid(ino), set)
    }

    /// Looks up a name in a directory.
    ///
    /// # Errors
    /// There is none.
    pub fn look_up(&self, dir: u32, name: &[u8]) -> Result<Attributes> {
        self.look().look_up(Nid(dir), name)
    }

    /// Creates a file of any type but a symlink.
    ///
    /// # Errors
    /// The name is taken, or none; no room.
    pub fn make(&self, dir: u32, name: &[u8], new: &NewFile) -> Result<Attributes> {
        let mut state = self.change()?;
        let ino = state.make(Nid(dir), name, new)?;
        state.attributes(ino)
    }

    /// Creates a file without a name, held once.
    ///
    /// # Errors
    /// No room.
    pub fn make_unnamed(&self, new: &NewFile) -> Result<Attributes> {
        let mut state = self.change()?;
        let ino = state.new_file(None, new)?;
        state.tree.hold(ino);
        state.attributes(ino)
    }

    /// Creates a symlink.
    ///
    /// # Errors
    /// As [`Volume::make`]; a target of no bytes or too many.
    pub fn make_symlink(&self, dir: u32, name: &[u8], target: &[u8], new: &NewFile) -> Result<Attributes> {
        let mut state = self.change()?;
        let ino = state.make_symlink(Nid(dir), name, target, new)?;
        state.attributes(ino)
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// The file is no symlink, or damaged.
    pub fn read_symlink(&self, ino: u32) -> Result<Vec<u8>> {
        self.look().read_symlink(Nid(ino))
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// It is a directory, or has too many; the name is taken, or none; no room.
    pub fn link(&self, ino: u32, dir: u32, name: &[u8]) -> Result<Attributes> {
        let mut state = self.change()?;
        state.link(Nid(ino), Nid(dir), name)?;
        state.attributes(Nid(ino))
    }

    /// Removes a name of a file that is no directory.
    ///
    /// # Errors
    /// There is none, or it is a directory.
    pub fn unlink(&self, dir: u32, name: &[u8]) -> Result<()> {
        self.change_by(Change::Little)?.unlink(Nid(dir), name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The name does not exist, or is not that of an empty directory.
    pub fn remove_directory(&self, dir: u32, name: &[u8]) -> Result<()> {
        self.change_by(Change::Little)?.remove_directory(Nid(dir), name)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// As `rename(2)`; no room.
    pub fn rename(&self, from: (u32, &[u8]), to: (u32, &[u8]), how: Rename) -> Result<()> {
        self.change()?.rename((Nid(from.0), from.1), (Nid(to.0), to.1), how)
    }

    /// Entries of a directory from a place on, at most `count`; the first place is 0. Without `.`
    /// and `..`.
    ///
    /// # Errors
    /// It is damaged.
    pub fn list(&self, dir: u32, from: u64, count: usize) -> Result<Vec<Listed>> {
        self.look().list(Nid(dir), from, count)
    }

    /// The parent of a directory.
    ///
    /// # Errors
    /// There is none.
    pub fn parent(&self, dir: u32) -> Result<u32> {
        Ok(self.look().inode(Nid(dir))?.parent().0)
    }

    /// Keeps a file even without a name, until [`Volume::release_hold`].
    pub fn hold(&self, ino: u32) {
        self.look().tree.hold(Nid(ino));
    }

    /// Ends `times` holds of [`Volume::hold`].
    ///
    /// # Errors
    /// The file has no name, and cannot be removed.
    pub fn release_hold(&self, ino: u32, times: u64) -> Result<()> {
        let mut state = self.look();
        state.durability.since.is_changed = true;
        state.release_hold(Nid(ino), times)
    }

    /// Reads from `offset` on; fewer bytes than asked only at the end.
    ///
    /// # Errors
    /// A part of it is damaged.
    pub fn read(&self, ino: u32, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let (len, direct, media) = {
            let mut state = self.look();
            let (len, direct) = state.begin_read(Nid(ino), offset, buffer)?;
            if direct.is_empty() {
                return Ok(len);
            }
            (len, direct, state.media.clone())
        };
        let is_read = direct.perform(&media, buffer);
        let mut state = self.look();
        match is_read && direct.is_current(&state) {
            true => Ok(len),
            // Also if it is no more, or shorter: then that is the answer.
            false => state.read(Nid(ino), offset, buffer),
        }
    }

    /// Writes at `offset`; fewer bytes than asked only if there is no more room.
    ///
    /// # Errors
    /// The reason if not a single byte was written.
    pub fn write(&self, ino: u32, offset: u64, data: &[u8]) -> Result<usize> {
        let mut written = 0;
        while written < data.len() {
            let at = offset.saturating_add(written as u64);
            let rest = data.get(written..).unwrap_or_default();
            let now = self.change().and_then(|mut state| {
                let step_pages = usize::try_from(state.write_step_pages()).unwrap_or(1);
                let step_len_bytes = step_pages * BLOCK_LEN_BYTES;
                let step = rest.get(..step_len_bytes).unwrap_or(rest);
                Ok((state.write(Nid(ino), at, step, written == 0)?, step.len()))
            });
            match now {
                Ok((count, step_len_bytes)) => {
                    written += count;
                    if count < step_len_bytes {
                        break;
                    }
                }
                Err(error) if written == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(written)
    }

    /// Reserves room, or gives it up, as `how` says. For a large range other calls may come
    /// between; the length is set at the end.
    ///
    /// # Errors
    /// No room: then nothing is done, but for what others take meanwhile, and for what leads to
    /// what is set aside.
    pub fn allocate(&self, ino: u32, how: Allocate, offset: u64, len_bytes: u64) -> Result<()> {
        let mut done = None;
        loop {
            // Each time it is made sure that what waits can be written.
            let change = if how == Allocate::Punch {
                Change::Little
            } else {
                Change::Any
            };
            done = self
                .change_by(change)?
                .allocate(Nid(ino), how, (offset, len_bytes), done)?;
            if done.is_none() {
                return Ok(());
            }
        }
    }

    /// The first byte at or after `offset` that is data or, if not `is_data`, in a hole; `None` if
    /// there is none before the end. The end is a hole.
    ///
    /// # Errors
    /// It is damaged.
    pub fn seek(&self, ino: u32, offset: u64, is_data: bool) -> Result<Option<u64>> {
        self.look().seek(Nid(ino), offset, is_data)
    }

    /// An extended attribute.
    ///
    /// # Errors
    /// There is none.
    pub fn xattr(&self, ino: u32, name: &[u8]) -> Result<Vec<u8>> {
        self.look().xattr(Nid(ino), name)
    }

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// They are damaged.
    pub fn xattr_names(&self, ino: u32) -> Result<Vec<Vec<u8>>> {
        self.look().xattr_names(Nid(ino))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As `how` says; no room.
    pub fn set_xattr(&self, ino: u32, name: &[u8], value: &[u8], how: SetAttribute) -> Result<()> {
        self.change()?.set_xattr(Nid(ino), name, value, how)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_xattr(&self, ino: u32, name: &[u8]) -> Result<()> {
        self.change_by(Change::Little)?.remove_xattr(Nid(ino), name)
    }

    /// Makes a file durable, with its name; for a directory, everything.
    ///
    /// # Errors
    /// The error of the device.
    pub fn sync_file(&self, ino: u32) -> Result<()> {
        self.change_by(Change::Little)?.sync_file(Nid(ino))
    }

    /// Makes everything durable. Nothing is written if that is so already.
    ///
    /// # Errors
    /// The error of the device.
    pub fn sync(&self) -> Result<()> {
        let mut state = self.look();
        state.durability.check_writable()?;
        match state.equals_checkpoint() {
            true => Ok(()),
            false => state.checkpoint(false),
        }
    }

    /// Work for idle time: writes pages whose deltas in the main area are not worth it any more
    /// (`BGRes`), and makes room where it is scattered. False if there is nothing to do; repeated
    /// calls with only syncs in between reach that.
    ///
    /// # Errors
    /// The error of the device.
    pub fn tidy(&self) -> Result<bool> {
        let mut state = self.look();
        state.balance_for(Change::Little)?;
        let has_done = state.tidy();
        state.durability.since.is_changed |= has_done.as_ref().map_or(true, |has_done| *has_done);
        has_done
    }
}

/// A writer needs all of the table. A reader needs none of it, so losses do not matter to it.
fn read_segment_table(media: &Media, second: &[bool], pack: &Pack, writes: bool) -> Result<Vec<SegmentEntry>> {
    let segment_blocks = media.areas.segment_blocks;
    let per_block = SegmentEntry::per_block(segment_blocks);
    let mut entries = Vec::new();
    for (block, is_second) in (0..).zip(second) {
        let address = segment_table_address(media, block, *is_second);
        let table = match media.read_sealed(address, Kind::SegmentTable) {
            Err(error) if !writes && error.is_loss() => zeros(),
            table => table?,
        };
        let first = block * per_block;
        let end = media.areas.main_segments.min(first + per_block);
        entries.extend((first..end).map(|segment| SegmentEntry::read(&table, segment, segment_blocks)));
    }
    for (segment, entry) in &pack.journal.segments {
        if let Some(place) = usize::try_from(*segment).ok().and_then(|at| entries.get_mut(at)) {
            entry.clone_into(place);
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests;
