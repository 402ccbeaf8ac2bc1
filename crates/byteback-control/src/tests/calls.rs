//! Every call of the trait, through a real socket, compared with the same call made directly.

use std::sync::Arc;

use byteback_extents::ByteRange;
use byteback_model::NodeId;
use byteback_oplog::Epoch;

use super::memory_tree::MemoryTree;
use super::peer::{Served, soon};
use crate::leaves::{LeafKind, LeafPiece, LeafRequest, LeavesSummary};
use crate::server::Limits;
use crate::service::{CutId, CutRequest, ErrorKind, Outcome, Piece, Result, ServiceError, TreeService};
use crate::{ChangesCursor, ChangesPage};

fn request(consumer: &str) -> CutRequest {
    CutRequest::of(consumer)
}

fn fill(tree: &MemoryTree) {
    tree.write(2, b"letter", vec![Ok(b"hello".to_vec())]);
    tree.write(3, b"gone \xff", vec![]);
    tree.write(5, b"holed", vec![Ok(vec![7; 1000]), Err(1 << 40), Ok(vec![8; 1000])]);
    tree.write(
        8,
        b"long",
        vec![Ok((0..5_000_000_u32).map(|at| (at % 253) as u8).collect())],
    );
}

#[derive(Debug, PartialEq, Eq)]
enum Read {
    Data(u64, Vec<u8>),
    Hole(ByteRange),
}

fn read(tree: &dyn TreeService, cut: CutId, node: u64, ranges: &[(u64, u64)]) -> Result<Vec<Read>> {
    let mut got: Vec<Read> = Vec::new();
    tree.read(cut, NodeId(node), ranges, &mut |piece| {
        match (got.last_mut(), piece) {
            // How content is divided into pieces may differ.
            (Some(Read::Data(at, before)), Piece::Data { offset, bytes }) if *at + before.len() as u64 == offset => {
                before.extend_from_slice(bytes);
            }
            (_, Piece::Data { offset, bytes }) => got.push(Read::Data(offset, bytes.to_vec())),
            (_, Piece::Hole(range)) => got.push(Read::Hole(range)),
        }
        Ok(())
    })?;
    Ok(got)
}

/// Where data begins, with its first byte, and how long it is.
type Stretches = Vec<(u64, u8, u64)>;

fn peek_many(
    tree: &dyn TreeService,
    cut: CutId,
    files: &[(NodeId, u64)],
) -> Result<(Stretches, Vec<(usize, ServiceError)>)> {
    let mut got = Stretches::new();
    let unread = tree.peek_many(cut, files, &mut |piece| {
        let Piece::Data { offset, bytes } = piece else {
            return Ok(());
        };
        match got.last_mut() {
            // How content is divided into pieces may differ.
            Some((at, _, len)) if *at + *len == offset && offset > (1 << 40) + 4000 => *len += bytes.len() as u64,
            _ => got.push((offset, bytes[0], bytes.len() as u64)),
        }
        Ok(())
    })?;
    Ok((got, unread))
}

/// The answers about leaves, one by one: the offset and the checksums, or the length of a stretch
/// of zeros.
type Leaves = Vec<(u64, Result<Vec<u8>, u64>)>;

fn leaf_sums(tree: &dyn TreeService, cut: CutId, node: u64, with_crcs: bool) -> Result<(Leaves, LeavesSummary)> {
    let request = LeafRequest {
        kind: LeafKind::Sha256,
        with_crcs,
    };
    let mut leaves = Leaves::new();
    let reported = tree.leaf_sums(cut, NodeId(node), request, &mut |piece| {
        match piece {
            LeafPiece::Zeros(range) => leaves.push((range.start(), Err(range.len_bytes()))),
            LeafPiece::Sums { offset, entries } => {
                let starts = (offset..).step_by(4096);
                let entries = entries.chunks(request.entry_len()).zip(starts);
                leaves.extend(entries.map(|(entry, start)| (start, Ok(entry.to_vec()))));
            }
        }
        Ok(())
    })?;
    Ok((leaves, reported))
}

fn all_pages(tree: &dyn TreeService, cut: CutId) -> Vec<ChangesPage> {
    let mut pages = Vec::new();
    let mut cursor = Some(ChangesCursor::default());
    while let Some(from) = cursor {
        let page = tree.changes(cut, &from).unwrap();
        cursor = page.next.clone();
        pages.push(page);
    }
    pages
}

#[test]
fn every_call_answers_as_if_the_tree_were_here() {
    let served = Served::new();
    fill(&served.tree);
    // The same history, asked directly.
    let direct = MemoryTree::default();
    fill(&direct);
    let far = served.client();
    let near: &dyn TreeService = &direct;

    assert_eq!(far.status(), near.status());
    let (cut, same) = (far.cut(&request("mail")).unwrap(), near.cut(&request("mail")).unwrap());
    assert_eq!(cut, same);
    let cut = cut.cut;

    let pages = all_pages(&far, cut);
    assert_eq!(pages, all_pages(near, cut));
    assert!(pages.len() >= 3, "{pages:?}");

    let nodes = [NodeId(8), NodeId(99), NodeId(2)];
    let attributes = far.attributes(cut, &nodes).unwrap();
    assert_eq!(attributes, near.attributes(cut, &nodes).unwrap());
    assert_eq!(attributes[1].as_ref().unwrap_err().kind, ErrorKind::Node);
    assert_eq!(far.attributes(cut, &[]), Ok(vec![]));

    for ranges in [
        &[][..],
        &[(0, u64::MAX)],
        &[(10, 20), (990, 1 << 41)],
        &[(1 << 40, 5), ((1 << 40) + 1500, 5)],
    ] {
        for node in [2, 3, 5, 8] {
            assert_eq!(
                read(&far, cut, node, ranges),
                read(near, cut, node, ranges),
                "{node} {ranges:?}"
            );
        }
    }
    // Files end to end; of those that cannot be read, their places.
    let files = [(2, 5), (99, 3), (5, (1 << 40) + 2000), (3, 1), (2, 3), (8, 5_000_000)];
    let files = files.map(|(node, len_bytes)| (NodeId(node), len_bytes));
    let together = peek_many(&far, cut, &files).unwrap();
    assert_eq!(together, peek_many(near, cut, &files).unwrap());
    let (pieces, unread) = together;
    assert_eq!(unread.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [1]);
    assert_eq!(pieces[..2], [(0, b'h', 5), (8, 7, 1000)], "{pieces:?}");
    assert_eq!(
        pieces.iter().map(|(_, _, len)| len).sum::<u64>(),
        5 + 2000 + 3 + 5_000_000
    );
    let refused = far.peek_many(cut, &files, &mut |_| Err(ServiceError::new(ErrorKind::Node, "enough")));
    assert_eq!(refused.unwrap_err().message, "enough");
    for node in [2, 3, 5, 8, 99] {
        assert_eq!(far.leaf_offer(cut, NodeId(node)), near.leaf_offer(cut, NodeId(node)));
        for with_crcs in [false, true] {
            let far = leaf_sums(&far, cut, node, with_crcs);
            assert_eq!(far, leaf_sums(near, cut, node, with_crcs), "{node}");
            assert_eq!(far.is_ok(), node != 99);
        }
    }
    for node in [2, 99] {
        assert_eq!(far.path(cut, NodeId(node)), near.path(cut, NodeId(node)));
    }
    let nodes = [NodeId(2), NodeId(99), NodeId::ROOT];
    assert_eq!(far.names(cut, &nodes), near.names(cut, &nodes));
    assert!(far.names(cut, &nodes).unwrap()[0].kind.is_some());
    let mut after = None;
    let mut listed = 0;
    loop {
        let page = far.entries(cut, NodeId::ROOT, after.as_ref()).unwrap();
        assert_eq!(page, near.entries(cut, NodeId::ROOT, after.as_ref()).unwrap());
        let Some(last) = page.last() else { break };
        listed += page.len();
        for entry in &page {
            assert_eq!(far.find(cut, &entry.name), Ok(Some(entry.node)));
        }
        after = Some(last.name.clone());
    }
    assert!(listed > 3, "several pages");
    assert_eq!(far.entries(cut, NodeId(2), None), Ok(Vec::new()));
    assert_eq!(far.find(cut, &byteback_model::ByteString::from("nowhere")), Ok(None));

    for tree in [&far as &dyn TreeService, near] {
        tree.note_batch(cut, u64::MAX).unwrap();
        assert_eq!(tree.status().unwrap().consumers[0].pending, Some((Epoch(1), u64::MAX)));
    }
    let saved = Outcome::Saved {
        note: vec![0, 255, 7],
        unsaved: vec![NodeId(8), NodeId(u64::MAX)],
    };
    assert_eq!(far.finish(cut, &saved), near.finish(cut, &saved));
    assert_eq!(served.tree.state().finished, [(cut, saved)]);
    assert_eq!(far.status(), near.status());
    assert_eq!(far.status().unwrap().consumers[0].mark, Some(Epoch(1)));

    // The next cut sees what came since; each wish of a request arrives.
    for tree in [&served.tree as &MemoryTree, &direct] {
        tree.write(8, b"long", vec![Ok(vec![1; 10]), Ok(vec![2; 10])]);
    }
    for request in [
        request("mail"),
        CutRequest {
            everything: true,
            ..request("mail")
        },
        CutRequest {
            look_only: true,
            since: Some(Epoch(0)),
            ..request("\u{20ac} other")
        },
    ] {
        let (cut, same) = (far.cut(&request).unwrap(), near.cut(&request).unwrap());
        assert_eq!(cut, same, "{request:?}");
        assert_eq!(all_pages(&far, cut.cut), all_pages(near, cut.cut));
        assert_eq!(
            far.finish(cut.cut, &Outcome::Abandoned),
            near.finish(cut.cut, &Outcome::Abandoned)
        );
    }

    let open = far.cut(&request("mail")).unwrap().cut;
    assert_eq!(far.unmount().unwrap_err().message, "busy: a backup is reading");
    far.finish(open, &Outcome::Unknown).unwrap();
    far.resolve_pending("mail", Some(vec![9])).unwrap();
    let mail = far.status().unwrap().consumers[0].clone();
    assert_eq!((mail.pending_cut(), mail.note), (None, vec![9]));
    far.resolve_pending("mail", None).unwrap();
    let begun = far.cut(&request("mail")).unwrap();
    far.finish(begun.cut, &Outcome::Unknown).unwrap();
    assert_eq!(far.advance("mail", Epoch(begun.epoch.0 + 1)), Ok(false));
    assert_eq!(far.advance("nobody", begun.epoch), Ok(false));
    assert_eq!(far.advance("mail", begun.epoch), Ok(true));
    assert_eq!(far.advance("mail", begun.epoch), Ok(false));
    assert_eq!(far.status().unwrap().consumers[0].mark, Some(begun.epoch));

    far.unmount().unwrap();
    assert!(served.tree.state().unmounted);
}

#[test]
fn errors_arrive_with_kind_text_and_path() {
    let served = Served::new();
    fill(&served.tree);
    let client = served.client();
    let cut = client.cut(&request("c")).unwrap().cut;
    let message = "cannot read \u{201c}x\u{201d}\n\0: \u{fffd}";
    for kind in [
        ErrorKind::Node,
        ErrorKind::PictureLost,
        ErrorKind::Log,
        ErrorKind::Gone,
        ErrorKind::Protocol,
    ] {
        let error = ServiceError {
            kind,
            message: message.to_owned(),
            path: Some(byteback_model::ByteString::from(&b"a/\xff\xfe"[..])),
        };
        served.tree.state().cut_error = Some(error.clone());
        assert_eq!(client.cut(&request("c")), Err(error));
    }
    // Each call hands on the error of its service, and the connection stays usable.
    let closed = CutId(77);
    let expect = |error: ServiceError, kind| assert_eq!(error.kind, kind, "{error}");
    expect(
        client.changes(closed, &ChangesCursor::default()).unwrap_err(),
        ErrorKind::PictureLost,
    );
    expect(
        client.attributes(closed, &[NodeId(1)]).unwrap_err(),
        ErrorKind::PictureLost,
    );
    expect(client.path(closed, NodeId(1)).unwrap_err(), ErrorKind::PictureLost);
    expect(client.note_batch(closed, 1).unwrap_err(), ErrorKind::PictureLost);
    expect(
        client.finish(closed, &Outcome::Abandoned).unwrap_err(),
        ErrorKind::PictureLost,
    );
    expect(client.resolve_pending("nobody", None).unwrap_err(), ErrorKind::Log);
    expect(read(&client, closed, 2, &[(0, 1)]).unwrap_err(), ErrorKind::PictureLost);
    let unreadable = read(&client, cut, 99, &[(0, 1)]).unwrap_err();
    assert_eq!(unreadable.path.as_ref().unwrap().as_bytes(), b"odd\xff name");
    assert_eq!(unreadable.kind, ErrorKind::Node);
    assert!(client.status().is_ok());
}

#[test]
fn a_big_answer_is_streamed() {
    const LEN: u64 = 200 << 20;
    let served = Served::new();
    served
        .tree
        .write(2, b"big", vec![Ok(vec![0x5a; usize::try_from(LEN).unwrap()])]);
    let client = served.client();
    let cut = client.cut(&request("c")).unwrap().cut;
    let (mut at, mut ahead_max) = (0, 0);
    client
        .read(cut, NodeId(2), &[(0, LEN)], &mut |piece| {
            let Piece::Data { offset, bytes } = piece else {
                panic!("{piece:?}")
            };
            assert_eq!(offset, at);
            assert!(bytes.iter().all(|byte| *byte == 0x5a));
            at += bytes.len() as u64;
            // Pieces that the service has handed over and we have not seen yet: buffers, not the
            // file.
            ahead_max = ahead_max.max((served.tree.state().pieces_sent * 100_000).saturating_sub(at));
            Ok(())
        })
        .unwrap();
    assert_eq!(at, LEN);
    assert!(ahead_max < 4 << 20, "{ahead_max} bytes were held in between");
    assert!(client.connection_buffer_bytes() <= 4 << 20);
}

#[test]
fn content_call_stops_when_the_reader_wants_no_more() {
    const LEN: u64 = 100 << 20;
    let served = Served::new();
    served
        .tree
        .write(2, b"big", vec![Ok(vec![1; usize::try_from(LEN).unwrap()])]);
    let client = served.client();
    let cut = client.cut(&request("c")).unwrap().cut;
    for round in 1..=20 {
        let mut pieces = 0;
        let refused = client.read(cut, NodeId(2), &[(0, LEN)], &mut |_| {
            pieces += 1;
            if pieces == round {
                return Err(ServiceError::new(ErrorKind::Node, "the disk is full here"));
            }
            assert!(pieces < round, "a sink that refused was asked again");
            Ok(())
        });
        assert_eq!(refused.unwrap_err().message, "the disk is full here");
        // The connection is where it should be.
        assert_eq!(client.status().unwrap().open_nodes, 1);
    }
    let sent = served.tree.state().pieces_sent * 100_000;
    assert!(sent < LEN, "{sent} bytes were sent to somebody who did not want them");

    // Also when everything was sent before the refusal could be heard of.
    served
        .tree
        .write(4, b"small", vec![Ok(vec![1; 10]), Err(10), Ok(vec![2; 10])]);
    let cut = client.cut(&request("c")).unwrap().cut;
    for _ in 0..200 {
        let refused = client.read(cut, NodeId(4), &[(0, 30)], &mut |_| {
            Err(ServiceError::new(ErrorKind::Node, "no"))
        });
        assert_eq!(refused.unwrap_err().message, "no");
        assert_eq!(read(&client, cut, 4, &[(0, 10)]).unwrap(), [Read::Data(0, vec![1; 10])]);
    }
}

#[test]
fn several_clients_are_served_at_once() {
    let served = Arc::new(Served::new());
    fill(&served.tree);
    let threads: Vec<_> = (0..8_u64)
        .map(|number| {
            let served = Arc::clone(&served);
            std::thread::spawn(move || {
                let client = served.client();
                let name = format!("consumer {number}");
                for round in 0..25 {
                    let cut = client.cut(&request(&name)).unwrap().cut;
                    let long = read(&client, cut, 8, &[(number * 1000, 100_000)]).unwrap();
                    let [Read::Data(offset, bytes)] = &long[..] else {
                        panic!("{long:?}")
                    };
                    assert_eq!(*offset, number * 1000);
                    let expected = |at: usize| ((number * 1000 + at as u64) % 253) as u8;
                    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
                    let note = vec![u8::try_from(round).unwrap(); 3];
                    client
                        .finish(
                            cut,
                            &Outcome::Saved {
                                note: note.clone(),
                                unsaved: vec![],
                            },
                        )
                        .unwrap();
                    let status = client.status().unwrap();
                    let own = status.consumers.iter().find(|consumer| consumer.name == name).unwrap();
                    assert_eq!(own.note, note);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(served.tree.state().finished.len(), 200);
}

#[test]
fn one_client_is_shared_by_threads() {
    let served = Served::new();
    fill(&served.tree);
    let client = served.client();
    let cut = client.cut(&request("c")).unwrap().cut;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(client.status().unwrap().pid, 4242);
                    assert_eq!(
                        read(&client, cut, 2, &[(1, 3)]).unwrap(),
                        [Read::Data(1, b"ell".to_vec())]
                    );
                }
            });
        }
    });
}

#[test]
fn a_slow_request_holds_up_nobody_else() {
    let served = Served::new();
    served
        .tree
        .write(super::memory_tree::WAITING.0, b"slow", vec![Ok(vec![1; 10])]);
    let slow = served.client();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let cut = slow.cut(&request("slow")).unwrap().cut;
            read(&slow, cut, super::memory_tree::WAITING.0, &[(0, 10)])
        });
        soon("the slow request arrives", || served.tree.state().waiting == 1);
        for _ in 0..10 {
            served.serves_others();
        }
        served.tree.open_gate();
        assert_eq!(reading.join().unwrap().unwrap(), [Read::Data(0, vec![1; 10])]);
    });
}

#[test]
fn an_answer_that_fits_no_frame_is_an_error_and_not_the_end() {
    let served = Served::with(Limits {
        answer_len_max: 2000,
        ..Limits::DEFAULT
    });
    for node in 2..5 {
        served.tree.write(node, &vec![b'n'; 1000], vec![]);
    }
    let client = served.client();
    let cut = client.cut(&request("c")).unwrap().cut;
    let nodes = [NodeId(2), NodeId(3), NodeId(4)];
    let error = client.attributes(cut, &nodes).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Protocol);
    assert!(error.message.contains("too long"), "{error}");
    assert!(client.attributes(cut, &nodes[..1]).unwrap()[0].is_ok());
}

#[test]
fn a_request_that_fits_no_frame_is_refused_here() {
    let served = Served::new();
    let client = served.client();
    let error = client.resolve_pending("c", Some(vec![255; 20 << 20])).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Protocol);
    assert!(error.message.contains("too long"), "{error}");
    assert!(client.status().is_ok());
}

#[test]
fn named_cuts_outlive_the_connection_that_opened_them() {
    let served = Served::new();
    let direct = MemoryTree::default();
    let (one, other) = (served.client(), served.client());
    for name in [&b"plain"[..], b"\xff odd"] {
        let name = byteback_model::ByteString::from(name);
        assert_eq!(one.open_cut(&name), direct.open_cut(&name));
        assert_eq!(one.open_cut(&name), direct.open_cut(&name), "refused likewise");
    }
    drop(one);
    assert_eq!(other.list_cuts(), direct.list_cuts());
    assert_eq!(other.list_cuts().unwrap().len(), 2);
    let name = byteback_model::ByteString::from("plain");
    for _ in 0..2 {
        assert_eq!(other.close_cut(&name), direct.close_cut(&name));
    }
    assert_eq!(other.list_cuts(), direct.list_cuts());
}
