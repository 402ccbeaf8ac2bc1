use super::*;

/// A server that answers each connection with twice what it got, once the client has said all.
fn doubling_server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    });
    address
}

fn talk(address: SocketAddr, len: usize) {
    let mut stream = TcpStream::connect(address).unwrap();
    let bytes: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
    let sent = bytes.clone();
    let mut writer = stream.try_clone().unwrap();
    writer.write_all(&sent).unwrap();
    writer.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(
        answer == [bytes.clone(), bytes].concat(),
        "what passes the proxy is unchanged"
    );
}

#[test]
fn every_byte_is_passed_on_and_counted() {
    let proxy = CountingProxy::start(doubling_server()).unwrap();
    assert_eq!(proxy.settled().unwrap(), Wire::default());
    talk(proxy.address(), 1_000_003);
    let first = proxy.settled().unwrap();
    assert_eq!((first.to_server, first.to_client), (1_000_003, 2_000_006));
    talk(proxy.address(), 0);
    assert_eq!(proxy.settled().unwrap(), first);
    thread::scope(|scope| {
        for len in [10, 100_000, 7] {
            let address = proxy.address();
            scope.spawn(move || talk(address, len));
        }
    });
    let wire = proxy.settled().unwrap().since(first);
    assert_eq!(
        (wire.to_server, wire.to_client, wire.total()),
        (100_017, 200_034, 300_051)
    );
}

#[test]
fn quiet_traffic_is_told_while_a_connection_stands() {
    let proxy = CountingProxy::start(doubling_server()).unwrap();
    let standing = TcpStream::connect(proxy.address()).unwrap();
    (&standing).write_all(&[7; 1000]).unwrap();
    let to_server = || proxy.quiet().unwrap().to_server;
    assert_eq!(to_server(), 1000);
    (&standing).write_all(&[7; 10]).unwrap();
    assert_eq!(to_server(), 1010);
}

#[test]
fn a_dead_server_closes_the_clients_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let proxy = CountingProxy::start(address).unwrap();
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    let mut bytes = Vec::new();
    // An end or an error, but no waiting.
    let _ = stream.read_to_end(&mut bytes);
    assert!(bytes.is_empty());
    assert_eq!(proxy.settled().unwrap(), Wire::default());
}

#[test]
fn a_slow_link_takes_the_time_that_its_bytes_need() {
    let proxy = CountingProxy::start(doubling_server()).unwrap();
    // 100,000 bytes there and 200,000 back: 2.4 million bits, and the server answers only when it
    // has all.
    proxy.limit(Some(8_000_000));
    let started = Instant::now();
    talk(proxy.address(), 100_000);
    let elapsed_s = started.elapsed().as_secs_f64();
    assert!((0.3..0.9).contains(&elapsed_s), "{elapsed_s}");
    assert_eq!(proxy.settled().unwrap().total(), 300_000);
}
