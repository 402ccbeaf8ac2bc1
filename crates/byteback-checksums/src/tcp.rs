//! The network as sources see it that speak a protocol of their own: a connection. Whoever runs the
//! program brings it; nothing here opens one.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

/// What is written to and read from.
pub trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// Connects to servers.
pub trait Connect {
    /// Connects. What is written and read ends in reasonable time, too, all of it together: a
    /// server that sends a byte now and then holds nobody up for long.
    ///
    /// # Errors
    /// If nobody answers at that address.
    fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Stream>>;
}
