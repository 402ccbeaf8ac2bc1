use proptest::prelude::*;

use super::*;

fn set(ranges: &[(u64, u64)]) -> ExtentSet {
    ranges
        .iter()
        .filter_map(|(start, len)| ByteRange::from_offset_len(*start, *len))
        .collect()
}

#[test]
fn golden_bytes() {
    // Figure 5: the indicator, 15 bits of length, 16 bits of offset; otherwise length, then offset.
    let ranges = set(&[(0x1234, 0x1fff), (0x1_0000, 1), (0xffff_ffff, 1)]);
    let bytes = [
        0x34, 0x12, 0xff, 0x9f, // compact: offset 0x1234, length 0x1fff
        1, 0, 0, 0, 0, 0, 1, 0, // normal: length 1, offset 0x10000
        1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, // normal: the largest offset
    ];
    assert_eq!(encode(&ranges, Unit::Byte).unwrap(), bytes);
    assert_eq!(decode(&bytes, Unit::Byte).unwrap(), ranges);
    let long = set(&[(0, 0x7fff), (0x8000, 0x8000)]);
    let bytes = [0, 0, 0xff, 0xff, 0, 0x80, 0, 0, 0, 0x80, 0, 0];
    assert_eq!(encode(&long, Unit::Byte).unwrap(), bytes);
    assert_eq!(decode(&bytes, Unit::Byte).unwrap(), long);
}

#[test]
fn mlog_refuses_what_it_cannot_express() {
    for (start, len) in [(1 << 32, 1), (u64::MAX - 1, 1), (0, 1 << 31)] {
        let refused = encode(&set(&[(5, 1), (start, len)]), Unit::Byte);
        assert!(matches!(refused, Err(MlogError::NotRepresentable(_))), "{refused:?}");
    }
    // In pages it reaches further.
    let far = set(&[(1 << 40, 5), ((1 << 44) - 1, 1)]);
    let back = decode(&encode(&far, Unit::Page).unwrap(), Unit::Page).unwrap();
    assert_eq!(back, set(&[(1 << 40, 4096), ((1 << 44) - 4096, 4096)]));
    assert!(encode(&set(&[(1 << 44, 1)]), Unit::Page).is_err());
    for bad in [
        &[0][..],
        &[0, 0, 0, 0x80],
        &[1, 0, 0, 0],
        &[1, 0, 0, 0, 9, 0, 0],
        &[9, 0, 1, 0x80, 10, 0, 1, 0x80],
    ] {
        assert_eq!(decode(bad, Unit::Byte), Err(MlogError::Malformed), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn mlogs_give_the_ranges_back(ranges in prop::collection::vec((0_u64..1 << 20, 1_u64..1 << 17), 0..60)) {
        let ranges = set(&ranges);
        let bytes = encode(&ranges, Unit::Byte).unwrap();
        prop_assert!(bytes.len() <= ranges.len() * 8);
        prop_assert_eq!(decode(&bytes, Unit::Byte).unwrap(), ranges);
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(bytes in any::<Vec<u8>>()) {
        let _ = decode(&bytes, Unit::Byte);
        let _ = decode(&bytes, Unit::Page);
    }
}

/// Writes of one kind, each with its offset and length.
fn synthetic() -> Vec<(&'static str, Vec<(u64, u64)>)> {
    use byteback_host::random::SplitMix64;
    let mut random = SplitMix64::new(7);
    let mut of = |count: u64, write: &mut dyn FnMut(&mut SplitMix64) -> (u64, u64)| -> Vec<(u64, u64)> {
        (0..count).map(|_| write(&mut random)).collect()
    };
    vec![
        (
            "2 MiB in sequential writes of 1 KiB",
            (0..2048).map(|index| (index * 1024, 1024)).collect(),
        ),
        (
            "2 MiB in random writes of 1 KiB, 10 MiB",
            of(2048, &mut |random| (random.below((10 << 20) - 1024), 1024)),
        ),
        (
            "2 MiB in random blocks of 1 KiB, 10 MiB",
            of(2048, &mut |random| (random.below(10 << 10) << 10, 1024)),
        ),
        (
            "2048 random pages of 4 KiB, 100 MiB",
            of(2048, &mut |random| (random.below(25_600) << 12, 4096)),
        ),
        (
            "5000 random records of 16 to 200 bytes, 1 GiB",
            of(5000, &mut |random| (random.below(1 << 30), 16 + random.below(185))),
        ),
        (
            "500 records of 16 to 200 bytes in the first 64 KiB",
            of(500, &mut |random| (random.below(65_000), 16 + random.below(185))),
        ),
    ]
}

fn row(name: &str, files: &[ExtentSet]) -> String {
    let all: Vec<Density> = files.iter().map(density).collect();
    let sum = |of: &dyn Fn(&Density) -> u64| all.iter().map(of).sum::<u64>() as f64;
    let mlogs = sum(&|density| density.mlogs);
    let paper = if all.iter().all(|density| density.paper_bytes.is_some()) {
        format!("{:.2}", sum(&|density| density.paper_bytes.unwrap_or(0)) / mlogs)
    } else {
        "none".to_owned()
    };
    format!(
        "| {name} | {mlogs} | {paper} | {:.2} |",
        sum(&|density| density.layer_bytes) / mlogs
    )
}

/// The table in docs/formats/oplog.md says what is so.
#[test]
fn the_table_of_the_documents() {
    let document =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/oplog.md")).unwrap();
    let rows: Vec<String> = synthetic()
        .iter()
        .map(|(name, writes)| row(name, &[set(writes)]))
        .collect();
    println!("{}", rows.join("\n"));
    for row in rows {
        assert!(document.contains(&row), "not in docs/formats/oplog.md:\n{row}");
    }
}

/// The same for recorded writes: lines of a name, a file's number, an offset and a length, in the
/// file that `BYTEBACK_WRITES` names.
#[test]
#[ignore = "needs recorded writes"]
fn the_table_of_recorded_writes() {
    use std::collections::BTreeMap;
    let text = std::fs::read_to_string(std::env::var("BYTEBACK_WRITES").unwrap()).unwrap();
    let mut traces: BTreeMap<&str, BTreeMap<u64, ExtentSet>> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(' ');
        let trace = traces.entry(fields.next().unwrap()).or_default();
        let mut number = || fields.next().unwrap().parse::<u64>().unwrap();
        let (file, offset, len) = (number(), number(), number());
        trace
            .entry(file)
            .or_default()
            .extend(ByteRange::from_offset_len(offset, len));
    }
    for (name, files) in traces {
        let files: Vec<ExtentSet> = files.into_values().filter(|ranges| !ranges.is_empty()).collect();
        println!("{}", row(name, &files));
    }
}
