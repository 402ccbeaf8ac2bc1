use super::*;

#[test]
fn the_seeds_hold() {
    segment_seeds().iter().for_each(|seed| segment(seed));
}

#[test]
fn the_seeds_are_records() {
    let disk = SimDisk::new(1);
    let (first, name) = new_segment(&disk);
    let file = disk.open(&name, OpenMode::Existing).unwrap();
    file.write_all_at(first, &segment_seeds()[1]).unwrap();
    let (_, found) = Journal::open(Arc::new(disk), BUDGET_BYTES).unwrap();
    assert_eq!(
        (found.records.len(), found.is_torn, found.is_damaged),
        (8, false, false)
    );
}
