//! Whole numbers for people who wait: how much there is to do is told once, and what is done reaches it.

use super::rig::{Rig, Told};
use crate::{Event, Phase, RestoreOptions, SnapshotSpec, VerifyOptions, verify};
use byteback_api::NodeKind;
use byteback_host::random::{SplitMix64, noise};
use byteback_oplog::NodeId;
use std::sync::Mutex;

/// What was told of one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Course {
    totals: Vec<(u64, u64)>,
    done_files: u64,
    done_bytes: u64,
}

/// Adds up events, by phase; totals that come before a phase are that phase's.
#[derive(Default)]
struct Courses {
    ended: Vec<(Phase, Course)>,
    current: Option<Phase>,
    course: Course,
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
    }

    fn of(mut self, phase: Phase) -> Course {
        if let Some(current) = self.current {
            self.ended.push((current, self.course));
        }
        let found = self.ended.into_iter().find(|(of, _)| *of == phase);
        found.map(|(_, course)| course).unwrap()
    }
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
            let told = Told::new(|event, _| courses.lock().unwrap().hear(event));
            let options = RestoreOptions {
                overwrite,
                ..RestoreOptions::default()
            };
            rig.restore(SnapshotSpec::default(), &target, &options, &told).unwrap();
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
        &crate::Silent,
    )
    .unwrap();
    let courses = Mutex::new(Courses::default());
    {
        let told = Told::new(|event, _| courses.lock().unwrap().hear(event));
        let options = VerifyOptions {
            deep: Some(&folder),
            here: None,
        };
        let report = verify(&rig.client, &rig.folder, SnapshotSpec::default(), &options, &told).unwrap();
        let told_files = report.files;
        drop(told);
        let courses = std::mem::take(&mut *courses.lock().unwrap());
        let stored = Courses {
            ended: courses.ended.clone(),
            ..Courses::default()
        }
        .of(Phase::Verifying);
        assert_eq!(stored.done_files, told_files);
        // It is told before the phase begins.
        let before = Courses {
            ended: courses.ended.clone(),
            ..Courses::default()
        }
        .of(Phase::Preparing);
        assert_eq!(before.totals, [(told_files, 0)]);
        let compared = courses.of(Phase::Comparing);
        let [(_, bytes)] = compared.totals[..] else {
            panic!("{:?}", compared.totals)
        };
        assert!(compared.done_bytes <= bytes, "{compared:?}");
    }
}
