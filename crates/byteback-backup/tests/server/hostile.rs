//! A server that lies: each lie is a typed error, nothing is written outside the target, nothing
//! endless is swallowed.

use byteback_api::messages::{DiffPage, EntryInfo, SnapshotPage, TreePage, VerifyEvent};
use byteback_api::{FolderName, MEDIA_CONTENTS, MEDIA_DELTA};
use byteback_backup::{
    BackupError, RestoreOptions, Silent, SnapshotSpec, VerifyOptions, diff, list, restore, snapshots, verify,
};
use byteback_client::{ClientOptions, ServerClient, ServerErrorKind};
use byteback_delta::bundle::ShortContent;
use byteback_delta::contents::ContentsWriter;
use byteback_delta::{DeltaWriter, WriterOptions};
use byteback_extents::ByteRange;
use byteback_model::{Attributes, ByteString, FileId, NodeInfo, NodeKind, Snapshot, SnapshotLabel};
use byteback_testkit::scripted_server::{Answer, ENDLESS, scripted_server};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ROOT: FileId = FileId(1);

fn folder() -> FolderName {
    "home".parse().unwrap()
}

fn json(value: &impl serde::Serialize) -> Answer {
    (200, "application/json", serde_json::to_vec(value).unwrap())
}

fn node(id: u128, kind: NodeKind, size: u64) -> NodeInfo {
    NodeInfo {
        id: FileId(id),
        seq: 1,
        attributes: Attributes {
            kind,
            mode: 0o700,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            size,
            mtime_ns: 0,
            rdev: 0,
            inode_flags: 0,
            target: (kind == NodeKind::Symlink).then(|| ByteString::from("/etc")),
            xattrs: Vec::new(),
            user: None,
            group: None,
        },
        content: None,
        names: None,
        places: None,
    }
}

fn entry(name: &[u8], node: NodeInfo) -> EntryInfo {
    EntryInfo {
        name: name.into(),
        node,
    }
}

fn page(dir: FileId, entries: Vec<EntryInfo>) -> TreePage {
    TreePage {
        at: 1,
        node: node(dir.0, NodeKind::Directory, 0),
        entries,
        next_cursor: None,
    }
}

fn one_snapshot() -> Answer {
    json(&SnapshotPage {
        snapshots: vec![snapshot(1)],
        next_cursor: None,
    })
}

fn snapshot(id: u64) -> Snapshot {
    Snapshot {
        id,
        seq: 1,
        label: SnapshotLabel::default(),
    }
}

fn delta_of(base_len: u64, new_len: u64, bytes: &[u8]) -> Vec<u8> {
    let mut writer = DeltaWriter::new(Vec::new(), base_len, new_len, WriterOptions::default()).unwrap();
    writer.literal_bytes(0, bytes).unwrap();
    writer.finish().unwrap().0
}

/// A server with one snapshot, whose tree `tree` returns (the directory asked for, the query), and
/// one content.
fn tree_server(
    tree: impl Fn(FileId, &str) -> TreePage + Send + Sync + 'static,
    content: impl Fn() -> Answer + Send + Sync + 'static,
) -> ServerClient {
    scripted_server(move |_, path| {
        if path.contains("/snapshots") {
            return one_snapshot();
        }
        if path.contains("/content") {
            return content();
        }
        let dir = path
            .split_once("parent=")
            .map(|(_, rest)| rest.split('&').next().unwrap());
        json(&tree(dir.map_or(ROOT, |dir| dir.parse().unwrap()), path))
    })
}

/// Restores into a directory beside one that must stay as it is.
fn restore_beside(
    server: &ServerClient,
    check: impl FnOnce(&Path, Result<byteback_backup::RestoreReport, BackupError>),
) {
    let temp = tempfile::tempdir().unwrap();
    let (target, beside) = (temp.path().join("target"), temp.path().join("beside"));
    std::fs::create_dir(&beside).unwrap();
    std::fs::write(beside.join("file"), "untouched").unwrap();
    let spec = SnapshotSpec::default();
    let result = restore(
        server,
        &folder(),
        spec,
        b"",
        &target,
        &RestoreOptions::default(),
        &Silent,
    );
    check(&target, result);
    let names = |dir: &Path| -> Vec<_> {
        let mut names: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let outside = names(temp.path());
    assert!(
        outside.iter().all(|name| name == "target" || name == "beside"),
        "{outside:?}"
    );
    assert_eq!(names(&beside), ["file"]);
    assert_eq!(std::fs::read(beside.join("file")).unwrap(), b"untouched");
}

#[test]
fn listing_of_impossible_entries_ends_all_before_it_does_harm() {
    let file = |name: &[u8]| entry(name, node(2, NodeKind::File, 0));
    let odd = |change: &dyn Fn(&mut Attributes)| {
        let mut node = node(2, NodeKind::File, 0);
        change(&mut node.attributes);
        vec![entry(b"a", node)]
    };
    let other_node = || {
        let mut page = page(FileId(9), vec![]);
        page.node.id = FileId(9);
        page
    };
    type Lie = Arc<dyn Fn(FileId, &str) -> TreePage + Send + Sync>;
    let entries = |entries: Vec<EntryInfo>| -> Lie { Arc::new(move |dir, _| page(dir, entries.clone())) };
    let cases: Vec<(&str, Lie)> = vec![
        ("slash", entries(vec![file(b"../beside/file")])),
        ("absolute", entries(vec![file(b"/tmp/x")])),
        ("inner slash", entries(vec![file(b"a/b")])),
        ("dot", entries(vec![file(b".")])),
        ("dots", entries(vec![file(b"..")])),
        ("empty", entries(vec![file(b"")])),
        ("NUL", entries(vec![file(b"a\0b")])),
        ("long", entries(vec![file(&[b'a'; 256])])),
        ("disorder", entries(vec![file(b"b"), file(b"a")])),
        ("twice", entries(vec![file(b"a"), file(b"a")])),
        (
            "a symlink and a directory of one name",
            entries(vec![
                entry(b"a", node(2, NodeKind::Symlink, 0)),
                entry(b"a", node(3, NodeKind::Directory, 0)),
            ]),
        ),
        ("cycle", entries(vec![entry(b"a", node(1, NodeKind::Directory, 0))])),
        (
            "a directory with two names",
            Arc::new(|dir, _| match dir {
                ROOT => page(
                    dir,
                    vec![
                        entry(b"a", node(2, NodeKind::Directory, 0)),
                        entry(b"b", node(2, NodeKind::Directory, 0)),
                    ],
                ),
                dir => page(dir, vec![]),
            }),
        ),
        ("mode", entries(odd(&|attributes| attributes.mode = 0o100_644))),
        ("size", entries(odd(&|attributes| attributes.size = u64::MAX))),
        (
            "size of a pipe",
            entries(odd(&|attributes| {
                attributes.kind = NodeKind::Fifo;
                attributes.size = 1;
            })),
        ),
        (
            "target",
            entries(odd(&|attributes| attributes.target = Some("x".into()))),
        ),
        (
            "no target",
            entries(odd(&|attributes| attributes.kind = NodeKind::Symlink)),
        ),
        (
            "NUL in a target",
            entries(odd(&|attributes| {
                attributes.kind = NodeKind::Symlink;
                attributes.target = Some("a\0b".into());
            })),
        ),
        (
            "another moment",
            Arc::new(|dir, _| TreePage {
                at: 2,
                ..page(dir, vec![])
            }),
        ),
        (
            "another directory",
            Arc::new(move |_, path| match path.contains("parent=") {
                true => other_node(),
                false => page(ROOT, vec![]),
            }),
        ),
        (
            "empty pages without end",
            Arc::new(|dir, _| TreePage {
                next_cursor: Some("x".to_owned()),
                ..page(dir, vec![])
            }),
        ),
        (
            "the same page again and again",
            Arc::new(|dir, _| TreePage {
                next_cursor: Some("x".to_owned()),
                ..page(dir, vec![entry(b"a", node(2, NodeKind::File, 0))])
            }),
        ),
    ];
    for (what, lie) in cases {
        let reported = Arc::clone(&lie);
        let server = tree_server(move |dir, path| reported(dir, path), || (500, "text/plain", vec![]));
        restore_beside(&server, |_, result| {
            assert!(matches!(result, Err(BackupError::Hostile { .. })), "{what}: {result:?}");
        });
        let mut count = 0;
        let listed = list(&server, &folder(), 1, b"", true, &Silent, |_| {
            count += 1;
            Ok(())
        });
        assert!(matches!(listed, Err(BackupError::Hostile { .. })), "{what}: {listed:?}");
        assert!(count <= 2, "{what}");
    }
}

#[test]
fn restore_keeps_a_linked_symlink_and_leads_nobody_outside() {
    // One identity for three kinds of nodes: the first one counts, and nothing goes through it.
    let server = tree_server(
        |dir, _| {
            page(
                dir,
                vec![
                    entry(b"a", node(2, NodeKind::Symlink, 0)),
                    entry(b"b", node(2, NodeKind::File, 5)),
                    entry(b"c", node(2, NodeKind::Fifo, 0)),
                ],
            )
        },
        || (200, MEDIA_DELTA, delta_of(0, 5, b"evil!")),
    );
    restore_beside(&server, |target, result| {
        result.unwrap();
        for name in ["a", "b", "c"] {
            let found = std::fs::symlink_metadata(target.join(name)).unwrap().file_type();
            assert!(found.is_symlink() && !found.is_fifo(), "{name}");
        }
    });
}

#[test]
fn contents_that_lie_leave_no_file_behind() {
    let good = delta_of(0, 5, b"hello");
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let copying = {
        let options = WriterOptions {
            copies: true,
            ..WriterOptions::default()
        };
        let mut writer = DeltaWriter::new(Vec::new(), 5, 5, options).unwrap();
        writer.copy(ByteRange::new(0, 5).unwrap(), 0).unwrap();
        writer.finish().unwrap().0
    };
    // The content, and whether it ends the restore or only this file.
    let cases: Vec<(&str, Vec<u8>, bool)> = vec![
        ("longer", delta_of(0, 6, b"hello!"), true),
        ("shorter", delta_of(0, 4, b"hell"), true),
        ("over a base", delta_of(5, 5, b"hello"), true),
        ("copies", copying, true),
        ("a flipped bit", flipped, false),
        ("cut off", good[..good.len() - 1].to_vec(), false),
        ("cut off at a block", good[..20].to_vec(), false),
        ("nothing", vec![], false),
        ("something else", b"<html>".to_vec(), false),
    ];
    for (what, content, ends_all) in cases {
        let server = tree_server(
            |dir, _| {
                page(
                    dir,
                    vec![
                        entry(b"file", node(2, NodeKind::File, 5)),
                        entry(b"link", node(3, NodeKind::Symlink, 0)),
                    ],
                )
            },
            move || (200, MEDIA_DELTA, content.clone()),
        );
        restore_beside(&server, |target, result| {
            match (ends_all, result) {
                (true, Err(BackupError::Hostile { .. })) => {}
                (false, Ok(report)) => {
                    assert_eq!(report.not_restored.len(), 1, "{what}");
                    assert_eq!(report.not_restored[0].first_path, "file".into());
                    assert!(target.join("link").is_symlink(), "{what}: the others are restored");
                }
                (_, result) => panic!("{what}: {result:?}"),
            }
            let left: Vec<_> = std::fs::read_dir(target)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .filter(|name| name != "link")
                .collect();
            assert!(left.is_empty(), "{what}: {left:?}");
        });
    }
    // Another media type, or an invalid status.
    for answer in [
        (200, "text/html", vec![]),
        (204, "text/html", vec![]),
        (302, "text/html", vec![]),
    ] {
        let server = tree_server(
            |dir, _| page(dir, vec![entry(b"file", node(2, NodeKind::File, 5))]),
            move || answer.clone(),
        );
        restore_beside(&server, |_, result| {
            let kind = result.unwrap_err().server_kind();
            assert!(
                matches!(kind, Some(ServerErrorKind::Protocol | ServerErrorKind::Refused)),
                "{kind:?}"
            );
        });
    }
}

/// Records of a stream of contents: identity, and the content if it is not left out.
type Records<'a> = &'a [(u128, Option<&'a [u8]>)];

fn stream_of(records: Records<'_>) -> Vec<u8> {
    let mut writer = ContentsWriter::new(Vec::new(), records.len() as u32).unwrap();
    for (id, bytes) in records {
        let content = bytes.map(|bytes| {
            let mut content = ShortContent::zeros(bytes.len() as u64);
            content.push(0, bytes);
            content
        });
        writer.push(id.to_be_bytes(), content.as_ref()).unwrap();
    }
    writer.finish().unwrap()
}

/// The effect of a lie about many contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The restore ends.
    EndsAll,
    /// As many files are fetched alone, and all are right.
    Alone(u64),
}

#[test]
fn streams_of_contents_that_lie_change_no_file() {
    use Effect::{Alone, EndsAll};
    let honest: Records<'_> = &[(2, Some(b"one 1")), (3, Some(b"two 2")), (4, Some(b"three"))];
    let whole = stream_of(honest);
    let changed = |at: usize, to: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + to.len()].copy_from_slice(to);
        changed
    };
    let of_frames: Vec<u8> = {
        // A frame that is as long as its number can say.
        let mut stream = whole[..18].to_vec();
        stream.extend_from_slice(&[0xff; 8]);
        stream.resize(5000, 7);
        stream
    };
    let none: Records<'_> = &[(2, None), (3, Some(b"two 2")), (4, None)];
    let cases: Vec<(&str, &'static str, Vec<u8>, Effect)> = vec![
        ("honest", MEDIA_CONTENTS, whole.clone(), Alone(0)),
        (
            "longer",
            MEDIA_CONTENTS,
            stream_of(&[(2, Some(b"one 1")), (3, Some(b"two 22")), (4, Some(b"three"))]),
            EndsAll,
        ),
        (
            "shorter",
            MEDIA_CONTENTS,
            stream_of(&[(2, Some(b"one 1")), (3, Some(b"two")), (4, Some(b"three"))]),
            EndsAll,
        ),
        (
            "wrong order",
            MEDIA_CONTENTS,
            stream_of(&[(2, Some(b"one 1")), (4, Some(b"three")), (3, Some(b"two 2"))]),
            Alone(2),
        ),
        (
            "a file too few",
            MEDIA_CONTENTS,
            stream_of(&[(2, Some(b"one 1")), (3, Some(b"two 2"))]),
            EndsAll,
        ),
        (
            "a file too many",
            MEDIA_CONTENTS,
            stream_of(&[honest, &[(5, Some(b"four4"))]].concat()),
            EndsAll,
        ),
        ("left out", MEDIA_CONTENTS, stream_of(none), Alone(2)),
        (
            "cut off in a frame",
            MEDIA_CONTENTS,
            whole[..whole.len() - 9].to_vec(),
            Alone(3),
        ),
        ("cut off before a frame", MEDIA_CONTENTS, whole[..18].to_vec(), Alone(3)),
        ("nothing", MEDIA_CONTENTS, vec![], Alone(3)),
        (
            "a flipped bit",
            MEDIA_CONTENTS,
            changed(whole.len() - 9, b"\x7f"),
            Alone(3),
        ),
        ("a newer version", MEDIA_CONTENTS, changed(8, &[9]), Alone(3)),
        ("a frame of 4 GiB", MEDIA_CONTENTS, of_frames, EndsAll),
        (
            "something else",
            MEDIA_CONTENTS,
            b"<html></html><html></html>".to_vec(),
            Alone(3),
        ),
        ("another type", "text/html", whole.clone(), Alone(3)),
        (
            "endless",
            "endless application/vnd.byteback.contents",
            whole.clone(),
            Alone(0),
        ),
    ];
    for (what, media, body, effect) in cases {
        let alone = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&alone);
        let server = scripted_server(move |_, path| match path {
            path if path.contains("/snapshots") => one_snapshot(),
            path if path.contains("/contents") => (200, media, body.clone()),
            path if path.contains("/content?") => {
                counted.fetch_add(1, Ordering::SeqCst);
                let file = |id: u128| path.contains(&format!("/nodes/{}/", FileId(id)));
                let (_, bytes) = *honest.iter().find(|(id, _)| file(*id)).unwrap();
                (200, MEDIA_DELTA, delta_of(0, 5, bytes.unwrap()))
            }
            _ => json(&page(
                ROOT,
                vec![
                    entry(b"a", node(2, NodeKind::File, 5)),
                    entry(b"b", node(3, NodeKind::File, 5)),
                    entry(b"c", node(4, NodeKind::File, 5)),
                ],
            )),
        });
        restore_beside(&server, |target, result| {
            let files = match (effect, result) {
                (EndsAll, Err(BackupError::Hostile { .. })) => None,
                (Alone(files), Ok(report)) if report.is_complete() => Some(files),
                (_, result) => panic!("{what}: {result:?}"),
            };
            for entry in std::fs::read_dir(target).unwrap() {
                let entry = entry.unwrap();
                let at = ["a", "b", "c"]
                    .iter()
                    .position(|name| entry.file_name() == *name)
                    .unwrap();
                assert_eq!(Some(&*std::fs::read(entry.path()).unwrap()), honest[at].1, "{what}");
            }
            if let Some(files) = files {
                assert_eq!(alone.load(Ordering::SeqCst), files, "{what}");
                assert_eq!(std::fs::read_dir(target).unwrap().count(), 3, "{what}");
            }
        });
    }
}

#[test]
fn answers_without_end_are_cut_off() {
    // JSON that goes on and on, an error's explanation, a line of a verification, contents.
    let endless_json = scripted_server(|_, _| (200, "endless application/json", b"{\"folders\":[\n \n".to_vec()));
    let error = endless_json.folders().unwrap_err();
    assert_eq!(error.kind, ServerErrorKind::Protocol, "{error}");
    let endless_problem = scripted_server(|_, _| (503, "endless application/problem+json", b"{\n \n".to_vec()));
    assert_eq!(endless_problem.folders().unwrap_err().kind, ServerErrorKind::Busy);
    let good = delta_of(0, 5, b"hello");
    let content = tree_server(
        |dir, _| page(dir, vec![entry(b"file", node(2, NodeKind::File, 5))]),
        move || (200, "endless application/vnd.byteback.delta", good.clone()),
    );
    // Bytes behind the end of a delta are not read.
    restore_beside(&content, |target, result| {
        result.unwrap();
        assert_eq!(std::fs::read(target.join("file")).unwrap(), b"hello");
    });
    assert!("endless application/json".starts_with(ENDLESS));
}

#[test]
fn a_verification_that_lies_proves_nothing() {
    let line = |event: &VerifyEvent| [serde_json::to_vec(event).unwrap(), b"\n".to_vec()].concat();
    let summary = |damaged_files| VerifyEvent::Summary {
        files: 1,
        frames: 1,
        bytes: 1,
        damaged_files,
        wrong_sums: 0,
    };
    let damage = VerifyEvent::Damage {
        id: FileId(2),
        path: Some("a".into()),
        ranges: Vec::new(),
        lost_bytes: 0,
        detail: "gone".to_owned(),
    };
    let run = |media: &'static str, lines: Vec<u8>| {
        let server = scripted_server(move |_, path| match path.contains("/verify") {
            true => (200, media, lines.clone()),
            false => one_snapshot(),
        });
        verify(
            &server,
            &folder(),
            SnapshotSpec::default(),
            &VerifyOptions::default(),
            &Silent,
        )
    };
    let media = "application/x-ndjson";
    assert!(run(media, line(&summary(0))).unwrap().is_clean());
    let reported = run(media, [line(&damage), line(&summary(1))].concat()).unwrap();
    assert_eq!(
        (reported.is_clean(), reported.damaged.len(), reported.damaged_files),
        (false, 1, 1)
    );
    let hostile = run(media, line(&summary(1)));
    assert!(matches!(hostile, Err(BackupError::Hostile { .. })), "{hostile:?}");
    let cut_off = run(media, line(&damage)).unwrap_err();
    assert_eq!(cut_off.server_kind(), Some(ServerErrorKind::Unreachable));
    let nothing = run(media, vec![]).unwrap_err();
    assert_eq!(nothing.server_kind(), Some(ServerErrorKind::Unreachable));
    let garbage = run(media, b"<html>\n".to_vec()).unwrap_err();
    assert_eq!(garbage.server_kind(), Some(ServerErrorKind::Protocol));
    let failed = run(media, line(&VerifyEvent::Failed { detail: "x".to_owned() })).unwrap_err();
    assert_eq!(failed.server_kind(), Some(ServerErrorKind::Internal));
    // Damage without end: counted, but not remembered without end, and it can be stopped.
    let reported = byteback_testkit::listener::RecordingMonitor::new({
        let reported = AtomicU64::new(0);
        move |event, is_cancelled| {
            if let byteback_backup::Event::FileFailed { .. } = event
                && reported.fetch_add(1, Ordering::SeqCst) == 100_000
            {
                is_cancelled.store(true, Ordering::SeqCst);
            }
        }
    });
    let lines = line(&damage);
    let server = scripted_server(move |_, path| match path.contains("/verify") {
        true => (200, "endless application/x-ndjson", lines.clone()),
        false => one_snapshot(),
    });
    let stopped = verify(
        &server,
        &folder(),
        SnapshotSpec::default(),
        &VerifyOptions::default(),
        &reported,
    );
    assert!(matches!(stopped, Err(BackupError::Cancelled)), "{stopped:?}");
}

#[test]
fn lists_that_go_in_circles_end() {
    let server = scripted_server(|_, path| match path.contains("/snapshots") {
        true => json(&SnapshotPage {
            snapshots: vec![snapshot(1), snapshot(2)],
            next_cursor: Some("2".to_owned()),
        }),
        false => json(&DiffPage {
            from: 1,
            to: 2,
            changes: vec![],
            next_cursor: Some("x".to_owned()),
        }),
    });
    let mut seen = 0;
    let listed = snapshots(&server, &folder(), |_| {
        seen += 1;
        Ok(())
    });
    assert!(matches!(listed, Err(BackupError::Hostile { .. })), "{listed:?}");
    assert_eq!(seen, 2);
    let differences = diff(&server, &folder(), 1, 2, &Silent, |_| Ok(()));
    assert!(
        matches!(differences, Err(BackupError::Hostile { .. })),
        "{differences:?}"
    );
}

#[test]
fn backup_reports_a_peer_that_is_no_byteback_server() {
    for (answer, kind) in [
        (
            (200, "text/html", b"<html>hello</html>".to_vec()),
            ServerErrorKind::Protocol,
        ),
        ((404, "text/html", b"<html>".to_vec()), ServerErrorKind::NotFound),
        ((302, "text/html", vec![]), ServerErrorKind::Refused),
        ((407, "text/html", vec![]), ServerErrorKind::Refused),
        ((502, "text/html", vec![]), ServerErrorKind::Busy),
        (
            (500, "application/problem+json", b"{}".to_vec()),
            ServerErrorKind::Internal,
        ),
    ] {
        let status = answer.0;
        let server = scripted_server(move |_, _| answer.clone());
        let error = server.folder(&folder()).unwrap_err();
        assert_eq!(error.kind, kind, "status {status}: {error}");
        assert!(!error.next.is_empty());
        assert!(
            !format!("{error:?}{error}").contains("bbd_x"),
            "the token is told: {error:?}"
        );
    }
    // Nothing listens there, or it speaks another language.
    let options = ClientOptions {
        attempts_max: 1,
        ..ClientOptions::default()
    };
    let nobody = ServerClient::new("http://127.0.0.1:1", "bbd_x", options.clone()).unwrap();
    assert_eq!(nobody.folders().unwrap_err().kind, ServerErrorKind::Unreachable);
    for address in ["", "host", "ftp://host", "http://", "http://h?q=1"] {
        assert!(
            ServerClient::new(address, "bbd_x", options.clone()).is_err(),
            "{address}"
        );
    }
    assert!(ServerClient::new("http://h", "a b", options).is_err());
}
