//! Requests and answers as JSON, as in version 1 of the protocol.

use byteback_model::NameChange;
use byteback_oplog::{Epoch, WholeReason};
use proptest::prelude::*;

use super::*;
use crate::leaves::{LeafKind, LeafSource};
use crate::repair::{RepairWish, Repaired, ServerVersion};
use crate::service::ErrorKind;
use crate::{ContentChange, NodeChange};
use byteback_extents::ByteRange;

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap()
}

#[test]
fn golden_requests_of_version_1() {
    let cut = CutId(7);
    for (request, text) in [
        (Request::Status, r#""status""#),
        (Request::Unmount, r#""unmount""#),
        (Request::SyncWishesChanged, r#""sync_wishes_changed""#),
        (
            Request::Repair {
                repair: RepairRequest {
                    node: NodeId(9),
                    wish: RepairWish::KeepServer,
                },
            },
            r#"{"repair":{"repair":{"node":9,"wish":"keep_server"}}}"#,
        ),
        (Request::ListCuts, r#""list_cuts""#),
        (
            Request::OpenCut {
                name: ByteString::from("n"),
            },
            r#"{"open_cut":{"name":"n"}}"#,
        ),
        (
            Request::CloseCut {
                name: ByteString::from(&b"\xff"[..]),
            },
            r#"{"close_cut":{"name":{"base64":"/w=="}}}"#,
        ),
        (
            Request::ResolvePending {
                consumer: "c".to_owned(),
                saved: Some(vec![1, 255]),
            },
            r#"{"resolve_pending":{"consumer":"c","saved":[1,255]}}"#,
        ),
        (
            Request::Cut {
                cut: CutRequest {
                    consumer: "c".to_owned(),
                    everything: true,
                    look_only: false,
                    since: Some(Epoch(3)),
                    anonymous: false,
                    whole_files: true,
                },
            },
            r#"{"cut":{"cut":{"consumer":"c","everything":true,"look_only":false,"since":3,"anonymous":false,"whole_files":true}}}"#,
        ),
        (
            Request::DropConsumer {
                consumer: "c".to_owned(),
            },
            r#"{"drop_consumer":{"consumer":"c"}}"#,
        ),
        (
            Request::LookAt {
                name: ByteString::from("n"),
                cut: CutRequest {
                    consumer: "c".to_owned(),
                    everything: false,
                    look_only: true,
                    since: None,
                    anonymous: false,
                    whole_files: false,
                },
            },
            r#"{"look_at":{"name":"n","cut":{"consumer":"c","everything":false,"look_only":true,"since":null,"anonymous":false,"whole_files":false}}}"#,
        ),
        (
            Request::Changes {
                cut,
                cursor: ChangesCursor::default(),
            },
            r#"{"changes":{"cut":7,"cursor":{"node":null,"name":null}}}"#,
        ),
        (
            Request::Changes {
                cut,
                cursor: ChangesCursor {
                    node: Some(NodeId(5)),
                    name: Some((NodeId(1), ByteString::from("n"))),
                },
            },
            r#"{"changes":{"cut":7,"cursor":{"node":5,"name":[1,"n"]}}}"#,
        ),
        (
            Request::Attributes {
                cut,
                nodes: vec![NodeId(1), NodeId(u64::MAX)],
            },
            r#"{"attributes":{"cut":7,"nodes":[1,18446744073709551615]}}"#,
        ),
        (
            Request::Read {
                cut,
                node: NodeId(2),
                ranges: vec![(0, 5)],
            },
            r#"{"read":{"cut":7,"node":2,"ranges":[[0,5]]}}"#,
        ),
        (
            Request::PeekMany {
                cut,
                files: vec![(NodeId(2), 5), (NodeId(3), 1)],
            },
            r#"{"peek_many":{"cut":7,"files":[[2,5],[3,1]]}}"#,
        ),
        (
            Request::Release {
                cut,
                nodes: vec![NodeId(2)],
            },
            r#"{"release":{"cut":7,"nodes":[2]}}"#,
        ),
        (
            Request::BeforeImage { cut, node: NodeId(2) },
            r#"{"before_image":{"cut":7,"node":2}}"#,
        ),
        (Request::Line, r#""line""#),
        (Request::Path { cut, node: NodeId(2) }, r#"{"path":{"cut":7,"node":2}}"#),
        (
            Request::Names {
                cut,
                nodes: vec![NodeId(3)],
            },
            r#"{"names":{"cut":7,"nodes":[3]}}"#,
        ),
        (
            Request::Entries {
                cut,
                directory: NodeId(3),
                after: Some(ByteString::from("a")),
            },
            r#"{"entries":{"cut":7,"directory":3,"after":"a"}}"#,
        ),
        (
            Request::Find {
                cut,
                path: ByteString::from("a/b"),
            },
            r#"{"find":{"cut":7,"path":"a/b"}}"#,
        ),
        (
            Request::Advance {
                consumer: "c".to_owned(),
                cut: Epoch(3),
            },
            r#"{"advance":{"consumer":"c","cut":3}}"#,
        ),
        (
            Request::NoteBatch { cut, batch: 9 },
            r#"{"note_batch":{"cut":7,"batch":9}}"#,
        ),
        (
            Request::Peek {
                cut,
                node: NodeId(1),
                ranges: vec![(2, 3)],
            },
            r#"{"peek":{"cut":7,"node":1,"ranges":[[2,3]]}}"#,
        ),
        (
            Request::LeafOffer { cut, node: NodeId(1) },
            r#"{"leaf_offer":{"cut":7,"node":1}}"#,
        ),
        (
            Request::LeafSums {
                cut,
                node: NodeId(1),
                leaves: LeafRequest {
                    kind: LeafKind::Blake2b256,
                    with_crcs: true,
                },
            },
            r#"{"leaf_sums":{"cut":7,"node":1,"leaves":{"kind":"blake2b256","with_crcs":true}}}"#,
        ),
        (
            Request::Finish {
                cut,
                outcome: Outcome::Saved {
                    note: vec![0],
                    unsaved: vec![NodeId(4)],
                },
            },
            r#"{"finish":{"cut":7,"outcome":{"saved":{"note":[0],"unsaved":[4]}}}}"#,
        ),
        (
            Request::Finish {
                cut,
                outcome: Outcome::Unknown,
            },
            r#"{"finish":{"cut":7,"outcome":"unknown"}}"#,
        ),
    ] {
        assert_eq!(json(&request), text);
        assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
    }
}

fn bytes() -> impl Strategy<Value = ByteString> {
    prop::collection::vec(any::<u8>(), 0..20).prop_map(ByteString::from)
}

fn error() -> impl Strategy<Value = ServiceError> {
    let kinds = [
        ErrorKind::Node,
        ErrorKind::PictureLost,
        ErrorKind::Log,
        ErrorKind::Gone,
        ErrorKind::Protocol,
    ];
    (
        prop::sample::select(kinds.to_vec()),
        ".{0,30}",
        prop::option::of(bytes()),
    )
        .prop_map(|(kind, message, path)| ServiceError { kind, message, path })
}

fn page() -> impl Strategy<Value = ChangesPage> {
    let content = prop_oneof![
        Just(ContentChange::Unchanged),
        Just(ContentChange::Whole(WholeReason::Unsaved)),
        prop::collection::vec(any::<(u64, u64)>(), 0..5).prop_map(|pairs| {
            let range = |(offset, len_bytes)| ByteRange::from_offset_len(offset, len_bytes);
            ContentChange::Ranges(pairs.into_iter().filter_map(range).collect())
        }),
    ];
    let kinds = [
        byteback_model::NodeKind::File,
        byteback_model::NodeKind::CharDevice,
        byteback_model::NodeKind::Directory,
    ];
    let node = (
        any::<u64>(),
        prop::sample::select(kinds.to_vec()),
        content,
        any::<bool>(),
    )
        .prop_map(|(node, kind, content, is_new)| NodeChange {
            node: NodeId(node),
            kind,
            content,
            is_new,
        });
    let name = (any::<u64>(), bytes(), any::<Option<u64>>()).prop_map(|(parent, name, child)| NameChange {
        parent: NodeId(parent),
        name,
        child: child.map(NodeId),
    });
    let node_number = any::<Option<u64>>().prop_map(|node| node.map(NodeId));
    let place = (any::<u64>().prop_map(NodeId), bytes());
    let next = prop::option::of((node_number, prop::option::of(place)));
    let lists = (
        prop::collection::vec(node, 0..5),
        prop::collection::vec(name, 0..5),
        next,
    );
    lists.prop_map(|(nodes, names, next)| ChangesPage {
        nodes,
        names,
        next: next.map(|(node, name)| ChangesCursor { node, name }),
    })
}

proptest! {
    #[test]
    fn answers_come_back_as_they_were(
        page in page(),
        error in error(),
        path in prop::option::of(bytes()),
        numbers in any::<(u64, u64, u64)>(),
    ) {
        let (read_bytes, kept_bytes, cpu_ns) = numbers;
        for answer in [
            Answer::Changes(page),
            Answer::Attributes(vec![Err(error.clone())]),
            Answer::Error(error),
            Answer::Names(vec![NodeNames {
                kind: Some(byteback_model::NodeKind::Fifo),
                names: path.iter().map(|name| (NodeId(numbers.0), name.clone())).collect(),
                stood_for: path.as_ref().map(|_| NodeId(numbers.1)),
                copied_from: path.as_ref().map(|_| NodeId(numbers.0)),
            }]),
            Answer::Entries(path.iter().map(|name| DirEntry {
                name: name.clone(),
                node: NodeId(numbers.1),
                kind: byteback_model::NodeKind::Symlink,
            }).collect()),
            Answer::Found(path.as_ref().map(|_| NodeId(numbers.2))),
            Answer::Advanced(path.is_some()),
            Answer::Path(path),
            Answer::Finished(FinishReport { read_bytes, kept_bytes, cpu_ns }),
            Answer::LeafOffer(LeafOffer { kind: LeafKind::Blake3, source: LeafSource::Btrfs, has_crcs: read_bytes % 2 == 0 }),
            Answer::LeafSums(LeavesSummary { source: LeafSource::Read, read_bytes }),
            Answer::Repaired(RepairReport {
                server: Some(ServerVersion { seq: read_bytes, len_bytes: kept_bytes, mtime_ns: -1 }),
                repaired: Repaired::WasSound,
            }),
            Answer::Repaired(RepairReport { server: None, repaired: Repaired::Healed(cpu_ns) }),
            Answer::Done,
        ] {
            prop_assert_eq!(&serde_json::from_str::<Answer>(&json(&answer)).unwrap(), &answer);
        }
    }
}
