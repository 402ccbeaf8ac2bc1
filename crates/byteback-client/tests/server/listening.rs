//! Listening to a folder: over connections that are cut, servers that restart, and servers with
//! answers that no honest one gives.

use byteback_api::{Code, Problem};
use byteback_client::{ClientOptions, ServerErrorKind, ServerNews};
use byteback_host::random::SplitMix64;
use byteback_store::StoreLimits;
use byteback_testkit::clients::patient;
use byteback_testkit::rig::Rig;
use byteback_testkit::scripted_server::{Answer, ENDLESS, scripted_server_with};
use byteback_testkit::seed::seed;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const STREAM: &str = "text/event-stream";

fn event(seq: u64) -> String {
    format!(
        "id: {seq}\nevent: batch\ndata: {{\"seq\":{seq},\"device\":1,\"counter\":{seq},\"created_ns\":0,\"host\":\"h\"}}\n\n"
    )
}

#[test]
fn listener_hears_batches_once_in_order_over_cuts_and_restarts() {
    let seed = seed(61);
    let mut random = SplitMix64::new(seed);
    let rig = Rig::new(seed);
    let batches = 40;
    let (mut heard, mut was_away) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let mut listening = rig.client.listen(&rig.folder, 0);
            while listening.after() < batches {
                match listening.hear().unwrap() {
                    ServerNews::Batch(batch) => heard.push((batch.seq, batch.device)),
                    ServerNews::Away(_) => was_away += 1,
                    ServerNews::Nothing => {}
                    ServerNews::Cancelled => panic!("nobody cancelled"),
                }
            }
        });
        for batch in 0..batches {
            rig.change(&mut random, 3);
            rig.tree.lock().create(
                byteback_model::NodeId::ROOT,
                format!("batch {batch}").as_bytes(),
                byteback_model::NodeKind::File,
            );
            rig.cutter.cut_after(random.below(5_000) as i64, false);
            if batch % 15 == 7 {
                rig.restart_server(StoreLimits::default());
            }
            rig.backup().unwrap();
        }
        rig.cutter.heal();
        listener.join().unwrap();
    });
    let expected: Vec<_> = (1..=batches).map(|seq| (seq, rig.options.device)).collect();
    assert_eq!(heard, expected);
    assert!(was_away > 0, "no connection of the listener was ever cut");
}

/// The batches and the error of a listener behind batch 3 that gets this answer.
fn listened(answer: impl Fn() -> Answer + Send + Sync + 'static) -> (Vec<u64>, ServerErrorKind, String) {
    let server = scripted_server_with(patient(), move |_, _| answer());
    let folder = "home".parse().unwrap();
    let mut listening = server.listen(&folder, 3);
    let mut heard = Vec::new();
    loop {
        match listening.hear() {
            Ok(ServerNews::Batch(batch)) => heard.push(batch.seq),
            Ok(_) => {}
            Err(error) => return (heard, error.kind, error.to_string()),
        }
    }
}

#[test]
fn listening_refuses_events_that_break_the_protocol() {
    let twice = event(5).replace("\n\n", "\ndata: x\n\n");
    for (what, stream, good) in [
        ("leaves one out", event(4) + &event(6), 1),
        ("tells one twice", event(4) + &event(4), 1),
        ("goes back", event(4) + &event(5) + &event(4), 2),
        ("begins too early", event(1), 0),
        ("two data", event(4) + &twice, 1),
        ("no data at all", "data: {}\n\n".to_owned(), 0),
        ("no number", "data: {\"seq\":\"4\"}\n\n".to_owned(), 0),
        ("the largest number", event(u64::MAX), 0),
    ] {
        let (heard, kind, message) = listened(move || (200, STREAM, stream.clone().into_bytes()));
        assert_eq!(heard, (4..4 + good).collect::<Vec<_>>(), "{what}");
        assert_eq!(kind, ServerErrorKind::Protocol, "{what}: {message}");
    }
    let long = ENDLESS.to_owned() + STREAM;
    let long: &'static str = Box::leak(long.into_boxed_str());
    for (media, body, expected) in [
        (long, vec![b'x'; 1000], "too many lines"),
        (STREAM, vec![b'x'; 100_000], "too long"),
    ] {
        let (_, kind, message) = listened(move || (200, media, body.clone()));
        assert_eq!(kind, ServerErrorKind::Protocol);
        assert!(message.contains(expected), "{message}");
    }
    let (_, kind, _) = listened(|| (200, "application/json", b"{}".to_vec()));
    assert_eq!(kind, ServerErrorKind::Protocol);
    for code in [Code::FolderNotFound, Code::Unauthorized, Code::InvalidParameter] {
        let (_, kind, message) = listened(move || {
            let problem = serde_json::to_vec(&Problem::new(code, "as the test wants it")).unwrap();
            (code.status(), "application/problem+json", problem)
        });
        assert!(!kind.is_transient(), "{message}");
    }
}

#[test]
fn comments_other_fields_and_other_line_ends_are_passed_over() {
    let calls = AtomicU64::new(0);
    let server = scripted_server_with(patient(), move |_, target| {
        assert!(target.ends_with("after=3") || target.ends_with("after=5"), "{target}");
        let stream = match calls.fetch_add(1, Ordering::SeqCst) {
            0 => format!(
                ": hello\r\n\r\nretry: 5\n{}{}",
                event(4).replace('\n', "\r\n"),
                event(5)
            ),
            _ => ":\n\n".to_owned() + &event(6).replace("data: ", "data:"),
        };
        (200, STREAM, stream.into_bytes())
    });
    let folder = "home".parse().unwrap();
    let mut listening = server.listen(&folder, 3);
    while listening.after() < 6 {
        listening.hear().unwrap();
    }
}

#[test]
fn listener_waits_for_a_server_in_growing_pauses_until_stopped() {
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let options = ClientOptions {
        is_cancelled: {
            let is_cancelled = Arc::clone(&is_cancelled);
            Arc::new(move || is_cancelled.load(Ordering::SeqCst))
        },
        ..patient()
    };
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let server = scripted_server_with(options, move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        (503, "text/plain", Vec::new())
    });
    let folder = "home".parse().unwrap();
    let mut listening = server.listen(&folder, 0);
    for _ in 0..6 {
        assert!(matches!(listening.hear().unwrap(), ServerNews::Away(_)));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 6);
    // 2 ms doubled again and again.
    assert_eq!(listening.longest_pause(), Duration::from_millis(2 << 5));
    is_cancelled.store(true, Ordering::SeqCst);
    assert_eq!(listening.hear().unwrap(), ServerNews::Cancelled);
    assert_eq!(asked.load(Ordering::SeqCst), 6);
}
