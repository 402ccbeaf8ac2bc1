use super::*;

#[test]
fn restore_warns_non_root_users_of_what_needs_root() {
    let of = |kind, uid, mode| Attributes {
        kind,
        mode,
        uid,
        gid: 7,
        size: 0,
        mtime_ns: 0,
        rdev: 0,
        inode_flags: 0,
        target: None,
        xattrs: Vec::new(),
        user: None,
        group: None,
    };
    for (user, wanted, expected) in [
        (0, of(NodeKind::File, 5, 0o4755), vec![]),
        (0, of(NodeKind::CharDevice, 0, 0o600), vec![]),
        (5, of(NodeKind::File, 5, 0o4755), vec![]),
        (5, of(NodeKind::File, 6, 0o755), vec![NotRestoredKind::Owner]),
        (
            5,
            of(NodeKind::File, 6, 0o2755),
            vec![NotRestoredKind::Owner, NotRestoredKind::SetId],
        ),
        (5, of(NodeKind::BlockDevice, 0, 0o600), vec![NotRestoredKind::Device]),
    ] {
        assert_eq!(needing_privilege(&wanted, user), expected, "{user} {wanted:?}");
    }
}
