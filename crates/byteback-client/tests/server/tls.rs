//! Servers that speak TLS, and those that stand in between.

use byteback_api::Fingerprint;
use byteback_client::{ClientOptions, ServerClient, ServerErrorKind, join};
use byteback_server::{Identity, Server, ServerConfig, ServerHandle};
use byteback_store::{Store, StoreLimits};
use byteback_testkit::clients::{join_request, patient};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

fn identity() -> Identity {
    Identity::from_pem(Identity::make(&["localhost".to_owned()]).unwrap().as_bytes()).unwrap()
}

struct World {
    _dir: tempfile::TempDir,
    store: Store,
    server: ServerHandle,
}

fn serve_at(listen: SocketAddr, identity: Option<Identity>) -> World {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    let config = ServerConfig {
        listen,
        identity,
        ..ServerConfig::default()
    };
    World {
        _dir: dir,
        server: Server::start(config, store.clone()).unwrap(),
        store,
    }
}

fn serve(identity: Option<Identity>) -> World {
    serve_at(SocketAddr::from(([127, 0, 0, 1], 0)), identity)
}

fn knowing(fingerprint: Fingerprint) -> ClientOptions {
    ClientOptions {
        certificate: Some(fingerprint),
        ..patient()
    }
}

impl World {
    fn https(&self) -> String {
        format!("https://{}", self.server.address())
    }

    fn join_token(&self) -> String {
        self.store.create_join_token(60_000_000_000).unwrap()
    }
}

#[test]
fn a_server_is_known_by_its_certificate_alone() {
    let identity = identity();
    let ipv6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    for ip in [Ipv4Addr::LOCALHOST.into(), ipv6] {
        if ip == ipv6 && TcpListener::bind((ip, 0)).is_err() {
            continue;
        }
        let world = serve_at(SocketAddr::new(ip, 0), Some(identity.clone()));
        let request = join_request(&world.join_token());
        let joined = join(&world.https(), &request, knowing(identity.fingerprint())).unwrap();
        let client = ServerClient::new(&world.https(), &joined.token, knowing(identity.fingerprint())).unwrap();
        client.create_folder(&"f".parse().unwrap()).unwrap();
        assert_eq!(client.folders().unwrap().folders.len(), 1);
        // Neither the public list of signers nor a list of our own has it.
        let unknown = ServerClient::new(&world.https(), &joined.token, patient()).unwrap();
        assert_eq!(unknown.folders().unwrap_err().kind, ServerErrorKind::Tls);
    }
}

#[test]
fn client_sends_nothing_to_a_foreign_certificate() {
    let real = identity();
    let between = serve(Some(identity()));
    let token = between.join_token();
    let received = between.server.received_bytes();
    let error = join(&between.https(), &join_request(&token), knowing(real.fingerprint())).unwrap_err();
    assert_eq!(error.kind, ServerErrorKind::Tls);
    for said in [&error.message, &error.next] {
        assert!(!said.contains(&token) && said.len() > 40, "{said}");
    }
    assert!(
        error.message.contains(&real.fingerprint().to_string()),
        "{}",
        error.message
    );
    assert!(error.next.contains("new code"), "{}", error.next);
    // It was tried once: another certificate does not become the right one.
    assert!(between.server.received_bytes() - received < 1000);
    assert_eq!(
        between.store.roster().invitations().unwrap().len(),
        1,
        "the token did not arrive"
    );
}

#[test]
fn server_with_a_stolen_certificate_but_no_key_is_refused() {
    // The certificate is public. Its key is needed to sign the handshake: a server with another key
    // cannot even start.
    let pem = Identity::make(&["localhost".to_owned()]).unwrap();
    let other = Identity::make(&["localhost".to_owned()]).unwrap();
    let begin = "-----BEGIN CERTIFICATE";
    let stolen = format!(
        "{}{}",
        &other[..other.find(begin).unwrap()],
        &pem[pem.find(begin).unwrap()..]
    );
    assert!(Identity::from_pem(stolen.as_bytes()).is_err());
}

#[test]
fn plain_and_tls_that_meet_are_told_apart() {
    let identity = identity();
    let secured = serve(Some(identity.clone()));
    let plain = serve(None);
    let address = |world: &World| world.server.address().to_string();
    let client = |url: String, options: ClientOptions| ServerClient::new(&url, "bbd_x", options).unwrap();
    let error = client(format!("http://{}", address(&secured)), patient())
        .folders()
        .unwrap_err();
    assert_eq!(error.kind, ServerErrorKind::Tls);
    assert!(error.next.contains("https://"), "{}", error.next);
    for options in [knowing(identity.fingerprint()), patient()] {
        let error = client(format!("https://{}", address(&plain)), options)
            .folders()
            .unwrap_err();
        assert_eq!(error.kind, ServerErrorKind::Tls, "{error}");
        assert!(
            error.message.contains("does not speak TLS") && error.next.contains("--plain"),
            "{error}"
        );
    }
}

#[test]
fn another_address_is_tried_when_the_first_cannot_be_reached() {
    let identity = identity();
    let world = serve(Some(identity.clone()));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = ClientOptions {
        other_addresses: vec!["no such host:1".to_owned(), world.server.address().to_string()],
        ..knowing(identity.fingerprint())
    };
    let client = ServerClient::new(&format!("https://{closed}"), "bbd_x", options.clone()).unwrap();
    assert_eq!(client.health().unwrap().status, "ok");
    assert_eq!(client.folders().unwrap_err().kind, ServerErrorKind::WrongToken);
    // Even if the first is a name that nobody knows.
    let client = ServerClient::new("https://nobody.invalid:7117", "bbd_x", options).unwrap();
    assert_eq!(client.health().unwrap().status, "ok");
}

#[test]
fn client_tries_another_address_if_a_stranger_answers_first() {
    let identity = identity();
    let world = serve(Some(identity.clone()));
    let others = [serve(Some(self::identity())), serve(None)];
    let address = |world: &World| world.server.address().to_string();
    for other in &others {
        let options = ClientOptions {
            other_addresses: vec![address(&others[0]), address(&world)],
            ..knowing(identity.fingerprint())
        };
        let client = ServerClient::new(&format!("https://{}", address(other)), "bbd_x", options).unwrap();
        for _ in 0..2 {
            assert_eq!(client.folders().unwrap_err().kind, ServerErrorKind::WrongToken);
        }
    }
    // Where all addresses belong to other servers, the error says so.
    let options = ClientOptions {
        other_addresses: vec![address(&others[1])],
        ..knowing(identity.fingerprint())
    };
    let client = ServerClient::new(&format!("https://{}", address(&others[0])), "bbd_x", options).unwrap();
    assert_eq!(client.folders().unwrap_err().kind, ServerErrorKind::Tls);
}
