//! Listening to a folder: its batches as they are applied, for as long as the caller wants to hear
//! of them.
//!
//! A connection that breaks, and a server that is away for days, are waited for: with growing
//! pauses, of which a part depends on the moment, so that the many clients of a server that comes
//! back do not all come at once. Nothing is missed meanwhile: each event has the sequence number of
//! its batch, and the next connection begins behind the last one. A batch that is left out,
//! repeated or out of order is refused.
//!
//! Out of scope: fetching the changes of a batch.

use super::{CANCEL_WITHIN, ServerClient};
use crate::error::ServerError;
use byteback_api::messages::BatchEvent;
use byteback_api::routes::Route;
use byteback_api::{FolderName, MEDIA_EVENTS};
use byteback_model::Seq;
use std::io::{BufRead, BufReader, Read};
use std::time::Duration;
use ureq::http;

/// Longest line of a stream, in bytes: a host name is its only text.
const LINE_LEN_MAX: u64 = 64 * 1024;

/// Most lines of an event.
const EVENT_LINES_MAX: usize = 64;

/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A folder that is listened to; see [`ServerClient::listen`].
pub struct Listening<'a> {
    client: &'a ServerClient,
    folder: FolderName,
    after: Seq,
    stream: Option<BufReader<Box<dyn Read + Send>>>,
    pause: Duration,
}

impl std::fmt::Debug for Listening<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening")
            .field("folder", &self.folder)
            .field("after", &self.after)
            .field("is_connected", &self.stream.is_some())
            .finish_non_exhaustive()
    }
}

/// News from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerNews {
    /// A batch was applied.
    Batch(BatchEvent),
    /// The server is there, and has nothing new.
    Nothing,
    /// The server could not be reached, in a sentence for people; the next call tries again, after
    /// a pause.
    Away(String),
    /// The user asked to stop.
    Cancelled,
}

impl ServerClient {
    /// Listens to the batches of `folder` after the sequence number `after`. Does not connect yet.
    #[must_use]
    pub fn listen(&self, folder: &FolderName, after: Seq) -> Listening<'_> {
        Listening {
            client: self,
            folder: folder.clone(),
            after,
            stream: None,
            pause: Duration::ZERO,
        }
    }
}

impl Listening<'_> {
    /// The longest pause before the next attempt, doubled by every failure; zero while connected.
    #[must_use]
    pub fn longest_pause(&self) -> Duration {
        self.pause
    }

    /// The sequence number of the last batch heard of.
    #[must_use]
    pub fn after(&self) -> Seq {
        self.after
    }

    /// Waits for the next batch, or for news of the server.
    ///
    /// # Errors
    /// Failures that waiting does not mend: the folder does not exist or is behind what was heard
    /// (its server was put back to an older state), the token is refused, the stream breaks the
    /// rules.
    pub fn hear(&mut self) -> Result<ServerNews, ServerError> {
        if !self.rest() {
            return Ok(ServerNews::Cancelled);
        }
        let heard = match self.stream.take() {
            None => self.connect(),
            Some(stream) => self.read(stream),
        };
        match heard {
            Ok(heard) => {
                self.pause = Duration::ZERO;
                Ok(heard)
            }
            Err(error) if error.kind.is_transient() => {
                let first = self.client.options.first_pause;
                self.pause = self.pause.saturating_mul(2).clamp(first, PAUSE_MAX);
                Ok(ServerNews::Away(error.away_in_words()))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits before another attempt; false when the user asks to stop.
    fn rest(&self) -> bool {
        let clock = self.client.clock();
        // From half the pause to all of it.
        let nanos = u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX);
        let cut_ns = clock.monotonic_ns().checked_rem(nanos / 2).unwrap_or(0);
        let mut left = self.pause.saturating_sub(Duration::from_nanos(cut_ns));
        loop {
            if (self.client.options.is_cancelled)() {
                return false;
            }
            if left.is_zero() {
                return true;
            }
            let nap = left.min(CANCEL_WITHIN);
            clock.sleep(nap);
            left = left.saturating_sub(nap);
        }
    }

    fn connect(&mut self) -> Result<ServerNews, ServerError> {
        let after = [("after", self.after.to_string())];
        let ask = self.client.ask(Route::Events, &[self.folder.as_str()], &after);
        let response = match self.client.call_on_own_line(&ask)? {
            Some(response) => self.client.judge(&ask, response)?,
            None => self.client.send_once(&ask)?,
        };
        let media = response.headers().get(http::header::CONTENT_TYPE);
        if media.is_none_or(|media| !media.as_bytes().starts_with(MEDIA_EVENTS.as_bytes())) {
            return Err(self.broken_rule("the answer is not an event stream"));
        }
        let body: Box<dyn Read + Send> = Box::new(response.into_body().into_reader());
        self.stream = Some(BufReader::new(body));
        Ok(ServerNews::Nothing)
    }

    /// Reads up to the next event or comment. The stream is kept only if that came whole.
    fn read(&mut self, mut stream: BufReader<Box<dyn Read + Send>>) -> Result<ServerNews, ServerError> {
        let mut data: Option<Vec<u8>> = None;
        for _ in 0..EVENT_LINES_MAX {
            let mut line = Vec::new();
            (&mut stream)
                .take(LINE_LEN_MAX)
                .read_until(b'\n', &mut line)
                .map_err(|error| ServerError::of_transport(&self.name(), error.into()))?;
            if line.pop_if(|last| *last == b'\n').is_none() {
                return Err(match u64::try_from(line.len()) {
                    Ok(len) if len < LINE_LEN_MAX => {
                        let cut = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                        ServerError::of_transport(&self.name(), cut.into())
                    }
                    _ => self.broken_rule("a line of the stream is too long"),
                });
            }
            let _ = line.pop_if(|last| *last == b'\r');
            if line.is_empty() {
                let heard = match data {
                    None => ServerNews::Nothing,
                    Some(data) => ServerNews::Batch(self.batch(&data)?),
                };
                self.stream = Some(stream);
                return Ok(heard);
            }
            // The other fields repeat the data.
            if let Some(value) = line.strip_prefix(b"data:") {
                if data.is_some() {
                    return Err(self.broken_rule("an event has two lines of data"));
                }
                data = Some(value.strip_prefix(b" ").unwrap_or(value).to_vec());
            }
        }
        Err(self.broken_rule("an event has too many lines"))
    }

    fn batch(&mut self, data: &[u8]) -> Result<BatchEvent, ServerError> {
        let event: BatchEvent = serde_json::from_slice(data)
            .map_err(|error| self.broken_rule(&format!("cannot decode an event: {error}")))?;
        if self.after.checked_add(1) != Some(event.seq) {
            return Err(self.broken_rule(&format!("after batch {} it reports batch {}", self.after, event.seq)));
        }
        self.after = event.seq;
        Ok(event)
    }

    fn name(&self) -> String {
        let path = Route::Events.path().replace("{folder}", self.folder.as_str());
        format!("GET {}{path}", self.client.base_url())
    }

    fn broken_rule(&self, message: &str) -> ServerError {
        ServerError::protocol(&self.name(), message.to_owned())
    }
}
