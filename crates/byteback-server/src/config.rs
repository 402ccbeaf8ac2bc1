//! The configuration of a server.

use crate::guide::Guide;
use crate::tls::Identity;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Receives the messages that an operator must look at.
type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Configuration of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// Address to listen on; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The certificate to show; `None`: plain HTTP.
    pub identity: Option<Identity>,
    /// The pages to show below [`GUIDE_PATH`](crate::GUIDE_PATH).
    pub guide: Option<Guide>,
    /// Longest body that carries a piece of a batch, in bytes.
    pub part_len_max: u64,
    /// Open connections; all but `strangers_max` are for clients that have shown a valid token.
    /// Requests on further ones of these are refused.
    pub connections_max: usize,
    /// Open connections that have shown no valid token; the oldest make room for new ones.
    pub strangers_max: usize,
    /// Open connections from one address that have shown no valid token.
    pub strangers_per_address_max: usize,
    /// Transfers at work at once; further ones wait, and are refused after `idle_timeout`.
    pub streams_max: usize,
    /// Signatures that are made at once: each reads and hashes a whole content for a short request.
    /// Further ones wait, and are refused after `idle_timeout`.
    pub signatures_max: usize,
    /// Searches (`matches`, `chunks`, `groups`) that are at work or wait for their turn among the
    /// signatures: each keeps a list in memory, some 200 MiB for the longest. Further ones wait,
    /// and are refused after `idle_timeout`. A list counts once it has arrived; half of the places
    /// are open to lists that are too long to wait for.
    pub searches_max: usize,
    /// Clients that listen for events at once; further ones are refused.
    pub events_max: usize,
    /// Time between two signs of life to a client that listens for events.
    pub events_pause: Duration,
    /// Time for the head of a request on a connection that has shown no valid token; for the first
    /// head it begins when the connection opens.
    pub head_timeout: Duration,
    /// The same time on a connection that has shown one; it may idle that long.
    pub keep_timeout: Duration,
    /// Time for which a client may be silent inside a body, or refuse to take bytes.
    pub idle_timeout: Duration,
    /// Time for which a line may be open without a call.
    pub line_timeout: Duration,
    /// Time for requests at work to finish when the server stops.
    pub shutdown_timeout: Duration,
    /// Time between two collections of unreferenced data.
    pub collect_interval: Duration,
    /// Receives failures that are the server's own, and nothing else.
    pub report: Option<Report>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8730)),
            identity: None,
            guide: None,
            part_len_max: byteback_api::PART_LEN_MAX_DEFAULT,
            connections_max: 1024,
            strangers_max: 256,
            strangers_per_address_max: 64,
            streams_max: 64,
            signatures_max: 2,
            searches_max: 4,
            events_max: 512,
            events_pause: Duration::from_secs(15),
            head_timeout: Duration::from_secs(10),
            keep_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            line_timeout: Duration::from_secs(15 * 60),
            shutdown_timeout: Duration::from_secs(30),
            collect_interval: Duration::from_secs(3600),
            report: None,
        }
    }
}

impl std::fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerConfig")
            .field("listen", &self.listen)
            .finish_non_exhaustive()
    }
}

impl ServerConfig {
    pub(crate) fn report(&self, message: &str) {
        if let Some(report) = &self.report {
            report(message);
        }
    }
}
