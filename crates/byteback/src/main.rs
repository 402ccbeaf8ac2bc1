//! The command `byteback`: wiring, configuration, printing. Nothing is decided here.
//!
//! | room | what is in it |
//! |---|---|
//! | `arguments`, `operands`, `help`, `commands` | the command line; one file per command |
//! | `environment`, `configuration`, `settings` | the user's settings from all sources, merged into one answer |
//! | `repository`, `credentials`, `joining`, `binding`, `tracked_folder` | which server, which token, which folder |
//! | `output`, `progress`, `wording`, `timestamp`, `when` | output, for people and for programs |
//! | `coverage`, `last_backup`, `consumer_notes` | the state of a log, in words |
//! | `error`, `exit_code` | error messages and exit codes |
//! | `http` | network access for checksum sources |
//! | `daemon_line` | the daemon's connection to the server, lent to `backup` |
//! | `served` | how our own server is reached, for codes |
//! | `throttling` | rate limits and pauses of continuous sync |
//! | `signals`, `notify`, `background`, `ending` | the process and the operating system |
//! | `volume_losses` | writes that a volume lost because its device refused them |

mod arguments;
mod background;
mod binding;
mod commands;
mod configuration;
mod consumer_notes;
mod coverage;
mod credentials;
mod daemon_line;
mod ending;
mod environment;
mod error;
mod exit_code;
mod held_back;
mod help;
mod http;
mod joining;
mod last_backup;
mod moved_server;
mod notify;
mod operands;
mod output;
mod private_file;
mod progress;
mod repository;
mod served;
mod settings;
mod signals;
mod snapshot_path;
mod sync_runtime;
mod throttling;
mod timestamp;
mod tracked_folder;
mod volume_losses;
mod when;
mod wording;

use std::process::ExitCode;

use crate::arguments::Arguments;
use crate::environment::Environment;
use crate::error::CommandError;
use crate::exit_code::Exit;
use crate::settings::Settings;

fn main() -> ExitCode {
    let arguments = Arguments::read();
    let output = arguments.global.output();
    let ended = Settings::new(&arguments.global, Environment::read())
        .and_then(|settings| commands::run(arguments.command, &settings));
    let exit = match ended {
        Ok(()) | Err(CommandError::OutputClosed) => Exit::Fine,
        Err(CommandError::Reported(exit)) => exit,
        Err(CommandError::Failed(failure)) => {
            output.failure(&failure);
            failure.exit
        }
    };
    ExitCode::from(exit.code())
}
