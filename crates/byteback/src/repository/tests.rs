//! Addresses that are repositories, and those that are not.

use super::*;

#[test]
fn addresses_come_apart_and_together_again() {
    for (text, server, folder) in [
        ("http://127.0.0.1:7117/mail", "http://127.0.0.1:7117", "mail"),
        ("https://Backup.Example.org/mail/", "https://backup.example.org", "mail"),
        ("http://[::1]:80/a.b-c_d", "http://[::1]:80", "a.b-c_d"),
        ("https://host/prefix/mail", "https://host/prefix", "mail"),
    ] {
        let repository: Repository = text.parse().unwrap();
        assert_eq!(
            (repository.server.as_str(), repository.folder.as_str()),
            (server, folder)
        );
        assert_eq!(repository.to_string().parse(), Ok(repository));
    }
}

#[test]
fn what_is_no_repository_is_refused_with_an_example() {
    for text in [
        "",
        "mail",
        "/srv/backup",
        "ftp://host/mail",
        "http://host",
        "http:///mail",
        "http://:80/mail",
        "http://host/.mail",
        "http://host/a b",
        "http://user@host/mail",
        "http://host/mail?x=1",
        "http://host/",
    ] {
        let error = text.parse::<Repository>().unwrap_err().to_string();
        assert!(error.contains("https://192.0.2.7:7117/mail"), "{text}: {error}");
    }
}

#[test]
fn a_location_is_a_folder_and_a_path_in_it_as_it_is_written() {
    for (text, repository, path) in [
        ("http://h:1/f", "http://h:1/f", &b""[..]),
        ("http://h:1/f/", "http://h:1/f", b""),
        ("http://h:1/f/a/b", "http://h:1/f", b"a/b"),
        ("http://h:1/f/a/", "http://h:1/f", b"a/"),
        ("https://H/f/a b?#%20", "https://h/f", b"a b?#%20"),
    ] {
        let location = Location::parse(text.as_ref()).unwrap();
        assert_eq!(location.repository.to_string(), repository);
        assert_eq!(location.path, path);
    }
    let raw = OsStr::from_bytes(b"http://h:1/f/\xff");
    assert_eq!(Location::parse(raw).unwrap().path, b"\xff");
    for wrong in [
        "",
        "http://h:1",
        "http://h:1/",
        "ftp://h/f",
        "f",
        "http:///f",
        "http://h/.f/x",
    ] {
        assert!(Location::parse(wrong.as_ref()).is_err(), "{wrong}");
    }
}
