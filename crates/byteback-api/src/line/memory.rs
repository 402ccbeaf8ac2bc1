//! A stream in memory: what was read from a connection waits in it for a [`super::Line`], and what
//! the line sends, for the connection.
//!
//! Reading it never blocks, so that a line works where reading and writing are tasks.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

/// See the module.
#[derive(Debug, Default)]
pub struct Memory {
    incoming: VecDeque<u8>,
    outgoing: Vec<u8>,
}

impl Memory {
    /// Puts in what came from the other end.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.incoming.extend(bytes);
    }

    /// Takes out what is to go to the other end.
    #[must_use]
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }
}

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.incoming.read(buffer)? {
            0 if !buffer.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.outgoing.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
