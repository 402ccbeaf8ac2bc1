//! Works made by this suite: the system calls of programs that save, without the programs.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::work::{Case, simple};
use crate::SuiteError;
use crate::random::{Random, random_bytes, text};
use crate::rig::process::{program, run};

#[cfg(test)]
mod tests;

/// The length of a program's writes.
const WRITE_BYTES: usize = 64 << 10;

const PICTURES_BYTES: usize = 10_500_000;
const TEXT_BYTES: usize = 20_000;
/// The text grows by this with each save.
const TYPED_BYTES: usize = 100;
const TAIL_BYTES: usize = 500_000;
/// The end of the tail, which is new in each save.
const NEW_TAIL_BYTES: usize = 100_000;
const SAVES: usize = 23;
const SAVES_QUICK: usize = 3;
const DOCUMENT_KB: f64 = 3000.0;

const INSERTED_BYTES: usize = 64 << 10;
const INSERTION_KB: f64 = 100.0;

const PIECE_BYTES: usize = 256;
/// The bytes allowed for each byte of scattered pieces.
const SCATTERED_TIMES: f64 = 9.0 / 8.0;

const SMALL_FILE_BYTES: u64 = 20_000_000;
const SMALL_WRITE_BYTES: usize = 1010;

const DIRECTORY_FILES: u64 = 40;

const MAILBOX_BYTES: usize = 5_000_000;
const MAIL_TEXT_BYTES: u64 = 20_000;

const REWRITTEN_BYTES: usize = 4 << 20;
const REWRITE_INSERTED_BYTES: usize = 100;
const REWRITE_AT: usize = 1 << 10;

/// Blocks of the file system in a disk image, and the number of those that the file has which is
/// saved there.
const BLOCK_BYTES: usize = 4096;
const GUEST_FILE_BLOCKS: u64 = 512;
/// Its blocks that are new in each save.
const GUEST_NEW_BLOCKS: u64 = 5;
/// Blocks between the places of two saves.
const GUEST_STEP_BLOCKS: u64 = 700;
/// Blocks in which a file system keeps bitmaps, inodes and directories.
const GUEST_TABLES: [u64; 6] = [0, 1, 2, 3, 30, 31];
const GUEST_TABLE_CHANGE_BYTES: usize = 40;

/// All of them; smaller ones if `quick`.
pub(super) fn all(quick: bool) -> Vec<Case> {
    let (large_bytes, scattered_bytes) = if quick {
        (20_000_000, 1_000_000)
    } else {
        (100_000_000, 8_000_000)
    };
    let saves = if quick { SAVES_QUICK } else { SAVES };
    let small_writes = if quick { 6 } else { 40 };
    let (film_bytes, directory_bytes) = if quick {
        (2_000_000, 4_000_000)
    } else {
        (11_000_000, 20_000_000)
    };
    let prepare_film = move |folder: &Path| Ok(fs::write(folder.join("film"), random_bytes(40, film_bytes))?);
    let prepare_directory = move |folder: &Path| make_directory(folder, directory_bytes);
    vec![
        // At most some dozens.
        simple("document", saves, prepare_document, save_document)
            .at_most_kb(DOCUMENT_KB * saves as f64 / SAVES as f64),
        simple(
            "insertion",
            1,
            move |folder| Ok(fs::write(folder.join("large"), random_bytes(10, large_bytes))?),
            move |folder, _| save_insertion(folder, large_bytes),
        )
        .at_most_kb(INSERTION_KB),
        simple(
            "scattered",
            1,
            move |folder| Ok(fs::write(folder.join("large"), random_bytes(20, large_bytes))?),
            move |folder, _| save_scattered(folder, large_bytes as u64, scattered_bytes),
        )
        .at_most_kb(SCATTERED_TIMES * scattered_bytes as f64 / 1e3),
        simple("small writes", small_writes, prepare_small_writes, save_small_write),
        simple("cp", 1, prepare_film, |folder, _| copy(folder, "--reflink=never")),
        simple("cp --reflink=auto", 1, prepare_film, |folder, _| {
            copy(folder, "--reflink=auto")
        }),
        simple("mv of a directory", 1, prepare_directory, |folder, _| {
            run(program("mv").arg(folder.join("before")).arg(folder.join("after")))?;
            Ok(())
        }),
        simple("mail removed", 1, prepare_mailbox, remove_mail),
        simple("rewrite in place", 3, prepare_rewrite, rewrite),
        simple(
            "file saved in an image",
            5,
            move |folder| Ok(fs::write(folder.join("image"), random_bytes(70, large_bytes))?),
            save_in_image,
        ),
    ]
}

/// Writes a file as most programs do: under another name, which is then renamed.
fn write_and_rename(path: &Path, parts: &[&[u8]]) -> Result<(), SuiteError> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    for piece in parts.iter().flat_map(|part| part.chunks(WRITE_BYTES)) {
        file.write_all(piece)?;
    }
    drop(file);
    Ok(fs::rename(&new, path)?)
}

fn prepare_document(folder: &Path) -> Result<(), SuiteError> {
    save_version(folder, 0)
}

fn save_document(folder: &Path, index: usize) -> Result<(), SuiteError> {
    save_version(folder, index + 1)
}

fn save_version(folder: &Path, version: usize) -> Result<(), SuiteError> {
    let seed = version as u64;
    let text = random_bytes(100 + seed, TEXT_BYTES + version * TYPED_BYTES);
    let pictures = random_bytes(1, PICTURES_BYTES);
    let tail = random_bytes(2, TAIL_BYTES - NEW_TAIL_BYTES);
    let new_tail = random_bytes(200 + seed, NEW_TAIL_BYTES);
    write_and_rename(&folder.join("document"), &[&text, &pictures, &tail, &new_tail])
}

fn save_insertion(folder: &Path, large_bytes: usize) -> Result<(), SuiteError> {
    let old = random_bytes(10, large_bytes);
    let (before, after) = old.split_at(large_bytes / 5 * 2);
    let inserted = random_bytes(11, INSERTED_BYTES);
    write_and_rename(&folder.join("large"), &[before, &inserted, after])
}

fn save_scattered(folder: &Path, large_bytes: u64, scattered_bytes: usize) -> Result<(), SuiteError> {
    let mut random = Random::new(21);
    let mut offsets = random.scattered(scattered_bytes / PIECE_BYTES, PIECE_BYTES as u64, large_bytes);
    shuffle(&mut offsets, &mut random);
    let file = OpenOptions::new().write(true).open(folder.join("large"))?;
    let mut piece = [0; PIECE_BYTES];
    for offset in offsets {
        random.fill(&mut piece);
        file.write_all_at(&piece, offset)?;
    }
    Ok(())
}

fn shuffle(offsets: &mut [u64], random: &mut Random) {
    for index in (1..offsets.len()).rev() {
        // Below the length of the slice.
        offsets.swap(index, random.below(index as u64 + 1) as usize);
    }
}

fn prepare_small_writes(folder: &Path) -> Result<(), SuiteError> {
    let bytes = random_bytes(30, usize::try_from(SMALL_FILE_BYTES)?);
    Ok(fs::write(folder.join("records"), bytes)?)
}

fn save_small_write(folder: &Path, index: usize) -> Result<(), SuiteError> {
    let mut random = Random::new(31 + index as u64);
    let at = random.below(SMALL_FILE_BYTES - SMALL_WRITE_BYTES as u64);
    let mut bytes = [0; SMALL_WRITE_BYTES];
    random.fill(&mut bytes);
    let file = OpenOptions::new().write(true).open(folder.join("records"))?;
    Ok(file.write_all_at(&bytes, at)?)
}

fn copy(folder: &Path, reflink: &str) -> Result<(), SuiteError> {
    run(program("cp")
        .arg(reflink)
        .arg(folder.join("film"))
        .arg(folder.join("copy")))?;
    Ok(())
}

fn make_directory(folder: &Path, len_bytes: usize) -> Result<(), SuiteError> {
    let directory = folder.join("before");
    fs::create_dir(&directory)?;
    for number in 0..DIRECTORY_FILES {
        let bytes = random_bytes(50 + number, len_bytes / DIRECTORY_FILES as usize);
        fs::write(directory.join(format!("{number}")), bytes)?;
    }
    Ok(())
}

/// Mails one behind the other, as in the format mbox, and the offsets at which they begin.
fn mailbox(len_bytes: usize) -> (String, Vec<usize>) {
    let mut random = Random::new(100);
    let (mut all, mut begins) = (String::new(), Vec::new());
    while all.len() < len_bytes {
        begins.push(all.len());
        let sender = text(&mut random, 8).replace(' ', "-");
        // Below the longest mail.
        let len = 200 + random.below(MAIL_TEXT_BYTES) as usize;
        all.push_str(&format!("From {sender}@example.org\nSubject: {}\n\n", begins.len()));
        all.push_str(&text(&mut random, len));
        all.push_str("\n\n");
    }
    (all, begins)
}

fn prepare_mailbox(folder: &Path) -> Result<(), SuiteError> {
    Ok(fs::write(folder.join("inbox"), mailbox(MAILBOX_BYTES).0)?)
}

fn remove_mail(folder: &Path, _: usize) -> Result<(), SuiteError> {
    let (_, begins) = mailbox(MAILBOX_BYTES);
    let index = begins.len() / 3;
    let file = OpenOptions::new().read(true).write(true).open(folder.join("inbox"))?;
    remove_range(file, begins[index] as u64, begins[index + 1] as u64)
}

/// Moves all behind `end` forward to `begin`, piece by piece, and cuts the file off.
fn remove_range(mut file: File, begin: u64, end: u64) -> Result<(), SuiteError> {
    let (mut from, mut to) = (end, begin);
    let mut piece = Vec::new();
    loop {
        piece.clear();
        file.seek(SeekFrom::Start(from))?;
        Read::by_ref(&mut file)
            .take(WRITE_BYTES as u64)
            .read_to_end(&mut piece)?;
        if piece.is_empty() {
            return Ok(file.set_len(to)?);
        }
        file.write_all_at(&piece, to)?;
        from += piece.len() as u64;
        to += piece.len() as u64;
    }
}

fn prepare_rewrite(folder: &Path) -> Result<(), SuiteError> {
    Ok(fs::write(folder.join("rewritten"), random_bytes(60, REWRITTEN_BYTES))?)
}

fn rewrite(folder: &Path, index: usize) -> Result<(), SuiteError> {
    let path = folder.join("rewritten");
    let mut content = fs::read(&path)?;
    let inserted = random_bytes(61 + index as u64, REWRITE_INSERTED_BYTES);
    content.splice(REWRITE_AT..REWRITE_AT, inserted);
    let mut file = File::create(&path)?;
    for piece in content.chunks(WRITE_BYTES) {
        file.write_all(piece)?;
    }
    Ok(())
}

/// Where the file in the image lies after a number of saves: runs of blocks.
fn guest_runs(saves: usize) -> [(u64, u64); 3] {
    let first = 100 + saves as u64 * GUEST_STEP_BLOCKS;
    [(first, 200), (first + 250, 200), (first + 500, GUEST_FILE_BLOCKS - 400)]
}

/// A program in a virtual machine saves a file under another name and renames it: the file system
/// in the image writes the file to other blocks, and a little into its tables.
fn save_in_image(folder: &Path, index: usize) -> Result<(), SuiteError> {
    let mut random = Random::new(71 + index as u64);
    let image = OpenOptions::new().read(true).write(true).open(folder.join("image"))?;
    let at = |block: u64| block * BLOCK_BYTES as u64;
    let mut content = Vec::new();
    for (first, blocks) in guest_runs(index) {
        let mut run = vec![0; usize::try_from(blocks)? * BLOCK_BYTES];
        image.read_exact_at(&mut run, at(first))?;
        content.extend(run);
    }
    for _ in 0..GUEST_NEW_BLOCKS {
        let block = usize::try_from(random.below(GUEST_FILE_BLOCKS))?;
        random.fill(&mut content[block * BLOCK_BYTES..][..BLOCK_BYTES]);
    }
    let mut rest = content.as_slice();
    for (first, blocks) in guest_runs(index + 1) {
        let (run, behind) = rest.split_at(usize::try_from(blocks)? * BLOCK_BYTES);
        for (piece, offset) in run.chunks(WRITE_BYTES).zip((at(first)..).step_by(WRITE_BYTES)) {
            image.write_all_at(piece, offset)?;
        }
        rest = behind;
    }
    for table in GUEST_TABLES {
        let mut block = vec![0; BLOCK_BYTES];
        image.read_exact_at(&mut block, at(table))?;
        let changed = usize::try_from(random.below((BLOCK_BYTES - GUEST_TABLE_CHANGE_BYTES) as u64))?;
        random.fill(&mut block[changed..][..GUEST_TABLE_CHANGE_BYTES]);
        image.write_all_at(&block, at(table))?;
    }
    Ok(())
}
