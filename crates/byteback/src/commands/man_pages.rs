//! `byteback man-pages`: a manual page for each command, generated from its help.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use clap_mangen::Man;

use crate::arguments::Arguments;
use crate::error::{CommandError, Result};
use crate::settings::Settings;

/// Flags of `man-pages`.
#[derive(Args, Debug)]
#[command(after_help = "For packages, together with 'byteback completions':
  byteback man-pages /usr/share/man/man1")]
pub(crate) struct ManPagesArguments {
    /// Directory to write the pages to; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(arguments: &ManPagesArguments, settings: &Settings) -> Result<()> {
    let dir = &arguments.dir;
    fs::create_dir_all(dir).map_err(|error| CommandError::file("create the directory", dir, &error))?;
    let mut command = Arguments::described();
    // Passes the global flags on to the subcommands.
    command.build();
    let count = write(&command, dir)?;
    settings
        .output
        .say(format!("Wrote {count} manual pages to {}.", dir.display()))
}

/// Writes the pages of a command and of all its subcommands; returns their number.
fn write(command: &clap::Command, dir: &Path) -> Result<u32> {
    let man = Man::new(command.clone()).manual("Byteback");
    let path = dir.join(man.get_filename());
    let mut page = Vec::new();
    let rendered = man.render(&mut page).and_then(|()| fs::write(&path, &page));
    rendered.map_err(|error| CommandError::file("write the manual page", &path, &error))?;
    let below = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set() && below.get_name() != "help");
    below
        .map(|below| write(below, dir))
        .try_fold(1, |sum, count| Ok(sum + count?))
}
