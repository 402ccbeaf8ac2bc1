//! Codes with which machines join, addresses in them, and fingerprints.
#![no_main]

use byteback_api::join_code::{ADDRESSES_MAX, Address, CODE_PREFIX};
use byteback_api::{Fingerprint, JoinCode};

byteback_fuzz::target!(check, seeds);

fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for text in [text.to_owned(), format!("{CODE_PREFIX}{text}")] {
        if let Ok(code) = text.parse::<JoinCode>() {
            assert!((1..=ADDRESSES_MAX).contains(&code.addresses.len()));
            // It is read as it is written, whatever it was read from.
            assert_eq!(code.to_string().parse(), Ok(code.clone()));
            assert!(!format!("{code:?}").contains(&code.join_token()));
            assert!(code.url().contains("://"));
        }
    }
    if let Ok(address) = Address::parse(text, 7117) {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
    if let Ok(fingerprint) = text.parse::<Fingerprint>() {
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let token = "bbj_AQIDBAUGBwgJCgsMDQ4PEA";
    let addresses = ["box:1", "[2001:db8::7]:7117", "192.0.2.7:80"].map(|text| text.parse().expect("an address"));
    let code = JoinCode::new(addresses.to_vec(), false, Some(Fingerprint([7; 32])), token).expect("a token");
    let mut of_folder = JoinCode::new(addresses[..1].to_vec(), true, None, token).expect("a token");
    of_folder.folder = "mail".parse().ok();
    of_folder.read_only = true;
    let fingerprint = Fingerprint([9; 32]).to_string();
    [
        code.to_string(),
        of_folder.to_string(),
        fingerprint,
        "[::1]:5".to_owned(),
        "Box.example:80".to_owned(),
    ]
    .map(String::into_bytes)
    .into()
}
