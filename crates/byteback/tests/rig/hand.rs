//! The process that performs operations: this one, or one of its own.
//!
//! A process of its own sees a dead mount as any program does: a store into a mapping whose daemon
//! is gone kills it. It is this test program started again, told to run one test only
//! ([`serve_as_hand`]), and given one operation per line.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::operation::{Operation, Performer};

/// Set for a process that is to be a hand.
const VARIABLE: &str = "BYTEBACK_HAND";
/// Prefix of an answer; the test harness prints lines of its own.
const ANSWER: &str = "hand-answers:";

const DIES_WITHIN: Duration = Duration::from_secs(5);

/// A performer of operations; see the module.
#[derive(Debug)]
pub(crate) enum Hand {
    Here(Performer),
    Process(Worker),
}

/// A process that performs operations.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    tell: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Hand {
    /// This process.
    pub(crate) fn here(root: &Path) -> Self {
        Self::Here(Performer::new(root))
    }

    /// A new process.
    pub(crate) fn process(root: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hand", "--ignored", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut tell = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        writeln!(tell, "{}", serde_json::to_string(root).unwrap()).unwrap();
        Self::Process(Worker { child, tell, answers })
    }

    /// Performs an operation. An error leaves open whether it happened.
    pub(crate) fn perform(&mut self, operation: &Operation) -> io::Result<()> {
        match self {
            Self::Here(performer) => performer.perform(operation),
            Self::Process(worker) => worker.perform(operation),
        }
    }
}

impl Worker {
    fn perform(&mut self, operation: &Operation) -> io::Result<()> {
        let line = serde_json::to_string(operation)?;
        writeln!(self.tell, "{line}")?;
        loop {
            let mut said = String::new();
            if self.answers.read_line(&mut said)? == 0 {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the process died"));
            }
            if let Some((_, answer)) = said.split_once(ANSWER) {
                return match answer.trim() {
                    "" => Ok(()),
                    why => Err(io::Error::other(why.to_owned())),
                };
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A process that waits for a hung mount cannot die; the test must fail, not hang as well.
        let deadline = Instant::now() + DIES_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The body of the test named `hand`, in a process that was started to be one.
pub(crate) fn serve_as_hand() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut lines = io::stdin().lock().lines();
    let Some(Ok(root)) = lines.next() else { return };
    let root: std::path::PathBuf = serde_json::from_str(&root).unwrap();
    let mut performer = Performer::new(&root);
    for line in lines.map_while(Result::ok) {
        let operation: Operation = serde_json::from_str(&line).unwrap();
        let answer = match performer.perform(&operation) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        // The test harness would capture the output of a macro.
        if writeln!(io::stdout().lock(), "{ANSWER}{answer}").is_err() {
            return;
        }
    }
}
