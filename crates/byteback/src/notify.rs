//! Readiness notification for systemd (`sd_notify`): one datagram to the socket that the
//! environment names.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `READY=1`, if there is a socket. A supervisor that does not listen is no reason to fail.
pub(crate) fn ready(socket: Option<&OsStr>) {
    tell(socket, b"READY=1\n");
}

/// Reports that the service is stopping.
pub(crate) fn stopping(socket: Option<&OsStr>) {
    tell(socket, b"STOPPING=1\n");
}

fn tell(socket: Option<&OsStr>, message: &[u8]) {
    let Some(socket) = socket.map(OsStr::as_bytes) else {
        return;
    };
    let address = match socket.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        Some((b'/', _)) => SocketAddr::from_pathname(OsStr::from_bytes(socket)),
        _ => return,
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(message, &address));
    drop(sent);
}
