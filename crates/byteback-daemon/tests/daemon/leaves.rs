//! Checksums of leaves as of a cut: whatever source has them, and whatever happens meanwhile, they
//! are those of the content at the cut.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use byteback_checksums::source::{Kind, Layout, Tail};
use byteback_control::{
    CutId, CutRequest, ErrorKind, LeafKind, LeafPiece, LeafRequest, LeafSource, LeavesSummary, Outcome, Piece, Result,
    TreeService,
};
use byteback_host::random::SplitMix64;
use byteback_model::{ByteString, NodeId};
use byteback_mount::CacheMode;

use crate::btrfs_disk::Disk;
use crate::fixture::Fixture;

/// Longer than a file must have been left alone for its checksums to be kept.
const QUIET: Duration = Duration::from_millis(3200);

fn request(kind: LeafKind, with_crcs: bool) -> LeafRequest {
    LeafRequest { kind, with_crcs }
}

/// The expected leaves of `content`, one by one, summed here.
fn expected(content: &[u8], request: LeafRequest) -> Vec<u8> {
    let layout = |kind| Layout {
        kind,
        salt: Vec::new(),
        block_len: 4096,
        tail: Tail::AsIs,
    };
    let kind = match request.kind {
        LeafKind::Sha256 => Kind::Sha256,
        LeafKind::Blake2b256 => Kind::Blake2b256,
        LeafKind::Blake3 => Kind::Blake3,
    };
    let mut entries = Vec::new();
    for leaf in content.chunks(4096) {
        if request.with_crcs {
            layout(Kind::Crc32c).append_sum(leaf, &mut entries);
        }
        layout(kind).append_sum(leaf, &mut entries);
    }
    entries
}

/// All leaves of a file that are reported in the end, where zeros are summed as such; panics at
/// gaps.
fn leaf_sums(
    tree: &dyn TreeService,
    cut: CutId,
    node: NodeId,
    request: LeafRequest,
    len: usize,
) -> Result<(Vec<u8>, LeavesSummary)> {
    let (mut entries, mut position) = (Vec::new(), 0);
    let reported = tree.leaf_sums(cut, node, request, &mut |piece| {
        let start = match piece {
            LeafPiece::Sums { offset, .. } => offset,
            LeafPiece::Zeros(range) => range.start(),
        };
        if start == 0 {
            entries.clear();
            position = 0;
        }
        assert_eq!(start, position, "a gap");
        match piece {
            LeafPiece::Sums { entries: more, .. } => {
                entries.extend_from_slice(more);
                position += (more.len() / request.entry_len()) as u64 * 4096;
            }
            LeafPiece::Zeros(range) => {
                entries.extend(expected(&vec![0; range.len_bytes() as usize], request));
                position = range.end();
            }
        }
        Ok(())
    })?;
    assert_eq!(position.min(len as u64), len as u64, "not to the end");
    Ok((entries, reported))
}

fn everything(tree: &dyn TreeService) -> CutId {
    let request = CutRequest {
        everything: true,
        ..CutRequest::of("backup")
    };
    tree.cut(&request).unwrap().cut
}

fn node_of(tree: &dyn TreeService, cut: CutId, name: &str) -> NodeId {
    tree.find(cut, &ByteString::from(name)).unwrap().unwrap()
}

fn random_bytes(random: &mut SplitMix64, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next_u64() as u8).collect()
}

#[test]
fn leaves_are_read_once_until_the_file_changes() {
    let mut random = SplitMix64::new(1);
    let mut fixture = Fixture::new(CacheMode::Exact);
    let mut content = random_bytes(&mut random, 3_000_001);
    // A hole, not at its borders.
    content[100_000..900_000].fill(0);
    fixture.mount();
    let file = fs::File::create(fixture.tree().join("file")).unwrap();
    file.set_len(content.len() as u64).unwrap();
    file.write_all_at(&content[..100_000], 0).unwrap();
    file.write_all_at(&content[900_000..], 900_000).unwrap();
    fs::write(fixture.tree().join("short"), b"short").unwrap();
    fs::write(fixture.tree().join("empty"), b"").unwrap();
    fs::create_dir(fixture.tree().join("directory")).unwrap();
    let client = fixture.client();
    let cut = everything(&client);
    let node = node_of(&client, cut, "file");
    for (name, content) in [("short", &b"short"[..]), ("empty", b""), ("file", &content)] {
        let node = node_of(&client, cut, name);
        assert_eq!(client.leaf_offer(cut, node).unwrap().source, LeafSource::Read);
        for kind in [LeafKind::Sha256, LeafKind::Blake2b256, LeafKind::Blake3] {
            for with_crcs in [false, true] {
                let request = request(kind, with_crcs);
                let (reported, how) = leaf_sums(&client, cut, node, request, content.len()).unwrap();
                assert!(reported == expected(content, request), "{name} {request:?}");
                assert_eq!(how.source, LeafSource::Read);
            }
        }
    }
    let directory = node_of(&client, cut, "directory");
    let crcs = request(LeafKind::Blake3, true);
    assert_eq!(client.leaf_offer(cut, directory).unwrap_err().kind, ErrorKind::Node);
    assert_eq!(
        leaf_sums(&client, cut, directory, crcs, 0).unwrap_err().kind,
        ErrorKind::Node
    );
    assert_eq!(client.leaf_offer(cut, NodeId(12345)).unwrap_err().kind, ErrorKind::Node);

    std::thread::sleep(QUIET);
    let (reported, how) = leaf_sums(&client, cut, node, crcs, content.len()).unwrap();
    assert!(reported == expected(&content, crcs));
    // Read once more, and kept.
    assert_eq!((how.source, how.read_bytes), (LeafSource::Read, content.len() as u64));
    let offer = client.leaf_offer(cut, node).unwrap();
    assert_eq!(
        (offer.source, offer.kind, offer.has_crcs),
        (LeafSource::Kept, LeafKind::Blake3, true)
    );
    for with_crcs in [true, false] {
        let request = request(LeafKind::Blake3, with_crcs);
        let (reported, how) = leaf_sums(&client, cut, node, request, content.len()).unwrap();
        assert!(reported == expected(&content, request));
        assert_eq!((how.source, how.read_bytes), (LeafSource::Kept, 0));
    }
    let read_bytes = client.finish(cut, &Outcome::Abandoned).unwrap().read_bytes;
    assert!(read_bytes > 0, "what was read is counted");

    // A later cut of the same content, of which nothing is read; a change after the cut does not
    // matter to it.
    let cut = everything(&client);
    let (_, how) = leaf_sums(&client, cut, node, crcs, content.len()).unwrap();
    assert_eq!((how.source, how.read_bytes), (LeafSource::Kept, 0));
    file.write_all_at(b"changed", 2_000_000).unwrap();
    assert_eq!(client.leaf_offer(cut, node).unwrap().source, LeafSource::Read);
    let (reported, how) = leaf_sums(&client, cut, node, crcs, content.len()).unwrap();
    assert!(
        reported == expected(&content, crcs),
        "what was written after the cut was summed"
    );
    assert_eq!(how.source, LeafSource::Read);
    // The others were kept before they were overwritten.
    let from_file = client.finish(cut, &Outcome::Abandoned).unwrap().read_bytes;
    assert_eq!(from_file + 7, how.read_bytes);
    drop(file);
    fixture.umount();
}

#[test]
fn leaves_can_be_read_twice_and_are_still_of_the_cut() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    fs::write(fixture.tree().join("file"), vec![1; 300_000]).unwrap();
    let client = fixture.client();
    let cut = everything(&client);
    let node = node_of(&client, cut, "file");
    let read = |peeks: bool| {
        let mut content = Vec::new();
        let mut sink = |piece: Piece<'_>| {
            if let Piece::Data { bytes, .. } = piece {
                content.extend_from_slice(bytes);
            }
            Ok(())
        };
        match peeks {
            true => client.peek(cut, node, &[(0, 300_000)], &mut sink).unwrap(),
            false => client.read(cut, node, &[(0, 300_000)], &mut sink).unwrap(),
        }
        content
    };
    assert!(read(true) == vec![1; 300_000]);
    fs::write(fixture.tree().join("file"), vec![2; 300_000]).unwrap();
    assert!(
        read(true) == vec![1; 300_000],
        "what was written after the cut was read"
    );
    assert!(
        read(false) == vec![1; 300_000],
        "what was written after the cut was read"
    );
    client.finish(cut, &Outcome::Abandoned).unwrap();
    fixture.umount();
}

/// Files with known checksums are written while these are reported.
fn leaves_during_writes(parent: &Path, kind: LeafKind, seed: u64, waits: bool) -> (usize, usize) {
    let mut random = SplitMix64::new(seed);
    let mode = [CacheMode::Exact, CacheMode::Fast][seed as usize % 2];
    let mut fixture = Fixture::inside(parent, mode);
    fixture.mount();
    let mut files = Vec::new();
    for number in 0..24 {
        let name = format!("file{number}");
        let len = 1_100_000 + random.below(900_000) as usize;
        let content = random_bytes(&mut random, len);
        fs::write(fixture.tree().join(&name), &content).unwrap();
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(fixture.tree().join(&name))
            .unwrap();
        files.push((name, file, content));
    }
    if waits {
        std::thread::sleep(QUIET);
    }
    let client = fixture.client();
    let (mut leaves_known, mut leaves_read) = (0, 0);
    for round in 0..2 {
        let cut = everything(&client);
        for (name, file, content) in &mut files {
            let node = node_of(&client, cut, name);
            let (at, cuts, delay_us) = (random.below(1_000_000), random.below(4) == 0, random.below(15_000));
            let new_len = 1_000_000 + random.below(1_000_000);
            let (writes, is_before) = (random.below(3) > 0, random.below(3) == 0);
            let asked = request(kind, kind == LeafKind::Blake3);
            let change = || match (writes, cuts) {
                (false, _) => {}
                (true, true) => file.set_len(new_len).unwrap(),
                (true, false) => file.write_all_at(&[round as u8; 5000], at).unwrap(),
            };
            if is_before {
                change();
                // Bytes that the kernel has collected are not in the backing file yet.
                file.sync_data().unwrap();
            }
            let (reported, how) = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_micros(delay_us));
                    if !is_before {
                        change();
                    }
                });
                leaf_sums(&client, cut, node, asked, content.len()).unwrap()
            });
            assert!(
                reported == expected(content, asked),
                "seed {seed}: {name} in round {round}: what was told from {:?} is not of the cut",
                how.source
            );
            match how.source {
                LeafSource::Read => leaves_read += 1,
                LeafSource::Btrfs | LeafSource::Kept => leaves_known += 1,
            }
            content.clear();
            content.extend(fs::read(fixture.tree().join(&name)).unwrap());
        }
        client.finish(cut, &Outcome::Abandoned).unwrap();
    }
    drop(files);
    fixture.umount();
    (leaves_known, leaves_read)
}

#[test]
fn leaves_from_kept_sums_are_of_the_cut_during_writes() {
    for seed in 1..3 {
        leaves_during_writes(Path::new("/var/tmp"), LeafKind::Blake3, seed, true);
    }
}

#[test]
fn leaves_from_btrfs_are_of_the_cut_during_writes() {
    for (checksum, kind) in [
        ("sha256", LeafKind::Sha256),
        ("blake2", LeafKind::Blake2b256),
        ("crc32c", LeafKind::Blake3),
    ] {
        let Some(disk) = Disk::new(checksum, 256, "") else {
            return;
        };
        let (leaves_known, leaves_read) = leaves_during_writes(&disk.path(), kind, 7, false);
        println!("{checksum}: {leaves_known} from the disk, {leaves_read} read");
        assert!(leaves_read > 5, "nothing came in between");
        assert_eq!(leaves_known > 5, checksum != "crc32c");
    }
}

#[test]
fn a_file_on_btrfs_is_not_read_where_it_has_strong_checksums() {
    let Some(disk) = Disk::new("sha256", 256, "") else {
        return;
    };
    let mut random = SplitMix64::new(1);
    let mut content = random_bytes(&mut random, 5_000_123);
    content[1 << 20..3 << 20].fill(0);
    let mut fixture = Fixture::inside(&disk.path(), CacheMode::Exact);
    let path = fixture.tree().join("file");
    let file = fs::File::create(&path).unwrap();
    file.set_len(content.len() as u64).unwrap();
    file.write_all_at(&content[..1 << 20], 0).unwrap();
    file.write_all_at(&content[3 << 20..], 3 << 20).unwrap();
    let asked = request(LeafKind::Sha256, false);
    let check = |tree: &dyn TreeService, read_bytes_max: u64| {
        let cut = everything(tree);
        let node = node_of(tree, cut, "file");
        tree.attributes(cut, &[node]).unwrap()[0].clone().unwrap();
        let offer = tree.leaf_offer(cut, node).unwrap();
        assert_eq!(
            (offer.source, offer.kind, offer.has_crcs),
            (LeafSource::Btrfs, LeafKind::Sha256, false)
        );
        let (reported, how) = leaf_sums(tree, cut, node, asked, content.len()).unwrap();
        assert!(reported == expected(&content, asked));
        assert_eq!(how.source, LeafSource::Btrfs);
        // The last block, which is not full.
        assert!(how.read_bytes <= read_bytes_max, "{how:?}");
        assert_eq!(
            tree.finish(cut, &Outcome::Abandoned).unwrap().read_bytes,
            how.read_bytes
        );
    };
    check(&fixture.unmounted(), 4096);
    fixture.mount();
    check(&fixture.client(), 4096);
    // The kernel keeps this write in memory until it is asked for it.
    let through = fs::File::options().write(true).open(&path).unwrap();
    through.write_all_at(&content[..1 << 20], 0).unwrap();
    check(&fixture.client(), 4096);
    drop((file, through));
    fixture.umount();
}

#[test]
fn an_unmounted_file_that_changes_after_the_look_is_not_told() {
    let fixture = Fixture::new(CacheMode::Exact);
    let path = fixture.tree().join("file");
    fs::write(&path, vec![1; 2_000_000]).unwrap();
    let tree = fixture.unmounted();
    let cut = everything(&tree);
    let node = node_of(&tree, cut, "file");
    tree.attributes(cut, &[node]).unwrap()[0].clone().unwrap();
    let asked = request(LeafKind::Blake3, true);
    let (reported, _) = leaf_sums(&tree, cut, node, asked, 2_000_000).unwrap();
    assert!(reported == expected(&vec![1; 2_000_000], asked));
    std::thread::sleep(Duration::from_millis(20));
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(b"2", 77)
        .unwrap();
    let refused = leaf_sums(&tree, cut, node, asked, 2_000_000).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Node);
    tree.finish(cut, &Outcome::Abandoned).unwrap();
}
