//! Entry points of the fuzz targets (`fuzz/`): the private parsers of the kernel's answers and of
//! the store's files. Compiled for tests, which call them with the seeds, and with the feature
//! `fuzzing`.

use crate::btrfs::items::{CsumItem, Extent, FS_INFO_FLAGS_AT, FS_INFO_LEN, FS_INFO_WANTED, FsInfo, Items};
use crate::{store, written};

/// An answer of the tree search with items of both kinds, or the kernel's description of the file
/// system: the first byte selects which.
pub fn btrfs(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    if which % 2 == 1 {
        let mut answer = [0; FS_INFO_LEN];
        let len = bytes.len().min(FS_INFO_LEN);
        answer[..len].copy_from_slice(&bytes[..len]);
        if let Ok(Some(info)) = FsInfo::parse(&answer) {
            assert!(info.sector_len.is_power_of_two() && info.node_len.is_power_of_two());
        }
        return;
    }
    let Some((&[count, sum_len], bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let (sector_len, sum_len) = (4096, usize::from(sum_len % 32) + 1);
    let mut taken = 0;
    for item in Items::new(bytes, u32::from(count)) {
        let Ok(item) = item else { break };
        taken += item.body.len();
        assert!(taken <= bytes.len(), "items lie over each other");
        if let Ok(extent) = Extent::parse(item.offset, item.body, sector_len) {
            assert!(extent.len_bytes > 0 && extent.len_bytes.is_multiple_of(u64::from(sector_len)));
            assert!(extent.end() > extent.start);
        }
        if let Ok(sums) = CsumItem::parse(item.offset, item.body, sector_len, sum_len) {
            let sectors = (sums.end - sums.address) / u64::from(sector_len);
            assert_eq!(
                sectors * sum_len as u64,
                sums.sums.len() as u64,
                "not one checksum for each sector"
            );
        }
    }
}

/// Seeds for [`btrfs`].
#[must_use]
pub fn btrfs_seeds() -> Vec<Vec<u8>> {
    let item = |item_type: u32, offset: u64, body: &[u8]| {
        let mut item = vec![0; 8];
        item.extend(257_u64.to_ne_bytes());
        item.extend(offset.to_ne_bytes());
        item.extend(item_type.to_ne_bytes());
        item.extend(u32::try_from(body.len()).unwrap_or_default().to_ne_bytes());
        item.extend(body);
        item
    };
    let extent = |kind: u8, disk: u64| {
        let mut body = vec![0; 21];
        body[8..16].copy_from_slice(&8192_u64.to_le_bytes());
        body[20] = kind;
        for number in [disk, 8192, 0, 8192] {
            body.extend(number.to_le_bytes());
        }
        body
    };
    let mut inline = vec![0; 25];
    inline[8] = 4;
    let extents = [
        vec![0, 3, 3],
        item(108, 0, &inline),
        item(108, 0, &extent(1, 1 << 20)),
        item(108, 8192, &extent(2, 0)),
    ];
    let sums = [vec![0, 1, 3], item(128, 1 << 20, &[1, 2, 3, 4, 5, 6, 7, 8])];
    let mut info = vec![0; FS_INFO_LEN];
    info[32..36].copy_from_slice(&16_384_u32.to_ne_bytes());
    info[36..40].copy_from_slice(&4096_u32.to_ne_bytes());
    info[44..48].copy_from_slice(&[2_u16.to_ne_bytes(), 32_u16.to_ne_bytes()].concat());
    info[FS_INFO_FLAGS_AT..][..8].copy_from_slice(&FS_INFO_WANTED.to_ne_bytes());
    vec![extents.concat(), sums.concat(), [vec![1], info].concat()]
}

/// A row of the store, or of the sums of written data, with a valid checksum: a decoded row is
/// encoded as the same row again.
pub fn row(data: &[u8]) {
    let key = (3, 4);
    let sealed = [data, &store::crc(key, data).to_le_bytes()].concat();
    for bytes in [&sealed[..], data] {
        let entries = store::decode(key, bytes);
        assert!(
            entries.is_empty() || store::encode(key, &entries) == bytes,
            "another row comes back"
        );
    }
    written::read_rows(data);
}

/// Seeds for [`row`].
#[must_use]
pub fn row_seeds() -> Vec<Vec<u8>> {
    let mut seeds = written::row_seeds();
    seeds.extend(store_row_seeds());
    seeds
}

fn store_row_seeds() -> Vec<Vec<u8>> {
    let row = store::encode(
        (3, 4),
        &vec![(0, store::Sum::default()), (9, [7; size_of::<store::Sum>()])],
    );
    vec![Vec::new(), row[..row.len() - 4].to_vec()]
}

#[cfg(test)]
mod tests;
