//! rdiff, the program of librsync: signature, delta and patch as three commands.
//!
//! rdiff has no network of its own. Signature and delta are the bytes that would travel, and the
//! time that they would take on a link is added to that of the commands. Signature and patch count
//! as the server's work, the delta as the client's.

use std::fs;
use std::path::{Path, PathBuf};

use super::process::{Finished, program, run};
use super::proxy::Wire;
use crate::SuiteError;

/// The old file on the server, and a folder for the files that would travel.
#[derive(Debug)]
pub(crate) struct Rdiff {
    copy: PathBuf,
    work: PathBuf,
    block_bytes: u32,
}

/// The cost of an update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    pub(crate) client_cpu_s: f64,
    pub(crate) server_cpu_s: f64,
    /// The part of the server's work that went into the signature.
    pub(crate) signature_cpu_s: f64,
    pub(crate) wire: Wire,
    /// The time of the three commands in sequence, without the network.
    pub(crate) wall_s: f64,
}

impl Rdiff {
    /// Updates are applied to the file `copy`.
    pub(crate) fn new(copy: &Path, work: &Path, block_bytes: u32) -> Self {
        Self {
            copy: copy.to_owned(),
            work: work.to_owned(),
            block_bytes,
        }
    }

    /// Makes the copy equal to `source`.
    pub(crate) fn update(&self, source: &Path) -> Result<Update, SuiteError> {
        let [signature, delta, new] = ["rdiff.signature", "rdiff.delta", "rdiff.new"].map(|name| self.work.join(name));
        let command = |arguments: &[&Path], name: &str| -> Result<Finished, SuiteError> {
            let mut command = program("rdiff");
            command.arg("--force");
            if name == "signature" {
                command.arg(format!("--block-size={}", self.block_bytes));
            }
            run(command.arg(name).args(arguments))
        };
        let signed = command(&[&self.copy, &signature], "signature")?;
        let found = command(&[&signature, source, &delta], "delta")?;
        let patched = command(&[&self.copy, &delta, &new], "patch")?;
        fs::rename(&new, &self.copy)?;
        Ok(Update {
            client_cpu_s: found.cost.cpu_s,
            server_cpu_s: signed.cost.cpu_s + patched.cost.cpu_s,
            signature_cpu_s: signed.cost.cpu_s,
            wire: Wire {
                to_server: fs::metadata(&delta)?.len(),
                to_client: fs::metadata(&signature)?.len(),
            },
            wall_s: signed.wall_s + found.wall_s + patched.wall_s,
        })
    }
}
