//! Selective hashing: files that would be sent whole are looked for in the server's version.

use super::random_lives::{RandomLife, punch};
use byteback_api::{MEDIA_CHUNK_ANSWER, MEDIA_GROUP_ANSWER, MEDIA_MATCHES, MEDIA_SIGNATURE};
use byteback_backup::Silent;
use byteback_backup::decisions::{Cause, Decision, DeltaMethod, Fallback, last_decision};
use byteback_backup::{DeltaChoice, SnapshotSpec};
use byteback_control::TreeService;
use byteback_delta::chunks::{ChunkList, ChunkParams, MatchParams, list_chunks};
use byteback_delta::crc::CrcKind;
use byteback_delta::find::{BlockIndex, ReverseFinder, match_chunks, prove_matches};
use byteback_delta::groups::EqualGroups;
use byteback_delta::leaves::{LeafDigest, LeafKind};
use byteback_delta::signature::{Signature, SignatureParams, SignatureWriter};
use byteback_host::durable::DurableDir;
use byteback_host::random::{SplitMix64, noise};
use byteback_model::{NodeId, NodeKind};
use byteback_oplog::WholeReason;
use byteback_testkit::clients::patient;
use byteback_testkit::listener::RecordingMonitor;
use byteback_testkit::proxy::Cutter;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_server::Answer;
use byteback_testkit::seed::seed;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[test]
fn a_file_that_was_open_in_a_crash_costs_what_differs() {
    let rig = Rig::new(1);
    let file = rig.with_file(&noise(1, 2 << 20));
    rig.tree.lock().write(file, 700_000, &noise(2, 3000));
    for reason in [WholeReason::Interrupted, WholeReason::Untracked, WholeReason::Unsaved] {
        rig.tree.lock().write(file, 1_500_000, b"after all");
        rig.tree.lock().mark_whole(file, reason);
        let before = rig.client.wire_bytes();
        let report = rig.backup().unwrap();
        assert_eq!((report.everything_because, report.examined_files), (None, 1));
        // Blocks are 1448 bytes here.
        assert!(report.literal_bytes < 3000 + 4 * 1448, "{}", report.literal_bytes);
        // Differing blocks are read once more.
        let hashed = (2 << 20)..=(2 << 20) + 4 * 4096;
        assert!(hashed.contains(&report.hashed_bytes), "{}", report.hashed_bytes);
        assert_eq!(report.found_bytes + report.literal_bytes, 2 << 20);
        let wire = rig.client.wire_bytes().since(before);
        assert!(wire.total() < 40_000, "{wire:?}: mostly the signature");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn backup_of_a_rewritten_file_costs_only_its_insertion() {
    for part_len in [8 * 1024, 1 << 24] {
        let mut rig = Rig::new(2);
        rig.options.part_len_bytes = part_len;
        let mut bytes = noise(1, 3 << 20);
        let file = rig.with_file(&bytes);
        bytes.splice(1_000_001..1_000_001, noise(2, 50_000));
        {
            let mut state = rig.tree.lock();
            state.truncate(file, 0);
            state.write(file, 0, &bytes);
        }
        let report = rig.backup().unwrap();
        assert_eq!(report.examined_files, 1);
        // With small parts, the literals are appended first, in a dozen deltas.
        assert!(report.literal_bytes < 50_000 + 2 * 1768, "{}", report.literal_bytes);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        // The next changes build on it.
        rig.tree.lock().write(file, 1_000_100, b"more");
        let report = rig.backup().unwrap();
        assert_eq!((report.literal_bytes, report.examined_files), (4, 0));
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn small_new_and_unknown_files_are_sent_as_they_are() {
    let rig = Rig::new(3);
    let small = rig.with_file(&noise(1, 3000));
    rig.tree.lock().mark_whole(small, WholeReason::Interrupted);
    let new = rig.tree.lock().create(NodeId::ROOT, b"new", NodeKind::File);
    rig.tree.lock().write(new, 0, &noise(2, 200_000));
    let report = rig.backup().unwrap();
    assert_eq!((report.examined_files, report.hashed_bytes), (0, 0));
    assert_eq!(report.literal_bytes, 203_000);
    // A short content whose signature would be that of a long one.
    let mut rig = Rig::new(4);
    rig.options.part_len_bytes = 1 << 24;
    let long = rig.with_file(&noise(1, 40 << 20));
    {
        let mut state = rig.tree.lock();
        state.truncate(long, 70_000);
        state.mark_whole(long, WholeReason::Interrupted);
    }
    let report = rig.backup().unwrap();
    assert_eq!((report.examined_files, report.literal_bytes), (0, 70_000));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

const WAYS: [DeltaChoice; 6] = [
    DeltaChoice::Auto,
    DeltaChoice::Rsync,
    DeltaChoice::Hash,
    DeltaChoice::Webr,
    DeltaChoice::Cdc,
    DeltaChoice::Full,
];

#[test]
fn random_rewritings_come_back() {
    let seed = seed(11);
    for round in 0..8 {
        let mut life = RandomLife::new(seed + round, 300_000);
        for _ in 0..6 {
            life.rig.options.delta = WAYS[life.random.below(6) as usize];
            life.save();
            life.change(40_000, |state, random, file, bytes| {
                let way = random.below(3);
                if way > 0 {
                    state.truncate(file, 0);
                }
                state.write(file, 0, bytes);
                match way {
                    0 => {
                        // Only the log is unsure.
                        state.truncate(file, bytes.len() as u64);
                        state.mark_whole(file, WholeReason::Interrupted);
                    }
                    1 => {}
                    _ => punch(state, random, file, bytes),
                }
            });
        }
        life.check();
    }
}

/// A proxy that answers requests for help with finding changes by script, and forwards those that
/// the script leaves.
pub(super) fn scripted_proxy(
    script: impl Fn(&str) -> Option<Answer> + Send + Sync + 'static,
) -> impl FnOnce(Arc<Mutex<SocketAddr>>, Arc<Cutter>) -> SocketAddr {
    answering_proxy(move |asked| script(asked.call))
}

/// A question to the server.
pub(super) struct Asked<'a> {
    pub(super) call: &'a str,
    pub(super) query: &'a str,
    pub(super) body: &'a [u8],
}

/// As [`scripted_proxy`], for answers that depend on the question.
pub(super) fn answering_proxy(
    script: impl Fn(&Asked<'_>) -> Option<Answer> + Send + Sync + 'static,
) -> impl FnOnce(Arc<Mutex<SocketAddr>>, Arc<Cutter>) -> SocketAddr {
    move |to, _| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(script);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let (to, script) = (*to.lock().unwrap(), Arc::clone(&script));
                std::thread::spawn(move || answer_one(client, to, &*script));
            }
        });
        address
    }
}

fn answer_one(mut client: TcpStream, to: SocketAddr, script: &dyn Fn(&Asked<'_>) -> Option<Answer>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|len| len == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    if head.is_empty() {
        return;
    }
    let body_len: usize = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned))
        .map_or(0, |len| len.trim().parse().unwrap());
    let mut sent = vec![0; body_len];
    client.read_exact(&mut sent).unwrap();
    let target = head.split(' ').nth(1).unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let call = path.rsplit('/').next().unwrap();
    let asked = Asked {
        call,
        query,
        body: &sent,
    };
    if ["alike", "signature", "excerpt", "bytes", "groups", "matches", "chunks"].contains(&call)
        && let Some((status, media, body)) = script(&asked)
    {
        let len = body.len();
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {media}\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n"
        );
        let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&body));
        return;
    }
    let Ok(mut server) = TcpStream::connect(to) else { return };
    let head = head.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    let _ = server.write_all(head.as_bytes()).and_then(|()| server.write_all(&sent));
    let _ = std::io::copy(&mut server, &mut client);
}

pub(super) fn signature_of(content: &[u8]) -> Vec<u8> {
    let params = SignatureParams::for_content(content.len() as u64, 3);
    let mut writer = SignatureWriter::new(Vec::new(), params, content.len() as u64).unwrap();
    writer.push(content).unwrap();
    writer.finish().unwrap()
}

/// Backs a changed file up behind a server with this answer to requests for signatures; returns the
/// warnings, too.
fn behind(answer: Answer) -> (byteback_backup::BackupReport, Vec<String>, Rig) {
    backup_with_wrong_answer(DeltaChoice::Rsync, answer)
}

/// The same with a chosen method.
fn backup_with_wrong_answer(choice: DeltaChoice, answer: Answer) -> (byteback_backup::BackupReport, Vec<String>, Rig) {
    let mut rig = Rig::through(5, patient(), scripted_proxy(move |_| Some(answer.clone())));
    rig.options.delta = choice;
    rig.options.part_len_bytes = 64 * 1024;
    let base = noise(1, 1 << 20);
    let file = rig.with_file(&base);
    rig.tree.lock().write(file, 500_000, &noise(2, 100_000));
    rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
    let warnings = Mutex::new(Vec::new());
    let reported = RecordingMonitor::new(|event, _| {
        if let byteback_backup::Event::Warning(text) = event {
            warnings.lock().unwrap().push((*text).to_owned());
        }
    });
    let report = rig.backup_with_monitor(&reported).unwrap();
    drop(reported);
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    let warnings = warnings.into_inner().unwrap();
    (report, warnings, rig)
}

#[test]
fn backup_detects_a_foreign_signature_before_anything_counts() {
    // It claims to have what the client has.
    let mut new = noise(1, 1 << 20);
    new[500_000..600_000].copy_from_slice(&noise(2, 100_000));
    let (report, warnings, rig) = behind((200, MEDIA_SIGNATURE, signature_of(&new)));
    assert_eq!((report.examined_files, report.literal_bytes), (0, 1 << 20));
    assert!(warnings[0].contains("in full"), "{warnings:?}");
    assert_eq!(rig.seq(), 2, "what was refused left no trace");
    // Of another length: not even the delta fits.
    new.truncate(900_000);
    let (report, warnings, _rig) = behind((200, MEDIA_SIGNATURE, signature_of(&new)));
    assert_eq!(report.literal_bytes, 1 << 20);
    assert!(warnings[0].contains("in full"), "{warnings:?}");
    assert_eq!(report.everything_because, None);
}

/// The answer of a server that claims to have these groups of the client's content, and nothing
/// else.
fn groups_of(new: &[u8], equal: &[u64]) -> Vec<u8> {
    let mut digest = LeafDigest::with_groups(LeafKind::Blake3, new.len() as u64);
    digest.push(new);
    let (_, list) = digest.finish_with_groups().unwrap();
    let mut groups = EqualGroups::new(&list.listed(), new.len() as u64);
    equal.iter().for_each(|group| groups.set(*group));
    let mut stream = Vec::new();
    groups.write(&mut stream).unwrap();
    let left = groups.gathering().left_len_bytes(new.len() as u64);
    let mut writer = SignatureWriter::new(stream, groups.params(3), left).unwrap();
    writer.push_zeros(left).unwrap();
    writer.finish().unwrap()
}

#[test]
fn backup_detects_false_equal_groups_before_anything_counts() {
    let new = changed_content();
    for choice in [DeltaChoice::SkyF, DeltaChoice::SkyC] {
        let (report, warnings, rig) =
            backup_with_wrong_answer(choice, (200, MEDIA_GROUP_ANSWER, groups_of(&new, &[0])));
        assert_eq!(
            (report.examined_files, report.literal_bytes),
            (0, 1 << 20),
            "{choice:?}"
        );
        assert!(warnings[0].contains("in full"), "{warnings:?}");
        assert_eq!(rig.seq(), 2, "what was refused left no trace");
    }
}

#[test]
fn an_answer_to_groups_that_is_none_gets_the_file_whole() {
    let new = changed_content();
    let good = groups_of(&new, &[]);
    let mut damaged = good.clone();
    damaged[40] ^= 1;
    let longer = groups_of(&[&new[..], b"?"].concat(), &[]);
    for answer in [
        (404, "text/html", b"<h1>not here</h1>".to_vec()),
        (200, MEDIA_SIGNATURE, good.clone()),
        (200, MEDIA_GROUP_ANSWER, b"hello".to_vec()),
        (200, MEDIA_GROUP_ANSWER, damaged),
        (200, MEDIA_GROUP_ANSWER, longer),
        (200, MEDIA_GROUP_ANSWER, good[..good.len() - 1].to_vec()),
        (500, "text/plain", Vec::new()),
    ] {
        let (report, warnings, _) = backup_with_wrong_answer(DeltaChoice::SkyF, answer);
        assert_eq!((report.examined_files, report.literal_bytes), (0, 1 << 20));
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}

#[test]
fn backup_asks_an_older_server_for_groups_once_then_signatures() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let calls = Arc::clone(&asked);
    let script = move |call: &str| {
        calls.lock().unwrap().push(call.to_owned());
        let problem = byteback_api::Problem::new(byteback_api::Code::RouteNotFound, "POST /groups");
        (call == "groups").then(|| (404, "application/problem+json", serde_json::to_vec(&problem).unwrap()))
    };
    let mut rig = Rig::through(5, patient(), scripted_proxy(script));
    rig.options.delta = DeltaChoice::SkyF;
    let files: Vec<NodeId> = (0..3_u8)
        .map(|number| {
            let mut state = rig.tree.lock();
            let file = state.create(NodeId::ROOT, &[b'a' + number], NodeKind::File);
            state.write(file, 0, &noise(u64::from(number), 1 << 20));
            file
        })
        .collect();
    rig.backup().unwrap();
    asked.lock().unwrap().clear();
    for file in files {
        rig.tree.lock().write(file, 500_000, b"changed");
        rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
    }
    let report = rig.backup().unwrap();
    assert_eq!((report.examined_files, report.literal_bytes), (3, 3 * 4096));
    assert_eq!(
        *asked.lock().unwrap(),
        ["groups", "signature", "signature", "signature"]
    );
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_sends_the_file_whole_if_the_signature_is_unusable() {
    let problem = byteback_api::Problem::new(byteback_api::Code::RouteNotFound, "GET /signature");
    let problem = serde_json::to_vec(&problem).unwrap();
    let good = signature_of(&noise(1, 1 << 20));
    let mut damaged = good.clone();
    damaged[200] ^= 1;
    let mut greedy =
        SignatureWriter::new(Vec::new(), SignatureParams::with_block_len(1 << 40, 256, 1), 1 << 40).unwrap();
    greedy.push(&[1; 5000]).unwrap();
    for answer in [
        (404, "application/problem+json", problem),
        (404, "text/html", b"<h1>not here</h1>".to_vec()),
        (200, "application/octet-stream", good.clone()),
        (200, MEDIA_SIGNATURE, b"hello".to_vec()),
        (200, MEDIA_SIGNATURE, damaged),
        (200, MEDIA_SIGNATURE, good[..good.len() - 1].to_vec()),
        (500, "text/plain", Vec::new()),
    ] {
        let (report, warnings, _) = behind(answer);
        assert_eq!((report.examined_files, report.hashed_bytes), (0, 0));
        assert_eq!(report.literal_bytes, 1 << 20);
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}

/// The answer of a server that has `base` when it is asked for the blocks of `new`.
fn matches_of(new: &[u8], base: &[u8]) -> Vec<u8> {
    let index = BlockIndex::new(Signature::of(new, SignatureParams::for_content(new.len() as u64, 1)));
    let mut finder = ReverseFinder::new(&index);
    finder.push(base);
    let mut bytes = Vec::new();
    finder.finish().0.write(&mut bytes).unwrap();
    bytes
}

fn chunks_of(content: &[u8]) -> ChunkList {
    let params = ChunkParams::for_content(content.len() as u64);
    list_chunks(content, None, params, CrcKind::Crc32c).unwrap().0
}

/// The same for chunks.
fn chunk_answer_of(new: &[u8], base: &[u8], params: MatchParams) -> Vec<u8> {
    let list = chunks_of(new);
    let runs = match_chunks(&list, &chunks_of(base));
    let mut bytes = Vec::new();
    let (answer, _) = prove_matches(&list, &runs, base, params).unwrap();
    answer.write_to(&list, &mut bytes).unwrap();
    bytes
}

/// The client's content in [`backup_with_wrong_answer`].
fn changed_content() -> Vec<u8> {
    let mut new = noise(1, 1 << 20);
    new[500_000..600_000].copy_from_slice(&noise(2, 100_000));
    new
}

#[test]
fn backup_detects_invented_matches_before_anything_counts() {
    let new = changed_content();
    // It claims to have the client's content, at its place or at another one, even beyond its end.
    for shift in [0, 100, 200_000] {
        let base = [noise(9, shift), new.clone()].concat();
        let proven = MatchParams::new(3);
        let unproven = MatchParams::for_whole_proof(3);
        for (choice, answer) in [
            (DeltaChoice::Webr, (200, MEDIA_MATCHES, matches_of(&new, &base))),
            (
                DeltaChoice::Cdc,
                (200, MEDIA_CHUNK_ANSWER, chunk_answer_of(&new, &base, proven)),
            ),
            (
                DeltaChoice::Cdc,
                (200, MEDIA_CHUNK_ANSWER, chunk_answer_of(&new, &base, unproven)),
            ),
        ] {
            let (report, warnings, rig) = backup_with_wrong_answer(choice, answer);
            assert_eq!((report.examined_files, report.literal_bytes), (0, 1 << 20));
            assert!(warnings[0].contains("in full"), "{warnings:?}");
            assert_eq!(report.everything_because, None);
            assert_eq!(rig.seq(), 2, "what was refused left no trace");
        }
    }
}

#[test]
fn backup_sends_the_file_whole_if_the_search_answer_is_unusable() {
    let new = changed_content();
    let problem = byteback_api::Problem::new(byteback_api::Code::RouteNotFound, "POST /matches");
    let problem = serde_json::to_vec(&problem).unwrap();
    let other = noise(5, 1 << 19);
    for (choice, media, good, foreign) in [
        (
            DeltaChoice::Webr,
            MEDIA_MATCHES,
            matches_of(&new, &new),
            matches_of(&other, &other),
        ),
        (
            DeltaChoice::Cdc,
            MEDIA_CHUNK_ANSWER,
            chunk_answer_of(&new, &new, MatchParams::new(1)),
            chunk_answer_of(&other, &other, MatchParams::new(1)),
        ),
    ] {
        let mut damaged = good.clone();
        *damaged.last_mut().unwrap() ^= 1;
        for answer in [
            (404, "application/problem+json", problem.clone()),
            (405, "text/plain", Vec::new()),
            (404, "text/html", b"<h1>not here</h1>".to_vec()),
            (200, "application/octet-stream", good.clone()),
            (200, media, b"hello".to_vec()),
            (200, media, damaged),
            (200, media, foreign),
            (200, media, good[..good.len() - 1].to_vec()),
            (500, "text/plain", Vec::new()),
        ] {
            let (report, warnings, _rig) = backup_with_wrong_answer(choice, answer);
            assert_eq!((report.examined_files, report.hashed_bytes), (0, 0));
            assert_eq!(report.literal_bytes, 1 << 20);
            assert!(warnings.is_empty(), "{warnings:?}");
        }
    }
}

#[test]
fn backup_asks_once_for_a_missing_call_and_still_for_others() {
    let problem = byteback_api::Problem::new(byteback_api::Code::RouteNotFound, "POST /matches");
    let problem = serde_json::to_vec(&problem).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    let script = move |call: &str| {
        heard.lock().unwrap().push(call.to_owned());
        (call == "matches").then(|| (404, "application/problem+json", problem.clone()))
    };
    let mut rig = Rig::through(6, patient(), scripted_proxy(script));
    let mut files = Vec::new();
    for number in 0..4_u64 {
        let name = format!("f{number}");
        let file = rig.tree.lock().create(NodeId::ROOT, name.as_bytes(), NodeKind::File);
        rig.tree.lock().write(file, 0, &noise(number, 100_000));
        files.push(file);
    }
    rig.backup().unwrap();
    for (choice, examined, calls) in [
        (DeltaChoice::Webr, 0, vec!["matches"]),
        (DeltaChoice::Cdc, 4, vec!["chunks"; 4]),
        (DeltaChoice::Rsync, 4, vec!["signature"; 4]),
    ] {
        for file in &files {
            rig.tree.lock().write(*file, 5000, &noise(choice as u64 + 50, 100));
        }
        rig.options.delta = choice;
        asked.lock().unwrap().clear();
        assert_eq!(rig.backup().unwrap().examined_files, examined, "{choice:?}");
        assert_eq!(*asked.lock().unwrap(), calls);
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
}

#[test]
fn a_file_of_too_many_pieces_is_sent_whole_as_it_was_at_the_cut() {
    // The tree forbids reading again what it no longer holds still.
    for choice in [DeltaChoice::Rsync, DeltaChoice::Hash, DeltaChoice::Webr] {
        for has_sums in [false, true] {
            let mut rig = Rig::new(14);
            rig.options.part_len_bytes = 1 << 20;
            if has_sums {
                rig.keep_checksums();
            }
            let decisions = rig.keep_decisions();
            let len = 2 << 20;
            let mut bytes = noise(1, len);
            let file = rig.with_file(&bytes);
            // Every other block of 1448 bytes.
            for at in (0..len).step_by(2 * 1448) {
                bytes[at] ^= 1;
            }
            rig.tree.lock().write(file, 0, &bytes);
            rig.options.delta = choice;
            let report = rig.backup().unwrap();
            let decision = decided(&rig, &decisions, file);
            assert_eq!(decision.fallback, Some(Fallback::TooScattered), "{choice:?}");
            assert_eq!((report.examined_files, report.unsaved.len()), (0, 0));
            rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
            // The sums known afterwards are of the server's content.
            rig.options.delta = DeltaChoice::Auto;
            rig.tree.lock().write(file, 1000, b"more");
            rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
            rig.backup().unwrap();
            rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        }
    }
}

#[test]
fn backup_detects_unstable_content_before_anything_counts() {
    for choice in [DeltaChoice::Webr, DeltaChoice::Cdc] {
        for is_found in [false, true] {
            let mut rig = Rig::new(15);
            rig.keep_checksums();
            rig.options.delta = choice;
            let file = rig.with_file(&noise(1, 300_000));
            let changed = if is_found { 50_000 } else { 300_000 };
            rig.tree.lock().write(file, 0, &noise(2, changed));
            rig.tree.is_peek_wrong.store(true, std::sync::atomic::Ordering::Relaxed);
            let report = rig.backup().unwrap();
            assert_eq!((report.examined_files, report.literal_bytes), (0, 300_000));
            assert_eq!(rig.seq(), 2);
            rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        }
    }
}

#[test]
fn backup_batch_is_untouched_by_a_file_that_fails_anywhere() {
    let seed = seed(21);
    let mut random = SplitMix64::new(seed);
    for choice in [DeltaChoice::Webr, DeltaChoice::Cdc] {
        for _ in 0..8 {
            let mut rig = Rig::new(seed);
            rig.keep_checksums();
            let mut bytes = noise(1, 400_000);
            let file = rig.with_file(&bytes);
            let other = rig.tree.lock().create(NodeId::ROOT, b"other", NodeKind::File);
            bytes.splice(1000..1000, noise(2, 60_000));
            rig.tree.lock().write(file, 0, &bytes);
            rig.tree.lock().write(other, 0, &noise(3, 100_000));
            rig.options.delta = choice;
            // In the first reading, or in the second one.
            let fails_at = random.below(500_000) as usize;
            rig.tree.lock().failing.insert(file, fails_at);
            let report = rig.backup().unwrap();
            rig.tree.lock().failing.clear();
            assert_eq!(report.is_complete(), fails_at >= bytes.len(), "{fails_at}");
            rig.backup().unwrap();
            rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        }
    }
}

#[test]
fn a_connection_that_breaks_in_a_search_is_made_again() {
    for choice in [DeltaChoice::Webr, DeltaChoice::Cdc] {
        // In the list, or in the answer.
        for cut_after in [500, 6_000] {
            let mut rig = Rig::new(9);
            rig.options.part_len_bytes = 1 << 20;
            let file = rig.with_file(&noise(1, 8 << 20));
            rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
            rig.options.delta = choice;
            rig.cutter.cut_after(cut_after, false);
            let report = byteback_backup::backup(&rig.tree, &rig.client, &rig.folder, &rig.options, &Silent).unwrap();
            assert_eq!((report.examined_files, report.literal_bytes), (1, 0));
            rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
        }
    }
}

#[test]
fn client_reconnects_when_a_signature_breaks_off() {
    let rig = Rig::new(9);
    let file = rig.with_file(&noise(1, 8 << 20));
    rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
    // In the middle of the signature, which has 40 KiB.
    rig.cutter.cut_after(20_000, false);
    let report = byteback_backup::backup(&rig.tree, &rig.client, &rig.folder, &rig.options, &Silent).unwrap();
    assert_eq!((report.examined_files, report.literal_bytes), (1, 0));
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

#[test]
fn backup_after_foreign_changes_stores_no_wrong_content() {
    // The base is the one at the note's sequence number, also when the folder has gone on.
    let rig = Rig::new(10);
    let file = rig.with_file(&noise(1, 1 << 20));
    let other = byteback_testkit::scripted_tree::ScriptedTree::new(60);
    *other.lock() = rig.tree.lock().duplicate();
    other.lock().write(file, 100, &noise(5, 100_000));
    byteback_backup::backup(&other, &rig.client, &rig.folder, &rig.options, &Silent).unwrap();
    rig.tree.lock().write(file, 300_000, &noise(6, 1000));
    rig.tree.lock().mark_whole(file, WholeReason::Interrupted);
    rig.backup().unwrap();
    rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
}

/// The decision about a file in the last backup.
pub(super) fn decided(rig: &Rig, dir: &Arc<dyn DurableDir>, file: NodeId) -> Decision {
    let tree = rig.tree.status().unwrap().tree;
    let decided = last_decision(dir.as_ref(), tree, file).unwrap().unwrap();
    assert_eq!(decided.seq, rig.seq());
    decided.decision
}

#[test]
fn each_way_to_find_a_change_finds_it_and_is_on_record() {
    let mut rig = Rig::new(12);
    let decisions = rig.keep_decisions();
    let len = 1_000_003;
    let file = rig.with_file(&noise(1, len as usize));
    let first = decided(&rig, &decisions, file);
    assert_eq!((first.method, first.cause), (DeltaMethod::Full, Cause::New));
    assert_eq!(
        (first.size_bytes, first.changed_bytes, first.literal_bytes),
        (len, len, len)
    );
    for (number, (choice, method, cause)) in [
        (DeltaChoice::Auto, DeltaMethod::Log, Cause::LogKnew),
        (DeltaChoice::Rsync, DeltaMethod::Rsync, Cause::Asked),
        (DeltaChoice::Hash, DeltaMethod::Hash, Cause::Asked),
        (DeltaChoice::Webr, DeltaMethod::Webr, Cause::Asked),
        (DeltaChoice::Cdc, DeltaMethod::Cdc, Cause::Asked),
        (DeltaChoice::Full, DeltaMethod::Full, Cause::Asked),
    ]
    .into_iter()
    .enumerate()
    {
        rig.options.delta = choice;
        let number = number as u64;
        rig.tree
            .lock()
            .write(file, 100_000 * (1 + number), &noise(20 + number, 3000));
        let report = rig.backup().unwrap();
        let read_bytes = report.read_bytes;
        let decision = decided(&rig, &decisions, file);
        assert_eq!(
            (decision.method, decision.cause, decision.fallback),
            (method, cause, None)
        );
        let read_bytes_expected = match method {
            DeltaMethod::Log => 3000..=3000,
            // Once for the search, and once more for bytes that the server lacks; short runs of
            // chunks are proven.
            DeltaMethod::Webr => len + decision.literal_bytes..=len + decision.literal_bytes,
            DeltaMethod::Cdc => len + decision.literal_bytes..=len + decision.literal_bytes + 10 * 12 * 1024,
            _ => len..=len,
        };
        assert!(read_bytes_expected.contains(&read_bytes), "{read_bytes} {decision:?}");
        assert_eq!((decision.size_bytes, decision.changed_bytes), (len, 3000));
        assert_eq!(
            (decision.hashed_bytes, decision.found_bytes, decision.literal_bytes),
            (report.hashed_bytes, report.found_bytes, report.literal_bytes)
        );
        let literal_max = match method {
            DeltaMethod::Log => 3000,
            DeltaMethod::Full => len,
            // Chunks have 12 KiB at most.
            DeltaMethod::Cdc => 3000 + 3 * 12 * 1024,
            // Blocks have 1,000 bytes.
            _ => 3000 + 2 * 1000,
        };
        assert!((3000..=literal_max).contains(&decision.literal_bytes), "{decision:?}");
        assert_eq!(
            decision.hashed_bytes,
            if matches!(method, DeltaMethod::Log | DeltaMethod::Full) {
                0
            } else {
                len
            }
        );
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
    // An insertion shifts the rest out of sight of blocks at multiples of their length.
    let mut bytes = noise(3, len as usize);
    rig.tree.lock().write(file, 0, &bytes);
    rig.options.delta = DeltaChoice::Auto;
    rig.backup().unwrap();
    for (choice, sent) in [
        (DeltaChoice::Hash, 900_000..=len + 200),
        (DeltaChoice::Rsync, 100..=3000),
        (DeltaChoice::Webr, 100..=3000),
        (DeltaChoice::Cdc, 100..=30_000),
    ] {
        bytes.splice(1000..1000, noise(4, 100));
        rig.tree.lock().write(file, 0, &bytes);
        rig.options.delta = choice;
        rig.backup().unwrap();
        let decision = decided(&rig, &decisions, file);
        assert!(sent.contains(&decision.literal_bytes), "{decision:?}");
        rig.assert_snapshot(SnapshotSpec::default(), &rig.tree.picture());
    }
    // A backup that is not applied is not on record.
    rig.tree.lock().write(file, 0, b"once more");
    rig.options.delta = DeltaChoice::Full;
    rig.cutter.cut_after(0, true);
    let seq = rig.seq();
    rig.backup().unwrap_err();
    assert_eq!(rig.seq(), seq);
    assert_eq!(decided(&rig, &decisions, file).method, DeltaMethod::Cdc);
    rig.cutter.heal();
    rig.backup().unwrap();
    assert_eq!(decided(&rig, &decisions, file).method, DeltaMethod::Full);
}
