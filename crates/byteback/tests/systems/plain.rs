//! A file without checksums anywhere: it is read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use byteback_checksums::source::{
    Description, Extraction, FileChecksums, Kind, Layout, Result, Run, Source, Stamp, Tail, Unknown,
};
use byteback_extents::ByteRange;
use byteback_host::tree::Identity;

/// A file without checksums; it must not be changed.
pub(crate) struct PlainFile(File);

impl PlainFile {
    pub(crate) fn open(path: &Path) -> Self {
        Self(File::open(path).unwrap())
    }

    fn len_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }
}

struct Nothing(Layout, u64, Option<ByteRange>);

impl Extraction for Nothing {
    fn layout(&self) -> &Layout {
        &self.0
    }

    fn len_bytes(&self) -> u64 {
        self.1
    }

    fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        let why = Unknown::NotSummed;
        Ok(self.2.take().map(|range| Run::Unknown { range, why }))
    }

    fn finish(self) -> Result<Stamp> {
        let identity = Identity {
            dev: 0,
            ino: 0,
            birth_ns: None,
        };
        Ok(Stamp {
            identity,
            len_bytes: self.1,
            mtime_ns: 0,
            ctime_ns: 0,
            witness: [0; 32],
        })
    }
}

impl Source for PlainFile {
    fn description(&self) -> Description {
        Description {
            name: "none",
            coverage: "nothing",
            cost: "nothing",
            permissions: "none",
        }
    }

    fn collect(&self) -> Result<FileChecksums> {
        let layout = Layout {
            kind: Kind::Crc32c,
            salt: Vec::new(),
            block_len: 4096,
            tail: Tail::AsIs,
        };
        let len = self.len_bytes();
        FileChecksums::collect(1, || Ok(Nothing(layout.clone(), len, ByteRange::new(0, len))))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let len = buffer.len().min(self.len_bytes().saturating_sub(offset) as usize);
        self.0.read_exact_at(&mut buffer[..len], offset).unwrap();
        Ok(len)
    }

    fn is_unchanged(&self, _: &Stamp) -> Result<bool> {
        Ok(true)
    }
}
