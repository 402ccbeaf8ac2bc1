use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn the_persisted_form_gives_the_record_back(
        kind in 0_u8..7, device: u64, inode: u64, birth_ns: i64, born: u64,
        fence in prop::option::of((any::<u64>(), any::<i64>(), any::<i64>(), any::<u32>(), any::<u32>(), any::<u32>())),
    ) {
        let record = NodeRecord {
            kind: kind_from_code(kind).unwrap(),
            key: DiskKey { device, inode, birth_ns },
            born: Epoch(born),
            fence: fence.map(|(size_bytes, mtime_ns, ctime_ns, mode, uid, gid)| Fence { size_bytes, mtime_ns, ctime_ns, mode, uid, gid }),
        };
        let bytes = record.encode();
        prop_assert_eq!(NodeRecord::decode(&bytes), Ok(record));
        for cut in 0..bytes.len() {
            prop_assert!(NodeRecord::decode(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(bytes in any::<Vec<u8>>()) {
        let _ = NodeRecord::decode(&bytes);
        let mut framed = vec![VERSION];
        framed.extend_from_slice(&bytes);
        let _ = NodeRecord::decode(&seal(framed));
    }
}
