use super::*;

#[test]
fn the_seeds_hold() {
    btrfs_seeds().iter().for_each(|seed| btrfs(seed));
    row_seeds().iter().for_each(|seed| row(seed));
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
