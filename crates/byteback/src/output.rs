//! The output of commands: sentences for people, or with `--json` one object per line for programs.
//!
//! Results go to standard output; errors, warnings and progress to standard error. Each JSON line
//! has a `message_type`; fields are only ever added. A reader that goes away ends a listing quietly
//! and does not disturb other work.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::error::{CommandError, Failure, Result};

/// The output options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    /// Number of `-v` flags.
    pub(crate) verbosity: u8,
}

#[derive(Serialize)]
struct Line<'a, T> {
    message_type: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Serialize)]
struct ExitError<'a> {
    code: u8,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
}

#[derive(Serialize)]
struct ItemError<'a> {
    error: ErrorText<'a>,
    during: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<&'a byteback_model::ByteString>,
}

#[derive(Serialize)]
struct ErrorText<'a> {
    message: &'a str,
}

#[derive(Serialize)]
struct Warning<'a> {
    message: &'a str,
}

impl Output {
    /// Prints a line that was asked for: the content of a list.
    pub(crate) fn line(self, text: impl Display) -> Result<()> {
        written(writeln!(io::stdout().lock(), "{text}"))
    }

    /// Prints a line that reports what was done; nothing with `--quiet` or `--json`.
    pub(crate) fn say(self, text: impl Display) -> Result<()> {
        if self.quiet || self.json {
            return Ok(());
        }
        self.line(text)
    }

    /// Prints an object on a line of its own.
    pub(crate) fn object<T: Serialize>(self, message_type: &str, body: &T) -> Result<()> {
        written(write_object(&mut io::stdout().lock(), message_type, body))
    }

    /// Prints a warning: something that the user should know, but that needs no action now.
    pub(crate) fn warn(self, text: &str) {
        let mut out = io::stderr().lock();
        let _ = if self.json {
            write_object(&mut out, "verbose_status", &Warning { message: text })
        } else {
            writeln!(out, "byteback: note: {}", in_words(text))
        };
    }

    /// Reports one file that failed while the others go on.
    pub(crate) fn item_error(self, during: &str, item: Option<&byteback_model::ByteString>, reason: &str) {
        let mut out = io::stderr().lock();
        let _ = if self.json {
            let error = ErrorText { message: reason };
            write_object(&mut out, "error", &ItemError { error, during, item })
        } else {
            let reason = in_words(reason);
            match item.filter(|item| !names(&reason, &item.to_string())) {
                Some(item) if !item.as_bytes().is_empty() => writeln!(out, "byteback: {item}: {reason}"),
                _ => writeln!(out, "byteback: {reason}"),
            }
        };
    }

    /// Prints the failure that ends the command.
    pub(crate) fn failure(self, failure: &Failure) {
        let mut out = io::stderr().lock();
        let next = failure.next.as_deref();
        let _ = if self.json {
            let body = ExitError {
                code: failure.exit.code(),
                message: &failure.message,
                next,
            };
            write_object(&mut out, "exit_error", &body)
        } else {
            writeln!(out, "byteback: {}", in_words(&failure.message))
                .and_then(|()| next.map_or(Ok(()), |next| writeln!(out, "  {next}")))
        };
    }

    /// Whether a person sees progress while it happens.
    pub(crate) fn shows_progress(self) -> bool {
        !self.quiet && !self.json && io::stderr().is_terminal()
    }
}

/// A message without the numbers of system errors, which mean nothing to people. Programs get them,
/// with `--json`.
fn in_words(message: &str) -> String {
    const START: &str = " (os error ";
    let mut parts = message.split(START);
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => words.push_str(rest),
            _ => words.extend([START, part]),
        }
    }
    words
}

/// Whether a message names an item already. A name that is part of a longer word does not count.
fn names(message: &str, item: &str) -> bool {
    message.match_indices(item).any(|(at, _)| {
        let before = message[..at].chars().next_back();
        let after = message[at + item.len()..].chars().next();
        let is_border = |char: Option<char>| char.is_none_or(|char| matches!(char, ' ' | ':' | ';' | ',' | '\'' | '"'));
        is_border(before) && is_border(after)
    })
}

fn write_object<T: Serialize>(out: &mut impl Write, message_type: &str, body: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Line { message_type, body })?;
    line.push(b'\n');
    out.write_all(&line)
}

/// A failed write to standard output as an error of the command.
pub(crate) fn written(result: io::Result<()>) -> Result<()> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => CommandError::OutputClosed,
        _ => CommandError::new(format!("cannot write to standard output: {error}")),
    })
}

/// Prints a table: columns as wide as their widest cell, the last one open.
pub(crate) fn table<const N: usize>(output: Output, head: [&str; N], rows: &[[String; N]]) -> Result<()> {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |column: usize, head: &str| {
        cells(column)
            .map(|cell| cell.chars().count())
            .chain([head.chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = head
        .iter()
        .enumerate()
        .map(|(column, head)| width(column, head))
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    output.line(line(&mut head.into_iter()))?;
    for row in rows {
        output.line(line(&mut row.iter().map(String::as_str)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
