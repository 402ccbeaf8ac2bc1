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
        assert!(error.contains("http://127.0.0.1:7117/mail"), "{text}: {error}");
    }
}
