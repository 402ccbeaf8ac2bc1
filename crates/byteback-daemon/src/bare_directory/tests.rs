use super::*;

fn folder() -> (tempfile::TempDir, StateFolder) {
    // Not on a tmpfs, which may not support flags.
    let temp = tempfile::tempdir_in("/var/tmp").unwrap();
    let directory = temp.path().join("d");
    fs::create_dir(&directory).unwrap();
    let folder = StateFolder::of(&directory, &temp.path().join("state")).unwrap();
    folder.create().unwrap();
    (temp, folder)
}

#[test]
fn protection_is_taken_back_and_a_flag_of_the_user_stays() {
    let (_temp, folder) = folder();
    let point = folder.directory().to_owned();
    fs::set_permissions(&point, fs::Permissions::from_mode(0o750)).unwrap();
    let bare = BareDirectory::protect(&folder, &point).unwrap();
    bare.covered().unwrap();
    assert_eq!(protected(&folder).as_deref(), Some(&*point));
    match bare.is_immutable {
        true => assert!(fs::write(point.join("f"), "f").is_err()),
        false => assert_eq!(fs::metadata(&point).unwrap().mode() & 0o7777, 0),
    }
    // As after a crash: a protection that is there is kept.
    drop(BareDirectory::protect(&folder, &point).unwrap());
    release(&folder).unwrap();
    release(&folder).unwrap();
    assert_eq!(protected(&folder), None);
    assert_eq!(fs::metadata(&point).unwrap().mode() & 0o7777, 0o750);
    fs::write(point.join("f"), "f").unwrap();
    assert!(!bare.is_empty().unwrap());
    fs::remove_file(point.join("f")).unwrap();

    let dir = open(&point).unwrap();
    let Ok(flags) = ioctl_getflags(&dir) else { return };
    if ioctl_setflags(&dir, flags | IFlags::IMMUTABLE).is_err() {
        return;
    }
    drop(BareDirectory::protect(&folder, &point).unwrap());
    release(&folder).unwrap();
    assert!(ioctl_getflags(&dir).unwrap().contains(IFlags::IMMUTABLE));
    ioctl_setflags(&dir, flags).unwrap();
}

#[test]
fn a_mode_is_taken_away_and_given_back() {
    let (_temp, folder) = folder();
    let point = folder.directory().to_owned();
    let mut bare = BareDirectory::protect(&folder, &point).unwrap();
    release(&folder).unwrap();
    fs::set_permissions(&point, fs::Permissions::from_mode(0o1770)).unwrap();
    bare.is_immutable = false;
    bare.covered().unwrap();
    assert_eq!(fs::metadata(&point).unwrap().mode() & 0o7777, 0);
    release(&folder).unwrap();
    assert_eq!(fs::metadata(&point).unwrap().mode() & 0o7777, 0o1770);
    // A directory that is gone is no reason to fail.
    bare.covered().unwrap();
    fs::remove_dir(&point).unwrap();
    release(&folder).unwrap();
    assert_eq!(protected(&folder), None);
}
