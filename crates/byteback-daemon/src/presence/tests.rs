use std::fs;

use super::*;
use crate::tree::TrackedTree;
use byteback_oplog::LogOptions;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(place.tree()).unwrap();
        for number in 0..20 {
            fs::write(place.tree().join(number.to_string()), [number]).unwrap();
        }
        place
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn folder(&self) -> StateFolder {
        StateFolder::of(&self.tree(), &self.dir.path().join("state")).unwrap()
    }

    fn open(&self, on_doubt: OnDoubt) -> Result<TrackedTree, DaemonError> {
        TrackedTree::open_to_mount(self.folder(), LogOptions::default(), None, on_doubt, &mut |_| {})
    }

    /// Puts the folder in sync from now on.
    fn in_sync(&self) {
        let tree = self.open(REFUSE).unwrap();
        tree.log().cut(byteback_control::SYNC_CONSUMER, || {}).unwrap();
    }

    /// Puts the folder away, with something else at its path.
    fn put_away(&self) {
        fs::rename(self.tree(), self.dir.path().join("away")).unwrap();
        fs::create_dir(self.tree()).unwrap();
    }

    fn put_back(&self) {
        fs::remove_dir_all(self.tree()).unwrap();
        fs::rename(self.dir.path().join("away"), self.tree()).unwrap();
    }
}

const REFUSE: OnDoubt = OnDoubt::Refuse {
    gone_percent_max: OnDoubt::GONE_PERCENT_MAX,
};

fn held(opened: Result<TrackedTree, DaemonError>) -> HeldBack {
    match opened {
        Err(DaemonError::HeldBack { held, .. }) => held,
        other => panic!(
            "it is not held back: {:?}",
            other.map(|_| ()).map_err(|error| error.to_string())
        ),
    }
}

#[test]
fn folder_that_is_another_directory_is_not_opened() {
    let place = Place::new();
    place.in_sync();
    place.put_away();
    for _ in 0..2 {
        let held = held(place.open(REFUSE));
        assert!(matches!(
            held.doubt,
            Doubt::OtherDirectory {
                is_other_file_system: false
            }
        ));
        assert!(!held.is_recorded);
        assert_eq!(
            held_back(&place.folder()).unwrap().map(|held| held.doubt),
            Some(held.doubt)
        );
    }
    // Nothing was noted of the other one: the right one is as it was.
    place.put_back();
    let opened = place.open(REFUSE).unwrap();
    assert_eq!((opened.doubt(), opened.scan_report().changed_names), (None, 0));
    assert_eq!(held_back(&place.folder()).unwrap(), None);
}

#[test]
fn folder_that_lost_most_files_is_not_opened_until_accepted() {
    let place = Place::new();
    place.in_sync();
    for number in 0..11 {
        fs::remove_file(place.tree().join(number.to_string())).unwrap();
    }
    let found = held(place.open(REFUSE));
    assert_eq!(found.doubt, Doubt::FilesGone { known: 20, gone: 11 });
    // A caller that allows more is not asked to decide.
    let lenient = OnDoubt::Refuse { gone_percent_max: 60 };
    assert_eq!(place.open(lenient).unwrap().scan_report().changed_names, 11);

    let place = Place::new();
    place.in_sync();
    fs::remove_dir_all(place.tree()).unwrap();
    fs::create_dir(place.tree()).unwrap();
    held(place.open(REFUSE));
    drop(place.open(OnDoubt::Accept).unwrap());
    // It is the folder from now on.
    assert_eq!(place.open(REFUSE).unwrap().doubt(), None);
    assert_eq!(held_back(&place.folder()).unwrap(), None);
}

/// A backup of an empty mount point makes a record of emptiness; the return of the disk does not
/// undo it.
#[test]
fn folder_that_was_recorded_in_doubt_stays_held_back() {
    let place = Place::new();
    place.in_sync();
    place.put_away();
    let opened = place.open(OnDoubt::Note).unwrap();
    assert!(opened.doubt().is_some() && opened.scan_report().changed_names > 0);
    drop(opened);
    place.put_back();
    assert!(held(place.open(REFUSE)).is_recorded);
    drop(place.open(OnDoubt::Note).unwrap());
    assert!(held(place.open(REFUSE)).is_recorded);
    drop(place.open(OnDoubt::Accept).unwrap());
    drop(place.open(REFUSE).unwrap());
}

#[test]
fn folder_that_is_not_in_sync_is_doubted_once() {
    let place = Place::new();
    drop(place.open(OnDoubt::Note).unwrap());
    place.put_away();
    assert!(place.open(OnDoubt::Note).unwrap().doubt().is_some());
    assert_eq!(place.open(OnDoubt::Note).unwrap().doubt(), None);
}

#[test]
fn mark_of_another_file_system_differs_whatever_its_numbers() {
    let mark = |file_system: Option<&str>| Mark {
        inode: 256,
        birth_ns: Some(7),
        file_system: file_system.map(str::to_owned),
    };
    let one = mark(Some("11-5"));
    assert_eq!(one.doubt(&one), None);
    assert_eq!(one.doubt(&mark(None)), None);
    let doubt = one.doubt(&mark(Some("11-6")));
    assert_eq!(
        doubt,
        Some(Doubt::OtherDirectory {
            is_other_file_system: true
        })
    );
}

#[test]
fn mark_that_is_damaged_is_not_taken_for_none() {
    let place = Place::new();
    drop(place.open(REFUSE).unwrap());
    let path = place.folder().path().join(MARK.name);
    let bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        if let Ok(opened) = place.open(REFUSE) {
            // White space, or a digit that means the same.
            assert_eq!(opened.doubt(), None, "byte {at}");
        }
    }
    fs::write(&path, b"").unwrap();
    let error = place.open(REFUSE).err().unwrap();
    assert!(error.to_string().contains("mark.json"), "{error}");
}
