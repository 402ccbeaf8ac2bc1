//! Costs of a single page (section 6.4): the length of the difference of two pages in each code,
//! the time that encoding takes, and the time in which a volume keeps and restores a page.
//!
//! The pages are those that recorded programs overwrote, before and after each write. The goals
//! apply to the volume's own code ([`Code::Ours`]) and to the inode's list of deltas.

use std::hint::black_box;
use std::time::Instant;

use byteback_delta::{apply_page_delta, put_packed_page_delta, put_page_delta};
use byteback_host::block::BLOCK_LEN_BYTES;
use byteback_volume::format::Inode;

use super::on_volume::{self, OnVolume};
use super::stage::{self, Stage};
use super::tell;
use crate::alternate::Samples;
use crate::figure::{Cell, Figure, GoalRow, Limit, Panel};
use crate::findings::Findings;
use crate::rig::interrupt;
use crate::rig::scratch::{self, Scratch};
use crate::traces::Trace;
use crate::traces::operation::Operation;
use crate::{Options, SuiteError};

/// The number of page pairs of one program that are measured, at most.
const PAIRS_MAX: usize = 4_000;
/// With fewer pairs nothing is reported.
const PAIRS_MIN: usize = 100;
const VOLUME_LEN_BYTES: u64 = 1 << 30;
/// Deltas in the inode are shorter than this.
const INODE_LIMIT_BYTES: usize = 256;
/// Limit of a delta in the main area, so that five fit into a page.
const MAIN_LIMIT_BYTES: usize = 800;
const GOAL_US: f64 = 5.0;

type Page = Box<[u8; BLOCK_LEN_BYTES]>;

/// A page before and after a write.
struct Pair {
    base: Page,
    new: Page,
}

/// A way to encode the difference of two pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    /// The volume's own code.
    Ours,
    /// Only the nonzero bytes of the exclusive or, and their places.
    Runs,
    Lz4,
    /// LZO1X, as in the paper.
    Lzo,
    /// zstd at this level.
    Zstd(i32),
    /// The runs, compressed by zstd at this level.
    RunsZstd(i32),
    /// The new page by itself, compressed by zstd, for comparison.
    Alone,
}

impl Code {
    const ALL: [Self; 8] = [
        Self::Ours,
        Self::Runs,
        Self::Lz4,
        Self::Lzo,
        Self::Zstd(-5),
        Self::Zstd(1),
        Self::RunsZstd(1),
        Self::Alone,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "the volume's",
            Self::Runs => "runs",
            Self::Lz4 => "XOR, LZ4",
            Self::Lzo => "XOR, LZO1X",
            Self::Zstd(-5) => "XOR, zstd -5",
            Self::Zstd(_) => "XOR, zstd 1",
            Self::RunsZstd(_) => "runs, zstd 1",
            Self::Alone => "no XOR, zstd 1",
        }
    }
}

/// Reusable state of the codes.
struct Coder {
    code: Code,
    zstd: zstd::bulk::Compressor<'static>,
    unzstd: zstd::bulk::Decompressor<'static>,
    lzo: Box<lzokay::compress::Dict>,
    xor: Vec<u8>,
}

impl Coder {
    fn new(code: Code) -> Result<Self, SuiteError> {
        let level = match code {
            Code::Zstd(level) | Code::RunsZstd(level) => level,
            _ => 1,
        };
        Ok(Self {
            code,
            zstd: zstd::bulk::Compressor::new(level)?,
            unzstd: zstd::bulk::Decompressor::new()?,
            lzo: lzokay::compress::Dict::new(),
            xor: vec![0; BLOCK_LEN_BYTES],
        })
    }

    fn encode(&mut self, pair: &Pair, out: &mut Vec<u8>) -> Result<(), SuiteError> {
        out.clear();
        if !matches!(self.code, Code::Ours | Code::Runs | Code::RunsZstd(_) | Code::Alone) {
            let both = pair.base.iter().zip(pair.new.iter());
            self.xor
                .iter_mut()
                .zip(both)
                .for_each(|(xor, (base, new))| *xor = base ^ new);
        }
        match self.code {
            Code::Ours => {
                put_packed_page_delta(&pair.base[..], &pair.new[..], MAIN_LIMIT_BYTES, out);
            }
            Code::Runs => {
                put_page_delta(&pair.base[..], &pair.new[..], usize::MAX, out);
            }
            Code::Lz4 => *out = lz4_flex::block::compress(&self.xor),
            Code::Lzo => {
                *out = lzokay::compress::compress_with_dict(&self.xor, &mut self.lzo).map_err(|_| "LZO failed")?
            }
            Code::Zstd(_) => *out = self.zstd.compress(&self.xor)?,
            Code::RunsZstd(_) => {
                put_page_delta(&pair.base[..], &pair.new[..], usize::MAX, out);
                *out = self.zstd.compress(out)?;
            }
            Code::Alone => *out = self.zstd.compress(&pair.new[..])?,
        }
        Ok(())
    }

    fn decode(&mut self, base: &Page, delta: &[u8], page: &mut Page) -> Result<(), SuiteError> {
        let xor = match self.code {
            Code::Ours | Code::Runs => {
                page.copy_from_slice(&base[..]);
                return Ok(apply_page_delta(&mut page[..], delta)?);
            }
            Code::Lz4 => lz4_flex::block::decompress(delta, BLOCK_LEN_BYTES)?,
            Code::Lzo => {
                lzokay::decompress::decompress(delta, &mut self.xor).map_err(|_| "LZO failed")?;
                std::mem::take(&mut self.xor)
            }
            Code::Zstd(_) => self.unzstd.decompress(delta, BLOCK_LEN_BYTES)?,
            Code::RunsZstd(_) => {
                page.copy_from_slice(&base[..]);
                let runs = self.unzstd.decompress(delta, 2 * BLOCK_LEN_BYTES)?;
                return Ok(apply_page_delta(&mut page[..], &runs)?);
            }
            Code::Alone => {
                page.copy_from_slice(&self.unzstd.decompress(delta, BLOCK_LEN_BYTES)?);
                return Ok(());
            }
        };
        let both = base.iter().zip(&xor);
        page.iter_mut()
            .zip(both)
            .for_each(|(page, (base, xor))| *page = base ^ xor);
        self.xor = xor;
        self.xor.resize(BLOCK_LEN_BYTES, 0);
        Ok(())
    }
}

/// Collects pairs of pages while a trace is replayed.
struct Gathering<'a> {
    volume: OnVolume<'a>,
    pairs: Vec<Pair>,
}

impl Gathering<'_> {
    fn page(&self, ino: u32, page: u64) -> Result<Option<Page>, SuiteError> {
        let offset = page * BLOCK_LEN_BYTES as u64;
        let mut bytes = Box::new([0; BLOCK_LEN_BYTES]);
        let len = self.volume.volume().read(ino, offset, &mut bytes[..])?;
        Ok((len > 0).then_some(bytes))
    }
}

impl Stage for Gathering<'_> {
    fn carry_out(&mut self, operation: &Operation) -> Result<(), SuiteError> {
        let written = match operation {
            Operation::Write { handle, offset, data } if data.len > 0 && self.pairs.len() < PAIRS_MAX => {
                let pages = offset / BLOCK_LEN_BYTES as u64..=(offset + data.len as u64 - 1) / BLOCK_LEN_BYTES as u64;
                self.volume.of(Some(*handle), None)?.map(|ino| (ino, pages))
            }
            _ => None,
        };
        let Some((ino, pages)) = written else {
            return self.volume.carry_out(operation);
        };
        let before: Vec<Option<Page>> = pages
            .clone()
            .map(|page| self.page(ino, page))
            .collect::<Result<_, _>>()?;
        self.volume.carry_out(operation)?;
        for (page, base) in pages.zip(before) {
            let new = self.page(ino, page)?;
            self.pairs.extend(
                base.zip(new)
                    .filter(|(base, new)| base != new)
                    .map(|(base, new)| Pair { base, new }),
            );
        }
        self.pairs.truncate(PAIRS_MAX);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SuiteError> {
        self.volume.sync()
    }
}

fn gather(scratch: &Scratch, trace: &Trace) -> Result<Vec<Pair>, SuiteError> {
    let initial = scratch.folder("initial")?;
    trace.unpack_initial(&initial)?;
    let image = scratch.path().join("volume.image");
    on_volume::make(&image, VOLUME_LEN_BYTES, false, &initial)?;
    scratch::remove(&initial)?;
    let volume = OnVolume::open(&image, &byteback_volume::OpenOptions::default(), trace)?;
    let mut gathering = Gathering {
        volume,
        pairs: Vec::new(),
    };
    stage::replay(trace, &mut gathering)?;
    std::fs::remove_file(&image)?;
    Ok(gathering.pairs)
}

/// The results of a code for the pairs of one program.
struct Coded {
    /// The length of each encoded pair, in order.
    lens: Vec<usize>,
    encode_us: Samples,
    decode_us: Samples,
}

fn measure(code: Code, pairs: &[Pair], runs: usize) -> Result<Coded, SuiteError> {
    let mut coder = Coder::new(code)?;
    let mut delta = Vec::new();
    let mut page = Box::new([0; BLOCK_LEN_BYTES]);
    let mut coded = Coded {
        lens: Vec::with_capacity(pairs.len()),
        encode_us: Samples::default(),
        decode_us: Samples::default(),
    };
    let mut deltas = Vec::with_capacity(pairs.len());
    for pair in pairs {
        coder.encode(pair, &mut delta)?;
        coder.decode(&pair.base, &delta, &mut page)?;
        let is_reported = code != Code::Ours || !delta.is_empty();
        if is_reported && page != pair.new {
            return Err(format!("{} does not lead back to the page", code.name()).into());
        }
        coded.lens.push(if is_reported { delta.len() } else { BLOCK_LEN_BYTES });
        deltas.push(delta.clone());
    }
    let mean_us = |started: Instant| started.elapsed().as_nanos() as f64 / 1e3 / pairs.len().max(1) as f64;
    for _ in 0..runs {
        interrupt::check()?;
        let started = Instant::now();
        for pair in pairs {
            coder.encode(black_box(pair), &mut delta)?;
            black_box(&delta);
        }
        coded.encode_us.push(mean_us(started));
        let started = Instant::now();
        for (pair, delta) in pairs.iter().zip(&deltas) {
            coder.decode(&pair.base, black_box(delta), &mut page)?;
            black_box(&page);
        }
        coded.decode_us.push(mean_us(started));
    }
    Ok(coded)
}

/// The time to keep pages as deltas in inodes, one after the other, and to restore them from there:
/// microseconds for each page with a difference short enough. `None` if there are too few.
fn measure_inode(pairs: &[Pair], runs: usize) -> Result<Option<(Samples, Samples)>, SuiteError> {
    let mut delta = Vec::new();
    let mut page_bytes = Box::new([0; BLOCK_LEN_BYTES]);
    // With the volume's limit: deltas too long for the inode are stored elsewhere.
    let encode = |pair: &Pair, delta: &mut Vec<u8>| {
        delta.clear();
        put_packed_page_delta(&pair.base[..], &pair.new[..], MAIN_LIMIT_BYTES, delta) && delta.len() < INODE_LIMIT_BYTES
    };
    let short: Vec<&Pair> = pairs.iter().filter(|pair| encode(pair, &mut delta)).collect();
    if short.len() < PAIRS_MIN {
        return Ok(None);
    }
    let mean_us = |started: Instant| started.elapsed().as_nanos() as f64 / 1e3 / short.len() as f64;
    let (mut keep_us, mut restore_us) = (Samples::default(), Samples::default());
    for _ in 0..runs {
        interrupt::check()?;
        let mut inodes = vec![Inode::default()];
        let mut places = Vec::with_capacity(short.len());
        let started = Instant::now();
        for pair in &short {
            encode(black_box(pair), &mut delta);
            let mut put = None;
            if let Some(inode) = inodes.last_mut() {
                let page = inode.deltas();
                put = inode.put_delta(page, &delta).then_some(page);
            }
            let page = match put {
                Some(page) => page,
                // The inode is full.
                None => {
                    let mut next = Inode::default();
                    next.put_delta(0, &delta);
                    inodes.push(next);
                    0
                }
            };
            places.push((inodes.len() - 1, page));
        }
        keep_us.push(mean_us(started));
        let started = Instant::now();
        for (pair, (inode, page)) in short.iter().zip(&places) {
            page_bytes.copy_from_slice(&pair.base[..]);
            let kept = inodes.get(*inode).and_then(|inode| inode.delta_of(u64::from(*page)));
            apply_page_delta(&mut page_bytes[..], black_box(kept.ok_or("a delta is not there")?))?;
            black_box(&page_bytes);
        }
        restore_us.push(mean_us(started));
        if short.last().is_some_and(|pair| page_bytes != pair.new) {
            return Err("a delta in an inode does not lead back to the page".into());
        }
    }
    Ok(Some((keep_us, restore_us)))
}

/// Measures all codes on the pages that programs overwrote.
///
/// # Errors
/// If something fails, or a code does not restore the page.
pub(crate) fn run(options: Options, traces: &[Trace]) -> Result<Findings, SuiteError> {
    let scratch = Scratch::create(&Scratch::default_parent()?, 2 << 30)?;
    let columns: Vec<&str> = Code::ALL.iter().map(|code| code.name()).collect();
    let new = |title: &str, unit: &str| Panel::new(title, "program", unit, &columns);
    let mut small = new("differences below 256 bytes", "% of all");
    let mut middle = new("differences below 800 bytes", "% of all");
    let mut length = new("mean length of a difference", "bytes");
    let mut encode = new("to write one down", "us, mean");
    let mut decode = new("to restore a page", "us, mean");
    let columns = ["to keep one", "to restore the page"];
    let mut in_inode = Panel::new(
        "differences below 256 bytes, in an inode",
        "program",
        "us, mean",
        &columns,
    );
    let mut ours = (Samples::default(), Samples::default());
    for trace in traces {
        let pairs = gather(&scratch, trace)?;
        if pairs.len() < PAIRS_MIN {
            continue;
        }
        tell(&format!("{}: {} pages that were overwritten", trace.name, pairs.len()));
        let mut rows: [Vec<Option<Cell>>; 5] = Default::default();
        for code in Code::ALL {
            let coded = measure(code, &pairs, options.runs)?;
            let below = |limit: usize| {
                let count = coded.lens.iter().filter(|len| **len < limit).count();
                Cell::from(100.0 * count as f64 / pairs.len() as f64)
            };
            let lens = coded
                .lens
                .iter()
                .map(|len| *len.min(&BLOCK_LEN_BYTES) as f64)
                .sum::<f64>();
            let cells = [
                below(INODE_LIMIT_BYTES),
                below(MAIN_LIMIT_BYTES),
                Cell::from(lens / pairs.len() as f64),
                Cell::from(&coded.encode_us),
                Cell::from(&coded.decode_us),
            ];
            rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(Some(cell)));
        }
        if let Some((keep_us, restore_us)) = measure_inode(&pairs, options.runs)? {
            ours.0.push(keep_us.median());
            ours.1.push(restore_us.median());
            in_inode.push(
                &trace.name,
                vec![Some(Cell::from(&keep_us)), Some(Cell::from(&restore_us))],
            );
        }
        let panels = [&mut small, &mut middle, &mut length, &mut encode, &mut decode];
        for (panel, row) in panels.into_iter().zip(rows) {
            panel.push(&trace.name, row);
        }
    }
    scratch.remove()?;
    let figure = Figure {
        id: "codes",
        title: "Codes for the difference of two pages (section 6.4)".to_owned(),
        about: format!(
            "Pages that programs overwrote, before and after each write, up to {PAIRS_MAX} of each. LZO1X is that of the crate lzokay, which looks for longer matches than LZO1X-1."
        ),
        panels: vec![small, middle, length, encode, decode, in_inode],
    };
    Ok(Findings {
        figures: vec![figure],
        goals: vec![
            GoalRow::new(
                "to write a difference down and put it into an inode",
                "us",
                Limit::AtMost(GOAL_US),
                &ours.0,
            ),
            GoalRow::new(
                "to find it there and restore the page",
                "us",
                Limit::AtMost(GOAL_US),
                &ours.1,
            ),
        ],
    })
}
