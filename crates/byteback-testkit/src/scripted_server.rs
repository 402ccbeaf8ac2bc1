//! A server that answers by script: what no honest server says can be said.

use crate::clients::impatient;
use crate::proxy::read_head;
use byteback_client::{ClientOptions, ServerClient};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

/// Precedes the content type of a body whose last line repeats for ever.
pub const ENDLESS: &str = "endless ";

/// Longest body of a request that is read.
const BODY_READ_LEN_MAX: u64 = 64 * 1024;

/// An answer of the scripted server: status, content type, body.
pub type Answer = (u16, &'static str, Vec<u8>);

/// A server that answers each request (method, path with query) by script.
pub fn scripted_server(script: impl Fn(&str, &str) -> Answer + Send + Sync + 'static) -> ServerClient {
    scripted_server_with(impatient(), script)
}

/// Reads a short body: closing a connection with unread bytes would drop what is still being sent.
fn drop_short_body(head: &str, stream: &mut TcpStream) {
    let len = head.lines().find_map(|line| {
        let (name, len) = line.split_once(':')?;
        let len: u64 = len.trim().parse().ok()?;
        name.eq_ignore_ascii_case("content-length").then_some(len)
    });
    let len = len.unwrap_or(0);
    if len <= BODY_READ_LEN_MAX {
        let _ = std::io::copy(&mut stream.take(len), &mut std::io::sink());
    }
}

pub fn scripted_server_with(
    options: ClientOptions,
    script: impl Fn(&str, &str) -> Answer + Send + Sync + 'static,
) -> ServerClient {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
            let head = String::from_utf8_lossy(&read_head(&mut stream)).into_owned();
            let mut words = head.split(' ');
            let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            drop_short_body(&head, &mut stream);
            let (status, media, body) = script(method, path);
            let (media, is_endless) = match media.strip_prefix(ENDLESS) {
                Some(media) => (media, true),
                None => (media, false),
            };
            let length = if is_endless {
                "x-length: none".to_owned()
            } else {
                format!("content-length: {}", body.len())
            };
            let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {media}\r\n{length}\r\nconnection: close\r\n\r\n");
            let mut sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            // The end of such a body comes again and again.
            let again = body.rsplit(|byte| *byte == b'\n').nth(1).unwrap_or(b" ");
            let again = [again, b"\n"].concat().repeat(1 + 4096 / (again.len() + 1));
            while is_endless && sent.is_ok() {
                sent = stream.write_all(&again);
            }
        }
    });
    ServerClient::new(&format!("http://{address}"), "bbd_x", options).unwrap()
}
