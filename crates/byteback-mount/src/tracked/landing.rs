//! The gate for remote changes: the same passage as for a program, of [`Origin::Remote`]. The
//! observer is no witness of it, because nothing happened here, but is asked first.
//!
//! Names that land leave the time of their directory as it was: the sender of the change says what
//! it is to be, and a local program's change of it must not be lost below the moment of landing.
//!
//! [`Order`] is held exclusively from the question to the end of the change, so that both are one:
//! no program changes anything in between. As everywhere, the log's operation has begun before.
//!
//! [`Order`]: super::observer::Order

use std::io;

use byteback_checksums::written;
use byteback_extents::ByteRange;
use byteback_host::tree::{Identity, Inode, SetTime, Stat};
use byteback_model::{NodeId, NodeKind};
use byteback_undo::ContentHow;
use rustix::fs::{AtFlags, RenameFlags};

use super::change::{Change, Content};
use super::observer::Observer;
use super::passage::{Gate, Passage};
use super::ranges::Ranges;
use super::{Object, Origin, Place, Tracked, TrackedError, TrackedResult, Victim, backing, looks_like, perform};

/// Decides whether something may land. Called with `Order` held exclusively, within an operation of
/// the log.
pub trait Arbiter {
    /// Whether it may, or why not: then nothing is done.
    ///
    /// # Errors
    /// Why not.
    fn ask(&self) -> Result<(), String>;

    /// Called when the change has landed. Nothing has happened since.
    fn mark_landed(&self);
}

/// A change of content that lands.
pub trait LandingContent {
    /// Which bytes may change, ascending, or why nothing may. Called as [`Arbiter::ask`].
    ///
    /// # Errors
    /// Why not; an error of the file.
    fn decide(&mut self) -> io::Result<Result<Vec<ByteRange>, String>>;

    /// The changes to be made to these bytes, one after the other. The sums follow each.
    fn parts(&self) -> Vec<written::Change<'_>>;

    /// Performs one of these changes. The rest of a failed change was announced nevertheless.
    ///
    /// # Errors
    /// The error of the file.
    fn perform(&self, part: &written::Change<'_>) -> io::Result<()>;

    /// Called when the change was performed, or failed on the way. Nothing has happened since.
    fn mark_landed(&mut self);
}

/// The time of a directory before names landed in it, to be put back afterwards.
struct TimeBefore<'a> {
    dir: &'a Inode,
    identity: Identity,
    mtime_ns: i128,
}

impl<'a> TimeBefore<'a> {
    fn of(place: &Place<'a>) -> Option<Self> {
        let mtime_ns = place.dir.stat().ok()?.mtime_ns;
        Some(Self {
            dir: place.dir,
            identity: place.identity,
            mtime_ns,
        })
    }

    fn put_back(&self) {
        // Where that is not allowed, neither is the time that the server tells: it is named then.
        let _ = self.dir.set_times(SetTime::Keep, SetTime::To(self.mtime_ns));
    }
}

impl Tracked {
    /// Fills `buffer` with old bytes behind the end of a file: see [`Observer::cut_off`].
    pub(crate) fn read_cut_off(&self, identity: &Identity, offset: u64, buffer: &mut [u8]) -> usize {
        let landing = self.landing_in(identity);
        landing.map_or(0, |(observer, node)| observer.cut_off(node, offset, buffer))
    }

    /// The length of a file before the piece that lands in it: see [`Observer::len_before`].
    pub(crate) fn len_before(&self, identity: &Identity) -> Option<u64> {
        let (observer, node) = self.landing_in(identity)?;
        observer.len_before(node)
    }

    /// The observer, with the number of a file, if something lands in any file.
    fn landing_in(&self, identity: &Identity) -> Option<(&dyn Observer, NodeId)> {
        let account = self.account()?;
        let observer = account
            .observer
            .as_deref()
            .filter(|observer| observer.is_anything_landing())?;
        Some((observer, account.log.node_of(identity).ok()??))
    }

    fn landing_gate(&self) -> TrackedResult<&Gate> {
        let gate = self.gate.as_ref().filter(|gate| gate.observer().is_some());
        gate.ok_or_else(|| TrackedError::Overtaken("the order of changes in this folder is not tracked".to_owned()))
    }

    fn land_names<'a, T>(
        &'a self,
        places: &[Place<'_>],
        arbiter: &dyn Arbiter,
        perform: impl FnOnce(&Passage<'a>) -> TrackedResult<T>,
    ) -> TrackedResult<T> {
        let passage = self.landing_gate()?.begin_names(Origin::Remote);
        arbiter.ask().map_err(TrackedError::Overtaken)?;
        let times: Vec<TimeBefore<'_>> = places.iter().filter_map(TimeBefore::of).collect();
        let done = perform(&passage)?;
        for time in &times {
            time.put_back();
            // Or its change time would look like a change that passed the mount by.
            if let (Ok(Some(node)), Some(operation)) = (passage.node(&time.identity), &passage.operation) {
                operation.attributes_changed(node);
            }
        }
        arbiter.mark_landed();
        Ok(done)
    }

    /// Makes something new at `place` by `make`, which answers what it looks like when nothing more
    /// is changed about it.
    ///
    /// # Errors
    /// [`TrackedError::Overtaken`]; what `make` answered.
    pub fn land_new(
        &self,
        place: Place<'_>,
        arbiter: &dyn Arbiter,
        make: impl FnOnce() -> io::Result<Stat>,
    ) -> TrackedResult<(Stat, NodeId)> {
        self.land_names(&[place], arbiter, |passage| {
            if passage.node(&place.identity)?.is_none() {
                return Err(TrackedError::Overtaken("its directory is no longer tracked".to_owned()));
            }
            let (stat, node) = perform::make(Some(passage), place, || make().map_err(backing("create")), |stat| stat)?;
            let gone = || TrackedError::Overtaken("its directory is no longer tracked".to_owned());
            Ok((stat, node.ok_or_else(gone)?))
        })
    }

    /// As [`Tracked::link`].
    ///
    /// # Errors
    /// [`TrackedError::Overtaken`]; the error of the backing directory.
    pub fn land_link(
        &self,
        object: Object,
        fd: &Inode,
        place: Place<'_>,
        arbiter: &dyn Arbiter,
    ) -> TrackedResult<Stat> {
        self.land_names(&[place], arbiter, |passage| {
            perform::link(Some(passage), object, fd, place)
        })
    }

    /// As [`Tracked::unlink`], or [`Tracked::rmdir`] of a directory.
    ///
    /// # Errors
    /// [`TrackedError::Overtaken`]; the error of the backing directory.
    pub fn land_removal(&self, place: Place<'_>, victim: Victim, arbiter: &dyn Arbiter) -> TrackedResult<()> {
        let (flags, what) = match victim.object.kind {
            NodeKind::Directory => (AtFlags::REMOVEDIR, "remove a directory"),
            _ => (AtFlags::empty(), "unlink"),
        };
        self.land_names(&[place], arbiter, |passage| {
            perform::remove(Some(passage), place, victim, flags, what)
        })
    }

    /// As [`Tracked::rename`].
    ///
    /// # Errors
    /// [`TrackedError::Overtaken`]; the error of the backing directory.
    pub fn land_rename(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
        (moved, replaced): (Victim, Option<Victim>),
        arbiter: &dyn Arbiter,
    ) -> TrackedResult<()> {
        self.land_names(&[from, to], arbiter, |passage| {
            perform::rename(Some(passage), from, to, flags, moved, replaced)
        })
    }

    /// Changes attributes by `set`, which may fail in part.
    ///
    /// # Errors
    /// [`TrackedError::Overtaken`]; an error of the log.
    pub fn land_attributes(
        &self,
        identity: &Identity,
        fd: &Inode,
        arbiter: &dyn Arbiter,
        set: impl FnOnce(),
    ) -> TrackedResult<()> {
        let gate = self.landing_gate()?;
        let Some(node) = gate.account.log.node_of(identity)? else {
            return Err(TrackedError::Overtaken("it no longer has a name".to_owned()));
        };
        let is_file = fd.stat().is_ok_and(|stat| stat.kind == NodeKind::File);
        let change = Change::Attributes { node, is_file, fd };
        let passage = gate.begin_attributes(Origin::Remote, &change)?;
        arbiter.ask().map_err(TrackedError::Overtaken)?;
        let mut underway = passage.announce(change);
        underway.perform(|| {
            set();
            Ok(())
        })?;
        underway.end();
        arbiter.mark_landed();
        Ok(())
    }

    /// Changes the content of the file that `fd` can read and write.
    ///
    /// # Errors
    /// [`TrackedError::Overtaken`]; an error of the backing file or of the log.
    pub fn land_content(
        &self,
        identity: &Identity,
        fd: &Inode,
        how: ContentHow,
        landing: &mut dyn LandingContent,
    ) -> TrackedResult<()> {
        let gate = self.landing_gate()?;
        // The intent is durable before anything else happens.
        let begun = gate.account.log.begin_content(identity, None, || looks_like(fd))?;
        let (operation, node) = begun.unzip();
        let passage = Passage {
            gate,
            origin: Origin::Remote,
            operation,
            order: gate.exclusive_order(),
        };
        let decided = landing.decide().map_err(backing("inspect a file"))?;
        let ranges = Ranges::from(decided.map_err(TrackedError::Overtaken)?);
        let is_nothing = ranges.is_empty();
        let change = match node {
            Some(node) => Change::Content(Content {
                node,
                identity: *identity,
                fd,
                how,
                ranges,
                announced: None,
                len_after_bytes: None,
                is_named: true,
            }),
            // It has lost its name; whoever has it open still sees what lands.
            None => Change::ContentOfUnknown {
                identity: *identity,
                fd,
                ranges,
            },
        };
        let mut underway = match is_nothing {
            // Nothing to announce: the whole piece has been overtaken, or is there already.
            true => passage.announce_nothing(&change),
            false => passage.announce(change),
        };
        let mut parts = landing.parts().into_iter();
        let performed = parts.try_for_each(|part| {
            let perform = || landing.perform(&part).map_err(backing("change a file"));
            underway.write(fd, part, perform, |()| true)
        });
        underway.end();
        landing.mark_landed();
        performed
    }
}
