//! Counters of the server, in Prometheus' text format. None of them carries a folder's or a file's
//! name.

use byteback_api::routes::Route;
use byteback_store::sums::SumsCost;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the server started.
#[derive(Debug)]
pub(crate) struct Metrics {
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    connections_opened: AtomicU64,
    connections_closed: AtomicU64,
    strangers: AtomicU64,
    members: AtomicU64,
    strangers_turned_out: AtomicU64,
    members_refused: AtomicU64,
    heads_late: AtomicU64,
    pub(crate) batches_applied: AtomicU64,
    pub(crate) batches_repeated: AtomicU64,
    pub(crate) stored_bytes: AtomicU64,
    pub(crate) searched_bytes: AtomicU64,
    pub(crate) defragmented_bytes: AtomicU64,
    /// Requests per route, and per class of status (1xx to 5xx).
    requests: Vec<[AtomicU64; 5]>,
    other_requests: AtomicU64,
    unauthorized: AtomicU64,
}

fn add(counter: &AtomicU64, by: usize) {
    counter.fetch_add(u64::try_from(by).unwrap_or(0), Ordering::Relaxed);
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            connections_opened: AtomicU64::new(0),
            connections_closed: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            members: AtomicU64::new(0),
            strangers_turned_out: AtomicU64::new(0),
            members_refused: AtomicU64::new(0),
            heads_late: AtomicU64::new(0),
            batches_applied: AtomicU64::new(0),
            batches_repeated: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            searched_bytes: AtomicU64::new(0),
            defragmented_bytes: AtomicU64::new(0),
            requests: Route::ALL.iter().map(|_| Default::default()).collect(),
            other_requests: AtomicU64::new(0),
            unauthorized: AtomicU64::new(0),
        }
    }

    pub(crate) fn received(&self, bytes: usize) {
        add(&self.received_bytes, bytes);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        add(&self.sent_bytes, bytes);
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections_opened.load(Ordering::Relaxed)
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn connection_opened(&self) {
        add(&self.connections_opened, 1);
    }

    pub(crate) fn connection_closed(&self) {
        add(&self.connections_closed, 1);
    }

    /// Sets the number of connections of each kind that have a place.
    pub(crate) fn at_the_door(&self, strangers: usize, members: usize) {
        self.strangers
            .store(u64::try_from(strangers).unwrap_or(0), Ordering::Relaxed);
        self.members
            .store(u64::try_from(members).unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn stranger_turned_out(&self) {
        add(&self.strangers_turned_out, 1);
    }

    pub(crate) fn member_refused(&self) {
        add(&self.members_refused, 1);
    }

    pub(crate) fn head_was_late(&self) {
        add(&self.heads_late, 1);
    }

    /// Counts an answered request; `None` for an address without a route.
    pub(crate) fn answered(&self, route: Option<Route>, status: u16) {
        if status == 401 {
            add(&self.unauthorized, 1);
        }
        let index = route.and_then(|route| Route::ALL.iter().position(|known| *known == route));
        let class = usize::from(status / 100).saturating_sub(1);
        match index
            .and_then(|index| self.requests.get(index))
            .and_then(|classes| classes.get(class))
        {
            Some(counter) => add(counter, 1),
            None => add(&self.other_requests, 1),
        }
    }

    pub(crate) fn to_text(&self, sums: SumsCost) -> String {
        let mut out = String::new();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let open = load(&self.connections_opened).saturating_sub(load(&self.connections_closed));
        let simple = [
            (
                "received_bytes_total",
                "counter",
                "Bytes read from connections.",
                load(&self.received_bytes),
            ),
            (
                "sent_bytes_total",
                "counter",
                "Bytes written to connections.",
                load(&self.sent_bytes),
            ),
            (
                "connections_opened_total",
                "counter",
                "Connections accepted.",
                load(&self.connections_opened),
            ),
            ("connections", "gauge", "Open connections.", open),
            (
                "member_connections",
                "gauge",
                "Open connections that have shown a valid token.",
                load(&self.members),
            ),
            (
                "stranger_connections",
                "gauge",
                "Open connections that have shown no valid token.",
                load(&self.strangers),
            ),
            (
                "strangers_turned_out_total",
                "counter",
                "Connections without a valid token that were closed to make room for newer ones.",
                load(&self.strangers_turned_out),
            ),
            (
                "members_refused_total",
                "counter",
                "Requests with a valid token that were refused because devices had too many connections open.",
                load(&self.members_refused),
            ),
            (
                "late_heads_total",
                "counter",
                "Connections closed because the head of a request did not arrive in time.",
                load(&self.heads_late),
            ),
            (
                "batches_applied_total",
                "counter",
                "Batches applied.",
                load(&self.batches_applied),
            ),
            (
                "batches_repeated_total",
                "counter",
                "Commits of batches that had been applied before.",
                load(&self.batches_repeated),
            ),
            (
                "stored_bytes_total",
                "counter",
                "Bytes of literal frames that batches added.",
                load(&self.stored_bytes),
            ),
            (
                "defragmented_bytes_total",
                "counter",
                "Bytes of frames written again to keep together what is read of scattered contents.",
                load(&self.defragmented_bytes),
            ),
            (
                "searched_bytes_total",
                "counter",
                "Bytes of stored contents searched for blocks or chunks of other contents.",
                load(&self.searched_bytes),
            ),
            (
                "signature_read_bytes_total",
                "counter",
                "Bytes of contents read for signatures.",
                sums.signature_read_bytes,
            ),
            (
                "signature_unread_bytes_total",
                "counter",
                "Bytes of contents not read for signatures: their checksums were kept, or they are holes.",
                sums.signature_unread_bytes,
            ),
            (
                "proof_read_bytes_total",
                "counter",
                "Bytes of contents read to compare them with proofs.",
                sums.proof_read_bytes,
            ),
            (
                "proof_unread_bytes_total",
                "counter",
                "Bytes of contents compared with proofs without reading them: their checksums were kept, or they are holes.",
                sums.proof_unread_bytes,
            ),
            (
                "unauthorized_total",
                "counter",
                "Requests without a valid token.",
                load(&self.unauthorized),
            ),
            (
                "unrouted_requests_total",
                "counter",
                "Requests for addresses that do not exist.",
                load(&self.other_requests),
            ),
        ];
        // Writing to a string cannot fail.
        for (name, kind, help, value) in simple {
            let _ = writeln!(out, "# HELP byteback_server_{name} {help}");
            let _ = writeln!(out, "# TYPE byteback_server_{name} {kind}");
            let _ = writeln!(out, "byteback_server_{name} {value}");
        }
        let _ = writeln!(out, "# HELP byteback_server_requests_total Answered requests.");
        let _ = writeln!(out, "# TYPE byteback_server_requests_total counter");
        for (route, classes) in Route::ALL.iter().zip(&self.requests) {
            for (class, counter) in (1..).zip(classes) {
                let count = load(counter);
                if count > 0 {
                    let (method, path) = (route.method().as_str(), route.path());
                    let labels = format!("method=\"{method}\",path=\"{path}\",status=\"{class}xx\"");
                    let _ = writeln!(out, "byteback_server_requests_total{{{labels}}} {count}");
                }
            }
        }
        out
    }
}
