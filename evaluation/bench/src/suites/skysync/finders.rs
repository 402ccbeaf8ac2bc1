//! The finders by themselves: both ends in this process, the CPU time of each step measured
//! separately, all traffic counted.
//!
//! CPU time is that of this thread. Files are in the page cache and are read by the steps that need
//! them, 256 KiB at a time. Every finder's delta is applied once and compared. Nothing is stored: a
//! server's work with a delta is another measurement ([`super::service`]).
//!
//! The server's checksums for SkySync are those that it keeps: here lists in memory, prepared
//! before.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use byteback_delta::chunks::{
    ChunkList, ChunkLister, ChunkParams, MatchAnswer, MatchParams, list_chunks, list_chunks_with_crcs, with_slack,
};
use byteback_delta::crc::{BlockLayout, CrcKind, CrcList, LastBlock, RangeCrcs};
use byteback_delta::find::{
    Aligned, BlockIndex, ChunkFinder, FindStats, FixedFinder, IntoDelta, MatchedContent, ReverseFinder, RollingFinder,
    StrongOf, Verdict, find_gathered, match_chunks, prove_matches,
};
use byteback_delta::groups::{EqualGroups, GroupAnswer, ListedGroups};
use byteback_delta::leaves::{GROUP_LEAVES, LEAF_LEN_BYTES, Leaf, LeafBlocks, LeafDigest, LeafKind, group_sum};
use byteback_delta::matches::MatchList;
use byteback_delta::signature::{Signature, SignatureParams, SignatureWriter};
use byteback_delta::{Block, ContentDigest, DeltaReader, DeltaWriter, WriteError, WriterOptions, apply_to_new};
use byteback_extents::{ByteRange, ExtentSet};
use rustix::time::{ClockId, clock_gettime};

use super::baseline;
use super::sources::{self, Source, SourceLeaves};
use crate::SuiteError;
use crate::alternate::Measures;

/// The paper's block size (section 4.1).
pub(crate) const BLOCK_LEN: u32 = 8192;
const READ_LEN: usize = 256 * 1024;
const SEED: u64 = 0x5eed;

/// The parts that steps are charged to, in milliseconds.
pub(crate) const CLIENT_CHECKSUMS: &str = "client checksums";
pub(crate) const CLIENT_SEARCH: &str = "client search";
pub(crate) const CLIENT_PROOF: &str = "client proof";
pub(crate) const SERVER_CHECKSUMS: &str = "server checksums";
pub(crate) const SERVER_SEARCH: &str = "server search";
pub(crate) const SERVER_PROOF: &str = "server proof";
/// All of them.
pub(crate) const PARTS: [&str; 6] = [
    CLIENT_CHECKSUMS,
    CLIENT_SEARCH,
    CLIENT_PROOF,
    SERVER_CHECKSUMS,
    SERVER_SEARCH,
    SERVER_PROOF,
];
/// Bytes that travel.
pub(crate) const TO_SERVER: &str = "to server";
pub(crate) const TO_CLIENT: &str = "to client";
/// Bytes of the files that are read.
pub(crate) const CLIENT_READ: &str = "client read";
pub(crate) const SERVER_READ: &str = "server read";

/// The checksums that the server keeps of the old content.
pub(crate) struct KeptSums {
    kind: LeafKind,
    leaves: Vec<Leaf>,
    crcs: Vec<u32>,
}

/// Both ends of a transfer.
pub(crate) struct Ends {
    /// The content that the server has.
    pub(crate) old: PathBuf,
    /// The content that the client has.
    pub(crate) new: PathBuf,
}

/// CPU time of this thread, milliseconds.
pub(crate) fn cpu_ms() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

/// The account of one transfer's time and bytes.
struct Account(Measures);

impl Account {
    fn new() -> Self {
        let zero = PARTS
            .into_iter()
            .chain([TO_SERVER, TO_CLIENT, CLIENT_READ, SERVER_READ]);
        Self(zero.map(|name| (name, 0.0)).collect())
    }

    fn add(&mut self, name: &'static str, amount: f64) {
        *self.0.entry(name).or_default() += amount;
    }

    // Files are far shorter than 2^52 bytes.
    fn bytes(&mut self, name: &'static str, len_bytes: u64) {
        self.add(name, len_bytes as f64);
    }

    /// Charges the work to a part.
    fn step<T, E: Into<SuiteError>>(
        &mut self,
        part: &'static str,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, SuiteError> {
        let begun = cpu_ms();
        let result = work();
        self.add(part, cpu_ms() - begun);
        result.map_err(Into::into)
    }
}

/// Passes a file to `take` in pieces. Returns its length.
fn read(file: &File, mut take: impl FnMut(&[u8]) -> Result<(), SuiteError>) -> Result<u64, SuiteError> {
    let mut buffer = vec![0; READ_LEN];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => return Ok(at),
            len => {
                take(&buffer[..len])?;
                at += len as u64;
            }
        }
    }
}

fn open(path: &Path) -> Result<File, SuiteError> {
    File::open(path).map_err(|error| format!("cannot open {}: {error}", path.display()).into())
}

fn len_of(file: &File) -> Result<u64, SuiteError> {
    Ok(file.metadata()?.len())
}

fn writer(base_len: u64, new_len: u64) -> Result<DeltaWriter<Vec<u8>>, WriteError> {
    let options = WriterOptions {
        copies: true,
        // Like the others, so that work and traffic can be compared.
        compress: false,
    };
    DeltaWriter::new(Vec::new(), base_len, new_len, options)
}

/// Applies a delta and compares.
fn check(ends: &Ends, delta: &[u8]) -> Result<(), SuiteError> {
    let (old, new) = (fs::read(&ends.old)?, fs::read(&ends.new)?);
    let mut made = Vec::new();
    apply_to_new(&old[..], &mut DeltaReader::new(delta)?, &mut made)?;
    match made == new {
        true => Ok(()),
        false => Err("a finder's delta does not make the new content".into()),
    }
}

/// The server reads and hashes the whole result, as for a proof by content.
fn prove_content(account: &mut Account, ends: &Ends) -> Result<(), SuiteError> {
    let new = open(&ends.new)?;
    let len = account.step(SERVER_PROOF, || {
        let mut digest = ContentDigest::new(len_of(&new)?);
        let len = read(&new, |bytes| {
            digest.push(bytes);
            Ok(())
        })?;
        digest.finish().ok_or("a content grew")?;
        Ok::<_, SuiteError>(len)
    })?;
    account.bytes(SERVER_READ, len);
    Ok(())
}

/// The signature of a file, made by reading it, and its digest on the side.
fn signature_of(
    account: &mut Account,
    path: &Path,
    part: &'static str,
    digest_part: Option<&'static str>,
) -> Result<Vec<u8>, SuiteError> {
    let file = open(path)?;
    let len = len_of(&file)?;
    let params = SignatureParams::with_block_len(len, BLOCK_LEN, SEED);
    let begun = cpu_ms();
    let mut out = SignatureWriter::new(Vec::new(), params, len)?;
    let mut digest = ContentDigest::new(len);
    let mut digest_ms = 0.0;
    read(&file, |bytes| {
        out.push(bytes)?;
        if digest_part.is_some() {
            let begun = cpu_ms();
            digest.push(bytes);
            digest_ms += cpu_ms() - begun;
        }
        Ok(())
    })?;
    let stream = out.finish()?;
    account.add(part, cpu_ms() - begun - digest_ms);
    if let Some(part) = digest_part {
        account.add(part, digest_ms);
    }
    Ok(stream)
}

/// rsync's finder, or that of fixed-size hashing.
pub(crate) fn by_blocks(ends: &Ends, is_rolling: bool, is_checked: bool) -> Result<Measures, SuiteError> {
    let mut account = Account::new();
    let stream = signature_of(&mut account, &ends.old, SERVER_CHECKSUMS, None)?;
    let (old_len, new) = (fs::metadata(&ends.old)?.len(), open(&ends.new)?);
    account.bytes(SERVER_READ, old_len);
    account.bytes(TO_CLIENT, stream.len() as u64);
    let new_len = len_of(&new)?;
    let begun = cpu_ms();
    let index = BlockIndex::new(Signature::read(&stream[..], u64::MAX)?);
    let mut out = writer(old_len, new_len)?;
    let mut digest = ContentDigest::new(new_len);
    let mut digest_ms = 0.0;
    let mut prove = |bytes: &[u8]| {
        let begun = cpu_ms();
        digest.push(bytes);
        digest_ms += cpu_ms() - begun;
    };
    if is_rolling {
        let mut finder = RollingFinder::new(&index, IntoDelta(&mut out));
        read(&new, |bytes| {
            prove(bytes);
            Ok(finder.push(bytes)?)
        })?;
        finder.finish()?;
    } else {
        let mut finder = FixedFinder::new(&index, IntoDelta(&mut out));
        read(&new, |bytes| {
            prove(bytes);
            Ok(finder.push(bytes)?)
        })?;
        finder.finish()?;
    }
    let (delta, _) = out.finish()?;
    account.add(CLIENT_SEARCH, cpu_ms() - begun - digest_ms);
    account.add(CLIENT_PROOF, digest_ms);
    finish(account, ends, &delta, new_len, is_checked)
}

/// The end of an exchange without a proof from checksums: the client sends the delta, after reading
/// this many bytes to find it.
fn finish(
    mut account: Account,
    ends: &Ends,
    delta: &[u8],
    read_len: u64,
    is_checked: bool,
) -> Result<Measures, SuiteError> {
    account.bytes(CLIENT_READ, read_len);
    account.bytes(TO_SERVER, delta.len() as u64);
    prove_content(&mut account, ends)?;
    if is_checked {
        check(ends, delta)?;
    }
    Ok(account.0)
}

/// The search on the server (WebR2sync+).
pub(crate) fn webr(ends: &Ends, is_checked: bool) -> Result<Measures, SuiteError> {
    let mut account = Account::new();
    let stream = signature_of(&mut account, &ends.new, CLIENT_CHECKSUMS, Some(CLIENT_PROOF))?;
    let (old, new) = (open(&ends.old)?, open(&ends.new)?);
    let new_len = len_of(&new)?;
    account.bytes(CLIENT_READ, new_len);
    account.bytes(TO_SERVER, stream.len() as u64);
    let mut answer = Vec::new();
    let old_len = account.step(SERVER_SEARCH, || {
        let index = BlockIndex::new(Signature::read(&stream[..], u64::MAX)?);
        let mut finder = ReverseFinder::new(&index);
        let len = read(&old, |bytes| {
            finder.push(bytes);
            Ok(())
        })?;
        finder.finish().0.write(&mut answer)?;
        Ok::<_, SuiteError>(len)
    })?;
    account.bytes(SERVER_READ, old_len);
    account.bytes(TO_CLIENT, answer.len() as u64);
    let (delta, read_len) = account.step(CLIENT_SEARCH, || {
        let list = MatchList::read(&answer[..], new_len, BLOCK_LEN)?;
        let mut out = writer(old_len, new_len)?;
        let mut content = MatchedContent::new(&list, IntoDelta(&mut out));
        let mut read_len = 0;
        for range in list.missing() {
            read_range(&new, range, |offset, bytes| Ok(content.push(offset, bytes)?))?;
            read_len += range.len_bytes();
        }
        content.finish()?;
        Ok::<_, SuiteError>((out.finish()?.0, read_len))
    })?;
    finish(account, ends, &delta, read_len, is_checked)
}

fn read_range(
    file: &File,
    range: ByteRange,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), SuiteError>,
) -> Result<(), SuiteError> {
    let mut buffer = vec![0; READ_LEN];
    let mut at = range.start();
    while at < range.end() {
        // At most a buffer.
        let piece = &mut buffer[..(range.end() - at).min(READ_LEN as u64) as usize];
        file.read_exact_at(piece, at)?;
        take(at, piece)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// dsync's exchange.
pub(crate) fn cdc(ends: &Ends, is_checked: bool) -> Result<Measures, SuiteError> {
    let mut account = Account::new();
    let (old, new) = (open(&ends.old)?, open(&ends.new)?);
    let (old_len, new_len) = (len_of(&old)?, len_of(&new)?);
    let begun = cpu_ms();
    let mut lister = ChunkLister::new(ChunkParams::for_content(new_len), CrcKind::Crc32c);
    let mut digest = ContentDigest::new(new_len);
    let mut digest_ms = 0.0;
    read(&new, |bytes| {
        lister.push(bytes);
        let begun = cpu_ms();
        digest.push(bytes);
        digest_ms += cpu_ms() - begun;
        Ok(())
    })?;
    let (list, _) = lister.finish();
    let mut stream = Vec::new();
    list.write_to(&mut stream)?;
    account.add(CLIENT_CHECKSUMS, cpu_ms() - begun - digest_ms);
    account.add(CLIENT_PROOF, digest_ms);
    account.bytes(CLIENT_READ, new_len);
    account.bytes(TO_SERVER, stream.len() as u64);

    let (asked, of_base) = account.step(SERVER_CHECKSUMS, || {
        let asked = ChunkList::read(&stream[..], u64::MAX)?;
        let (of_base, _) = list_chunks(&old, None, asked.params(), asked.kind())?;
        Ok::<_, SuiteError>((asked, of_base))
    })?;
    let (answer, proven_len) = answer_to(&mut account, &asked, &of_base, &old)?;
    account.bytes(SERVER_READ, old_len + proven_len);
    account.bytes(TO_CLIENT, answer.len() as u64);

    let (delta, read_len) = account.step(CLIENT_SEARCH, || {
        let answer = MatchAnswer::read(&answer[..], &list)?;
        let mut out = writer(old_len, new_len)?;
        let mut finder = ChunkFinder::new(&list, &answer, IntoDelta(&mut out));
        let mut read_len = 0;
        for range in answer.needed(&list) {
            while finder.position() < range.start() && finder.pass_unproven()? > 0 {}
            read_range(&new, range, |_, bytes| Ok(finder.push(bytes)?))?;
            read_len += range.len_bytes();
        }
        while finder.position() < new_len && finder.pass_unproven()? > 0 {}
        finder.finish()?;
        Ok::<_, SuiteError>((out.finish()?.0, read_len))
    })?;
    finish(account, ends, &delta, read_len, is_checked)
}

/// The server's answer to a list, and the number of bytes that it read to prove it. The whole is
/// proven afterwards.
fn answer_to(
    account: &mut Account,
    list: &ChunkList,
    of_base: &ChunkList,
    base: &File,
) -> Result<(Vec<u8>, u64), SuiteError> {
    account.step(SERVER_SEARCH, || {
        let runs = match_chunks(list, of_base);
        let (answer, read_len) = prove_matches(list, &runs, base, MatchParams::for_whole_proof(SEED))?;
        let mut stream = Vec::new();
        answer.write_to(list, &mut stream)?;
        Ok::<_, SuiteError>((stream, read_len))
    })
}

impl KeptSums {
    /// The checksums of a content, made by reading it.
    pub(crate) fn of(path: &Path, kind: LeafKind) -> Result<Self, SuiteError> {
        let content = fs::read(path)?;
        let blocks = content.chunks(LEAF_LEN_BYTES as usize);
        Ok(Self {
            kind,
            leaves: blocks.clone().map(|block| kind.leaf(block)).collect(),
            // The CRCs have 32 bits.
            crcs: blocks.map(|block| CrcKind::Crc32c.of(block) as u32).collect(),
        })
    }

    /// The server's answer to a list of groups: the equal ones, and the signature of the rest.
    fn answer(&self, list: &ListedGroups, len: u64) -> Result<Vec<u8>, SuiteError> {
        let mut equal = EqualGroups::new(list, len);
        for (number, group) in (0..).zip(self.leaves.chunks(GROUP_LEAVES as usize)) {
            if list.is_equal(number, &group_sum(group), len) {
                equal.set(number);
            }
        }
        let left_len = equal.gathering().left_len_bytes(len);
        let params = equal.params(SEED);
        let mut stream = Vec::new();
        equal.write(&mut stream)?;
        let mut out = SignatureWriter::new(stream, params, left_len)?;
        let mut blocks = LeafBlocks::new(&params, left_len).ok_or("not a kind of tree")?;
        let groups = self
            .leaves
            .chunks(GROUP_LEAVES as usize)
            .zip(self.crcs.chunks(GROUP_LEAVES as usize));
        for (_, (leaves, crcs)) in (0..).zip(groups).filter(|(number, _)| !equal.contains(*number)) {
            for (leaf, crc) in leaves.iter().zip(crcs) {
                if let Some(block) = blocks.push(Some(*crc), Some(leaf)) {
                    let (weak, strong) = block.weak.zip(block.strong).ok_or("all leaves are known")?;
                    out.push_sums(weak, &strong)?;
                }
            }
        }
        Ok(out.finish()?)
    }

    /// The checksums in the form of a list of CRCs of blocks.
    fn crc_list(&self, len: u64) -> CrcList {
        let mut list = CrcList::new(BlockLayout {
            kind: CrcKind::Crc32c,
            block_len_bytes: LEAF_LEN_BYTES,
            content_len_bytes: len,
            last: LastBlock::AsItIs,
        });
        self.crcs.iter().for_each(|&crc| list.push(Some(u64::from(crc))));
        list
    }
}

/// The server proves the result by leaves: it sums those that the delta touches, and takes the
/// others from the checksums that it keeps.
fn prove_leaves(
    account: &mut Account,
    ends: &Ends,
    kept: &KeptSums,
    delta: &[u8],
    expected: [u8; 32],
) -> Result<(), SuiteError> {
    let new = open(&ends.new)?;
    let (old_len, new_len) = (fs::metadata(&ends.old)?.len(), len_of(&new)?);
    let summed_len = account.step(SERVER_PROOF, || {
        let leaf_len = u64::from(LEAF_LEN_BYTES);
        let mut touched = ExtentSet::new();
        let (mut reader, mut block) = (DeltaReader::new(delta)?, Block::default());
        while reader.read_block(&mut block)? {
            touched.extend(block.extents.iter().map(|extent| extent.range));
        }
        // The range between the old end and the new one.
        touched.extend(ByteRange::new(old_len.min(new_len), new_len));
        let mut digest = LeafDigest::new(kept.kind, new_len);
        let kept_leaf = |start: u64| {
            let range = ByteRange::new(start, (start + leaf_len).min(new_len))?;
            // The old content's last leaf is as long as the new one's only if nothing changed.
            let is_whole = range.len_bytes() == leaf_len.min(old_len.saturating_sub(start));
            let leaf = kept.leaves.get((start / leaf_len) as usize);
            leaf.filter(|_| is_whole && touched.iter_within(range).next().is_none())
        };
        let (mut at, mut summed, mut buffer) = (0, 0, vec![0; READ_LEN]);
        while at < new_len {
            if let Some(leaf) = kept_leaf(at) {
                digest.push_leaf(leaf);
                at += leaf_len;
                continue;
            }
            // The touched range as far as it extends: a store reads frames, not leaves.
            let mut end = (at + leaf_len).min(new_len);
            while end < new_len && end - at < READ_LEN as u64 && kept_leaf(end).is_none() {
                end = (end + leaf_len).min(new_len);
            }
            let bytes = &mut buffer[..(end - at) as usize];
            new.read_exact_at(bytes, at)?;
            digest.push(bytes);
            summed += end - at;
            at = end;
        }
        match digest.finish() == Some(expected) {
            true => Ok::<_, SuiteError>(summed),
            false => Err("the server's proof does not agree with the client's".into()),
        }
    })?;
    account.bytes(SERVER_READ, summed_len);
    Ok(())
}

/// The first half of both variants of SkySync: the client sends the sums of its groups, and the
/// server answers.
fn compare_groups(
    account: &mut Account,
    kept: &KeptSums,
    source: &Source,
    (new, old_len): (&File, u64),
) -> Result<(SourceLeaves, GroupAnswer), SuiteError> {
    let (told, list) = account.step(CLIENT_CHECKSUMS, || {
        let told = sources::tell(source, new, kept.kind)?;
        let mut list = Vec::new();
        told.groups.write(&mut list)?;
        Ok::<_, SuiteError>((told, list))
    })?;
    account.bytes(CLIENT_READ, told.read_bytes);
    account.bytes(TO_SERVER, list.len() as u64);
    let stream = account.step(SERVER_CHECKSUMS, || {
        kept.answer(&ListedGroups::read(&list[..], u64::MAX)?, old_len)
    })?;
    account.bytes(TO_CLIENT, stream.len() as u64);
    let answer = account.step(CLIENT_CHECKSUMS, || {
        GroupAnswer::read(&stream[..], kept.kind, told.groups.content_len_bytes(), u64::MAX)
    })?;
    Ok((told, answer))
}

/// SkySync-F: checksums from storage at both ends.
pub(crate) fn sky_fixed(
    ends: &Ends,
    kept: &KeptSums,
    source: &Source,
    is_checked: bool,
) -> Result<Measures, SuiteError> {
    let mut account = Account::new();
    let old_len = fs::metadata(&ends.old)?.len();
    let new = open(source.path())?;
    let (told, answer) = compare_groups(&mut account, kept, source, (&new, old_len))?;
    let (delta, stats): (Vec<u8>, FindStats) = account.step(CLIENT_SEARCH, || {
        let mut out = writer(old_len, answer.new_len_bytes())?;
        let (_, stats) = find_gathered(&answer, told.known_of(&answer)?, &new, IntoDelta(&mut out))?;
        Ok::<_, SuiteError>((out.finish()?.0, stats))
    })?;
    account.bytes(CLIENT_READ, stats.read_bytes);
    account.bytes(TO_SERVER, delta.len() as u64);
    prove_leaves(&mut account, ends, kept, &delta, told.digest)?;
    if is_checked {
        check(ends, &delta)?;
    }
    Ok(account.0)
}

/// SkySync-C: content that is not equal in place is cut into chunks, whose weak checksums follow
/// from storage's CRCs where there are any.
pub(crate) fn sky_chunked(
    ends: &Ends,
    kept: &KeptSums,
    source: &Source,
    is_checked: bool,
) -> Result<Measures, SuiteError> {
    let mut account = Account::new();
    let (old, new) = (open(&ends.old)?, open(source.path())?);
    let (old_len, new_len) = (len_of(&old)?, len_of(&new)?);
    let (told, answer) = compare_groups(&mut account, kept, source, (&new, old_len))?;
    let params = ChunkParams::for_content(new_len);
    let (equal, list, read_bytes) = account.step(CLIENT_CHECKSUMS, || {
        let mut equal: ExtentSet = answer.gathering().equal().iter().copied().collect();
        let known = told.known_of(&answer)?;
        if let (Some(base), Some(strong)) = (StrongOf::new(answer.signature()), known.strong) {
            let aligned = Aligned::new(base, strong).map_err(|error| error.to_string())?;
            let proven = aligned.filter(|(_, verdict)| *verdict == Verdict::Equal);
            equal.extend(proven.flat_map(|(range, _)| answer.gathering().in_content(range)));
        }
        let mut rest = ExtentSet::new();
        rest.extend(ByteRange::new(0, new_len));
        equal.iter().for_each(|range| rest.remove(range));
        let look_at = with_slack(&rest, params, new_len);
        let mut crcs = RangeCrcs::new(told.leaf_crcs());
        let (list, stats) = list_chunks_with_crcs(&new, Some(&look_at), params, &mut crcs)?;
        Ok::<_, SuiteError>((equal, list, stats.examined_bytes + stats.summed_bytes))
    })?;
    account.bytes(CLIENT_READ, read_bytes);
    if list.is_empty() {
        // Nothing to request.
        let (delta, _) = writer(old_len, new_len)?.finish()?;
        account.bytes(TO_SERVER, delta.len() as u64);
        prove_leaves(&mut account, ends, kept, &delta, told.digest)?;
        return Ok(account.0);
    }
    let mut asked = Vec::new();
    account.step(CLIENT_CHECKSUMS, || list.write_to(&mut asked))?;
    account.bytes(TO_SERVER, asked.len() as u64);
    let (asked, of_base, listed) = account.step(SERVER_CHECKSUMS, || {
        let asked = ChunkList::read(&asked[..], u64::MAX)?;
        let mut crcs = RangeCrcs::new(kept.crc_list(old_len));
        let (of_base, stats) = list_chunks_with_crcs(&old, None, asked.params(), &mut crcs)?;
        Ok::<_, SuiteError>((asked, of_base, stats.examined_bytes + stats.summed_bytes))
    })?;
    let (answer, proven_len) = answer_to(&mut account, &asked, &of_base, &old)?;
    account.bytes(SERVER_READ, listed + proven_len);
    account.bytes(TO_CLIENT, answer.len() as u64);
    let (delta, read_len) = account.step(CLIENT_SEARCH, || {
        let answer = MatchAnswer::read(&answer[..], &list)?;
        let mut out = writer(old_len, new_len)?;
        let mut finder = ChunkFinder::new(&list, &answer, IntoDelta(&mut out));
        let mut needed = ExtentSet::new();
        needed.extend(answer.needed(&list));
        equal.iter().for_each(|range| needed.remove(range));
        let mut read_len = 0;
        let all = ByteRange::new(0, new_len).ok_or("an empty content")?;
        for range in equal.iter_within(all).map(Some).chain([None]) {
            // The bytes before the next range that is equal in place.
            let end = range.map_or(new_len, ByteRange::start);
            while let Some(rest) = ByteRange::new(finder.position(), end) {
                let next = needed.iter_within(rest).next();
                match next {
                    Some(next) if next.start() == rest.start() => {
                        read_range(&new, next, |_, bytes| Ok(finder.push(bytes)?))?;
                        read_len += next.len_bytes();
                    }
                    _ => {
                        let stop = next.map_or(end, ByteRange::start);
                        if finder.pass_unproven()? == 0 || finder.position() > stop {
                            // A segment that reaches into an equal range is read like any other
                            // bytes.
                            if let Some(range) = ByteRange::new(finder.position(), stop) {
                                read_range(&new, range, |_, bytes| Ok(finder.push(bytes)?))?;
                                read_len += range.len_bytes();
                            }
                        }
                    }
                }
            }
            if let Some(rest) = range.and_then(|range| ByteRange::new(finder.position(), range.end())) {
                finder.push_known(rest.len_bytes(), rest.start())?;
            }
        }
        finder.finish()?;
        Ok::<_, SuiteError>((out.finish()?.0, read_len))
    })?;
    account.bytes(CLIENT_READ, read_len);
    account.bytes(TO_SERVER, delta.len() as u64);
    prove_leaves(&mut account, ends, kept, &delta, told.digest)?;
    if is_checked {
        check(ends, &delta)?;
    }
    Ok(account.0)
}

/// dsync made of nothing but crates; see [`baseline`].
pub(crate) fn plain_dsync(ends: &Ends, is_checked: bool) -> Result<Measures, SuiteError> {
    let mut account = Account::new();
    let read = |path: &Path| -> io::Result<Vec<u8>> { fs::read(path) };
    let (new, list) = account.step(CLIENT_CHECKSUMS, || {
        let new = read(&ends.new)?;
        let list = baseline::list(&new);
        Ok::<_, io::Error>((new, list))
    })?;
    let (old, of_base) = account.step(SERVER_CHECKSUMS, || {
        let old = read(&ends.old)?;
        let list = baseline::list(&old);
        Ok::<_, io::Error>((old, list))
    })?;
    let tokens = account.step(SERVER_SEARCH, || {
        Ok::<_, io::Error>(baseline::search(&list, &old, &of_base))
    })?;
    let (extents, delta) = account.step(CLIENT_SEARCH, || {
        let extents = baseline::find(&list, &tokens, &new);
        let delta = baseline::encode(&extents, &new);
        Ok::<_, io::Error>((extents, delta))
    })?;
    let (listed, to_client) = baseline::wire(&list, &tokens);
    let to_server = listed + delta.len() as u64;
    account.bytes(TO_SERVER, to_server);
    account.bytes(TO_CLIENT, to_client);
    account.bytes(CLIENT_READ, new.len() as u64);
    account.bytes(SERVER_READ, old.len() as u64);
    if is_checked && baseline::apply(&old, &new, &extents) != new {
        return Err("the baseline's extents do not make the new content".into());
    }
    Ok(account.0)
}
