//! `byteback completions`: a script with which a shell completes our commands and flags.

use std::io::{self, Write};

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell as ClapShell;

use crate::arguments::Arguments;
use crate::error::{CommandError, Result};
use crate::settings::Settings;

/// Flags of `completions`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  byteback completions bash > /etc/bash_completion.d/byteback
  byteback completions zsh > /usr/local/share/zsh/site-functions/_byteback
  byteback completions fish > ~/.config/fish/completions/byteback.fish")]
pub(crate) struct CompletionsArguments {
    /// Shell to print completions for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn run(arguments: &CompletionsArguments, _settings: &Settings) -> Result<()> {
    let shell = match arguments.shell {
        Shell::Bash => ClapShell::Bash,
        Shell::Zsh => ClapShell::Zsh,
        Shell::Fish => ClapShell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "byteback", &mut script);
    match io::stdout().lock().write_all(&script) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(CommandError::OutputClosed),
        Err(error) => Err(CommandError::new(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}
