//! Records that go through sheets.

use super::*;
use byteback_model::FileId;

fn record(number: u64) -> StagedRecord {
    StagedRecord::DirectoryTime(FileId(u128::from(number)), -1)
}

#[test]
fn records_come_back_from_their_sheets_in_order() {
    let mut sheets = Sheets::default();
    assert!(sheets.as_slice().is_empty());
    for number in 0..5000 {
        sheets.push(&record(number));
    }
    assert_eq!(sheets.records(), 5000);
    let count = sheets.as_slice().len();
    assert!((5..40).contains(&count), "{count} sheets");
    let longest = sheets.as_slice().iter().map(Vec::len).max().unwrap();
    assert!(longest < SHEET_LEN + 100, "{longest} bytes");
    let records = sheets.as_slice().iter().flat_map(|sheet| records_of(sheet));
    let records: Result<Vec<_>, _> = records.collect();
    assert_eq!(records.unwrap(), (0..5000).map(record).collect::<Vec<_>>());
}

#[test]
fn damaged_sheet_ends_at_the_damage_whichever_it_is() {
    let mut sheets = Sheets::default();
    for number in 0..3 {
        sheets.push(&record(number));
    }
    let sheet = &sheets.as_slice()[0];
    let read = |sheet: &[u8]| records_of(sheet).collect::<Vec<_>>();
    for at in 0..sheet.len() {
        let mut flipped = sheet.clone();
        flipped[at] ^= 0x10;
        let records = read(&flipped);
        assert!(records.len() <= 3 && records.last().unwrap().is_err(), "byte {at}");
        let whole = records.iter().take_while(|record| record.is_ok()).count();
        assert_eq!(whole, records.len() - 1, "byte {at}");
        let cut = read(&sheet[..at]);
        let is_between = at.is_multiple_of(sheet.len() / 3);
        assert_eq!(cut.iter().any(Result::is_err), !is_between, "byte {at}");
    }
}
