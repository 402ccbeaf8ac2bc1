use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use super::*;

/// Two folders with the same content, times included.
fn twins(make: impl Fn(&Path)) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let work = tempfile::tempdir().unwrap();
    let (one, other) = (work.path().join("one"), work.path().join("other"));
    for path in [&one, &other] {
        fs::create_dir(path).unwrap();
        make(path);
        set_times(path);
    }
    (work, one, other)
}

/// The same modification time for all nodes but symlinks.
fn set_times(path: &Path) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap();
            if !entry.file_type().unwrap().is_symlink() {
                set_times(&entry.path());
            }
        }
    }
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    File::open(path).unwrap().set_modified(time).unwrap();
}

fn make(path: &Path) {
    fs::create_dir(path.join("folder")).unwrap();
    fs::write(path.join("folder/file"), vec![7; 3 * BLOCK_BYTES]).unwrap();
    fs::hard_link(path.join("folder/file"), path.join("link")).unwrap();
    fs::write(path.join("empty"), b"").unwrap();
}

/// The differences reported after `change` was applied to the second of two equal trees.
fn told(change: impl Fn(&Path)) -> String {
    let (_work, one, other) = twins(make);
    assert!(compare(&one, &other, |_| ()).unwrap().is_equal(), "twins are equal");
    change(&other);
    let comparison = compare(&one, &other, |_| ()).unwrap();
    assert_eq!(comparison.is_equal(), comparison.told.is_empty());
    comparison.told.join("\n")
}

#[test]
fn equal_trees_are_equal_and_counted() {
    let (_work, one, other) = twins(make);
    let mut bytes = 0;
    let comparison = compare(&one, &other, |more| bytes += more).unwrap();
    assert!(comparison.is_equal(), "{:?}", comparison.told);
    // The root, the folder, the file under both names (read once), the empty file.
    assert_eq!((comparison.names, comparison.bytes, bytes), (5, 3 << 20, 3 << 20));
}

#[test]
fn each_kind_of_difference_is_found() {
    let keep_time = |path: &Path, change: &dyn Fn()| {
        let time = fs::metadata(path).unwrap().modified().unwrap();
        change();
        File::open(path).unwrap().set_modified(time).unwrap();
    };
    let flipped = told(|root| {
        let path = root.join("folder/file");
        keep_time(&path, &|| {
            let mut bytes = fs::read(&path).unwrap();
            bytes[BLOCK_BYTES + 5] ^= 1;
            fs::write(&path, bytes).unwrap();
        });
    });
    assert_eq!(flipped, "folder/file: contents differ from byte 1048581 onwards");
    let mode = told(|root| fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o600)).unwrap());
    assert!(mode.contains("empty: type and mode is \"100600\""), "{mode}");
    let time = told(|root| {
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_788);
        File::open(root).unwrap().set_modified(time).unwrap();
    });
    assert!(time.contains(".: modification time"), "{time}");
    let missing = told(|root| keep_time(root, &|| fs::remove_file(root.join("empty")).unwrap()));
    assert_eq!(missing, "empty: is missing");
    let extra = told(|root| keep_time(root, &|| symlink("x", root.join("extra")).unwrap()));
    assert_eq!(extra, "extra: exists, but should not");
    let unlinked = told(|root| {
        keep_time(root, &|| {
            fs::remove_file(root.join("link")).unwrap();
            fs::write(root.join("link"), vec![7; 3 * BLOCK_BYTES]).unwrap();
            set_times(&root.join("link"));
        });
    });
    assert!(unlinked.contains("link: first hard link is None"), "{unlinked}");
    let xattr = told(|root| {
        rustix::fs::setxattr(
            root.join("empty"),
            "user.color",
            b"blue",
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
    });
    assert!(xattr.contains("empty: extended attributes"), "{xattr}");
}

#[test]
fn link_targets_are_compared_and_not_followed() {
    let (_work, one, other) = twins(|_| ());
    symlink("a", one.join("link")).unwrap();
    symlink("b", other.join("link")).unwrap();
    set_times(&one);
    set_times(&other);
    let comparison = compare(&one, &other, |_| ()).unwrap();
    assert!(
        comparison
            .told
            .iter()
            .any(|told| told.contains("link target is Some(\"b\")")),
        "{:?}",
        comparison.told
    );
}

#[test]
fn the_difference_counts_bytes_by_place() {
    let (_work, old, new) = twins(|root| {
        fs::write(root.join("edited"), vec![1; 2 * BLOCK_BYTES + 10]).unwrap();
        fs::write(root.join("shrunk"), vec![1; 100]).unwrap();
        fs::write(root.join("same"), vec![1; 100]).unwrap();
        fs::write(root.join("gone"), vec![1; 100]).unwrap();
    });
    assert_eq!(difference(&old, &new, |_| ()).unwrap(), Difference::default());
    let mut bytes = vec![1; 2 * BLOCK_BYTES + 10];
    for place in [0, 4095, 4096, BLOCK_BYTES, 2 * BLOCK_BYTES + 9] {
        bytes[place] = 2;
    }
    bytes.extend([3; 25]);
    fs::write(new.join("edited"), bytes).unwrap();
    fs::write(new.join("shrunk"), vec![1; 60]).unwrap();
    fs::remove_file(new.join("gone")).unwrap();
    fs::write(new.join("new"), vec![0; 1000]).unwrap();
    fs::hard_link(new.join("new"), new.join("newer")).unwrap();
    let expected = Difference {
        changed_bytes: 5,
        added_bytes: 25 + 1000,
        files: 2,
    };
    assert_eq!(difference(&old, &new, |_| ()).unwrap(), expected);
    assert_eq!(expected.bytes(), 1030);
}

#[test]
fn counting_agrees_with_a_naive_count_on_random_bytes() {
    let mut random = crate::random::Random::new(11);
    for _ in 0..200 {
        let len = random.below(20_000) as usize;
        let mut one = vec![0; len];
        random.fill(&mut one);
        let mut other = one.clone();
        for _ in 0..random.below(20) {
            if len > 0 {
                let place = random.below(len as u64) as usize;
                other[place] = other[place].wrapping_add(1);
            }
        }
        let naive = (0..len).filter(|&place| one[place] != other[place]).count() as u64;
        assert_eq!(differing(&one, &other), naive);
    }
}
