//! The far end of the socket: hands each connection's requests to a [`TreeService`].
//!
//! One thread per connection: there are few, and each request may take as long as a disk does. Only the socket's owner and root
//! may connect (permissions of the socket, checked again by the credentials of the peer). A connection that ends releases
//! the cuts that were made over it, without deciding what became of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::frame::{self, Frame};
use crate::messages::{Answer, Request};
use crate::service::{CutId, Outcome, Piece, Result, TreeService};

/// A listening socket and the threads that serve it.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stopping: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

/// A path to a socket that is short enough for the kernel (108 bytes), however deep the socket lies: through the descriptor of
/// its directory. Keep it while the path is used.
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
    /// Listens on a new socket at `path`, replacing a dead one, and serves `service` there. The caller holds the tree's lock, so
    /// whatever lies at `path` has no living owner.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn start(path: &Path, service: Arc<dyn TreeService>) -> io::Result<Self> {
        let address = socket_address(path)?;
        match fs::remove_file(address.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(address.path())?;
        fs::set_permissions(address.path(), fs::Permissions::from_mode(0o600))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let accepting = std::thread::Builder::new().name("control".to_owned()).spawn({
            let stopping = Arc::clone(&stopping);
            move || accept(&listener, &service, &stopping)
        })?;
        Ok(Self {
            path: path.to_owned(),
            stopping,
            accepting: Some(accepting),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Ok(address) = socket_address(&self.path) {
            // Wakes the thread that accepts; then nobody may find the socket any more.
            drop(UnixStream::connect(address.path()));
            let _ = fs::remove_file(address.path());
        }
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &UnixListener, service: &Arc<dyn TreeService>, stopping: &AtomicBool) {
    for stream in listener.incoming() {
        if stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if !may_connect(&stream) {
            continue;
        }
        let service = Arc::clone(service);
        // Without a thread to spare the connection is dropped, and the client says so.
        let _ = std::thread::Builder::new()
            .name("control-peer".to_owned())
            .spawn(move || {
                let mut cuts = BTreeSet::new();
                let _ = serve(stream, service.as_ref(), &mut cuts);
                for cut in cuts {
                    let _ = service.finish(cut, &Outcome::Unknown);
                }
            });
    }
}

fn may_connect(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

fn serve(stream: UnixStream, service: &dyn TreeService, cuts: &mut BTreeSet<CutId>) -> Result<()> {
    let closed = |error: io::Error| frame::protocol(error.to_string());
    let mut output = BufWriter::with_capacity(1 << 18, stream.try_clone().map_err(closed)?);
    let mut input = BufReader::new(stream);
    frame::write_hello(&mut output)?;
    output.flush().map_err(closed)?;
    frame::read_hello(&mut input)?;
    let mut buffer = Vec::new();
    loop {
        let request: Request = match frame::read(&mut input, &mut buffer)? {
            None => return Ok(()),
            Some(Frame::Json(json)) => frame::parse(json)?,
            Some(_) => return Err(frame::protocol("a request was expected")),
        };
        let answer = answer(request, service, cuts, &mut output).unwrap_or_else(Answer::Error);
        frame::write_json(&mut output, &answer)?;
        output.flush().map_err(closed)?;
    }
}

fn answer(
    request: Request,
    service: &dyn TreeService,
    cuts: &mut BTreeSet<CutId>,
    output: &mut impl Write,
) -> Result<Answer> {
    Ok(match request {
        Request::Status => Answer::Status(Box::new(service.status()?)),
        Request::ResolvePending { consumer, saved } => {
            service.resolve_pending(&consumer, saved)?;
            Answer::Done
        }
        Request::Cut { cut } => {
            let info = service.cut(&cut)?;
            cuts.insert(info.cut);
            Answer::Cut(info)
        }
        Request::Changes { cut, cursor } => Answer::Changes(service.changes(cut, cursor)?),
        Request::Attributes { cut, nodes } => Answer::Attributes(service.attributes(cut, &nodes)?),
        Request::Read { cut, node, ranges } => {
            service.read(cut, node, &ranges, &mut |piece| match piece {
                Piece::Data { offset, bytes } => frame::write_data(output, offset, bytes),
                Piece::Hole(range) => frame::write_hole(output, range.start(), range.end()),
            })?;
            Answer::Done
        }
        Request::Path { cut, node } => Answer::Path(service.path(cut, node)?),
        Request::NoteBatch { cut, batch } => {
            service.note_batch(cut, batch)?;
            Answer::Done
        }
        Request::Finish { cut, outcome } => {
            let report = service.finish(cut, &outcome)?;
            cuts.remove(&cut);
            Answer::Finished(report)
        }
        Request::Unmount => {
            service.unmount()?;
            Answer::Done
        }
    })
}
