use super::*;

#[test]
fn the_seeds_are_records_and_hold() {
    let seeds = record_seeds();
    let read = seeds.iter().filter(|seed| {
        record(seed);
        let sealed = seal(seed[1..].to_vec());
        match seed[0] {
            0 => Layer::decode(&sealed).is_ok(),
            1 => packed::decode::<NodeRow>(&sealed).is_ok(),
            2 => ConsumerState::decode(&sealed).is_ok(),
            3 => FileMark::decode(&sealed).is_ok(),
            4 => LedgerEntry::decode(&sealed).is_ok(),
            5 => mlog::decode(&seed[1..], Unit::Byte).is_ok(),
            6 => packed::decode::<KeyRow>(&sealed).is_ok(),
            7 => packed::decode::<NameRow>(&sealed).is_ok(),
            _ => packed::decode::<PlaceRow>(&sealed).is_ok(),
        }
    });
    assert_eq!(read.count(), seeds.len());
}

#[test]
fn the_files_of_intents_hold() {
    intents_seeds().iter().for_each(|seed| intents(seed));
}
