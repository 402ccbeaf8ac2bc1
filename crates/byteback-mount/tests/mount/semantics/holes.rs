//! Sparse files of which the kernel still holds what programs have written or stored.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use byteback_mount::CacheMode;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::stores::Mapping;
use crate::harness::Fixture;

const LEN_BYTES: u64 = 64 << 20;
const WRITTEN_AT: u64 = 3_000_000;
const STORED_AT: u64 = 20_000_000;

fn every_kind_of_mount(test: impl Fn(&Fixture, &str)) {
    for mode in [CacheMode::Exact, CacheMode::Fast] {
        test(&Fixture::with_mode(mode), &format!("{mode:?}"));
        test(&Fixture::in_volume(mode), &format!("{mode:?}, volume"));
    }
}

/// A shell that was started before the files were opened. A program that we start ourselves has our
/// descriptors until it closes them, and with that makes the kernel write everything back.
struct Shell {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Shell {
    fn start() -> Self {
        let mut child = Command::new("sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self {
            child,
            orders,
            answers: BufReader::new(answers),
        }
    }

    fn run(&mut self, script: &str) {
        writeln!(self.orders, "{{ {script}; }} >&2; echo $?").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim(), "0", "{script}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create(path: &Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap()
}

/// Changes of a file that the program keeps open.
type Use = fn(&File) -> Option<Mapping>;

fn write_into_a_hole(file: &File) -> Option<Mapping> {
    file.set_len(LEN_BYTES).unwrap();
    file.write_all_at(&vec![b'w'; 64 << 10], WRITTEN_AT).unwrap();
    None
}

fn store_into_a_hole(file: &File) -> Option<Mapping> {
    file.set_len(LEN_BYTES).unwrap();
    let mapping = Mapping::of(file);
    mapping.store(STORED_AT as usize, &[b's'; 10_000]);
    Some(mapping)
}

fn append(file: &File) -> Option<Mapping> {
    for line in 0..63 {
        file.write_all_at(&[b'a'; 1000], line * 1000).unwrap();
    }
    None
}

fn do_all(file: &File) -> Option<Mapping> {
    write_into_a_hole(file);
    file.sync_all().unwrap();
    file.write_all_at(&[b'e'; 5000], LEN_BYTES - 1000).unwrap();
    let mapping = Mapping::of(file);
    mapping.store(STORED_AT as usize, &[b's'; 10_000]);
    Some(mapping)
}

const USES: [(&str, Use); 4] = [
    ("write", write_into_a_hole),
    ("store", store_into_a_hole),
    ("append", append),
    ("all", do_all),
];

/// Has `copy` copy a file that is in use, and compares the copies with the same done on the plain
/// file system.
fn copies_are_whole(copy: impl Fn(&str, &str) -> String) {
    every_kind_of_mount(|fixture, which| {
        for (name, use_it) in USES {
            let mut shell = Shell::start();
            let plain = fixture.beside().join(format!("{name}-plain"));
            drop(use_it(&create(&plain)));
            let file = create(&fixture.at(name));
            let mapping = use_it(&file);
            let copied = fixture.beside().join(format!("{name}-copied"));
            let script = copy(fixture.at(name).to_str().unwrap(), copied.to_str().unwrap());
            shell.run(&script);
            let (expected, seen) = (fs::read(&plain).unwrap(), fs::read(&copied).unwrap());
            assert_eq!(seen.len(), expected.len(), "{which}, {name}");
            let differing = expected.iter().zip(&seen).filter(|(a, b)| a != b).count();
            assert_eq!(differing, 0, "bytes that differ: {which}, {name}");
            drop((file, mapping));
        }
    });
}

#[test]
fn cp_of_a_sparse_file_in_use_copies_all_of_it() {
    copies_are_whole(|from, to| format!("cp --sparse=auto --reflink=never {from} {to}"));
}

#[test]
fn tar_of_a_sparse_file_in_use_saves_all_of_it() {
    // 1: the file changed meanwhile. Its times move when the kernel hands stores on, which the
    // search for holes makes it do.
    copies_are_whole(|from, to| format!("(tar -cSPf {to}.tar {from} || [ $? = 1 ]) && tar -xOPf {to}.tar > {to}"));
}

/// A file that was there, and known to have no blocks, before it was opened and stored to.
#[test]
fn a_file_with_bytes_is_never_without_blocks() {
    every_kind_of_mount(|fixture, which| {
        for (name, use_it) in USES {
            drop(create(&fixture.at(name)));
            if !name.contains("append") {
                fs::OpenOptions::new()
                    .write(true)
                    .open(fixture.at(name))
                    .unwrap()
                    .set_len(LEN_BYTES)
                    .unwrap();
            }
            // In a volume there is one for the inode.
            assert!(fs::metadata(fixture.at(name)).unwrap().blocks() <= 8, "{which}, {name}");
            let file = File::options().read(true).write(true).open(fixture.at(name)).unwrap();
            let mapping = use_it(&file);
            assert!(fs::metadata(fixture.at(name)).unwrap().blocks() > 0, "{which}, {name}");
            drop((file, mapping));
        }
    });
}

#[test]
fn seeking_finds_what_the_kernel_still_holds() {
    every_kind_of_mount(|fixture, which| {
        let file = create(&fixture.at("f"));
        let mapping = do_all(&file);
        let reader = File::open(fixture.at("f")).unwrap();
        let data = |from| seek(&reader, SeekFrom::Data(from));
        let hole = |from| seek(&reader, SeekFrom::Hole(from));
        let page = |at: u64| at / 4096 * 4096;
        // Larger units than pages are the file system's right.
        let found = data(0).unwrap();
        assert!(found > 0 && found <= page(WRITTEN_AT), "{which}: {found}");
        let found = hole(WRITTEN_AT).unwrap();
        assert!(
            (WRITTEN_AT + (64 << 10)..STORED_AT).contains(&found),
            "{which}: {found}"
        );
        let found = data(found).unwrap();
        assert!(found > WRITTEN_AT && found <= STORED_AT, "{which}: {found}");
        let found = hole(STORED_AT).unwrap();
        assert!(
            (STORED_AT + 10_000..LEN_BYTES - 1000).contains(&found),
            "{which}: {found}"
        );
        let found = data(found).unwrap();
        assert!(found > STORED_AT && found <= LEN_BYTES - 1000, "{which}: {found}");
        assert_eq!(hole(found), Ok(LEN_BYTES + 4000), "{which}");
        assert_eq!(data(LEN_BYTES + 4000), Err(Errno::NXIO), "{which}");
        assert_eq!(hole(LEN_BYTES + 4000), Err(Errno::NXIO), "{which}");
        drop(mapping);
    });
}
