//! Lists of names relative to the folder, each ended by a newline or a zero byte.
//!
//! Each name begins with `./`, so that the program that reads the list takes none for an option
//! (`-`), a comment (`#`, `;`) or a pattern's sign (`!`).

use std::io::{self, BufWriter, Write};

use byteback_backup::{BackupError, PathChange, Silent, changed_paths};
use byteback_model::{ByteString, NodeKind};

use super::Asked;
use crate::error::{CommandError, Result};
use crate::settings::Settings;

/// Selection of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Everything that exists except directories.
    Files,
    /// Everything that exists except the folder itself.
    Paths,
    /// Everything that is gone.
    Removed,
}

pub(super) fn print(asked: &Asked<'_>, kind: Kind, null: bool, settings: &Settings) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    asked.look(settings, |info| {
        let mut stopped = None;
        let listed = changed_paths(asked.tree, info, &Silent, |change| {
            let path = match (change, kind) {
                (PathChange::Present { path, kind }, Kind::Files) if kind != NodeKind::Directory => path,
                (PathChange::Present { path, .. }, Kind::Paths) if !path.as_bytes().is_empty() => path,
                (PathChange::Gone { path }, Kind::Removed) => path,
                _ => return Ok(()),
            };
            write(&mut out, &path, null).map_err(|error| {
                stopped = Some(error);
                BackupError::Cancelled
            })
        });
        stopped.map_or(Ok(()), Err).and(listed.map_err(Into::into))
    })?;
    crate::output::written(out.flush())
}

fn write(out: &mut impl Write, path: &ByteString, null: bool) -> Result<()> {
    let bytes = path.as_bytes();
    if !null && bytes.contains(&b'\n') {
        return Err(CommandError::new(format!(
            "the name of {path} contains a newline, so a list with one name per line cannot hold it"
        ))
        .next(
            "Use -0, and the matching option of the program that reads the list (--files-from-raw, --from0, --null).",
        ));
    }
    let end: &[u8] = if null { b"\0" } else { b"\n" };
    let parts = [b"./", bytes, end];
    crate::output::written(parts.iter().try_for_each(|part| out.write_all(part)))
}
