//! A damaged binding leads nowhere, rather than elsewhere.

use super::*;

const GOLDEN: &str = r#"{
  "version": 1,
  "server": "http://127.0.0.1:7117",
  "folder": "mail",
  "token_file": "/etc/token",
  "block_checksums": true,
  "crc32c": "abb08d53"
}
"#;

fn parse(bytes: &[u8]) -> Result<Binding> {
    Binding::parse(bytes, Path::new("/state/binding.json"))
}

fn binding() -> Binding {
    Binding {
        repository: "http://127.0.0.1:7117/mail".parse().unwrap(),
        token_file: Some("/etc/token".into()),
        block_checksums: true,
    }
}

/// Asserts that a binding is refused by name, and with a next step.
fn assert_refused(read: Result<Binding>, what: &dyn Fn() -> String) {
    match read {
        Err(CommandError::Failed(failure)) => {
            assert!(failure.message.contains("binding.json"), "{}: {failure:?}", what());
            assert!(failure.next.unwrap().contains("byteback init"), "{}", what());
        }
        other => panic!("{}: {other:?}", what()),
    }
}

#[test]
fn the_format() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    let folder = StateFolder::of(&dir.path().join("tree"), &dir.path().join("state")).unwrap();
    folder.create().unwrap();
    binding().write(&folder).unwrap();
    assert_eq!(fs::read_to_string(path(&folder)).unwrap(), GOLDEN);
    assert_eq!(Binding::read(&folder).unwrap(), Some(binding()));
    let least = Binding {
        token_file: None,
        block_checksums: false,
        ..binding()
    };
    least.write(&folder).unwrap();
    assert_eq!(Binding::read(&folder).unwrap(), Some(least));
}

#[test]
fn binding_of_a_later_version_or_without_checksum_is_refused() {
    let later = GOLDEN.replace("\"version\": 1", "\"version\": 2");
    assert_refused(parse(later.as_bytes()), &|| "a later version".to_owned());
    let unsigned = GOLDEN.replace(",\n  \"crc32c\": \"abb08d53\"", "");
    assert_ne!(unsigned, GOLDEN);
    assert_refused(parse(unsigned.as_bytes()), &|| "no checksum".to_owned());
}

/// Each bit of each byte is flipped; each byte is replaced by each other printable one; each byte
/// is left out; each end is cut off.
#[test]
fn a_damaged_binding_is_refused_or_means_what_was_written() {
    let golden = GOLDEN.as_bytes();
    let check = |bytes: &[u8], what: &dyn Fn() -> String| match parse(bytes) {
        Ok(read) => assert_eq!(read, binding(), "{}", what()),
        refused => assert_refused(refused, what),
    };
    for at in 0..golden.len() {
        let other = |byte| {
            let mut damaged = golden.to_vec();
            damaged[at] = byte;
            damaged
        };
        let flipped = (0..8).map(|bit| golden[at] ^ (1 << bit));
        for byte in flipped.chain(b' '..=b'~') {
            check(&other(byte), &|| format!("byte {at} is {byte:#x}"));
        }
        let mut shorter = golden.to_vec();
        shorter.remove(at);
        check(&shorter, &|| format!("byte {at} is missing"));
        check(&golden[..at], &|| format!("cut off at {at}"));
    }
    check(&[0; 4096], &|| "zeros".to_owned());
}
