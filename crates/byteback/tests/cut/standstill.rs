//! A backup that stands still holds up no writer.
//!
//! Found by reading: pieces of a file were handed to the command while the file's lock was held. A
//! command that was slow to take them blocked the next writer of the file, inside the gate; the
//! next checkpoint waited for that writer, and every other writer for the checkpoint.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use crate::rig::{Mode, Rig};

const FILE_BYTES: usize = 160 << 20;
const PIECE_BYTES: usize = 128 << 10;
/// Minimum time of writing, which also goes on until each byte was written. Longer than the
/// daemon's interval between checkpoints, one of which would stop every writer.
const WRITE_FOR: Duration = Duration::from_secs(6);

#[test]
fn a_backup_that_stands_still_holds_up_no_writer() {
    let mut rig = Rig::new(Mode::Exact);
    let url = rig.start_server("127.0.0.1:0");
    rig.init(&rig.tree(), &url, "folder");
    let path = rig.tree().join("large");
    fs::write(&path, vec![1; FILE_BYTES]).unwrap();
    rig.mount();

    let read_before = rig.daemon_read_bytes();
    let read = || rig.daemon_read_bytes() - read_before;
    let arguments = rig.backup_arguments(None);
    let backup = rig.spawn(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let process = backup.handle();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while read() < FILE_BYTES as u64 / 16 {
        assert!(std::time::Instant::now() < deadline, "the backup does not begin");
        std::thread::yield_now();
    }
    pidfd_send_signal(&process, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(read() < FILE_BYTES as u64, "the backup was faster than the signal");

    let (wrote, heard) = channel();
    std::thread::spawn(move || {
        let file = fs::File::options().write(true).open(&path).unwrap();
        let began = std::time::Instant::now();
        let mut written_bytes = 0;
        while began.elapsed() < WRITE_FOR || written_bytes <= FILE_BYTES {
            let at = written_bytes % FILE_BYTES;
            file.write_all_at(&[2; PIECE_BYTES], at as u64).unwrap();
            written_bytes += PIECE_BYTES;
            if wrote.send(()).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let mut writes = 0;
    loop {
        match heard.recv_timeout(Duration::from_secs(5)) {
            Ok(()) => writes += 1,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                panic!("after {writes} writes, the next waits for a backup that stands still")
            }
        }
    }

    pidfd_send_signal(&process, Signal::CONT).unwrap();
    let summary = backup.wait().succeeds("the backup");
    let restored = rig.restore(summary["snapshot_id"].as_u64().unwrap(), None);
    let bytes = fs::read(restored.path().join("large")).unwrap();
    assert_eq!(bytes.len(), FILE_BYTES);
    let later = bytes.iter().position(|byte| *byte != 1);
    assert_eq!(later, None, "the first byte that was written after the cut");
    rig.umount();
}
