//! Files that are changed in place, and the part of them that is sent.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use byteback_host::random::SplitMix64;
use byteback_mount::CacheMode;
use rustix::fs::{Advice, fadvise};

use super::drain::{Drain, Trouble};
use super::options;
use crate::fixture::Fixture;
use crate::operations::seed;

const LEN: usize = 300_000;

/// Writes a file over from its beginning, in pieces of this length; perhaps it is emptied first.
fn write_over(path: &Path, content: &[u8], piece_len: usize, is_emptied: bool) {
    let mut file = File::options().write(true).truncate(is_emptied).open(path).unwrap();
    for piece in content.chunks(piece_len) {
        file.write_all(piece).unwrap();
    }
}

/// How many bytes are sent of what `change` does to a file that the server has, and how many
/// contents are sent as a delta against the file's previous bytes.
fn sent_of(change: impl FnOnce(&Path, &mut Vec<u8>, &mut SplitMix64)) -> (usize, usize) {
    sent_after(|_| {}, change)
}

/// The same, after something was done to the file below the mount.
fn sent_after(
    prepare: impl FnOnce(&File),
    change: impl FnOnce(&Path, &mut Vec<u8>, &mut SplitMix64),
) -> (usize, usize) {
    let mut options = options(Duration::from_millis(150));
    options.rewritten_bytes_min = 64 << 10;
    options.queue.delay_max_ns = u64::MAX;
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.live = Some(options);
    let mut random = SplitMix64::new(seed());
    let mut content = random.bytes(LEN);
    std::fs::write(fixture.tree().join("file"), &content).unwrap();
    let below = File::open(fixture.tree().join("file")).unwrap();
    fixture.mount();
    let mut drain = Drain::new(fixture.served(), seed(), Trouble::default());
    drain.finish();
    prepare(&below);
    let before = drain.bytes;
    change(&fixture.tree().join("file"), &mut content, &mut random);
    drain.finish();
    let at_server = drain.server.nodes.values().find(|node| node.content == content);
    assert!(at_server.is_some(), "the server has something else");
    let (bytes, rewritten) = (drain.bytes - before, drain.rewritten);
    drop(drain);
    fixture.umount();
    (bytes, rewritten)
}

#[test]
fn live_does_not_send_moves_in_a_file_written_over() {
    let (bytes, rewritten) = sent_of(|path, content, random| {
        let inserted = random.bytes(50);
        content.splice(LEN / 3..LEN / 3, inserted);
        write_over(path, content, 64 << 10, false);
    });
    assert_eq!(rewritten, 1);
    assert!(bytes < 2000, "{bytes} bytes are sent");
}

#[test]
fn live_does_not_send_moves_in_a_file_emptied_and_rewritten() {
    let (bytes, rewritten) = sent_of(|path, content, random| {
        let inserted = random.bytes(50);
        content.splice(LEN / 3..LEN / 3, inserted);
        write_over(path, content, 8 << 10, true);
    });
    assert_eq!(rewritten, 1);
    assert!(bytes < 2000, "{bytes} bytes are sent");
}

#[test]
fn a_file_of_which_little_changes_is_sent_as_what_was_written() {
    let (bytes, rewritten) = sent_of(|path, content, random| {
        let file = File::options().write(true).open(path).unwrap();
        for index in 0..8 {
            let (at, piece) = (index * LEN / 8, random.bytes(4000));
            content[at..at + piece.len()].copy_from_slice(&piece);
            file.write_all_at(&piece, at as u64).unwrap();
        }
    });
    assert_eq!(rewritten, 0);
    // Bytes that happen to be equal at the ends of a piece are left out.
    assert!((31_000..=32_000).contains(&bytes), "{bytes} bytes are sent");
}

/// Overwrites pages of a file, from each of which one row is gone, so that the others move.
fn remove_rows(path: &Path, content: &mut [u8], pages: impl Iterator<Item = usize>) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    for number in pages {
        let page = &mut content[number * 4096..][..4096];
        page.copy_within(300..4096, 200);
        page[3996..].fill(0);
        file.write_all_at(page, number as u64 * 4096).unwrap();
    }
}

#[test]
fn live_does_not_send_rows_that_moved_in_a_few_pages() {
    let (bytes, rewritten) = sent_of(|path, content, _| remove_rows(path, content, [3, 17, 40].into_iter()));
    assert_eq!(rewritten, 1);
    assert!(bytes < 1000, "{bytes} bytes are sent");
}

#[test]
fn live_sends_pages_whose_old_bytes_are_not_in_memory() {
    let forget = |file: &File| {
        file.sync_all().unwrap();
        fadvise(file, 0, None, Advice::DontNeed).unwrap();
    };
    let (bytes, rewritten) = sent_after(forget, |path, content, _| {
        remove_rows(path, content, [3, 17, 40].into_iter());
    });
    assert_eq!(rewritten, 0);
    assert!(bytes > 3 * 3000, "{bytes} bytes are sent");
}
