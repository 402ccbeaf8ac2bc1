//! Random operations of programs in a folder, on few names, so that they meet.

use super::machine::Machine;
use byteback_host::random::SplitMix64;
use byteback_mount::direct::{Direct, DirectFile};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const RULES: &str = ".bytebackignore";

/// Files that programs keep open, and where they work: everywhere, or in their machine's own
/// directory.
#[derive(Default)]
pub(crate) struct Programs {
    open: Vec<DirectFile>,
    at: PathBuf,
    saves: u64,
    /// Common files that are open for appending.
    logs: Vec<Log>,
    /// A file that was emptied to be rewritten, and its new content.
    emptied: Option<(Log, Vec<u8>)>,
    lines: u64,
    /// Whether they change ignore rules.
    changes_rules: bool,
}

/// An open common file.
struct Log {
    file: DirectFile,
    inode: u64,
    /// Whether a program here has taken its name away: writes to it are then lost, as on any file
    /// system.
    is_orphan: bool,
}

fn any_name(random: &mut SplitMix64) -> PathBuf {
    let names = ["a", "b", "c", "d", "e"];
    let name = names[random.below(5) as usize];
    match random.below(3) {
        0 => Path::new(["p", "q", "p/r"][random.below(3) as usize]).join(name),
        _ => name.into(),
    }
}

fn any_directory(random: &mut SplitMix64) -> PathBuf {
    ["p", "q", "p/r", "q/r", "a"][random.below(5) as usize].into()
}

fn bytes(random: &mut SplitMix64) -> Vec<u8> {
    let len = match random.below(12) {
        // More than a part of a batch.
        0 => 40_000,
        1..3 => 5_000,
        _ => 200,
    };
    let len = usize::try_from(random.below(len)).unwrap();
    random.bytes(len)
}

impl Programs {
    pub(crate) fn new(changes_rules: bool) -> Self {
        Self {
            changes_rules,
            ..Self::default()
        }
    }

    /// Forgets all open files: the machine was down.
    pub(crate) fn forget(&mut self) {
        self.open.clear();
        self.logs.clear();
        self.emptied = None;
    }

    /// Closes all open files.
    pub(crate) fn close(&mut self, machine: &mut Machine) {
        if machine.up().is_none() {
            return;
        }
        self.write_emptied(machine);
        machine.before();
        let logs = self.logs.drain(..).map(|log| log.file);
        for file in self.open.drain(..).chain(logs) {
            machine.up().unwrap().programs().close(file);
        }
        machine.after();
    }

    fn name(&self, random: &mut SplitMix64) -> PathBuf {
        self.at.join(any_name(random))
    }

    fn directory(&self, random: &mut SplitMix64) -> PathBuf {
        self.at.join(any_directory(random))
    }

    /// Does one operation; some fail, as nothing is checked before.
    pub(crate) fn act(&mut self, machine: &mut Machine, random: &mut SplitMix64) {
        if machine.up().is_none() {
            return;
        }
        self.at = match &machine.own {
            Some(own) if random.coin() => {
                let own = own.clone();
                let _ = once(machine, |tree| tree.make_directory(&own, 0o755));
                own
            }
            _ => PathBuf::new(),
        };
        if self.changes_rules && random.below(8) == 0 {
            return self.rule(machine, random);
        }
        match random.below(24) {
            20..24 => self.log(machine, random),
            0..4 => self.write(machine, random),
            4..6 => self.create(machine, random),
            6..9 => self.save(machine, random),
            9 => {
                if self.open.len() < 3
                    && let Ok(file) = machine.up().unwrap().programs().open(&self.name(random))
                {
                    self.open.push(file);
                }
            }
            10 => {
                if !self.open.is_empty() {
                    let file = self.open.swap_remove(random.below(self.open.len() as u64) as usize);
                    machine.up().unwrap().programs().close(file);
                }
            }
            11 => drop(once(machine, |tree| tree.remove(&self.name(random)))),
            12 => drop(once(machine, |tree| {
                tree.make_directory(&self.directory(random), 0o755)
            })),
            13 => drop(once(machine, |tree| tree.remove_directory(&self.directory(random)))),
            14..16 => drop(once(machine, |tree| {
                tree.rename(&self.name(random), &self.name(random))
            })),
            16 => drop(once(machine, |tree| match random.below(4) {
                0 => tree.rename(&self.directory(random), &self.directory(random)),
                1 => tree.exchange(&self.name(random), &self.name(random)),
                2 => tree.make_symlink(&self.name(random), std::ffi::OsStr::new("a")),
                // One name of several that was ignored may stay: see docs/guide/limits.md.
                _ if self.changes_rules => tree.exchange(&self.name(random), &self.name(random)),
                _ => tree.link(&self.name(random), &self.name(random)),
            })),
            17 => drop(once(machine, |tree| {
                tree.truncate(&self.name(random), random.below(3_000))
            })),
            18 => drop(once(machine, |tree| {
                tree.set_mode(&self.name(random), [0o600, 0o644, 0o755][random.below(3) as usize])
            })),
            _ => self.burst(machine, random),
        }
    }

    fn write(&mut self, machine: &mut Machine, random: &mut SplitMix64) {
        let (bytes, offset) = (bytes(random), random.below(6_000));
        if let Some(file) = self.open.last().filter(|_| random.coin()) {
            let _ = once(machine, |tree| tree.write(file, offset, &bytes));
            return;
        }
        let Ok(file) = machine.up().unwrap().programs().open(&self.name(random)) else {
            return;
        };
        let _ = once(machine, |tree| tree.write(&file, offset, &bytes));
        let _ = once(machine, |tree| {
            tree.close(file);
            Ok(())
        });
    }

    fn create(&mut self, machine: &mut Machine, random: &mut SplitMix64) {
        let bytes = bytes(random);
        let Ok(file) = once(machine, |tree| tree.create(&self.name(random), 0o644)) else {
            return;
        };
        let _ = once(machine, |tree| tree.write(&file, 0, &bytes));
        match random.below(4) {
            0 => self.open.push(file),
            _ => machine.up().unwrap().programs().close(file),
        }
    }

    /// A transactional save, in one of the ways of programs (DeltaCFS section III-A): most of the
    /// content stays the same.
    fn save(&mut self, machine: &mut Machine, random: &mut SplitMix64) {
        let at = self.name(random);
        let Ok(mut content) = std::fs::read(machine.tree().join(&at)) else {
            return;
        };
        if machine.tree().join(&at).is_symlink() {
            return;
        }
        let changed = random.below(content.len() as u64 + 1) as usize;
        content.splice(changed..changed, random.bytes(20));
        self.saves += 1;
        let temporary = self.at.join(format!("t{}", self.saves % 3));
        let backup = self.at.join("old~");
        let is_moved_first = random.coin();
        if is_moved_first {
            let _ = once(machine, |tree| tree.rename(&at, &backup));
        }
        let new = if is_moved_first { &at } else { &temporary };
        let Ok(file) = once(machine, |tree| tree.create(new, 0o644)) else {
            return;
        };
        for (number, piece) in content.chunks(3_000).enumerate() {
            let _ = once(machine, |tree| tree.write(&file, number as u64 * 3_000, piece));
        }
        machine.up().unwrap().programs().close(file);
        let _ = once(machine, |tree| match is_moved_first {
            true => tree.remove(&backup),
            false => tree.rename(&temporary, &at),
        });
    }

    /// Writes a file piece by piece.
    fn burst(&mut self, machine: &mut Machine, random: &mut SplitMix64) {
        let Ok(file) = machine.up().unwrap().programs().open(&self.name(random)) else {
            return;
        };
        for _ in 0..random.below(8) {
            let (offset, bytes) = (random.below(3_000), random.bytes(30));
            let _ = once(machine, |tree| tree.write(&file, offset, &bytes));
        }
        machine.up().unwrap().programs().close(file);
    }
}

/// Files that say what is ignored.
impl Programs {
    fn rule(&mut self, machine: &mut Machine, random: &mut SplitMix64) {
        let place = |random: &mut SplitMix64| {
            let directory = ["", "", "p", "q"][random.below(4) as usize];
            self.at.join(directory).join(RULES)
        };
        let path = place(random);
        let mut text = String::new();
        for pattern in ["a\n", "/b\n", "t*\n", "*~\n", "q/\n", "r/\n", "/p\n", "!a\n"] {
            if random.below(4) == 0 {
                text.push_str(pattern);
            }
        }
        match random.below(6) {
            0 | 1 => drop(once(machine, |tree| tree.remove(&path))),
            2 => drop(once(machine, |tree| tree.rename(&path, &place(random)))),
            _ => {
                let opened = machine.up().unwrap().programs().open(&path);
                let file = match opened {
                    Ok(file) => Ok(file),
                    Err(_) => once(machine, |tree| tree.create(&path, 0o644)),
                };
                let Ok(file) = file else { return };
                let _ = once(machine, |tree| tree.truncate(&path, 0));
                let _ = once(machine, |tree| tree.write(&file, 0, text.as_bytes()));
                machine.up().unwrap().programs().close(file);
            }
        }
    }

    /// Removes all files with rules. Returns whether there were any.
    pub(crate) fn remove_rules(machine: &mut Machine) -> bool {
        let state = machine.state();
        let is_rules = |name: &&Vec<u8>| name.rsplit(|byte| *byte == b'/').next() == Some(RULES.as_bytes());
        let mut has_any = false;
        for name in state.0.keys().filter(is_rules) {
            has_any = true;
            let path = Path::new(OsStr::from_bytes(name));
            let _ = once(machine, |tree| tree.remove(path));
        }
        has_any
    }
}

/// The lines of a common file.
fn lines_of(content: &[u8]) -> Vec<Vec<u8>> {
    let lines = content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(<[u8]>::to_vec).collect()
}

/// Files that all machines append lines to.
impl Programs {
    fn log(&mut self, machine: &mut Machine, random: &mut SplitMix64) {
        let path = PathBuf::from(["log 0", "log 1"][random.below(2) as usize]);
        match random.below(9) {
            0..3 => {
                if let Some(log) = open_log(machine, &path) {
                    self.append(machine, &log);
                    close_log(machine, log);
                }
            }
            3 => {
                if self.logs.len() < 2 {
                    self.logs.extend(open_log(machine, &path));
                }
            }
            4 => {
                if let Some(log) = self.logs.pop() {
                    self.append(machine, &log);
                    self.logs.insert(0, log);
                }
            }
            5 => {
                if let Some(log) = self.logs.pop() {
                    close_log(machine, log);
                }
            }
            6 => self.empty(machine, &path, random),
            7 => self.write_emptied(machine),
            _ => self.replace(machine, &path, random),
        }
    }

    fn append(&mut self, machine: &mut Machine, log: &Log) {
        self.lines += 1;
        let line = format!("line {} of {}", self.lines, machine.name());
        let bytes = format!("{line}\n");
        let appended = once(machine, |tree| tree.append(&log.file, bytes.as_bytes()));
        // A program here that rewrites the file has not seen the line.
        let mut emptied = self.emptied.iter();
        let is_written_over = emptied.any(|(emptied, _)| emptied.inode == log.inode);
        if appended.is_ok() && !log.is_orphan && !is_written_over {
            machine.witness.lines.insert(line.into_bytes());
        }
    }

    /// Lines of a file that a program here rewrites: most stay, in another order.
    fn rewritten(machine: &mut Machine, content: &[u8], random: &mut SplitMix64) -> Vec<u8> {
        let mut lines = lines_of(content);
        lines.retain(|line| {
            machine.witness.lines.remove(line);
            random.below(4) > 0
        });
        if random.coin() {
            lines.reverse();
        }
        lines.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect()
    }

    /// Empties a file, to rewrite it later.
    fn empty(&mut self, machine: &mut Machine, path: &Path, random: &mut SplitMix64) {
        self.write_emptied(machine);
        let Some(log) = open_log(machine, path) else { return };
        let content = std::fs::read(machine.tree().join(path)).unwrap();
        if once(machine, |tree| tree.truncate(path, 0)).is_err() {
            return close_log(machine, log);
        }
        let new = Self::rewritten(machine, &content, random);
        self.emptied = Some((log, new));
    }

    fn write_emptied(&mut self, machine: &mut Machine) {
        let Some((log, content)) = self.emptied.take() else {
            return;
        };
        if once(machine, |tree| tree.write(&log.file, 0, &content)).is_ok() && !log.is_orphan {
            machine.witness.lines.extend(own_lines(machine, &content));
        }
        close_log(machine, log);
    }

    /// Writes the new content under another name, and renames it over the file.
    fn replace(&mut self, machine: &mut Machine, path: &Path, random: &mut SplitMix64) {
        use std::os::unix::fs::MetadataExt;
        let new_path = PathBuf::from(format!("log of {}", machine.name()));
        let Ok(content) = std::fs::read(machine.tree().join(path)) else {
            return;
        };
        let Ok(file) = once(machine, |tree| tree.create(&new_path, 0o644)) else {
            return;
        };
        let inode = std::fs::metadata(machine.tree().join(path)).unwrap().ino();
        let new = Self::rewritten(machine, &content, random);
        let _ = once(machine, |tree| tree.write(&file, 0, &new));
        machine.up().unwrap().programs().close(file);
        let emptied = self.emptied.iter_mut().map(|(log, _)| log);
        for log in self.logs.iter_mut().chain(emptied).filter(|log| log.inode == inode) {
            log.is_orphan = true;
        }
        if once(machine, |tree| tree.rename(&new_path, path)).is_ok() {
            machine.witness.lines.extend(own_lines(machine, &new));
        }
    }
}

/// Only the lines of this machine's programs.
fn own_lines(machine: &Machine, content: &[u8]) -> Vec<Vec<u8>> {
    let end = format!(" of {}", machine.name());
    let mut lines = lines_of(content);
    lines.retain(|line| line.ends_with(end.as_bytes()));
    lines
}

fn open_log(machine: &mut Machine, path: &Path) -> Option<Log> {
    let opened = machine.up().unwrap().programs().open(path);
    let file = match opened {
        Ok(file) => file,
        Err(_) => once(machine, |tree| tree.create(path, 0o644)).ok()?,
    };
    let inode = machine.up().unwrap().programs().inode(&file).unwrap();
    Some(Log {
        file,
        inode,
        is_orphan: false,
    })
}

fn close_log(machine: &mut Machine, log: Log) {
    let _ = once(machine, |tree| {
        tree.close(log.file);
        Ok(())
    });
}

/// Makes one call, which is one change at most.
fn once<T>(machine: &mut Machine, call: impl FnOnce(&Direct) -> io::Result<T>) -> io::Result<T> {
    machine.before();
    let done = call(machine.up().unwrap().programs());
    machine.after();
    done
}
