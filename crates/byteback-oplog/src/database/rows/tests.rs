use proptest::prelude::*;

use super::*;
use crate::packed::{decode, encode};

/// Rows in the order of their keys, each key once.
fn ordered<R: Row>(mut rows: Vec<R>) -> Vec<R> {
    rows.sort_by(|here, there| here.cmp_key(&there.key()));
    rows.dedup_by(|here, there| here.cmp_key(&there.key()) == Ordering::Equal);
    rows
}

fn assert_comes_back<R: Row + std::fmt::Debug + PartialEq>(rows: Vec<R>) {
    let rows = ordered(rows);
    let pack = encode(&rows);
    for cut in 0..pack.len() {
        assert!(decode::<R>(&pack[..cut]).is_err(), "cut to {cut} bytes");
    }
    assert_eq!(decode::<R>(&pack), Ok(rows));
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..9_u64, any::<u64>()]
}

fn time() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), 0..9_i64, any::<i64>()]
}

fn key() -> impl Strategy<Value = DiskKey> {
    (number(), number(), time()).prop_map(|(device, inode, birth_ns)| DiskKey {
        device,
        inode,
        birth_ns,
    })
}

fn fence() -> impl Strategy<Value = Fence> {
    let owner = prop_oneof![0..3_u32, any::<u32>()];
    (number(), time(), time(), owner.clone(), owner.clone(), owner).prop_map(
        |(size_bytes, mtime_ns, ctime_ns, mode, uid, gid)| Fence {
            size_bytes,
            mtime_ns,
            ctime_ns,
            mode,
            uid,
            gid,
        },
    )
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof!["[ab]{0,4}".prop_map(String::into_bytes), any::<Vec<u8>>()]
}

proptest! {
    #[test]
    fn records_come_back(rows in prop::collection::vec((number(), 0_u8..7, key(), number(), prop::option::of(fence())), 0..12)) {
        assert_comes_back(rows.into_iter().map(|(node, kind, key, born, fence)| NodeRow {
            node: NodeId(node),
            record: NodeRecord { kind: kind_from_code(kind).unwrap(), key, born: Epoch(born), fence },
        }).collect());
    }

    #[test]
    fn keys_come_back(rows in prop::collection::vec((key(), number()), 0..12)) {
        assert_comes_back(rows.into_iter().map(|(key, node)| KeyRow { key, node: NodeId(node) }).collect());
    }

    #[test]
    fn names_come_back(rows in prop::collection::vec((number(), name(), number()), 0..12)) {
        assert_comes_back(rows.into_iter().map(|(parent, name, child)| NameRow {
            parent: NodeId(parent), name, child: NodeId(child),
        }).collect());
    }

    #[test]
    fn places_come_back(rows in prop::collection::vec((number(), number(), name()), 0..12)) {
        assert_comes_back(rows.into_iter().map(|(node, parent, name)| PlaceRow {
            node: NodeId(node), parent: NodeId(parent), name,
        }).collect());
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(bytes in any::<Vec<u8>>()) {
        let pack = crate::codec::seal([&[1], &bytes[..]].concat());
        let _ = decode::<NodeRow>(&pack);
        let _ = decode::<KeyRow>(&pack);
        let _ = decode::<NameRow>(&pack);
        let _ = decode::<PlaceRow>(&pack);
    }
}
