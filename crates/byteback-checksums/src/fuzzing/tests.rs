use super::*;

#[test]
fn the_seeds_hold() {
    btrfs_seeds().iter().for_each(|seed| btrfs(seed));
    row_seeds().iter().for_each(|seed| row(seed));
    s3_seeds().iter().for_each(|seed| s3(seed));
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

#[test]
fn the_seeds_are_what_they_are_called() {
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
