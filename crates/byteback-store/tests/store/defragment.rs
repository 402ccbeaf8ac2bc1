//! Live pieces of mostly dead frames, written together: what is read of the newest contents, what
//! is written for that, and that no version of any file ever reads differently.

use crate::lab::{Batch, Lab, ROOT};
use crate::sums::{delta, sql};
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_host::durable::{DurableDir, OpenMode};
use byteback_host::random::{SplitMix64, noise};
use byteback_host::sim::{CrashPhase, SimDisk};
use byteback_model::{ContentBase, FileId, NodeKind};
use byteback_store::catalog::Catalog;
use byteback_store::defragment::Defragmented;
use byteback_store::numbers::NodeNumber;
use byteback_store::segments::FRAME_HEADER_LEN;
use byteback_store::verify::VerifyEvent;
use byteback_store::{StoreError, StoreLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

const FILE: u128 = 2;
const PAGE: usize = 4096;

/// Stored bytes that verifying the newest moment reads.
fn verified(lab: &Lab) -> u64 {
    let totals = lab.store.verify("f", None, |event| {
        assert!(matches!(event, VerifyEvent::Progress(_)), "{event:?}");
        ControlFlow::Continue(())
    });
    let totals = totals.unwrap();
    assert_eq!((totals.damaged_files, totals.wrong_sums), (0, 0));
    totals.bytes + totals.frames * FRAME_HEADER_LEN
}

fn defragmented(lab: &Lab) -> Defragmented {
    lab.store.defragment(&|| true).unwrap()
}

/// All that was written again so far, and all that came.
#[derive(Default)]
struct Account {
    frames: u64,
    pages: u64,
}

impl Account {
    /// Defragments, and checks that what came pays for it.
    #[track_caller]
    fn defragment(&mut self, lab: &Lab) {
        let done = defragmented(lab);
        self.frames += done.written_bytes;
        self.pages += done.page_bytes;
        let (again, came) = (self.frames + self.pages, self.came(lab));
        assert!(again <= came, "{again} bytes were written again of {came}");
    }

    fn came(&self, lab: &Lab) -> u64 {
        stored(lab) - self.frames
    }
}

/// Overwrites random places of `content`; returns the batch that says so.
fn overwrite(content: &mut [u8], places: usize, place_len: usize, align: usize, rng: &mut SplitMix64) -> Batch {
    let slots = (content.len() - place_len) / align + 1;
    let mut at: Vec<usize> = (0..places).map(|_| rng.below(slots as u64) as usize * align).collect();
    at.sort_unstable();
    at.dedup_by(|next, before| *next < *before + place_len);
    let written: Vec<(u64, Vec<u8>)> = at
        .into_iter()
        .map(|at| (at as u64, noise(rng.next_u64(), place_len)))
        .collect();
    for (at, bytes) in &written {
        content[*at as usize..][..place_len].copy_from_slice(bytes);
    }
    let places: Vec<(u64, &[u8])> = written.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
    Batch::default().patch(FILE, content.len() as u64, &places)
}

/// Sends versions, each with this number of random pages of the one before overwritten.
fn overwrite_pages(
    lab: &Lab,
    versions: std::ops::RangeInclusive<u64>,
    content: &mut [u8],
    places: usize,
    rng: &mut SplitMix64,
) {
    for version in versions {
        let batch = overwrite(content, places, PAGE, PAGE, rng);
        lab.send(version, Some(version - 1), &batch).unwrap();
    }
}

fn stored(lab: &Lab) -> u64 {
    lab.store.folder("f").unwrap().stored_bytes
}

#[test]
fn image_of_fifty_backups_is_verified_at_its_length() {
    const LEN: usize = 8 << 20;
    let (lab, scattered) = (Lab::new(64 << 20), Lab::new(64 << 20));
    let mut content = noise(1, LEN);
    let mut moments = BTreeMap::from([(1, content.clone())]);
    for lab in [&lab, &scattered] {
        lab.first(&[(FILE, &content)]);
    }
    let mut rng = SplitMix64::new(1);
    let mut account = Account::default();
    for version in 2..=51 {
        let batch = overwrite(&mut content, LEN / PAGE / 7, PAGE, PAGE, &mut rng);
        for lab in [&lab, &scattered] {
            lab.send(version, Some(version - 1), &batch).unwrap();
        }
        account.defragment(&lab);
        if version % 10 == 0 {
            moments.insert(version, content.clone());
        }
    }
    let (read, read_before) = (verified(&lab), verified(&scattered));
    assert!(read_before > 4 * LEN as u64, "without, {read_before} bytes are read");
    assert!(read * 10 <= 12 * LEN as u64, "{read} bytes are read of {LEN}");
    assert_eq!(account.came(&lab), stored(&scattered), "what is written again counts");
    moments.insert(51, content);
    for (seq, content) in &moments {
        assert!(lab.read(FILE, *seq).unwrap() == *content, "at {seq}");
    }
    // Nothing is left to be done, and nothing is done again.
    assert_eq!(defragmented(&lab), Defragmented::default());
}

#[test]
fn file_of_500_versions_is_read_like_one() {
    const LEN: usize = 4 << 20;
    // Pages of a database, and records that end anywhere.
    for (what, place_len, align) in [("pages", PAGE, PAGE), ("records", 1010, 1)] {
        let (lab, single) = (Lab::new(64 << 20), Lab::new(64 << 20));
        let mut content = noise(1, LEN);
        lab.first(&[(FILE, &content)]);
        let mut rng = SplitMix64::new(2);
        let mut account = Account::default();
        for version in 2..=500 {
            let batch = overwrite(&mut content, 10, place_len, align, &mut rng);
            lab.send(version, Some(version - 1), &batch).unwrap();
            account.defragment(&lab);
        }
        assert!(lab.read(FILE, 500).unwrap() == content, "{what}");
        single.first(&[(FILE, &content)]);
        let (read, read_of_one) = (verified(&lab), verified(&single));
        assert!(
            read * 100 <= read_of_one * 120,
            "{what}: {read} bytes are read, {read_of_one} of one version"
        );
    }
}

/// Hourly backups of a busy file for a year, shortened unless BYTEBACK_BACKUPS says how many.
#[test]
fn a_year_of_backups_writes_at_most_twice_what_came() {
    const LEN: usize = 1 << 20;
    let backups = std::env::var("BYTEBACK_BACKUPS").map_or(2000, |n| n.parse().unwrap());
    let disk = SimDisk::new(1);
    disk.set_capacity(1 << 34);
    let lab = Lab::on(disk, 64 << 20);
    let mut content = noise(1, LEN);
    lab.first(&[(FILE, &content)]);
    let mut rng = SplitMix64::new(3);
    let mut account = Account::default();
    for version in 2..=backups {
        // Quiet hours, busy ones, and some in which everything moves.
        let places = [1, 2, 4, 8, 16, 120][rng.below(6) as usize];
        let batch = overwrite(&mut content, places, PAGE, PAGE, &mut rng);
        lab.send(version, Some(version - 1), &batch).unwrap();
        account.defragment(&lab);
        if version % 100 == 0 {
            let read = verified(&lab);
            let most = LEN as u64 * 12 / 10 + 16 * 1024;
            assert!(read <= most, "at {version}: {read} bytes are read");
        }
    }
    assert!(lab.read(FILE, backups).unwrap() == content);
}

/// Each of these writes leaves a page that is mostly alive: to write it again costs many times what
/// came.
#[test]
fn small_writes_everywhere_are_not_worth_more_than_they_are() {
    const LEN: usize = 1 << 20;
    let lab = Lab::new(64 << 20);
    let mut content = noise(1, LEN);
    lab.first(&[(FILE, &content)]);
    let mut rng = SplitMix64::new(4);
    let mut account = Account::default();
    for version in 2..=400 {
        let batch = overwrite(&mut content, 60, 300, 1, &mut rng);
        lab.send(version, Some(version - 1), &batch).unwrap();
        account.defragment(&lab);
    }
    assert!(
        account.frames > LEN as u64,
        "only {} bytes were written again",
        account.frames
    );
    assert!(lab.read(FILE, 400).unwrap() == content);
    let (read, came) = (verified(&lab), account.came(&lab));
    assert!(read < came / 2, "{read} bytes are read of {came}");
}

/// Files of all kinds of changes, whose every version is read back.
#[test]
fn defragmented_contents_read_the_same_in_random_lives() {
    let lives = match std::env::var("BYTEBACK_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..12).collect(),
    };
    let files: u64 = lives.iter().map(|seed| life_of_random_files(*seed)).sum();
    assert!(files as usize > lives.len(), "only {files} files were defragmented");
}

fn life_of_random_files(seed: u64) -> u64 {
    #[allow(clippy::print_stdout, reason = "shown only when the test fails")]
    {
        println!("BYTEBACK_SEED={seed}");
    }
    let mut rng = SplitMix64::new(seed);
    let lab = Lab::new(1 << 20);
    let mut contents: BTreeMap<u128, Vec<u8>> = BTreeMap::new();
    let mut moments: Vec<BTreeMap<u128, Vec<u8>>> = Vec::new();
    lab.send(1, None, &Batch::default().node(ROOT, NodeKind::Directory, 0, None))
        .unwrap();
    moments.push(contents.clone());
    let mut files = 0;
    let mut removed = BTreeSet::new();
    for seq in 2..40 {
        let mut batch = Batch::default();
        let id = u128::from(2 + rng.below(4));
        match contents.get(&id).cloned() {
            None if removed.contains(&id) => {}
            None => {
                let of = contents.keys().next().copied().filter(|_| rng.coin());
                let name = format!("file{id}");
                if let Some(of) = of {
                    let content = contents[&of].clone();
                    batch = batch.following(id, name.as_bytes(), of, content.len() as u64, &[]);
                    contents.insert(id, content);
                } else {
                    let content = noise(rng.next_u64(), 100_000 + rng.below(400_000) as usize);
                    batch = batch.new_file(id, name.as_bytes(), &content);
                    contents.insert(id, content);
                }
            }
            // Its number does not come back.
            Some(_) if rng.below(20) == 0 => {
                batch = batch.entry(ROOT, format!("file{id}").as_bytes(), None);
                contents.remove(&id);
                removed.insert(id);
            }
            Some(mut content) => {
                let deltas = 1 + rng.below(2) as u32;
                let mut streams = Vec::new();
                for _ in 0..deltas {
                    let (stream, new) = match rng.below(3) {
                        0 => delta(&mut rng, &content),
                        _ => pages(&mut rng, &content),
                    };
                    streams.push(stream);
                    content = new;
                }
                batch = batch.file(id, content.len() as u64, deltas, ContentBase::Previous);
                for stream in streams {
                    batch = batch.delta(id, stream);
                }
                contents.insert(id, content);
            }
        }
        lab.send(seq, Some(seq - 1), &batch).unwrap();
        moments.push(contents.clone());
        if rng.coin() {
            files += defragmented(&lab).rows;
            verified(&lab);
        }
    }
    files += defragmented(&lab).rows;
    check_moments(&lab, &moments, files)
}

/// A delta that writes pages here and there.
fn pages(rng: &mut SplitMix64, base: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut new = base.to_vec();
    let options = WriterOptions {
        copies: false,
        compress: rng.coin(),
    };
    let len = base.len() as u64;
    let mut writer = DeltaWriter::new(Vec::new(), len, len, options).unwrap();
    let often = 2 + rng.below(20);
    for at in (0..base.len()).step_by(PAGE) {
        if rng.below(often) != 0 {
            continue;
        }
        let bytes = noise(rng.next_u64(), PAGE.min(base.len() - at));
        let range = ByteRange::from_offset_len(at as u64, bytes.len() as u64).unwrap();
        writer.literal(range, &bytes[..]).unwrap();
        new[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    (writer.finish().unwrap().0, new)
}

fn check_moments(lab: &Lab, moments: &[BTreeMap<u128, Vec<u8>>], files: u64) -> u64 {
    verified(lab);
    for (seq, contents) in (1..).zip(moments) {
        for (id, content) in contents {
            assert!(lab.read(*id, seq).unwrap() == *content, "file {id} at {seq}");
        }
    }
    files
}

#[test]
fn batches_that_come_meanwhile_are_not_lost() {
    const LEN: usize = 1 << 20;
    let lab = Lab::new(64 << 20);
    let mut content = noise(1, LEN);
    lab.first(&[(FILE, &content)]);
    let mut rng = SplitMix64::new(5);
    let store = lab.store.clone();
    let (stop, is_stopped) = std::sync::mpsc::channel::<()>();
    let files = std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let mut files = 0;
            while matches!(is_stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
                files += store.defragment(&|| true).unwrap().rows;
            }
            files
        });
        let mut moments = BTreeMap::new();
        for version in 2..=120 {
            let batch = overwrite(&mut content, 25, PAGE, PAGE, &mut rng);
            lab.send(version, Some(version - 1), &batch).unwrap();
            moments.insert(version, content.clone());
            assert!(lab.read(FILE, version).unwrap() == content, "at {version}");
        }
        for (seq, content) in moments {
            assert!(lab.read(FILE, seq).unwrap() == content, "at {seq}");
        }
        drop(stop);
        worker.join().unwrap()
    });
    assert!(files > 0);
    verified(&lab);
}

/// Plans a fault of what a lab does next.
type Plan = Box<dyn Fn(&Lab)>;

/// A file that is due, on a disk and a catalog that lose their power together.
fn with_due_file(disk: SimDisk) -> (Lab, Vec<Vec<u8>>) {
    let lab = Lab::in_memory(disk, 64 * 1024);
    let mut content = noise(1, 200_000);
    lab.first(&[(FILE, &content)]);
    let mut moments = vec![content.clone()];
    let mut rng = SplitMix64::new(6);
    for version in 2..=4 {
        let batch = overwrite(&mut content, 14, PAGE, PAGE, &mut rng);
        lab.send(version, Some(version - 1), &batch).unwrap();
        moments.push(content.clone());
    }
    (lab, moments)
}

fn check_versions(lab: &Lab, moments: &[Vec<u8>], when: &str) {
    for (seq, content) in (1..).zip(moments) {
        assert!(lab.read(FILE, seq).unwrap() == *content, "{when}: at {seq}");
    }
}

#[test]
fn defragmenting_survives_power_cuts_and_failed_operations() {
    let (trial, moments) = with_due_file(SimDisk::new(1));
    let (ops, syncs, commits) = (
        trial.disk.counters().ops,
        trial.disk.counters().syncs,
        trial.catalog.memory().commits(),
    );
    assert_eq!(defragmented(&trial).rows, 1);
    let ops = trial.disk.counters().ops - ops;
    let syncs = trial.disk.counters().syncs - syncs;
    let commits = trial.catalog.memory().commits() - commits;
    check_versions(&trial, &moments, "without a cut");
    assert!(
        ops > 10 && syncs > 0 && commits > 0,
        "{ops} operations, {syncs} syncs, {commits} commits"
    );

    let end = |lab: &Lab, when: &str| {
        check_versions(lab, &moments, when);
        defragmented(lab);
        check_versions(lab, &moments, when);
        verified(lab);
        assert_eq!(defragmented(lab), Defragmented::default(), "{when}");
    };
    let phases = [CrashPhase::Before, CrashPhase::Middle, CrashPhase::After];
    let mut plans: Vec<(String, Plan)> = Vec::new();
    for nth in 1..=ops {
        plans.push((
            format!("cut at operation {nth}"),
            Box::new(move |lab| {
                lab.disk.crash_at_op(lab.disk.counters().ops + nth);
            }),
        ));
    }
    for nth in 1..=syncs {
        for phase in phases {
            plans.push((
                format!("cut at sync {nth}, {phase:?}"),
                Box::new(move |lab| {
                    lab.disk.crash_at_sync(lab.disk.counters().syncs + nth, phase);
                }),
            ));
        }
    }
    for nth in 1..=commits {
        for phase in [CrashPhase::Before, CrashPhase::After] {
            plans.push((
                format!("cut at commit {nth}, {phase:?}"),
                Box::new(move |lab| {
                    let catalog = lab.catalog.memory();
                    catalog.crash_at_commit(catalog.commits() + nth, phase);
                }),
            ));
        }
    }
    for (when, plan) in plans {
        let (lab, _) = with_due_file(SimDisk::new(1));
        plan(&lab);
        let ended = lab.store.defragment(&|| true);
        assert!(ended.is_err(), "{when}: {ended:?}");
        for seed in 0..3 {
            end(&lab.survivor(lab.disk.recover(seed)), &when);
        }
    }
    for nth in 1..=ops {
        let (lab, _) = with_due_file(SimDisk::new(1));
        lab.disk.fail_op(lab.disk.counters().ops + nth, 5);
        // A failed attempt to give room back is nobody's error.
        let _ = lab.store.defragment(&|| true);
        end(&lab, &format!("operation {nth} fails"));
        let disk = lab.disk.recover(nth);
        end(&lab.survivor(disk), &format!("operation {nth} fails, then a cut"));
    }
}

#[test]
fn a_full_disk_stops_defragmenting_and_nothing_else() {
    let (lab, moments) = with_due_file(SimDisk::new(1));
    lab.disk.set_capacity(10_000);
    for _ in 0..3 {
        let error = lab.store.defragment(&|| true).unwrap_err();
        assert!(matches!(&error, StoreError::Full { .. }), "{error}");
        check_versions(&lab, &moments, "full");
    }
    lab.disk.set_capacity(100_000_000);
    assert_eq!(defragmented(&lab).rows, 1);
    check_versions(&lab, &moments, "with room");
}

#[test]
fn a_damaged_frame_stays_where_it_is_when_others_move() {
    let (lab, moments) = with_due_file(SimDisk::new(1));
    // The frame of the second version, whose pages the newest one needs.
    lab.frames.take();
    lab.read(FILE, 4).unwrap();
    let frames: Vec<_> = lab.frames.take().into_keys().collect();
    let victim = *frames
        .iter()
        .find(|frame| frame.raw_len < 80_000 && frame.raw_len > 20_000)
        .unwrap();
    let file = DurableDir::open(&lab.disk, &format!("{:016x}.seg", victim.segment.0), OpenMode::Existing).unwrap();
    file.write_all_at(victim.offset + FRAME_HEADER_LEN + 5, b"rot").unwrap();
    assert_eq!(defragmented(&lab).rows, 1, "others move");
    assert_eq!(lab.read(FILE, 1).unwrap(), moments[0]);
    assert!(lab.read(FILE, 4).is_err());
    let known = lab.store.known_damage("f", 10).unwrap();
    let known: Vec<_> = known.iter().map(|frame| (frame.segment, frame.offset)).collect();
    assert_eq!(
        known,
        [(victim.segment, victim.offset)],
        "it can be healed from a client"
    );
}

#[test]
fn a_copy_and_its_original_go_on_apart() {
    let lab = Lab::new(64 << 20);
    let mut content = noise(1, 1 << 20);
    lab.first(&[(FILE, &content)]);
    let mut rng = SplitMix64::new(8);
    overwrite_pages(&lab, 2..=4, &mut content, 30, &mut rng);
    let len = content.len() as u64;
    lab.send(5, Some(4), &Batch::default().following(3, b"copy", FILE, len, &[]))
        .unwrap();
    assert_eq!(defragmented(&lab).rows, 1);
    assert!(lab.read(3, 5).unwrap() == content);
    // One more version of each lies over what was written again, or over what was not.
    let mut copied = content.clone();
    copied[5000..5010].copy_from_slice(b"in a copy!");
    lab.send(6, Some(5), &Batch::default().patch(3, len, &[(5000, b"in a copy!")]))
        .unwrap();
    let batch = overwrite(&mut content, 60, PAGE, PAGE, &mut rng);
    lab.send(7, Some(6), &batch).unwrap();
    defragmented(&lab);
    assert!(lab.read(3, 7).unwrap() == copied);
    assert!(lab.read(FILE, 7).unwrap() == content);
    verified(&lab);
}

#[test]
fn files_that_nobody_reads_any_more_are_left_alone() {
    let lab = Lab::new(64 << 20);
    let mut content = noise(1, 1 << 20);
    lab.first(&[(FILE, &content)]);
    let mut rng = SplitMix64::new(9);
    overwrite_pages(&lab, 2..=5, &mut content, 30, &mut rng);
    assert!(
        lab.catalog
            .read()
            .unwrap()
            .next_fragmented(NodeNumber::START)
            .unwrap()
            .is_some()
    );
    lab.send(6, Some(5), &Batch::default().entry(ROOT, b"file2", None))
        .unwrap();
    assert_eq!(defragmented(&lab), Defragmented::default());
    assert!(
        lab.catalog
            .read()
            .unwrap()
            .next_fragmented(NodeNumber::START)
            .unwrap()
            .is_none()
    );
    assert!(lab.read(FILE, 5).unwrap() == content);
}

#[test]
fn file_that_is_replaced_by_each_save_is_read_at_its_length() {
    const LEN: usize = 1 << 20;
    let lab = Lab::new(64 << 20);
    let mut content = noise(1, LEN);
    lab.first(&[(FILE, &content)]);
    let mut rng = SplitMix64::new(10);
    let mut account = Account::default();
    for version in 2..=250 {
        // A new file with the contents of the one before, under its name.
        let (id, before) = (u128::from(version) + 1, u128::from(version));
        let saved = overwrite(&mut content, 3, PAGE, PAGE, &mut rng);
        let batch = Batch::default()
            .file(id, LEN as u64, 1, ContentBase::Of(FileId(before)))
            .entry(ROOT, b"file2", Some(id))
            .delta(id, saved.deltas[0].1.clone());
        lab.send(version, Some(version - 1), &batch).unwrap();
        account.defragment(&lab);
        assert!(lab.read(id, version).unwrap() == content, "at {version}");
    }
    let read = verified(&lab);
    assert!(read * 10 <= 12 * LEN as u64, "{read} bytes are read of {LEN}");
}

#[test]
fn contents_in_too_many_pieces_are_left_alone_and_not_counted() {
    let limits = StoreLimits {
        defragmented_pieces_max: 100,
        ..StoreLimits::default()
    };
    let lab = Lab::with(SimDisk::new(1), 64 << 20, limits);
    let mut content = noise(1, 2 << 20);
    lab.first(&[(FILE, &content)]);
    let mut rng = SplitMix64::new(11);
    let batch = overwrite(&mut content, 200, PAGE, PAGE, &mut rng);
    lab.send(2, Some(1), &batch).unwrap();
    let is_due = || lab.catalog.read().unwrap().next_fragmented(NodeNumber::START).unwrap();
    assert!(is_due().is_some());
    assert_eq!(defragmented(&lab), Defragmented::default());
    // It waits until a twentieth of it came again.
    let batch = overwrite(&mut content, 5, PAGE, PAGE, &mut rng);
    lab.send(3, Some(2), &batch).unwrap();
    assert!(is_due().is_none());
    assert!(lab.read(FILE, 3).unwrap() == content);
}

#[test]
fn what_is_too_much_for_one_row_is_done_in_several() {
    let limits = StoreLimits {
        defragmented_pieces_max: 600,
        ..StoreLimits::default()
    };
    let lab = Lab::with(SimDisk::new(1), 64 << 20, limits);
    let mut content = noise(1, 2 << 20);
    lab.first(&[(FILE, &content)]);
    let mut rng = SplitMix64::new(12);
    overwrite_pages(&lab, 2..=4, &mut content, 60, &mut rng);
    let before = verified(&lab);
    let done = defragmented(&lab);
    assert!(done.rows > 1, "{done:?}");
    let after = verified(&lab);
    assert!(after < before, "{after} bytes are read, {before} before");
    assert!(lab.read(FILE, 4).unwrap() == content);
}

#[test]
fn defragmenting_stops_wherever_it_is_not_wanted_any_more() {
    let (lab, moments) = with_due_file(SimDisk::new(1));
    for asked_max in 0..100 {
        let asked = std::cell::Cell::new(0);
        let is_wanted = || {
            asked.set(asked.get() + 1);
            asked.get() <= asked_max
        };
        let done = lab.store.defragment(&is_wanted).unwrap();
        check_versions(&lab, &moments, "stopped");
        verified(&lab);
        if done.rows > 0 {
            assert!(asked_max > 4, "it asks before each step");
            assert_eq!(defragmented(&lab), Defragmented::default());
            return;
        }
    }
    panic!("it never came to an end");
}

#[test]
fn a_file_with_a_damaged_page_keeps_nobody_from_the_others() {
    let lab = Lab::new(64 << 20);
    let mut contents = [noise(1, 1 << 20), noise(2, 1 << 20)];
    lab.first(&[(2, &contents[0]), (3, &contents[1])]);
    let mut rng = SplitMix64::new(13);
    for version in 2..=4 {
        let mut batch = Batch::default();
        for (id, content) in (2..).zip(&mut contents) {
            let of_file = overwrite(content, 30, PAGE, PAGE, &mut rng);
            batch = batch.file(id, content.len() as u64, 1, ContentBase::Previous);
            batch = batch.delta(id, of_file.deltas[0].1.clone());
        }
        lab.send(version, Some(version - 1), &batch).unwrap();
    }
    let statement = "UPDATE layer_page SET extents = x'00' WHERE layer IN \
                     (SELECT layer.id FROM layer JOIN node ON node.id = layer.node WHERE node.file = ?1)";
    let changed = sql(lab.dir.path()).execute(statement, [2_u128.to_be_bytes().as_slice()]);
    assert!(changed.unwrap() > 0);
    let error = lab.store.defragment(&|| true).unwrap_err();
    assert!(matches!(error, StoreError::CatalogDamaged(_)), "{error}");
    assert!(
        lab.catalog
            .read()
            .unwrap()
            .next_fragmented(NodeNumber::START)
            .unwrap()
            .is_none()
    );
    lab.frames.take();
    assert!(lab.read(3, 4).unwrap() == contents[1]);
    let short = lab
        .frames
        .take()
        .into_keys()
        .filter(|frame| frame.raw_len as usize <= PAGE);
    assert!(short.count() > 10, "the other one was done");
}
