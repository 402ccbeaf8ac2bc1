//! The addresses of a server, noted in its data folder by `serve` for `invite`, which may run
//! beside the server or while it is stopped.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use byteback_api::Fingerprint;
use byteback_api::join_code::{ADDRESSES_MAX, Address};
use serde::{Deserialize, Serialize};

use crate::error::{CommandError, Result};
use crate::private_file;

/// The only version so far.
const VERSION: u32 = 1;

/// The content of `serve.json` in the data folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Served {
    version: u32,
    /// Addresses as `HOST:PORT`, the best first.
    pub(crate) addresses: Vec<String>,
    /// Whether the server speaks HTTP without TLS.
    pub(crate) plain: bool,
    /// The certificate that clients must see; `None` if a public authority signed it.
    pub(crate) certificate: Option<Fingerprint>,
}

impl Served {
    /// A server at these addresses.
    pub(crate) fn new(addresses: &[Address], plain: bool, certificate: Option<Fingerprint>) -> Self {
        Self {
            version: VERSION,
            addresses: addresses.iter().map(ToString::to_string).collect(),
            plain,
            certificate,
        }
    }

    /// Reads the note in the data folder.
    pub(crate) fn read(data: &Path) -> Result<Self> {
        let path = path(data);
        let bytes = fs::read(&path).map_err(|error| {
            let failed = CommandError::file("read", &path, &error);
            match error.kind() {
                io::ErrorKind::NotFound => {
                    CommandError::new("the address of this server is not known yet: it has never been started")
                        .next("Start it: byteback serve --data DIR")
                }
                _ => failed,
            }
        })?;
        let unusable = |why: &dyn std::fmt::Display| {
            CommandError::file("parse", &path, why).next("'byteback serve' rewrites it when it starts.")
        };
        let served: Self = serde_json::from_slice(&bytes).map_err(|error| unusable(&error))?;
        match served.version {
            VERSION => Ok(served),
            version => Err(unusable(&format!(
                "it has version {version}, but this program knows only version {VERSION}"
            ))),
        }
    }

    /// Writes the note, unless the same one is there already.
    pub(crate) fn write(&self, data: &Path) -> Result<()> {
        let path = path(data);
        let failed = |error: &dyn std::fmt::Display| CommandError::file("write", &path, error);
        let mut json = serde_json::to_vec(self).map_err(|error| failed(&error))?;
        json.push(b'\n');
        if fs::read(&path).is_ok_and(|old| old == json) {
            return Ok(());
        }
        private_file::write(&path, &json).map_err(|error| failed(&error))
    }
}

fn path(data: &Path) -> PathBuf {
    data.join("serve.json")
}

/// Addresses as given on the command line, `HOST[:PORT]` or, where a proxy in front of the server
/// uses another scheme, a URL; and whether they are used without TLS.
pub(crate) fn given(texts: &[String], is_plain: bool, port: u16) -> Result<(Vec<Address>, bool)> {
    if texts.len() > ADDRESSES_MAX {
        return Err(
            CommandError::new(format!("a code holds at most {ADDRESSES_MAX} addresses"))
                .next("Leave out the ones that are used least."),
        );
    }
    let mut addresses = Vec::new();
    let mut plain: Option<bool> = None;
    for text in texts {
        let (here, host, port) = match text.split_once("://") {
            None => (is_plain, text.as_str(), port),
            Some(("https", host)) => (false, host.trim_end_matches('/'), 443),
            Some(("http", host)) => (true, host.trim_end_matches('/'), 80),
            Some(_) => {
                let message = format!("'{text}' begins with neither http:// nor https://");
                return Err(CommandError::new(message));
            }
        };
        if plain.replace(here).is_some_and(|before| before != here) {
            return Err(CommandError::new("a code cannot mix addresses with and without TLS"));
        }
        addresses.push(Address::parse(host, port).map_err(|error| CommandError::new(error.to_string()))?);
    }
    Ok((addresses, plain.unwrap_or(is_plain)))
}

/// The addresses at which others reach a listener at `listening`: that one, or if it is the
/// wildcard address, the machine's present addresses, the one used for outgoing packets first.
/// Loopback only if there is nothing else.
pub(crate) fn reachable(listening: SocketAddr) -> Vec<Address> {
    let (ip, port) = (listening.ip(), listening.port());
    let mut own: Vec<IpAddr> = match ip {
        ip if !ip.is_unspecified() => vec![ip],
        IpAddr::V4(_) => outward(Ipv4Addr::UNSPECIFIED.into()).into_iter().collect(),
        // IPv4 and IPv6, as an IPv6 wildcard socket accepts both.
        IpAddr::V6(_) => outward(Ipv4Addr::UNSPECIFIED.into())
            .into_iter()
            .chain(outward(Ipv6Addr::UNSPECIFIED.into()))
            .collect(),
    };
    if ip.is_unspecified() {
        // A machine without a route to the outside is still reached by its neighbours.
        let others = if_addrs::get_if_addrs()
            .unwrap_or_default()
            .into_iter()
            .map(|found| found.ip());
        let others = others.filter(|other| ip.is_ipv6() || other.is_ipv4());
        for other in others.filter(|other| !other.is_loopback() && !is_link_local(*other)) {
            if !own.contains(&other) {
                own.push(other);
            }
        }
    }
    if own.is_empty() {
        own.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    own.into_iter()
        .map(|ip| Address::of_ip(ip, port))
        .take(ADDRESSES_MAX)
        .collect()
}

/// Whether an address means nothing without the name of an interface.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Whether an address leads to the machine that uses it, whichever that is.
pub(crate) fn is_loopback(address: &Address) -> bool {
    names_this_machine(&address.to_string())
}

/// Whether `[SCHEME://]HOST[:PORT]` leads to the machine that uses it, whichever that is.
pub(crate) fn names_this_machine(server: &str) -> bool {
    let host_and_port = server.split_once("://").map_or(server, |(_, rest)| rest);
    let host = match host_and_port.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(host, _)| host),
        None => host_and_port.rsplit_once(':').map_or(host_and_port, |(host, _)| host),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The addresses for a code: without loopback addresses if there are others.
pub(crate) fn for_others(mut addresses: Vec<Address>) -> Vec<Address> {
    if !addresses.iter().all(is_loopback) {
        addresses.retain(|address| !is_loopback(address));
    }
    addresses
}

/// The source address that the system would choose for a packet to the outside. No packet is sent:
/// connecting a datagram socket only looks up the route.
fn outward(from: IpAddr) -> Option<IpAddr> {
    // Addresses reserved for documentation, which no machine has.
    let somewhere = match from {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    };
    let socket = UdpSocket::bind((from, 0)).ok()?;
    socket.connect((somewhere, 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_one_address_is_reached_there() {
        for text in ["127.0.0.1:7117", "[::1]:80"] {
            let addresses = reachable(text.parse().unwrap());
            assert_eq!(addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
        }
        for text in ["0.0.0.0:7117", "[::]:7117"] {
            let addresses = reachable(text.parse().unwrap());
            assert!((1..=ADDRESSES_MAX).contains(&addresses.len()), "{addresses:?}");
            assert!(
                addresses
                    .iter()
                    .all(|address| !address.to_string().starts_with("0.0.0.0"))
            );
        }
    }

    #[test]
    fn addresses_of_this_machine_are_known() {
        for server in [
            "https://127.0.0.1:7117",
            "http://localhost",
            "https://[::1]:443",
            "https://127.8.9.1:1",
            "localhost:7117",
        ] {
            assert!(names_this_machine(server), "{server}");
        }
        for server in [
            "https://192.0.2.7:7117",
            "https://backup.example:7117",
            "https://[2001:db8::1]:7117",
            "https://localhost.example:1",
        ] {
            assert!(!names_this_machine(server), "{server}");
        }
    }

    #[test]
    fn codes_name_loopback_only_where_nothing_else_is_known() {
        let chosen = |texts: &[&str]| {
            let addresses = texts.iter().map(|text| text.parse().unwrap()).collect();
            let chosen = for_others(addresses);
            chosen.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&["127.0.0.1:1", "192.0.2.7:1", "localhost:1"]), ["192.0.2.7:1"]);
        assert_eq!(chosen(&["127.0.0.1:1", "[::1]:1"]), ["127.0.0.1:1", "[::1]:1"]);
    }

    #[test]
    fn addresses_take_a_scheme_if_a_proxy_stands_before_the_server() {
        let given = |texts: &[&str], is_plain| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            let (addresses, is_plain) = given(&texts, is_plain, 7117).ok()?;
            Some((
                addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                is_plain,
            ))
        };
        assert_eq!(
            given(&["box", "10.0.0.1:1"], false),
            Some(("box:7117 10.0.0.1:1".to_owned(), false))
        );
        assert_eq!(given(&["https://box/"], true), Some(("box:443".to_owned(), false)));
        assert_eq!(given(&["http://box:80"], false), Some(("box:80".to_owned(), true)));
        assert_eq!(given(&[], true), Some((String::new(), true)));
        for wrong in [
            &["ftp://box"][..],
            &["box", "http://box"],
            &["a b"],
            &["a", "b", "c", "d", "e"],
        ] {
            assert_eq!(given(wrong, false), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_was_noted_is_read_again_and_another_version_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Served::read(dir.path()).is_err());
        let served = Served::new(&["box:1".parse().unwrap()], false, Some(Fingerprint([9; 32])));
        served.write(dir.path()).unwrap();
        assert_eq!(Served::read(dir.path()).unwrap(), served);
        let text = fs::read_to_string(path(dir.path())).unwrap();
        fs::write(path(dir.path()), text.replace("\"version\":1", "\"version\":2")).unwrap();
        assert!(Served::read(dir.path()).is_err());
    }
}
