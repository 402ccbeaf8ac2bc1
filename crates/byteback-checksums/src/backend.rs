//! The databases of this crate, which may be lost at any time: opened, checked as a whole, made
//! anew if they are damaged; and redb's storage over a durable file. A failure is handed on, and
//! nothing else is done about it: whoever opens the file next checks it.

use std::io;
use std::sync::Arc;

use byteback_host::durable::{DurableDir, DurableFile, OpenMode};
use redb::Database;

use crate::store::{ChecksumError, Result, db};

/// redb's memory, each database.
const CACHE_BYTES: usize = 8 << 20;

/// Opens the database `name` of `dir`, or makes it, and lets `begin` see to what must be in it. One
/// that is damaged is made anew. The caller sees to it that nobody else has it open.
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
    // Without this only what an unclean stop left is checked, and a flipped bit elsewhere could
    // make redb panic.
    builder.set_check_integrity_on_open(true);
    let begun = begin(builder.create_with_backend(Backend(file)).map_err(db)?)?;
    dir.sync().map_err(failed("make a name for"))?;
    Ok(begun)
}

/// Whether the file is no database any more, as opposed to a disk that fails.
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

/// A [`redb::StorageBackend`] on whatever `byteback-host` provides.
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
