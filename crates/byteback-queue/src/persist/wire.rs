//! How each type of this crate is written: one trait, and the types field by field in the order of
//! their declaration.
//!
//! Numbers are varints (LEB128, shortest form only), `bool` and the discriminants of enums are one
//! byte, an `Option` is a byte 0, or 1 and the value; collections are their length and their
//! elements, sets and maps in ascending order. A value that is longer than the remaining bytes, out
//! of order or unknown is [`Malformed`]; nothing is reserved by a length alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use byteback_extents::{ByteRange, ExtentSet};

use crate::ids::{ClientId, GroupId, Position, Version};
use crate::operation::{Moved, NameOperation, Victim};
use crate::queue::{
    Change, Content, ContentSource, EncodeOrder, EncodedDelta, Event, FoldScope, Group, GroupState, QueueNode,
    Resolution, Save,
};
use byteback_model::{ByteString, NodeId, NodeKind, Place};

/// The bytes end too early or say something impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) type Taken<T> = Result<T, Malformed>;

/// See the module.
pub(crate) trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(bytes: &mut &[u8]) -> Taken<Self>;
}

impl Wire for u8 {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        let (first, rest) = bytes.split_first().ok_or(Malformed)?;
        *bytes = rest;
        Ok(*first)
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        let mut value = *self;
        while value >= 0x80 {
            out.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = u8::take(bytes)?;
            let bits = Self::from(byte & 0x7f);
            if (shift == 63 && bits > 1) || (byte == 0 && shift > 0) {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        match u8::take(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        match bool::take(bytes)? {
            true => T::take(bytes).map(Some),
            false => Ok(None),
        }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        Ok((A::take(bytes)?, B::take(bytes)?))
    }
}

/// Elements one after the other behind their number.
fn put_all<'a, T: Wire + 'a>(len: usize, elements: impl Iterator<Item = &'a T>, out: &mut Vec<u8>) {
    (len as u64).put(out);
    elements.for_each(|element| element.put(out));
}

fn take_all<T: Wire>(bytes: &mut &[u8], mut add: impl FnMut(T) -> Taken<()>) -> Taken<()> {
    for _ in 0..u64::take(bytes)? {
        add(T::take(bytes)?)?;
    }
    Ok(())
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_all(self.len(), self.iter(), out);
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        let mut all = Self::new();
        take_all(bytes, |element| {
            all.push(element);
            Ok(())
        })?;
        Ok(all)
    }
}

impl<T: Wire> Wire for VecDeque<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_all(self.len(), self.iter(), out);
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        Ok(Vec::take(bytes)?.into())
    }
}

impl Wire for ByteString {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self);
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        let len = usize::try_from(u64::take(bytes)?).map_err(|_| Malformed)?;
        let (name, rest) = bytes.split_at_checked(len).ok_or(Malformed)?;
        *bytes = rest;
        Ok(name.into())
    }
}

impl<T: Wire + Ord> Wire for BTreeSet<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_all(self.len(), self.iter(), out);
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        let mut all = Self::new();
        take_all(bytes, |element| match all.last() >= Some(&element) {
            true => Err(Malformed),
            false => {
                all.insert(element);
                Ok(())
            }
        })?;
        Ok(all)
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        let mut all = Self::new();
        take_all(bytes, |(key, value)| {
            match all.last_key_value().map(|(last, _)| last) >= Some(&key) {
                true => Err(Malformed),
                false => {
                    all.insert(key, value);
                    Ok(())
                }
            }
        })?;
        Ok(all)
    }
}

impl Wire for ByteRange {
    fn put(&self, out: &mut Vec<u8>) {
        self.start().put(out);
        self.len_bytes().put(out);
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        Self::from_offset_len(u64::take(bytes)?, u64::take(bytes)?).ok_or(Malformed)
    }
}

/// Ranges with the gap before each, ascending and apart.
impl Wire for ExtentSet {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        let mut at = 0;
        for range in self.iter() {
            (range.start() - at).put(out);
            range.len_bytes().put(out);
            at = range.end();
        }
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        let (mut all, mut at) = (Self::new(), 0_u64);
        take_all(bytes, |(gap, len): (u64, u64)| {
            if gap == 0 && !all.is_empty() {
                return Err(Malformed);
            }
            let start = at.checked_add(gap).ok_or(Malformed)?;
            let range = ByteRange::from_offset_len(start, len).ok_or(Malformed)?;
            all.insert(range);
            at = range.end();
            Ok(())
        })?;
        Ok(all)
    }
}

/// A struct, field by field.
macro_rules! wire_struct {
    ($name:ident { $($field:tt),+ $(,)? }) => {
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)+
            }

            fn take(bytes: &mut &[u8]) -> Taken<Self> {
                Ok(Self { $($field: Wire::take(bytes)?),+ })
            }
        }
    };
}

/// An enum: the number of the variant, then its fields.
macro_rules! wire_enum {
    ($name:ident { $($number:literal => $variant:ident $({ $($field:ident),+ $(,)? })? $(($($value:ident),+))?),+ $(,)? }) => {
        impl Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(($($value),+))? => {
                        out.push($number);
                        $($($field.put(out);)+)?
                        $($($value.put(out);)+)?
                    })+
                }
            }

            fn take(bytes: &mut &[u8]) -> Taken<Self> {
                match u8::take(bytes)? {
                    $($number => {
                        $($(let $value = Wire::take(bytes)?;)+)?
                        Ok(Self::$variant $({ $($field: Wire::take(bytes)?),+ })? $(($($value),+))?)
                    })+
                    _ => Err(Malformed),
                }
            }
        }
    };
}
pub(super) use wire_enum;

impl<Id: Wire> Wire for Place<Id> {
    fn put(&self, out: &mut Vec<u8>) {
        self.parent.put(out);
        self.name.put(out);
    }

    fn take(bytes: &mut &[u8]) -> Taken<Self> {
        Ok(Self {
            parent: Wire::take(bytes)?,
            name: Wire::take(bytes)?,
        })
    }
}

wire_struct!(NodeId { 0 });
wire_struct!(ClientId { 0 });
wire_struct!(GroupId { 0 });
wire_struct!(Position { 0 });
wire_struct!(Version { client, counter });
wire_enum!(NodeKind { 1 => File, 2 => Directory, 3 => Symlink, 4 => Fifo, 5 => Socket, 6 => CharDevice, 7 => BlockDevice });
wire_struct!(Moved { node, kind });
wire_struct!(Victim {
    node,
    kind,
    is_last,
    is_kept,
    len_bytes,
});
wire_enum!(NameOperation {
    1 => Created { at, node },
    2 => Linked { at, node },
    3 => Unlinked { at, victim },
    4 => Renamed { from, to, node, replaced },
    5 => Exchanged { one, one_node, other, other_node },
});
wire_enum!(Event {
    1 => Name(operation),
    2 => Wrote { node, range, size_bytes, base },
    3 => Attributes { node, stamp },
    4 => Closed { node },
    5 => Mark { epoch },
});
wire_enum!(ContentSource {
    1 => Ranges { ranges, saved },
    2 => Delta { base, base_version, stamp, len_bytes },
});
wire_struct!(Content {
    node,
    base,
    size_bytes,
    is_packed,
    source,
});
wire_enum!(Change {
    1 => Name(operation),
    2 => Content(content),
    3 => Attributes { node, stamp },
    4 => Times { directories },
});
wire_struct!(QueueNode {
    version,
    enqueued_ns,
    touched_ns,
    change,
});
wire_enum!(FoldScope {
    1 => Everything,
    2 => Items { contents, attributes, names, times },
});
wire_enum!(GroupState {
    1 => InFlight,
    2 => Retry { at_ns },
    3 => Unknown,
    4 => Refused,
});
wire_struct!(Group {
    id,
    first,
    up_to,
    state,
    is_conflict,
    fold,
});
wire_struct!(Save { position, range });
wire_struct!(EncodeOrder {
    new,
    up_to,
    base,
    base_version,
    base_at,
});
wire_struct!(EncodedDelta {
    stamp,
    len_bytes,
    base_version,
});
wire_enum!(Resolution {
    1 => AsConflict,
    2 => Rebase(bases),
    3 => Fold,
});
