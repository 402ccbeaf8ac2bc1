//! The near end of the socket: a [`TreeService`] that lives in another process.

use std::io::{BufReader, BufWriter};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use byteback_extents::ByteRange;
use byteback_model::{Attributes, ByteString, NodeId};
use byteback_oplog::{ChangesCursor, ChangesPage, Epoch};

use crate::frame::{self, Frame, protocol};
use crate::leaves::{LEAF_LEN_BYTES, LeafOffer, LeafPiece, LeafRequest, LeavesSummary};
use crate::messages::{Answer, Request};
use crate::repair::{RepairReport, RepairRequest};
use crate::server::socket_address;
use crate::service::{
    CutId, CutInfo, CutRequest, DirEntry, ErrorKind, FileHistory, FinishReport, NamedCut, NodeNames, Outcome, PastFile,
    Piece, Result, ServiceError, TreeService, TreeStatus,
};

/// How long a daemon may take to say hello. It does so by itself, whatever else it is doing.
const HELLO_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to the daemon of a tree. Requests are answered one after the other, whichever
/// threads they come from; the sink of [`TreeService::read`] must not ask for something itself.
/// Cuts that were made over this connection are released when it ends.
///
/// After an error that leaves unknown where in the stream of answers the connection is, each
/// further request is refused: connect again.
#[derive(Debug)]
pub struct Client {
    connection: Mutex<Connection>,
}

#[derive(Debug)]
struct Connection {
    input: BufReader<UnixStream>,
    output: BufWriter<UnixStream>,
    buffer: Vec<u8>,
    /// A request was begun whose answer was not read to its end.
    is_unusable: bool,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`] if no daemon listens there, it does not answer, or it does not let this
    /// user in; [`ErrorKind::Protocol`] if it speaks another version.
    pub fn connect(path: &Path) -> Result<Self> {
        Self::connect_with(path, HELLO_TIMEOUT)
    }

    pub(crate) fn connect_with(path: &Path, hello_timeout: Duration) -> Result<Self> {
        let failed = |error: std::io::Error| {
            let message = format!("cannot connect to the daemon at {}: {error}", path.display());
            ServiceError::new(ErrorKind::Gone, message)
        };
        let address = socket_address(path).map_err(failed)?;
        let stream = UnixStream::connect(address.path()).map_err(failed)?;
        stream.set_read_timeout(Some(hello_timeout)).map_err(failed)?;
        let mut output = BufWriter::new(stream.try_clone().map_err(failed)?);
        let mut input = BufReader::with_capacity(1 << 18, stream);
        // Their hello first: where the daemon closes the connection at once, writing would hide
        // why.
        frame::read_hello(&mut input)?;
        frame::write_hello(&mut output)?;
        input.get_ref().set_read_timeout(None).map_err(failed)?;
        Ok(Self {
            connection: Mutex::new(Connection {
                input,
                output,
                buffer: Vec::new(),
                is_unusable: false,
            }),
        })
    }

    /// Connects to the socket at `path` and makes of the connection one to the daemon's line
    /// ([`TreeService::carry_line`]). The token of a server is going to be shown on it, so the
    /// daemon has to be this user's.
    ///
    /// # Errors
    /// As [`Client::connect`]; [`ErrorKind::Refused`] if the daemon has no line, or is of another
    /// user, [`ErrorKind::Protocol`] if it does not know of any.
    pub fn line(path: &Path) -> Result<UnixStream> {
        let client = Self::connect(path)?;
        let is_own = |stream: &UnixStream| {
            let peer = rustix::net::sockopt::socket_peercred(stream);
            peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
        };
        if !is_own(client.connection().input.get_ref()) {
            let message = "the folder's daemon is another user's";
            return Err(ServiceError::new(ErrorKind::Refused, message));
        }
        client.order(&Request::Line)?;
        let connection = client.connection.into_inner().unwrap_or_else(PoisonError::into_inner);
        // The daemon says nothing more before the other end has begun.
        Ok(connection.input.into_inner())
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        // A sink that panicked poisons the lock; `is_unusable` says what that means.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: &Request, sink: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<Answer> {
        let mut connection = self.connection();
        let Connection {
            input,
            output,
            buffer,
            is_unusable,
        } = &mut *connection;
        if *is_unusable {
            let message = "an earlier request to the folder's daemon failed; connect again";
            return Err(ServiceError::new(ErrorKind::Gone, message));
        }
        // A request that is too long is refused as a whole.
        frame::write_json(output, request, frame::REQUEST_LEN_MAX).inspect_err(|error| {
            *is_unusable = error.kind != ErrorKind::Protocol;
        })?;
        *is_unusable = true;
        frame::flush(output)?;
        let mut refused = None;
        loop {
            let piece = match frame::read(input, buffer, frame::ANSWER_LEN_MAX)? {
                None => {
                    return Err(ServiceError::new(
                        ErrorKind::Gone,
                        "the folder's daemon closed the connection; is it still running?",
                    ));
                }
                Some(Frame::Json(json)) => {
                    let answer: Answer = frame::parse(json)?;
                    *is_unusable = false;
                    return refused.map_or(Ok(answer), Err);
                }
                Some(Frame::Stop) => return Err(protocol("the daemon sent a stop frame")),
                Some(Frame::Data { offset, bytes }) => Piece::Data { offset, bytes },
                Some(Frame::Hole { start, end }) => {
                    Piece::Hole(ByteRange::new(start, end).ok_or_else(|| protocol("the daemon sent an empty hole"))?)
                }
            };
            // After a refusal the daemon is asked to stop; what is on its way still has to be read.
            if refused.is_none() {
                refused = sink(piece).err();
                if refused.is_some() {
                    frame::write_stop(output)?;
                }
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn connection_buffer_bytes(&self) -> usize {
        self.connection.lock().unwrap().buffer.capacity()
    }

    /// For what is answered by content and that it was done.
    fn fetch(&self, request: &Request, sink: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
        match self.ask(request, sink)? {
            Answer::Done => Ok(()),
            Answer::Error(error) => Err(error),
            other => unexpected(&other),
        }
    }

    fn call(&self, request: &Request) -> Result<Answer> {
        match self.ask(request, &mut |_| {
            Err(protocol("the daemon sent content that was not requested"))
        })? {
            Answer::Error(error) => Err(error),
            answer => Ok(answer),
        }
    }

    /// For what is answered by nothing but that it was done.
    fn order(&self, request: &Request) -> Result<()> {
        match self.call(request)? {
            Answer::Done => Ok(()),
            other => unexpected(&other),
        }
    }
}

fn unexpected<T>(answer: &Answer) -> Result<T> {
    // The answer may hold names and content of any length.
    let answer: String = format!("{answer:?}").chars().take(80).collect();
    Err(protocol(format!("unexpected answer from the daemon: {answer}")))
}

impl TreeService for Client {
    fn status(&self) -> Result<TreeStatus> {
        match self.call(&Request::Status)? {
            Answer::Status(status) => Ok(*status),
            other => unexpected(&other),
        }
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<()> {
        self.order(&Request::ResolvePending {
            consumer: consumer.to_owned(),
            saved,
        })
    }

    fn drop_consumer(&self, consumer: &str) -> Result<bool> {
        match self.call(&Request::DropConsumer {
            consumer: consumer.to_owned(),
        })? {
            Answer::Dropped(was_there) => Ok(was_there),
            other => unexpected(&other),
        }
    }

    fn cut(&self, request: &CutRequest) -> Result<CutInfo> {
        match self.call(&Request::Cut { cut: request.clone() })? {
            Answer::Cut(info) => Ok(info),
            other => unexpected(&other),
        }
    }

    fn look_at(&self, name: &ByteString, request: &CutRequest) -> Result<CutInfo> {
        let (name, cut) = (name.clone(), request.clone());
        match self.call(&Request::LookAt { name, cut })? {
            Answer::Cut(info) => Ok(info),
            other => unexpected(&other),
        }
    }

    fn changes(&self, cut: CutId, cursor: &ChangesCursor) -> Result<ChangesPage> {
        let cursor = cursor.clone();
        match self.call(&Request::Changes { cut, cursor })? {
            Answer::Changes(page) => Ok(page),
            other => unexpected(&other),
        }
    }

    fn attributes(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<Result<Attributes>>> {
        match self.call(&Request::Attributes {
            cut,
            nodes: nodes.to_vec(),
        })? {
            Answer::Attributes(attributes) if attributes.len() == nodes.len() => Ok(attributes),
            other => unexpected(&other),
        }
    }

    fn read(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let ranges = ranges.to_vec();
        self.fetch(&Request::Read { cut, node, ranges }, sink)
    }

    fn peek(
        &self,
        cut: CutId,
        node: NodeId,
        ranges: &[(u64, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let ranges = ranges.to_vec();
        self.fetch(&Request::Peek { cut, node, ranges }, sink)
    }

    fn peek_many(
        &self,
        cut: CutId,
        files: &[(NodeId, u64)],
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Vec<(usize, ServiceError)>> {
        let files = files.to_vec();
        match self.ask(&Request::PeekMany { cut, files }, sink)? {
            Answer::Unread(unread) => Ok(unread),
            Answer::Error(error) => Err(error),
            other => unexpected(&other),
        }
    }

    fn release(&self, cut: CutId, nodes: &[NodeId]) -> Result<()> {
        let nodes = nodes.to_vec();
        self.order(&Request::Release { cut, nodes })
    }

    fn before_image(
        &self,
        cut: CutId,
        node: NodeId,
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<Option<u64>> {
        match self.ask(&Request::BeforeImage { cut, node }, sink)? {
            Answer::BeforeImage(len_bytes) => Ok(len_bytes),
            Answer::Error(error) => Err(error),
            other => unexpected(&other),
        }
    }

    fn leaf_offer(&self, cut: CutId, node: NodeId) -> Result<LeafOffer> {
        match self.call(&Request::LeafOffer { cut, node })? {
            Answer::LeafOffer(offer) => Ok(offer),
            other => unexpected(&other),
        }
    }

    fn leaf_sums(
        &self,
        cut: CutId,
        node: NodeId,
        leaves: LeafRequest,
        sink: &mut dyn FnMut(LeafPiece<'_>) -> Result<()>,
    ) -> Result<LeavesSummary> {
        let request = Request::LeafSums { cut, node, leaves };
        let odd = || protocol("the daemon sent checksums of incomplete leaves");
        let mut sink = |piece: Piece<'_>| match piece {
            Piece::Data { offset, bytes } => {
                let is_whole = offset % LEAF_LEN_BYTES == 0 && bytes.len() % leaves.entry_len() == 0;
                if !is_whole || bytes.is_empty() {
                    return Err(odd());
                }
                sink(LeafPiece::Sums { offset, entries: bytes })
            }
            Piece::Hole(range) if range.start() % LEAF_LEN_BYTES != 0 => Err(odd()),
            Piece::Hole(range) => sink(LeafPiece::Zeros(range)),
        };
        match self.ask(&request, &mut sink)? {
            Answer::LeafSums(reported) => Ok(reported),
            Answer::Error(error) => Err(error),
            other => unexpected(&other),
        }
    }

    fn path(&self, cut: CutId, node: NodeId) -> Result<Option<ByteString>> {
        match self.call(&Request::Path { cut, node })? {
            Answer::Path(path) => Ok(path),
            other => unexpected(&other),
        }
    }

    fn names(&self, cut: CutId, nodes: &[NodeId]) -> Result<Vec<NodeNames>> {
        let nodes = nodes.to_vec();
        let asked = nodes.len();
        match self.call(&Request::Names { cut, nodes })? {
            Answer::Names(names) if names.len() == asked => Ok(names),
            other => unexpected(&other),
        }
    }

    fn entries(&self, cut: CutId, directory: NodeId, after: Option<&ByteString>) -> Result<Vec<DirEntry>> {
        let after = after.cloned();
        match self.call(&Request::Entries { cut, directory, after })? {
            Answer::Entries(entries) => Ok(entries),
            other => unexpected(&other),
        }
    }

    fn find(&self, cut: CutId, path: &ByteString) -> Result<Option<NodeId>> {
        let path = path.clone();
        match self.call(&Request::Find { cut, path })? {
            Answer::Found(node) => Ok(node),
            other => unexpected(&other),
        }
    }

    fn advance(&self, consumer: &str, cut: Epoch) -> Result<bool> {
        let consumer = consumer.to_owned();
        match self.call(&Request::Advance { consumer, cut })? {
            Answer::Advanced(has_advanced) => Ok(has_advanced),
            other => unexpected(&other),
        }
    }

    fn note_batch(&self, cut: CutId, batch: u64) -> Result<()> {
        self.order(&Request::NoteBatch { cut, batch })
    }

    fn finish(&self, cut: CutId, outcome: &Outcome) -> Result<FinishReport> {
        match self.call(&Request::Finish {
            cut,
            outcome: outcome.clone(),
        })? {
            Answer::Finished(report) => Ok(report),
            other => unexpected(&other),
        }
    }

    fn unmount(&self) -> Result<()> {
        self.order(&Request::Unmount)
    }

    fn sync_wishes_changed(&self) -> Result<bool> {
        match self.call(&Request::SyncWishesChanged)? {
            Answer::Heard(is_heard) => Ok(is_heard),
            other => unexpected(&other),
        }
    }

    fn repair(&self, request: &RepairRequest) -> Result<RepairReport> {
        match self.call(&Request::Repair { repair: *request })? {
            Answer::Repaired(report) => Ok(report),
            other => unexpected(&other),
        }
    }

    fn open_cut(&self, name: &ByteString) -> Result<NamedCut> {
        match self.call(&Request::OpenCut { name: name.clone() })? {
            Answer::NamedCut(cut) => Ok(cut),
            other => unexpected(&other),
        }
    }

    fn close_cut(&self, name: &ByteString) -> Result<()> {
        self.order(&Request::CloseCut { name: name.clone() })
    }

    fn list_cuts(&self) -> Result<Vec<NamedCut>> {
        match self.call(&Request::ListCuts)? {
            Answer::NamedCuts(cuts) => Ok(cuts),
            other => unexpected(&other),
        }
    }

    fn history(&self, path: &ByteString) -> Result<FileHistory> {
        match self.call(&Request::History { path: path.clone() })? {
            Answer::History(history) => Ok(*history),
            other => unexpected(&other),
        }
    }

    fn read_past(
        &self,
        path: &ByteString,
        at_ns: i64,
        sink: &mut dyn FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<PastFile> {
        let path = path.clone();
        match self.ask(&Request::ReadPast { path, at_ns }, sink)? {
            Answer::Past(file) => Ok(file),
            Answer::Error(error) => Err(error),
            other => unexpected(&other),
        }
    }
}
