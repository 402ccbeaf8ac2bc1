//! The embedded catalog: one SQLite file.
//!
//! WAL with `synchronous=FULL`: a commit returns after its pages are durable in the log, and
//! readers never wait. One connection writes, behind a lock; readers come from a small pool. A
//! transaction that is dropped without a commit is rolled back, also when its thread panicked.

use super::{Catalog, CatalogRead, CatalogWrite, schema};
use crate::error::StoreError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Idle reading connections that are kept.
const IDLE_READERS_MAX: usize = 8;

/// A catalog in a SQLite file.
#[derive(Debug)]
pub struct SqliteCatalog {
    path: PathBuf,
    writer: Mutex<Connection>,
    readers: Mutex<Vec<Connection>>,
    pub(super) page_bytes_read: AtomicU64,
    pub(super) page_bytes_written: AtomicU64,
    pub(super) rows_written: AtomicU64,
}

/// Counters of a catalog's work, for the cost tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatalogWork {
    /// Bytes of layer pages read.
    pub page_bytes_read: u64,
    /// Bytes of layer pages written.
    pub page_bytes_written: u64,
    /// Rows inserted or changed.
    pub rows_written: u64,
}

impl SqliteCatalog {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// The file is not ours or of a newer program, or the engine failed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let writer = Connection::open(&path).map_err(|e| StoreError::catalog("open its file", e))?;
        configure(&writer)?;
        let mode: String = writer
            .query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))
            .map_err(|e| StoreError::catalog("switch to write-ahead logging", e))?;
        if !mode.eq_ignore_ascii_case("wal") {
            return Err(StoreError::CatalogDamaged(format!(
                "write-ahead logging is not possible here (mode {mode})"
            )));
        }
        prepare_schema(&writer)?;
        Ok(Self {
            path,
            writer: Mutex::new(writer),
            readers: Mutex::new(Vec::new()),
            page_bytes_read: AtomicU64::new(0),
            page_bytes_written: AtomicU64::new(0),
            rows_written: AtomicU64::new(0),
        })
    }

    /// Limits the length of the catalog's file, in bytes rounded down to pages; a change that needs
    /// more fails as on a full disk. Holds until the catalog is closed; a limit below the present
    /// length only stops growth.
    ///
    /// # Errors
    /// The engine failed.
    pub fn limit_len(&self, len_bytes: u64) -> Result<(), StoreError> {
        let failed = |e| StoreError::catalog("limit its length", e);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let page_len: u64 = writer
            .query_row("PRAGMA page_size", [], |row| row.get::<_, i64>(0))
            .map(i64::cast_unsigned)
            .map_err(failed)?;
        let pages = len_bytes.checked_div(page_len).unwrap_or(1).clamp(1, 4_294_967_294);
        writer
            .query_row(&format!("PRAGMA max_page_count={pages}"), [], |_| Ok(()))
            .map_err(failed)
    }

    /// Work done since the catalog was opened.
    #[must_use]
    pub fn work(&self) -> CatalogWork {
        CatalogWork {
            page_bytes_read: self.page_bytes_read.load(Ordering::Relaxed),
            page_bytes_written: self.page_bytes_written.load(Ordering::Relaxed),
            rows_written: self.rows_written.load(Ordering::Relaxed),
        }
    }

    fn new_reader(&self) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let reader = Connection::open_with_flags(&self.path, flags)
            .map_err(|e| StoreError::catalog("open its file for reading", e))?;
        configure(&reader)?;
        reader
            .execute_batch("PRAGMA query_only=ON")
            .map_err(|e| StoreError::catalog("configure a reader", e))?;
        Ok(reader)
    }
}

fn configure(connection: &Connection) -> Result<(), StoreError> {
    // Without it the planner inspects the number bound to a LIMIT, and prepares the statement again
    // whenever a different one is bound.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map_err(|e| StoreError::catalog("configure a connection", e))?;
    // Inside a process the lock queues writers; the busy timeout is for other processes: `invite`,
    // or a person with a shell.
    connection
        .execute_batch("PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA busy_timeout=10000; PRAGMA cache_size=-16384; PRAGMA cell_size_check=ON;")
        .map_err(|e| StoreError::catalog("configure a connection", e))?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(())
}

fn prepare_schema(connection: &Connection) -> Result<(), StoreError> {
    let number = |pragma: &str| {
        connection
            .query_row(pragma, [], |row| row.get::<_, i64>(0))
            .map_err(|e| StoreError::catalog("read its version", e))
    };
    let application_id = number("PRAGMA application_id")?;
    let found = number("PRAGMA user_version")?;
    if application_id == schema::APPLICATION_ID {
        return match found {
            schema::VERSION => Ok(()),
            found => Err(StoreError::CatalogVersion {
                found,
                known: schema::VERSION,
            }),
        };
    }
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    if application_id != 0 || found != 0 || tables != 0 {
        return Err(StoreError::CatalogDamaged(
            "the file belongs to another program".to_owned(),
        ));
    }
    // The application id comes with the tables in one transaction: a crash leaves an empty file.
    let script = format!(
        "BEGIN IMMEDIATE; {} PRAGMA application_id={}; PRAGMA user_version={}; COMMIT;",
        schema::CREATE,
        schema::APPLICATION_ID,
        schema::VERSION
    );
    connection
        .execute_batch(&script)
        .map_err(|e| StoreError::catalog("create its tables", e))
}

impl Catalog for SqliteCatalog {
    fn read(&self) -> Result<Box<dyn CatalogRead + '_>, StoreError> {
        let idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.new_reader()?,
        };
        begin(&connection, "BEGIN DEFERRED")?;
        Ok(Box::new(Transaction {
            catalog: self,
            lease: Lease::Reader(Some(connection)),
            open: true,
        }))
    }

    fn write(&self) -> Result<Box<dyn CatalogWrite + '_>, StoreError> {
        let connection = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        begin(&connection, "BEGIN IMMEDIATE")?;
        Ok(Box::new(Transaction {
            catalog: self,
            lease: Lease::Writer(connection),
            open: true,
        }))
    }
}

fn begin(connection: &Connection, sql: &str) -> Result<(), StoreError> {
    connection
        .execute_batch(sql)
        .map_err(|e| StoreError::catalog("begin a transaction", e))
}

pub(super) enum Lease<'a> {
    Reader(Option<Connection>),
    Writer(MutexGuard<'a, Connection>),
}

/// A transaction of either kind.
pub(super) struct Transaction<'a> {
    pub(super) catalog: &'a SqliteCatalog,
    lease: Lease<'a>,
    open: bool,
}

impl Transaction<'_> {
    /// The connection; missing only while the transaction is being dropped.
    pub(super) fn connection(&self) -> Result<&Connection, StoreError> {
        match &self.lease {
            Lease::Reader(Some(connection)) => Ok(connection),
            Lease::Writer(guard) => Ok(guard.deref()),
            Lease::Reader(None) => Err(StoreError::CatalogDamaged("a closed transaction was used".to_owned())),
        }
    }

    pub(super) fn finish(mut self, sql: &str) -> Result<(), StoreError> {
        self.connection()?
            .execute_batch(sql)
            .map_err(|e| StoreError::catalog("commit", e))?;
        self.open = false;
        Ok(())
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        let Ok(connection) = self.connection() else { return };
        // After some errors (disk full) SQLite has rolled back by itself; then there is nothing to
        // do.
        if self.open && !connection.is_autocommit() && connection.execute_batch("ROLLBACK").is_err() {
            return;
        }
        if let Lease::Reader(reader) = &mut self.lease
            && let Some(connection) = reader.take()
        {
            let mut readers = self.catalog.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < IDLE_READERS_MAX {
                readers.push(connection);
            }
        }
    }
}

#[cfg(test)]
mod tests;
