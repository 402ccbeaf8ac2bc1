//! Opening of this crate's databases, which may be lost at any time: they are checked as a whole,
//! and created anew if they are damaged. Also redb's storage over a durable file. A failure is only
//! handed on, because the next opening checks the file anyway.

use std::io;
use std::sync::Arc;

use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use redb::{Database, ReadableTable};

use crate::error::{ChecksumError, Result, db};

/// Bytes of redb's cache, for each database.
const CACHE_BYTES: usize = 8 << 20;

/// Opens the database `name` of `dir`, or creates it, and lets `begin` prepare its tables. A
/// damaged database is created anew. The caller ensures that it is open nowhere else.
pub(crate) fn open<T>(dir: &dyn DurableDir, name: &str, begin: impl Fn(Database) -> Result<T>) -> Result<T> {
    match open_as_it_is(dir, name, &begin) {
        Err(ChecksumError::Database(error)) if is_damage(&error) => {
            dir.remove(name)
                .map_err(|source| ChecksumError::Io { what: "remove", source })?;
            open_as_it_is(dir, name, &begin)
        }
        done => done,
    }
}

fn open_as_it_is<T>(dir: &dyn DurableDir, name: &str, begin: &impl Fn(Database) -> Result<T>) -> Result<T> {
    let failed = |what| move |source| ChecksumError::Io { what, source };
    let file = dir.open(name, OpenMode::CreateIfMissing).map_err(failed("open"))?;
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    // Without this, only the remains of an unclean stop are checked, and a flipped bit elsewhere
    // could make redb panic.
    builder.set_check_integrity_on_open(true);
    let begun = begin(builder.create_with_backend(Backend(file)).map_err(db)?)?;
    dir.sync().map_err(failed("sync the folder of"))?;
    Ok(begun)
}

/// The number under a name in a table of settings.
pub(crate) fn number(meta: &impl ReadableTable<&'static str, &'static [u8]>, name: &str) -> Result<Option<u64>> {
    let value = meta.get(name).map_err(db)?;
    Ok(value.and_then(|value| value.value().try_into().ok().map(u64::from_le_bytes)))
}

/// Whether the file is no valid database any more, as opposed to a failing disk.
fn is_damage(error: &redb::Error) -> bool {
    match error {
        redb::Error::Io(error) => matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof
        ),
        redb::Error::PreviousIo | redb::Error::DatabaseAlreadyOpen => false,
        _ => true,
    }
}

/// A [`redb::StorageBackend`] on a durable file of `byteback-host`.
#[derive(Debug)]
struct Backend(Arc<dyn DurableFile>);

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(offset, data)
    }
}
