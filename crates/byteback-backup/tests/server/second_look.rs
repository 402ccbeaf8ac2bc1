//! The second look in short blocks at what a finder with long ones left.

use super::examining::{Asked, answering_proxy, decided};
use super::random_lives::RandomLife;
use byteback_api::{MEDIA_EXCERPT_ANSWER, MEDIA_SIGNATURE};
use byteback_backup::decisions::DeltaMethod;
use byteback_backup::{BackupReport, DeltaChoice, SnapshotSpec};
use byteback_delta::excerpt::{Excerpt, ExcerptAnswer};
use byteback_delta::signature::{SignatureParams, SignatureWriter};
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::WholeReason;
use byteback_testkit::clients::patient;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_server::Answer;
use byteback_testkit::seed::seed;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Places of single bytes that change, apart from each other.
const PLACES: [usize; 4] = [10_000, 500_001, 501_400, 1_000_000];

/// Length of the file.
const LEN: usize = 2 << 20;

/// Most literals after a second look, in short blocks, and at the ends of gaps.
const LITERALS_MAX: u64 = 4 * 2 * 128;

/// Changes the bytes of a file; all that is known then is that any byte may have changed.
fn change_bytes(rig: &Rig, file: NodeId, bytes: &mut [u8]) {
    let mut state = rig.tree.lock();
    for place in PLACES {
        bytes[place] ^= 1;
        state.write(file, place as u64, &bytes[place..=place]);
    }
    state.mark_whole(file, WholeReason::Interrupted);
}

#[test]
fn single_bytes_in_a_file_cost_short_blocks() {
    for (choice, literal_max) in [(DeltaChoice::Auto, LITERALS_MAX), (DeltaChoice::SkyF, 3 * 4096)] {
        let mut rig = Rig::new(1);
        rig.options.delta = choice;
        let mut bytes = noise(1, LEN);
        let file = rig.with_file(&bytes);
        change_bytes(&rig, file, &mut bytes);
        let report = rig.backup().unwrap();
        assert_eq!(report.examined_files, 1);
        assert!(report.literal_bytes <= literal_max, "{}", report.literal_bytes);
        assert_eq!(report.found_bytes + report.literal_bytes, LEN as u64);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        // A chosen finder is measured as it is.
        assert_eq!(report.literal_bytes == 3 * 4096, choice == DeltaChoice::SkyF);
    }
}

#[test]
fn second_look_reads_at_the_server_only_what_is_around() {
    let rig = Rig::new(1);
    let mut bytes = noise(1, LEN);
    let file = rig.with_file(&bytes);
    change_bytes(&rig, file, &mut bytes);
    let before = rig.signature_read_bytes();
    rig.backup().unwrap();
    let read = rig.signature_read_bytes() - before;
    // All of it for the first search.
    assert!((LEN as u64..=LEN as u64 + 4 * 4096).contains(&read), "{read}");
}

/// The answer to an excerpt by a server that has `content` in place of its base, and claims a
/// length.
fn answer_of(content: &[u8], base_len: u64, asked: &Asked<'_>) -> Vec<u8> {
    let excerpt = Excerpt::decode(asked.body).unwrap().within(base_len);
    let block_len = asked.query.split('&').find_map(|field| field.strip_prefix("block="));
    let mut stream = Vec::new();
    ExcerptAnswer::write_head(base_len, &mut stream).unwrap();
    let params = SignatureParams::for_excerpt(block_len.unwrap().parse().unwrap(), 7);
    let mut writer = SignatureWriter::new(stream, params, excerpt.len_bytes()).unwrap();
    for part in excerpt.ranges() {
        writer
            .push(&content[part.start() as usize..part.end() as usize])
            .unwrap();
    }
    writer.finish().unwrap()
}

/// Backs single bytes up behind a server that answers an excerpt so.
fn behind(answer: impl Fn(&Asked<'_>) -> Answer + Send + Sync + 'static) -> (BackupReport, Rig) {
    let script = move |asked: &Asked<'_>| (asked.call == "excerpt").then(|| answer(asked));
    let rig = Rig::through(5, patient(), answering_proxy(script));
    let mut bytes = noise(1, LEN);
    let file = rig.with_file(&bytes);
    change_bytes(&rig, file, &mut bytes);
    let report = rig.backup().unwrap();
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    (report, rig)
}

#[test]
fn second_look_with_a_wrong_signature_counts_for_nothing() {
    let base = noise(1, LEN);
    let mut new = base.clone();
    PLACES.iter().for_each(|place| new[*place] ^= 1);
    // The true answer, so that the other one is wrong by its bytes alone.
    for (content, is_true) in [(base, true), (new, false)] {
        let (report, rig) = behind(move |asked| {
            let stream = answer_of(&content, LEN as u64, asked);
            (200, MEDIA_EXCERPT_ANSWER, stream)
        });
        match is_true {
            true => assert!(report.literal_bytes <= LITERALS_MAX, "{}", report.literal_bytes),
            false => assert_eq!((report.examined_files, report.literal_bytes), (0, LEN as u64)),
        }
        assert_eq!(rig.seq(), 2, "what was refused left no trace");
    }
}

#[test]
fn unusable_answers_to_an_excerpt_cost_bytes_alone() {
    type Wrong = fn(Vec<u8>, &Asked<'_>) -> Answer;
    let wrong: [(&str, Wrong); 7] = [
        ("none", |_, _| (404, "text/html", b"<h1>not here</h1>".to_vec())),
        ("another type", |good, _| (200, MEDIA_SIGNATURE, good)),
        ("nonsense", |_, _| (200, MEDIA_EXCERPT_ANSWER, b"hello".to_vec())),
        ("damaged", |mut good, _| {
            good[70] ^= 1;
            (200, MEDIA_EXCERPT_ANSWER, good)
        }),
        ("another base", |_, asked| {
            let longer = answer_of(&noise(1, LEN + 1), LEN as u64 + 1, asked);
            (200, MEDIA_EXCERPT_ANSWER, longer)
        }),
        ("cut off", |mut good, _| {
            good.pop();
            (200, MEDIA_EXCERPT_ANSWER, good)
        }),
        ("failed", |_, _| (500, "text/plain", Vec::new())),
    ];
    for (what, wrong) in wrong {
        let base = noise(1, LEN);
        let (report, rig) = behind(move |asked| wrong(answer_of(&base, LEN as u64, asked), asked));
        // Whole blocks of the first search.
        assert!(
            (3 * 700..=3 * 4096).contains(&report.literal_bytes),
            "{what}: {}",
            report.literal_bytes
        );
        assert_eq!((report.examined_files, rig.seq()), (1, 2), "{what}");
    }
}

#[test]
fn older_servers_are_asked_for_one_excerpt() {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let refuse = move |head: &str, _: &[u8]| {
        let is_excerpt = head.split(' ').nth(1).is_some_and(|path| path.contains("/excerpt"));
        counter.fetch_add(u64::from(is_excerpt), Ordering::SeqCst);
        is_excerpt.then(|| byteback_api::Problem::new(byteback_api::Code::RouteNotFound, "there is no such call"))
    };
    let rig = Rig::through(1, patient(), |to, _| hearing(to, refuse));
    let mut files: Vec<(NodeId, Vec<u8>)> = Vec::new();
    for number in 0..3 {
        let mut state = rig.tree.lock();
        let file = state.create(NodeId::ROOT, format!("f{number}").as_bytes(), NodeKind::File);
        let bytes = noise(number, LEN);
        state.write(file, 0, &bytes);
        files.push((file, bytes));
    }
    rig.backup().unwrap();
    for (file, bytes) in &mut files {
        change_bytes(&rig, *file, bytes);
    }
    let literal_bytes = rig.backup().unwrap().literal_bytes;
    assert!(literal_bytes >= 3 * 3 * 700, "{literal_bytes}");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// Content in rows, each of which has bytes that no other has.
fn rows(numbers: impl Iterator<Item = u64>, row_len: usize) -> Vec<u8> {
    numbers.flat_map(|number| noise(1000 + number, row_len)).collect()
}

/// A database that was packed: rows of the end fill the gaps that others left, and the file is
/// shorter. Nothing is known but that.
#[test]
fn rows_that_moved_anywhere_are_found() {
    let mut rig = Rig::new(1);
    rig.options.limits.looked_for_len_min_bytes = 4 << 20;
    rig.options.limits.extents_max = 1 << 16;
    let mut random = SplitMix64::new(seed(63));
    let mut numbers: Vec<u64> = (0..6000).collect();
    let file = rig.with_file(&rows(numbers.iter().copied(), 350));
    for at in 0..4000 {
        if random.below(3) == 0 {
            let last = numbers.len() - 1;
            numbers.swap(at, last);
            numbers.pop();
        }
    }
    let packed = rows(numbers.iter().copied(), 350);
    {
        let mut state = rig.tree.lock();
        state.write(file, 0, &packed);
        state.truncate(file, packed.len() as u64);
        state.mark_whole(file, WholeReason::Untracked);
    }
    let report = rig.backup().unwrap();
    assert!(
        report.literal_bytes <= packed.len() as u64 / 50,
        "{}",
        report.literal_bytes
    );
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// Counters in the pages of a database.
fn change_counters(rig: &Rig, file: NodeId, bytes: &mut [u8]) -> u64 {
    let mut state = rig.tree.lock();
    let mut changed_bytes = 0;
    for page in (0..LEN / 4096).step_by(3) {
        for counter in [page * 4096 + 24, page * 4096 + 96, page * 4096 + 1500] {
            bytes[counter..counter + 4].copy_from_slice(&noise(counter as u64, 4));
            state.write(file, counter as u64, &bytes[counter..counter + 4]);
            changed_bytes += 4;
        }
    }
    state.mark_whole(file, WholeReason::Untracked);
    changed_bytes
}

#[test]
fn changed_bytes_alone_are_sent_after_all_rounds() {
    let mut rig = Rig::new(1);
    rig.options.limits.looked_for_len_min_bytes = 1 << 20;
    rig.options.limits.extents_max = 1 << 16;
    let mut bytes = noise(1, LEN);
    let file = rig.with_file(&bytes);
    let changed_bytes = change_counters(&rig, file, &mut bytes);
    let report = rig.backup().unwrap();
    // Between two counters, and before the first one, are too few bytes for a match.
    assert!(
        (changed_bytes..=changed_bytes * 6).contains(&report.literal_bytes),
        "{} of {changed_bytes}",
        report.literal_bytes
    );
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// Backs counters up behind a server that answers a call for bytes of an excerpt so. Returns the
/// changed bytes and the number of these calls, too.
fn counters_behind(answer: impl Fn(&Asked<'_>) -> Answer + Send + Sync + 'static) -> (BackupReport, u64, u64) {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let script = move |asked: &Asked<'_>| {
        (asked.call == "bytes").then(|| {
            counter.fetch_add(1, Ordering::SeqCst);
            answer(asked)
        })
    };
    let mut rig = Rig::through(5, patient(), answering_proxy(script));
    rig.options.limits.looked_for_len_min_bytes = 1 << 20;
    rig.options.limits.extents_max = 1 << 16;
    let mut bytes = noise(1, LEN);
    let file = rig.with_file(&bytes);
    let changed_bytes = change_counters(&rig, file, &mut bytes);
    let report = rig.backup().unwrap();
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    (report, changed_bytes, asked.load(Ordering::SeqCst))
}

/// The bytes of an excerpt at a server that has `content`.
fn bytes_of(content: &[u8], asked: &Asked<'_>) -> Vec<u8> {
    let excerpt = Excerpt::decode(asked.body).unwrap().within(content.len() as u64);
    let mut writer = DeltaWriter::new(Vec::new(), 0, content.len() as u64, WriterOptions::default()).unwrap();
    for part in excerpt.ranges() {
        let bytes = &content[part.start() as usize..part.end() as usize];
        writer.literal_bytes(part.start(), bytes).unwrap();
    }
    writer.finish().unwrap().0
}

#[test]
fn wrong_bytes_of_an_excerpt_count_for_nothing() {
    let base = noise(1, LEN);
    let true_base = base.clone();
    let (report, changed_bytes, _) =
        counters_behind(move |asked| (200, byteback_api::MEDIA_DELTA, bytes_of(&true_base, asked)));
    assert!(report.literal_bytes <= changed_bytes * 6, "{}", report.literal_bytes);
    // The server claims to have what is new.
    let mut lie = base;
    for page in (0..LEN / 4096).step_by(3) {
        for counter in [page * 4096 + 24, page * 4096 + 96, page * 4096 + 1500] {
            lie[counter..counter + 4].copy_from_slice(&noise(counter as u64, 4));
        }
    }
    let (report, ..) = counters_behind(move |asked| (200, byteback_api::MEDIA_DELTA, bytes_of(&lie, asked)));
    assert_eq!((report.examined_files, report.literal_bytes), (0, LEN as u64));
}

#[test]
fn unusable_bytes_of_an_excerpt_cost_bytes_alone() {
    type Wrong = fn(Vec<u8>, &Asked<'_>) -> Answer;
    let wrong: [(&str, Wrong); 6] = [
        ("no such call", |_, _| (404, "text/html", b"<h1>not here</h1>".to_vec())),
        ("another type", |good, _| (200, MEDIA_SIGNATURE, good)),
        ("nonsense", |_, _| (200, byteback_api::MEDIA_DELTA, b"hello".to_vec())),
        ("damaged", |mut good, _| {
            good[70] ^= 1;
            (200, byteback_api::MEDIA_DELTA, good)
        }),
        ("another base", |_, asked| {
            (200, byteback_api::MEDIA_DELTA, bytes_of(&noise(1, LEN + 1), asked))
        }),
        ("failed", |_, _| (500, "text/plain", Vec::new())),
    ];
    for (what, wrong) in wrong {
        let base = noise(1, LEN);
        let (report, changed_bytes, asked) = counters_behind(move |asked| wrong(bytes_of(&base, asked), asked));
        // Short blocks.
        assert!(
            (changed_bytes * 8..=changed_bytes * 64).contains(&report.literal_bytes),
            "{what}: {} of {changed_bytes}",
            report.literal_bytes
        );
        assert_eq!(report.examined_files, 1, "{what}");
        // A server that fails, or whose answer ends early, is asked again a few times.
        assert!((1..=8).contains(&asked), "{what}: {asked}");
    }
}

/// A file system in a disk image copies a file of its own to blocks of a KiB. The bytes stay in use
/// at their former place, and the copy does not lie at a multiple of 4 KiB from there.
#[test]
fn bytes_copied_within_an_image_are_found_at_any_offset() {
    for is_known in [false, true] {
        let mut rig = Rig::new(1);
        rig.options.limits.looked_for_len_min_bytes = 4 << 20;
        rig.options.limits.extents_max = 1 << 16;
        let mut bytes = noise(1, 16 << 20);
        let file = rig.with_file(&bytes);
        let (from, to, len) = ((3 << 20) + 1024, (9 << 20) + 2560, 400_000);
        bytes.copy_within(from..from + len, to);
        {
            let mut state = rig.tree.lock();
            state.write(file, to as u64, &bytes[to..to + len]);
            if !is_known {
                state.mark_whole(file, WholeReason::Untracked);
            }
        }
        let report = rig.backup().unwrap();
        assert!(
            report.literal_bytes <= 1024,
            "known: {is_known}, {}",
            report.literal_bytes
        );
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

/// Much of a file was removed, and a little of the rest was changed: a sample of what is left of
/// the server's version has nothing of it.
#[test]
fn edits_behind_a_long_removal_cost_short_blocks() {
    let mut rig = Rig::new(1);
    rig.options.limits.looked_for_len_min_bytes = 1 << 20;
    let bytes = noise(1, 8 << 20);
    let file = rig.with_file(&bytes);
    let mut new = bytes;
    new.drain(100_000..3_000_000);
    for place in [1_000_000, 2_500_000, 4_100_000] {
        new[place] ^= 1;
    }
    {
        let mut state = rig.tree.lock();
        state.write(file, 0, &new);
        state.truncate(file, new.len() as u64);
        state.mark_whole(file, WholeReason::Untracked);
    }
    let report = rig.backup().unwrap();
    assert!(report.literal_bytes <= 4 * 1024, "{}", report.literal_bytes);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// Saves an image in which parts are rewritten with bytes that are nowhere else.
fn save_new_parts(rig: &Rig) {
    let file = rig.with_file(&noise(1, 20 << 20));
    {
        let mut state = rig.tree.lock();
        for part in [3, 7, 12] {
            state.write(file, part << 20, &noise(part, 2 << 20));
        }
        state.mark_whole(file, WholeReason::Untracked);
    }
    assert_eq!(rig.backup().unwrap().literal_bytes, 6 << 20);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// The sums of a whole version that do not fit it are not asked for again, nor believed.
#[test]
fn unfitting_sums_of_a_whole_version_are_asked_for_once() {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let script = move |asked: &Asked<'_>| {
        (asked.call == "signature" && asked.query.contains("strong_len=6")).then(|| {
            counter.fetch_add(1, Ordering::SeqCst);
            let params = SignatureParams::for_content(1000, 1);
            let mut writer = SignatureWriter::new(Vec::new(), params, 1000).unwrap();
            writer.push(&[7; 1000]).unwrap();
            (200, MEDIA_SIGNATURE, writer.finish().unwrap())
        })
    };
    let mut rig = Rig::through(5, patient(), answering_proxy(script));
    rig.options.part_len_bytes = 1 << 20;
    save_new_parts(&rig);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// Bytes that are new in an image are nowhere: the sums of its whole version are asked for once,
/// however many parts of it come.
#[test]
fn sums_of_a_whole_version_are_asked_for_once() {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let hear = move |head: &str, _: &[u8]| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let is_whole = path.contains("/signature") && path.contains("strong_len=6");
        counter.fetch_add(u64::from(is_whole), Ordering::SeqCst);
        None
    };
    let mut rig = Rig::through(1, patient(), |to, _| hearing(to, hear));
    rig.options.part_len_bytes = 1 << 20;
    save_new_parts(&rig);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// Pages of a database in which cells move: the log knows the pages.
#[test]
fn cells_that_move_within_reported_pages_are_found() {
    let mut rig = Rig::new(1);
    let decisions = rig.keep_decisions();
    let mut bytes = noise(1, LEN);
    let file = rig.with_file(&bytes);
    for page in (0..500).step_by(10) {
        let (at, new) = (page * 4096, noise(page as u64, 40));
        bytes[at + 1000..at + 4096].rotate_right(40);
        bytes[at + 1000..at + 1040].copy_from_slice(&new);
        rig.tree.lock().write(file, at as u64, &bytes[at..at + 4096]);
    }
    let report = rig.backup().unwrap();
    assert_eq!(decided(&rig, &decisions, file).method, DeltaMethod::LogLookedUp);
    assert_eq!(report.changed_bytes, 50 * 4096);
    assert!(report.literal_bytes <= 50 * (40 + 3 * 128), "{}", report.literal_bytes);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// A file of which anything may have changed, in which blocks moved: SkySync-F searches only where
/// groups differ.
#[test]
fn blocks_that_moved_out_of_equal_groups_are_found() {
    let mut rig = Rig::new(1);
    rig.options.limits.looked_for_len_min_bytes = 1 << 20;
    let decisions = rig.keep_decisions();
    let mut random = SplitMix64::new(7);
    let mut bytes = noise(1, 40 << 20);
    let file = rig.with_file(&bytes);
    for _ in 0..2 {
        // All are written near the beginning, and come from everywhere.
        let mut new_bytes = 0;
        let mut state = rig.tree.lock();
        for block in 0..100 {
            let (to, from) = (block * 8192, (10 << 20) + random.below(7000) as usize * 4096);
            if block % 10 == 0 {
                new_bytes += 4096;
                bytes[to..to + 4096].copy_from_slice(&noise(random.next_u64(), 4096));
            } else {
                bytes.copy_within(from..from + 4096, to);
            }
            state.write(file, to as u64, &bytes[to..to + 4096]);
        }
        state.mark_whole(file, WholeReason::Untracked);
        drop(state);
        let report = rig.backup().unwrap();
        assert_eq!(decided(&rig, &decisions, file).method, DeltaMethod::SkyF);
        assert_eq!(report.literal_bytes, new_bytes);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

/// A rewritten part that the server has nowhere is looked up once, however long it is.
#[test]
fn lookup_in_vain_is_the_last_one_of_a_file() {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let hear = move |head: &str, _: &[u8]| {
        let is_lookup = head.split(' ').nth(1).is_some_and(|path| path.contains("/matches"));
        counter.fetch_add(u64::from(is_lookup), Ordering::SeqCst);
        None
    };
    let mut rig = Rig::through(1, patient(), |to, _| hearing(to, hear));
    rig.options.part_len_bytes = 1 << 20;
    save_new_parts(&rig);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// More literals than are gathered are looked for part by part, found or not, in deltas of some
/// length: short gaps, and long ones that reach over the parts' borders.
#[test]
fn many_gaps_are_looked_for_as_they_come() {
    for (round, part_len) in [8 * 1024, 64 * 1024, 1 << 24].into_iter().enumerate() {
        let mut rig = Rig::new(1);
        rig.options.part_len_bytes = part_len;
        rig.options.limits.looked_for_len_min_bytes = [16 * 1024, 100_000, 300_000][round];
        rig.options.limits.extents_max = 1 << 14;
        let base = noise(1, 6 << 20);
        let mut bytes = base.clone();
        let file = rig.with_file(&bytes);
        let mut random = SplitMix64::new(seed(62) + round as u64);
        let mut state = rig.tree.lock();
        let (mut at, mut new_bytes) = (1000, 0);
        while at < bytes.len() - 200_000 {
            match random.below(8) {
                // New altogether.
                0 => {
                    let len = 1 + random.below(60_000) as usize;
                    bytes[at..at + len].copy_from_slice(&noise(random.next_u64(), len));
                    new_bytes += len;
                    at += len;
                }
                // A page whose second half moves on by forty bytes.
                1 | 2 => bytes[at + 2000..at + 4000].rotate_right(40),
                _ => bytes[at] ^= 1,
            }
            at += 6000 + random.below(10_000) as usize;
        }
        state.write(file, 0, &bytes);
        state.mark_whole(file, WholeReason::Interrupted);
        drop(state);
        let report = rig.backup().unwrap();
        assert_eq!(report.examined_files, 1);
        let gaps = (bytes.len() / 6000) as u64;
        let literal_max = new_bytes as u64 + gaps * 500;
        assert!(
            report.literal_bytes <= literal_max,
            "{} > {literal_max}",
            report.literal_bytes
        );
        assert!(report.literal_bytes >= new_bytes as u64, "{}", report.literal_bytes);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

/// Pieces that second looks find do not keep the finder from ending: bytes that it has seen are not
/// held still any more, and a program may have written since.
#[test]
fn second_look_takes_no_room_from_the_finder() {
    for extents_max in [300, 600, 1000] {
        let mut rig = Rig::new(1);
        rig.options.limits.extents_max = extents_max;
        rig.options.limits.looked_for_len_min_bytes = 16 * 1024;
        let mut bytes = noise(1, 2 << 20);
        let file = rig.with_file(&bytes);
        let mut state = rig.tree.lock();
        // Many changes in each of the reported ranges.
        for range in 0..60 {
            let start = range * 32_768;
            for place in (start..start + 8192).step_by(400) {
                bytes[place] ^= 1;
            }
            state.write(file, start as u64, &bytes[start..start + 8192]);
        }
        drop(state);
        let report = rig.backup().unwrap();
        assert_eq!(report.examined_files, 1, "{extents_max}");
        assert!(
            report.literal_bytes < 60 * 8192,
            "{extents_max}: {}",
            report.literal_bytes
        );
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

/// Small edits anywhere, insertions, removals and exchanges, between backups that may fail midway,
/// with few pieces and with many.
#[test]
fn random_small_edits_come_back() {
    let seed = seed(61);
    let (mut found_bytes, mut literal_bytes) = (0, 0);
    for round in 0..10 {
        let mut life = RandomLife::new(seed + round, 700_000);
        life.rig.options.limits.looked_for_len_min_bytes = [4096, 40_000, 1 << 20][(round % 3) as usize];
        for save in 0..6 {
            life.rig.options.limits.extents_max = [40, 400, 1 << 18][(save % 3) as usize];
            let report = life.save();
            found_bytes += report.found_bytes;
            literal_bytes += report.literal_bytes;
            life.change(200, |state, random, file, bytes| {
                for _ in 0..random.below(6) {
                    let at = random.below(bytes.len() as u64 - 2000) as usize;
                    bytes[at..at + 1500].rotate_left(random.below(1500) as usize);
                }
                state.write(file, 0, bytes);
                state.truncate(file, bytes.len() as u64);
            });
        }
        life.check();
    }
    assert!(
        found_bytes > literal_bytes,
        "seed {seed}: {found_bytes} {literal_bytes}"
    );
}

#[test]
fn excerpt_is_asked_for_once_for_each_file() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    let hear = move |head: &str, body: &[u8]| {
        if head.split(' ').nth(1).is_some_and(|path| path.contains("/excerpt")) {
            heard.lock().unwrap().push(Excerpt::decode(body).unwrap());
        }
        None
    };
    let rig = Rig::through(1, patient(), |to, _| hearing(to, hear));
    let mut bytes = noise(1, LEN);
    let file = rig.with_file(&bytes);
    change_bytes(&rig, file, &mut bytes);
    rig.backup().unwrap();
    let asked = asked.lock().unwrap();
    let [excerpt] = asked.as_slice() else {
        panic!("{} excerpts", asked.len());
    };
    // Around the places, two of which lie together.
    assert!((3..=4).contains(&excerpt.ranges().len()), "{:?}", excerpt.ranges());
    for place in PLACES {
        let ranges = excerpt.ranges().iter();
        assert!(
            ranges.filter(|range| range.contains(place as u64)).count() == 1,
            "{place}"
        );
    }
    assert!(excerpt.len_bytes() <= 4 * 4096, "{:?}", excerpt.ranges());
}
