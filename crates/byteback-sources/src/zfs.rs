//! The checksums that ZFS keeps of each record of a file (SkySync, Table 1: file systems, by the
//! tools that come with them).
//!
//! ## Where they come from
//!
//! Neither the kernel nor a library reports them. `zdb` does: it reads the pool's devices beside
//! the system that has it mounted, and prints one line for each record.
//!
//! ## When a checksum counts
//!
//! `zdb` sees the state of the last transaction group; later writes are in memory and in the intent
//! log only, and `fsync` does not change that. So first the file is synced and then the pool
//! (`zpool sync`), which waits until a group that began later is on the disk: [`System::settle`].
//!
//! That alone says nothing about writes while `zdb` reads. So at the end the pool is synced once
//! more and `zdb` run again, and both outputs must agree in all block pointers. ZFS never
//! overwrites a block: a write to a record gives it another place and a later birth. So pointers
//! that are the same before and after describe one state, which the file had all the while. Times
//! prove less: some releases have them in whole seconds.
//!
//! zfs-fuse has no `zpool sync`. There a property that is not set is unset (`zfs inherit`), which
//! changes nothing and waits for a group, too. It leaves a line in the pool's history.
//!
//! `zdb` and the pool do not coordinate, so blocks may be reused while it reads. Every node is
//! verified by the checksum above it; `zdb` silently omits one that does not match, which is
//! noticed ([`answers`]).
//!
//! ## Which blocks
//!
//! Records, 128 KiB mostly; a shorter file has one record of its own length, rounded up. The last
//! record is summed with zero padding. Checksums of compressed and of encrypted records are of the
//! stored bytes, and do not count here. Nor do those of gang blocks, and little-endian sums of a
//! big-endian machine.
//!
//! A file has records with several functions if the property changed while it was written: the
//! function that most records have is taken. Only fletcher4 and SHA-256 are supported. The
//! functions of newer releases use a salt of the pool (Skein, Edon-R, BLAKE3), or have no reader
//! here yet (SHA-512).

pub(crate) mod answers;
mod system;

use std::os::fd::{AsFd, BorrowedFd};

use byteback_host::tree::Stat;

use self::answers::{Function, Object, Parser, What};
use self::system::{RealSystem, System};
use crate::programs::Programs;
use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Kind, Known, Layout, Result, Run, Source, SourceError, Stamp, Stretches,
    Tail, Unknown, read_file_at, regular_file,
};

/// The description of the ZFS source.
pub const DESCRIPTION: Description = Description {
    name: "zfs",
    coverage: "each record (usually 128 KiB), neither compressed nor encrypted, in pools with fletcher4 or SHA-256",
    cost: "writing out what the pool has in memory, and zdb, which opens the pool and reads the file's block pointers; each twice",
    permissions: "root: the pool's devices",
};

/// The number of attempts for a file that is written to meanwhile.
const ATTEMPTS: u32 = 3;

/// The length of blocks for a file that has none.
const RECORD_LEN: u32 = 128 << 10;

/// A file on ZFS, as a source.
pub struct ZfsSource<'a> {
    file: BorrowedFd<'a>,
    programs: &'a Programs,
}

impl<'a> ZfsSource<'a> {
    /// The source for `file`, which is open for reading. `zdb`, and `zpool` or `zfs`, are among
    /// `programs`.
    ///
    /// # Errors
    /// [`SourceError::NotHere`] if it is not a regular file, or not on ZFS; [`SourceError::Denied`]
    /// unless the process runs as root.
    pub fn new(file: &'a impl AsFd, programs: &'a Programs) -> Result<Self> {
        let source = Self {
            file: file.as_fd(),
            programs,
        };
        let system = source.system();
        regular_file(system.stat())?;
        system.dataset()?;
        system.is_allowed()?;
        Ok(source)
    }

    fn system(&self) -> RealSystem<'a> {
        RealSystem::new(self.file, self.programs)
    }
}

impl Source for ZfsSource<'_> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        FileChecksums::collect(ATTEMPTS, || Passage::begin(self.system()))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        read_file_at(self.file, offset, buffer)
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        stamp.is_that_of(State::of(&self.system()).map(|state| state.stamp()))
    }
}

/// The file at one moment after the request; or a mixture of states, which [`Passage`] detects at
/// its end.
struct State {
    stat: Stat,
    dataset: String,
    object: Object,
}

impl State {
    fn of(system: &impl System) -> Result<Self> {
        let dataset = system.dataset()?;
        system.settle(&dataset)?;
        let number = regular_file(system.stat())?.identity().ino;
        let mut parser = Parser::new(number);
        system.describe(&dataset, number, &mut |line| {
            parser.line(line).map_err(SourceError::Malformed)
        })?;
        let object = parser.end().map_err(SourceError::Malformed)?;
        let stat = regular_file(system.stat())?;
        match stat.identity().ino == number && stat.size == object.size {
            true => Ok(Self { stat, dataset, object }),
            // The file was written to.
            false => Err(SourceError::ChangedMeanwhile),
        }
    }

    fn stamp(&self) -> Stamp {
        let mut witness = blake3::Hasher::new();
        witness.update(&self.object.digest).update(self.dataset.as_bytes());
        Stamp {
            witness: *witness.finalize().as_bytes(),
            ..Stamp::of(&self.stat)
        }
    }
}

/// Converts an object's records to stretches of a file.
pub(crate) fn stretches(object: &Object) -> Stretches {
    let count = |wanted| {
        let is_wanted = |what: &What| matches!(what, What::Sum(function, _) if *function == wanted);
        object.records.iter().filter(|(_, what)| is_wanted(what)).count()
    };
    let function = match count(Function::Sha256) > count(Function::Fletcher4) {
        true => Function::Sha256,
        false => Function::Fletcher4,
    };
    let block_len = u32::try_from(object.record_len).ok().filter(|len| *len > 0);
    let block_len = block_len.unwrap_or(RECORD_LEN);
    let mut stretches = Stretches::new(Layout {
        kind: match function {
            Function::Fletcher4 => Kind::Fletcher4,
            Function::Sha256 => Kind::Sha256,
        },
        salt: Vec::new(),
        block_len,
        tail: Tail::ZeroPadded,
    });
    let mut at = 0;
    for (record, what) in &object.records {
        // Bytes behind the end do not belong to the file.
        let start = record.saturating_mul(u64::from(block_len)).min(object.size);
        let end = start.saturating_add(u64::from(block_len)).min(object.size);
        stretches.push(at, start, Known::Zeros);
        match what {
            What::Unknown(why) => stretches.push(start, end, Known::Unknown(*why)),
            What::Sum(own, sum) if *own == function && start < end => stretches.push_sums(start, end, sum),
            What::Sum(..) => stretches.push(start, end, Known::Unknown(Unknown::OtherFunction)),
        }
        at = end;
    }
    stretches.push(at, object.size, Known::Zeros);
    stretches
}

/// A single pass over a file's records.
struct Passage<S> {
    system: S,
    state: State,
    stretches: Stretches,
    /// The index of the next stretch.
    next: usize,
}

impl<S: System> Passage<S> {
    fn begin(system: S) -> Result<Self> {
        let mut state = State::of(&system)?;
        let stretches = stretches(&state.object);
        // The stretches have them now.
        state.object.records = Vec::new();
        Ok(Self {
            system,
            state,
            stretches,
            next: 0,
        })
    }
}

impl<S: System> Extraction for Passage<S> {
    fn layout(&self) -> &Layout {
        &self.stretches.layout
    }

    fn len_bytes(&self) -> u64 {
        self.state.stat.size
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        self.next += 1;
        Ok(self.stretches.run(self.next - 1))
    }

    fn finish(self) -> Result<Stamp> {
        self.state.stamp().if_it_is(&State::of(&self.system)?.stamp())
    }
}

#[cfg(test)]
mod tests;
