//! The machine's network, with an action before each request is sent, or on its answer.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use byteback_sources::http::{Answer, Http, Request};
use byteback_sources::tcp::{Connect, Stream};

use crate::network::Network;

/// The network with actions; see the module.
pub(crate) struct Meddling<'a> {
    network: Network,
    before: &'a dyn Fn(usize),
    answered: &'a dyn Fn(&Request, &mut Answer),
    asked: AtomicUsize,
}

impl<'a> Meddling<'a> {
    /// Calls `before` with the number of each request, from 0 on; connections count, too.
    pub(crate) fn before(before: &'a dyn Fn(usize)) -> Self {
        Self {
            network: Network::new(None),
            before,
            answered: &|_, _| {},
            asked: AtomicUsize::new(0),
        }
    }

    /// Passes each answer to `answered` before it is read.
    pub(crate) fn answers(answered: &'a dyn Fn(&Request, &mut Answer)) -> Self {
        Self {
            answered,
            ..Self::before(&|_| {})
        }
    }

    /// Number of requests so far.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Http for Meddling<'_> {
    fn ask(&self, request: &Request) -> io::Result<Answer> {
        (self.before)(self.asked.fetch_add(1, Ordering::SeqCst));
        let mut answer = self.network.ask(request)?;
        (self.answered)(request, &mut answer);
        Ok(answer)
    }
}

impl Connect for Meddling<'_> {
    fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Stream>> {
        (self.before)(self.asked.fetch_add(1, Ordering::SeqCst));
        self.network.connect(address)
    }
}
