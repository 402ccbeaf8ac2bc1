use super::*;
use byteback_host::random::SplitMix64;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn a_sealed_block_is_good_at_its_place_only() {
    let (id, other) = (VolumeId([7; 16]), VolumeId([8; 16]));
    let mut block = zeros();
    put_u64(&mut *block, 100, 5);
    id.seal(&mut block, Kind::Node, Address(9));
    assert!(id.is_sealed(&block, Kind::Node, Address(9)));
    assert!(!other.is_sealed(&block, Kind::Node, Address(9)));
    assert!(!id.is_sealed(&block, Kind::Summary, Address(9)));
    assert!(!id.is_sealed(&block, Kind::Node, Address(10)));
    for at in 0..block.len() {
        block[at] ^= 4;
        assert!(!id.is_sealed(&block, Kind::Node, Address(9)), "{at}");
        block[at] ^= 4;
    }
}

fn superblock() -> Superblock {
    Superblock {
        id: VolumeId([3; 16]),
        features: 0,
        areas: crate::log::geometry::divide(100_000).unwrap(),
        created_s: 1_700_000_000,
        hash_seed: 0x0123_4567_89ab_cdef,
        label: b"card".to_vec(),
    }
}

#[test]
fn a_superblock_is_found_or_refused() {
    let block = superblock().block(Address(0));
    assert_eq!(Superblock::find(&block, Address(0)), Found::Superblock(superblock()));
    assert_eq!(
        Superblock::find(&block, Address(1)),
        Found::Damaged,
        "it is the one of another place"
    );
    assert_eq!(Superblock::find(&zeros(), Address(0)), Found::Nothing);
    let mut newer = block.clone();
    put_u32(&mut *newer, 8, VERSION + 1);
    assert_eq!(Superblock::find(&newer, Address(0)), Found::Newer(VERSION + 1));
    let mut zeroth = block.clone();
    put_u32(&mut *zeroth, 8, 0);
    superblock().id.seal(&mut zeroth, Kind::Superblock, Address(0));
    assert_eq!(Superblock::find(&zeroth, Address(0)), Found::Damaged);
    // Fields are changed and sealed again: no impossible value is believed.
    let mut random = SplitMix64::new(1);
    let mut taken = 0;
    for _ in 0..20_000 {
        let mut bad = block.clone();
        let at = 64 + usize::try_from(random.below(64)).unwrap();
        bad[at] = random.next_u64() as u8;
        superblock().id.seal(&mut bad, Kind::Superblock, Address(0));
        if let Found::Superblock(found) = Superblock::find(&bad, Address(0)) {
            assert!(found.areas.is_sound());
            taken += 1;
        }
    }
    assert!(taken > 100);
}

/// Deltas of some pages from `page` on, in one compact page.
fn compact_page(random: &mut SplitMix64, page: &mut u32) -> CompactPage {
    let mut block = zeros();
    let count = 1 + random.below(9);
    let deltas: Vec<(u32, Vec<u8>)> = (0..count)
        .map(|_| {
            *page += 1 + random.below(900) as u32;
            let len = 1 + random.below(400) as usize;
            (*page, random.bytes(len))
        })
        .collect();
    let of = deltas.iter().map(|(page, delta)| (*page, &delta[..]));
    let mut places = fill_compact_page(&mut block, Nid(8), of);
    assert_eq!(compact_page_ino(&block), Nid(8));
    for (place, (page, delta)) in places.iter().zip(&deltas) {
        assert_eq!((place.page, &block[place.range()]), (*page, &delta[..]));
    }
    // Some are over.
    let last = places.len() - 1;
    let mut number = 0;
    places.retain(|_| {
        number += 1;
        number > last || random.coin()
    });
    let address = Address(1 + random.below(u64::from(u32::MAX)) as u32);
    CompactPage { address, places }
}

#[test]
fn delta_index_is_read_as_written_and_never_as_impossible() {
    let mut random = SplitMix64::new(4);
    let (mut read_noise, mut too_long) = (0, 0);
    for _ in 0..1_500 {
        let mut page = 0;
        let pages: Vec<CompactPage> = (0..random.below(250))
            .map(|_| compact_page(&mut random, &mut page))
            .collect();
        let own: Vec<(u32, Vec<u8>)> = (0..random.below(5) as u32)
            .map(|page| (1_000_000 + 77 * page, vec![page as u8 + 1; 20]))
            .collect();
        let index = DeltaIndex {
            ino: Nid(8),
            leaves: (0..random.below(20))
                .map(|_| Address(random.next_u64() as u32))
                .collect(),
            ended: (0..random.below(90) as u32).map(|page| page * page * 31).collect(),
            pages,
            own: Vec::new(),
        };
        let Some(bytes) = index.bytes(own.iter().map(|(page, delta)| (*page, &delta[..]))) else {
            too_long += 1;
            continue;
        };
        let mut block = zeros();
        block[..bytes.len()].copy_from_slice(&bytes);
        let mut read = DeltaIndex::read(&block).unwrap();
        assert_eq!(read.own.len(), own.len());
        for (place, (page, delta)) in std::mem::take(&mut read.own).iter().zip(&own) {
            assert_eq!((place.page, &block[place.range()]), (*page, &delta[..]));
        }
        assert_eq!(read, index);
        // Noise: what is read lies inside of a block, in order.
        for _ in 0..20 {
            let mut noise = block.clone();
            for _ in 0..1 + random.below(3) {
                let at = [16, bytes.len() as u64][random.below(2) as usize];
                noise[random.below(at) as usize] = random.next_u64() as u8;
            }
            let Some(read) = DeltaIndex::read(&noise) else {
                continue;
            };
            read_noise += 1;
            for place in read.pages.iter().flat_map(|page| &page.places).chain(&read.own) {
                assert!(noise.get(place.range()).is_some_and(|bytes| !bytes.is_empty()));
            }
            let is_ordered = |places: &[DeltaPlace]| {
                places.is_sorted_by(|one, next| one.page < next.page && one.range().end <= next.range().start)
            };
            assert!(read.pages.iter().all(|page| is_ordered(&page.places)) && is_ordered(&read.own));
            assert!(read.ended.is_sorted_by(|one, next| one < next));
        }
    }
    assert!(read_noise > 3_000 && too_long > 20, "{read_noise}, {too_long}");
}

/// The entries of leaves and index that count, against what was written last.
#[test]
fn what_was_written_last_counts_whatever_leaves_say() {
    let areas = Areas {
        len_blocks: 1 << 31,
        main_first: 1,
        main_segments: 1 << 20,
        ..superblock().areas
    };
    for seed in 1..200 {
        let mut random = SplitMix64::new(seed);
        let (mut blocks, mut expected) = (BTreeMap::new(), BTreeMap::new());
        let (mut leaves, mut next) = (Vec::new(), 100);
        let mut ended = BTreeSet::new();
        let all = random.below(7);
        for number in 0..=all {
            let mut index = DeltaIndex {
                ino: Nid(8),
                ..DeltaIndex::default()
            };
            let mut here = BTreeSet::new();
            for _ in 0..1 + random.below(4) {
                next += 1;
                let (mut page, mut at, mut places) = (0, 4, Vec::new());
                for _ in 0..1 + random.below(5) {
                    page += 1 + random.below(9) as u32;
                    let len = 1 + random.below(30) as u16;
                    if here.insert(page) {
                        places.push(DeltaPlace { page, at, len });
                    }
                    at += len;
                }
                let address = Address(next);
                if !places.is_empty() {
                    expected.extend(places.iter().map(|place| (place.page, (address, *place))));
                    index.pages.push(CompactPage { address, places });
                }
            }
            let kind = match number == all {
                true => {
                    ended.extend((0..random.below(6)).map(|_| random.below(40) as u32));
                    expected.retain(|page, _| here.contains(page) || !ended.contains(page));
                    index.leaves = leaves.clone();
                    index.ended = ended.iter().copied().collect();
                    Kind::DeltaMeta
                }
                false => Kind::DeltaLeaf,
            };
            next += 1;
            let mut block = zeros();
            let bytes = index.bytes(std::iter::empty()).unwrap();
            block[..bytes.len()].copy_from_slice(&bytes);
            blocks.insert((Address(next), kind as u8), block);
            leaves.push(Address(next));
        }
        let read = |at: Address, kind: Kind| blocks.get(&(at, kind as u8)).cloned();
        let at = Address(next);
        let found = DeltaPlaces::read((Nid(8), at), &areas, read).unwrap();
        assert_eq!(found.places, expected, "seed {seed}");
        let in_use: BTreeSet<Address> = expected.values().map(|(address, _)| *address).collect();
        assert!(found.compacts.keys().eq(&in_use), "seed {seed}");
        // Each block is needed, and no other file's.
        for gone in &leaves {
            let read = |at: Address, kind: Kind| blocks.get(&(at, kind as u8)).filter(|_| at != *gone).cloned();
            assert_eq!(DeltaPlaces::read((Nid(8), at), &areas, read), Err(*gone), "seed {seed}");
        }
        assert_eq!(DeltaPlaces::read((Nid(9), at), &areas, read), Err(at), "seed {seed}");
    }
}

/// A thousand deltas and more, three bytes for each.
#[test]
fn an_index_has_room_for_many_deltas() {
    let page = |number: u32| CompactPage {
        address: Address(1 + number),
        places: (0..30)
            .map(|at| DeltaPlace {
                page: at * 100 + number,
                at: 4 + 90 * at as u16,
                len: 90,
            })
            .collect(),
    };
    let index = |count: u32| DeltaIndex {
        pages: (0..count).map(page).collect(),
        ..DeltaIndex::default()
    };
    assert!(index(61).bytes(std::iter::empty()).is_some());
}

/// Of deltas in an inode, also an empty one takes room.
#[test]
fn a_full_inode_has_no_room_for_an_empty_delta() {
    let mut inode = Inode::default();
    Inode::set_slot(std::sync::Arc::make_mut(&mut inode.0), INODE_SLOTS - 2, Address(5));
    assert!(inode.put_delta(1, &[]));
    assert!(!inode.put_delta(2, &[]));
    assert_eq!((inode.deltas(), inode.delta_bytes()), (1, 3));
    inode.remove_empty_deltas();
    assert_eq!(
        (inode.deltas(), Inode::slot(&inode.0, INODE_SLOTS - 2)),
        (0, Address(5))
    );
}

#[test]
fn views_answer_whatever_the_bytes_are() {
    let mut random = SplitMix64::new(2);
    for _ in 0..2_000 {
        let noise = random.bytes(BLOCK_LEN_BYTES);
        let block: Block = noise[..].try_into().unwrap();
        let inode = Inode(std::sync::Arc::new(block));
        let _ = (
            inode.name().len(),
            inode.flags(),
            Inode::slot(&inode.0, u32::MAX),
            inode.node(99),
            inode.born(),
        );
        let entries = DirectoryBlock::area(&block).entries().count();
        assert!(entries <= DirectoryBlock::SLOTS.0);
        let _ = DirectoryBlock::area(&block).room(3);
        let _ = (PackHeader::read(&block).len_blocks(), Footer::read(&block));
        let _ = (Summary::read(&block, 255), NodeEntry::read(&block, Nid(453)));
        let _ = SegmentEntry::read(&block, 55, 512).valid_blocks();
    }
}

#[test]
fn what_is_written_is_read() {
    let mut inode = Inode::default();
    inode.set_mode(0o100_644);
    inode.set_len_bytes(1 << 40);
    inode.set_born(Time::of_ns(-1));
    inode.set_name(&[b'n'; 255]);
    Inode::set_slot(std::sync::Arc::make_mut(&mut inode.0), 866, Address(77));
    inode.set_node(4, Nid(78));
    inode.xattrs_mut().fill(9);
    inode.set_delta_previous(Nid(79));
    let flags = InodeFlags {
        has_inline_entries: true,
        is_compressed: true,
        ..InodeFlags::default()
    };
    inode.set_flags(flags);
    let footer = Footer {
        nid: Nid(1),
        ino: Nid(2),
        place: Footer::XATTRS,
        flags: NodeFlags {
            is_synced: true,
            is_new_name: false,
        },
        checkpoint: 3,
        next: Address(4),
    };
    footer.write(std::sync::Arc::make_mut(&mut inode.0));
    assert_eq!(
        (inode.mode(), inode.len_bytes(), inode.flags()),
        (0o100_644, 1 << 40, flags)
    );
    assert_eq!((inode.born().seconds, inode.born().nanoseconds), (-1, 999_999_999));
    assert_eq!(
        (inode.name(), Inode::slot(&inode.0, 866), inode.node(4)),
        (&[b'n'; 255][..], Address(77), Nid(78))
    );
    assert_eq!(
        (inode.delta_previous(), inode.xattrs()),
        (Nid(79), &[9; XATTR_INLINE_LEN_BYTES][..])
    );
    assert_eq!(Footer::read(&inode.0), footer);
    assert_eq!(inode.inline().len(), INLINE_LEN_BYTES);
    let mut segment = SegmentEntry {
        log: 5,
        modified_s: 6,
        valid: vec![0; 64],
    };
    assert!(!segment.set_valid(511, true) && segment.set_valid(511, true));
    let mut block = zeros();
    segment.write(&mut block, 55, 512);
    assert_eq!(
        (SegmentEntry::read(&block, 55, 512), segment.valid_blocks()),
        (segment, 1)
    );
    let summary = Summary {
        nid: Nid(1),
        version: 2,
        slot: 3,
        checksum: 4,
    };
    summary.write(&mut block, 511);
    assert_eq!(Summary::read(&block, 255), summary);
}

/// Entries against a list, at any places, of any lengths of names.
#[test]
fn entries_come_and_go() {
    let mut random = SplitMix64::new(3);
    let mut block = zeros();
    let slots = DirectoryBlock::SLOTS;
    let mut model: Vec<(Vec<u8>, u32)> = Vec::new();
    for number in 1..5_000u32 {
        if random.below(3) > 0 {
            let longest = if random.coin() { 20 } else { 255 };
            let len = 1 + usize::try_from(random.below(longest)).unwrap();
            let name = random.bytes(len);
            let entry = Dentry {
                hash: number,
                ino: Nid(number),
                kind: 8,
                name: &name,
            };
            if let Some(slot) = slots.area(&*block).room(Slots::of_name(&name)) {
                slots.put(&mut *block, slot, &entry);
                model.push((name, number));
            }
        } else if !model.is_empty() {
            let at = usize::try_from(random.below(model.len() as u64)).unwrap();
            let (name, hash) = model.swap_remove(at);
            let (slot, entry) = slots.area(&*block).find(hash, &name).unwrap();
            assert_eq!((entry.ino, entry.kind), (Nid(hash), 8));
            slots.remove(&mut *block, slot, &name);
        }
        let mut there: Vec<_> = slots
            .area(&*block)
            .entries()
            .map(|(_, entry)| (entry.name.to_vec(), entry.ino.0))
            .collect();
        there.sort();
        model.sort();
        assert_eq!(there, model);
    }
    for (name, hash) in model {
        let (slot, _) = slots.area(&*block).find(hash, &name).unwrap();
        slots.remove(&mut *block, slot, &name);
    }
    assert!(slots.area(&*block).is_empty());
    assert_eq!(slots.area(&*block).room(213), Some(0));
}

/// The bytes of a cluster; and whatever they are, no other contents come out, and nothing panics.
#[test]
fn a_cluster_says_what_was_meant_or_nothing() {
    let mut random = SplitMix64::new(4);
    let mut bytes = random.bytes(3 * 4096);
    bytes.iter_mut().for_each(|byte| *byte &= 3);
    let block = Cluster::block(Nid(7), &[2, 3, 900_000], &bytes).unwrap();
    assert_eq!(block[..8], [7, 0, 0, 0, 3, 0, block[6], block[7]]);
    assert_eq!(block[8..20], [2, 0, 0, 0, 3, 0, 0, 0, 0xa0, 0xbb, 0x0d, 0]);
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd];
    frame.extend(&block[20..20 + usize::from(u16_at(&block[..], 6))]);
    assert_eq!(zstd::bulk::decompress(&frame, 1 << 20).unwrap(), bytes);
    let cluster = Cluster::read(&block).unwrap();
    assert_eq!((cluster.ino, &cluster.pages[..]), (Nid(7), &[2, 3, 900_000][..]));
    assert_eq!(cluster.contents(&block).unwrap(), bytes);
    assert_eq!(
        (
            cluster.place_of(900_000),
            cluster.place_of(4),
            cluster.place_of(1 << 40)
        ),
        (Some(2), None, None)
    );
    assert_ne!(cluster_checksum(&block), crc32c::crc32c(&block[..]));
    // Pages that do not fit, are out of order, or have another length give no cluster.
    assert!(Cluster::block(Nid(7), &[1, 2], &random.bytes(2 * 4096)).is_none());
    assert!(Cluster::block(Nid(7), &[2, 2], &bytes[..2 * 4096]).is_none());
    assert!(Cluster::block(Nid(7), &[2, 3], &bytes).is_none());
    assert!(Cluster::block(Nid(7), &[], &[]).is_none());
    let many: Vec<u32> = (0..17).collect();
    assert!(Cluster::block(Nid(7), &many, &vec![0; 17 * 4096]).is_none());
    assert!(Cluster::block(Nid(7), &many[..16], &vec![0; 16 * 4096]).is_some());
    for _ in 0..20_000 {
        let mut damaged = block.clone();
        for _ in 0..1 + random.below(3) {
            let end = [8, 40, 4096][random.below(3) as usize];
            damaged[random.below(end) as usize] ^= 1 << random.below(8);
        }
        if let Some(read) = Cluster::read(&damaged) {
            let contents = read.contents(&damaged);
            assert!(contents.is_none_or(|contents| contents.len() == read.pages.len() * 4096));
        }
    }
}

/// In an inode of which pages may be compressed lengths of deltas have two bytes; in others one, as
/// ever.
#[test]
fn long_deltas_have_room_where_pages_may_be_compressed() {
    for is_compressed in [false, true] {
        let mut inode = Inode::default();
        inode.set_flags(InodeFlags {
            is_compressed,
            ..InodeFlags::default()
        });
        assert!(inode.put_delta(3, &[5; 255]));
        assert_eq!(inode.put_delta(9, &[6; 1000]), is_compressed);
        assert!(inode.put_delta(4, &[]));
        let head = if is_compressed { 4 } else { 3 };
        let count = if is_compressed { 3 } else { 2 };
        assert_eq!((inode.delta_head_len_bytes(), inode.deltas()), (head, count));
        assert_eq!(inode.delta_of(3), Some(&[5; 255][..]));
        assert_eq!(inode.delta_of(9), is_compressed.then_some(&[6; 1000][..]));
        assert_eq!(inode.delta_of(4), Some(&[][..]));
        let bytes = usize::from(inode.delta_bytes());
        let end = inode.inline().len();
        let mut expected = vec![4, 0, 0];
        expected.resize(head, 0);
        assert_eq!(inode.inline()[end - bytes..end - bytes + head], expected);
        inode.remove_deltas(|page| page == 3);
        assert_eq!((inode.delta_of(3), inode.delta_of(4)), (None, Some(&[][..])));
        assert_eq!(inode.delta_of(9), is_compressed.then_some(&[6; 1000][..]));
    }
}
