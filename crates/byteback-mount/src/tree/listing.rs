//! Listing directories without keeping them open for the kernel.
//!
//! The kernel lists a directory in pieces and names the position of each by the cookie of the entry
//! before it, which is the backing file system's own. So each piece could be answered by opening,
//! seeking and reading anew. Because the system hands out more entries than fit in one answer, a
//! *stream* with the rest is kept for the reader that asks for the next piece. A change in the
//! directory makes its streams worthless (they may hold a name that is gone); then the next piece
//! is really read anew.
//!
//! This relies on cookies that stay valid while names come and go: ext4, XFS, btrfs, F2FS, ZFS and
//! tmpfs of Linux 6.6 and later have such. Where they are positions in a list (overlayfs, older
//! tmpfs), a program that removes names *between* two pieces of one listing may miss some.

use std::ffi::OsStr;
use std::io;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use byteback_host::tree::{Entries, Entry, Inode};
use byteback_model::NodeKind;

use super::{Found, Tree};
use crate::inodes::InodeNumber;

/// Listings that go on at the same time; more only cost reading anew.
const STREAM_COUNT_MAX: usize = 32;

/// A stream that was not asked for until then was left behind. Names may have changed below us, of
/// which we hear nothing.
const STREAM_AGE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Stream {
    node: InodeNumber,
    cookie: u64,
    /// The entry that did not fit.
    waiting: Option<Entry>,
    rest: Entries,
    put_at: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ListingPool {
    streams: Vec<Stream>,
    /// The directories that are being read just now, each with a ticket. A change in one takes its
    /// tickets away, and a stream without its ticket is not put back.
    tickets: Vec<(u64, InodeNumber)>,
    tickets_given: u64,
}

impl ListingPool {
    /// Names in `node` changed.
    pub(crate) fn changed(&mut self, node: InodeNumber) {
        self.streams.retain(|stream| stream.node != node);
        self.tickets.retain(|(_, read)| *read != node);
    }

    fn begin(&mut self, node: InodeNumber) -> u64 {
        self.tickets_given = self.tickets_given.wrapping_add(1);
        self.tickets.push((self.tickets_given, node));
        self.tickets_given
    }

    /// Reading ended; `stream` goes on if nothing changed meanwhile.
    fn end(&mut self, ticket: u64, stream: Option<Stream>) {
        let held = self.tickets.iter().position(|(given, _)| *given == ticket);
        if let Some(position) = held {
            self.tickets.swap_remove(position);
            if let Some(stream) = stream {
                self.put(stream);
            }
        }
    }

    fn take(&mut self, node: InodeNumber, cookie: u64) -> Option<Stream> {
        if cookie == 0 {
            return None;
        }
        // The newest first: an older one of the same position was left behind by a reader that
        // stopped.
        let position = self
            .streams
            .iter()
            .rposition(|stream| stream.node == node && stream.cookie == cookie)?;
        Some(self.streams.remove(position)).filter(|stream| stream.put_at.elapsed() < STREAM_AGE_MAX)
    }

    fn put(&mut self, mut stream: Stream) {
        stream.put_at = Instant::now();
        if self.streams.len() >= STREAM_COUNT_MAX {
            self.streams.remove(0);
        }
        self.streams.push(stream);
    }
}

/// An entry of a listing.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) name: &'a OsStr,
    /// The number that programs see.
    pub(crate) ino: u64,
    pub(crate) kind: NodeKind,
    /// The position after it.
    pub(crate) cookie: u64,
    /// With attributes, for names other than `.` and `..`; counts as a lookup if it is delivered.
    pub(crate) found: Option<Found>,
}

impl Tree {
    /// Lists the directory `node` from the position `cookie` on, until `deliver` says that an entry
    /// does not fit.
    pub(crate) fn list(
        &self,
        node: InodeNumber,
        cookie: u64,
        with_attributes: bool,
        mut deliver: impl FnMut(Listed<'_>) -> bool,
    ) -> io::Result<()> {
        let _names = self.renames.read().unwrap_or_else(PoisonError::into_inner);
        let dir = self.directory(node)?;
        let (taken, ticket) = {
            let mut pool = self.listings();
            (pool.take(node, cookie), pool.begin(node))
        };
        let read = self.read_stream(node, &dir.inode, cookie, taken, with_attributes, &mut deliver);
        let (done, stream) = match read {
            Ok(stream) => (Ok(()), stream),
            Err(error) => (Err(error), None),
        };
        self.listings().end(ticket, stream);
        done
    }

    /// Delivers what fits. Returns the stream for the next piece, at the end of the directory too:
    /// the reader asks once more to learn that this was the end.
    fn read_stream(
        &self,
        node: InodeNumber,
        dir: &Inode,
        cookie: u64,
        taken: Option<Stream>,
        with_attributes: bool,
        deliver: &mut impl FnMut(Listed<'_>) -> bool,
    ) -> io::Result<Option<Stream>> {
        let mut stream = match taken {
            Some(stream) => stream,
            None => Stream {
                node,
                cookie,
                waiting: None,
                rest: dir.read_dir(cookie)?.with_dots(),
                put_at: Instant::now(),
            },
        };
        let mut delivered_any = false;
        loop {
            let entry = match stream.waiting.take().map(Ok).or_else(|| stream.rest.next()) {
                None => return Ok(delivered_any.then_some(stream)),
                Some(Ok(entry)) => entry,
                // Delivered entries stand; the error comes again with the next piece.
                Some(Err(_)) if delivered_any => return Ok(None),
                Some(Err(error)) => return Err(error),
            };
            let dots = entry.name == "." || entry.name == "..";
            let found = if with_attributes && !dots {
                match self.look_at(dir, node, &entry.name) {
                    Ok(found) => Some(found),
                    // Removed since.
                    Err(_) => continue,
                }
            } else {
                None
            };
            let ino = match &found {
                Some(found) => found.interned.node.get(),
                None if dots => entry.ino,
                None => self.listed_ino(entry.ino),
            };
            let kind = found
                .map(|found| found.stat.kind)
                .or(entry.kind_hint)
                .or_else(|| dir.stat_at(&entry.name).ok().map(|stat| stat.kind))
                .unwrap_or(NodeKind::File);
            let full = deliver(Listed {
                name: &entry.name,
                ino,
                kind,
                cookie: entry.cookie,
                found,
            });
            if full {
                if let Some(found) = found {
                    self.forget(found.interned.node, 1);
                }
                stream.waiting = Some(entry);
                return Ok(Some(stream));
            }
            delivered_any = true;
            stream.cookie = entry.cookie;
        }
    }

    /// The number for an inode of which only the number is known. Names under which another file
    /// system is mounted show the number of what lies below the mount, as everywhere.
    fn listed_ino(&self, ino: u64) -> u64 {
        let node = self.inodes().node_of(self.root_stat.dev, ino);
        if node == InodeNumber::ROOT {
            self.root_stat.ino
        } else {
            node.get()
        }
    }
}
