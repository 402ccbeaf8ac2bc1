//! Asynchronous direct writes beside programs that use the page cache.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use byteback_mount::CacheMode;

use crate::harness::Fixture;

/// The file is as long as the writes of one round together. They are more than the kernel's limit
/// of background requests.
const PIECE_LEN_BYTES: usize = 16 << 10;
const PIECE_COUNT: usize = 40;
const FILE_LEN_BYTES: usize = PIECE_LEN_BYTES * PIECE_COUNT;

/// Without the mend a stale page stays behind within 2 to 30 rounds.
const ROUND_COUNT: u32 = 150;

/// A context of the kernel's asynchronous I/O (what libaio wraps).
struct AsynchronousIo(libc::c_ulong);

impl AsynchronousIo {
    fn new() -> Self {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number into the variable.
        let done = unsafe { libc::syscall(libc::SYS_io_setup, PIECE_COUNT, &raw mut context) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        Self(context)
    }

    /// Writes `pieces` at consecutive offsets, all under way at once, and waits until each of them
    /// is finished.
    fn write(&self, file: &File, pieces: &[&[u8]]) {
        let mut offset = 0;
        let mut requests: Vec<libc::iocb> = pieces
            .iter()
            .map(|piece| {
                // SAFETY: a structure of numbers, for which zeros are a value.
                let mut request: libc::iocb = unsafe { std::mem::zeroed() };
                // IOCB_CMD_PWRITE
                request.aio_lio_opcode = 1;
                request.aio_fildes = file.as_raw_fd().cast_unsigned();
                request.aio_buf = piece.as_ptr().addr() as u64;
                request.aio_nbytes = piece.len() as u64;
                request.aio_offset = offset;
                offset += i64::try_from(piece.len()).unwrap();
                request
            })
            .collect();
        let pointers: Vec<*mut libc::iocb> = requests.iter_mut().map(std::ptr::from_mut).collect();
        // SAFETY: requests and buffers live until all of them are finished, below.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, self.0, pointers.len(), pointers.as_ptr()) };
        assert_eq!(usize::try_from(submitted), Ok(pieces.len()));
        // `struct io_event`: data, request, result, second result.
        let mut events = vec![[0i64; 4]; pieces.len()];
        let no_limit = std::ptr::null::<libc::timespec>();
        // SAFETY: as many events as there is room for.
        let finished = unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.0,
                pieces.len(),
                pieces.len(),
                events.as_mut_ptr(),
                no_limit,
            )
        };
        assert_eq!(usize::try_from(finished), Ok(pieces.len()));
        for event in events {
            assert_eq!(event[2], i64::try_from(PIECE_LEN_BYTES).unwrap());
        }
    }
}

impl Drop for AsynchronousIo {
    fn drop(&mut self) {
        // SAFETY: the number of a context that nobody uses any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

fn open_direct(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap()
}

/// The memory of which direct I/O is made begins at a page.
fn aligned(memory: &mut Vec<u8>) -> &mut [u8] {
    memory.resize(FILE_LEN_BYTES + 4096, 0);
    let skipped = memory.as_ptr().align_offset(4096);
    &mut memory[skipped..skipped + FILE_LEN_BYTES]
}

fn every_kind_of_mount(test: impl Fn(&Fixture, &str)) {
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        test(&Fixture::with_mode(mode), &format!("{mode:?}"));
        test(&Fixture::in_volume(mode), &format!("{mode:?}, volume"));
    }
}

/// Writes the file again and again, asynchronously and past the page cache, while others read it
/// through the page cache. `after_round` sees a file of which every byte is the given one.
fn rewrite_beside_readers(path: &Path, rounds: u32, after_round: impl Fn(u32, u8)) {
    fs::write(path, vec![0u8; FILE_LEN_BYTES]).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut buffer = vec![0; FILE_LEN_BYTES];
                while !is_over.load(Ordering::Relaxed) {
                    File::open(path).unwrap().read_exact_at(&mut buffer, 0).unwrap();
                }
            });
        }
        struct EndOthers<'a>(&'a AtomicBool);
        impl Drop for EndOthers<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = EndOthers(&is_over);
        let (writer, io) = (open_direct(path), AsynchronousIo::new());
        let mut memory = Vec::new();
        let memory = aligned(&mut memory);
        for round in 1..=rounds {
            let byte = (round % 251) as u8 + 1;
            memory.fill(byte);
            let pieces: Vec<&[u8]> = memory.chunks(PIECE_LEN_BYTES).collect();
            io.write(&writer, &pieces);
            after_round(round, byte);
        }
    });
}

fn first_other(bytes: &[u8], expected: u8) -> Option<(usize, u8)> {
    let position = bytes.iter().position(|byte| *byte != expected)?;
    Some((position, bytes[position]))
}

/// xfstests generic/451.
#[test]
fn readers_see_finished_asynchronous_direct_writes() {
    every_kind_of_mount(|fixture, which| {
        let path = fixture.at("f");
        rewrite_beside_readers(&path, ROUND_COUNT, |round, byte| {
            let seen = fs::read(&path).unwrap();
            assert_eq!(first_other(&seen, byte), None, "{which}, round {round}");
        });
    });
}

/// A stale page would be written back as a whole once a byte of it changes.
#[test]
fn a_byte_written_later_brings_no_old_bytes_back() {
    every_kind_of_mount(|fixture, which| {
        let path = fixture.at("f");
        let buffered = || File::options().write(true).open(&path).unwrap();
        rewrite_beside_readers(&path, ROUND_COUNT / 4, |round, byte| {
            let file = buffered();
            for page in 0..FILE_LEN_BYTES / 4096 {
                file.write_all_at(&[byte], (page * 4096) as u64).unwrap();
            }
            file.sync_all().unwrap();
            let mut memory = Vec::new();
            let memory = aligned(&mut memory);
            open_direct(&path).read_exact_at(memory, 0).unwrap();
            assert_eq!(first_other(memory, byte), None, "{which}, round {round}");
        });
    });
}
