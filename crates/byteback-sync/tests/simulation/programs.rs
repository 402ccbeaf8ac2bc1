//! What programs do in a folder: at random, on few names, so that they meet.

use super::machine::Machine;
use byteback_host::random::SplitMix64;
use byteback_mount::direct::{Direct, DirectFile};
use std::io;
use std::path::{Path, PathBuf};

/// Files that programs keep open, and where they are at work: everywhere, or in the directory that is their machine's own.
#[derive(Default)]
pub(crate) struct Programs {
    open: Vec<DirectFile>,
    at: PathBuf,
    saves: u64,
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
    /// Nothing is open any more: the machine was down.
    pub(crate) fn forget(&mut self) {
        self.open.clear();
    }

    /// Closes what is open.
    pub(crate) fn close(&mut self, machine: &mut Machine) {
        if machine.up().is_none() {
            return;
        }
        machine.before();
        for file in self.open.drain(..) {
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

    /// Does one thing; some fail, as nobody looks before.
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
        match random.below(20) {
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

    /// A transactional save, in one of the ways of programs (DeltaCFS section III-A): most of the content stays the same.
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

    /// A file that is written piece by piece.
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

/// Makes one call, which is one change at most.
fn once<T>(machine: &mut Machine, call: impl FnOnce(&Direct) -> io::Result<T>) -> io::Result<T> {
    machine.before();
    let done = call(machine.up().unwrap().programs());
    machine.after();
    done
}
