//! Stores into shared mappings, and how a cut gets at them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use byteback_mount::CacheMode;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::harness::{Fixture, set_mode};

/// A shared writable mapping of a whole file.
pub(crate) struct Mapping {
    start: *mut u8,
    len_bytes: usize,
}

impl Mapping {
    fn new(path: &Path) -> Self {
        Self::of(&File::options().read(true).write(true).open(path).unwrap())
    }

    pub(crate) fn of(file: &File) -> Self {
        let len_bytes = usize::try_from(file.metadata().unwrap().len()).unwrap();
        // SAFETY: a new mapping at an address that the kernel chooses. The descriptor may close
        // afterwards.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        Self {
            start: start.unwrap().cast(),
            len_bytes,
        }
    }

    pub(crate) fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len_bytes);
        // SAFETY: inside the mapping, checked above; nobody else in this process looks at it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    fn sync(&self) {
        // SAFETY: exactly the mapping.
        unsafe { msync(self.start.cast(), self.len_bytes, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping, not used any more.
        unsafe { munmap(self.start.cast(), self.len_bytes) }.unwrap();
    }
}

fn bytes_at(path: &Path, at: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

#[test]
fn shared_mappings_and_writes_see_each_other() {
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        let fixture = Fixture::with_mode(mode);
        fs::write(fixture.at("m"), vec![b'.'; 10_000]).unwrap();
        let mapping = Mapping::new(&fixture.at("m"));
        mapping.store(5000, b"stored");
        assert_eq!(bytes_at(&fixture.at("m"), 5000, 6), b"stored");
        File::options()
            .write(true)
            .open(fixture.at("m"))
            .unwrap()
            .write_all_at(b"written", 6000)
            .unwrap();
        assert_eq!(bytes_at(&fixture.at("m"), 6000, 7), b"written");
        mapping.store(6000, b"W");
        mapping.sync();
        assert_eq!(bytes_at(&fixture.below("m"), 5000, 6), b"stored");
        assert_eq!(bytes_at(&fixture.below("m"), 6000, 7), b"Written");
    }
}

/// The promise that a cut rests on: what was stored before the flush is in the backing file after
/// it, although the program neither synced nor closed nor unmapped.
#[test]
fn stores_before_a_flush_are_below_after_it() {
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        let fixture = Fixture::with_mode(mode);
        fs::create_dir_all(fixture.at("a/b")).unwrap();
        let name = "a/b/m";
        fs::write(fixture.at(name), vec![b'.'; 3 << 20]).unwrap();
        let mapping = Mapping::new(&fixture.at(name));
        for round in 0..20u8 {
            let at = usize::from(round) * 123_457;
            mapping.store(at, &[round, round, round]);
            let flushed = fixture.mount().flush_stores().unwrap();
            assert_eq!((flushed.synced, flushed.invalidated), (1, 0), "{mode:?}");
            assert_eq!(bytes_at(&fixture.below(name), at as u64, 3), [round; 3], "{mode:?}");
        }
        // Without the flush they are not there yet: otherwise this test would prove nothing.
        mapping.store(77, b"later");
        assert_ne!(bytes_at(&fixture.below(name), 77, 5), b"later");
    }
}

#[test]
fn collected_writes_before_a_flush_are_below_after_it() {
    let fixture = Fixture::with_mode(CacheMode::Fast);
    let files: Vec<File> = (0..30)
        .map(|n| File::create(fixture.at(&format!("f{n}"))).unwrap())
        .collect();
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(format!("content {n}").as_bytes(), 0).unwrap();
    }
    assert_eq!(fixture.mount().flush_stores().unwrap().synced, 30);
    for n in 0..30 {
        assert_eq!(
            fs::read(fixture.below(&format!("f{n}"))).unwrap(),
            format!("content {n}").as_bytes()
        );
    }
}

#[test]
fn a_flush_reaches_renamed_hard_linked_and_unreadable_files() {
    let fixture = Fixture::new();
    for name in ["moved", "linked", "closed", "swapped"] {
        fs::write(fixture.at(name), vec![b'.'; 8192]).unwrap();
    }
    let names = ["moved", "linked", "closed", "swapped"];
    let mappings: Vec<Mapping> = names.iter().map(|name| Mapping::new(&fixture.at(name))).collect();
    fs::create_dir(fixture.at("d")).unwrap();
    fs::rename(fixture.at("moved"), fixture.at("d/moved")).unwrap();
    fs::hard_link(fixture.at("linked"), fixture.at("d/linked")).unwrap();
    fs::remove_file(fixture.at("linked")).unwrap();
    set_mode(&fixture.at("closed"), 0);
    // Another file bears the name of this one now: it must be reached all the same, by way of the
    // kernel's pages.
    fs::write(fixture.at("other"), vec![b'.'; 8192]).unwrap();
    fs::rename(fixture.below("swapped"), fixture.below("hidden")).unwrap();
    fs::rename(fixture.below("other"), fixture.below("swapped")).unwrap();
    for mapping in &mappings {
        mapping.store(100, b"stored");
    }
    let flushed = fixture.mount().flush_stores().unwrap();
    // A file that was just closed may still count: the kernel releases it a moment later.
    assert!(flushed.synced + flushed.invalidated >= 4);
    for name in ["d/moved", "d/linked", "closed", "hidden"] {
        assert_eq!(bytes_at(&fixture.below(name), 100, 6), b"stored", "{name}");
    }
}

#[test]
fn a_flush_of_unlinked_files_and_of_nothing() {
    let fixture = Fixture::new();
    assert_eq!(fixture.mount().flush_stores().unwrap().synced, 0);
    fs::write(fixture.at("gone"), vec![b'.'; 8192]).unwrap();
    let mapping = Mapping::new(&fixture.at("gone"));
    fs::remove_file(fixture.at("gone")).unwrap();
    mapping.store(1, b"x");
    assert_eq!(fixture.mount().flush_stores().unwrap().invalidated, 1);
}

#[test]
fn flushes_while_programs_write() {
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        let fixture = Fixture::with_mode(mode);
        std::thread::scope(|scope| {
            for n in 0..2 {
                let path = fixture.at(&format!("w{n}"));
                scope.spawn(move || {
                    let file = File::create(path).unwrap();
                    for round in 0..3000u64 {
                        file.write_all_at(&round.to_le_bytes(), (round * 4099) % 100_000)
                            .unwrap();
                    }
                });
            }
            for _ in 0..30 {
                fixture.mount().flush_stores().unwrap();
            }
        });
        for n in 0..2 {
            let name = format!("w{n}");
            fixture.mount().flush_stores().unwrap();
            assert_eq!(
                fs::read(fixture.at(&name)).unwrap(),
                fs::read(fixture.below(&name)).unwrap()
            );
        }
    }
}
