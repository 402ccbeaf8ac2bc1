//! Beginning and end of a server, and the clients that it admits.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use byteback_model::NodeId;

use super::memory_tree::{MemoryTree, WAITING};
use super::peer::{Peer, Served, soon};
use crate::server::{Limits, socket_address};
use crate::service::{CutRequest, ErrorKind, Outcome, TreeService};
use crate::{Client, Server};

fn request() -> CutRequest {
    CutRequest::of("c")
}

#[test]
fn dropping_a_server_leaves_no_thread_no_socket_and_no_cut() {
    let mut served = Served::new();
    let idle = served.client();
    let reading = served.client();
    reading.cut(&request()).unwrap();
    let silent = Peer::connect(&served.socket());
    let started = Instant::now();
    served.server = None;
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "idle connections were waited for"
    );
    assert_eq!(Arc::strong_count(&served.tree), 1, "a thread still holds the service");
    assert_eq!(served.tree.state().finished[0].1, Outcome::Unknown);
    assert_eq!(fs::read_dir(served.folder.path()).unwrap().count(), 0);
    for client in [idle, reading] {
        assert_eq!(client.status().unwrap_err().kind, ErrorKind::Gone);
        assert_eq!(client.status().unwrap_err().kind, ErrorKind::Gone);
    }
    assert_eq!(Client::connect(&served.socket()).unwrap_err().kind, ErrorKind::Gone);
    drop(silent);
}

#[test]
fn connection_becomes_a_line_if_the_service_has_one() {
    let mut served = Served::new();
    assert_eq!(Client::line(&served.socket()).unwrap_err().kind, ErrorKind::Refused);
    served.tree.write(1, b"file", vec![Ok(vec![1])]);
    let mut lines: Vec<_> = (0..Limits::DEFAULT.peers_max + 3)
        .map(|_| Client::line(&served.socket()).unwrap())
        .collect();
    // Lines do not count as connections, and outlive the server that handed them over.
    served.client().status().unwrap();
    let started = Instant::now();
    served.server = None;
    assert!(started.elapsed() < Duration::from_secs(4), "lines were waited for");
    for (number, line) in lines.iter_mut().enumerate() {
        let said = [number as u8; 3];
        line.write_all(&said).unwrap();
        let mut heard = [0xff; 3];
        line.read_exact(&mut heard).unwrap();
        assert_eq!(heard, said);
    }
}

#[test]
fn server_finishes_running_requests_at_its_end() {
    let mut served = Served::new();
    served.tree.write(WAITING.0, b"slow", vec![Ok(vec![1; 3_000_000])]);
    let client = served.client();
    let cut = client.cut(&request()).unwrap().cut;
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut got = 0;
            client.read(cut, WAITING, &[(0, 3_000_000)], &mut |piece| {
                if let crate::Piece::Data { bytes, .. } = piece {
                    got += bytes.len();
                }
                Ok(())
            })?;
            Ok::<_, crate::ServiceError>(got)
        });
        soon("the request arrives", || served.tree.state().waiting == 1);
        let server = served.server.take();
        let dropping = scope.spawn(move || drop(server));
        soon("nobody gets in", || Client::connect(&served.socket()).is_err());
        assert!(!dropping.is_finished());
        served.tree.open_gate();
        assert_eq!(reading.join().unwrap().unwrap(), 3_000_000);
        dropping.join().unwrap();
    });
    assert_eq!(Arc::strong_count(&served.tree), 1);
    assert_eq!(served.tree.open_cuts(), 0);
}

#[test]
fn the_end_does_not_wait_for_peers_that_do_not_read() {
    let mut served = Served::with(Limits {
        end_timeout: Duration::from_millis(200),
        ..Limits::DEFAULT
    });
    served.tree.write(2, b"big", vec![Ok(vec![1; 50 << 20])]);
    let mut peer = served.peer();
    peer.send_json(r#"{"cut":{"cut":{"consumer":"c"}}}"#);
    peer.answer();
    peer.send_json(r#"{"read":{"cut":1,"node":2,"ranges":[[0,100000000]]}}"#);
    soon("content is being sent", || served.tree.state().pieces_sent > 0);
    let started = Instant::now();
    served.server = None;
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(Arc::strong_count(&served.tree), 1);
    assert_eq!(served.tree.open_cuts(), 0);
}

#[test]
fn a_server_ends_although_its_socket_was_taken_away() {
    // The whole folder is gone.
    let mut served = Served::new();
    let client = served.client();
    fs::remove_dir_all(served.folder.path()).unwrap();
    served.server = None;
    assert_eq!(client.status().unwrap_err().kind, ErrorKind::Gone);

    // Another server listens in its place, and goes on doing so.
    let mut served = Served::new();
    fs::remove_file(served.socket()).unwrap();
    let other = UnixListener::bind(served.socket()).unwrap();
    served.server = None;
    assert!(std::os::unix::net::UnixStream::connect(served.socket()).is_ok());
    drop(other);
}

#[test]
fn a_dead_socket_is_replaced_and_a_folder_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let service: Arc<dyn TreeService> = Arc::new(MemoryTree::default());
    let server = Server::start(&socket, Arc::clone(&service)).unwrap();
    assert!(Client::connect(&socket).unwrap().status().is_ok());
    drop(server);
    fs::create_dir(&socket).unwrap();
    assert!(Server::start(&socket, Arc::clone(&service)).is_err());
    assert!(Server::start(&folder.path().join("no/folder.sock"), service).is_err());
}

#[test]
fn servers_start_and_end_many_times_under_clients() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let tree = Arc::new(MemoryTree::default());
    let done = std::sync::atomic::AtomicBool::new(false);
    let served = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::SeqCst) {
                    let Ok(client) = Client::connect(&socket) else { continue };
                    while client.cut(&request()).is_ok() {
                        served.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    }
                }
            });
        }
        // Also if an assertion fails: the scope waits for the clients.
        scopeguard::defer! { done.store(true, std::sync::atomic::Ordering::SeqCst) }
        for _ in 0..30 {
            let service: Arc<dyn TreeService> = tree.clone();
            let server = Server::start(&socket, service).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            drop(server);
            assert_eq!(Arc::strong_count(&tree), 1);
            assert_eq!(tree.open_cuts(), 0);
        }
    });
    assert!(served.into_inner() > 10);
}

#[test]
fn sockets_lie_as_deep_as_folders_go() {
    let folder = tempfile::tempdir().unwrap();
    let deep = (0..10).fold(folder.path().to_owned(), |path, _| path.join("n".repeat(100)));
    fs::create_dir_all(&deep).unwrap();
    let socket = deep.join("control.sock");
    let tree = Arc::new(MemoryTree::default());
    let server = Server::start(&socket, tree).unwrap();
    assert!(Client::connect(&socket).unwrap().status().is_ok());
    drop(server);
    assert!(!socket.exists());
}

#[test]
fn the_socket_is_for_its_owner_alone() {
    let served = Served::new();
    let mode = fs::metadata(served.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

/// Runs `act` as another user. Credentials belong to threads, as far as the kernel is concerned.
fn as_nobody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let nobody = rustix::fs::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

#[test]
fn socket_keeps_other_users_out_even_if_permissions_admit_them() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can become another user: not tested");
        return;
    }
    let served = Served::new();
    fs::set_permissions(served.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();

    // The permissions of the socket are the first barrier.
    let refused = as_nobody(|| Client::connect(&served.socket()).unwrap_err());
    assert_eq!(refused.kind, ErrorKind::Gone);
    assert!(refused.message.contains("ermission denied"), "{refused}");

    // The credentials are the second one.
    fs::set_permissions(served.socket(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = as_nobody(|| Client::connect(&served.socket()).unwrap_err());
    assert_eq!(refused.kind, ErrorKind::Gone);
    assert!(refused.message.contains("another user"), "{refused}");
    served.serves_others();
}

#[test]
fn root_may_ask_the_daemon_of_any_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can become another user: not tested");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let socket = folder.path().join("control.sock");
    let tree = Arc::new(MemoryTree::default());
    // Accepts in a thread that inherits the credentials of nobody.
    let server = as_nobody(|| Server::start(&socket, tree).unwrap());
    assert!(Client::connect(&socket).unwrap().status().is_ok());
    assert!(as_nobody(|| Client::connect(&socket).unwrap().status().is_ok()));
    drop(server);
}

#[test]
fn an_address_outlives_the_name_of_its_folder() {
    let served = Served::new();
    let address = socket_address(&served.socket()).unwrap();
    let moved = served.folder.path().with_extension("moved");
    fs::rename(served.folder.path(), &moved).unwrap();
    assert!(std::os::unix::net::UnixStream::connect(address.path()).is_ok());
    fs::rename(&moved, served.folder.path()).unwrap();
    assert_eq!(served.client().status().unwrap().nodes, 0);
    assert!(served.client().path(crate::CutId(1), NodeId(1)).is_err());
}
