//! Variable-length integers: unsigned ones in as few bytes as they need (LEB128), signed ones
//! folded so that small magnitudes are short (zigzag).
//!
//! Only the shortest encoding of a number is accepted, so that one delta has one encoding.

#[cfg(test)]
mod tests;

/// The most bytes that a `u64` takes.
pub(crate) const LEN_MAX: usize = 10;

/// Appends `value`.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    loop {
        // Seven bits always fit.
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Takes a value off the front of `bytes`; `None` if it is cut off, longer than needed or larger
/// than a `u64`.
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (index, &byte) in bytes.iter().take(LEN_MAX).enumerate() {
        // The tenth byte can hold only the top bit.
        if index == LEN_MAX - 1 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            if byte == 0 && index > 0 {
                return None;
            }
            *bytes = &bytes[index + 1..];
            return Some(value);
        }
    }
    None
}

/// Folds a signed number: 0, -1, 1, -2, ... become 0, 1, 2, 3, ...
pub(crate) const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

/// Undoes [`zigzag`].
pub(crate) const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}
