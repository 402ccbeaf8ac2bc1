//! The code that `invite` prints and `join` takes: one word that holds all that a machine needs to
//! join.
//!
//! The code holds the server's addresses, its certificate's fingerprint, the one-time join token
//! and the folder. Text: `bbc_` and the bytes below in base32 (the digits and small letters without
//! i, l, o and u; a reader accepts capitals, i and l for 1, o for 0, and skips spaces, line ends
//! and hyphens, which mails and chats put in). Numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version, 1 |
//! | 1 | flags: 1 the server speaks plain HTTP; 2 a fingerprint follows; 4 a folder follows; 8 the folder may only be read |
//! | 16 | secret of the join token |
//! | 32 | if flagged: SHA-256 of the server's certificate |
//! | 1 + n | if flagged: length and name of the folder |
//! | 1 | number of addresses, 1 to [`ADDRESSES_MAX`] |
//! | each | 4 and four bytes, 6 and sixteen bytes, or 1, length and name of a host; then the port (2) |
//! | 4 | CRC-32C of all bytes before |
//!
//! The checksum distinguishes a mistyped code from one that the server no longer accepts. A code is
//! a secret until it is used, so `Debug` does not show it.

use crate::fingerprint::Fingerprint;
use crate::folder_name::FolderName;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The prefix of every code.
pub const CODE_PREFIX: &str = "bbc_";

/// Maximum number of addresses in a code.
pub const ADDRESSES_MAX: usize = 4;

/// Longest text that is parsed, in bytes.
const TEXT_LEN_MAX: usize = 4096;

/// Longest host name that DNS allows, in bytes.
const HOST_LEN_MAX: usize = 253;

const VERSION: u8 = 1;

const PLAIN: u8 = 1;
const PINNED: u8 = 2;
const OF_FOLDER: u8 = 4;
const READ_ONLY: u8 = 8;

const JOIN_PREFIX: &str = "bbj_";

const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// A host and port at which a server may be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Host {
    Ip(IpAddr),
    Name(String),
}

/// The error for a text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not an address; write HOST:PORT, for example backup.example.org:7117, 192.0.2.7:7117 or [2001:db8::7]:7117"
)]
pub struct ParseAddressError(String);

impl Address {
    /// The address with this IP and port.
    #[must_use]
    pub fn of_ip(ip: IpAddr, port: u16) -> Self {
        Self {
            host: Host::Ip(ip),
            port,
        }
    }

    /// Parses a host with an optional port, which defaults to `port`.
    ///
    /// # Errors
    /// The text is not an address.
    pub fn parse(text: &str, port: u16) -> Result<Self, ParseAddressError> {
        let wrong = || ParseAddressError(text.to_owned());
        // An IPv6 address without a port, with brackets or without.
        let bare = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
            .unwrap_or(text);
        if let Ok(ip) = bare.parse() {
            return Ok(Self::of_ip(ip, port));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (text, port),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare.unwrap_or(host).parse::<IpAddr>() {
            // Without brackets, the end of an IPv6 address and the start of its port are ambiguous.
            Ok(ip) if ip.is_ipv4() || bare.is_some() => Host::Ip(ip),
            _ => Host::Name(host_name(host).ok_or_else(wrong)?),
        };
        if port == 0 {
            return Err(wrong());
        }
        Ok(Self { host, port })
    }
}

/// The host name in lower case, or `None` if it cannot be one.
fn host_name(text: &str) -> Option<String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_name = (1..=HOST_LEN_MAX).contains(&text.len())
        && text.bytes().all(is_allowed)
        && !text.starts_with(['.', '-'])
        && text.parse::<IpAddr>().is_err();
    is_name.then(|| text.to_ascii_lowercase())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}:{}", self.port),
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        // Port 0 is not valid, so it can stand for a missing port.
        let address = Self::parse(text, 0)?;
        match address.port {
            0 => Err(ParseAddressError(text.to_owned())),
            _ => Ok(address),
        }
    }
}

/// The information that a machine needs to join; see the module.
///
/// ```
/// use byteback_api::JoinCode;
///
/// let address = "backup.example.org:7117".parse()?;
/// let code = JoinCode::new(vec![address], false, None, "bbj_AAECAwQFBgcICQoLDA0ODw").unwrap();
/// let text = code.to_string();
/// assert!(text.starts_with("bbc_"));
///
/// // As a mail may bring it: in capitals, and broken into lines.
/// let (head, tail) = text.split_at(20);
/// let read: JoinCode = format!("{head}\n{}", tail.to_uppercase()).parse()?;
/// assert_eq!(read, code);
/// assert_eq!(read.url(), "https://backup.example.org:7117");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct JoinCode {
    /// The addresses of the server, the best one first; 1 to [`ADDRESSES_MAX`].
    pub addresses: Vec<Address>,
    /// Whether the server speaks HTTP without TLS.
    pub is_plain: bool,
    /// The server's certificate; `None` if an authority that this machine trusts has signed it.
    pub fingerprint: Option<Fingerprint>,
    /// The folder; `None` for all folders and the right to manage devices.
    pub folder: Option<FolderName>,
    /// Whether the folder may only be read.
    pub read_only: bool,
    secret: [u8; 16],
}

impl fmt::Debug for JoinCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinCode")
            .field("addresses", &self.addresses)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// The reason why a text is not a valid join code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseJoinCodeError {
    /// The prefix is missing.
    #[error("this is not a join code: a code begins with {CODE_PREFIX}")]
    NoCode,
    /// A character is wrong, missing or extra.
    #[error("the code is mistyped: a character is wrong or missing")]
    Mistyped,
    /// The version is newer than this program.
    #[error("the code has version {0}, but this program knows only version {VERSION}")]
    Version(u8),
    /// The code is intact, but its contents are invalid.
    #[error("the code is intact, but its contents are invalid")]
    Nonsense,
}

impl JoinCode {
    /// A code for a join token issued by a server of this version; `None` if the token has another
    /// form or the number of addresses is out of range.
    #[must_use]
    pub fn new(
        addresses: Vec<Address>,
        is_plain: bool,
        fingerprint: Option<Fingerprint>,
        join_token: &str,
    ) -> Option<Self> {
        let secret = URL_SAFE_NO_PAD.decode(join_token.strip_prefix(JOIN_PREFIX)?).ok()?;
        (1..=ADDRESSES_MAX).contains(&addresses.len()).then_some(Self {
            addresses,
            is_plain,
            fingerprint,
            folder: None,
            read_only: false,
            secret: secret.try_into().ok()?,
        })
    }

    /// The join token.
    #[must_use]
    pub fn join_token(&self) -> String {
        format!("{JOIN_PREFIX}{}", URL_SAFE_NO_PAD.encode(self.secret))
    }

    /// The server's address as a URL, without a trailing slash.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.is_plain { "http" } else { "https" };
        let address = self.addresses.first().map(ToString::to_string).unwrap_or_default();
        format!("{scheme}://{address}")
    }

    fn to_bytes(&self) -> Vec<u8> {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let mut bytes = vec![VERSION];
        bytes.push(
            flag(self.is_plain, PLAIN)
                | flag(self.fingerprint.is_some(), PINNED)
                | flag(self.folder.is_some(), OF_FOLDER)
                | flag(self.read_only, READ_ONLY),
        );
        bytes.extend(self.secret);
        bytes.extend(self.fingerprint.iter().flat_map(|fingerprint| fingerprint.0));
        if let Some(folder) = &self.folder {
            push_short(&mut bytes, folder.as_str());
        }
        bytes.push(u8::try_from(self.addresses.len()).unwrap_or(u8::MAX));
        for address in &self.addresses {
            match &address.host {
                Host::Ip(IpAddr::V4(ip)) => {
                    bytes.push(4);
                    bytes.extend(ip.octets());
                }
                Host::Ip(IpAddr::V6(ip)) => {
                    bytes.push(6);
                    bytes.extend(ip.octets());
                }
                Host::Name(name) => {
                    bytes.push(1);
                    push_short(&mut bytes, name);
                }
            }
            bytes.extend(address.port.to_le_bytes());
        }
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Result<Self, ParseJoinCodeError> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(ParseJoinCodeError::Mistyped)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(ParseJoinCodeError::Mistyped);
        }
        match body.first() {
            Some(&VERSION) => {}
            Some(&version) => return Err(ParseJoinCodeError::Version(version)),
            None => return Err(ParseJoinCodeError::Nonsense),
        }
        Self::of_body(body).ok_or(ParseJoinCodeError::Nonsense)
    }

    fn of_body(body: &[u8]) -> Option<Self> {
        let mut rest = body.get(1..)?;
        let [flags] = take(&mut rest)?;
        if flags & !(PLAIN | PINNED | OF_FOLDER | READ_ONLY) != 0 {
            return None;
        }
        let secret = take(&mut rest)?;
        let fingerprint = match flags & PINNED {
            0 => None,
            _ => Some(Fingerprint(take(&mut rest)?)),
        };
        let folder = match flags & OF_FOLDER {
            0 => None,
            _ => Some(take_short(&mut rest)?.parse().ok()?),
        };
        let [count] = take(&mut rest)?;
        if !(1..=ADDRESSES_MAX).contains(&usize::from(count)) {
            return None;
        }
        let mut addresses = Vec::new();
        for _ in 0..count {
            let host = match take(&mut rest)? {
                [4] => Host::Ip(Ipv4Addr::from(take::<4>(&mut rest)?).into()),
                [6] => Host::Ip(Ipv6Addr::from(take::<16>(&mut rest)?).into()),
                [1] => Host::Name(host_name(take_short(&mut rest)?)?),
                _ => return None,
            };
            let port = u16::from_le_bytes(take(&mut rest)?);
            if port == 0 {
                return None;
            }
            addresses.push(Address { host, port });
        }
        rest.is_empty().then_some(Self {
            addresses,
            is_plain: flags & PLAIN != 0,
            fingerprint,
            folder,
            read_only: flags & READ_ONLY != 0,
            secret,
        })
    }
}

fn push_short(bytes: &mut Vec<u8>, text: &str) {
    // Folder names have at most 64 bytes, host names at most 253.
    bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    bytes.extend(text.as_bytes());
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk::<N>()?;
    *rest = left;
    Some(*taken)
}

fn take_short<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let [len] = take(rest)?;
    let (taken, left) = rest.split_at_checked(usize::from(len))?;
    *rest = left;
    std::str::from_utf8(taken).ok()
}

impl fmt::Display for JoinCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CODE_PREFIX)?;
        for five in self.to_bytes().chunks(5) {
            let mut bits = [0u8; 8];
            for (to, from) in bits.iter_mut().skip(3).zip(five) {
                *to = *from;
            }
            let bits = u64::from_be_bytes(bits);
            // A final group of fewer than five bytes takes only the digits that hold its bits.
            for digit in 0..(five.len() * 8).div_ceil(5) {
                let at = usize::try_from(bits >> (35 - 5 * digit) & 31).unwrap_or(0);
                write!(f, "{}", char::from(*DIGITS.get(at).unwrap_or(&b'0')))?;
            }
        }
        Ok(())
    }
}

impl FromStr for JoinCode {
    type Err = ParseJoinCodeError;

    fn from_str(text: &str) -> Result<Self, ParseJoinCodeError> {
        let text = text.trim();
        let head = text.get(..CODE_PREFIX.len()).ok_or(ParseJoinCodeError::NoCode)?;
        if !head.eq_ignore_ascii_case(CODE_PREFIX) {
            return Err(ParseJoinCodeError::NoCode);
        }
        if text.len() > TEXT_LEN_MAX {
            return Err(ParseJoinCodeError::Mistyped);
        }
        let mut bytes = Vec::new();
        let (mut bits, mut count) = (0u32, 0u32);
        for char in text.get(CODE_PREFIX.len()..).unwrap_or_default().bytes() {
            let char = match char.to_ascii_lowercase() {
                b' ' | b'\t' | b'\r' | b'\n' | b'-' => continue,
                b'i' | b'l' => b'1',
                b'o' => b'0',
                char => char,
            };
            let digit = DIGITS.iter().position(|digit| *digit == char);
            let digit = digit.and_then(|digit| u32::try_from(digit).ok());
            bits = (bits << 5 | digit.ok_or(ParseJoinCodeError::Mistyped)?) & 0xfff;
            count += 5;
            if count >= 8 {
                count -= 8;
                bytes.push(u8::try_from(bits >> count & 0xff).unwrap_or_default());
            }
        }
        // The remaining bits must be zeros and fewer than one digit.
        if count >= 5 || bits & ((1 << count) - 1) != 0 {
            return Err(ParseJoinCodeError::Mistyped);
        }
        Self::of_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests;
