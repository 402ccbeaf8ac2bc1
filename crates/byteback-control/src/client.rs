//! The near end of the socket: a [`TreeService`] that lives in another process.

use std::io::{BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;

use byteback_api::{Attributes, ByteString};
use byteback_extents::ByteRange;
use byteback_oplog::NodeId;

use crate::frame::{self, Frame, protocol};
use crate::messages::{Answer, Request};
use crate::server::socket_address;
use crate::service::{
    ChangesCursor, ChangesPage, CutId, CutInfo, CutRequest, ErrorKind, FinishReport, Outcome, Piece, Result,
    ServiceError, TreeService, TreeStatus,
};

/// A connection to the daemon of a tree. Requests are answered one after the other; cuts that were made over this
/// connection are released when it ends.
#[derive(Debug)]
pub struct Client {
    connection: Mutex<Connection>,
}

#[derive(Debug)]
struct Connection {
    input: BufReader<UnixStream>,
    output: BufWriter<UnixStream>,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`] if no daemon listens there; [`ErrorKind::Protocol`] if it speaks another version.
    pub fn connect(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| {
            let message = format!("no daemon answers at {}: {error}", path.display());
            ServiceError::new(ErrorKind::Gone, message)
        };
        let address = socket_address(path).map_err(failed)?;
        let stream = UnixStream::connect(address.path()).map_err(failed)?;
        let mut output = BufWriter::new(stream.try_clone().map_err(failed)?);
        let mut input = BufReader::with_capacity(1 << 18, stream);
        frame::write_hello(&mut output)?;
        output.flush().map_err(failed)?;
        frame::read_hello(&mut input)?;
        Ok(Self {
            connection: Mutex::new(Connection {
                input,
                output,
                buffer: Vec::new(),
            }),
        })
    }

    fn ask(&self, request: &Request, sink: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<Answer> {
        let mut connection = self
            .connection
            .lock()
            .map_err(|_| protocol("an earlier request failed"))?;
        let Connection { input, output, buffer } = &mut *connection;
        frame::write_json(output, request)?;
        output
            .flush()
            .map_err(|error| ServiceError::new(ErrorKind::Gone, error.to_string()))?;
        let mut refused = None;
        loop {
            let piece = match frame::read(input, buffer)? {
                None => {
                    return Err(ServiceError::new(
                        ErrorKind::Gone,
                        "the tree's daemon ended the connection",
                    ));
                }
                Some(Frame::Json(json)) => {
                    let answer: Answer = frame::parse(json)?;
                    return refused.map_or(Ok(answer), Err);
                }
                Some(Frame::Data { offset, bytes }) => Piece::Data { offset, bytes },
                Some(Frame::Hole { start, end }) => {
                    Piece::Hole(ByteRange::new(start, end).ok_or_else(|| protocol("an empty hole was sent"))?)
                }
            };
            // After a refusal the rest still has to be read, to keep the connection usable.
            if refused.is_none() {
                refused = sink(piece).err();
            }
        }
    }

    fn call(&self, request: &Request) -> Result<Answer> {
        match self.ask(request, &mut |_| Err(protocol("content came where none was asked for")))? {
            Answer::Error(error) => Err(error),
            answer => Ok(answer),
        }
    }
}

fn unexpected<T>(answer: &Answer) -> Result<T> {
    Err(protocol(format!(
        "the daemon answered something else than was asked: {answer:?}"
    )))
}

impl TreeService for Client {
    fn status(&self) -> Result<TreeStatus> {
        match self.call(&Request::Status)? {
            Answer::Status(status) => Ok(*status),
            other => unexpected(&other),
        }
    }

    fn resolve_pending(&self, consumer: &str, saved: Option<Vec<u8>>) -> Result<()> {
        self.call(&Request::ResolvePending {
            consumer: consumer.to_owned(),
            saved,
        })
        .map(drop)
    }

    fn cut(&self, request: &CutRequest) -> Result<CutInfo> {
        match self.call(&Request::Cut { cut: request.clone() })? {
            Answer::Cut(info) => Ok(info),
            other => unexpected(&other),
        }
    }

    fn changes(&self, cut: CutId, cursor: ChangesCursor) -> Result<ChangesPage> {
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
        match self.ask(
            &Request::Read {
                cut,
                node,
                ranges: ranges.to_vec(),
            },
            sink,
        )? {
            Answer::Done => Ok(()),
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

    fn note_batch(&self, cut: CutId, batch: u64) -> Result<()> {
        self.call(&Request::NoteBatch { cut, batch }).map(drop)
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
        self.call(&Request::Unmount).map(drop)
    }
}
