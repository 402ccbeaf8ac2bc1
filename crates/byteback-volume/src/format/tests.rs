use super::*;
use byteback_host::random::SplitMix64;

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
        areas: crate::geometry::divide(100_000).unwrap(),
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
    put_u32(&mut *newer, 8, 2);
    assert_eq!(Superblock::find(&newer, Address(0)), Found::Newer(2));
    // Whatever is changed and sealed again: nothing of it is believed that cannot be.
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
