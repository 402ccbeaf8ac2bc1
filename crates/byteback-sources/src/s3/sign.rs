//! Signatures of requests to S3 (AWS Signature Version 4), and the formats of paths and times that
//! they need.

use hmac::{KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::Credentials;

/// SHA-256 of an empty body: no request has one here.
const NO_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Whether a byte needs no escaping.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Escapes text as signatures require; in paths, slashes stay.
pub(crate) fn escaped(text: &str, is_path: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            byte if is_plain(byte) || (is_path && byte == b'/') => escaped.push(char::from(byte)),
            byte => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Formats seconds since 1970 as `20260102T030405Z`.
pub(crate) fn time_text(unix_s: i64) -> String {
    let (days, second) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
    // Days since 1 March of the year 0, in eras of 400 years; years begin in March, so that leap
    // days are their last ones.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    match hmac::Hmac::<Sha256>::new_from_slice(key) {
        Ok(mut mac) => {
            mac.update(text.as_bytes());
            mac.finalize().into_bytes().to_vec()
        }
        // Keys of every length are accepted.
        Err(_) => Vec::new(),
    }
}

/// The parts of a request that are signed.
pub(crate) struct Unsigned<'a> {
    pub(crate) method: &'a str,
    /// The host, with a port if the address has one.
    pub(crate) host: &'a str,
    /// The escaped path.
    pub(crate) path: &'a str,
    /// Names and values, neither escaped nor in order.
    pub(crate) query: &'a [(&'a str, String)],
    /// Names in lower case.
    pub(crate) headers: &'a [(&'static str, String)],
}

/// The query as it is signed and sent.
pub(crate) fn query_text(query: &[(&str, String)]) -> String {
    let mut parts: Vec<_> = query
        .iter()
        .map(|(name, value)| format!("{}={}", escaped(name, false), escaped(value, false)))
        .collect();
    parts.sort_unstable();
    parts.join("&")
}

/// The headers to add to a request to sign it at this moment.
pub(crate) fn sign(
    unsigned: &Unsigned<'_>,
    credentials: &Credentials,
    region: &str,
    unix_s: i64,
) -> Vec<(&'static str, String)> {
    let time = time_text(unix_s);
    let date = time.get(..8).unwrap_or_default();
    let mut added = vec![
        ("x-amz-content-sha256", NO_BODY.to_owned()),
        ("x-amz-date", time.clone()),
    ];
    if let Some(token) = &credentials.session_token {
        added.push(("x-amz-security-token", token.clone()));
    }
    let mut headers: Vec<(&str, &str)> = unsigned
        .headers
        .iter()
        .chain(&added)
        .map(|(name, value)| (*name, value.trim()))
        .collect();
    headers.push(("host", unsigned.host));
    headers.sort_unstable();
    let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    let canonical = format!(
        "{}\n{}\n{}\n{lines}\n{names}\n{NO_BODY}",
        unsigned.method,
        unsigned.path,
        query_text(unsigned.query)
    );
    let scope = format!("{date}/{region}/s3/aws4_request");
    let text = format!(
        "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
        hex(&Sha256::digest(canonical.as_bytes()))
    );
    let first = format!("AWS4{}", credentials.secret_key);
    let key = [date, region, "s3", "aws4_request"]
        .iter()
        .fold(first.into_bytes(), |key, part| keyed(&key, part));
    let signature = hex(&keyed(&key, &text));
    added.push((
        "authorization",
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
            credentials.access_key
        ),
    ));
    added
}

#[cfg(test)]
mod tests;
