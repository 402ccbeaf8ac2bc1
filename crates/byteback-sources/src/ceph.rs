//! The CRC-32C that Ceph's BlueStore keeps of what an OSD has of each object (SkySync, Table 1:
//! distributed systems; section 3.4).
//!
//! Words: an *OSD* keeps copies of objects, each in a *placement group* (PG). To BlueStore an
//! object is a list of *extents*, each of which shows a part of a *blob*, and a blob has a checksum
//! for each *chunk* of its bytes.
//!
//! ## Where they come from
//!
//! `ceph-objectstore-tool` prints an object with all its blobs, from the store's database. RocksDB
//! belongs to one process at a time, so this is for OSDs that are stopped: during maintenance,
//! after the daemon died, of a disk that was moved to another machine. The checksums of a running
//! OSD are out of reach: librados's `rados_checksum` has the OSD read the bytes and sum them anew,
//! which is no kept checksum and saves nothing but the network.
//!
//! ## When a checksum counts
//!
//! The tool locks the store as the OSD does, so each of its outputs describes one moment, without a
//! concurrent writer: one output needs no second look. Acknowledged writes are in it, also after a
//! crash: when the tool opens the store, it completes the writes that are still only in the
//! database's log.
//!
//! Between two answers the OSD may have run. So the witness is a digest of all that the tool prints
//! of the object, with the version that the cluster counts up for each write, the places on the
//! disk and the checksums; and bytes, which the tool hands out in another run, count if the object
//! looks the same to the letter afterwards.
//!
//! The checksums are of the copy in this OSD. While it is down the others go on, and it does not
//! know.
//!
//! ## Which blocks
//!
//! Chunks of 4 KiB mostly; objects may have other lengths, even several, and then the length that
//! covers most bytes counts: shorter chunks are combined, longer ones are left out. If only a part
//! of a chunk shows, the checksum of that part is unknown. The same holds for the last chunk, which
//! has zeros behind it when it is new, and the bytes that were cut off when the object was
//! truncated. Compressed blobs have checksums of the compressed bytes, which do not count here, nor
//! do those of other functions (`bluestore_csum_type`). Stretches that no extent shows are zeros.
//!
//! BlueStore begins with all ones, as usual, and does not invert at the end: its CRC-32C is the
//! complement of [`byteback_checksums::source::Kind::Crc32c`], and is returned as that.
//!
//! ## What it does not do
//!
//! Objects of erasure-coded pools are in pieces, one in each OSD: none of them is the object. An
//! image of RBD and a file of CephFS are many objects, each of which is asked about by its own
//! name.

pub(crate) mod answers;
mod place;
mod system;

use std::fs::File;
use std::os::fd::AsFd;

use parking_lot::Mutex;

use self::answers::{Object, listed, parse, stretches};
pub use self::place::Place;
use self::system::{RealSystem, System};
use crate::programs::Programs;
use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Layout, Result, Run, Source, SourceError, Stamp, Stretches, read_file_at,
};

/// The description of the Ceph source.
pub const DESCRIPTION: Description = Description {
    name: "ceph",
    coverage: "each chunk (usually 4 KiB) that is visible as a whole and not compressed, with CRC-32C, of the copy in \
               this OSD",
    cost: "ceph-objectstore-tool, which opens the OSD's store, lists the placement group and prints the object; for \
           bytes it returns the whole object",
    permissions: "access to the store of the stopped OSD: root or ceph",
};

/// No object is longer to BlueStore.
const OBJECT_LEN_MAX: u64 = u32::MAX as u64;

/// An object in the store of an OSD, as a source.
pub struct CephSource<'a>(Reader<RealSystem<'a>>);

impl<'a> CephSource<'a> {
    /// The source for the object at `place`. `ceph-objectstore-tool` is among `programs`. `spool`
    /// is an empty file without other users, through which the object's bytes are read. No request
    /// is sent yet.
    #[must_use]
    pub fn new(place: Place, programs: &'a Programs, spool: File) -> Self {
        Self(Reader::new(RealSystem::new(place.osd.clone(), programs), place, spool))
    }
}

impl Source for CephSource<'_> {
    fn description(&self) -> Description {
        DESCRIPTION
    }

    fn collect(&self) -> Result<FileChecksums> {
        self.0.collect()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.0.read_at(offset, buffer)
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        self.0.is_unchanged(stamp)
    }
}

/// An object, over any implementation of the tool's calls.
struct Reader<S> {
    system: S,
    place: Place,
    kept: Mutex<ObjectCache>,
}

/// The cached knowledge about the object.
struct ObjectCache {
    /// The name by which the tool knows it.
    spec: Option<String>,
    /// Digest and length of the state described last; only its bytes are read.
    described: Option<([u8; 32], u64)>,
    /// The digest of the state whose bytes are in the spool.
    spooled: Option<[u8; 32]>,
    spool: File,
}

impl<S: System> Reader<S> {
    fn new(system: S, place: Place, spool: File) -> Self {
        Self {
            system,
            place,
            kept: Mutex::new(ObjectCache {
                spec: None,
                described: None,
                spooled: None,
                spool,
            }),
        }
    }

    /// The name by which the tool finds the object without looking for it.
    fn spec(&self, kept: &mut ObjectCache) -> Result<String> {
        if let Some(spec) = &kept.spec {
            return Ok(spec.clone());
        }
        let mut found = None;
        self.system.list(&self.place.pg, &mut |line| {
            if listed(line, &self.place)
                && let Ok(line) = str::from_utf8(line)
                && found.replace(line.trim().to_owned()).is_some()
            {
                return Err(SourceError::NotHere(
                    "several objects have this name, with different locators",
                ));
            }
            Ok(())
        })?;
        let spec = found.ok_or(SourceError::Missing(
            "no such object in this placement group of the OSD; 'ceph osd map POOL OBJECT' shows its placement group \
             and OSDs",
        ))?;
        Ok(kept.spec.insert(spec).clone())
    }

    /// The object as it is at one moment from now on.
    fn object(&self, kept: &mut ObjectCache) -> Result<Object> {
        let spec = self.spec(kept)?;
        let object = parse(&self.system.dump(&spec)?, &self.place)?;
        kept.described = Some((object.digest, object.len_bytes));
        Ok(object)
    }

    fn collect(&self) -> Result<FileChecksums> {
        let object = self.object(&mut self.kept.lock())?;
        FileChecksums::collect(1, || {
            Ok(Passage {
                stretches: stretches(&object),
                stamp: Stamp::elsewhere(object.len_bytes, object.digest),
                next: 0,
            })
        })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut kept = self.kept.lock();
        let (digest, len_bytes) = match kept.described {
            Some(described) => described,
            None => {
                let object = self.object(&mut kept)?;
                (object.digest, object.len_bytes)
            }
        };
        if kept.spooled != Some(digest) {
            kept.spooled = None;
            let spec = self.spec(&mut kept)?;
            kept.spool
                .set_len(0)
                .map_err(SourceError::io("empty a temporary file"))?;
            // One more byte shows that the object is longer.
            let len = self.system.bytes(&spec, len_bytes + 1, &kept.spool)?;
            let now = parse(&self.system.dump(&spec)?, &self.place)?;
            if now.digest != digest {
                return Err(SourceError::ChangedMeanwhile);
            }
            if len != len_bytes {
                return Err(SourceError::Malformed("an object whose bytes do not match its length"));
            }
            kept.spooled = Some(digest);
        }
        read_file_at(kept.spool.as_fd(), offset, buffer)
    }

    fn is_unchanged(&self, stamp: &Stamp) -> Result<bool> {
        let mut kept = self.kept.lock();
        let spec = match self.spec(&mut kept) {
            Err(SourceError::Missing(_)) => return Ok(false),
            spec => spec?,
        };
        let said = match self.system.dump(&spec) {
            Err(SourceError::Missing(_)) => return Ok(false),
            said => said?,
        };
        match parse(&said, &self.place) {
            Ok(object) => Ok(object.digest == stamp.witness),
            // The object is gone.
            Err(SourceError::Missing(_) | SourceError::NotHere(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A single pass over one answer of the tool.
struct Passage {
    stretches: Stretches,
    stamp: Stamp,
    /// The index of the next stretch.
    next: usize,
}

impl Extraction for Passage {
    fn layout(&self) -> &Layout {
        &self.stretches.layout
    }

    fn len_bytes(&self) -> u64 {
        self.stamp.len_bytes
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        self.next += 1;
        Ok(self.stretches.run(self.next - 1))
    }

    /// The answer was given while the store was locked: nothing could change meanwhile.
    fn finish(self) -> Result<Stamp> {
        Ok(self.stamp)
    }
}

#[cfg(test)]
mod tests;
