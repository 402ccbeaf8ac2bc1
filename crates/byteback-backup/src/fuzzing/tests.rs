use super::*;

#[test]
fn the_seeds_are_notes_and_hold() {
    note_seeds().iter().for_each(|seed| note(seed));
    assert!(Note::from_bytes(&note_seeds()[0]).is_some());
    decisions_seeds().iter().for_each(|seed| decisions(seed));
}
