//! Opens directories of a tree, one after the other, at the cost of the way between them.
//!
//! [`super::open_beneath`] walks down from the root each time, which costs the square of the depth
//! in a tree as deep as it has directories. A [`Descent`] remembers the path to the directory that
//! it opened last, and continues from the nearest ancestor shared with the next one. It keeps the
//! last [`NEAR`] descriptors of the path and some farther up, so that few are open at any depth.
//!
//! A descent keeps directories, not names: a directory that is moved or replaced meanwhile is still
//! the one that was opened. Symlinks are refused on every step.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, OFlags};

use super::{open_at, open_dot};

/// Number of directories kept at the end of the path.
const NEAR: usize = 16;

/// Approximate number of directories kept farther up, evenly spaced.
const FAR: usize = 64;

/// See the module's header.
#[derive(Debug)]
pub struct Descent {
    root: OwnedFd,
    /// The path of the directory opened last.
    path: Vec<u8>,
    /// The end of each component in it, and its directory if that is kept.
    way: Vec<(usize, Option<OwnedFd>)>,
}

impl Descent {
    /// Below `root`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(root: impl AsFd) -> io::Result<Self> {
        Ok(Self {
            root: open_dot(root.as_fd())?,
            path: Vec::new(),
            way: Vec::new(),
        })
    }

    /// Names the directory at `below`, components with single slashes between them; nothing is the
    /// root. The descriptor is an `O_PATH` one.
    ///
    /// # Errors
    /// `NotADirectory` if anything on the way is something else, symlinks included; `InvalidInput`
    /// for a path that leads elsewhere than down.
    pub fn open(&mut self, below: &[u8]) -> io::Result<OwnedFd> {
        self.go_up_to_shared(below);
        let (mut at, from) = self.nearest()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        // Levels that are on the path already, but were not kept.
        for level in from..self.way.len() {
            let name = self.component(level);
            at = open_at(&at, OsStr::from_bytes(name), flags, Mode::empty())?;
            // A caller that goes up will want the next levels soon.
            let is_near = level + NEAR >= self.way.len();
            if let Some((_, kept)) = self.way.get_mut(level).filter(|_| is_near) {
                *kept = Some(at.try_clone()?);
            }
        }
        let shared_len = self.path.len();
        let rest = match shared_len {
            0 => below,
            len => below.get(len + 1..).unwrap_or_default(),
        };
        for name in rest.split(|byte| *byte == b'/').filter(|_| !rest.is_empty()) {
            let deeper = open_at(&at, OsStr::from_bytes(name), flags, Mode::empty())?;
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name);
            self.way.push((self.path.len(), Some(deeper.try_clone()?)));
            at = deeper;
            self.thin_out();
        }
        Ok(at)
    }

    /// Forgets the end of the way that does not lead to `below`.
    fn go_up_to_shared(&mut self, below: &[u8]) {
        let equal = self
            .path
            .iter()
            .zip(below)
            .take_while(|(one, other)| one == other)
            .count();
        // The whole components among the equal bytes.
        let is_border = |end: usize| end <= equal && (end == below.len() || below.get(end) == Some(&b'/'));
        let shared = self.way.partition_point(|(end, _)| is_border(*end));
        self.way.truncate(shared);
        let len = self.way.last().map_or(0, |(end, _)| *end);
        self.path.truncate(len);
    }

    /// The deepest kept directory of the path, and its level.
    fn nearest(&self) -> io::Result<(OwnedFd, usize)> {
        let kept = self.way.iter().rposition(|(_, dir)| dir.is_some());
        let dir = kept.and_then(|level| Some((self.way.get(level)?.1.as_ref()?, level + 1)));
        match dir {
            Some((dir, levels)) => Ok((dir.try_clone()?, levels)),
            None => Ok((self.root.try_clone()?, 0)),
        }
    }

    fn component(&self, level: usize) -> &[u8] {
        let end = self.way.get(level).map_or(0, |(end, _)| *end);
        let start = match level.checked_sub(1).and_then(|above| self.way.get(above)) {
            Some((above, _)) => above + 1,
            None => 0,
        };
        self.path.get(start..end).unwrap_or_default()
    }

    /// Closes the descriptor that is not near any more, unless it is one of the few farther up.
    fn thin_out(&mut self) {
        let Some(level) = self.way.len().checked_sub(NEAR + 1) else {
            return;
        };
        let spacing = (level / FAR).next_power_of_two().max(FAR);
        if level % spacing != 0
            && let Some((_, dir)) = self.way.get_mut(level)
        {
            *dir = None;
        }
        // The way has become so long that every other one goes.
        if level % (spacing * FAR / 2) == 0 {
            for (at, (_, dir)) in self.way.iter_mut().take(level).enumerate() {
                if at % spacing != 0 {
                    *dir = None;
                }
            }
        }
    }
}
