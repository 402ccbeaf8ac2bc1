//! Percent-encoding of bytes in URL paths and queries.
//!
//! Paths of files are bytes; a URL's query is ASCII. Everything but the unreserved characters of
//! RFC 3986 (and `/`, which a query may hold) is encoded, so that a value needs no second look.
//! `+` is not read as a space: these are not HTML forms.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Encodes a query value, for example a path.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    percent_encode(bytes, VALUE).to_string()
}

/// An error in a query string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// A parameter occurs twice.
    #[error("parameter '{0}' occurs twice")]
    Repeated(String),
    /// The call has no such parameter.
    #[error("unknown parameter '{0}'")]
    UnknownParameter(String),
    /// A parameter's value does not parse.
    #[error("parameter '{name}': {reason}")]
    BadValue {
        /// The parameter.
        name: String,
        /// The expected form.
        reason: String,
    },
}

/// The parameters of one query string that have not been taken yet.
#[derive(Debug, Default)]
pub struct Query {
    pairs: Vec<(String, Vec<u8>)>,
}

impl Query {
    /// Splits `a=1&b=2` and decodes the values; `None` is an empty query.
    ///
    /// # Errors
    /// A parameter occurs twice.
    pub fn parse(text: Option<&str>) -> Result<Self, QueryError> {
        let mut pairs: Vec<(String, Vec<u8>)> = Vec::new();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if pairs.iter().any(|(seen, _)| seen == name) {
                return Err(QueryError::Repeated(name.to_owned()));
            }
            pairs.push((name.to_owned(), percent_decode_str(value).collect()));
        }
        Ok(Self { pairs })
    }

    /// Takes a parameter as bytes.
    pub fn take_bytes(&mut self, name: &str) -> Option<Vec<u8>> {
        let at = self.pairs.iter().position(|(key, _)| key == name)?;
        Some(self.pairs.swap_remove(at).1)
    }

    /// Takes a parameter that is the text form of a `T`.
    ///
    /// # Errors
    /// The value is not UTF-8 or does not parse.
    pub fn take<T>(&mut self, name: &str) -> Result<Option<T>, QueryError>
    where
        T: std::str::FromStr,
        T::Err: std::fmt::Display,
    {
        let Some(bytes) = self.take_bytes(name) else {
            return Ok(None);
        };
        let bad = |reason: String| QueryError::BadValue {
            name: name.to_owned(),
            reason,
        };
        let text = String::from_utf8(bytes).map_err(|_| bad("not UTF-8".to_owned()))?;
        text.parse().map(Some).map_err(|e: T::Err| bad(e.to_string()))
    }

    /// Ends the reading: every remaining parameter is unknown to the call.
    ///
    /// # Errors
    /// A parameter was not taken.
    pub fn finish(self) -> Result<(), QueryError> {
        match self.pairs.into_iter().next() {
            Some((name, _)) => Err(QueryError::UnknownParameter(name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
