//! Where backups are kept: `http://HOST:PORT/FOLDER`, a server and a folder on it.

use std::fmt;
use std::str::FromStr;

use byteback_api::FolderName;

/// A folder of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repository {
    /// Address of the server, without a slash at the end.
    pub(crate) server: String,
    /// The folder.
    pub(crate) folder: FolderName,
}

/// A text is no address of a repository.
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
                "'{text}' {what}; write http://HOST:PORT/FOLDER, for example http://127.0.0.1:7117/mail"
            ))
        };
        let text_end = text.trim_end_matches('/');
        let Some((scheme, rest)) = text_end.split_once("://") else {
            return Err(wrong("is no address"));
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
            return Err(wrong("holds more than a server and a folder"));
        }
        let folder = folder
            .parse::<FolderName>()
            .map_err(|error| wrong(&format!("has no valid folder name at its end ({error})")))?;
        Ok(Self {
            server: format!("{scheme}://{}", host.trim_end_matches('/').to_ascii_lowercase()),
            folder,
        })
    }
}

#[cfg(test)]
mod tests;
