//! Entry points of the fuzz targets (`fuzz/`): the private parsers of what kernels, programs and
//! servers answer. Compiled for tests, which call them with the seeds, and with the feature
//! `fuzzing`.

use crate::ceph::{Place as OsdPlace, answers as osd};
use crate::deduplicated::{CHUNK_LEN_MAX, Table as Chunks, casync, recipe};
use crate::dmverity::answers::{EXTENT_LEN, Extent as Mapped, Place, STATUS_HEADER_LEN, Table, target};
use crate::fsverity::descriptor::{DESCRIPTOR_LEN, Descriptor};
use crate::hdfs::{transfer, web};
use crate::http::Answer;
use crate::merkle::{Leaves, ReadNodes, Tree, compare};
use crate::moosefs::answers as moose;
use crate::s3::answers::{Head, Parts, fit};
use crate::seaweedfs::answers::{Entry, What, needle_crc};
use crate::zfs::answers::{Parser, dataset};
use crate::zfs::stretches as zfs_stretches;
use byteback_checksums::source::{Kind, Layout, Result, Run, SourceError, Stretches, Tail};

/// An answer of S3: one header a line, and after an empty line a list of parts. The object is made
/// up to fit the answer.
pub fn s3(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (headers, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let headers = headers.lines().filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_owned(), value.to_owned()))
    });
    let answer = Answer {
        status: 200,
        headers: headers.collect(),
        body: Vec::new(),
    };
    let Ok(head) = Head::parse(&answer) else { return };
    let kind = head.sum.as_ref().map_or(Kind::Crc32c, |sum| sum.0);
    let Ok(page) = Parts::parse(body.as_bytes(), kind) else {
        return;
    };
    if let Ok(fitting) = fit(&head, page.count, &page.parts) {
        assert!(fitting.sums.iter().all(|sum| sum.len() == kind.len_bytes()));
        assert!(fitting.part_len_bytes > 0 && head.len_bytes > 0);
        assert_eq!(
            head.len_bytes.div_ceil(fitting.part_len_bytes),
            fitting.sums.len() as u64,
            "not one checksum for each part"
        );
    }
}

/// Seeds for [`s3`].
#[must_use]
pub fn s3_seeds() -> Vec<Vec<u8>> {
    // In the form of MinIO's answers.
    let head = "content-length: 5342880\netag: \"ef5d0eb4e73d6428f4fb4fe93a3bd54e-2\"\n\
                x-amz-checksum-sha256: 8aGcltXgVD+qDxVaEbdNYhJk98nNn9XYJv0rA3BUA78=-2\nx-amz-checksum-type: COMPOSITE\n\n";
    let parts = "<getObjectAttributesResponse><ETag>ef5d0eb4e73d6428f4fb4fe93a3bd54e-2</ETag><ObjectParts>\
                 <IsTruncated>false</IsTruncated><PartsCount>2</PartsCount>\
                 <Part><PartNumber>1</PartNumber><Size>5242880</Size>\
                 <ChecksumSHA256>Y+O5UFb6aB1p3zBHjuBr+aZTGoxQSwareARORFXdur4=</ChecksumSHA256></Part>\
                 <Part><PartNumber>2</PartNumber><Size>100000</Size>\
                 <ChecksumSHA256>1iEl7JZleVbh0TbFKHlev5uRjCS65IE3D7zXuuKHuJc=</ChecksumSHA256></Part>\
                 </ObjectParts><ObjectSize>5342880</ObjectSize></getObjectAttributesResponse>";
    vec![
        format!("{head}{parts}").into_bytes(),
        b"content-length: 9\netag: \"a\"\nx-amz-checksum-crc32c: 4waSgw==\n\n".to_vec(),
    ]
}

/// Nodes of a hash tree, in memory.
struct Nodes<'a>(&'a [u8]);

impl ReadNodes for Nodes<'_> {
    fn read_nodes(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..));
        let from = from.and_then(|from| from.get(..buffer.len()));
        buffer.copy_from_slice(from.ok_or(SourceError::Malformed("cut short"))?);
        Ok(())
    }
}

/// The descriptor of a sealed file and the nodes of its tree, the highest of which follows from its
/// root.
pub fn fsverity(data: &[u8]) {
    let Some((bytes, nodes)) = data.split_first_chunk::<DESCRIPTOR_LEN>() else {
        return;
    };
    let Ok(descriptor) = Descriptor::parse(bytes) else {
        return;
    };
    let Some(shape) = descriptor.shape() else { return };
    let layout = shape.layout().clone();
    let node = nodes.get(..layout.block_len as usize).unwrap_or_default();
    let mut root = Vec::new();
    let of_nodes = Layout {
        tail: Tail::AsIs,
        ..layout.clone()
    };
    of_nodes.append_sum(node, &mut root);
    let tree = |nodes| Tree::new(Nodes(nodes), shape.clone(), root.clone());
    let mut leaves = Leaves::new(tree(nodes));
    let mut end = 0;
    while let Ok(Some((range, sums))) = leaves.next() {
        assert_eq!(range.start(), end, "not the next leaves");
        let blocks = range.len_bytes().div_ceil(u64::from(layout.block_len));
        assert_eq!(blocks * layout.kind.len_bytes() as u64, sums.len() as u64);
        end = range.end();
    }
    assert!(end <= descriptor.content_len, "leaves behind the end");
    if let Ok(differing) = compare(&mut tree(nodes), &mut tree(nodes)) {
        assert!(differing.is_empty(), "it differs from itself");
    }
}

/// Seeds for [`fsverity`].
#[must_use]
pub fn fsverity_seeds() -> Vec<Vec<u8>> {
    let layout = |block_len| Layout {
        kind: Kind::Sha256,
        salt: Vec::new(),
        block_len,
        tail: Tail::ZeroPadded,
    };
    // Two levels of 1 KiB nodes: 33 blocks of zeros.
    let mut leaf = Vec::new();
    layout(1024).append_sum(&[], &mut leaf);
    let node = |leaves: usize| {
        let mut node = leaf.repeat(leaves);
        node.resize(1024, 0);
        node
    };
    let lowest = [node(32), node(1)];
    let mut highest = Vec::new();
    for node in &lowest {
        layout(1024).append_sum(node, &mut highest);
    }
    highest.resize(1024, 0);
    let mut descriptor = vec![0; DESCRIPTOR_LEN];
    descriptor[..4].copy_from_slice(&[1, 1, 10, 0]);
    descriptor[8..16].copy_from_slice(&(33_u64 << 10).to_le_bytes());
    let mut short = descriptor.clone();
    short[1..4].copy_from_slice(&[2, 12, 8]);
    vec![[descriptor, highest, lowest.concat()].concat(), short]
}

/// The device mapper's status of a device, or a list of a file's extents: the first byte selects
/// which.
pub fn dmverity(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    if which % 2 == 1 {
        let count = bytes.len() / EXTENT_LEN + usize::from(which / 128);
        if let Ok(extents) = Mapped::parse_all(bytes, count) {
            assert_eq!(extents.len(), bytes.len() / EXTENT_LEN);
            for extent in extents {
                assert!(extent.len_bytes > 0 && extent.end() > extent.start);
                if let Place::Data { address } = extent.place {
                    assert!(address.checked_add(extent.len_bytes).is_some());
                }
            }
        }
        return;
    }
    let Ok(Some((text, len_bytes))) = target(bytes) else {
        return;
    };
    if let Ok(table) = Table::parse(text, len_bytes)
        && let Some(shape) = table.shape()
    {
        let layout = shape.layout();
        assert!(table.block_len.is_power_of_two() && layout.block_len == table.block_len);
        assert_eq!(table.root.len(), layout.kind.len_bytes());
    }
}

/// Seeds for [`dmverity`].
#[must_use]
pub fn dmverity_seeds() -> Vec<Vec<u8>> {
    let mut status = vec![0; 1 + STATUS_HEADER_LEN + 40];
    status[17..21].copy_from_slice(&(STATUS_HEADER_LEN as u32).to_ne_bytes());
    status[21..25].copy_from_slice(&1_u32.to_ne_bytes());
    status[1 + STATUS_HEADER_LEN + 8..][..8].copy_from_slice(&800_u64.to_ne_bytes());
    status[1 + STATUS_HEADER_LEN + 24..][..6].copy_from_slice(b"verity");
    let root = "5a".repeat(32);
    let text = format!("1 7:1 7:2 4096 4096 100 1 sha256 {root} aabb 3 ignore_zero_blocks fec_roots 2\0");
    status.extend(text.as_bytes());
    let mut extents = vec![1];
    for (number, flags) in [(0_u64, 0_u32), (1, 0x800), (2, 0x201)] {
        for field in [number << 13, number << 20, 1 << 13, 0, 0] {
            extents.extend(field.to_ne_bytes());
        }
        extents.extend(flags.to_ne_bytes());
        extents.extend([0; 12]);
    }
    vec![status, extents]
}

/// An index of casync, or a recipe with a valid digest: the first byte selects which.
pub fn chunk_lists(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    let table = match which % 2 {
        0 => casync::parse(bytes).ok(),
        _ => recipe::parse(&recipe::sealed(bytes)).ok().map(|recipe| {
            let folder = recipe.chunks.as_ref().and_then(|folder| folder.to_str());
            // A parsed recipe can be written, and parses to the same again.
            if folder.is_some() == recipe.chunks.is_some() {
                let again = recipe::parse(&recipe::written(&recipe.table, folder));
                assert_eq!(again.as_ref(), Ok(&recipe), "another recipe comes back");
            }
            recipe.table
        }),
    };
    let Some(table) = table else { return };
    assert_eq!(table.ends.len() * table.kind.len_bytes(), table.sums.len());
    assert!(
        table
            .ends
            .is_sorted_by(|end, next| end < next && next - end <= CHUNK_LEN_MAX)
    );
    assert!(table.ends.first().is_none_or(|end| (1..=CHUNK_LEN_MAX).contains(end)));
}

/// Seeds for [`chunk_lists`].
#[must_use]
pub fn chunk_list_seeds() -> Vec<Vec<u8>> {
    let table = |kind: Kind, lens: &[u64]| {
        let mut table = Chunks::new(kind);
        for len in lens {
            assert!(
                table
                    .push(table.len_bytes() + len, &vec![*len as u8; kind.len_bytes()])
                    .is_ok()
            );
        }
        table
    };
    let index = |table| [vec![0], casync::written(&table, 1 << 18)].concat();
    let recipe = |table, folder| {
        let text = recipe::written(&table, folder);
        let end = text.len() - (b"end \n".len() + 64);
        [&[1], text.get(..end).unwrap_or_default()].concat()
    };
    vec![
        index(table(Kind::Sha256, &[])),
        index(table(Kind::Sha512Of256, &[70_000, 16_384, 9])),
        recipe(table(Kind::Sha256, &[]), None),
        recipe(table(Kind::Crc32c, &[1, 2, 70_000]), Some("chunks")),
        recipe(table(Kind::Sha512, &[1]), Some("../default.castr")),
    ]
}

/// An answer of a SeaweedFS filer: an entry, or the ETag of a needle.
pub fn seaweedfs(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = needle_crc(text);
    }
    let Ok(entry) = Entry::parse(data) else { return };
    let Ok(shape) = entry.shape() else { return };
    assert_eq!(entry.digest(), entry.clone().digest());
    let mut end = 0;
    for (range, what) in &shape.stretches {
        assert_eq!(range.start(), end, "a gap");
        end = range.end();
        if let What::Needle(id) = what {
            assert!(range.len_bytes() <= u64::from(shape.block_len));
            assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b','));
            let is_last = end == shape.len_bytes;
            assert!(!shape.is_even || is_last || range.len_bytes() == u64::from(shape.block_len));
        }
        assert!(!shape.is_even || range.start().is_multiple_of(u64::from(shape.block_len)));
    }
    assert_eq!(end, shape.len_bytes, "not all of the file");
}

/// Seeds for [`seaweedfs`].
#[must_use]
pub fn seaweedfs_seeds() -> Vec<Vec<u8>> {
    let chunk = "{\"file_id\":\"4,01cf0f49de\",\"size\":4194304,\"modified_ts_ns\":1795441930084294459,\"e_tag\":\"r3PoeERRgtE3YARl/TWDHQ==\"}";
    let next = "{\"file_id\":\"1,02571b3260\",\"offset\":4194304,\"size\":5,\"is_compressed\":true}";
    let over = "{\"file_id\":\"1,0399663bda\",\"offset\":9,\"size\":5,\"cipher_key\":\"AAAA\"}";
    let entry = |chunks: &[&str]| {
        let text = format!(
            "{{\"FullPath\":\"/a/f\",\"Mtime\":\"2026-11-23T13:52:10Z\",\"Mode\":432,\"Md5\":\"R8aWkanb/ke9xjL49eum5g==\",\"FileSize\":4194310,\"chunks\":[{}],\"Content\":null}}",
            chunks.join(",")
        );
        text.into_bytes()
    };
    vec![
        entry(&[]),
        entry(&[chunk, next]),
        entry(&[chunk, next, over]),
        b"{\"FullPath\":\"/a\",\"FileSize\":3,\"Content\":\"QUJD\"}".to_vec(),
        b"\"d01e2533\"".to_vec(),
    ]
}

/// The output of `zdb` about an object, or the kernel's list of mounts: the first byte selects
/// which.
pub fn zfs(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    if which % 2 == 1 {
        if let Ok(Some(name)) = dataset(&String::from_utf8_lossy(bytes), 43) {
            assert!(name.starts_with(|first: char| first.is_ascii_alphanumeric()));
        }
        return;
    }
    let mut parser = Parser::new(5);
    if bytes
        .split(|byte| *byte == b'\n')
        .any(|line| parser.line(line).is_err())
    {
        return;
    }
    let Ok(object) = parser.end() else { return };
    assert_whole(&zfs_stretches(&object), object.size);
}

/// Checks that stretches cover a whole file, with a checksum for each block.
fn assert_whole(stretches: &Stretches, len_bytes: u64) {
    let (mut end, mut sums_len) = (0, 0);
    for number in 0..stretches.runs.len() {
        let Some(run) = stretches.run(number) else { continue };
        assert_eq!(run.range().start(), end, "a gap");
        assert!(end.is_multiple_of(u64::from(stretches.layout.block_len)));
        end = run.range().end();
        if let Run::Sums { range, sums } = run {
            let count = stretches.layout.block_count(range) as usize;
            assert_eq!(sums.len(), count * stretches.layout.kind.len_bytes());
            sums_len += sums.len();
        }
    }
    assert_eq!(
        (end, sums_len),
        (len_bytes, stretches.sums.len()),
        "not all of the file"
    );
}

/// Seeds for [`zfs`].
#[must_use]
pub fn zfs_seeds() -> Vec<Vec<u8>> {
    let mounts = "\x0143 27 0:40 / /tp rw - fuse.zfs tp/a\\040b rw,user_id=0,group_id=0\n";
    let [old, new] = [
        &include_bytes!("zfs/recorded/zfs-fuse-0.7.0.txt")[..],
        include_bytes!("zfs/recorded/openzfs-2.3.2.txt"),
    ]
    .map(|text| [&[0], text].concat());
    vec![mounts.as_bytes().to_vec(), old, new]
}

/// The output of `mfsfileinfo` about a file, or the beginning of a chunk's file: the former with an
/// even first byte, the latter with an odd one.
pub fn moosefs(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    if which % 2 == 1 {
        // The chunk that was found is within the data and has the digest.
        let (digest, header) = bytes.split_at(bytes.len().min(16));
        let held = moose::Held {
            blocks: u64::from(*which) * 4,
            digest: digest.try_into().unwrap_or_default(),
        };
        let (id, version) = (header.get(8..16), header.get(16..20));
        let chunk = moose::Chunk {
            id: id.and_then(|id| id.try_into().ok()).map_or(1, u64::from_be_bytes),
            version: version.and_then(|id| id.try_into().ok()).map_or(1, u32::from_be_bytes),
            held: Some(held),
        };
        if let Ok(Some(table)) = moose::table(header, &chunk, &held) {
            assert_eq!(table.len() as u64, held.blocks * 4);
        }
        return;
    }
    let mut parser = moose::Parser::default();
    if bytes
        .split(|byte| *byte == b'\n')
        .any(|line| parser.line(line).is_err())
    {
        return;
    }
    if let Ok(chunks) = parser.end() {
        let mut held = chunks.chunks.iter().flatten().filter_map(|chunk| chunk.held);
        assert!(held.all(|held| held.blocks <= moose::CHUNK_BLOCKS));
    }
}

/// Seeds for [`moosefs`].
#[must_use]
pub fn moosefs_seeds() -> Vec<Vec<u8>> {
    let copy =
        "\t\tcopy 1: 10.99.0.1:9422 (status:VALID ; blocks: 46 ; checksum digest: 87C3A4E06E88319665331DA29A35DC10)";
    let chunk = "\tchunk 0: 0000000000000001_00000002 / (id:1 ver:2)";
    let list =
        format!("\0/proc/1/fd/3:\n{chunk}\n{copy}\n\t\tcopy 2: 10.99.0.2:9422 (status:INVALID)\n\tchunk 1: empty");
    let none = "\0/proc/1/fd/3:\n\tno chunks - empty file";
    // Four blocks of zeros, and MD5 of their CRCs.
    let mut header = vec![1];
    header.extend(0xc0ef_afda_738f_9a41_e282_1a14_fa99_d7f1_u128.to_be_bytes());
    header.extend(b"MFSC 1.0");
    header.extend(1_u64.to_be_bytes());
    header.extend(2_u32.to_be_bytes());
    header.resize(17 + 4096, 0);
    (0..4).for_each(|_| header.extend(0xd797_8eeb_u32.to_be_bytes()));
    vec![list.into_bytes(), none.as_bytes().to_vec(), header]
}

/// The output of `ceph-objectstore-tool` about an object, or a line of its list: the former with an
/// even first byte, the latter with an odd one.
pub fn ceph(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    let Ok(place) = OsdPlace::new("ceph:///osd?pg=1.0&object=fuzzed") else {
        return;
    };
    if which % 2 == 1 {
        // A line that is passed on to the tool is not an option.
        assert!(!osd::listed(bytes, &place) || bytes.trim_ascii_start().starts_with(b"["));
        return;
    }
    let Ok(object) = osd::parse(bytes, &place) else {
        return;
    };
    let stretches = osd::stretches(&object);
    assert_whole(&stretches, object.len_bytes);
    // No more than the output has: each checksum takes a number and a separator.
    assert!(stretches.sums.len() / 4 <= bytes.len() / 2);
}

/// Seeds for [`ceph`].
#[must_use]
pub fn ceph_seeds() -> Vec<Vec<u8>> {
    let line = "\x01[\"1.0\",{\"oid\":\"fuzzed\",\"key\":\"\",\"snapid\":-2,\"hash\":1,\"max\":0,\"pool\":1,\"namespace\":\"\",\"max\":0}]";
    let recorded = |text: &str, name: &str| text.replace(name, "fuzzed").replace("    ", "").into_bytes();
    let [clone, hinted] = [
        recorded(include_str!("ceph/recorded/ceph-16.2.15-clone.json"), "recorded"),
        recorded(include_str!("ceph/recorded/ceph-16.2.15-hinted.json"), "hint65536"),
    ]
    .map(|text| [&[0], &text[..]].concat());
    vec![line.as_bytes().to_vec(), clone, hinted]
}

/// An answer of an HDFS DataNode, or of a NameNode about a file, about its blocks, or with an
/// error. The first byte selects which.
pub fn hdfs(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else {
        return;
    };
    match which % 4 {
        0 => {
            let Some((&[len, stripe], bytes)) = bytes.split_first_chunk() else {
                return;
            };
            let (len_bytes, stripe_len) = (u64::from(len) * 300 + 1, 512 << (stripe % 4));
            if let Ok(reported) = transfer::parse(bytes)
                && let Ok((kind, sums, _)) = reported.into_crcs(len_bytes, stripe_len)
            {
                let count = len_bytes.div_ceil(stripe_len);
                assert_eq!(
                    count * kind.len_bytes() as u64,
                    sums.len() as u64,
                    "not one for each stripe"
                );
            }
        }
        1 => {
            if let Ok(status) = web::FileStatus::parse(bytes) {
                assert!(status.page_len() > 0 && status.page_len().checked_add(status.len_bytes).is_some());
            }
        }
        2 => {
            let (status, pages) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
            let Ok(status) = web::FileStatus::parse(status) else {
                return;
            };
            let mut state = web::State::new(status);
            for page in pages.split(|byte| *byte == b'\n').skip(1) {
                let Ok(true) = web::Page::parse(page).and_then(|page| state.push(page)) else {
                    return;
                };
            }
            let mut end = 0;
            for block in &state.blocks {
                assert!(block.start == end && block.end() > end, "a gap");
                assert!(block.replicas.iter().all(|address| address.port() > 0));
                end = block.end();
                let of_it = state.blocks_of(block.start, end);
                assert!(of_it.len() == 1 && of_it.iter().all(|found| found.is_same(block)));
            }
            assert!(end == state.end() && end <= state.len_bytes(), "blocks behind the end");
        }
        _ => {
            let name = web::exception(bytes).unwrap_or_default();
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        }
    }
}

/// Seeds for [`hdfs`].
#[must_use]
pub fn hdfs_seeds() -> Vec<Vec<u8>> {
    // In the form of Hadoop 3.4.1's answers; for a block of 8101 bytes, in stripes of 4096.
    let mut reported = vec![0, 27, 3, 0x08, 0x00, 0x1a, 0x17];
    reported.extend([0x08, 0x80, 0x04, 0x10, 0x10, 0x1a, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    reported.extend([0x20, 0x02, 0x2a, 0x05, 0x08, 0x02, 0x10, 0x80, 0x20]);
    reported[6] = (reported.len() - 7) as u8;
    let status = "{\"FileStatus\":{\"accessTime\":1,\"blockSize\":4096,\"fileId\":16388,\"length\":5000,\"modificationTime\":3,\"type\":\"FILE\"}}";
    let block = |id: u64, start: u64, len: u64| {
        format!(
            "{{\"block\":{{\"blockId\":{id},\"blockPoolId\":\"BP-1\",\"generationStamp\":1005,\"numBytes\":{len}}},\"locations\":[{{\"ipAddr\":\"127.0.0.1\",\"xferPort\":46583}}],\"startOffset\":{start}}}"
        )
    };
    let page = |blocks: &str| {
        format!(
            "{{\"LocatedBlocks\":{{\"fileLength\":5000,\"isLastBlockComplete\":true,\"isUnderConstruction\":false,\"locatedBlocks\":[{blocks}]}}}}"
        )
    };
    let (first, second) = (block(1_073_741_829, 0, 4096), block(1_073_741_830, 4096, 904));
    let both = page(&format!("{first},{second}"));
    vec![
        reported,
        format!("\x01{status}").into_bytes(),
        format!("\x02{status}\n{both}").into_bytes(),
        format!("\x02{status}\n{}\n{}", page(&first), page(&second)).into_bytes(),
        b"\x03{\"RemoteException\":{\"exception\":\"FileNotFoundException\",\"message\":\"m\"}}".to_vec(),
    ]
}

#[cfg(test)]
mod tests;
