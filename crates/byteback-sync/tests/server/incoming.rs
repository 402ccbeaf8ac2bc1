//! Changes by others are fetched from a real server: of two devices that send at random one stays
//! behind, and gets to the head by the changes it is sent.

use byteback_backup::{BackupError, Silent};
use byteback_backup::{Destination, FileDeltas, PartStream, file_id};
use byteback_client::ServerClient;
use byteback_control::TreeService;
use byteback_delta::{DeltaReader, DeltaWriter, Target, WriterOptions, apply_in_place};
use byteback_extents::ByteRange;
use byteback_host::random::SplitMix64;
use byteback_model::{
    Attributes, ContentBase, DeviceId, FileId, Manifest, NameChange, NodeId, NodeKind, NodeRecord, Place, Seq,
};
use byteback_sync::incoming::fetch::Incoming;
use byteback_sync::incoming::plan::{ContentFrom, Need};
use byteback_testkit::clients::patient;
use byteback_testkit::rig::Rig;
use byteback_testkit::seed::seed;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    names: BTreeMap<Place<FileId>, FileId>,
    files: BTreeMap<FileId, (Vec<u8>, u32)>,
}

#[derive(Default)]
struct Batch {
    nodes: BTreeMap<FileId, (ContentBase, Vec<u8>)>,
    names: BTreeMap<Place<FileId>, Option<FileId>>,
}

struct Sender {
    client: ServerClient,
    device: DeviceId,
    counter: u64,
    follows: Option<u64>,
}

fn attributes(kind: NodeKind, size: u64, mode: u32) -> Attributes {
    Attributes {
        kind,
        mode,
        uid: 1,
        gid: 2,
        size,
        mtime_ns: 3,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    }
}

/// A delta without copies from one content to another, with the differences and a little more.
fn delta(old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut writer =
        DeltaWriter::new(Vec::new(), old.len() as u64, new.len() as u64, WriterOptions::default()).unwrap();
    for at in (0..new.len()).step_by(64) {
        let end = (at + 64).min(new.len());
        if old.get(at..end) == Some(&new[at..end]) {
            continue;
        }
        match new[at..end].iter().all(|byte| *byte == 0) {
            true => writer.zero(ByteRange::new(at as u64, end as u64).unwrap()).unwrap(),
            false => writer.literal_bytes(at as u64, &new[at..end]).unwrap(),
        }
    }
    writer.finish().unwrap().0
}

impl Sender {
    fn send(&mut self, rig: &Rig, root: FileId, base_seq: Seq, batch: &Batch, now: &State) -> Result<Seq, BackupError> {
        self.counter += 1;
        let manifest = Manifest {
            device: self.device,
            counter: self.counter,
            base_seq: Some(base_seq),
            replaces: None,
            follows: self.follows,
            root,
            created_ns: 1,
            host: "h".into(),
            path: "/".into(),
            snapshot: None,
        };
        let to = Destination {
            server: &self.client,
            folder: &rig.folder,
            counter: self.counter,
            monitor: &Silent,
            memory: None,
            link_before_bytes_per_s: None,
            processor_share: 1.0,
        };
        let noted = || Ok(());
        std::thread::scope(|scope| {
            let mut stream = PartStream::begin(scope, to, 64 * 1024, &manifest, &noted)?;
            for (id, (base, bytes)) in &batch.nodes {
                let (content, mode) = &now.files[id];
                let attributes = attributes(NodeKind::File, content.len() as u64, *mode);
                if bytes.is_empty() {
                    stream.node(&NodeRecord {
                        id: *id,
                        attributes,
                        content: None,
                    })?;
                    continue;
                }
                let mut deltas = FileDeltas::default();
                let pushed = deltas.push(&mut stream, *id, bytes.clone(), 0);
                assert!(pushed.is_ok() && deltas.finish(&mut stream, *id, &attributes, *base).is_ok());
            }
            for (place, child) in &batch.names {
                stream.entry(&NameChange {
                    parent: place.parent,
                    name: place.name.clone(),
                    child: *child,
                })?;
            }
            stream.commit(|| Ok(()))
        })
        .map(|applied| {
            self.follows = Some(self.counter);
            applied.seq
        })
    }
}

fn some_content(random: &mut SplitMix64, old: &[u8]) -> Vec<u8> {
    let mut new = old.to_vec();
    if random.below(3) == 0 {
        new.truncate(random.below(new.len() as u64 + 1) as usize);
    }
    for _ in 0..1 + random.below(4) {
        let at = random.below(new.len() as u64 + 3000) as usize;
        let len = 1 + random.below(900) as usize;
        if new.len() < at + len {
            new.resize(at + len, 0);
        }
        let is_hole = random.below(4) == 0;
        for byte in &mut new[at..at + len] {
            *byte = if is_hole { 0 } else { random.next_u64() as u8 };
        }
    }
    new
}

/// Whether a name, or a file, may be touched.
type May<'a> = dyn Fn(Option<&Place<FileId>>, Option<FileId>) -> bool + 'a;

/// Some changes to the server's state, of names and files that `may` be touched.
fn change(random: &mut SplitMix64, now: &mut State, places: &[Place<FileId>], may: &May<'_>, next: &mut u128) -> Batch {
    let mut batch = Batch::default();
    for _ in 0..1 + random.below(4) {
        let place = places[random.below(places.len() as u64) as usize].clone();
        let at = random.below(now.files.len().max(1) as u64) as usize;
        let file = now.files.keys().nth(at).copied();
        match random.below(6) {
            0 | 1 if may(Some(&place), None) => {
                *next += 1;
                let id = FileId(*next);
                let content = some_content(random, b"");
                batch.nodes.insert(id, (ContentBase::Empty, delta(b"", &content)));
                now.files.insert(id, (content, 0o600));
                now.names.insert(place.clone(), id);
                batch.names.insert(place, Some(id));
            }
            2 if may(Some(&place), None) && now.names.contains_key(&place) => {
                now.names.remove(&place);
                batch.names.insert(place, None);
            }
            3 if may(Some(&place), None) => {
                // A further name, or another one.
                let Some(file) = file else { continue };
                now.names.insert(place.clone(), file);
                batch.names.insert(place, Some(file));
            }
            _ => {
                let Some(file) = file.filter(|file| may(None, Some(*file)) && !batch.nodes.contains_key(file)) else {
                    continue;
                };
                let held = now.files.get_mut(&file).unwrap();
                let bytes = match random.below(4) {
                    0 => {
                        held.1 = 0o600 + random.below(64) as u32;
                        Vec::new()
                    }
                    _ => {
                        let new = some_content(random, &held.0);
                        let bytes = delta(&held.0, &new);
                        held.0 = new;
                        bytes
                    }
                };
                batch.nodes.insert(file, (ContentBase::Previous, bytes));
            }
        }
    }
    batch
}

struct Bytes<'a>(&'a mut Vec<u8>);

impl Target for Bytes<'_> {
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn write_range(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn punch_hole(&mut self, range: ByteRange) -> std::io::Result<()> {
        self.0[range.start() as usize..range.end() as usize].fill(0);
        Ok(())
    }

    fn set_len_bytes(&mut self, len_bytes: u64) -> std::io::Result<()> {
        self.0.resize(len_bytes as usize, 0);
        Ok(())
    }
}

#[test]
fn what_others_did_leads_from_what_is_here_to_the_head() {
    let seed = seed(911);
    let (mut only_ours, mut first_ours, mut undone) = (0, 0, 0);
    for life in 0..10 {
        let mut random = SplitMix64::new(seed + life);
        let rig = Rig::with(seed, patient());
        rig.backup().unwrap();
        let root = file_id(TreeService::status(&rig.tree).unwrap().tree, NodeId::ROOT);
        let (client, device) = rig.another_device();
        let mut other = Sender {
            client,
            device,
            counter: 1 << 50,
            follows: None,
        };
        let (client, device) = rig.another_device();
        let mut ours = Sender {
            client,
            device,
            counter: 1 << 50,
            follows: None,
        };
        let places: Vec<Place<FileId>> = (0..20)
            .map(|at| Place {
                parent: root,
                name: format!("n{at}").into_bytes().into(),
            })
            .collect();
        let (mut now, mut next, mut seq) = (State::default(), 1u128 << 70, rig.seq());
        for _ in 0..6 {
            let batch = change(&mut random, &mut now, &places, &|_, _| true, &mut next);
            other.follows = None;
            seq = other.send(&rig, root, seq, &batch, &now).unwrap();
        }
        let cursor = seq;
        let at_cursor = now.clone();
        let mut here = now.clone();
        let mut by_others: (BTreeSet<Place<FileId>>, BTreeSet<FileId>) = Default::default();
        let mut by_us = by_others.clone();
        // Nodes that lost a name through others: writing them would be a conflict, as is removing
        // nodes that others wrote.
        let mut taken: BTreeSet<FileId> = BTreeSet::new();
        for _ in 0..25 {
            if random.below(2) == 0 {
                let named = now.names.clone();
                let may = |place: Option<&Place<FileId>>, file: Option<FileId>| {
                    let child = place.and_then(|place| named.get(place));
                    place.is_none_or(|place| !by_others.0.contains(place))
                        && child.is_none_or(|child| !by_others.1.contains(child))
                        && file.is_none_or(|file| !by_others.1.contains(&file) && !taken.contains(&file))
                };
                let batch = change(&mut random, &mut now, &places, &may, &mut next);
                seq = ours.send(&rig, root, cursor, &batch, &now).unwrap();
                for (place, child) in &batch.names {
                    match child {
                        Some(child) => here.names.insert(place.clone(), *child),
                        None => here.names.remove(place),
                    };
                }
                for id in batch.nodes.keys() {
                    here.files.insert(*id, now.files[id].clone());
                }
                by_us.0.extend(batch.names.into_keys());
                by_us.1.extend(batch.nodes.into_keys());
            } else {
                let named = now.names.clone();
                let batch = change(&mut random, &mut now, &places, &|_, _| true, &mut next);
                other.follows = None;
                seq = other.send(&rig, root, seq, &batch, &now).unwrap();
                taken.extend(batch.names.keys().filter_map(|place| named.get(place)));
                by_others.0.extend(batch.names.into_keys());
                by_others.1.extend(batch.nodes.into_keys());
            }
        }
        let head = seq;
        // Later batches do not matter.
        let mut later = now.clone();
        let batch = change(&mut random, &mut later, &places, &|_, _| true, &mut next);
        other.send(&rig, root, head, &batch, &later).unwrap();
        let incoming = Incoming {
            server: &ours.client,
            folder: &rig.folder,
            cursor,
            head,
            takes_own: false,
            monitor: &Silent,
        };
        let mut others = incoming.others().unwrap();
        for (place, change) in &others.names {
            assert!(by_others.0.contains(place), "seed {seed}: {place:?}");
            assert_eq!(here.names.get(place).copied(), change.before, "seed {seed}: {place:?}");
            first_ours += u64::from(by_us.0.contains(place));
            undone += u64::from(at_cursor.names.get(place) == now.names.get(place));
            match change.after {
                Some(child) => here.names.insert(place.clone(), child),
                None => here.names.remove(place),
            };
        }
        assert_eq!(here.names, now.names, "seed {seed}");
        only_ours += by_us.0.difference(&by_others.0).count();
        for (id, change) in &others.nodes {
            assert!(by_others.1.contains(id), "seed {seed}: {id}");
            let had = here.files.get(id).cloned();
            let before = had
                .as_ref()
                .map(|(content, mode)| attributes(NodeKind::File, content.len() as u64, *mode));
            assert_eq!(change.before, before, "seed {seed}: {id}");
            let (mut content, _) = had.unwrap_or_default();
            if change.is_content_changed {
                let from = match change.before {
                    Some(_) => ContentFrom::Since(change.since),
                    None => ContentFrom::Nothing,
                };
                // Once more over the result, too, as after a crash.
                for _ in 0..2 {
                    rig.cutter.cut_after(random.below(20_000) as i64, false);
                    let delta = incoming.content(&others, *id, from, content.len() as u64).unwrap();
                    let mut delta = DeltaReader::new(delta).unwrap();
                    apply_in_place(&mut delta, &mut Bytes(&mut content)).unwrap();
                    rig.cutter.heal();
                    assert!(content == now.files[id].0, "seed {seed}: {id}");
                }
            }
            here.files.insert(*id, (content, change.after.mode));
        }
        assert_eq!(here, now, "seed {seed}");
        // Further requests.
        for id in now.files.keys() {
            incoming.ask(&mut others, &[Need { id: *id, entries: true }]).unwrap();
            let reported = others.reported[id].as_ref().unwrap();
            let places = now.names.iter().filter(|(_, child)| *child == id);
            let places: BTreeSet<&Place<FileId>> = places.map(|(place, _)| place).collect();
            assert_eq!(reported.places.iter().collect::<BTreeSet<_>>(), places);
            assert_eq!(reported.entries, None);
        }
        let needs = [root, FileId(5)].map(|id| Need { id, entries: true });
        incoming.ask(&mut others, &needs).unwrap();
        let listed: BTreeMap<Place<FileId>, FileId> = others.reported[&root]
            .as_ref()
            .unwrap()
            .entries
            .as_ref()
            .unwrap()
            .iter()
            .map(|(name, id, _)| {
                (
                    Place {
                        parent: root,
                        name: name.clone().into(),
                    },
                    *id,
                )
            })
            .collect();
        assert_eq!(listed, now.names);
        assert_eq!(others.reported[&FileId(5)], None);
    }
    assert!(
        only_ours > 10 && first_ours > 5 && undone > 0,
        "{only_ours}, {first_ours}, {undone}"
    );
}

#[test]
fn incoming_content_comes_in_pages_without_being_held_whole() {
    let rig = Rig::with(1, patient());
    let len = 8 << 20;
    let mut content = vec![1u8; len];
    let file = rig.with_file(&content);
    let cursor = rig.seq();
    // More ranges than a page has, each too far from the next to be joined with it, and some that
    // are near.
    let mut at = 0;
    while at < len {
        content[at] ^= 0xff;
        rig.tree.lock().write(file, at as u64, &content[at..=at]);
        at += if at % 3 == 0 { 40_000 } else { 4_000 };
    }
    rig.backup().unwrap();
    let (client, _) = rig.another_device();
    let incoming = Incoming {
        server: &client,
        folder: &rig.folder,
        cursor,
        head: rig.seq(),
        takes_own: false,
        monitor: &Silent,
    };
    let others = incoming.others().unwrap();
    let (id, change) = others
        .nodes
        .iter()
        .find(|(_, change)| change.is_content_changed)
        .unwrap();
    assert_eq!(change.since, cursor);
    let mut delta = incoming
        .content(&others, *id, ContentFrom::Since(cursor), len as u64)
        .unwrap();
    let mut stream = Vec::new();
    delta.read_to_end(&mut stream).unwrap();
    assert!(delta.take_failure().is_none());
    assert!(stream.len() < len / 2, "{}", stream.len());
    let mut here = vec![1u8; len];
    apply_in_place(&mut DeltaReader::new(&stream[..]).unwrap(), &mut Bytes(&mut here)).unwrap();
    assert!(here == content);
}

/// Work on many small files uses the existing connections.
#[test]
fn contents_of_many_files_share_the_connections() {
    const FILES: usize = 60;
    let rig = Rig::with(1, patient());
    rig.backup().unwrap();
    let cursor = rig.seq();
    for number in 0..FILES {
        let mut tree = rig.tree.lock();
        let name = format!("file {number}");
        let file = tree.create(NodeId::ROOT, name.as_bytes(), NodeKind::File);
        tree.write(file, 0, name.repeat(1 + number * 50).as_bytes());
    }
    rig.backup().unwrap();
    let before = rig.server_connections();
    rig.assert_snapshot(byteback_backup::SnapshotSpec::default(), &rig.tree.picture());
    let restored = rig.server_connections() - before;
    assert!(restored < 10, "{FILES} files were restored by {restored} connections");

    let (client, _) = rig.another_device();
    let incoming = Incoming {
        server: &client,
        folder: &rig.folder,
        cursor,
        head: rig.seq(),
        takes_own: false,
        monitor: &Silent,
    };
    let others = incoming.others().unwrap();
    let before = rig.server_connections();
    let mut fetched = 0;
    for (id, change) in others.nodes.iter().filter(|(_, change)| change.is_content_changed) {
        let mut delta = incoming.content(&others, *id, ContentFrom::Nothing, 0).unwrap();
        let mut stream = Vec::new();
        delta.read_to_end(&mut stream).unwrap();
        let mut here = vec![1; change.after.size as usize];
        apply_in_place(&mut DeltaReader::new(&stream[..]).unwrap(), &mut Bytes(&mut here)).unwrap();
        assert!(here.starts_with(b"file "));
        fetched += 1;
    }
    let made = rig.server_connections() - before;
    assert!(
        fetched == FILES && made < 3,
        "{fetched} files were fetched by {made} connections"
    );
}

/// More names than a page of differences has came and went while this machine was away: none of
/// them is reported, and the changes behind them are.
#[test]
fn what_came_and_went_while_nobody_asked_does_not_end_the_list() {
    let rig = Rig::with(1, patient());
    rig.backup().unwrap();
    let cursor = rig.seq();
    let made: Vec<Vec<u8>> = (0..2500)
        .map(|number| format!("gone {number:04}").into_bytes())
        .collect();
    for name in &made {
        rig.tree.lock().create(NodeId::ROOT, name, NodeKind::File);
    }
    rig.backup().unwrap();
    for name in &made {
        rig.tree.lock().unlink(NodeId::ROOT, name);
    }
    rig.tree.lock().create(NodeId::ROOT, b"stays", NodeKind::File);
    rig.backup().unwrap();
    let (client, _) = rig.another_device();
    let incoming = Incoming {
        server: &client,
        folder: &rig.folder,
        cursor,
        head: rig.seq(),
        takes_own: false,
        monitor: &Silent,
    };
    let others = incoming.others().unwrap();
    let names: Vec<&[u8]> = others.names.keys().map(|place| place.name.as_bytes()).collect();
    assert_eq!(names, [&b"stays"[..]]);
    byteback_backup::diff(&client, &rig.folder, cursor, rig.seq(), &Silent, |_| Ok(())).unwrap();
}
