//! The messages of a line: a call, and the pieces of an answer.

use super::{CALL_BODY_LEN_MAX, LineError};
use crate::routes::Method;

/// Most headers of a call or an answer.
pub const HEADERS_MAX: usize = 16;

/// Longest address, name or value of a header, in bytes.
const TEXT_LEN_MAX: usize = 64 * 1024;

/// The bit of a call's first byte that says that its body is an unsummed piece.
const UNSUMMED: u8 = 0x10;

/// The bit of an answer's first byte that says that nothing follows.
const LAST: u8 = 1;

/// A call: a request of HTTP without what is the same for all of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineCall<'a> {
    /// The method.
    pub method: Method,
    /// Path and query, as in a request.
    pub target: &'a str,
    /// Headers, at most [`HEADERS_MAX`]: `None` behind the last one.
    pub headers: [Option<(&'a str, &'a str)>; HEADERS_MAX],
    /// The body, at most [`CALL_BODY_LEN_MAX`] bytes.
    pub body: &'a [u8],
    /// Whether the body is a piece of a batch in the form of [`super::piece`].
    pub is_unsummed: bool,
}

/// The beginning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead<'a> {
    /// The status, as of HTTP.
    pub status: u16,
    /// Headers, at most [`HEADERS_MAX`]: `None` behind the last one.
    pub headers: [Option<(&'a str, &'a str)>; HEADERS_MAX],
}

/// A message of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineAnswer<'a> {
    /// In the first message of an answer, and in no other.
    pub head: Option<AnswerHead<'a>>,
    /// A piece of the body.
    pub piece: &'a [u8],
    /// Whether the body ends with it.
    pub is_last: bool,
}

fn broken(why: &str) -> LineError {
    LineError::Broken(why.to_owned())
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        // Seven bits always fit.
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn put_headers(out: &mut Vec<u8>, headers: &[Option<(&str, &str)>; HEADERS_MAX]) {
    let headers = || headers.iter().map_while(|header| *header);
    put_varint(out, headers().count());
    for (name, value) in headers() {
        put_text(out, name);
        put_text(out, value);
    }
}

/// Takes fields off the front of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn byte(&mut self) -> Result<u8, LineError> {
        let (byte, rest) = self.0.split_first().ok_or_else(|| broken("a message is cut off"))?;
        self.0 = rest;
        Ok(*byte)
    }

    /// A length of at most `max`.
    fn len(&mut self, max: usize) -> Result<usize, LineError> {
        let mut len = 0_usize;
        // Three groups of seven bits reach every limit.
        for shift in [0, 7, 14] {
            let byte = self.byte()?;
            len |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return (len <= max).then_some(len).ok_or_else(|| broken("a field is too long"));
            }
        }
        Err(broken("a field is too long"))
    }

    fn text(&mut self) -> Result<&'a str, LineError> {
        let len = self.len(TEXT_LEN_MAX)?;
        let (text, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| broken("a message is cut off"))?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| broken("a header is not UTF-8"))
    }

    fn headers(&mut self) -> Result<[Option<(&'a str, &'a str)>; HEADERS_MAX], LineError> {
        let count = self.len(HEADERS_MAX)?;
        let mut headers = [None; HEADERS_MAX];
        for header in headers.iter_mut().take(count) {
            *header = Some((self.text()?, self.text()?));
        }
        Ok(headers)
    }
}

impl<'a> LineCall<'a> {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.target.len() + self.body.len() + 64);
        let method = match self.method {
            Method::Get => 0,
            Method::Put => 1,
            Method::Post => 2,
            Method::Delete => 3,
        };
        out.push(if self.is_unsummed { method | UNSUMMED } else { method });
        put_text(&mut out, self.target);
        put_headers(&mut out, &self.headers);
        out.extend_from_slice(self.body);
        out
    }

    /// The call in a message.
    ///
    /// # Errors
    /// [`LineError::Broken`] for a message that is no call.
    pub fn decode(message: &'a [u8]) -> Result<Self, LineError> {
        let mut fields = Fields(message);
        let first = fields.byte()?;
        let method = match first & !UNSUMMED {
            0 => Method::Get,
            1 => Method::Put,
            2 => Method::Post,
            3 => Method::Delete,
            _ => return Err(broken("a call has an unknown method")),
        };
        let (target, headers) = (fields.text()?, fields.headers()?);
        if fields.0.len() > CALL_BODY_LEN_MAX {
            return Err(broken("the body of a call is too long"));
        }
        Ok(Self {
            method,
            target,
            headers,
            body: fields.0,
            is_unsummed: first & UNSUMMED != 0,
        })
    }
}

impl<'a> LineAnswer<'a> {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.piece.len() + 64);
        out.push(if self.is_last { LAST } else { 0 });
        if let Some(head) = &self.head {
            out.extend_from_slice(&head.status.to_le_bytes());
            put_headers(&mut out, &head.headers);
        }
        out.extend_from_slice(self.piece);
        out
    }

    /// The piece of an answer in a message, which has a head if it `is_first`.
    ///
    /// # Errors
    /// [`LineError::Broken`] for a message that is no such piece.
    pub fn decode(message: &'a [u8], is_first: bool) -> Result<Self, LineError> {
        let mut fields = Fields(message);
        let is_last = match fields.byte()? {
            0 => false,
            LAST => true,
            _ => return Err(broken("an answer has unknown marks")),
        };
        let head = match is_first {
            true => {
                let status = u16::from_le_bytes([fields.byte()?, fields.byte()?]);
                let headers = fields.headers()?;
                Some(AnswerHead { status, headers })
            }
            false => None,
        };
        Ok(Self {
            head,
            piece: fields.0,
            is_last,
        })
    }
}
