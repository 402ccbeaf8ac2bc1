use std::os::unix::fs::PermissionsExt;

use super::*;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The expected value was computed with the trace set's own `tree_hash`.
#[test]
fn the_hash_is_that_of_the_trace_set() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir(root.join("sub")).unwrap();
    fs::write(root.join("sub/a"), b"hello").unwrap();
    fs::write(root.join("sub-b"), b"").unwrap();
    fs::hard_link(root.join("sub/a"), root.join("z")).unwrap();
    std::os::unix::fs::symlink("sub/a", root.join("link")).unwrap();
    set_mode(&root.join("sub"), 0o750);
    set_mode(&root.join("sub/a"), 0o640);
    set_mode(&root.join("sub-b"), 0o604);
    assert_eq!(
        tree_hash(root).unwrap(),
        "fe59f9156643fcc079fecb2003acb43441e3acd7b0e7601d11ee6e14578522a9"
    );
    fs::write(root.join("sub-b"), b"x").unwrap();
    assert_ne!(
        tree_hash(root).unwrap(),
        "fe59f9156643fcc079fecb2003acb43441e3acd7b0e7601d11ee6e14578522a9"
    );
}
