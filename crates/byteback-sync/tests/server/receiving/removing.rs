//! Removing many files at once.

use super::{Machine, assert_same, settle};
use byteback_daemon::LiveOptions;
use byteback_queue::ClientId;
use byteback_testkit::clients::impatient;
use byteback_testkit::mounted::Mounted;
use byteback_testkit::proxy::hearing;
use byteback_testkit::rig::Rig;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than a removed file may come back as a new one.
const RELATED: Duration = Duration::from_millis(50);

/// Mounts a machine that sends at once, as much together as usual.
fn mount(machine: &mut Machine) {
    let mut options = LiveOptions::new(ClientId(7));
    options.queue.delay_ns = 0;
    options.queue.delay_max_ns = 0;
    options.relations.timeout_ns = RELATED.as_nanos() as u64;
    options.relations.free_bytes_min = 0;
    options.mark_every = Duration::from_millis(20);
    machine.mounted = Some(Mounted::new(&machine.place, options));
}

#[test]
fn removal_of_many_files_arrives_with_few_requests() {
    const DIRS: usize = 6;
    const FILES: usize = 600;
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&requests);
    let hear = move |head: &str, _: &[u8]| {
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = path.split('?').next().unwrap_or_default();
        // A listener asks again whenever there was no news for a while.
        if !path.ends_with("/events") {
            heard.lock().unwrap().push(format!("{method} {path}"));
        }
        None
    };
    let rig = Rig::through(162, impatient(), |to, _| hearing(to, hear));
    let mut one = Machine::new(&rig, "one");
    for number in 0..FILES {
        let dir = one.path(&format!("all/dir{}", number % DIRS));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("file{number}")), number.to_string()).unwrap();
    }
    mount(&mut one);
    one.begin();
    settle(&rig, &[&one], "one");
    let mut two = Machine::new(&rig, "two");
    mount(&mut two);
    two.begin();
    settle(&rig, &[&one, &two], "two has joined");
    assert_same(&[&one, &two], "two has joined");
    // All of it waits when the first of it is sent, however fast it is removed.
    one.stop();
    fs::remove_dir_all(one.path("all")).unwrap();
    std::thread::sleep(2 * RELATED);
    requests.lock().unwrap().clear();
    one.begin();
    settle(&rig, &[&one, &two], "removed");
    let asked = std::mem::take(&mut *requests.lock().unwrap());
    assert!(!two.path("all").exists());
    assert_same(&[&one, &two], "removed");
    assert!((1..=40).contains(&asked.len()), "{} requests: {asked:#?}", asked.len());
    one.end();
    two.end();
}
