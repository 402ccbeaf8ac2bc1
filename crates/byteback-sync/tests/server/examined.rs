//! Groups of much new content: they are taken from a cut and examined, so that the server stores
//! only what it lacks; and many files that are written again are few groups.

use super::engine::{Sending, assert_server_has, is_settled, parts, rig, stop, wait_until};
use byteback_client::{ClientOptions, ServerClient};
use byteback_host::random::SplitMix64;
use byteback_sync::engine::{Engine, EngineParts};
use byteback_testkit::clients::impatient;
use byteback_testkit::mounted::{Mounted, Place, live_options};
use byteback_testkit::rig::Rig;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// Over a faster link, bytes may cost less than a search for them.
const LINK_BYTES_PER_S: u64 = 500_000;

const DISK_IMAGE_LEN_BYTES: usize = 1 << 20;

fn started(place: &Place, mounted: &Mounted) -> Sending {
    let (live, tree) = (Arc::clone(&mounted.live), Arc::clone(&mounted.tree));
    let parts = parts(place, live, tree, Arc::clone(&mounted.landing));
    let asked = parts.stop.clone();
    let client = ClientOptions {
        bytes_per_second_max: Some(LINK_BYTES_PER_S),
        is_cancelled: Arc::new(move || asked.is_raised()),
        ..impatient()
    };
    let mut engine = Engine::open(EngineParts {
        server: Arc::new(ServerClient::new(&place.url, &place.token, client).unwrap()),
        ..parts
    })
    .unwrap();
    (engine.handle(), std::thread::spawn(move || engine.run()))
}

/// A mount whose changes are sent shortly after the last one.
struct Synced {
    rig: Rig,
    place: Place,
    mounted: Mounted,
    sending: Sending,
}

impl Synced {
    fn begun(seed: u64, quiet_for: Duration) -> Self {
        let rig = rig(seed);
        let place = Place::of(&rig, "here");
        let mut options = live_options(&mut SplitMix64::new(1));
        options.queue = byteback_queue::queue::QueueOptions {
            delay_ns: quiet_for.as_nanos() as u64,
            delay_max_ns: 60_000_000_000,
            ..Default::default()
        };
        options.mark_every = Duration::from_secs(600);
        let mounted = Mounted::new(&place, options);
        let sending = started(&place, &mounted);
        Self {
            rig,
            place,
            mounted,
            sending,
        }
    }

    fn settle(&self, what: &str) {
        let handle = &self.sending.0;
        // A change that was just made is in the queue: the call returned behind the gate.
        wait_until(what, handle, is_settled);
    }

    /// Bytes that the server stores for a change.
    fn stored_by(&self, what: &str, change: impl FnOnce()) -> u64 {
        let stored = || self.rig.client.folder(&self.rig.folder).unwrap().stored_bytes;
        let before = stored();
        change();
        self.settle(what);
        stored() - before
    }

    fn end(self) {
        assert_server_has(&self.rig, &self.rig.folder, &self.place.tree(), "at the end");
        self.stop();
    }

    fn stop(self) {
        stop(self.sending);
        self.mounted.end();
    }
}

/// Overwritten bytes are kept, so that half of the new ones are found there; the rest is a copy of
/// something else in the image, at an odd distance.
#[test]
fn copies_within_a_long_delta_are_found_in_sync() {
    let synced = Synced::begun(193, Duration::from_millis(50));
    let path = synced.place.tree().join("disk image");
    let mut image = SplitMix64::new(194).bytes(4 * DISK_IMAGE_LEN_BYTES);
    synced.stored_by("the first", || fs::write(&path, &image).unwrap());
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // In the page cache, so that the old bytes are kept.
    let mut whole = vec![0; image.len()];
    file.read_exact_at(&mut whole, 0).unwrap();
    let at = 256 * 1024;
    let mut new = image[at + 50..][..100_000].to_vec();
    new.extend_from_slice(&image[2_000_123..][..100_000]);
    let stored = synced.stored_by("a delta", || file.write_all_at(&new, at as u64).unwrap());
    image[at..][..new.len()].copy_from_slice(&new);
    assert!(stored < 32 * 1024, "{stored} bytes are stored for bytes that moved");
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), image);
    synced.end();
}

#[test]
fn content_that_the_server_has_is_found_in_sync() {
    let synced = Synced::begun(191, Duration::from_millis(50));
    let path = synced.place.tree().join("disk image");
    let mut image = SplitMix64::new(192).bytes(DISK_IMAGE_LEN_BYTES);
    let first = synced.stored_by("the first", || fs::write(&path, &image).unwrap());
    assert!(first >= DISK_IMAGE_LEN_BYTES as u64, "nothing is known at first");

    // A file in the image is saved to other blocks: in place, and not as one save.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let moved = image[64 * 1024..256 * 1024].to_vec();
    let stored = synced.stored_by("blocks that moved", || file.write_all_at(&moved, 700 * 1024).unwrap());
    image[700 * 1024..][..moved.len()].copy_from_slice(&moved);
    assert!(stored < 16 * 1024, "{stored} bytes are stored for blocks that moved");
    drop(file);

    // The kernel asks the mount for the copy, so the log knows where it comes from.
    let copy = synced.place.tree().join("copy");
    let stored = synced.stored_by("a copy", || {
        fs::copy(&path, &copy).unwrap();
    });
    assert_eq!(fs::read(&copy).unwrap(), image);
    assert!(stored < 16 * 1024, "{stored} bytes are stored for a copy");

    // A program that copies by reading and writing says nothing of it; nor does a file that comes
    // from outside.
    let stored = synced.stored_by("a copy by hand", || {
        fs::write(synced.place.tree().join("copy by hand"), &image).unwrap();
    });
    assert!(stored < 4 * 1024, "{stored} bytes are stored for a copy by hand");
    let outside = synced.place.base.join("outside");
    fs::copy(&copy, &outside).unwrap();
    fs::remove_file(&copy).unwrap();
    synced.settle("the copy is gone");
    let stored = synced.stored_by("what comes from outside", || {
        fs::copy(&outside, synced.place.tree().join("moved in")).unwrap();
    });
    assert!(
        stored < 4 * 1024,
        "{stored} bytes are stored for what comes from outside"
    );

    // A mail is taken out of a mailbox: the rest moves forward, and is written in place.
    let _ = image.splice(300 * 1024..301 * 1024, []);
    let stored = synced.stored_by("a part that is gone", || {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&image[300 * 1024..], 300 * 1024).unwrap();
        file.set_len(image.len() as u64).unwrap();
    });
    assert!(stored < 32 * 1024, "{stored} bytes are stored for what is gone");
    synced.end();
}

#[test]
fn saves_by_rename_are_compared_with_the_save_before() {
    let synced = Synced::begun(195, Duration::from_millis(300));
    let mut random = SplitMix64::new(196);
    let path = synced.place.tree().join("document");
    let mut document = random.bytes(300_000);
    synced.stored_by("the first", || fs::write(&path, &document).unwrap());
    for save in 0..3 {
        // The log's mark stays behind, so that the name stood for another file there.
        document.splice(save * 90_000..save * 90_000, random.bytes(100));
        let temporary = synced.place.tree().join("document.tmp");
        let stored = synced.stored_by("a save", || {
            fs::write(&temporary, &document).unwrap();
            fs::rename(&temporary, &path).unwrap();
            synced.mounted.live.fold();
        });
        assert!(stored < 16 * 1024, "save {save} stores {stored} bytes");
    }
    synced.end();
}

#[test]
fn ignored_content_of_any_length_leads_to_no_cut() {
    let synced = Synced::begun(197, Duration::from_millis(50));
    let tree = synced.place.tree();
    let mut random = SplitMix64::new(198);
    synced.stored_by("the rules", || {
        fs::write(tree.join(".bytebackignore"), "build/\n").unwrap();
        fs::write(tree.join("kept"), random.bytes(1 << 20)).unwrap();
        fs::create_dir(tree.join("build")).unwrap();
    });
    let epoch = || synced.mounted.tree.status().unwrap().epoch;
    let before = epoch();
    for number in 0..3 {
        let stored = synced.stored_by("ignored files", || {
            fs::write(tree.join(format!("build/{number}")), random.bytes(300_000)).unwrap();
        });
        assert_eq!((stored, epoch()), (0, before), "file {number}");
    }
    // Beside them, content that the server has is found still.
    let stored = synced.stored_by("content that is there", || {
        fs::write(tree.join("build/more"), random.bytes(300_000)).unwrap();
        fs::copy(tree.join("kept"), tree.join("copy")).unwrap();
    });
    assert!(stored < 16 * 1024, "{stored} bytes are stored for a copy");
    synced.stop();
}

#[test]
fn files_that_are_extracted_again_are_few_groups() {
    const FILES: u64 = 100;
    let delay = Duration::from_millis(500);
    let mut synced = Synced::begun(193, delay);
    let mut random = SplitMix64::new(194);
    let contents: Vec<Vec<u8>> = (0..FILES).map(|_| random.bytes(4096)).collect();
    let tree = synced.place.tree();
    let extract = || {
        for (number, content) in contents.iter().enumerate() {
            let path = tree.join(format!("file {number}"));
            let _ = fs::remove_file(&path);
            fs::write(path, content).unwrap();
        }
    };
    synced.stored_by("the first", extract);
    // Nothing is sent meanwhile, so that all of them are due at once however long it takes.
    stop(synced.sending);
    extract();
    std::thread::sleep(delay * 2);
    synced.sending = started(&synced.place, &synced.mounted);
    let stored = synced.stored_by("the second", || ());
    let groups = synced.sending.0.status().sent_groups;
    assert!((1..FILES / 4).contains(&groups), "{groups} groups for {FILES} files");
    assert!(
        stored < 4096 * FILES / 4,
        "{stored} bytes are stored of files that are equal"
    );
    synced.end();
}
