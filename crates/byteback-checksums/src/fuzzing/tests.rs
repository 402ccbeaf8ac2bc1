use super::*;

#[test]
fn the_seeds_hold() {
    btrfs_seeds().iter().for_each(|seed| btrfs(seed));
    row_seeds().iter().for_each(|seed| row(seed));
    s3_seeds().iter().for_each(|seed| s3(seed));
    fsverity_seeds().iter().for_each(|seed| fsverity(seed));
    dmverity_seeds().iter().for_each(|seed| dmverity(seed));
    seaweedfs_seeds().iter().for_each(|seed| seaweedfs(seed));
    hdfs_seeds().iter().for_each(|seed| hdfs(seed));
    chunk_list_seeds().iter().for_each(|seed| chunk_lists(seed));
    zfs_seeds().iter().for_each(|seed| zfs(seed));
    moosefs_seeds().iter().for_each(|seed| moosefs(seed));
    ceph_seeds().iter().for_each(|seed| ceph(seed));
}

/// As the fuzz target does it, a little and always.
#[test]
fn answers_of_s3_that_are_spoiled_at_random_hold() {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in s3_seeds() {
        for _ in 0..4000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(data.len() as u64) as usize;
                match random.below(4) {
                    0 => data[at] = random.next_u64() as u8,
                    1 => data[at] = b"0123456789<>/-\n"[random.below(15) as usize],
                    2 => data.truncate(at + 1),
                    _ => {
                        let part = data[at..].to_vec();
                        data.splice(at..at, part.into_iter().take(40));
                    }
                }
            }
            s3(&data);
        }
    }
}

/// As the fuzz target does it, a little and always.
#[test]
fn hash_trees_that_are_spoiled_at_random_hold() {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in fsverity_seeds() {
        for _ in 0..2000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                let most = [20, data.len() as u64][random.below(2) as usize];
                let at = random.below(most) as usize;
                match random.below(3) {
                    0 => data[at] = random.next_u64() as u8,
                    1 => data[at] ^= 1 << random.below(8),
                    _ => data.truncate(at.max(DESCRIPTOR_LEN)),
                }
            }
            fsverity(&data);
        }
    }
}

/// As the fuzz target does it, a little and always.
#[test]
fn answers_of_the_device_mapper_that_are_spoiled_at_random_hold() {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in dmverity_seeds() {
        for _ in 0..4000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(data.len() as u64) as usize;
                match random.below(4) {
                    0 => data[at] = random.next_u64() as u8,
                    1 => data[at] = b"0123456789 :-a"[random.below(14) as usize],
                    2 => data[at] ^= 1 << random.below(8),
                    _ => data.truncate(at + 1),
                }
            }
            dmverity(&data);
        }
    }
}

/// As the fuzz target does it, a little and always.
#[test]
fn answers_of_seaweedfs_that_are_spoiled_at_random_hold() {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in seaweedfs_seeds() {
        for _ in 0..4000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(data.len() as u64) as usize;
                match random.below(4) {
                    0 => data[at] = random.next_u64() as u8,
                    1 => data[at] = b"0123456789\"{},:"[random.below(15) as usize],
                    2 => data.truncate(at + 1),
                    _ => {
                        let part = data[at..].to_vec();
                        data.splice(at..at, part.into_iter().take(40));
                    }
                }
            }
            seaweedfs(&data);
        }
    }
}

/// As the fuzz target does it, a little and always.
#[test]
fn answers_of_hdfs_that_are_spoiled_at_random_hold() {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in hdfs_seeds() {
        for _ in 0..4000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(data.len() as u64) as usize;
                match random.below(4) {
                    0 => data[at] = random.next_u64() as u8,
                    1 => data[at] = b"0123456789\"{,:-"[random.below(15) as usize],
                    2 => data.truncate(at + 1),
                    _ => {
                        let part = data[at..].to_vec();
                        data.splice(at..at, part.into_iter().take(40));
                    }
                }
            }
            hdfs(&data);
        }
    }
}

/// As the fuzz target does it, a little and always.
#[test]
fn lists_of_chunks_that_are_spoiled_at_random_hold() {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in chunk_list_seeds() {
        for _ in 0..4000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(data.len() as u64) as usize;
                match random.below(4) {
                    0 => data[at] = random.next_u64() as u8,
                    1 => data[at] = b"0123456789 \nace"[random.below(15) as usize],
                    2 => data.truncate(at + 1),
                    _ => {
                        let part = data[at..].to_vec();
                        data.splice(at..at, part.into_iter().take(40));
                    }
                }
            }
            chunk_lists(&data);
        }
    }
}

/// As the fuzz target does it, a little and always.
#[test]
fn answers_of_zdb_that_are_spoiled_at_random_hold() {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in zfs_seeds() {
        for _ in 0..4000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(data.len() as u64) as usize;
                match random.below(4) {
                    0 => data[at] = random.next_u64() as u8,
                    1 => data[at] = b"0123456789abL=/ \n\t"[random.below(18) as usize],
                    2 => data.truncate(at + 1),
                    _ => {
                        let part = data[at..].to_vec();
                        data.splice(at..at, part.into_iter().take(200));
                    }
                }
            }
            zfs(&data);
        }
    }
}

/// As the fuzz target does it, a little and always.
#[test]
fn answers_of_moosefs_that_are_spoiled_at_random_hold() {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in moosefs_seeds() {
        for _ in 0..4000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(data.len() as u64) as usize;
                match random.below(4) {
                    0 => data[at] = random.next_u64() as u8,
                    1 => data[at] = b"0123456789ABC:/ \n\t"[random.below(18) as usize],
                    2 => data.truncate(at + 1),
                    _ => {
                        let part = data[at..].to_vec();
                        data.splice(at..at, part.into_iter().take(120));
                    }
                }
            }
            moosefs(&data);
        }
    }
}

/// As the fuzz target does it, a little and always.
#[test]
fn answers_of_ceph_that_are_spoiled_at_random_hold() {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in ceph_seeds() {
        for _ in 0..4000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(data.len() as u64) as usize;
                match random.below(5) {
                    0 => data[at] = random.next_u64() as u8,
                    // Other numbers, mostly.
                    1 | 2 => data[at] = b"0123456789\"{},:-"[random.below(16) as usize],
                    3 => data.truncate(at + 1),
                    _ => {
                        let part = data[at..].to_vec();
                        data.splice(at..at, part.into_iter().take(200));
                    }
                }
            }
            ceph(&data);
        }
    }
}

#[test]
fn the_seeds_are_what_they_are_called() {
    let place = OsdPlace::new("ceph:///osd?pg=1.0&object=fuzzed").unwrap();
    let [line, objects @ ..] = &ceph_seeds()[..] else {
        panic!()
    };
    assert!(osd::listed(&line[1..], &place));
    for object in objects {
        assert_eq!(osd::Shape::of(&osd::parse(&object[1..], &place).unwrap()).runs.len(), 6);
    }
    for (seed, stretches) in seaweedfs_seeds().iter().zip([1, 3, 3, 1]) {
        assert_eq!(Entry::parse(seed).unwrap().shape().unwrap().stretches.len(), stretches);
    }
    let [mounts, objects @ ..] = &zfs_seeds()[..] else {
        panic!()
    };
    let mounts = std::str::from_utf8(&mounts[1..]).unwrap();
    assert_eq!(dataset(mounts, 43), Ok(Some("tp/a b".to_owned())));
    for object in objects {
        let mut parser = Parser::new(5);
        object[1..]
            .split(|byte| *byte == b'\n')
            .for_each(|line| parser.line(line).unwrap());
        assert_eq!(Shape::of(&parser.end().unwrap()).runs.len(), 6);
    }
    let [list, none, header] = &moosefs_seeds()[..] else {
        panic!()
    };
    for (text, count) in [(list, 2), (none, 0)] {
        let mut parser = moose::Parser::default();
        text[1..]
            .split(|byte| *byte == b'\n')
            .for_each(|line| parser.line(line).unwrap());
        assert_eq!(parser.end().unwrap().chunks.len(), count);
    }
    let held = moose::Held {
        blocks: 4,
        digest: header[1..17].try_into().unwrap(),
    };
    let chunk = moose::Chunk {
        id: 1,
        version: 2,
        held: None,
    };
    let table = moose::table(&header[17..], &chunk, &held).unwrap().unwrap();
    assert_eq!(table, 0xd797_8eeb_u32.to_be_bytes().repeat(4));
    let [told, status, .., exception] = &hdfs_seeds()[..] else {
        panic!()
    };
    let told = transfer::parse(&told[3..]).unwrap();
    assert_eq!(told.into_crcs(8101, 4096).unwrap().1.len(), 8);
    assert_eq!(web::FileStatus::parse(&status[1..]).unwrap().len_bytes, 5000);
    assert_eq!(
        web::exception(&exception[1..]).as_deref(),
        Some("FileNotFoundException")
    );
    let [empty, index, .., recipe] = &chunk_list_seeds()[..] else {
        panic!()
    };
    assert_eq!(casync::parse(&empty[1..]).unwrap().len_bytes(), 0);
    assert_eq!(casync::parse(&index[1..]).unwrap().ends.len(), 3);
    assert!(recipe::parse(&recipe::sealed(&recipe[1..])).unwrap().chunks.is_some());
    let [status, extents] = &dmverity_seeds()[..] else {
        panic!()
    };
    let (text, len_bytes) = target(&status[1..]).unwrap().unwrap();
    Table::parse(text, len_bytes).unwrap();
    assert_eq!(Mapped::parse_all(&extents[1..], 3).unwrap().len(), 3);
    let tree = &fsverity_seeds()[0];
    let shape = Descriptor::parse(tree.first_chunk().unwrap()).unwrap().shape().unwrap();
    assert_eq!(shape.tree_len(), (tree.len() - DESCRIPTOR_LEN) as u64);
    let [extents, sums, info] = &btrfs_seeds()[..] else {
        panic!()
    };
    for item in Items::new(&extents[3..], 3) {
        let item = item.unwrap();
        Extent::parse(item.offset, item.body, 4096).unwrap();
    }
    let item = Items::new(&sums[3..], 1).next().unwrap().unwrap();
    CsumItem::parse(item.offset, item.body, 4096, 4).unwrap();
    assert!(FsInfo::parse(info[1..].try_into().unwrap()).unwrap().is_some());
}
