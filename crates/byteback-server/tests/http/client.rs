//! A tiny blocking HTTP/1.1 client over a real socket: it can also misbehave.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the body ended as its framing says.
    pub(crate) complete: bool,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    #[track_caller]
    pub(crate) fn problem(self, status: u16, code: &str) -> Value {
        let answer = self.expect(status);
        assert_eq!(answer.header("content-type"), "application/problem+json");
        let json = answer.json();
        assert_eq!(json["code"], code);
        assert_eq!(json["type"], format!("urn:byteback:problem:{code}"));
        assert!(json["next"].as_str().unwrap().len() > 5, "says what to do next");
        json
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

pub(crate) fn head(method: &str, target: &str, token: Option<&str>, len: usize, extra: &[(&str, &str)]) -> String {
    let mut head =
        format!("{method} {target} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {len}\r\n");
    if let Some(token) = token {
        head.push_str(&format!("authorization: Bearer {token}\r\n"));
    }
    for (name, value) in extra {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head
}

/// Sends a request on a connection of its own.
pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    target: &str,
    token: Option<&str>,
    body: &[u8],
    extra: &[(&str, &str)],
) -> Answer {
    let mut stream = connect(address);
    stream
        .write_all(head(method, target, token, body.len(), extra).as_bytes())
        .unwrap();
    // A server that refuses early may close before it has received everything.
    let _ = stream.write_all(body);
    read_answer(stream)
}

pub(crate) fn read_answer(stream: TcpStream) -> Answer {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line
        .split(' ')
        .nth(1)
        .unwrap_or_else(|| panic!("no status: {line:?}"))
        .parse()
        .unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let mut answer = Answer {
        status,
        headers,
        body: Vec::new(),
        complete: false,
    };
    if answer.header("transfer-encoding") == "chunked" {
        loop {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return answer;
            }
            let len = usize::from_str_radix(line.trim(), 16).unwrap();
            let mut chunk = vec![0; len + 2];
            if reader.read_exact(&mut chunk).is_err() {
                return answer;
            }
            if len == 0 {
                answer.complete = true;
                return answer;
            }
            answer.body.extend_from_slice(&chunk[..len]);
        }
    }
    let expected: Option<usize> = answer.header("content-length").parse().ok();
    let _ = reader.read_to_end(&mut answer.body);
    answer.complete = expected.is_none_or(|expected| expected == answer.body.len());
    answer
}
