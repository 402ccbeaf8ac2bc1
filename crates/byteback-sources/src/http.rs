//! The network as seen by sources that are reached by HTTP: one request, one answer. The program
//! supplies the implementation; nothing here opens a connection.

use std::io;

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Headers only.
    Head,
    /// Headers and a body.
    Get,
}

impl Method {
    /// The method's name in requests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Head => "HEAD",
            Self::Get => "GET",
        }
    }
}

/// A request without a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The whole address.
    pub url: String,
    /// Headers; their names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The limit of the answer's body, in bytes; a longer one is an error.
    pub body_len_max: u64,
}

/// An answer, whatever its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Headers; names in any case. Headers that are not text are left out.
    pub headers: Vec<(String, String)>,
    /// The body, complete.
    pub body: Vec<u8>,
}

impl Answer {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|header| header.0.eq_ignore_ascii_case(name));
        found.map(|(_, value)| &value[..])
    }
}

/// A client that sends requests to servers.
pub trait Http {
    /// Sends a request and waits for the whole answer. Redirections are not followed: they are
    /// answers.
    ///
    /// # Errors
    /// If there is no complete answer in reasonable time.
    fn ask(&self, request: &Request) -> io::Result<Answer>;
}
