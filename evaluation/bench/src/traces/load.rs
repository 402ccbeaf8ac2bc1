//! A trace in memory.
//!
//! All work that takes time of its own (unpacking, parsing) happens here, so that a replay consists
//! of system calls alone.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::operation::{Line, Operation, Payload, Timed};
use crate::SuiteError;
use crate::rig::process::{program, run, run_with_input};

#[cfg(test)]
mod tests;

/// The largest window that the files may ask for: 2^27 bytes.
const WINDOW_LOG_MAX: u32 = 27;
/// The path, in the trace set, of the script that generates the omitted parts of some traces.
const GENERATOR: &str = "tools/gentext.py";

/// A trace.
pub(crate) struct Trace {
    pub(crate) name: String,
    /// The work of the program, in a sentence.
    pub(crate) about: String,
    /// The hash that the tree must have at the end, if it was recorded.
    pub(crate) final_hash: Option<String>,
    pub(crate) operations: Vec<Timed>,
    initial: Initial,
    payload: Vec<u8>,
    /// The folder that the trace was read from; `None` if it was not recorded.
    source: Option<PathBuf>,
}

/// The initial tree.
enum Initial {
    /// A tar.
    Tar(Vec<u8>),
    /// Files with their names, all in the root.
    Files(Vec<(&'static str, Vec<u8>)>),
}

/// The contents of `trace.json`.
#[derive(Deserialize)]
struct Description {
    format: u32,
    name: String,
    #[serde(default)]
    about: String,
    init_len: usize,
    payload_len: usize,
    final_hash: String,
    #[serde(default)]
    prefix: Option<String>,
}

/// The traces in a folder, by name.
///
/// # Errors
/// If the folder cannot be read or holds none; the text explains traces.
pub(crate) fn find(folder: &Path) -> Result<Vec<PathBuf>, SuiteError> {
    let entries = fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut traces: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("trace.json").is_file())
        .collect();
    traces.sort();
    if traces.is_empty() {
        return Err(format!(
            "{} has no traces: each is a folder with trace.json, ops.jsonl.zst and data.zst",
            folder.display()
        )
        .into());
    }
    Ok(traces)
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> SuiteError {
    format!("{}: {error}", path.display()).into()
}

fn unpacked(path: &Path) -> Result<impl Read + use<>, SuiteError> {
    let open = || {
        let mut decoder = zstd::stream::read::Decoder::new(File::open(path)?)?;
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        io::Result::Ok(decoder)
    };
    open().map_err(|error| failed(path, &error))
}

impl Trace {
    /// Reads the trace in `folder`.
    ///
    /// # Errors
    /// If a file is missing or not as described; for some traces also if there is no `python3` for
    /// the trace set's generator.
    pub(crate) fn load(folder: &Path) -> Result<Self, SuiteError> {
        let path = folder.join("trace.json");
        let text = fs::read(&path).map_err(|error| failed(&path, &error))?;
        let description: Description = serde_json::from_slice(&text).map_err(|error| failed(&path, &error))?;
        if description.format != 1 {
            return Err(failed(
                &path,
                &format!("format {} is not supported", description.format),
            ));
        }
        let operations = operations(&folder.join("ops.jsonl.zst"))?;

        let path = folder.join("data.zst");
        let mut data = unpacked(&path)?;
        let generated = match &description.prefix {
            Some(prefix) => Some(Generated {
                text: generate(folder, prefix)?,
                map: {
                    let mut map = Vec::new();
                    let path = folder.join("init.map.zst");
                    unpacked(&path)?
                        .read_to_end(&mut map)
                        .map_err(|error| failed(&path, &error))?;
                    map
                },
            }),
            None => None,
        };
        let initial_tar = match &generated {
            Some(generated) => generated.weave(&mut data, description.init_len),
            None => exactly(&mut data, description.init_len),
        }
        .map_err(|error| failed(&path, &error))?;
        let payload = exactly(&mut data, description.payload_len).map_err(|error| failed(&path, &error))?;
        check_payload(&operations, payload.len()).map_err(|error| failed(folder, &error))?;
        Ok(Self {
            name: description.name,
            about: description.about,
            final_hash: Some(description.final_hash),
            operations,
            initial: Initial::Tar(initial_tar),
            payload,
            source: Some(folder.to_owned()),
        })
    }

    /// A trace of a program that was not recorded but is imitated: initial files, followed by its
    /// operations. The bytes of the writes are concatenated in the payload.
    pub(crate) fn imitated(
        name: &str,
        about: &str,
        initial: Vec<(&'static str, Vec<u8>)>,
        operations: Vec<Timed>,
        payload: Vec<u8>,
    ) -> Result<Self, SuiteError> {
        check_payload(&operations, payload.len())?;
        Ok(Self {
            name: name.to_owned(),
            about: about.to_owned(),
            final_hash: None,
            operations,
            initial: Initial::Files(initial),
            payload,
            source: None,
        })
    }

    /// The folder that the trace was read from; `None` if it was not recorded.
    pub(crate) fn source(&self) -> Option<&Path> {
        self.source.as_deref()
    }

    /// Writes the trace, as read from `source`, into the empty folder `target`, with an empty
    /// initial tree.
    ///
    /// # Errors
    /// If something cannot be read or written.
    pub(crate) fn save_without_initial(&self, source: &Path, target: &Path) -> Result<(), SuiteError> {
        let description = serde_json::json!({
            "format": 1,
            "name": self.name,
            "about": self.about,
            "init_len": 0,
            "payload_len": self.payload.len(),
            "final_hash": self.final_hash,
        });
        fs::write(target.join("trace.json"), serde_json::to_vec(&description)?)?;
        fs::copy(source.join("ops.jsonl.zst"), target.join("ops.jsonl.zst"))?;
        let payload = zstd::stream::encode_all(self.payload.as_slice(), 1)?;
        Ok(fs::write(target.join("data.zst"), payload)?)
    }

    /// The bytes of a write.
    pub(crate) fn bytes(&self, payload: Payload) -> &[u8] {
        // In bounds: checked when the trace was loaded.
        &self.payload[payload.start..payload.start + payload.len]
    }

    /// Unpacks the initial tree into the empty folder `target`.
    ///
    /// # Errors
    /// If `tar` is missing or fails, or a file cannot be written.
    pub(crate) fn unpack_initial(&self, target: &Path) -> Result<(), SuiteError> {
        let initial_tar = match &self.initial {
            Initial::Tar(tar) if tar.is_empty() => return Ok(()),
            Initial::Tar(tar) => tar,
            Initial::Files(files) => {
                for (name, bytes) in files {
                    fs::write(target.join(name), bytes)?;
                }
                return Ok(());
            }
        };
        let mut tar = program("tar");
        tar.args(["--extract", "--preserve-permissions", "--numeric-owner", "--directory"])
            .arg(target);
        run_with_input(&mut tar, initial_tar)?;
        Ok(())
    }
}

fn operations(path: &Path) -> Result<Vec<Timed>, SuiteError> {
    let mut text = Vec::new();
    unpacked(path)?
        .read_to_end(&mut text)
        .map_err(|error| failed(path, &error))?;
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines
        .enumerate()
        .map(|(index, line)| {
            let parsed: Result<Line<'_>, _> = serde_json::from_slice(line);
            let timed = parsed.map_err(SuiteError::from).and_then(Line::understood);
            timed.map_err(|error| failed(path, &format!("line {}: {error}", index + 1)))
        })
        .collect()
}

/// Checks that the bytes of the writes are concatenated in the payload.
fn check_payload(operations: &[Timed], payload_bytes: usize) -> Result<(), SuiteError> {
    let mut next = 0;
    for timed in operations {
        let (Operation::Write { data, .. } | Operation::SetXattr { value: data, .. }) = &timed.operation else {
            continue;
        };
        if data.start != next || data.start.saturating_add(data.len) > payload_bytes {
            return Err(format!("the bytes of a write are at {} instead of {next}", data.start).into());
        }
        next = data.start + data.len;
    }
    Ok(())
}

fn exactly(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// The text generated by the trace set's script, and its places in the tar.
struct Generated {
    text: Vec<u8>,
    /// Triples of 32-bit numbers: the bytes to take from the data, the offset in the text, the
    /// bytes to take from there.
    map: Vec<u8>,
}

impl Generated {
    fn weave(&self, data: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
        let mut tar = Vec::with_capacity(len);
        let mut triples = self.map.chunks_exact(12);
        for triple in triples.by_ref() {
            let number = |index: usize| {
                let bytes = [0, 1, 2, 3].map(|byte| triple[4 * index + byte]);
                u32::from_le_bytes(bytes) as usize
            };
            tar.extend(exactly(data, number(0))?);
            let copied = self.text.get(number(1)..number(1).saturating_add(number(2)));
            tar.extend_from_slice(copied.ok_or(io::ErrorKind::InvalidData)?);
        }
        // The rest, which the map does not cover, is literal.
        let missing = len.checked_sub(tar.len()).ok_or(io::ErrorKind::InvalidData)?;
        tar.extend(exactly(data, missing)?);
        Ok(tar)
    }
}

fn generate(trace: &Path, prefix: &str) -> Result<Vec<u8>, SuiteError> {
    let set = trace.parent().unwrap_or(Path::new("."));
    if !set.join(GENERATOR).is_file() {
        return Err(failed(
            trace,
            &format!("{GENERATOR} of the trace set, which generates the initial tree, is missing"),
        ));
    }
    let script = "import sys; sys.path.insert(0, sys.argv[1]); import gentext; sys.stdout.buffer.write(gentext.prefix(sys.argv[2]))";
    let mut python = program("python3");
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(run(python.arg("-c").arg(script).arg(set.join("tools")).arg(prefix))?.stdout)
}
