//! Running programs, and measuring their cost.
//!
//! The kernel keeps the accounts. For a program that has ended they are complete and include the
//! children that it waited for: CPU time and peak memory from `wait4`, bytes read from
//! `/proc/PID/io` while it is still a zombie. For a running program, CPU time comes from its CPU
//! clock (nanoseconds, all its threads, living and dead), the rest from `/proc`.
//!
//! *Bytes read* are those of the read family of calls on anything, page cache or not. They are
//! therefore an upper bound of the bytes read from the files in question: libraries, configuration
//! and databases count too. `recv` on sockets does not count, `read` on sockets does. *Peak memory*
//! of a program that has ended is at least that of the process that started it, by a quirk of the
//! kernel.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::interrupt::{self, Interrupted};
use crate::SuiteError;

#[cfg(test)]
mod tests;

/// The time that a program may take to end when asked, before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which the output of a watched program is read.
const WATCH_EVERY: Duration = Duration::from_millis(50);
/// The number of a failed program's last output lines in the error, at most.
const ERROR_LINES_MAX: usize = 12;

/// The cost of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// User and system time, seconds.
    pub(crate) cpu_s: f64,
    /// Bytes read by any call of the read family.
    pub(crate) read_bytes: u64,
    /// Largest resident memory.
    pub(crate) peak_bytes: u64,
}

impl Cost {
    /// The cost of a running program since `earlier`. The peak is that of its whole life.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu_s: self.cpu_s - earlier.cpu_s,
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            peak_bytes: self.peak_bytes,
        }
    }
}

/// A program that ended successfully, or with a status that was allowed.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) stdout: Vec<u8>,
    pub(crate) cost: Cost,
    pub(crate) wall_s: f64,
}

impl Finished {
    /// The standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// A program that could not be run or failed.
#[derive(Debug)]
pub(crate) struct ProgramFailed {
    command: String,
    reason: String,
    output: String,
}

impl fmt::Display for ProgramFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.command, self.reason)?;
        if !self.output.is_empty() {
            write!(f, "; its output:\n{}", self.output)?;
        }
        Ok(())
    }
}

impl std::error::Error for ProgramFailed {}

fn failed(command: &Command, reason: impl Into<String>, output: &[u8]) -> ProgramFailed {
    let words: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let output = String::from_utf8_lossy(output);
    let lines: Vec<&str> = output.lines().collect();
    ProgramFailed {
        command: words.join(" "),
        reason: reason.into(),
        output: lines[lines.len().saturating_sub(ERROR_LINES_MAX)..].join("\n"),
    }
}

/// Runs a program to its end. Its standard input is that of `command`, or empty.
///
/// # Errors
/// [`Interrupted`] if the user asked to stop; [`ProgramFailed`] if it could not be started or did
/// not end with 0.
pub(crate) fn run(command: &mut Command) -> Result<Finished, SuiteError> {
    run_then(command, |_, pid| Ok(reap(pid)?))
}

/// Like [`run`], and calls `on_line` with each whole line of the standard output soon after it was
/// written.
pub(crate) fn run_watched(command: &mut Command, mut on_line: impl FnMut(&str) + Send) -> Result<Finished, SuiteError> {
    run_then(command, |stdout, pid| {
        let (ended, has_ended) = mpsc::channel::<()>();
        thread::scope(|scope| {
            // A thread of its own, so that the end is noticed at once and the time is right.
            scope.spawn(move || {
                let mut seen = Vec::new();
                let mut offset = 0;
                while let Err(mpsc::RecvTimeoutError::Timeout) = has_ended.recv_timeout(WATCH_EVERY) {
                    // Output that cannot be read now is read with the result.
                    offset += read_from(stdout, offset, &mut seen).unwrap_or(0);
                    while let Some(end) = seen.iter().position(|&byte| byte == b'\n') {
                        on_line(&String::from_utf8_lossy(&seen[..end]));
                        seen.drain(..=end);
                    }
                }
            });
            let reaped = reap(pid);
            drop(ended);
            Ok(reaped?)
        })
    })
}

fn run_then(
    command: &mut Command,
    wait: impl FnOnce(&File, Pid) -> Result<(ExitStatus, Cost), SuiteError>,
) -> Result<Finished, SuiteError> {
    // Files rather than pipes, because they need no reader while the program runs.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .process_group(0);
    let started = Instant::now();
    let child = interrupt::spawn_awaited(command)?
        .map_err(|error| failed(command, format!("could not be started: {error}"), &[]))?;
    let (status, cost) = wait(&stdout, Pid::from_child(&child))?;
    let wall_s = started.elapsed().as_secs_f64();
    interrupt::check()?;
    if !status.success() {
        let mut output = contents(&mut stdout)?;
        output.extend(contents(&mut stderr)?);
        return Err(failed(command, format!("failed ({status})"), &output).into());
    }
    Ok(Finished {
        stdout: contents(&mut stdout)?,
        cost,
        wall_s,
    })
}

/// Appends the content of `file` from `offset` on. Returns the number of bytes. The offset at which
/// the program writes is not moved.
fn read_from(file: &File, offset: u64, bytes: &mut Vec<u8>) -> io::Result<u64> {
    let mut buffer = [0; 4096];
    let mut count = 0;
    loop {
        match file.read_at(&mut buffer, offset + count)? {
            0 => return Ok(count),
            len => {
                bytes.extend_from_slice(&buffer[..len]);
                // No more than the buffer's length.
                count += len as u64;
            }
        }
    }
}

/// Runs a program with `input` as its standard input; see [`run`].
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Result<Finished, SuiteError> {
    let mut file = tempfile::tempfile()?;
    io::Write::write_all(&mut file, input)?;
    file.seek(SeekFrom::Start(0))?;
    run(command.stdin(file))
}

/// A command without input and with messages in a language that can be parsed.
pub(crate) fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).env("LC_ALL", "C");
    command
}

fn contents(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Waits for a child to end, reads its accounts and reaps it.
fn reap(pid: Pid) -> io::Result<(ExitStatus, Cost)> {
    while let Err(error) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
        if error != rustix::io::Errno::INTR {
            interrupt::forget(pid);
            return Err(error.into());
        }
    }
    // The process is a zombie now: its number cannot be reused before wait4 below.
    interrupt::forget(pid);
    let read_bytes = read_bytes(pid).unwrap_or(0);
    let mut status = 0;
    // SAFETY: all zeros is a valid rusage, and both pointers are to live values.
    let (result, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let result = libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage);
        (result, usage)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let cost = Cost {
        cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        read_bytes,
        peak_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    };
    Ok((ExitStatus::from_raw(status), cost))
}

fn seconds(time: libc::timeval) -> f64 {
    // Far below 2^52.
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}

/// The value of a line `NAME: VALUE` of a file in `/proc`, without its unit.
fn proc_field(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn proc_file(pid: Pid, name: &str) -> Result<String, SuiteError> {
    let path = format!("/proc/{}/{name}", pid.as_raw_nonzero());
    fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}").into())
}

fn read_bytes(pid: Pid) -> Result<u64, SuiteError> {
    proc_field(&proc_file(pid, "io")?, "rchar").ok_or_else(|| "no rchar in /proc/PID/io".into())
}

/// The cost of a running process so far.
pub(crate) fn cost_so_far(pid: Pid) -> Result<Cost, SuiteError> {
    Ok(Cost {
        cpu_s: cpu_s(pid)?,
        read_bytes: read_bytes(pid)?,
        peak_bytes: proc_field(&proc_file(pid, "status")?, "VmHWM").unwrap_or(0) * 1024,
    })
}

fn cpu_s(pid: Pid) -> Result<f64, SuiteError> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both pointers are to live values of the right types.
    let error = unsafe {
        match libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &raw mut clock) {
            0 if libc::clock_gettime(clock, &raw mut time) == 0 => return Ok(timespec_s(time)),
            0 => io::Error::last_os_error(),
            error => io::Error::from_raw_os_error(error),
        }
    };
    Err(format!("no CPU clock of process {}: {error}", pid.as_raw_nonzero()).into())
}

fn timespec_s(time: libc::timespec) -> f64 {
    // Far below 2^52.
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A program that runs until it is stopped or dropped.
#[derive(Debug)]
pub(crate) struct Background {
    name: String,
    pid: Option<Pid>,
}

impl Background {
    /// Starts a program. Its outputs are those of `command`.
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Self, SuiteError> {
        interrupt::check()?;
        interrupt::unblock_signals(command);
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|error| failed(command, format!("could not be started: {error}"), &[]))?;
        Ok(Self {
            name: name.to_owned(),
            pid: Some(Pid::from_child(&child)),
        })
    }

    /// Takes charge of a process that became our child when its parent ended; see
    /// [`super::scratch`].
    pub(crate) fn adopt(name: &str, pid: Pid) -> Self {
        Self {
            name: name.to_owned(),
            pid: Some(pid),
        }
    }

    fn pid(&self) -> Result<Pid, SuiteError> {
        self.pid.ok_or_else(|| format!("{} has been stopped", self.name).into())
    }

    /// The cost of the program so far.
    pub(crate) fn cost(&self) -> Result<Cost, SuiteError> {
        cost_so_far(self.pid()?).map_err(|error| format!("{}: {error}", self.name).into())
    }

    /// The program's resident memory now, bytes.
    pub(crate) fn resident_bytes(&self) -> Result<u64, SuiteError> {
        let text = proc_file(self.pid()?, "status")?;
        let kib = proc_field(&text, "VmRSS").ok_or_else(|| format!("no VmRSS of {}", self.name))?;
        Ok(kib * 1024)
    }

    /// Begins a new measurement of the peak memory.
    pub(crate) fn reset_peak(&self) -> Result<(), SuiteError> {
        let path = format!("/proc/{}/clear_refs", self.pid()?.as_raw_nonzero());
        fs::write(&path, "5").map_err(|error| format!("cannot write {path}: {error}").into())
    }

    /// Whether the program has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(pid) = self.pid else { return true };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }

    /// Asks the program to end, and kills it if it does not. Returns its total cost, with the
    /// children that it waited for.
    pub(crate) fn stop(&mut self) -> Result<Cost, SuiteError> {
        let pid = self.pid()?;
        if !self.has_ended() {
            // It may have ended by itself meanwhile.
            let _ = kill_process(pid, Signal::TERM);
        }
        self.end()
    }

    /// Waits for the program to end by itself, and kills it after a timeout.
    pub(crate) fn end(&mut self) -> Result<Cost, SuiteError> {
        let pid = self.pid()?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !self.has_ended() {
            if Instant::now() > deadline {
                let _ = kill_process(pid, Signal::KILL);
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.pid = None;
        Ok(reap(pid)?.1)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The error has no receiver.
        let _ = self.stop();
    }
}

/// Waits until `ready` returns a value, polling every few milliseconds.
pub(crate) fn wait_for<T>(
    what: &str,
    timeout: Duration,
    mut ready: impl FnMut() -> Result<Option<T>, SuiteError>,
) -> Result<T, SuiteError> {
    let deadline = Instant::now() + timeout;
    loop {
        interrupt::check()?;
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            return Err(format!("timed out waiting for {what} after {} s", timeout.as_secs()).into());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether an error is the user's request to stop.
pub(crate) fn is_interrupted(error: &SuiteError) -> bool {
    error.is::<Interrupted>()
}
