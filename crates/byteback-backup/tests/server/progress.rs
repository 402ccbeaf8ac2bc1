//! Progress for people who wait: the total is reported once, and the work done reaches it.

use byteback_backup::{Event, Monitor, Phase, RestoreOptions, Silent, SnapshotSpec, VerifyOptions, verify};
use byteback_daemon::{Service, StateFolder, TrackedTree};
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{NodeId, NodeKind};
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::mounted::{Mounted, Place, live_options};
use byteback_testkit::rig::Rig;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The reports of one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct EventTotals {
    totals: Vec<(u64, u64)>,
    done_files: u64,
    done_bytes: u64,
    /// Whether work was done before a total of the phase was reported.
    is_ahead: bool,
}

impl EventTotals {
    fn done(&self) -> (u64, u64) {
        (self.done_files, self.done_bytes)
    }
}

/// Adds up events, by phase; totals that come before a phase are that phase's.
#[derive(Default)]
struct Courses {
    ended: Vec<(Phase, EventTotals)>,
    current: Option<Phase>,
    course: EventTotals,
}

impl Courses {
    fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Phase(phase) => {
                if let Some(before) = self.current.replace(*phase) {
                    let course = std::mem::take(&mut self.course);
                    self.ended.push((before, course));
                }
            }
            Event::Totals { files, bytes } => self.course.totals.push((*files, *bytes)),
            Event::BytesRead(bytes) | Event::BytesSkipped(bytes) => self.course.done_bytes += bytes,
            Event::FileDone { .. } => self.course.done_files += 1,
            _ => {}
        }
        let course = &mut self.course;
        course.is_ahead |= course.totals.is_empty() && course.done() != (0, 0);
    }

    /// All phases, in their order.
    fn all(mut self) -> Vec<(Phase, EventTotals)> {
        if let Some(current) = self.current {
            self.ended.push((current, self.course));
        }
        self.ended
    }

    fn of(mut self, phase: Phase) -> EventTotals {
        if let Some(current) = self.current {
            self.ended.push((current, self.course));
        }
        let found = self.ended.into_iter().find(|(of, _)| *of == phase);
        found.map(|(_, course)| course).unwrap()
    }
}

/// The course of an operation, phase by phase.
fn heard(operation: impl FnOnce(&dyn Monitor)) -> Vec<(Phase, EventTotals)> {
    let courses = Mutex::new(Courses::default());
    operation(&RecordingMonitor::new(|event, _| courses.lock().unwrap().hear(event)));
    courses.into_inner().unwrap().all()
}

/// The one phase of this kind.
fn one(courses: &[(Phase, EventTotals)], phase: Phase) -> &EventTotals {
    let mut found = courses.iter().filter(|(of, _)| *of == phase);
    let (_, course) = found.next().unwrap();
    assert!(found.next().is_none(), "{courses:?}");
    course
}

/// The total of a backup, which was reported once, before anything was sent, and reached.
fn reached_by_backup(courses: &[(Phase, EventTotals)]) -> (u64, u64) {
    let sent = one(courses, Phase::Transferring);
    let [total] = one(courses, Phase::Cutting).totals[..] else {
        panic!("{courses:?}")
    };
    for (phase, course) in courses {
        assert!(*phase == Phase::Cutting || course.totals.is_empty(), "{courses:?}");
        assert!(*phase == Phase::Transferring || course.done() == (0, 0), "{courses:?}");
    }
    let at = |wanted: Phase| courses.iter().position(|(phase, _)| *phase == wanted);
    assert!(at(Phase::Cutting) < at(Phase::Transferring), "{courses:?}");
    assert_eq!(sent.done(), total);
    total
}

/// The total of a comparison, which was reported once, before anything was compared, and reached.
fn reached_by_comparison(rig: &Rig, folder: &Path) -> (u64, u64) {
    let courses = heard(|monitor| {
        let options = VerifyOptions {
            deep: Some(folder),
            here: None,
        };
        let report = verify(&rig.client, &rig.folder, SnapshotSpec::default(), &options, monitor).unwrap();
        assert!(report.is_clean(), "{:?}", report.differences);
    });
    let compared = one(&courses, Phase::Comparing);
    let [total] = compared.totals[..] else {
        panic!("{courses:?}")
    };
    assert!(!compared.is_ahead, "{courses:?}");
    assert_eq!(compared.done(), total);
    total
}

/// A tree without holes and hard links: 34 nodes, 32 of which are no directories, with 465,000
/// bytes.
fn dense() -> Rig {
    let rig = Rig::new(62);
    {
        let mut state = rig.tree.lock();
        let dir = state.create(NodeId::ROOT, b"deep", NodeKind::Directory);
        for number in 1..=30u64 {
            let file = state.create(dir, format!("file{number}").as_bytes(), NodeKind::File);
            state.write(file, 0, &noise(number, 1000 * number as usize));
        }
        state.create(dir, b"empty", NodeKind::File);
        state.create(NodeId::ROOT, b"symlink", NodeKind::Symlink);
    }
    rig
}

/// The newest snapshot, as a folder.
fn restored(rig: &Rig) -> PathBuf {
    let folder = rig.temp.path().join("folder");
    let options = RestoreOptions::default();
    rig.restore(SnapshotSpec::default(), &folder, &options, &Silent)
        .unwrap();
    folder
}

/// A tree with a hard link, a sparse file, an empty one and random ones, saved.
fn saved() -> Rig {
    let rig = Rig::new(61);
    rig.change(&mut SplitMix64::new(61), 60);
    {
        let mut state = rig.tree.lock();
        let dir = state.create(NodeId::ROOT, b"deep", NodeKind::Directory);
        let sparse = state.create(dir, b"sparse", NodeKind::File);
        state.truncate(sparse, 5_000_000);
        state.write(sparse, 3_000_000, &noise(7, 100_000));
        let twice = state.create(dir, b"twice", NodeKind::File);
        state.write(twice, 0, &noise(8, 70_000));
        state.link(twice, NodeId::ROOT, b"the same");
        state.create(dir, b"empty", NodeKind::File);
    }
    rig.backup().unwrap();
    rig
}

#[test]
fn a_restore_reaches_the_total_that_it_told() {
    let rig = saved();
    let target = rig.temp.path().join("target");
    for overwrite in [false, true] {
        let courses = Mutex::new(Courses::default());
        {
            let reported = RecordingMonitor::new(|event, _| courses.lock().unwrap().hear(event));
            let options = RestoreOptions {
                overwrite,
                ..RestoreOptions::default()
            };
            rig.restore(SnapshotSpec::default(), &target, &options, &reported)
                .unwrap();
        }
        let courses = courses.into_inner().unwrap();
        // The total comes while files are restored, maybe when the last of them is done.
        let totals: Vec<(u64, u64)> = courses
            .ended
            .iter()
            .map(|(_, course)| course)
            .chain([&courses.course])
            .flat_map(|course| course.totals.clone())
            .collect();
        let [(_, bytes)] = totals[..] else { panic!("{totals:?}") };
        let course = courses.of(Phase::Restoring);
        assert_eq!(course.done_bytes, bytes, "overwrite: {overwrite}");
        assert!(bytes >= 5_070_000, "holes count");
    }
}

#[test]
fn a_verification_reaches_the_total_that_it_told() {
    let rig = saved();
    let folder = rig.temp.path().join("folder");
    rig.restore(
        SnapshotSpec::default(),
        &folder,
        &RestoreOptions::default(),
        &byteback_backup::Silent,
    )
    .unwrap();
    let courses = Mutex::new(Courses::default());
    {
        let reported = RecordingMonitor::new(|event, _| courses.lock().unwrap().hear(event));
        let options = VerifyOptions {
            deep: Some(&folder),
            here: None,
        };
        let report = verify(&rig.client, &rig.folder, SnapshotSpec::default(), &options, &reported).unwrap();
        let reported_files = report.files;
        drop(reported);
        let courses = std::mem::take(&mut *courses.lock().unwrap());
        let stored = Courses {
            ended: courses.ended.clone(),
            ..Courses::default()
        }
        .of(Phase::Verifying);
        assert_eq!(stored.done_files, reported_files);
        // The total is reported before the phase begins.
        let before = Courses {
            ended: courses.ended.clone(),
            ..Courses::default()
        }
        .of(Phase::Preparing);
        assert_eq!(before.totals, [(reported_files, 0)]);
        let compared = courses.of(Phase::Comparing);
        let [(_, bytes)] = compared.totals[..] else {
            panic!("{:?}", compared.totals)
        };
        assert!(compared.done_bytes <= bytes, "{compared:?}");
    }
}

#[test]
fn a_backup_reaches_the_total_that_it_told() {
    let rig = dense();
    let courses = heard(|monitor| {
        rig.backup_with_monitor(monitor).unwrap();
    });
    assert_eq!(reached_by_backup(&courses), (34, 465_000));
}

/// With a real log: changes known as ranges.
#[test]
fn a_backup_of_changes_reaches_the_total_that_it_told() {
    let rig = Rig::new(63);
    let place = Place::of(&rig, "here");
    let path = place.tree().join("image");
    fs::write(&path, noise(1, 300_000)).unwrap();
    fs::write(place.tree().join("other"), noise(2, 50_000)).unwrap();
    let mounted = Mounted::new(&place, live_options(&mut SplitMix64::new(1)));
    let backup = |monitor: &dyn Monitor| {
        byteback_backup::backup(&*mounted.tree, &rig.client, &rig.folder, &rig.options, monitor).unwrap();
    };
    backup(&Silent);
    let image = File::options().write(true).open(&path).unwrap();
    image.write_all_at(&noise(3, 10_000), 50_000).unwrap();
    image.write_all_at(&noise(4, 5000), 200_000).unwrap();
    drop(image);
    let courses = heard(backup);
    let (files, bytes) = reached_by_backup(&courses);
    assert!(files >= 1 && (15_000..100_000).contains(&bytes), "{files}, {bytes}");
    mounted.end();
}

#[test]
fn holes_count_in_what_a_backup_has_done() {
    let rig = Rig::new(64);
    {
        let mut state = rig.tree.lock();
        let sparse = state.create(NodeId::ROOT, b"sparse", NodeKind::File);
        state.truncate(sparse, 5_000_000);
        state.write(sparse, 3_000_000, &noise(7, 100_000));
    }
    let courses = heard(|monitor| {
        rig.backup_with_monitor(monitor).unwrap();
    });
    assert_eq!(reached_by_backup(&courses), (2, 5_000_000));
}

/// With a real log, which knows of new files only that they are new.
#[test]
fn new_files_count_in_the_total_of_a_backup() {
    let rig = Rig::new(65);
    let dir = rig.temp.path().join("tree");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), noise(1, 300_000)).unwrap();
    let state = StateFolder::of(&dir, &rig.temp.path().join("state")).unwrap();
    let service = Service::unmounted(Arc::new(TrackedTree::open(state, &mut |_| {}).unwrap()));
    let courses = heard(|monitor| {
        byteback_backup::backup(&service, &rig.client, &rig.folder, &rig.options, monitor).unwrap();
    });
    assert_eq!(reached_by_backup(&courses), (2, 300_000));
}

#[test]
fn a_deep_verification_reaches_the_total_that_it_told() {
    let rig = dense();
    rig.backup().unwrap();
    let folder = restored(&rig);
    assert_eq!(reached_by_comparison(&rig, &folder), (32, 465_000));
}

#[test]
fn holes_and_links_count_in_what_a_deep_verification_has_done() {
    let rig = saved();
    let folder = restored(&rig);
    let (_, bytes) = reached_by_comparison(&rig, &folder);
    assert!(bytes >= 5_070_000, "holes count");
}
