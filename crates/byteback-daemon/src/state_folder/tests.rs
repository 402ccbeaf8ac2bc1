//! Names and files of a state folder: what a later version must find again.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn names_of_folders_are_those_of_version_1() {
    let long = format!("/{}", "n".repeat(60));
    for (directory, name) in [
        (&b"/srv/mail"[..], "mail-a04c538640e18a73"),
        (b"/", "root-af63a24c860189fe"),
        (b"/home/a/M\xfcll &x", "M_ll__x-4a9c59f31ca47847"),
        (
            long.as_bytes(),
            "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn-c15c31a77b9ca446",
        ),
    ] {
        assert_eq!(folder_name(Path::new(OsStr::from_bytes(directory))), name);
    }
}

fn lab() -> (tempfile::TempDir, StateFolder) {
    let lab = tempfile::tempdir().unwrap();
    let tree = lab.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let folder = StateFolder::of(&tree, &lab.path().join("state")).unwrap();
    (lab, folder)
}

#[test]
fn a_new_folder_is_its_owners_alone_and_says_whose_it_is() {
    let (lab, folder) = lab();
    assert!(!folder.exists());
    for _ in 0..2 {
        folder.create().unwrap();
        assert!(folder.exists());
        let names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["path"]);
    }
    let path = fs::read(folder.path().join("path")).unwrap();
    assert_eq!(path, folder.directory().as_os_str().as_bytes());
    assert!(folder.path().starts_with(lab.path().join("state/trees")));
    let mode = fs::metadata(folder.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    let all = StateFolder::all(&lab.path().join("state")).unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].directory(), folder.directory());
}

#[test]
fn state_folder_finishes_a_half_made_one_and_refuses_anothers() {
    let (_lab, folder) = lab();
    let path = folder.path().join("path");
    fs::create_dir_all(folder.path()).unwrap();
    folder.create().unwrap();
    assert_eq!(fs::read(&path).unwrap(), folder.directory().as_os_str().as_bytes());

    fs::write(&path, b"/elsewhere").unwrap();
    let refused = folder.create().unwrap_err().to_string();
    assert!(refused.contains("/elsewhere"), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), b"/elsewhere");
}
