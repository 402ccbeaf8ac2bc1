//! One record of the journal: a header of 64 bytes, a tail (a name), and data; the last two padded
//! to 8 bytes.
//!
//! Header and tail have one checksum, the data another, so that a start reads headers only. The
//! byte layout is in `docs/formats/undo.md`; a golden test holds it.

/// The length of a header, in bytes.
pub(crate) const HEADER_LEN_BYTES: usize = 64;
/// The first byte after the checksum of every record.
const MARKER: u8 = 0xB7;
/// No name and no piece of data is longer; a record that claims more is damaged.
const TAIL_LEN_BYTES_MAX: u32 = 4096;
/// Old bytes are kept in pieces of at most this length.
pub(crate) const DATA_LEN_BYTES_MAX: u64 = 1 << 20;

/// How content changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContentHow {
    /// Bytes were written.
    Written,
    /// The file was cut off or lengthened.
    Truncated,
    /// A range was zeroed, freed or allocated.
    Allocated,
    /// The file lost its last name.
    Removed,
}

impl ContentHow {
    const ALL: [Self; 4] = [Self::Written, Self::Truncated, Self::Allocated, Self::Removed];
}

/// Whose a file was, and what others could do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Permission, set-id and sticky bits (`0o7777` at most).
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The content of a record, with the numbers of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A moment of `node` begins: it was `size` long. Changes join it for `quantum_ns`.
    Moment {
        node: u64,
        size: u64,
        how: ContentHow,
        quantum_ns: u64,
    },
    /// Bytes of the last moment of `node`: zeros, or the data that follows.
    Old {
        node: u64,
        offset: u64,
        len: u64,
        is_zeros: bool,
    },
    /// A name stood for `before` and stands for `after` now; 0: nothing.
    Name {
        parent: u64,
        before: u64,
        after: u64,
        how: u8,
        name: Vec<u8>,
    },
    /// Nothing is known of `node` before now.
    NodeBarrier { node: u64, why: u8 },
    /// Nothing is known of a name before now.
    NameBarrier { parent: u64, why: u8, name: Vec<u8> },
    /// With its last moment `node` was removed, and had these rights.
    Rights { node: u64, rights: Rights },
    /// A start: of the log `tree`.
    Session { tree: u64, step: Step },
}

/// The steps of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Opened,
    Ready,
    Ended,
}

impl Step {
    const ALL: [Self; 3] = [Self::Opened, Self::Ready, Self::Ended];
}

/// A record as it stands in a segment, data excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Framed {
    pub(crate) time_ns: i64,
    pub(crate) record: Record,
    pub(crate) data_len: u64,
    pub(crate) data_crc: u32,
    /// From the header's start to the data.
    pub(crate) data_at: u64,
    /// The whole, padded.
    pub(crate) len: u64,
}

fn pad(len: u64) -> u64 {
    len.next_multiple_of(8)
}

fn place<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let place = all.iter().position(|other| other == one).unwrap_or_default();
    u8::try_from(place).unwrap_or_default() + 1
}

fn at<T: Copy>(all: &[T], code: u8) -> Option<T> {
    all.get(usize::from(code).checked_sub(1)?).copied()
}

impl Record {
    /// The record with its data, ready to be appended.
    pub(crate) fn encode(&self, time_ns: i64, data: &[u8]) -> Vec<u8> {
        let none: &[u8] = &[];
        let (kind, how, form, node, a, b, c, tail) = match self {
            Self::Moment {
                node,
                size,
                how,
                quantum_ns,
            } => (1, place(&ContentHow::ALL, how), 0, *node, *size, *quantum_ns, 0, none),
            Self::Old {
                node,
                offset,
                len,
                is_zeros,
            } => (2, 0, u8::from(*is_zeros), *node, *offset, *len, 0, none),
            Self::Name {
                parent,
                before,
                after,
                how,
                name,
            } => (3, *how, 0, *parent, *before, *after, 0, name.as_slice()),
            Self::NodeBarrier { node, why } => (4, *why, 0, *node, 0, 0, 0, none),
            Self::NameBarrier { parent, why, name } => (5, *why, 0, *parent, 0, 0, 0, name.as_slice()),
            Self::Rights { node, rights } => {
                let owners = u64::from(rights.uid) << 32 | u64::from(rights.gid);
                (7, 0, 0, *node, rights.mode.into(), owners, 0, none)
            }
            Self::Session { tree, step } => (6, place(&Step::ALL, step), 0, *tree, 0, 0, 0, none),
        };
        let len = HEADER_LEN_BYTES as u64 + pad(tail.len() as u64) + pad(data.len() as u64);
        let mut out = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[MARKER, kind, how, form]);
        out.extend_from_slice(&u32::try_from(tail.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(data).to_le_bytes());
        out.extend_from_slice(&time_ns.to_le_bytes());
        for number in [node, a, b, c, data.len() as u64] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(tail);
        out.resize(out.len().next_multiple_of(8), 0);
        let crc = crc32c::crc32c(out.get(4..).unwrap_or_default());
        if let Some(place) = out.first_chunk_mut::<4>() {
            *place = crc.to_le_bytes();
        }
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }
}

/// How many bytes from its start on a record needs for [`decode`]; `None` if this is no header.
pub(crate) fn head_len(header: &[u8]) -> Option<usize> {
    let marker = header.get(4)?;
    let tail = u32::from_le_bytes(*header.get(8..)?.first_chunk()?);
    (*marker == MARKER && tail <= TAIL_LEN_BYTES_MAX)
        .then(|| HEADER_LEN_BYTES + usize::try_from(pad(u64::from(tail))).unwrap_or_default())
}

/// Reads a header with its tail; `None` if they are damaged or say what cannot be.
pub(crate) fn decode(head: &[u8]) -> Option<Framed> {
    let len = head_len(head)?;
    let head = head.get(..len)?;
    if crc32c::crc32c(head.get(4..)?) != u32::from_le_bytes(*head.first_chunk()?) {
        return None;
    }
    let number = |place: usize| Some(u64::from_le_bytes(*head.get(16 + 8 * place..)?.first_chunk()?));
    let (kind, how, form) = (*head.get(5)?, *head.get(6)?, *head.get(7)?);
    let tail_len = usize::try_from(u32::from_le_bytes(*head.get(8..)?.first_chunk()?)).ok()?;
    let data_crc = u32::from_le_bytes(*head.get(12..)?.first_chunk()?);
    let name = || {
        head.get(HEADER_LEN_BYTES..HEADER_LEN_BYTES + tail_len)
            .map(<[u8]>::to_vec)
    };
    let (node, a, b, data_len) = (number(1)?, number(2)?, number(3)?, number(5)?);
    let record = match kind {
        1 => Record::Moment {
            node,
            size: a,
            how: at(&ContentHow::ALL, how)?,
            quantum_ns: b,
        },
        2 => {
            let is_zeros = form == 1;
            a.checked_add(b)?;
            if b == 0 || data_len > DATA_LEN_BYTES_MAX || data_len != if is_zeros { 0 } else { b } {
                return None;
            }
            Record::Old {
                node,
                offset: a,
                len: b,
                is_zeros,
            }
        }
        3 => Record::Name {
            parent: node,
            before: a,
            after: b,
            how,
            name: name()?,
        },
        4 => Record::NodeBarrier { node, why: how },
        5 => Record::NameBarrier {
            parent: node,
            why: how,
            name: name()?,
        },
        6 => Record::Session {
            tree: node,
            step: at(&Step::ALL, how)?,
        },
        7 => Record::Rights {
            node,
            rights: Rights {
                mode: u32::try_from(a).ok().filter(|mode| *mode <= 0o7777)?,
                uid: (b >> 32) as u32,
                gid: b as u32,
            },
        },
        _ => return None,
    };
    if (kind != 2 && data_len != 0) || (!matches!(kind, 3 | 5) && tail_len != 0) {
        return None;
    }
    let data_at = len as u64;
    Some(Framed {
        time_ns: number(0)?.cast_signed(),
        record,
        data_len,
        data_crc,
        data_at,
        len: data_at + pad(data_len),
    })
}

#[cfg(test)]
mod tests;
