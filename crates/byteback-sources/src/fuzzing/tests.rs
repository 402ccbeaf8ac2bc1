use super::*;

#[test]
fn the_seeds_hold() {
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

/// A short run of the fuzz targets' checks: each seed is spoiled 4000 times, at up to four places
/// each. Replacement bytes are often one of `letters`, as most text formats need; duplicated pieces
/// have at most `repeated` bytes.
fn spoiled(seeds: &[Vec<u8>], letters: &[u8], repeated: usize, hold: fn(&[u8])) {
    let mut random = byteback_host::random::SplitMix64::new(1);
    for seed in seeds {
        for _ in 0..4000 {
            let mut data = seed.clone();
            for _ in 0..1 + random.below(4) {
                // The beginning, where headers are, as often as all of it.
                let most = [data.len().min(40), data.len()][random.below(2) as usize];
                let at = random.below(most as u64) as usize;
                match random.below(6) {
                    0 => data[at] = random.next_u64() as u8,
                    1 => data[at] ^= 1 << random.below(8),
                    2 | 3 => data[at] = letters[random.below(letters.len() as u64) as usize],
                    4 => data.truncate(at + 1),
                    _ => {
                        let part = data[at..].to_vec();
                        data.splice(at..at, part.into_iter().take(repeated));
                    }
                }
            }
            hold(&data);
        }
    }
}

#[test]
fn hash_trees_that_are_spoiled_at_random_hold() {
    spoiled(&fsverity_seeds(), &[0, 1, 2, 10, 12, 255], 40, fsverity);
}

#[test]
fn answers_of_s3_that_are_spoiled_at_random_hold() {
    spoiled(&s3_seeds(), b"0123456789<>/-\n", 40, s3);
}

#[test]
fn answers_of_the_device_mapper_that_are_spoiled_at_random_hold() {
    spoiled(&dmverity_seeds(), b"0123456789 :-a", 40, dmverity);
}

#[test]
fn answers_of_seaweedfs_that_are_spoiled_at_random_hold() {
    spoiled(&seaweedfs_seeds(), b"0123456789\"{},:", 40, seaweedfs);
}

#[test]
fn answers_of_hdfs_that_are_spoiled_at_random_hold() {
    spoiled(&hdfs_seeds(), b"0123456789\"{,:-", 40, hdfs);
}

#[test]
fn lists_of_chunks_that_are_spoiled_at_random_hold() {
    spoiled(&chunk_list_seeds(), b"0123456789 \nace", 40, chunk_lists);
}

#[test]
fn answers_of_zdb_that_are_spoiled_at_random_hold() {
    spoiled(&zfs_seeds(), b"0123456789abL=/ \n\t", 200, zfs);
}

#[test]
fn answers_of_moosefs_that_are_spoiled_at_random_hold() {
    spoiled(&moosefs_seeds(), b"0123456789ABC:/ \n\t", 120, moosefs);
}

#[test]
fn answers_of_ceph_that_are_spoiled_at_random_hold() {
    spoiled(&ceph_seeds(), b"0123456789\"{},:-", 200, ceph);
}

#[test]
fn the_seeds_are_what_they_are_called() {
    let place = OsdPlace::new("ceph:///osd?pg=1.0&object=fuzzed").unwrap();
    let [line, objects @ ..] = &ceph_seeds()[..] else {
        panic!()
    };
    assert!(osd::listed(&line[1..], &place));
    for object in objects {
        assert_eq!(osd::stretches(&osd::parse(&object[1..], &place).unwrap()).runs.len(), 6);
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
        assert_eq!(zfs_stretches(&parser.end().unwrap()).runs.len(), 6);
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
    let [reported, status, .., exception] = &hdfs_seeds()[..] else {
        panic!()
    };
    let reported = transfer::parse(&reported[3..]).unwrap();
    assert_eq!(reported.into_crcs(8101, 4096).unwrap().1.len(), 8);
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
}
