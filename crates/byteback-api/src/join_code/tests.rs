use super::*;
use proptest::prelude::*;

const TOKEN: &str = "bbj_AQIDBAUGBwgJCgsMDQ4PEA";

fn code() -> JoinCode {
    let addresses = ["backup.example.org:7117", "192.0.2.7:1", "[2001:db8::7]:65535"];
    let addresses = addresses.map(|text| text.parse().unwrap()).to_vec();
    let mut code = JoinCode::new(addresses, false, Some(Fingerprint([7; 32])), TOKEN).unwrap();
    code.folder = Some("mail".parse().unwrap());
    code.read_only = true;
    code
}

#[test]
fn a_code_of_version_1() {
    let mut bytes = vec![1, 2 | 4 | 8];
    bytes.extend(1..=16);
    bytes.extend([7; 32]);
    bytes.extend(b"\x04mail\x03");
    bytes.extend(b"\x01\x12backup.example.org\xcd\x1b");
    bytes.extend([4, 192, 0, 2, 7, 1, 0]);
    bytes.extend([6, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 255, 255]);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    assert_eq!(code().to_bytes(), bytes);
    // The smallest: version, flags, secret, one address.
    let plain = JoinCode::new(vec!["10.0.0.1:7117".parse().unwrap()], true, None, TOKEN).unwrap();
    assert_eq!(
        plain.to_string(),
        "bbc_040g20g30g2gc1r81450p30d1r7h0084180000ed3exbsr1n"
    );
    assert_eq!(plain.join_token(), TOKEN);
    assert_eq!(
        (plain.url(), code().url()),
        (
            "http://10.0.0.1:7117".to_owned(),
            "https://backup.example.org:7117".to_owned()
        )
    );
}

#[test]
fn a_code_is_read_however_it_was_passed_on() {
    let code = code();
    let text = code.to_string();
    assert!(text[4..].bytes().all(|byte| DIGITS.contains(&byte)), "one word");
    let mut broken = text.clone();
    for at in (20..text.len()).rev().step_by(20) {
        broken.insert_str(at, "-\r\n ");
    }
    for text in [
        text.clone(),
        text.to_uppercase(),
        format!("  {text}\n"),
        broken,
        text.replace('0', "o").replace('1', "I"),
    ] {
        assert_eq!(text.parse::<JoinCode>().as_ref(), Ok(&code), "{text}");
    }
}

#[test]
fn join_code_notices_one_wrong_missing_or_added_character() {
    let text = code().to_string();
    for at in 4..text.len() {
        let other = if &text[at..=at] == "x" { "y" } else { "x" };
        let wrong = [
            format!("{}{}{}", &text[..at], other, &text[at + 1..]),
            format!("{}{}", &text[..at], &text[at + 1..]),
            format!("{}{}{}", &text[..at], other, &text[at..]),
        ];
        for text in wrong {
            assert_eq!(text.parse::<JoinCode>(), Err(ParseJoinCodeError::Mistyped), "{text}");
        }
    }
    for wrong in ["", "bbc", "bbj_AAAA", "https://x", "\u{e9}\u{e9}\u{e9}"] {
        assert_eq!(wrong.parse::<JoinCode>(), Err(ParseJoinCodeError::NoCode), "{wrong}");
    }
    for wrong in ["bbc_", "bbc_u", "bbc_\u{e9}", &format!("bbc_{}", "0".repeat(5000))] {
        assert_eq!(wrong.parse::<JoinCode>(), Err(ParseJoinCodeError::Mistyped), "{wrong}");
    }
}

#[test]
fn join_code_refuses_complete_but_impossible_content() {
    let with_crc = |mut bytes: Vec<u8>| {
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        JoinCode::of_bytes(&bytes)
    };
    let good = code().to_bytes();
    let body = &good[..good.len() - 4];
    assert_eq!(with_crc(body.to_vec()).unwrap(), code());
    let changed = |at: usize, to: u8| {
        let mut body = body.to_vec();
        body[at] = to;
        with_crc(body)
    };
    assert_eq!(changed(0, 2), Err(ParseJoinCodeError::Version(2)));
    assert_eq!(with_crc(vec![]), Err(ParseJoinCodeError::Nonsense));
    // An unknown flag, a name with a zero byte, no addresses, five of them, an unknown kind,
    // port 0.
    for (at, to) in [(1, 16), (52, 0), (55, 0), (55, 5), (56, 9), (76, 0)] {
        let mut body = body.to_vec();
        body[at] = to;
        if at == 76 {
            body[77] = 0;
        }
        assert_eq!(with_crc(body), Err(ParseJoinCodeError::Nonsense), "{at}");
    }
    for len in 1..body.len() {
        assert_eq!(
            with_crc(body[..len].to_vec()),
            Err(ParseJoinCodeError::Nonsense),
            "{len}"
        );
    }
    let longer = [body, &[0]].concat();
    assert_eq!(with_crc(longer), Err(ParseJoinCodeError::Nonsense));
}

#[test]
fn addresses_are_names_or_numbers_with_a_port() {
    for (text, expected) in [
        ("Backup.Example.org:80", "backup.example.org:80"),
        ("box", "box:7117"),
        ("10.0.0.1", "10.0.0.1:7117"),
        ("::1", "[::1]:7117"),
        ("[::1]", "[::1]:7117"),
        ("[::1]:5", "[::1]:5"),
    ] {
        assert_eq!(Address::parse(text, 7117).unwrap().to_string(), expected);
    }
    for wrong in [
        "",
        ":1",
        "a b:1",
        "a:0",
        "a:70000",
        "a:b",
        "[a]:1",
        "-a:1",
        "http://a:1",
        "a/b:1",
    ] {
        assert!(Address::parse(wrong, 7117).is_err(), "{wrong}");
    }
    assert!("box".parse::<Address>().is_err(), "without a port");
    let many = vec!["a:1".parse().unwrap(); ADDRESSES_MAX + 1];
    assert!(JoinCode::new(many, false, None, TOKEN).is_none());
    assert!(JoinCode::new(vec!["a:1".parse().unwrap()], false, None, "bbj_AAAA").is_none());
}

#[test]
fn a_code_is_not_shown_by_accident() {
    assert!(!format!("{:?}", code()).contains("AQID"));
}

proptest! {
    #[test]
    fn every_code_is_read_as_it_was_written(
        secret in any::<[u8; 16]>(),
        pin in any::<Option<[u8; 32]>>(),
        is_plain in any::<bool>(),
        folder in "[A-Za-z0-9_][A-Za-z0-9._-]{0,63}",
        hosts in prop::collection::vec(("[a-z]{1,20}(\\.[a-z0-9]{1,9}){0,3}", 1u16..), 1..=ADDRESSES_MAX),
    ) {
        let addresses = hosts.iter().map(|(host, port)| format!("{host}:{port}").parse().unwrap()).collect();
        let token = format!("{JOIN_PREFIX}{}", URL_SAFE_NO_PAD.encode(secret));
        let mut code = JoinCode::new(addresses, is_plain, pin.map(Fingerprint), &token).unwrap();
        code.folder = folder.parse().ok();
        prop_assert_eq!(code.to_string().parse::<JoinCode>(), Ok(code.clone()));
        prop_assert_eq!(code.join_token(), token);
    }

    #[test]
    fn join_code_reader_survives_any_text_and_bytes(text in ".{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = text.parse::<JoinCode>();
        let _ = format!("{CODE_PREFIX}{text}").parse::<JoinCode>();
        let _ = JoinCode::of_body(&bytes);
    }
}
