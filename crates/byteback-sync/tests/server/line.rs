//! Bytes that small changes cost on their way out and in.

use crate::engine::{Sending, is_settled, parts, rig, stop, wait_until};
use byteback_client::ServerClient;
use byteback_daemon::LiveOptions;
use byteback_host::random::SplitMix64;
use byteback_queue::ClientId;
use byteback_sync::engine::Engine;
use byteback_testkit::clients::patient;
use byteback_testkit::mounted::{Mounted, Place};
use byteback_testkit::seed::seed;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;

/// Bytes that TLS 1.3 adds to each message.
const TLS_LEN: u64 = 22;

/// A machine whose engine waits for nothing, and its connections.
fn machine(place: &Place) -> (Mounted, Sending, Arc<ServerClient>) {
    let mut options = LiveOptions::new(ClientId(place.device));
    options.queue.delay_ns = 0;
    let mounted = Mounted::new(place, options);
    let (live, tree, landing) = (&mounted.live, &mounted.tree, &mounted.landing);
    let mut parts = parts(place, Arc::clone(live), Arc::clone(tree), Arc::clone(landing));
    let server = Arc::new(ServerClient::new(&place.url, &place.token, patient()).unwrap());
    parts.server = Arc::clone(&server);
    let mut engine = Engine::open(parts).unwrap();
    let sending = (engine.handle(), thread::spawn(move || engine.run()));
    (mounted, sending, server)
}

/// Of the sender, for each direction, TLS included.
#[test]
fn small_batch_costs_at_most_100_bytes_beside_its_content() {
    const BATCHES: u64 = 60;
    const LEN: u64 = 64;
    let seed = seed(86);
    let mut random = SplitMix64::new(seed);
    let rig = rig(seed);
    let here = Place::of(&rig, "here");
    let mut there = Place::of(&rig, "there");
    (there.token, there.device) = rig.another_token();
    fs::write(here.tree().join("image"), random.bytes(1 << 20)).unwrap();
    let (mounted, sending, server) = machine(&here);
    wait_until("the first state", &sending.0, |status| {
        is_settled(status) && rig.seq() > 0
    });
    let (other, receiving, server_of_other) = machine(&there);
    let has_all = || {
        let head = rig.seq();
        let arrives = |status: &byteback_control::SyncStatus| is_settled(status) && status.cursor >= head;
        wait_until("the other machine", &receiving.0, arrives);
    };
    has_all();
    let image = File::options().write(true).open(here.tree().join("image")).unwrap();
    let mut write = || {
        let seq = rig.seq();
        let bytes = random.bytes(LEN as usize);
        image.write_all_at(&bytes, random.below((1 << 20) - LEN)).unwrap();
        wait_until("a write", &sending.0, |status| is_settled(status) && rig.seq() > seq);
        has_all();
    };
    // The first one says everything.
    write();
    let (before, before_of_other, seq) = (server.wire_bytes(), server_of_other.wire_bytes(), rig.seq());
    for _ in 0..BATCHES {
        write();
    }
    let batches = rig.seq() - seq;
    assert!(batches <= BATCHES + 5, "{batches}");
    assert_eq!(
        fs::read(here.tree().join("image")).unwrap(),
        fs::read(there.tree().join("image")).unwrap()
    );
    let wire = server.wire_bytes().since(before);
    let of_other = server_of_other.wire_bytes().since(before_of_other);
    let each = |bytes: u64| bytes / batches;
    assert!(each(wire.sent) + TLS_LEN <= LEN + 100, "{wire:?}");
    // The answer, and the event.
    assert!(each(wire.received) + 2 * TLS_LEN <= 100, "{wire:?}");
    // Four questions, their answers, and the event.
    assert!(each(of_other.sent) + 4 * TLS_LEN <= 200, "{of_other:?}");
    assert!(each(of_other.received) + 5 * TLS_LEN <= LEN + 300, "{of_other:?}");
    drop(image);
    stop(receiving);
    stop(sending);
    other.end();
    mounted.end();
}
