//! Numbers as SQLite holds them: signed 64 bits. All unsigned ones are below 2^63 by the store's
//! checks.

use crate::numbers::{
    ChunkNumber, FolderNumber, LayerNumber, LayerRowNumber, NodeNumber, SegmentNumber, StagedPartRowNumber,
};
use rusqlite::Row;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

/// The form of an unsigned number in a statement.
pub(super) fn sql(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The unsigned number in a column.
pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

macro_rules! row_numbers {
    ($($name:ident),*) => {$(
        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                self.0.to_sql()
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                value.as_i64().map(Self)
            }
        }
    )*};
}

macro_rules! unsigned_numbers {
    ($($name:ident),*) => {$(
        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(sql(self.0).into())
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                let value = value.as_i64()?;
                u64::try_from(value).map(Self).map_err(|_| FromSqlError::OutOfRange(value))
            }
        }
    )*};
}

row_numbers!(FolderNumber, NodeNumber, LayerRowNumber, StagedPartRowNumber);
unsigned_numbers!(LayerNumber, SegmentNumber, ChunkNumber);
