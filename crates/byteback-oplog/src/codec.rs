//! Little-endian base-128 integers and length-prefixed bytes: the building blocks of the persisted
//! records.
//!
//! Reading never trusts a length: it is checked against the bytes left before anything is
//! allocated, and anything that does not fit is [`Malformed`].
//!
//! Records are *sealed*: they end in a CRC-32C. redb compares the checksums of its pages only after
//! an unclean stop, and a layer with one flipped bit would be a change that is missed silently.

/// The bytes end too early or are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Appends `value`, seven bits a byte, low bits first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends `value` as a varint whose first byte gives its lowest bit to `flag`, leaving six bits
/// for the value.
pub(crate) fn put_flagged(out: &mut Vec<u8>, flag: bool, value: u64) {
    let rest = value >> 6;
    let more = if rest == 0 { 0 } else { 0x80 };
    out.push(((value & 0x3f) as u8 * 2) | u8::from(flag) | more);
    if rest != 0 {
        put_varint(out, rest);
    }
}

/// A signed value as an unsigned one, small magnitudes first: 0, -1, 1, -2 are 0, 1, 2, 3.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// The value of which [`zigzag`] made `value`.
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

/// Appends a signed value, small magnitudes first ([`zigzag`]).
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, zigzag(value));
}

/// Appends a length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Ends a record with its checksum.
pub(crate) fn seal(mut record: Vec<u8>) -> Vec<u8> {
    let check = crc32c::crc32c(&record);
    record.extend_from_slice(&check.to_le_bytes());
    record
}

/// A reader of the output of the `put_*` functions.
pub(crate) struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    /// A reader of a record that was closed by [`seal`].
    pub(crate) fn sealed(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (record, check) = bytes.split_last_chunk::<4>().ok_or(Malformed)?;
        if crc32c::crc32c(record) != u32::from_le_bytes(*check) {
            return Err(Malformed);
        }
        Ok(Self::new(record))
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.left.split_first().ok_or(Malformed)?;
        self.left = rest;
        Ok(*first)
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    pub(crate) fn flagged(&mut self) -> Result<(bool, u64), Malformed> {
        let byte = self.byte()?;
        let rest = if byte & 0x80 == 0 { 0 } else { self.varint()? };
        if rest >> 58 != 0 {
            return Err(Malformed);
        }
        Ok((byte & 1 != 0, rest << 6 | u64::from(byte >> 1 & 0x3f)))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        self.varint().map(unzigzag)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
        let (bytes, rest) = self.left.split_at_checked(len).ok_or(Malformed)?;
        self.left = rest;
        Ok(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Fails if any bytes are left.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.left.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests;
