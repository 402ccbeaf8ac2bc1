//! The far end of the socket: hands each connection's requests to a [`TreeService`].
//!
//! One thread per connection: there are few (at most [`PEERS_MAX`]), and each request may take as
//! long as a disk does. Only the socket's owner and root may connect (permissions of the socket,
//! checked again by the credentials of the peer).
//!
//! - A connection that ends, however it ends, releases the cuts that were made over it, without
//!   deciding what became of them.
//! - A frame that cannot be understood is answered with an error of kind [`ErrorKind::Protocol`]. A
//!   message that is not a request costs only that answer; after a malformed frame the connection
//!   ends, as the start of the next one is unknown. Other connections notice nothing.
//! - A connection that becomes a line to a server is handed over, and is none of these any more:
//!   the service bounds their number.
//! - An answer that fits no frame becomes an error; it does not end the connection.
//! - **The end.** Dropping a [`Server`] refuses new connections, lets each request that is under
//!   way be answered (for some seconds: a peer that does not read its answer is cut off then), and
//!   returns when no thread of it is left. Work of a service itself, waiting for its disk, is
//!   waited for without limit: after the drop, the service is no longer used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufReader, BufWriter, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::frame::{self, Frame};
use crate::leaves::{LEAF_LEN_BYTES, LeafPiece, LeafRequest};
use crate::messages::{Answer, Request};
use crate::service::{CutId, ErrorKind, Outcome, Piece, Result, TreeService};

/// Maximum number of open connections. Further ones are closed at once.
const PEERS_MAX: usize = 64;
/// How long a peer may take to say hello, before which it costs a thread and has shown nothing.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end waits for answers under way before it cuts their peers off.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait when no connection can be accepted (no descriptors left, say).
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(100);

/// A listening socket and the threads that serve it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    /// Device and inode of the socket's name, to remove no other one's.
    identity: Option<(u64, u64)>,
    listener: Arc<UnixListener>,
    peers: Arc<Peers>,
    end_timeout: Duration,
    accepting: Option<JoinHandle<()>>,
}

/// Limits that a test wants to be shorter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) peers_max: usize,
    pub(crate) hello_timeout: Duration,
    pub(crate) end_timeout: Duration,
    pub(crate) answer_len_max: u32,
}

impl Limits {
    pub(crate) const DEFAULT: Self = Self {
        peers_max: PEERS_MAX,
        hello_timeout: HELLO_TIMEOUT,
        end_timeout: END_TIMEOUT,
        answer_len_max: frame::ANSWER_LEN_MAX,
    };
}

/// The connections that are being served.
#[derive(Debug, Default)]
struct Peers {
    state: Mutex<PeersState>,
    /// Something in `state` changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PeersState {
    is_stopping: bool,
    next: u64,
    streams: BTreeMap<u64, UnixStream>,
}

impl Peers {
    fn state(&self) -> MutexGuard<'_, PeersState> {
        // Nothing panics while it holds the lock, and each change is whole by itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `stream` in, unless there are enough.
    fn enter(self: &Arc<Self>, stream: &UnixStream, peers_max: usize) -> Option<Peer> {
        let stream = stream.try_clone().ok()?;
        let mut state = self.state();
        if state.is_stopping || state.streams.len() >= peers_max {
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.streams.insert(number, stream);
        Some(Peer {
            peers: Arc::clone(self),
            number,
        })
    }

    /// Waits for a change of the state, or for `timeout`.
    fn wait<'a>(&self, state: MutexGuard<'a, PeersState>, timeout: Duration) -> (MutexGuard<'a, PeersState>, bool) {
        let (state, waited) = self
            .changed
            .wait_timeout(state, timeout)
            .unwrap_or_else(PoisonError::into_inner);
        (state, waited.timed_out())
    }

    fn stop(&self) {
        self.state().is_stopping = true;
        self.changed.notify_all();
    }

    /// Ends all connections and returns when their threads have nothing left to do.
    fn end(&self, timeout: Duration) {
        let mut state = self.state();
        for stream in state.streams.values() {
            // A thread that waits for a request sees the end; one that answers can still do so.
            let _ = stream.shutdown(Shutdown::Read);
        }
        let mut is_late = false;
        while !state.streams.is_empty() {
            let timed_out;
            (state, timed_out) = self.wait(state, timeout);
            if timed_out && !is_late {
                is_late = true;
                for stream in state.streams.values() {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
        }
    }
}

/// A connection that counts, until this is dropped.
struct Peer {
    peers: Arc<Peers>,
    number: u64,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.peers.state().streams.remove(&self.number);
        self.peers.changed.notify_all();
    }
}

/// The cuts that were made over a connection and not finished.
struct OpenCuts<'a> {
    service: &'a dyn TreeService,
    cuts: BTreeSet<CutId>,
}

impl Drop for OpenCuts<'_> {
    fn drop(&mut self) {
        for cut in &self.cuts {
            // No client is left to hear of an error; the pending cut informs the next backup.
            let _ = self.service.finish(*cut, &Outcome::Unknown);
        }
    }
}

/// A path to a socket that is short enough for the kernel (108 bytes), however deep the socket
/// lies: through the descriptor of its directory. Keep it while the path is used.
#[derive(Debug)]
pub struct SocketAddress {
    path: PathBuf,
    _dir: OwnedFd,
}

impl SocketAddress {
    /// The path to bind or connect to.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// See [`SocketAddress`].
///
/// # Errors
/// If the socket's directory cannot be opened.
pub fn socket_address(socket: &Path) -> io::Result<SocketAddress> {
    use rustix::fs::{CWD, Mode, OFlags};
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not the path of a socket");
    let (dir, name) = (
        socket.parent().ok_or_else(invalid)?,
        socket.file_name().ok_or_else(invalid)?,
    );
    let dir = rustix::fs::openat(
        CWD,
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd())).join(name);
    Ok(SocketAddress { path, _dir: dir })
}

impl Server {
    /// Listens on a new socket at `path`, replacing a dead one, and serves `service` there. The
    /// caller holds the tree's lock, so whatever lies at `path` has no living owner.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn start(path: &Path, service: Arc<dyn TreeService>) -> io::Result<Self> {
        Self::start_with(path, service, Limits::DEFAULT)
    }

    pub(crate) fn start_with(path: &Path, service: Arc<dyn TreeService>, limits: Limits) -> io::Result<Self> {
        let address = socket_address(path)?;
        match fs::remove_file(address.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = Arc::new(UnixListener::bind(address.path())?);
        // Until here the umask alone decided; a client that connected meanwhile is known by its
        // credentials.
        fs::set_permissions(address.path(), fs::Permissions::from_mode(0o600))?;
        let identity = identity(address.path());
        let peers = Arc::new(Peers::default());
        let accepting = std::thread::Builder::new().name("control".to_owned()).spawn({
            let (listener, peers) = (Arc::clone(&listener), Arc::clone(&peers));
            move || accept(&listener, &service, &peers, limits)
        })?;
        Ok(Self {
            path: path.to_owned(),
            identity,
            listener,
            peers,
            end_timeout: limits.end_timeout,
            accepting: Some(accepting),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.peers.stop();
        // The socket must not be found any more; another server's socket stays.
        if let Ok(address) = socket_address(&self.path)
            && self.identity.is_some()
            && identity(address.path()) == self.identity
        {
            let _ = fs::remove_file(address.path());
        }
        // Wakes the thread that accepts, whether or not the socket can still be reached by its
        // name.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.peers.end(self.end_timeout);
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn accept(listener: &UnixListener, service: &Arc<dyn TreeService>, peers: &Arc<Peers>, limits: Limits) {
    loop {
        let accepted = listener.accept();
        let state = peers.state();
        if state.is_stopping {
            return;
        }
        let Ok((stream, _)) = accepted else {
            // Not at once again: without a descriptor left it would fail as fast as it can.
            drop(peers.wait(state, ACCEPT_RETRY_AFTER));
            continue;
        };
        drop(state);
        if !may_connect(&stream) {
            continue;
        }
        let Some(peer) = peers.enter(&stream, limits.peers_max) else {
            continue;
        };
        let service = Arc::clone(service);
        // Without a thread to spare the connection is dropped, and the client says so.
        let _ = std::thread::Builder::new()
            .name("control-peer".to_owned())
            .spawn(move || {
                // Declared in the order in which they must outlive each other: cuts go first, then
                // the service, then the count.
                let _peer = peer;
                let service = service;
                let mut cuts = OpenCuts {
                    service: service.as_ref(),
                    cuts: BTreeSet::new(),
                };
                let _ = serve(&stream, &mut cuts, limits);
            });
    }
}

fn may_connect(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

fn serve(stream: &UnixStream, cuts: &mut OpenCuts<'_>, limits: Limits) -> Result<()> {
    let closed = |error: io::Error| frame::protocol(error.to_string());
    let mut output = BufWriter::with_capacity(1 << 18, stream);
    let mut input = BufReader::new(stream);
    stream.set_read_timeout(Some(limits.hello_timeout)).map_err(closed)?;
    frame::write_hello(&mut output)?;
    frame::read_hello(&mut input)?;
    stream.set_read_timeout(None).map_err(closed)?;
    let mut buffer = Vec::new();
    loop {
        let request = match frame::read(&mut input, &mut buffer, frame::REQUEST_LEN_MAX) {
            Ok(None) => return Ok(()),
            // Came when what it should stop had already been sent.
            Ok(Some(Frame::Stop)) => continue,
            Ok(Some(Frame::Json(json))) => frame::parse(json),
            Ok(Some(Frame::Data { .. } | Frame::Hole { .. })) => Err(frame::protocol("expected a request")),
            Err(error) => {
                frame::write_json(&mut output, &Answer::Error(error.clone()), limits.answer_len_max)?;
                frame::flush(&mut output)?;
                return Err(error);
            }
        };
        if matches!(request, Ok(Request::Line)) {
            let carried = stream
                .try_clone()
                .map_err(closed)
                .and_then(|connection| cuts.service.carry_line(connection));
            let is_carried = carried.is_ok();
            let answer = carried.map_or_else(Answer::Error, |()| Answer::Done);
            frame::write_json(&mut output, &answer, limits.answer_len_max)?;
            frame::flush(&mut output)?;
            if is_carried {
                return Ok(());
            }
            continue;
        }
        let asks_to_stop = || !input.buffer().is_empty() || has_input(stream);
        let answer = request
            .and_then(|request| answer(request, cuts, &mut output, &asks_to_stop))
            .unwrap_or_else(Answer::Error);
        match frame::write_json(&mut output, &answer, limits.answer_len_max) {
            // Nothing of it was written: it was too long.
            Err(error) if error.kind == ErrorKind::Protocol => {
                frame::write_json(&mut output, &Answer::Error(error), limits.answer_len_max)?;
            }
            done => done?,
        }
        frame::flush(&mut output)?;
    }
}

/// Whether the peer has sent something. That it is gone is for the next write to find out: from
/// here it looks like the end of this server, which lets answers go on.
fn has_input(stream: &UnixStream) -> bool {
    use rustix::net::RecvFlags;
    let mut byte = [0];
    rustix::net::recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len > 0)
}

fn send(piece: Piece<'_>, output: &mut impl Write, asks_to_stop: &dyn Fn() -> bool) -> Result<()> {
    // A client waits for its answer, unless it wants no more of it.
    if asks_to_stop() {
        return Err(frame::protocol("stopped by the client"));
    }
    match piece {
        Piece::Data { offset, bytes } => frame::write_data(output, offset, bytes),
        Piece::Hole(range) => frame::write_hole(output, range.start(), range.end()),
    }
}

/// As [`send`], for checksums of leaves: a frame ends with a whole leaf.
fn send_leaves(
    piece: LeafPiece<'_>,
    request: LeafRequest,
    output: &mut impl Write,
    asks_to_stop: &dyn Fn() -> bool,
) -> Result<()> {
    let entry_len = request.entry_len();
    match piece {
        LeafPiece::Zeros(range) => send(Piece::Hole(range), output, asks_to_stop),
        LeafPiece::Sums { offset, entries } => {
            let leaves_max = frame::DATA_LEN_MAX / entry_len;
            let starts = (offset..).step_by(leaves_max * LEAF_LEN_BYTES as usize);
            let mut frames = entries.chunks(leaves_max * entry_len).zip(starts);
            frames.try_for_each(|(bytes, offset)| send(Piece::Data { offset, bytes }, output, asks_to_stop))
        }
    }
}

fn answer(
    request: Request,
    open: &mut OpenCuts<'_>,
    output: &mut impl Write,
    asks_to_stop: &dyn Fn() -> bool,
) -> Result<Answer> {
    let service = open.service;
    Ok(match request {
        Request::Status => Answer::Status(Box::new(service.status()?)),
        Request::ResolvePending { consumer, saved } => {
            service.resolve_pending(&consumer, saved)?;
            Answer::Done
        }
        Request::DropConsumer { consumer } => Answer::Dropped(service.drop_consumer(&consumer)?),
        Request::Cut { cut } => {
            let info = service.cut(&cut)?;
            open.cuts.insert(info.cut);
            Answer::Cut(info)
        }
        Request::LookAt { name, cut } => {
            let info = service.look_at(&name, &cut)?;
            open.cuts.insert(info.cut);
            Answer::Cut(info)
        }
        Request::Changes { cut, cursor } => Answer::Changes(service.changes(cut, &cursor)?),
        Request::Attributes { cut, nodes } => Answer::Attributes(service.attributes(cut, &nodes)?),
        Request::Read { cut, node, ranges } => {
            service.read(cut, node, &ranges, &mut |piece| send(piece, output, asks_to_stop))?;
            Answer::Done
        }
        Request::Peek { cut, node, ranges } => {
            service.peek(cut, node, &ranges, &mut |piece| send(piece, output, asks_to_stop))?;
            Answer::Done
        }
        Request::PeekMany { cut, files } => {
            Answer::Unread(service.peek_many(cut, &files, &mut |piece| send(piece, output, asks_to_stop))?)
        }
        Request::Release { cut, nodes } => {
            service.release(cut, &nodes)?;
            Answer::Done
        }
        Request::BeforeImage { cut, node } => {
            Answer::BeforeImage(service.before_image(cut, node, &mut |piece| send(piece, output, asks_to_stop))?)
        }
        Request::LeafOffer { cut, node } => Answer::LeafOffer(service.leaf_offer(cut, node)?),
        Request::LeafSums { cut, node, leaves } => {
            let mut sink = |piece: LeafPiece<'_>| send_leaves(piece, leaves, output, asks_to_stop);
            Answer::LeafSums(service.leaf_sums(cut, node, leaves, &mut sink)?)
        }
        Request::Path { cut, node } => Answer::Path(service.path(cut, node)?),
        Request::Names { cut, nodes } => Answer::Names(service.names(cut, &nodes)?),
        Request::Entries { cut, directory, after } => {
            Answer::Entries(service.entries(cut, directory, after.as_ref())?)
        }
        Request::Find { cut, path } => Answer::Found(service.find(cut, &path)?),
        Request::Advance { consumer, cut } => Answer::Advanced(service.advance(&consumer, cut)?),
        Request::NoteBatch { cut, batch } => {
            service.note_batch(cut, batch)?;
            Answer::Done
        }
        Request::Finish { cut, outcome } => {
            let report = service.finish(cut, &outcome)?;
            open.cuts.remove(&cut);
            Answer::Finished(report)
        }
        Request::Unmount => {
            service.unmount()?;
            Answer::Done
        }
        Request::SyncWishesChanged => Answer::Heard(service.sync_wishes_changed()?),
        Request::Repair { repair } => Answer::Repaired(service.repair(&repair)?),
        // They belong to the tree, not to the connection.
        Request::OpenCut { name } => Answer::NamedCut(service.open_cut(&name)?),
        Request::CloseCut { name } => {
            service.close_cut(&name)?;
            Answer::Done
        }
        Request::ListCuts => Answer::NamedCuts(service.list_cuts()?),
        Request::History { path } => Answer::History(Box::new(service.history(&path)?)),
        // Answered where the connection is.
        Request::Line => return Err(frame::protocol("a line begins between two requests")),
        Request::ReadPast { path, at_ns } => {
            Answer::Past(service.read_past(&path, at_ns, &mut |piece| send(piece, output, asks_to_stop))?)
        }
    })
}
