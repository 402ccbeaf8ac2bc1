use byteback_delta::ApplyError;

use super::*;

#[test]
fn landing_overtaken_is_recognised_through_wrappers() {
    let overtaken = Overtaken("somebody wrote it".to_owned());
    let wrapped = ApplyError::SetLen {
        len_bytes: 7,
        source: io::Error::other(overtaken.clone()),
    };
    assert_eq!(overtaken_in(&wrapped), Some(&overtaken));
    assert_eq!(overtaken_in(&io::Error::other(wrapped)), Some(&overtaken));
    assert_eq!(overtaken_in(&overtaken), Some(&overtaken));
}

#[test]
fn landing_error_is_overtaken_for_no_other_cause() {
    let full = io::Error::from_raw_os_error(28);
    assert_eq!(overtaken_in(&full), None);
    let wrapped = io::Error::other(ApplyError::SetLen {
        len_bytes: 7,
        source: full,
    });
    assert_eq!(overtaken_in(&wrapped), None);
}
