//! Parsers for the kernel's list of mounts, and for the output of `zdb` about an object of a
//! dataset: text in, values out, nothing trusted.
//!
//! `zdb -ddddd -bbbbbb DATASET OBJECT` prints some lines about the object and then, after `Indirect
//! blocks:`, one line for each block pointer up to an empty line, each node of the tree before
//! those that it points to (wrapped here; `..` stands for omitted words):
//!
//! ```text
//!        0 L1  DVA[0]=<0:3c8000:1000> [L1 ZFS plain file] fletcher4 lz4 unencrypted LE ..
//!              size=4000L/600P birth=15L/15P fill=23 cksum=ab:cd:ef:12
//!    20000  L0 DVA[0]=<0:108000:20000> [L0 ZFS plain file] fletcher4 uncompressed ..
//!              size=20000L/20000P birth=15L/15P fill=1 cksum=..
//!    40000  L0 EMBEDDED [L0 ZFS plain file] et=0 lz4 size=20000L/39P birth=56L
//!    60000  L0 HOLE [L0 ZFS plain file] size=20000L birth=57L
//! ```
//!
//! The names of functions, the hexadecimal numbers and their order are the same from zfs-fuse 0.7
//! to OpenZFS 2.3. Older releases do not say whether a block is encrypted, because none is.
//!
//! `zdb` silently omits a node that it cannot read, with all nodes below it (the node may be gone,
//! because the pool is being written to). That would look like a hole. So the tree has to be
//! complete: each node has the number of data blocks below it (`fill`).
//!
//! The names of the file and of its attributes are printed verbatim. A name with line breaks can
//! look like any of these lines, so each relevant line must be there exactly once.

use byteback_checksums::source::Unknown;

/// Limit of a record's length, in bytes.
const RECORD_LEN_MAX: u64 = 16 << 20;

/// The `TYPE` of files.
const PLAIN_FILE: &str = "ZFS plain file";

/// The dataset that a file is in, by the line of the mount with this number in
/// `/proc/self/mountinfo`. `None` if the mount is not one of ZFS.
///
/// # Errors
/// The defect, in words.
pub(crate) fn dataset(mountinfo: &str, mount_id: u64) -> Result<Option<String>, &'static str> {
    const SHAPE: &str = "a malformed list of mounts";
    let number = mount_id.to_string();
    let mut lines = mountinfo.lines().filter(|line| line.split(' ').next() == Some(&number));
    let line = lines.next().ok_or("a file that is in no mount")?;
    let (_, last) = line.split_once(" - ").ok_or(SHAPE)?;
    let mut fields = last.split(' ');
    let (kind, source, options) = (fields.next(), fields.next(), fields.next());
    let (Some(kind), Some(source), Some(options)) = (kind, source, options) else {
        return Err(SHAPE);
    };
    match kind {
        "zfs" => {}
        // Any user may give a mount this name; `user_id`, set by the kernel, shows its owner.
        "fuse.zfs" if options.split(',').any(|option| option == "user_id=0") => {}
        _ => return Ok(None),
    }
    let dataset = unescaped(source).ok_or(SHAPE)?;
    // The characters of names (zfs(8)); so the name cannot be taken for an option.
    let is_name = dataset
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/@ %".contains(&byte));
    match is_name && dataset.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        true => Ok(Some(dataset)),
        false => Err("a malformed name of a dataset"),
    }
}

/// Decodes three octal digits behind a backslash as a byte.
fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('\\');
    let mut whole = parts.next()?.to_owned();
    for part in parts {
        let (digits, rest) = part.split_at_checked(3)?;
        whole.push(char::from(u8::from_str_radix(digits, 8).ok()?));
        whole.push_str(rest);
    }
    Some(whole)
}

/// The supported functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Function {
    Fletcher4,
    Sha256,
}

/// The knowledge about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Sum(Function, [u8; 32]),
    Unknown(Unknown),
}

/// A file as reported by `zdb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) size: u64,
    /// The length of a record, in bytes; 0 for an object without records.
    pub(crate) record_len: u64,
    /// The records that are not holes: their numbers, ascending, and the knowledge about each.
    pub(crate) records: Vec<(u64, What)>,
    /// The digest of everything that identifies this state of the file.
    pub(crate) digest: [u8; 32],
}

/// A parser that is fed line by line.
pub(crate) struct Parser {
    number: u64,
    state: State,
    levels: Option<u32>,
    size: Option<u64>,
    generation: Option<u64>,
    record_len: u64,
    records: Vec<(u64, What)>,
    /// The number after the last record; the next one cannot be lower.
    next: u64,
    /// The number of records according to the highest nodes, and the number listed.
    filled: u64,
    reported: u64,
    digest: blake3::Hasher,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the heading of the object's table.
    Before,
    /// The row of that table is next.
    Table,
    /// The attributes.
    About,
    Blocks,
    Behind,
}

type Parsed<T> = Result<T, &'static str>;

impl Parser {
    /// A parser for the object with this number.
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            state: State::Before,
            levels: None,
            size: None,
            generation: None,
            record_len: 0,
            records: Vec::new(),
            next: 0,
            filled: 0,
            reported: 0,
            digest: blake3::Hasher::new(),
        }
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// The defect, in words.
    pub(crate) fn line(&mut self, line: &[u8]) -> Parsed<()> {
        if line == b"Indirect blocks:" {
            if self.state != State::About {
                return Err("an object whose blocks are listed twice, or without the object");
            }
            self.state = State::Blocks;
            return Ok(());
        }
        let is_title = line.starts_with(b"    Object  lvl   iblk   dblk  dsize ");
        match self.state {
            State::Before if is_title => self.state = State::Table,
            State::Before => {}
            State::Table => {
                self.table(line)?;
                self.state = State::About;
            }
            _ if is_title => return Err("several objects"),
            State::About => self.about(line)?,
            State::Blocks if line.is_empty() => self.state = State::Behind,
            State::Blocks => self.block(line)?,
            State::Behind => {}
        }
        Ok(())
    }

    /// The end of the lines.
    ///
    /// # Errors
    /// The defect, in words.
    pub(crate) fn end(mut self) -> Parsed<Object> {
        if self.state != State::Behind {
            return Err("an incomplete list of an object's blocks");
        }
        let (Some(size), Some(generation), Some(levels)) = (self.size, self.generation, self.levels) else {
            return Err("an object without its length: it is encrypted, or this zdb is not supported");
        };
        if levels > 1 && self.filled != self.reported {
            return Err("an object of which not all blocks are listed");
        }
        for number in [self.number, size, generation, u64::from(levels)] {
            self.digest.update(&number.to_le_bytes());
        }
        Ok(Object {
            size,
            record_len: self.record_len,
            records: self.records,
            digest: *self.digest.finalize().as_bytes(),
        })
    }

    /// `NUMBER LEVELS ... TYPE`.
    fn table(&mut self, line: &[u8]) -> Parsed<()> {
        const SHAPE: &str = "a malformed table of an object";
        let line = std::str::from_utf8(line).map_err(|_| SHAPE)?;
        let mut fields = line.split_ascii_whitespace();
        let (number, levels) = (fields.next(), fields.next());
        if number.and_then(|text| text.parse().ok()) != Some(self.number) {
            return Err("a different object than requested");
        }
        if !line.contains(PLAIN_FILE) {
            return Err("an object that is not a file");
        }
        let levels = levels.and_then(|text| text.parse().ok());
        self.levels = Some(levels.filter(|levels| (1..=16).contains(levels)).ok_or(SHAPE)?);
        Ok(())
    }

    fn about(&mut self, line: &[u8]) -> Parsed<()> {
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
        let place = if let Some(text) = line.strip_prefix(b"\tsize\t") {
            (&mut self.size, text)
        } else if let Some(text) = line.strip_prefix(b"\tgen\t") {
            (&mut self.generation, text)
        } else {
            return Ok(());
        };
        let value = number(place.1).ok_or("a malformed number in the description of an object")?;
        match place.0.replace(value) {
            None => Ok(()),
            Some(_) => Err("an object with two lengths"),
        }
    }

    fn block(&mut self, line: &[u8]) -> Parsed<()> {
        const SHAPE: &str = "a malformed block pointer";
        self.digest.update(line).update(b"\n");
        let line = std::str::from_utf8(line).map_err(|_| SHAPE)?.trim_ascii_start();
        let (offset, line) = line.split_once(' ').ok_or(SHAPE)?;
        let (level, line) = line
            .trim_ascii_start()
            .strip_prefix('L')
            .and_then(|line| line.split_once(' '))
            .ok_or(SHAPE)?;
        let (offset, level) = (hex(offset).ok_or(SHAPE)?, level.parse::<u32>().map_err(|_| SHAPE)?);
        let (before, behind) = line.split_once(" [L").ok_or(SHAPE)?;
        let (title, behind) = behind.split_once(']').ok_or(SHAPE)?;
        if title.split_once(' ') != Some((&level.to_string(), PLAIN_FILE)) {
            return Err("a block pointer of something else");
        }
        let fields = Fields(behind);
        let kind = before.split_ascii_whitespace().next().ok_or(SHAPE)?;
        let levels = self.levels.ok_or(SHAPE)?;
        if level >= levels {
            return Err("a block pointer above the top level");
        }
        let fill = match kind {
            "HOLE" => 0,
            // A node's pointer is never embedded.
            "EMBEDDED" if level == 0 => 1,
            "REDACTED" if level == 0 => fields.number("fill=").unwrap_or(0),
            kind if kind.starts_with("DVA[") => fields.number("fill=").ok_or(SHAPE)?,
            _ => return Err("a block pointer of an unknown kind"),
        };
        if level + 1 == levels {
            self.filled = self.filled.checked_add(fill).ok_or(SHAPE)?;
        }
        if level > 0 {
            return Ok(());
        }
        self.reported = self.reported.checked_add(fill).ok_or(SHAPE)?;
        let (len, stored_len) = fields.lengths().ok_or(SHAPE)?;
        if len == 0 || !len.is_multiple_of(512) || len > RECORD_LEN_MAX || !offset.is_multiple_of(len) {
            return Err("a record of an impossible length");
        }
        if self.record_len != 0 && self.record_len != len {
            return Err("records of different lengths");
        }
        self.record_len = len;
        let record = offset / len;
        if record < self.next {
            return Err("records that are not in order");
        }
        self.next = record + 1;
        let what = match kind {
            "HOLE" => return Ok(()),
            "EMBEDDED" => What::Unknown(Unknown::Inline),
            "REDACTED" => What::Unknown(Unknown::NotSummed),
            _ if fill != 1 => return Err(SHAPE),
            _ => fields.what(stored_len == Some(len)).ok_or(SHAPE)?,
        };
        self.records.push((record, what));
        Ok(())
    }
}

/// The words after the title of a block pointer.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    /// The text after `name`; `None` if it is missing, or there twice.
    fn value(&self, name: &str) -> Option<&'a str> {
        let mut found = self
            .0
            .split_ascii_whitespace()
            .filter_map(|field| field.strip_prefix(name));
        found.next().filter(|_| found.next().is_none())
    }

    /// A decimal number.
    fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }

    /// The lengths in `size=20000L/1200P`: of the content, and as stored.
    fn lengths(&self) -> Option<(u64, Option<u64>)> {
        let (len, stored) = self.value("size=")?.split_once('L')?;
        let stored = match stored {
            "" => None,
            stored => Some(hex(stored.strip_prefix('/')?.strip_suffix('P')?)?),
        };
        Some((hex(len)?, stored))
    }

    /// The checksum of a record that is stored in a place of its own: `FUNCTION COMPRESSION
    /// [ENCRYPTION] ORDER WHERE ...`.
    fn what(&self, is_as_long: bool) -> Option<What> {
        let mut words = self.0.split_ascii_whitespace();
        let (function, compression, third) = (words.next()?, words.next()?, words.next()?);
        let (encryption, order) = match third {
            "LE" | "BE" => ("unencrypted", third),
            encryption => (encryption, words.next()?),
        };
        let place = words.next()?;
        let unknown = |why| Some(What::Unknown(why));
        match (compression, encryption, place) {
            (_, "unencrypted", "contiguous") => {}
            _ => return unknown(Unknown::Encoded),
        }
        if compression != "uncompressed" || !is_as_long {
            return unknown(Unknown::Compressed);
        }
        let mut words = [0; 4];
        let mut reported = self.value("cksum=")?.split(':');
        for word in &mut words {
            *word = hex(reported.next()?)?;
        }
        if reported.next().is_some() {
            return None;
        }
        let (function, bytes) = match (function, order) {
            ("fletcher4", "LE") => (Function::Fletcher4, words.map(u64::to_le_bytes)),
            // The words are big-endian on every machine.
            ("sha256", "LE" | "BE") => (Function::Sha256, words.map(u64::to_be_bytes)),
            ("off" | "noparity", _) => return unknown(Unknown::NotSummed),
            _ => return unknown(Unknown::OtherFunction),
        };
        let mut sum = [0; 32];
        sum.copy_from_slice(bytes.as_flattened());
        Some(What::Sum(function, sum))
    }
}

/// A hexadecimal number of 64 bits, without sign or prefix.
fn hex(text: &str) -> Option<u64> {
    let is_one = (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}
