//! The network as seen by sources that use a protocol of their own: a connection. The program
//! supplies the implementation; nothing here opens a connection.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

/// A connection to read from and write to.
pub trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A way to connect to servers.
pub trait Connect {
    /// Connects. All reading and writing on the connection, taken together, is limited to a
    /// reasonable time, so that a server that sends a byte now and then cannot block the caller for
    /// long.
    ///
    /// # Errors
    /// If no server answers at that address.
    fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Stream>>;
}
