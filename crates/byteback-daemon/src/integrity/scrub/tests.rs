//! A passage sees every byte of every file, no faster than it may, and goes on where it was.

use std::collections::BTreeMap;

use super::*;

#[test]
fn every_byte_is_seen_in_order_at_the_rate_and_after_restarts() {
    let files = BTreeMap::from([(3, 10_000), (4, 3 << 20), (9, 1), (12, PIECE_LEN_BYTES)]);
    let options = ScrubOptions {
        bytes_per_s: 1 << 20,
        rest: Duration::from_secs(100),
    };
    for restart_after in [1, 2, 3, 1000] {
        let mut passage = Passage::new(options, None);
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut now_ns, mut total, mut steps) = (5, 0, 0);
        while passage.passes() == 0 {
            steps += 1;
            if steps % restart_after == 0 {
                let older = passage.clone();
                passage = Passage::new(options, Some(older.position()));
                passage.not_before_ns = older.not_before_ns;
            }
            match passage.next(now_ns) {
                Step::Wait(wait) => now_ns += wait.as_nanos() as u64,
                Step::FindFrom(file) => {
                    passage.at_file(files.range(file..).next().map(|(file, len)| (*file, *len)), now_ns);
                    // A restart forgets what was found: it must get on all the same.
                    if let Step::Read { file, range } = passage.next(now_ns) {
                        let so_far = seen.entry(file).or_default();
                        assert!(range.start() <= *so_far, "{range:?} left something out of {file}");
                        *so_far = range.end().max(*so_far);
                        total += range.len_bytes();
                        passage.read(range.len_bytes(), now_ns);
                    }
                }
                Step::Read { file, range } => {
                    assert_eq!(seen.insert(file, range.end()).unwrap_or(0), range.start());
                    total += range.len_bytes();
                    passage.read(range.len_bytes(), now_ns);
                }
            }
        }
        assert_eq!(seen, files, "restart after {restart_after}");
        assert!(now_ns >= (total - PIECE_LEN_BYTES) * 1_000_000_000 / options.bytes_per_s);
        assert_eq!(passage.next(now_ns), Step::Wait(options.rest));
    }
}

#[test]
fn a_file_that_cannot_be_read_is_passed_by() {
    let mut passage = Passage::new(ScrubOptions::default(), None);
    passage.at_file(Some((3, 10 << 20)), 0);
    passage.read(0, 0);
    assert_eq!(passage.next(0), Step::FindFrom(4));
    // It ends where it was cut off meanwhile.
    passage.at_file(Some((4, 10_000)), 0);
    passage.read(5000, 0);
    assert_eq!(passage.position(), (4, 8192));
}
