//! Headers of answers whose values are made here.

use axum::http::{HeaderMap, HeaderValue, header};

/// Sets a header to a value of digits and a few ASCII signs.
pub(crate) fn insert_header(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    // Digits and a few ASCII signs are always a valid value.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
