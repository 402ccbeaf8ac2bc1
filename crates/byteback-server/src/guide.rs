//! The guide: the files of one folder, shown to browsers below `/guide/`.
//!
//! The pages are public, so a request needs no token. Invariants:
//!
//! - A name is taken as it stands in the address, undecoded: ASCII letters, digits, `-`, `_` and
//!   `.`, but no `.` at its beginning. So neither `..` nor an encoded form of it is a name, and
//!   hidden files are not shown.
//! - The system resolves a path beneath the folder (`RESOLVE_BENEATH`): a symbolic link that leads
//!   out is not followed.
//! - Clients without a token take no place of a transfer. A file is read in pieces, the next one
//!   when the client has taken the previous ones, and a thread is busy only while it reads a piece.
//!
//! The folder is opened for each request, so a guide that was built again needs no new start.
//!
//! There are no listings of directories, no ranges and no conditional requests.

use crate::body::async_outgoing;
use crate::headers::insert_header;
use crate::problem::{Answer, parameter, refuse};
use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use byteback_api::problem::Code;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// The address of the first page.
pub const GUIDE_PATH: &str = "/guide/";

/// The page of a folder.
const INDEX: &str = "index.html";

/// Longest piece of a file in memory, in bytes: short, because each stranger can ask for some.
const PIECE_LEN: u64 = 16 * 1024;

/// Pages load nothing from elsewhere, run no scripts of their own text and are in no foreign frame.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'";

/// A folder of pages that the server shows.
#[derive(Clone, Debug)]
pub struct Guide {
    dir: PathBuf,
}

/// Errors of opening a guide.
#[derive(Debug, thiserror::Error)]
pub enum GuideError {
    /// The folder has no first page.
    #[error("cannot show the guide {}: index.html is missing", dir.display())]
    NoIndex {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder or its first page cannot be read.
    #[error("cannot show the guide {}: {source}", dir.display())]
    Unreadable {
        /// The folder.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The thing that a path beneath the folder leads to.
enum Found {
    /// A regular file and its length in bytes.
    File(File, u64),
    Folder,
    Nothing,
}

impl Guide {
    /// The guide in the folder `dir`.
    ///
    /// # Errors
    /// The folder cannot be read, or has no `index.html`.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, GuideError> {
        let guide = Self { dir: dir.into() };
        match guide.find(INDEX) {
            Ok(Found::File(..)) => Ok(guide),
            Ok(_) => Err(GuideError::NoIndex { dir: guide.dir }),
            Err(source) => Err(GuideError::Unreadable { dir: guide.dir, source }),
        }
    }

    fn find(&self, path: &str) -> io::Result<Found> {
        let folder = open(
            &self.dir,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // Without waiting for the writer of a named pipe.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = match openat2(&folder, path, flags, Mode::empty(), beneath) {
            Ok(file) => File::from(file),
            // The path leads out, or to something that is neither a file nor a folder.
            Err(Errno::XDEV | Errno::LOOP | Errno::NXIO) => return Ok(Found::Nothing),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(Found::Nothing),
            Err(error) => return Err(error.into()),
        };
        let metadata = file.metadata()?;
        Ok(match metadata.is_file() {
            true => Found::File(file, metadata.len()),
            false if metadata.is_dir() => Found::Folder,
            false => Found::Nothing,
        })
    }
}

/// Answers a GET or HEAD request for a path below [`GUIDE_PATH`].
pub(crate) async fn answer(guide: Option<&Guide>, request: &Parts) -> Answer {
    let address = request.uri.path();
    let Some(guide) = guide.cloned() else {
        let detail = "this server shows no guide; 'byteback serve --guide DIR' does";
        return Err(refuse(Code::RouteNotFound, detail));
    };
    let Some(path) = address.strip_prefix(GUIDE_PATH) else {
        return Ok(moved(GUIDE_PATH));
    };
    let path = match path.is_empty() || path.ends_with('/') {
        true => format!("{path}{INDEX}"),
        false => path.to_owned(),
    };
    if !path.split('/').all(is_name) {
        return Err(parameter(format!("'{address}' is not the address of a page")));
    }
    let media = media_type(&path);
    let found = spawn_blocking(move || guide.find(&path)).await;
    let found = found.unwrap_or_else(|stopped| Err(io::Error::other(stopped)));
    match found {
        Ok(Found::File(file, len)) => Ok(page(file, len, media, request.method == Method::HEAD)),
        Ok(Found::Folder) => Ok(moved(&format!("{address}/"))),
        Ok(Found::Nothing) => Err(refuse(
            Code::RouteNotFound,
            format!("the guide has no page '{address}'; it begins at {GUIDE_PATH}"),
        )),
        Err(error) => Err(refuse(
            Code::Internal,
            format!("cannot read the guide's '{address}': {error}"),
        )),
    }
}

fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && !name.starts_with('.') && name.bytes().all(is_allowed)
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "txt" => "text/plain; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "woff2" => "font/woff2",
        _ => "application/octet-stream",
    }
}

/// Sends a browser to the address at which the links of a page are right.
fn moved(address: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    insert_header(response.headers_mut(), header::LOCATION, address);
    response
}

fn page(file: File, len: u64, media: &'static str, is_head: bool) -> Response<Body> {
    let body = match is_head {
        true => Body::empty(),
        false => {
            let (sender, body) = async_outgoing();
            tokio::spawn(send(file, len, sender));
            body
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    insert_header(headers, header::CONTENT_LENGTH, &len.to_string());
    response
}

/// Sends the first `left` bytes of a file, until the client goes away. A file that became shorter
/// breaks the answer off.
async fn send(mut file: File, mut left: u64, sender: mpsc::Sender<io::Result<Bytes>>) {
    while left > 0 {
        let read = spawn_blocking(move || piece(file, left)).await;
        let read = read.unwrap_or_else(|stopped| Err(io::Error::other(stopped)));
        let chunk = match read {
            Ok((same, bytes)) => {
                file = same;
                left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                Ok(Bytes::from(bytes))
            }
            Err(error) => {
                // A client that is gone already needs no sign.
                let _ = sender.send(Err(error)).await;
                return;
            }
        };
        if sender.send(chunk).await.is_err() {
            return;
        }
    }
}

fn piece(file: File, left: u64) -> io::Result<(File, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut limited = file.take(left.min(PIECE_LEN));
    limited.read_to_end(&mut bytes)?;
    match bytes.is_empty() {
        true => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Ok((limited.into_inner(), bytes)),
    }
}
