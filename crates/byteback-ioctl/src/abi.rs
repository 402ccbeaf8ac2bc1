//! Numbers and layouts of the ioctls, version 1. `libbyteback/include/byteback.h` has the same; a
//! test compares the two.
//!
//! The kernel passes on only calls that encode their size in their number (at most 16,383 bytes in
//! either direction), so each request is one structure of fixed size, in the byte order of the
//! machine, without padding. Each begins with its own size and the version; reserved fields must be
//! zero. Layouts never change: a later version adds calls with numbers of their own.
//!
//! | call | number | in; out |
//! |---|---|---|
//! | [`DELTA_OPEN`] | `_IOWR(0xb7, 1, struct byteback_ioctl_open)` | the consumer's name and the version to start from; the context and the known changes |
//! | [`DELTA_GETDIFF`] | `_IOWR(0xb7, 2, struct byteback_ioctl_getdiff)` | context and position; ranges and the next position |
//! | [`DELTA_READ`] | `_IOWR(0xb7, 3, struct byteback_ioctl_read)` | context, offset, length; frozen bytes |
//! | [`DELTA_CLOSE`] | `_IOW(0xb7, 4, struct byteback_ioctl_close)` | context, and whether the changes are saved |
//!
//! Arguments are untrusted: [`Layout::decode`] accepts only exactly as many bytes as belong to the
//! call.

use std::mem::size_of;

/// The version of the numbers and layouts in this module.
pub const VERSION: u32 = 1;

/// The type byte of all calls.
const TYPE: u32 = 0xb7;

const WRITE: u32 = 1;
const READ: u32 = 2;

const fn number(direction: u32, number: u32, size: usize) -> u32 {
    // Asserted below to fit its 14 bits.
    (direction << 30) | ((size as u32) << 16) | (TYPE << 8) | number
}

/// Freezes a file and requests its changes.
pub const DELTA_OPEN: u32 = number(READ | WRITE, 1, size_of::<DeltaOpen>());
/// Requests changed ranges.
pub const DELTA_GETDIFF: u32 = number(READ | WRITE, 2, size_of::<DeltaGetdiff>());
/// Reads frozen bytes.
pub const DELTA_READ: u32 = number(READ | WRITE, 3, size_of::<DeltaRead>());
/// Ends the use of a frozen file.
pub const DELTA_CLOSE: u32 = number(WRITE, 4, size_of::<DeltaClose>());

/// The size of a consumer's name, with its final NUL, in bytes.
pub const CONSUMER_BYTES: usize = 64;
/// The most ranges in one answer.
pub const RANGES_MAX: usize = 1000;
/// The most frozen bytes in one answer.
pub const READ_BYTES_MAX: usize = 16 * 1000;

/// [`DeltaOpen::state`]: the changes are reported as ranges.
pub const STATE_RANGES: u32 = 1;
/// [`DeltaOpen::state`]: the whole file must be taken as changed, for [`DeltaOpen::reason`].
pub const STATE_WHOLE: u32 = 2;

/// [`DeltaOpen::reason`]: ranges are known.
pub const REASON_NONE: u32 = 0;
/// [`DeltaOpen::reason`]: the file did not exist at that version.
pub const REASON_CREATED: u32 = 1;
/// [`DeltaOpen::reason`]: the consumer has no mark of this file, or named a version that is not
/// known (any more).
pub const REASON_NO_MARK: u32 = 2;
/// [`DeltaOpen::reason`]: the file was changed without passing the mount.
pub const REASON_UNTRACKED: u32 = 3;
/// [`DeltaOpen::reason`]: the file was being changed when tracking was interrupted.
pub const REASON_INTERRUPTED: u32 = 4;
/// [`DeltaOpen::reason`]: a consumer could not save the file last time.
pub const REASON_UNSAVED: u32 = 5;
/// [`DeltaOpen::reason`]: another reason, of a later version.
pub const REASON_OTHER: u32 = 255;

/// [`DeltaGetdiff::next`]: there are no more ranges.
pub const NO_MORE: u64 = u64::MAX;

/// [`DeltaClose::flags`]: the frozen state is saved; the consumer's mark of the file moves to it.
pub const CLOSE_SAVED: u32 = 1;

/// A structure that crosses the kernel boundary as bytes.
pub trait Layout: Sized + Copy {
    /// The number of bytes.
    const SIZE: usize;

    /// The bytes of the structure.
    fn encode(&self) -> Vec<u8>;

    /// The structure in `bytes`; `None` unless there are exactly [`Layout::SIZE`].
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// A field that is copied unchanged.
trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut &[u8]) -> Option<Self>;
}

macro_rules! number_field {
    ($($type:ty),*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_ne_bytes());
            }

            fn take(from: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(Self::from_ne_bytes(*bytes))
            }
        }
    )*};
}

number_field!(u8, u32, u64);

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|element| element.put(out));
    }

    fn take(from: &mut &[u8]) -> Option<Self> {
        let mut array = [T::default(); N];
        for element in &mut array {
            *element = T::take(from)?;
        }
        Some(array)
    }
}

macro_rules! layout {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Layout for $name {
            const SIZE: usize = size_of::<Self>();

            fn encode(&self) -> Vec<u8> {
                let mut out = Vec::with_capacity(Self::SIZE);
                $(self.$field.put(&mut out);)*
                out
            }

            fn decode(mut bytes: &[u8]) -> Option<Self> {
                if bytes.len() != Self::SIZE {
                    return None;
                }
                Some(Self { $($field: Field::take(&mut bytes)?,)* })
            }
        }

        impl $name {
            /// Whether the size and the version are those of this module.
            #[must_use]
            pub fn is_of_this_version(&self) -> bool {
                usize::try_from(self.size) == Ok(Self::SIZE) && self.version == VERSION
            }
        }
    };
}

layout! {
    /// The argument of [`DELTA_OPEN`].
    DeltaOpen {
        /// In: the size of this structure.
        size: u32,
        /// In: [`VERSION`].
        version: u32,
        /// In: the version since which changes are wanted; 0: since the consumer's mark of this
        /// file.
        since: u64,
        /// In: 0, as no flags are defined.
        flags: u32,
        /// Zero.
        reserved0: u32,
        /// In: the consumer: 1 to 63 bytes of UTF-8 without control characters, then a NUL. Each
        /// user has a separate set of names.
        consumer: [u8; CONSUMER_BYTES],
        /// Out: identifies the frozen file in the other calls, on this open file.
        context: u64,
        /// Out: the history that versions belong to. A different value means a different log, in
        /// which older versions are meaningless.
        tree: u64,
        /// Out: the file's number, for its lifetime, even under another name.
        node: u64,
        /// Out: the version since which changes are reported; 0 if everything is.
        version_since: u64,
        /// Out: the version that was frozen.
        version_now: u64,
        /// Out: the length of the frozen file.
        size_bytes: u64,
        /// Out: the number of ranges.
        range_count: u64,
        /// Out: the number of bytes in these ranges.
        changed_bytes: u64,
        /// Out: [`STATE_RANGES`] or [`STATE_WHOLE`].
        state: u32,
        /// Out: the reason for [`STATE_WHOLE`].
        reason: u32,
        /// Zero.
        reserved: [u64; 4],
    }
}

layout! {
    /// The argument of [`DELTA_GETDIFF`].
    DeltaGetdiff {
        /// In: the size of this structure.
        size: u32,
        /// In: [`VERSION`].
        version: u32,
        /// In: the context of the frozen file.
        context: u64,
        /// In: only changes at or after this offset of the file are reported; 0 at first.
        position: u64,
        /// Out: the position for the next call, or [`NO_MORE`].
        next: u64,
        /// Out: the number of ranges that follow.
        count: u32,
        /// Zero.
        reserved: u32,
        /// Out: offsets and lengths in bytes, ascending, neither overlapping nor touching, within
        /// the frozen file.
        ranges: [[u64; 2]; RANGES_MAX],
    }
}

layout! {
    /// The argument of [`DELTA_READ`].
    DeltaRead {
        /// In: the size of this structure.
        size: u32,
        /// In: [`VERSION`].
        version: u32,
        /// In: the context of the frozen file.
        context: u64,
        /// In: the offset to read from.
        offset: u64,
        /// In: the number of bytes wanted; out: the number read, fewer only at the end of the file
        /// and at [`READ_BYTES_MAX`].
        len_bytes: u32,
        /// Zero.
        reserved: u32,
        /// Out: the bytes.
        data: [u8; READ_BYTES_MAX],
    }
}

layout! {
    /// The argument of [`DELTA_CLOSE`].
    DeltaClose {
        /// In: the size of this structure.
        size: u32,
        /// In: [`VERSION`].
        version: u32,
        /// In: the context of the frozen file.
        context: u64,
        /// In: [`CLOSE_SAVED`] or 0.
        flags: u32,
        /// Zero.
        reserved: u32,
    }
}

const _: () = {
    assert!(size_of::<DeltaOpen>() < 1 << 14);
    assert!(size_of::<DeltaGetdiff>() < 1 << 14);
    assert!(size_of::<DeltaRead>() < 1 << 14);
};

impl DeltaOpen {
    /// The consumer's name; `None` if it is not valid.
    #[must_use]
    pub fn consumer_name(&self) -> Option<&str> {
        let end = self.consumer.iter().position(|byte| *byte == 0)?;
        let (name, rest) = self.consumer.split_at(end);
        let name = std::str::from_utf8(name).ok()?;
        let is_fine = !name.is_empty() && !name.chars().any(char::is_control) && rest.iter().all(|byte| *byte == 0);
        is_fine.then_some(name)
    }
}

#[cfg(test)]
mod tests;
