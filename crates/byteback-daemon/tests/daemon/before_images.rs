//! The bytes that programs overwrote since a consumer's mark, as the next backup hears them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use byteback_control::{CutId, CutRequest, Outcome, Piece, SYNC_CONSUMER, TreeService};
use byteback_model::{ByteString, NodeId};
use byteback_mount::CacheMode;

use crate::fixture::Fixture;

/// The length that the file had, and what is known of it, by offset.
type Image = Option<(u64, Vec<(u64, String)>)>;

fn image(tree: &dyn TreeService, cut: CutId, node: NodeId) -> Image {
    let mut pieces = Vec::new();
    let len_bytes = tree.before_image(cut, node, &mut |piece| {
        if let Piece::Data { offset, bytes } = piece {
            pieces.push((offset, String::from_utf8_lossy(bytes).into_owned()));
        }
        Ok(())
    });
    len_bytes.unwrap().map(|len_bytes| (len_bytes, pieces))
}

fn save(tree: &dyn TreeService, cut: CutId) {
    let saved = Outcome::Saved {
        note: Vec::new(),
        unsaved: Vec::new(),
    };
    tree.finish(cut, &saved).unwrap();
}

fn known(pieces: &[(u64, &str)]) -> Image {
    let pieces = pieces.iter().map(|(at, text)| (*at, (*text).to_owned()));
    Some((20, pieces.collect()))
}

#[test]
fn backup_hears_what_was_overwritten_since_its_mark() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    std::fs::write(fixture.tree().join("file"), "abcdefghijklmnopqrst").unwrap();
    fixture.mount();
    let tree = fixture.client();
    let cut_of = |consumer: &str| tree.cut(&CutRequest::of(consumer)).unwrap().cut;
    let file = File::options().write(true).open(fixture.tree().join("file")).unwrap();
    let write = |offset, text: &str| file.write_all_at(text.as_bytes(), offset).unwrap();

    let first = cut_of("backup");
    let node = tree.find(first, &ByteString::from("file")).unwrap().unwrap();
    // There is no mark so far.
    assert_eq!(image(&tree, first, node), None);
    // After the cut, and before the mark is there.
    write(2, "CD");
    save(&tree, first);
    write(10, "KL");
    write(3, "x");
    let second = cut_of("backup");
    write(0, "later");
    assert_eq!(image(&tree, second, node), known(&[(2, "cd"), (10, "kl")]));
    // Nothing is saved: the mark stays.
    tree.finish(second, &Outcome::Abandoned).unwrap();
    let third = cut_of("backup");
    assert_eq!(
        image(&tree, third, node),
        known(&[(0, "ab"), (2, "cd"), (4, "e"), (10, "kl")])
    );
    save(&tree, third);
    let fourth = cut_of("backup");
    assert_eq!(image(&tree, fourth, node), None);
    save(&tree, fourth);

    // The mark of sync is not what its server has.
    let of_sync = cut_of(SYNC_CONSUMER);
    save(&tree, of_sync);
    write(10, "!");
    let of_sync = cut_of(SYNC_CONSUMER);
    assert_eq!(image(&tree, of_sync, node), None);
    save(&tree, of_sync);
    drop(file);
    drop(tree);
    fixture.umount();

    // The next mount knows of nothing that happened before it.
    fixture.mount();
    let tree = fixture.client();
    let path = fixture.tree().join("file");
    let fifth = tree.cut(&CutRequest::of("backup")).unwrap().cut;
    assert_eq!(image(&tree, fifth, node), None);
    save(&tree, fifth);
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(b"q", 19)
        .unwrap();
    let sixth = tree.cut(&CutRequest::of("backup")).unwrap().cut;
    assert_eq!(image(&tree, sixth, node), known(&[(19, "t")]));
    save(&tree, sixth);
    drop(tree);
    fixture.umount();
}
