//! A socket of this machine as a [`Connection`].

use super::network::Connection;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connection to a process of this machine.
#[derive(Debug)]
pub struct UnixConnection {
    stream: UnixStream,
}

impl UnixConnection {
    /// A connection over a socket that blocks.
    #[must_use]
    pub fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// Whether nothing came and the other end is there.
    fn is_silent(&mut self) -> io::Result<bool> {
        self.stream.set_nonblocking(true)?;
        let came = self.stream.read(&mut [0]);
        self.stream.set_nonblocking(false)?;
        Ok(came.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock))
    }
}

/// The system's name for the end of a timeout differs from that of a [`Connection`].
fn in_time<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    })
}

/// Without any time, the system would wait for ever.
fn limit(patience: Duration) -> Option<Duration> {
    Some(patience.max(Duration::from_millis(1)))
}

impl Connection for UnixConnection {
    fn send(&mut self, bytes: &[u8], patience: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(limit(patience))?;
        in_time(self.stream.write_all(bytes))
    }

    fn receive(&mut self, buffer: &mut [u8], patience: Duration) -> io::Result<usize> {
        self.stream.set_read_timeout(limit(patience))?;
        loop {
            match self.stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                came => return in_time(came),
            }
        }
    }

    fn is_open(&mut self) -> bool {
        // Between two calls the other end says nothing, unless it ends the connection.
        self.is_silent().unwrap_or(false)
    }
}
