//! The checks that need no mount; the rest is tested on real mounts (`byteback-daemon`, `deltas`).

use super::*;

#[test]
fn a_file_of_another_file_system_is_not_tracked() {
    let file = tempfile::tempfile().unwrap();
    let error = DeltaFile::open(&file, "one", None).unwrap_err();
    assert!(matches!(error, DeltaError::NotTracked), "{error:?}");
}

#[test]
fn names_are_refused_before_anything_is_asked() {
    let file = tempfile::tempfile().unwrap();
    for name in ["", "a\nb", &"x".repeat(64), &"x".repeat(1000), "a\0b"] {
        let error = DeltaFile::open(&file, name, None).unwrap_err();
        assert!(matches!(error, DeltaError::Name { .. }), "{name:?}: {error:?}");
    }
}
