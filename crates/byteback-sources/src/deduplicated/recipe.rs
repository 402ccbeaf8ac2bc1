//! Recipes: a file as a list of chunks with their lengths and fingerprints, in lines that any
//! program can write. docs/formats/recipe.md has the format.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use sha2::Digest;

use super::Table;
use byteback_checksums::source::Kind;

/// The first line.
const TITLE: &[u8] = b"byteback-recipe 1";

/// The contents of a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    pub(crate) table: Table,
    /// The folder of its chunks; a relative one begins at the recipe's own folder.
    pub(crate) chunks: Option<PathBuf>,
}

/// Reads a recipe.
pub(crate) fn parse(bytes: &[u8]) -> Result<Recipe, &'static str> {
    const CUT: &str = "a truncated recipe";
    let mut rest = bytes;
    let mut line = || {
        let at = rest.iter().position(|byte| *byte == b'\n')?;
        let (line, later) = rest.split_at_checked(at)?;
        rest = later.get(1..)?;
        // The offset of the line, and the line.
        Some((bytes.len() - later.len() - line.len(), line))
    };
    let mut next = || line().ok_or(CUT);
    if next()?.1 != TITLE {
        return Err("not a recipe of version 1");
    }
    let sums = next()?
        .1
        .strip_prefix(b"sums ")
        .ok_or("a recipe without a kind of sums")?;
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| *kind != Kind::Fletcher4 && kind.name().as_bytes() == sums)
        .ok_or("a recipe with an unsupported kind of sums")?;
    let len = next()?.1.strip_prefix(b"length ").and_then(number);
    let len = len.ok_or("a recipe without the file's length")?;
    let mut table = Table::new(kind);
    let mut chunks = None;
    let (reported, at) = loop {
        let (at, line) = next()?;
        if let Some(folder) = line.strip_prefix(b"chunks ") {
            if folder.is_empty() || chunks.is_some() || !table.ends.is_empty() {
                return Err("a recipe with its folder of chunks at the wrong place");
            }
            chunks = Some(PathBuf::from(OsStr::from_bytes(folder)));
        } else if let Some(digest) = line.strip_prefix(b"end ") {
            break (digest, at);
        } else {
            let mut words = line.splitn(2, |byte| *byte == b' ');
            let len = words
                .next()
                .and_then(number)
                .ok_or("a line that does not describe a chunk")?;
            let sum = words
                .next()
                .and_then(from_hex)
                .ok_or("a line that does not describe a chunk")?;
            let end = table.len_bytes().checked_add(len).ok_or("a chunk that is too long")?;
            table.push(end, &sum)?;
        }
    };
    // The last line describes no chunk, and nothing is behind it.
    let made = sha2::Sha256::digest(bytes.get(..at).unwrap_or_default());
    if from_hex(reported).as_deref() != Some(&made[..]) {
        return Err("a recipe that does not match the digest in its last line");
    }
    if at + b"end ".len() + reported.len() + 1 != bytes.len() {
        return Err("a recipe with data after its end");
    }
    match table.len_bytes() == len {
        true => Ok(Recipe { table, chunks }),
        false => Err("chunks that do not add up to the file's length"),
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let are_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| are_digits)?.parse().ok()
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_chunks::<2>();
    let value = |digit: u8| char::from(digit).to_digit(16);
    let byte = |&[high, low]: &[u8; 2]| u8::try_from(value(high)? << 4 | value(low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Encodes a recipe of these chunks.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn written(table: &Table, chunks: Option<&str>) -> Vec<u8> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut text = format!(
        "byteback-recipe 1\nsums {}\nlength {}\n",
        table.kind.name(),
        table.len_bytes()
    );
    if let Some(folder) = chunks {
        text.push_str(&format!("chunks {folder}\n"));
    }
    for number in 0..table.ends.len() {
        let len = table.range(number).map_or(0, byteback_extents::ByteRange::len_bytes);
        text.push_str(&format!("{len} {}\n", hex(table.sum(number))));
    }
    sealed(text.as_bytes())
}

/// Appends the last line, with the digest.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn sealed(lines: &[u8]) -> Vec<u8> {
    let digest = sha2::Sha256::digest(lines);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    [lines, format!("end {digest}\n").as_bytes()].concat()
}
