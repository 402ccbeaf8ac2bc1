//! Files of librsync: deltas and signatures, which anybody may have made.
#![no_main]

use byteback_delta::find::{BlockIndex, FoundExtents, RollingFinder};
use byteback_delta::{
    IntoLibrsync, LibrsyncSignatureWriter, LibrsyncWriter, apply_librsync, librsync_params, read_librsync_delta,
    read_librsync_signature,
};
use byteback_fuzz::contents::compose;

byteback_fuzz::target!(check, seeds);

const NEW_LEN_MAX: u64 = 1 << 18;

fn check(data: &[u8]) {
    let Some((which, stream)) = data.split_first() else {
        return;
    };
    match which % 2 {
        0 => delta(stream),
        _ => signature(stream),
    }
}

fn base() -> Vec<u8> {
    (0..6000_u32).map(|at| (at.wrapping_mul(at) >> 5) as u8).collect()
}

/// Applied, it makes what its extents say.
fn delta(stream: &[u8]) {
    let base = base();
    let mut target = Vec::new();
    let applied = apply_librsync(&base[..], stream, &mut target, NEW_LEN_MAX);
    let read = read_librsync_delta(stream, base.len() as u64, NEW_LEN_MAX, FoundExtents::default());
    assert_eq!(
        applied.is_ok(),
        read.is_ok(),
        "read, but not applied, or the other way round"
    );
    let Ok((found, len)) = read else { return };
    assert_eq!(target.len() as u64, len);
    assert!(compose(&base, &found) == target, "applied, it makes something else");
}

/// It is searched for in a content, whatever it claims.
fn signature(stream: &[u8]) {
    for len in [None, Some(6000)] {
        let Ok(signature) = read_librsync_signature(stream, len, 1 << 12) else {
            continue;
        };
        assert!(signature.blocks() <= stream.len() / 9, "blocks that did not come");
        let index = BlockIndex::new(signature);
        let mut finder = RollingFinder::new(&index, FoundExtents::default());
        let content = &base()[10..];
        let Ok(()) = finder.push(content);
        let Ok((found, _)) = finder.finish();
        let end = found.extents.iter().fold(0, |end, (range, _)| {
            assert_eq!(range.start(), end);
            range.end()
        });
        assert_eq!(end, content.len() as u64);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let base = base();
    let mut writer = LibrsyncSignatureWriter::new(vec![1], librsync_params(6000)).expect("librsync's own");
    writer.push(&base).expect("memory");
    let signature = writer.finish().expect("memory");
    let mut new = base.clone();
    new.splice(1000..1100, *b"new bytes");
    let index = BlockIndex::new(read_librsync_signature(&signature[1..], None, 1 << 12).expect("ours"));
    let mut writer = LibrsyncWriter::new(vec![0], 6000, new.len() as u64).expect("lengths of files");
    let mut finder = RollingFinder::new(&index, IntoLibrsync(&mut writer));
    finder.push(&new).expect("memory");
    finder.finish().expect("memory");
    vec![signature, writer.finish().expect("memory").0]
}
