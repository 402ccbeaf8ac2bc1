use super::*;
use crate::routes::Method;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Both ends of a line, and the bytes on their way between them.
struct Pair {
    client: Line<Memory>,
    server: Line<Memory>,
}

impl Pair {
    fn new() -> Self {
        let client = WebSocket::from_raw_socket(Memory::default(), Role::Client, Some(limits()));
        Self {
            client: Line::new(client).unwrap(),
            server: Line::of_server(Memory::default()).unwrap(),
        }
    }
}

/// Carries what `from` has sent to `to`, in pieces of these lengths; returns what arrives whole,
/// and the number of bytes.
fn carry(from: &mut Line<Memory>, to: &mut Line<Memory>, lens: &[usize]) -> (Vec<Vec<u8>>, usize) {
    let bytes = from.stream().take_outgoing();
    let mut lens = lens.iter().copied().cycle();
    let (mut rest, mut arrived) = (bytes.as_slice(), Vec::new());
    while !rest.is_empty() {
        let (now, later) = rest.split_at(lens.next().unwrap_or(usize::MAX).clamp(1, rest.len()));
        to.stream().feed(now);
        rest = later;
        while let Some(message) = to.receive().unwrap() {
            arrived.push(message);
        }
    }
    (arrived, bytes.len())
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let short = prop::collection::vec(any::<u8>(), 0..300);
    let long = (any::<u8>(), 0..MESSAGE_LEN_MAX).prop_map(|(byte, len)| vec![byte; len]);
    let text = "(GET /v1/folders/[a-z]{1,9}/diff[?]from=[0-9]{1,4}){1,20}".prop_map(String::into_bytes);
    prop_oneof![4 => short, 1 => long, 3 => text]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn messages_arrive_whole_and_in_order_both_ways(
        messages in prop::collection::vec((any::<bool>(), message()), 1..20),
        lens in prop::collection::vec(1_usize..3000, 1..8),
        pings in 0_usize..3,
    ) {
        let mut pair = Pair::new();
        let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
        for (is_up, message) in messages {
            for _ in 0..pings {
                pair.client.socket.send(Message::Ping(vec![7; 9].into())).unwrap();
            }
            if is_up {
                pair.client.send(&message).unwrap();
                up.push_back(message);
            } else {
                pair.server.send(&message).unwrap();
                down.push_back(message);
            }
            for arrived in carry(&mut pair.client, &mut pair.server, &lens).0 {
                prop_assert_eq!(Some(arrived), up.pop_front());
            }
            for arrived in carry(&mut pair.server, &mut pair.client, &lens).0 {
                prop_assert_eq!(Some(arrived), down.pop_front());
            }
        }
        prop_assert!(up.is_empty() && down.is_empty());
    }

    #[test]
    fn calls_and_answers_come_back_as_they_were(
        method in prop::sample::select(vec![Method::Get, Method::Put, Method::Post, Method::Delete]),
        target in "/[a-z/%?=&0-9]{0,300}",
        headers in prop::collection::vec(("[a-z-]{1,20}", "[ -~]{0,200}"), 0..=HEADERS_MAX),
        body in prop::collection::vec(any::<u8>(), 0..2000),
        status in any::<u16>(),
        is_last in any::<bool>(),
    ) {
        let mut told = [None; HEADERS_MAX];
        for (slot, (name, value)) in told.iter_mut().zip(&headers) {
            *slot = Some((name.as_str(), value.as_str()));
        }
        let call = LineCall { method, target: &target, headers: told, body: &body, is_unsummed: is_last };
        let bytes = call.encode();
        prop_assert_eq!(LineCall::decode(&bytes).unwrap(), call);
        let answer = LineAnswer { head: Some(AnswerHead { status, headers: told }), piece: &body, is_last };
        let bytes = answer.encode();
        prop_assert_eq!(LineAnswer::decode(&bytes, true).unwrap(), answer);
        let answer = LineAnswer { head: None, piece: &body, is_last };
        let bytes = answer.encode();
        prop_assert_eq!(LineAnswer::decode(&bytes, false).unwrap(), answer);
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = LineCall::decode(&bytes);
        let _ = LineAnswer::decode(&bytes, true);
        let _ = LineAnswer::decode(&bytes, false);
        let _ = Unpacker::new().unwrap().unpack(&bytes);
        let mut end = Line::of_server(Memory::default()).unwrap();
        end.stream().feed(&bytes);
        while let Ok(Some(_)) = end.receive() {}
    }
}

#[test]
fn golden_bytes_of_messages_of_version_1() {
    let mut headers = [None; HEADERS_MAX];
    headers[0] = Some(("range", "bytes=1-2"));
    let call = LineCall {
        method: Method::Post,
        target: "/v1/folders",
        headers,
        body: b"body",
        is_unsummed: true,
    };
    assert_eq!(call.encode(), b"\x12\x0b/v1/folders\x01\x05range\x09bytes=1-2body");
    let mut headers = [None; HEADERS_MAX];
    headers[0] = Some(("content-type", "a/b"));
    let head = AnswerHead { status: 404, headers };
    let first = LineAnswer {
        head: Some(head),
        piece: b"be",
        is_last: false,
    };
    assert_eq!(first.encode(), b"\x00\x94\x01\x01\x0ccontent-type\x03a/bbe");
    let last = LineAnswer {
        head: None,
        piece: b"gin",
        is_last: true,
    };
    assert_eq!(last.encode(), b"\x01gin");
}

#[test]
fn call_like_the_one_before_costs_few_bytes() {
    let mut pair = Pair::new();
    let mut lens = Vec::new();
    for seq in 0..20 {
        let target = format!("/v1/folders/documents/diff?from={seq}&to={}&others=1", seq + 1);
        let call = LineCall {
            method: Method::Get,
            target: &target,
            headers: [None; HEADERS_MAX],
            body: &[],
            is_unsummed: false,
        };
        pair.client.send(&call.encode()).unwrap();
        let (arrived, len) = carry(&mut pair.client, &mut pair.server, &[usize::MAX]);
        assert_eq!(arrived, [call.encode()]);
        lens.push(len);
    }
    // The head and the mask of a WebSocket's message are 6 bytes.
    assert!(lens[1..].iter().all(|len| *len <= 40), "{lens:?}");
}

#[test]
fn long_messages_are_refused_at_both_ends() {
    let mut pair = Pair::new();
    assert!(pair.client.send(&vec![0; MESSAGE_LEN_MAX + 1]).is_err());
    // A sender that does not care: half a million zeros are a few bytes.
    let mut encoder = zstd::stream::raw::Encoder::with_dictionary(1, crate::batch::DICTIONARY).unwrap();
    let bomb = vec![0; 8 * MESSAGE_LEN_MAX];
    let mut packed = Vec::with_capacity(1 << 20);
    let mut input = zstd::stream::raw::InBuffer::around(&bomb);
    let mut output = zstd::stream::raw::OutBuffer::around(&mut packed);
    use zstd::stream::raw::Operation as _;
    encoder.run(&mut input, &mut output).unwrap();
    encoder.flush(&mut output).unwrap();
    assert!(packed.len() < 10_000, "{}", packed.len());
    pair.client.socket.send(Message::binary(packed)).unwrap();
    let bytes = pair.client.stream().take_outgoing();
    pair.server.stream().feed(&bytes);
    assert!(matches!(pair.server.receive(), Err(LineError::Broken(_))));
    // A message whose length alone is too much is not waited for.
    let mut pair = Pair::new();
    pair.server
        .stream()
        .feed(&[0x82, 0xff, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4]);
    assert!(matches!(pair.server.receive(), Err(LineError::Broken(_))));
}

#[test]
fn line_refuses_text_and_ends_with_a_close() {
    let mut pair = Pair::new();
    pair.client.socket.send(Message::text("GET /")).unwrap();
    let bytes = pair.client.stream().take_outgoing();
    pair.server.stream().feed(&bytes);
    assert!(matches!(pair.server.receive(), Err(LineError::Broken(_))));
    let mut pair = Pair::new();
    pair.client.socket.close(None).unwrap();
    let bytes = pair.client.stream().take_outgoing();
    pair.server.stream().feed(&bytes);
    assert!(matches!(pair.server.receive(), Err(LineError::Closed)));
}

#[test]
fn long_body_of_a_call_is_refused() {
    let body = vec![0; CALL_BODY_LEN_MAX + 1];
    let call = LineCall {
        method: Method::Put,
        target: "/",
        headers: [None; HEADERS_MAX],
        body: &body,
        is_unsummed: false,
    };
    assert!(LineCall::decode(&call.encode()).is_err());
    let fits = LineCall {
        body: &body[1..],
        ..call
    };
    assert!(LineCall::decode(&fits.encode()).is_ok());
}

/// The library asserts that it is not asked again: found by the fuzz target `line`.
#[test]
fn line_that_failed_is_not_read_any_more() {
    let too_long = [0x82, 0xff, 0, 0, 0, 9, 0, 0, 0, 0, 1, 2, 3, 4];
    let mut end = Line::of_server(Memory::default()).unwrap();
    end.stream().feed(&too_long);
    assert!(matches!(end.receive(), Err(LineError::Broken(_))));
    for _ in 0..10 {
        end.stream().feed(&[7; 3000]);
        assert!(matches!(end.receive(), Err(LineError::Closed)));
    }
    assert!(matches!(end.send(b"message"), Err(LineError::Closed)));
    assert!(matches!(end.ping(), Err(LineError::Closed)));
}
