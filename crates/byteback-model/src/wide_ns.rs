//! Times in JSON, in nanoseconds: a number if it fits into 64 bits, otherwise its digits as a
//! string, because serde's buffered JSON values hold no larger numbers.

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;

/// For `#[serde(with)]`.
///
/// # Errors
/// As the serializer.
pub fn serialize<S: Serializer>(ns: &i128, serializer: S) -> Result<S::Ok, S::Error> {
    match i64::try_from(*ns) {
        Ok(ns) => serializer.serialize_i64(ns),
        Err(_) => serializer.collect_str(ns),
    }
}

/// For `#[serde(with)]`.
///
/// # Errors
/// As the deserializer, or the value is not a time.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i128, D::Error> {
    deserializer.deserialize_any(Nanoseconds)
}

struct Nanoseconds;

impl Visitor<'_> for Nanoseconds {
    type Value = i128;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nanoseconds, as a number or as a string of digits")
    }

    fn visit_i64<E: Error>(self, ns: i64) -> Result<i128, E> {
        Ok(ns.into())
    }

    fn visit_u64<E: Error>(self, ns: u64) -> Result<i128, E> {
        Ok(ns.into())
    }

    fn visit_str<E: Error>(self, digits: &str) -> Result<i128, E> {
        digits
            .parse()
            .map_err(|_| E::invalid_value(Unexpected::Str(digits), &self))
    }
}
#[cfg(test)]
mod tests;
