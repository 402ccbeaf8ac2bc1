//! Typical jobs of users: a compile job and a database that commits.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::SuiteError;
use crate::random::Random;

const SOURCES: usize = 50;
const FUNCTIONS: usize = 12;
/// Headers that a small program commonly needs; all belong to the C library.
const HEADERS: [&str; 10] = [
    "stdio.h",
    "stdlib.h",
    "string.h",
    "math.h",
    "time.h",
    "unistd.h",
    "errno.h",
    "pthread.h",
    "sys/stat.h",
    "sys/socket.h",
];

/// Writes the sources of the compile job: the same in every run.
pub(crate) fn write_sources(folder: &Path) -> Result<(), SuiteError> {
    let folder = folder.join("src");
    fs::create_dir(&folder)?;
    let mut random = Random::new(7);
    let mut shared = "#pragma once\n".to_owned();
    for header in HEADERS {
        writeln!(shared, "#include <{header}>")?;
    }
    fs::write(folder.join("shared.h"), shared)?;
    for source in 0..SOURCES {
        let mut text = "#include \"shared.h\"\n".to_owned();
        for function in 0..FUNCTIONS {
            let (a, b, c) = (random.below(90) + 3, random.below(1000), random.below(16) + 1);
            write!(
                text,
                "int f{source}_{function}(const char *text, double x) {{\n  char line[{}];\n  \
                 int n = snprintf(line, sizeof line, \"%s %d\", text, {b});\n  for (int i = 0; i < {c}; i++)\n    \
                 n += (int)(sin(x * i) * {a}) + (int)strlen(line);\n  return n > {b} ? n : errno;\n}}\n",
                a + 40
            )?;
        }
        fs::write(folder.join(format!("unit{source}.c")), text)?;
    }
    fs::create_dir(folder.join("../objects"))?;
    Ok(())
}

/// Compiles the sources one after the other. Returns the seconds.
pub(crate) fn compile(root: &Path) -> Result<f64, String> {
    let started = Instant::now();
    for source in 0..SOURCES {
        let status = Command::new("gcc")
            .args(["-O1", "-pipe", "-c", "-o"])
            .arg(root.join(format!("objects/unit{source}.o")))
            .arg(root.join(format!("src/unit{source}.c")))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|error| format!("cannot run gcc, which the compile job needs: {error}"))?;
        if !status.success() {
            return Err(format!(
                "gcc failed ({status}); the compile job needs the C library's headers"
            ));
        }
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Creates a database in WAL mode with some rows.
pub(crate) fn make_database(folder: &Path) -> Result<(), SuiteError> {
    let database = rusqlite::Connection::open(folder.join("rows.db"))?;
    database.pragma_update(None, "journal_mode", "wal")?;
    database.execute_batch("create table rows(id integer primary key, number integer, text text)")?;
    database.execute_batch(
        "insert into rows with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000) \
         select i, i * 7919 % 10007, 'a row of some length, as a message may have: ' || i from n",
    )?;
    Ok(())
}

/// Inserts `count` rows, each in a transaction of its own. Returns the seconds. `synchronous` is
/// SQLite's: `normal` syncs at checkpoints, `full` at each commit.
pub(crate) fn commit(root: &Path, count: u32, synchronous: &str) -> Result<f64, String> {
    let work = || -> rusqlite::Result<f64> {
        let database = rusqlite::Connection::open(root.join("rows.db"))?;
        database.pragma_update(None, "synchronous", synchronous)?;
        let mut insert = database.prepare("insert into rows(number, text) values (?1, 'a new row of some length')")?;
        let started = Instant::now();
        for number in 0..count {
            insert.execute([number])?;
        }
        Ok(started.elapsed().as_secs_f64())
    };
    work().map_err(|error| format!("SQLite in {}: {error}", root.display()))
}
