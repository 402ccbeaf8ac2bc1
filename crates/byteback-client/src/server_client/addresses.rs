//! A server that may be reached at several addresses: at home and from outside, by name and by
//! number.
//!
//! The first one is in its URL, which names the server wherever it is kept; the others are tried
//! when it cannot be connected to, in their order, within the same time. Only the connection goes
//! elsewhere: the expected certificate stays the same. Where another server answers (the number of
//! a server at home is another machine's in the next network), nothing is sent, and the next
//! address has its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Finds the addresses of a server.
pub(super) struct Addresses {
    inner: DefaultResolver,
    others: Vec<Uri>,
    turn: Turn,
}

/// The address that is tried first.
#[derive(Clone, Debug, Default)]
pub(super) struct Turn(Arc<AtomicUsize>);

impl Turn {
    /// Moves on to the next address.
    pub(super) fn pass_on(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Addresses")
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}

impl Addresses {
    /// The address in the URL, and these (`HOST:PORT`). Invalid ones are left out.
    pub(super) fn new(others: &[String], turn: Turn) -> Self {
        Self {
            inner: DefaultResolver::default(),
            others: others
                .iter()
                .filter_map(|other| format!("https://{other}").parse().ok())
                .collect(),
            turn,
        }
    }
}

impl Resolver for Addresses {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let first = self.inner.resolve(uri, config, timeout);
        if self.others.is_empty() {
            return first;
        }
        let mut all = self.empty();
        let mut found_at: Vec<_> = std::iter::once(first)
            .chain(
                self.others
                    .iter()
                    .map(|other| self.inner.resolve(other, config, timeout)),
            )
            .collect();
        let count = found_at.len();
        found_at.rotate_left(self.turn.0.load(Ordering::Relaxed) % count);
        let mut failed = None;
        for found in found_at {
            match found {
                Ok(found) => {
                    for address in &found {
                        // Addresses beyond the room in the list are more than anyone wants to wait
                        // for.
                        let _ = all.try_push(*address);
                    }
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match (all.is_empty(), failed) {
            (true, Some(error)) => Err(error),
            _ => Ok(all),
        }
    }
}
