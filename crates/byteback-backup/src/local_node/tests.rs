use super::*;

use byteback_host::clock::RealClock;

/// A direct write moves the times when it begins, and readers do not wait for it.
#[test]
fn a_long_write_that_began_before_the_look_is_read_as_a_whole() {
    const LEN: usize = 128 << 20;
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.as_file().write_all_at(&vec![0; LEN], 0).unwrap();
    file.as_file().sync_all().unwrap();
    let Ok(writer) = rustix::fs::open(file.path(), OFlags::WRONLY | OFlags::DIRECT, rustix::fs::Mode::empty()) else {
        println!("skipped: no direct writes here");
        return;
    };
    std::thread::sleep(Duration::from_millis(50));
    let before = tree::stat_fd(file.as_file()).unwrap().ctime_ns;
    let at_work = std::thread::spawn(move || {
        let bytes = vec![1; LEN + 4096];
        let aligned = &bytes[bytes.as_ptr().align_offset(4096)..][..LEN];
        assert_eq!(File::from(writer).write_at(aligned, 0).unwrap(), LEN);
    });
    while tree::stat_fd(file.as_file()).unwrap().ctime_ns == before {
        std::thread::yield_now();
    }
    let path = rustix::fs::open(file.path(), OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let mut node = LocalNode::of(path).unwrap();
    node.settle(&RealClock).unwrap();
    let mut last = 0;
    let read = node.content().unwrap().read(&[(LEN as u64 - 1, 1)], &mut |piece| {
        if let Piece::Data { bytes, .. } = piece {
            last = bytes[0];
        }
        Ok(())
    });
    if read.is_ok() {
        assert_eq!(last, 1, "it was read before it was written, and nothing told");
    }
    at_work.join().unwrap();
}
