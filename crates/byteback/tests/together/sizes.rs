//! Sparse files much larger than their content, and files that do not fit.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use byteback_host::random::noise;

use crate::machines::{LONG, Lab};

const GIB: u64 = 1 << 30;

/// Most bytes that a file of some MB may cost on a disk and on the wire, with all overhead.
const LITTLE: u64 = 16 << 20;

#[track_caller]
fn until<T>(lab: &Lab, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        if Instant::now() >= deadline {
            let all: Vec<_> = (0..lab.machines.len()).map(|machine| lab.status(machine)).collect();
            panic!(
                "after {LONG:?}, it is still not so that {what}: {all:#?}\n{}",
                lab.logs()
            );
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn holds(path: &Path, at: u64, bytes: &[u8]) -> bool {
    let mut read = vec![0; bytes.len()];
    File::open(path).is_ok_and(|file| file.read_exact_at(&mut read, at).is_ok()) && read == bytes
}

#[test]
fn a_file_of_100_gib_with_little_in_it_is_little_everywhere() {
    let lab = Lab::new(2);
    for machine in 0..2 {
        lab.sync(machine, "0");
    }
    let [one, other] = [0, 1].map(|machine| lab.machines[machine].dir.join("disk.img"));
    let pieces = [0, 37 * GIB + 12_345, 99 * GIB].map(|at| (at, noise(at + 1, 1_000_000)));
    {
        let file = File::create(&one).unwrap();
        file.set_len(100 * GIB).unwrap();
        for (at, bytes) in &pieces {
            file.write_all_at(bytes, *at).unwrap();
        }
    }
    let arrived = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| found.len() == 100 * GIB)
            && pieces.iter().all(|(at, bytes)| holds(path, *at, bytes))
    };
    until(&lab, "it arrives", || arrived(&other).then_some(()));
    let is_little = |path: &Path| assert!(fs::metadata(path).unwrap().blocks() * 512 < LITTLE);
    is_little(&one);
    is_little(&other);
    let sent = until(&lab, "all is sent", || {
        let status = lab.status(0);
        (status["waiting_changes"] == 0 && status["groups_in_flight"] == 0).then_some(status)
    });
    assert!(sent["sent_bytes"].as_u64().unwrap() < LITTLE, "{sent}");

    // The same after both were restarted.
    for machine in 0..2 {
        lab.unmount(machine);
    }
    for machine in 0..2 {
        lab.sync(machine, "0");
    }
    let late = noise(7, 500_000);
    OpenOptions::new()
        .write(true)
        .open(&other)
        .unwrap()
        .write_all_at(&late, 50 * GIB)
        .unwrap();
    until(&lab, "what is written there arrives here", || {
        holds(&one, 50 * GIB, &late).then_some(())
    });
    assert!(arrived(&one) && arrived(&other));
    is_little(&one);
    is_little(&other);
    let names = |machine: usize| fs::read_dir(&lab.machines[machine].dir).unwrap().count();
    assert_eq!((names(0), names(1)), (1, 1), "and nothing is in conflict");
    for machine in 0..2 {
        let sent = lab.status(machine)["sent_bytes"].as_u64().unwrap();
        assert!(sent < LITTLE, "machine {machine} sent {sent} bytes");
        lab.unmount(machine);
    }
}

#[test]
fn what_does_not_fit_is_told_and_arrives_when_there_is_room() {
    let lab = Lab::with_a_small_disk(2, Some((1, 64)));
    for machine in 0..2 {
        lab.sync(machine, "0");
    }
    fs::write(lab.machines[0].dir.join("before"), "fits").unwrap();
    lab.wait_until_equal();
    // Another program uses up the disk that the folder is on.
    let filler = lab.machines[1].disk.join("filler");
    fs::write(&filler, vec![1; 30 << 20]).unwrap();
    let large = noise(3, 40 << 20);
    fs::write(lab.machines[0].dir.join("large"), &large).unwrap();
    let status = until(&lab, "it is told that it does not fit", || {
        let status = lab.status(1);
        status["problem"].is_string().then_some(status)
    });
    println!("{status}");
    let problem = status["problem"].as_str().unwrap();
    assert!(
        problem.contains("No space left") || problem.contains("space"),
        "{status}"
    );
    lab.on(1, "status", &[]).reports_health().says("space");
    // Existing files are not harmed.
    assert_eq!(fs::read_to_string(lab.machines[1].dir.join("before")).unwrap(), "fits");
    fs::write(lab.machines[0].dir.join("meanwhile"), "on the other one").unwrap();

    fs::remove_file(&filler).unwrap();
    let tree = lab.wait_until_equal();
    assert_eq!(*tree[Path::new("large")].content, large);
    let names: Vec<_> = tree.keys().map(|path| path.display().to_string()).collect();
    assert_eq!(names, ["", "before", "large", "meanwhile"]);
    for machine in 0..2 {
        lab.unmount(machine);
    }
}
