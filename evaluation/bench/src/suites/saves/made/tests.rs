use super::*;
use crate::suites::saves::work::Case;

fn done(case: &Case, saves: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let work = (case.load)().unwrap();
    work.prepare(folder.path()).unwrap();
    let mut open = work.open(folder.path()).unwrap();
    for index in 0..saves {
        open.save(index).unwrap();
    }
    drop(open);
    folder
}

fn case(name: &str) -> Case {
    all(true).into_iter().find(|case| case.name == name).unwrap()
}

fn file(folder: &tempfile::TempDir, name: &str) -> Vec<u8> {
    fs::read(folder.path().join(name)).unwrap()
}

#[test]
fn document_keeps_all_but_its_text_and_its_end() {
    let [before, after] = [0, 2].map(|saves| file(&done(&case("document"), saves), "document"));
    assert_eq!(after.len(), before.len() + 2 * TYPED_BYTES);
    let kept = |bytes: &[u8]| bytes[bytes.len() - TAIL_BYTES - PICTURES_BYTES..bytes.len() - NEW_TAIL_BYTES].to_vec();
    assert_eq!(kept(&before), kept(&after));
    assert_ne!(before[..TEXT_BYTES], after[..TEXT_BYTES]);
    assert_ne!(
        before[before.len() - NEW_TAIL_BYTES..],
        after[after.len() - NEW_TAIL_BYTES..]
    );
}

#[test]
fn insertion_moves_what_lies_behind_it() {
    let [before, after] = [0, 1].map(|saves| file(&done(&case("insertion"), saves), "large"));
    let at = before.len() / 5 * 2;
    assert_eq!(before[..at], after[..at]);
    assert_eq!(before[at..], after[at + INSERTED_BYTES..]);
}

#[test]
fn scattered_pieces_change_as_many_bytes_as_announced() {
    let [before, after] = [0, 1].map(|saves| file(&done(&case("scattered"), saves), "large"));
    let changed = before.iter().zip(&after).filter(|(one, other)| one != other).count();
    assert_eq!(before.len(), after.len());
    // One byte of 256 is random enough to be what it was.
    assert!((980_000..1_000_000).contains(&changed), "{changed}");
}

#[test]
fn removed_mail_leaves_all_others_in_order() {
    let (all, begins) = mailbox(MAILBOX_BYTES);
    let index = begins.len() / 3;
    let expected = [&all[..begins[index]], &all[begins[index + 1]..]].concat();
    assert!(file(&done(&case("mail removed"), 1), "inbox") == expected.as_bytes());
    assert!(begins.iter().all(|begin| all[*begin..].starts_with("From ")));
}

#[test]
fn rewrite_inserts_bytes_near_the_beginning() {
    let [before, after] = [0, 1].map(|saves| file(&done(&case("rewrite in place"), saves), "rewritten"));
    assert_eq!(before[..REWRITE_AT], after[..REWRITE_AT]);
    assert!(before[REWRITE_AT..] == after[REWRITE_AT + REWRITE_INSERTED_BYTES..]);
}

#[test]
fn file_saved_in_an_image_moves_to_other_blocks() {
    let [before, after] = [0, 2].map(|saves| file(&done(&case("file saved in an image"), saves), "image"));
    assert_eq!(before.len(), after.len());
    let content = |image: &[u8], saves| -> Vec<u8> {
        let runs = guest_runs(saves);
        let bytes = runs.iter().map(|(first, blocks)| {
            let first = *first as usize * BLOCK_BYTES;
            image[first..first + *blocks as usize * BLOCK_BYTES].to_vec()
        });
        bytes.flatten().collect()
    };
    let (before, after) = (content(&before, 0), content(&after, 2));
    let blocks = || before.chunks(BLOCK_BYTES).zip(after.chunks(BLOCK_BYTES));
    let new = blocks().filter(|(before, after)| before != after).count();
    assert_eq!(before.len(), GUEST_FILE_BLOCKS as usize * BLOCK_BYTES);
    assert!((1..=2 * GUEST_NEW_BLOCKS as usize).contains(&new), "{new}");
}
