//! Random calls of the catalog's traits: SQLite and the strict twin in memory give the same
//! answers. `BYTEBACK_SEED` repeats one life. Calls that the traits forbid are made on the twin
//! alone.

use crate::lab::attributes;
use crate::memory::MemoryCatalog;
use byteback_delta::leaves::LeafKind;
use byteback_host::random::SplitMix64;
use byteback_host::sim::{CrashPhase, SimDisk};
use byteback_model::{FileId, NodeKind, Seq, SnapshotLabel};
use byteback_store::catalog::{
    AttributeRow, BatchCondition, BatchKey, BatchRow, Catalog, CatalogRead, CatalogWrite, DeviceRow, EntryRow,
    FolderRow, FragmentationRow, InvitationRow, LayerRow, OPEN, SqliteCatalog,
};
use byteback_store::numbers::{ChunkNumber, FolderNumber, LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber};
use byteback_store::{ALIKE_LEN_MIN, StoreError};
use std::fmt::Debug;

const LIVES: u64 = 12;
const TRANSACTIONS: u64 = 60;
const NAMES: [&str; 3] = ["a", "b", "\u{fc}"];
const FILES: u128 = 5;

/// Lengths of files, some of which are long enough to be found by their length.
const LENGTHS: [u64; 4] = [7, ALIKE_LEN_MIN - 1, ALIKE_LEN_MIN, 1 << 40];
const DEVICES: u64 = 3;
const SEGMENTS: u64 = 6;

/// An answer as text, so that both are compared whole.
type Answer = Result<String, StoreError>;

/// A call with its arguments.
type Call = Box<dyn Fn(&dyn CatalogWrite) -> Answer>;

fn shown<T: Debug>(result: Result<T, StoreError>) -> Answer {
    result.map(|answer| format!("{answer:?}"))
}

/// Draws of a life.
struct Draw {
    random: SplitMix64,
    /// A time of use that no sums had yet: which of two equally old ones goes first is open.
    used_ns: i64,
}

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn name(&mut self) -> Vec<u8> {
        NAMES[self.below(3) as usize].as_bytes().to_vec()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.below(20) as usize;
        self.random.bytes(len)
    }

    fn device(&mut self) -> u64 {
        1 + self.below(DEVICES)
    }

    fn key(&mut self, folder: FolderNumber) -> BatchKey {
        BatchKey {
            folder,
            device: self.device(),
            counter: [1, 2, u64::MAX][self.below(3) as usize],
        }
    }

    fn kind(&mut self) -> LeafKind {
        LeafKind::ALL[self.below(3) as usize]
    }

    fn segments(&mut self) -> Vec<SegmentNumber> {
        (1..=SEGMENTS)
            .filter(|_| self.random.below(4) == 0)
            .map(SegmentNumber)
            .collect()
    }

    fn node(&mut self, nodes: &[NodeNumber]) -> NodeNumber {
        // Sometimes one that is missing.
        match self.below(12) {
            0 => NodeNumber(99),
            _ => self.present(nodes),
        }
    }

    fn present(&mut self, nodes: &[NodeNumber]) -> NodeNumber {
        nodes[self.below(nodes.len() as u64) as usize]
    }
}

/// State of a folder inside a transaction, from which allowed calls are drawn.
struct Scene {
    folder: FolderRow,
    nodes: Vec<NodeNumber>,
    /// Sequence number of the rows that the transaction adds.
    seq: Seq,
}

impl Scene {
    fn of(read: &dyn CatalogRead, draw: &mut Draw) -> Option<Self> {
        let folders = read.folders().unwrap();
        if folders.is_empty() {
            return None;
        }
        let folder = folders[draw.below(folders.len() as u64) as usize].clone();
        let numbers = (0..FILES).filter_map(|file| read.node_number(folder.id, FileId(file)).unwrap());
        let nodes: Vec<NodeNumber> = numbers.collect();
        let seq = folder.seq + 1;
        (!nodes.is_empty()).then_some(Self { folder, nodes, seq })
    }
}

fn newest_layer(read: &dyn CatalogRead, node: NodeNumber) -> LayerNumber {
    let mut newest = LayerNumber::NONE;
    while read
        .longest_layer(node, newest.next(), LayerNumber::FIRST)
        .unwrap()
        .is_some()
    {
        newest = newest.next();
    }
    newest
}

/// Draws a call that the traits allow in the state that `read` shows, or whose refusal they
/// promise.
fn draw_call(read: &dyn CatalogRead, draw: &mut Draw) -> Option<Call> {
    let choice = draw.below(13);
    if choice < 3 {
        return Some(draw_access_call(read, draw));
    }
    let Some(scene) = Scene::of(read, draw) else {
        let (name, file) = (draw.name(), FileId(draw.below(FILES as u64).into()));
        let known = read.folders().unwrap().first().map(|row| row.id);
        return Some(match known {
            Some(folder) => Box::new(move |write| shown(write.insert_node(folder, file))),
            None => Box::new(move |write| shown(write.insert_folder(std::str::from_utf8(&name).unwrap(), 5))),
        });
    };
    match choice {
        3 | 4 => draw_layer_call(read, draw, &scene),
        5..=7 => draw_tree_call(read, draw, &scene),
        8 | 9 => draw_folder_call(draw, &scene),
        10 => draw_sums_call(draw, &scene),
        _ => draw_segment_call(draw, &scene),
    }
}

fn draw_access_call(read: &dyn CatalogRead, draw: &mut Draw) -> Call {
    let (device, time) = (draw.device(), draw.below(50) as i64);
    let hash = [draw.below(8) as u8; 32];
    let name = String::from_utf8(draw.name()).unwrap();
    let invitation = 1 + draw.below(6);
    let flag = draw.random.coin();
    match draw.below(9) {
        0 => Box::new(move |write| shown(write.insert_device(&name, &hash, flag, time))),
        2 => Box::new(move |write| shown(write.give_folder(device, &name, flag))),
        1 | 3 | 4 => {
            let row = read.device(device).unwrap();
            let row = DeviceRow {
                // Sometimes one that is missing.
                id: row.as_ref().map_or(99, |row| row.id),
                name,
                token_hash: row.as_ref().map_or([0; 32], |row| row.token_hash),
                created_ns: row.map_or(0, |row| row.created_ns),
                manages: flag,
                seen_ns: Some(time),
                revoked_ns: (time > 25).then_some(time),
            };
            Box::new(move |write| shown(write.update_device(&row)))
        }
        5 => {
            let row = InvitationRow {
                id: 0,
                hash,
                created_ns: time,
                expires_ns: time + 20,
                folder: flag.then(|| name.clone()),
                writes: flag,
                name,
                device: None,
                withdrawn_ns: None,
            };
            Box::new(move |write| shown(write.insert_invitation(&row)))
        }
        6 => Box::new(move |write| shown(write.use_invitation(invitation, device))),
        7 => Box::new(move |write| shown(write.withdraw_invitation(invitation, time))),
        _ => Box::new(move |write| shown(write.forget_invitations(time))),
    }
}

fn draw_layer_call(read: &dyn CatalogRead, draw: &mut Draw, scene: &Scene) -> Option<Call> {
    let node = draw.present(&scene.nodes);
    let newest = newest_layer(read, node);
    let mut row = LayerRow {
        id: LayerRowNumber::UNASSIGNED,
        first: newest.next(),
        last: newest.next(),
        base_len: draw.below(9),
        new_len: draw.below(9),
        extents: draw.below(9),
        resets: draw.random.coin(),
        barrier: draw.random.coin(),
        shared: None,
    };
    match draw.below(11) {
        0 => {
            let layer = read.longest_layer(node, newest, LayerNumber::FIRST).unwrap()?.id;
            return Some(Box::new(move |write| shown(write.set_barrier(layer))));
        }
        5 | 6 => {
            let layer = read.longest_layer(node, newest, LayerNumber::FIRST).unwrap()?.id;
            let pages: Vec<(u64, Vec<u8>)> = (0..draw.below(3)).map(|n| (n * 7, draw.bytes())).collect();
            let (segments, extents) = (draw.segments(), draw.below(9));
            return Some(Box::new(move |write| {
                shown(write.replace_pages(layer, extents, &pages, &segments))
            }));
        }
        7 => {
            let node = draw.node(&scene.nodes);
            let row = FragmentationRow {
                needed_bytes: draw.below(9),
                waste_bytes: draw.below(9),
                credit_bytes: draw.below(9),
                is_due: draw.random.coin(),
            };
            return Some(Box::new(move |write| shown(write.put_fragmentation(node, &row))));
        }
        1 | 2 if newest.0 >= 2 => {
            row.first = LayerNumber(1 + draw.below(newest.0 - 1));
            row.last = LayerNumber(row.first.0 + 1 + draw.below(newest.0 - row.first.0));
        }
        3 | 4 => {
            let other = draw.present(&scene.nodes);
            let of = read
                .longest_layer(other, LayerNumber::FIRST, LayerNumber::FIRST)
                .unwrap();
            // Sometimes a row that is missing.
            row.shared = Some(of.map_or(LayerRowNumber(999), |row| row.pages()));
            return Some(Box::new(move |write| shown(write.insert_layer(node, &row, &[], &[]))));
        }
        _ => {}
    }
    let pages: Vec<(u64, Vec<u8>)> = (0..draw.below(3)).map(|n| (n * 10, draw.bytes())).collect();
    let segments = draw.segments();
    Some(Box::new(move |write| {
        shown(write.insert_layer(node, &row, &pages, &segments))
    }))
}

fn draw_tree_call(read: &dyn CatalogRead, draw: &mut Draw, scene: &Scene) -> Option<Call> {
    let (folder, seq) = (scene.folder.id, scene.seq);
    let (parent, child) = (draw.present(&scene.nodes), draw.present(&scene.nodes));
    let name = draw.name();
    let newest = read.newest_entry_at(parent, &name, OPEN).unwrap();
    match draw.below(6) {
        0 | 1 => {
            let is_free = newest.is_none_or(|row| row.to_seq != OPEN);
            let row = EntryRow {
                parent,
                name,
                child,
                from_seq: seq,
                to_seq: OPEN,
            };
            is_free.then_some(Box::new(move |write| shown(write.insert_entry(folder, &row))))
        }
        2 => {
            let is_older = newest.is_none_or(|row| row.from_seq < seq);
            is_older.then_some(Box::new(move |write| shown(write.close_entry(parent, &name, seq))))
        }
        3 => {
            let mut all = scene
                .nodes
                .iter()
                .flat_map(|node| read.entries(*node, seq, None, 99).unwrap());
            let are_older = all.all(|row| row.from_seq < seq);
            are_older.then_some(Box::new(move |write| shown(write.close_all_entries(folder, seq))))
        }
        4 => {
            let layer = newest_layer(read, child);
            let has_layer = layer != LayerNumber::NONE && draw.random.coin();
            let mut row = AttributeRow {
                seq,
                attributes: attributes(NodeKind::File, LENGTHS[draw.below(4) as usize]),
                layer: if has_layer { layer } else { LayerNumber::NONE },
                content_seq: if has_layer { seq } else { 0 },
            };
            row.attributes.mtime_ns = i128::from(draw.random.next_u64().cast_signed()) * 3;
            row.attributes.xattrs = Vec::new();
            row.attributes.rdev = draw.random.next_u64();
            Some(Box::new(move |write| {
                shown(write.insert_attributes(folder, child, &row))
            }))
        }
        _ => {
            let layer = newest_layer(read, child);
            let exists = layer != LayerNumber::NONE;
            exists.then_some(Box::new(move |write| shown(write.set_content(child, seq, layer))))
        }
    }
}

fn draw_folder_call(draw: &mut Draw, scene: &Scene) -> Option<Call> {
    let (folder, seq) = (scene.folder.id, scene.seq);
    let missing = FolderNumber(99);
    let label = SnapshotLabel {
        time_ns: draw.below(9) as i64,
        host: draw.bytes().into(),
        path: draw.bytes().into(),
        tags: vec!["tag".to_owned(); draw.below(3) as usize],
    };
    match draw.below(9) {
        0 => {
            let name = String::from_utf8(draw.name()).unwrap();
            Some(Box::new(move |write| shown(write.insert_folder(&name, 5))))
        }
        1 | 2 => {
            let folder = if draw.below(12) == 0 { missing } else { folder };
            let file = FileId(draw.below(FILES as u64).into());
            Some(Box::new(move |write| shown(write.insert_node(folder, file))))
        }
        3 | 4 => {
            let row = FolderRow {
                seq,
                root: Some(draw.present(&scene.nodes)),
                entries: draw.below(9),
                snapshots: draw.below(9),
                stored_bytes: draw.below(9),
                ..scene.folder.clone()
            };
            Some(Box::new(move |write| shown(write.update_folder(&row))))
        }
        5 | 6 => {
            let key = draw.key(folder);
            let row = BatchRow {
                seq,
                device: key.device,
                counter: draw.below(30),
                base_seq: draw.random.coin().then_some(seq - 1),
                root: draw.present(&scene.nodes),
                created_ns: draw.below(50) as i64,
                host: draw.bytes(),
                path: draw.bytes(),
                snapshot_id: draw.random.coin().then_some(3),
                stored_bytes: draw.below(99),
            };
            Some(Box::new(move |write| shown(write.insert_batch(folder, &row))))
        }
        7 => {
            let folder = if draw.below(12) == 0 { missing } else { folder };
            Some(Box::new(move |write| shown(write.insert_snapshot(folder, seq, &label))))
        }
        _ => {
            let id = 1 + draw.below(4);
            Some(Box::new(move |write| shown(write.delete_snapshot(folder, id))))
        }
    }
}

fn draw_sums_call(draw: &mut Draw, scene: &Scene) -> Option<Call> {
    let (node, kind) = (draw.node(&scene.nodes), draw.kind());
    let (chunk, rows_max) = (ChunkNumber(draw.below(4)), 1 + draw.below(3) as u32);
    Some(match draw.below(4) {
        0 | 1 => {
            draw.used_ns += 1;
            let used_ns = draw.used_ns;
            let rows: Vec<_> = (0..draw.below(4))
                .map(|_| (ChunkNumber(draw.below(4)), draw.bytes()))
                .collect();
            Box::new(move |write| shown(write.put_sums(node, kind, used_ns, &rows)))
        }
        2 => Box::new(move |write| shown(write.delete_sums(node, kind, chunk))),
        _ => Box::new(move |write| shown(write.evict_sums((node, kind), rows_max))),
    })
}

fn draw_segment_call(draw: &mut Draw, scene: &Scene) -> Option<Call> {
    let (segment, len) = (SegmentNumber(1 + draw.below(SEGMENTS)), draw.below(100));
    let key = draw.key(scene.folder.id);
    let time = draw.below(50) as i64;
    Some(match draw.below(9) {
        0..=2 => Box::new(move |write| shown(write.add_segment(segment))),
        3 => Box::new(move |write| shown(write.forget_segment(segment))),
        4 | 5 => {
            let part = 1 + draw.below(3) as u32;
            let digest = draw.random.coin().then_some([len as u8; 32]);
            let records: Vec<_> = (0..draw.below(3)).map(|_| draw.bytes()).collect();
            let segments = draw.segments();
            Box::new(move |write| {
                let noted = (time, digest.as_ref());
                shown(write.replace_staged_part(key, part, noted, &records, &segments))
            })
        }
        6 => match draw.random.coin() {
            true => Box::new(move |write| shown(write.delete_staged_parts(key))),
            false => Box::new(move |write| shown(write.delete_expired_parts(time))),
        },
        7 => Box::new(move |write| shown(write.note_damage(segment, len % 5, 3))),
        _ => Box::new(move |write| shown(write.forget_damage(segment, len % 5))),
    })
}

/// Everything that a catalog answers about the small world of these lives.
fn observe(read: &dyn CatalogRead) -> Vec<String> {
    let mut seen = Vec::new();
    macro_rules! see {
        ($($call:expr),* $(,)?) => {$(
            seen.push(format!("{} = {:?}", stringify!($call), $call.unwrap()));
        )*};
    }
    see!(
        read.folders(),
        read.segment_id_max(),
        read.noted_damage(2),
        read.sums_len(),
        read.devices(),
        read.open_invitations(25),
        read.next_fragmented(NodeNumber::START),
        read.next_fragmented(NodeNumber(3)),
    );
    for device in 0..=DEVICES {
        see!(read.device(device), read.device_folders(device));
        for name in NAMES {
            see!(read.device_folder(device, name));
        }
    }
    for byte in 0..8 {
        see!(read.device_by_token(&[byte; 32]), read.invitation_by_token(&[byte; 32]));
    }
    for name in NAMES {
        see!(read.folder(name));
    }
    for folder in read.folders().unwrap() {
        observe_folder(read, &folder, &mut seen);
    }
    seen
}

fn observe_folder(read: &dyn CatalogRead, folder: &FolderRow, seen: &mut Vec<String>) {
    macro_rules! see {
        ($($call:expr),* $(,)?) => {$(
            seen.push(format!("{} = {:?}", stringify!($call), $call.unwrap()));
        )*};
    }
    let (id, end) = (folder.id, folder.seq + 2);
    for device in 1..=DEVICES {
        for counter in [1, 2, u64::MAX] {
            let key = BatchKey {
                folder: id,
                device,
                counter,
            };
            see!(read.batch_by_key(key), read.staged_parts(key));
            for part in read.staged_parts(key).unwrap() {
                see!(read.staged_sheet(part.id, 0), read.staged_sheet(part.id, 1));
            }
        }
        see!(read.newest_batch(id, end / 2..=end, BatchCondition::OfDevice(device)));
    }
    see!(
        read.snapshots(id, 1, 3),
        read.batches_after(id, 1, 4),
        read.newest_batch(id, end..=1, BatchCondition::Any),
    );
    for batch in read.batches_after(id, 0, 99).unwrap() {
        for time_ns in [batch.created_ns - 1, batch.created_ns] {
            see!(read.newest_batch(id, 0..=OPEN, BatchCondition::MadeUntil(time_ns)));
        }
    }
    for segment in (1..=SEGMENTS).map(SegmentNumber) {
        see!(read.nodes_of_segment(id, segment, 2));
    }
    for len_bytes in LENGTHS {
        for before in [NodeNumber(2), NodeNumber::END] {
            see!(read.node_of_length(id, len_bytes, before));
        }
    }
    let nodes: Vec<_> = (0..FILES)
        .filter_map(|file| read.node_number(id, FileId(file)).unwrap())
        .collect();
    for from in [0, end / 2] {
        let after = nodes.first().map(|node| (*node, b"a".as_slice()));
        let first = nodes.first().copied().unwrap_or(NodeNumber::START);
        see!(
            read.changed_names(id, from, end, None, 99),
            read.changed_names(id, from, end - 2, after, 2),
            read.changed_nodes(id, from, end, NodeNumber::START, 99),
            read.changed_nodes(id, from, end - 2, first, 2),
        );
    }
    for node in nodes {
        see!(read.file_id(node), read.sums(node), read.fragmentation(node));
        // Any of several open entries may be the answer.
        see!(read.newest_name(node).map(|row| row.map(|row| row.to_seq)));
        for kind in LeafKind::ALL {
            for chunk in (0..4).map(ChunkNumber) {
                see!(read.sum_chunk(node, kind, chunk));
            }
        }
        for last in (1..=newest_layer(read, node).0).map(LayerNumber) {
            let row = read.longest_layer(node, last, LayerNumber::FIRST).unwrap().unwrap();
            see!(
                read.longest_layer(node, last, last),
                read.page(row.pages(), 0),
                read.page(row.pages(), 12)
            );
            seen.push(format!("{row:?}"));
        }
        see!(read.newest_batch(id, 0..=end, BatchCondition::OtherRoot(node)));
        for seq in 0..=end {
            see!(read.batch_by_seq(id, seq), read.attributes(node, seq));
            see!(
                read.entries(node, seq, None, 99),
                read.entries(node, seq, Some(b"a"), 1)
            );
            let mut parents = read.parents(node, seq, 99).unwrap();
            parents.sort_by(|a, b| (a.parent, &a.name).cmp(&(b.parent, &b.name)));
            seen.push(format!("{parents:?}"));
            for name in NAMES.map(str::as_bytes) {
                see!(
                    read.entry(node, name, seq),
                    read.newest_entry_at(node, name, OPEN),
                    read.newest_entry_at(node, name, seq)
                );
            }
        }
    }
}

/// Calls that were made, and those of them that both refused.
#[derive(Default)]
struct Counts {
    calls: u64,
    refused: u64,
}

fn live(seed: u64, counts: &mut Counts) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c");
    let mut sqlite = SqliteCatalog::open(&path).unwrap();
    let mut memory = MemoryCatalog::new(SimDisk::new(seed));
    let mut draw = Draw {
        random: SplitMix64::new(seed),
        used_ns: 0,
    };
    for transaction in 0..TRANSACTIONS {
        let (in_file, in_memory) = (sqlite.write().unwrap(), memory.write().unwrap());
        let mut is_sound = true;
        for _ in 0..draw.below(12) {
            let Some(call) = draw_call(&*in_memory, &mut draw) else {
                continue;
            };
            let answers = (call(&*in_file), call(&*in_memory));
            counts.calls += 1;
            match answers {
                (Ok(one), Ok(other)) => assert_eq!(one, other, "seed {seed}, transaction {transaction}"),
                (Err(_), Err(_)) => {
                    counts.refused += 1;
                    is_sound = false;
                    break;
                }
                different => panic!("seed {seed}, transaction {transaction}: {different:?}"),
            }
        }
        if is_sound {
            assert_eq!(observe(&*in_file), observe(&*in_memory), "seed {seed}");
        }
        if is_sound && draw.below(5) > 0 {
            in_file.commit().unwrap();
            in_memory.commit().unwrap();
        } else {
            drop((in_file, in_memory));
        }
        if draw.below(10) == 0 {
            drop(sqlite);
            sqlite = SqliteCatalog::open(&path).unwrap();
            memory = memory.restart(SimDisk::new(seed));
        }
        let (in_file, in_memory) = (sqlite.read().unwrap(), memory.read().unwrap());
        assert_eq!(observe(&*in_file), observe(&*in_memory), "seed {seed}");
        drop((in_file, in_memory));
        let (in_file, in_memory) = (sqlite.write().unwrap(), memory.write().unwrap());
        assert_eq!(unreferenced(&*in_file), unreferenced(&*in_memory), "seed {seed}");
    }
}

/// Segments that nothing refers to; for a transaction that is dropped, because it forgets them.
fn unreferenced(write: &dyn CatalogWrite) -> Vec<SegmentNumber> {
    (1..=SEGMENTS)
        .map(SegmentNumber)
        .filter(|segment| write.forget_segment(*segment).unwrap())
        .collect()
}

#[test]
fn memory_catalog_answers_like_sqlite_in_random_lives() {
    let asked = std::env::var("BYTEBACK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = asked.map_or(1..=LIVES, |seed: u64| seed..=seed);
    let mut counts = Counts::default();
    for seed in seeds {
        eprintln!("seed {seed}: replay with BYTEBACK_SEED={seed}");
        live(seed, &mut counts);
    }
    let Counts { calls, refused } = counts;
    assert!(
        refused * 50 > calls && refused * 2 < calls,
        "{refused} of {calls} refused"
    );
}

/// A folder, two nodes in it, and a node of another folder.
fn small_tree(write: &dyn CatalogWrite) -> (FolderRow, [NodeNumber; 3]) {
    for name in ["f", "other"] {
        write.insert_folder(name, 1).unwrap();
    }
    let [folder, other] = ["f", "other"].map(|name| write.folder(name).unwrap().unwrap());
    let nodes = [(folder.id, 1), (folder.id, 2), (other.id, 1)];
    let nodes = nodes.map(|(folder, file)| write.insert_node(folder, FileId(file)).unwrap());
    (folder, nodes)
}

#[test]
fn memory_catalog_refuses_what_the_traits_forbid() {
    let memory = MemoryCatalog::new(SimDisk::new(1));
    let write = memory.write().unwrap();
    let (folder, [root, node, foreign]) = small_tree(&*write);
    let id = folder.id;
    let entry = move |child, from_seq, to_seq| EntryRow {
        parent: root,
        name: b"n".to_vec(),
        child,
        from_seq,
        to_seq,
    };
    write.insert_entry(id, &entry(node, 2, OPEN)).unwrap();
    write.add_segment(SegmentNumber(1)).unwrap();
    let layer = LayerRow {
        id: LayerRowNumber::UNASSIGNED,
        first: LayerNumber(1),
        last: LayerNumber(1),
        base_len: 0,
        new_len: 1,
        extents: 1,
        resets: true,
        barrier: false,
        shared: None,
    };
    let owner = write.insert_layer(node, &layer, &[], &[SegmentNumber(1)]).unwrap();
    let newest = FolderRow {
        seq: 2,
        ..folder.clone()
    };
    write.update_folder(&newest).unwrap();
    write.commit().unwrap();

    let attributes_at = move |seq| AttributeRow {
        seq,
        attributes: attributes(NodeKind::File, 0),
        layer: LayerNumber::NONE,
        content_seq: 0,
    };
    let renamed = FolderRow {
        name: "g".to_owned(),
        ..newest.clone()
    };
    let older = FolderRow { seq: 1, ..newest };
    let shared = LayerRow {
        shared: Some(owner),
        ..layer
    };
    let third = LayerRow {
        first: LayerNumber(3),
        last: LayerNumber(3),
        ..layer
    };
    let misuse: Vec<(&str, Call)> = vec![
        (
            "past entry",
            Box::new(move |w| shown(w.insert_entry(id, &entry(root, 2, OPEN)))),
        ),
        (
            "overlap",
            Box::new(move |w| shown(w.insert_entry(id, &entry(root, 3, OPEN)))),
        ),
        (
            "closed entry",
            Box::new(move |w| shown(w.insert_entry(id, &entry(root, 3, 4)))),
        ),
        (
            "foreign child",
            Box::new(move |w| shown(w.insert_entry(id, &entry(foreign, 3, OPEN)))),
        ),
        ("past end", Box::new(move |w| shown(w.close_entry(root, b"n", 2)))),
        ("past ends", Box::new(move |w| shown(w.close_all_entries(id, 1)))),
        (
            "past attributes",
            Box::new(move |w| shown(w.insert_attributes(id, node, &attributes_at(2)))),
        ),
        (
            "foreign node",
            Box::new(move |w| shown(w.insert_attributes(id, foreign, &attributes_at(3)))),
        ),
        (
            "large number",
            Box::new(move |w| shown(w.insert_attributes(id, node, &attributes_at(1 << 63)))),
        ),
        ("renamed folder", Box::new(move |w| shown(w.update_folder(&renamed)))),
        ("older folder", Box::new(move |w| shown(w.update_folder(&older)))),
        (
            "gap of layers",
            Box::new(move |w| shown(w.insert_layer(node, &third, &[], &[]))),
        ),
        (
            "pages and shared",
            Box::new(move |w| shown(w.insert_layer(root, &shared, &[(0, vec![1])], &[]))),
        ),
        ("no segment", Box::new(|w| shown(w.add_segment(SegmentNumber::NONE)))),
    ];
    for (what, call) in misuse {
        let write = memory.write().unwrap();
        let refused = call(&*write);
        let is_refusal = |error: &StoreError| error.to_string().contains("refused: ");
        assert!(refused.is_err_and(|error| is_refusal(&error)), "{what}");
        assert!(write.folders().is_err(), "{what}: the transaction failed");
        assert!(write.insert_folder("x", 1).is_err(), "{what}: the transaction failed");
        assert!(write.commit().is_err(), "{what}: a failed transaction is not committed");
    }
    let write = memory.write().unwrap();
    assert!(memory.write().is_err(), "one thread has one write transaction");
    drop(write);
    assert!(memory.write().is_ok());
}

#[test]
fn memory_catalog_keeps_only_commits_in_a_power_cut() {
    for (phase, survives) in [(CrashPhase::Before, false), (CrashPhase::After, true)] {
        let disk = SimDisk::new(1);
        let memory = MemoryCatalog::new(disk.clone());
        let insert = |name| {
            let write = memory.write()?;
            write.insert_folder(name, 1)?;
            write.commit()
        };
        memory.crash_at_commit(2, phase);
        insert("first").unwrap();
        let reader = memory.read().unwrap();
        assert!(insert("second").is_err() && disk.is_cut());
        assert!(reader.folders().is_err() && memory.read().is_err() && insert("third").is_err());
        drop(reader);
        let restarted = memory.restart(disk.recover(1));
        let read = restarted.read().unwrap();
        let names: Vec<String> = read.folders().unwrap().into_iter().map(|row| row.name).collect();
        let expected: &[&str] = if survives { &["first", "second"] } else { &["first"] };
        assert_eq!(names, expected);
    }
}
