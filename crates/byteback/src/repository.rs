//! The place of backups: `https://HOST:PORT/FOLDER`, a server and a folder on it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

use byteback_api::FolderName;
use clap::builder::{OsStringValueParser, TypedValueParser};

/// A folder of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repository {
    /// Address of the server, without a slash at the end.
    pub(crate) server: String,
    /// Name of the folder.
    pub(crate) folder: FolderName,
}

/// The text is not the address of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseRepositoryError(String);

impl fmt::Display for ParseRepositoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseRepositoryError {}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.folder)
    }
}

impl FromStr for Repository {
    type Err = ParseRepositoryError;

    fn from_str(text: &str) -> Result<Self, ParseRepositoryError> {
        let wrong = |what: &str| {
            ParseRepositoryError(format!(
                "'{text}' {what}; write https://HOST:PORT/FOLDER, for example https://192.0.2.7:7117/mail"
            ))
        };
        let text_end = text.trim_end_matches('/');
        let Some((scheme, rest)) = text_end.split_once("://") else {
            return Err(wrong("is not an address"));
        };
        if !matches!(scheme, "http" | "https") {
            return Err(wrong("begins with neither http:// nor https://"));
        }
        let Some((host, folder)) = rest.rsplit_once('/') else {
            return Err(wrong("names a server but no folder on it"));
        };
        if host.is_empty() || host.starts_with(['/', ':']) {
            return Err(wrong("names no host"));
        }
        if host.contains(['@', '?', '#', ' ']) {
            return Err(wrong("contains more than a server and a folder"));
        }
        let folder = folder
            .parse::<FolderName>()
            .map_err(|error| wrong(&format!("does not end with a valid folder name ({error})")))?;
        Ok(Self {
            server: format!("{scheme}://{}", host.trim_end_matches('/').to_ascii_lowercase()),
            folder,
        })
    }
}

/// A place in a folder of a server: `https://HOST:PORT/FOLDER/PATH`. The path is taken literally:
/// nothing in it is percent-encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The server and the folder.
    pub(crate) repository: Repository,
    /// The path in the folder; empty for the whole folder. A slash at its end is kept.
    pub(crate) path: Vec<u8>,
}

impl Location {
    /// The parser for the command line.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(|text: OsString| Self::parse(&text))
    }

    /// Parses an address.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let begin = match bytes.windows(3).position(|three| three == b"://") {
            Some(scheme) => scheme + 3,
            None => 0,
        };
        // The server ends at the first slash after the scheme, the folder at the next one.
        let mut slashes = (begin..bytes.len()).filter(|at| bytes.get(*at) == Some(&b'/'));
        let end = slashes.nth(1).unwrap_or(bytes.len());
        let (head, path) = bytes.split_at(end);
        let head =
            std::str::from_utf8(head).map_err(|_| "the address of a server and a folder must be UTF-8".to_owned())?;
        let repository: Repository = head.parse().map_err(|error: ParseRepositoryError| error.to_string())?;
        let path = match path {
            b"/" => &[],
            path => path.strip_prefix(b"/").unwrap_or(path),
        };
        Ok(Self {
            repository,
            path: path.to_vec(),
        })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.is_empty() {
            true => self.repository.fmt(f),
            false => write!(
                f,
                "{}/{}",
                self.repository,
                byteback_model::ByteString::from(&self.path[..])
            ),
        }
    }
}

#[cfg(test)]
mod tests;
