//! How far the rules in force are known to hold for what is here and at the server, as a pure state
//! machine. [`Stage::next`] and [`Stage::review`] are its table; the parent does what they say.
//!
//! Three things may be due, each independent of the others: a walk of the tree by the rules in
//! force, a look into the files that state rules, and names to be reported again. Nothing is due
//! before the rules in force were read.

#[cfg(test)]
mod tests;

/// Whether the server has anything from this directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum LocalTree {
    /// Nothing was sent by any rules: those in the files are in force at once.
    New,
    /// The noted rules are in force.
    Known,
}

/// The walk of the tree by the rules in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// Not made since the engine began, or not noted completely.
    Due,
    /// Made, and all that follows is durable.
    Made,
}

/// The files that state rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// To be read again.
    Due,
    /// Read; changes of programs are seen in the log.
    Read,
}

/// Names of files that have several, some of which may have been ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// There are some that no fold has reported yet.
    Due,
    /// All are reported.
    CutReport,
}

/// Stage of the ignore turn: see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The rules in force are not read yet.
    Unread(LocalTree),
    /// The rules in force are known.
    Known {
        /// The walk by them.
        walk: Walk,
        /// The files that may state others.
        files: Files,
        /// Names to be reported again.
        names: Names,
    },
}

/// Purpose of a cut that is reviewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutFor {
    /// A fold is sent from it.
    Fold,
    /// Others' changes are to land after it.
    Landing,
}

/// Changes that a cut reports, and the rules that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    /// A file that states rules, or may become one.
    pub(super) has_sources: bool,
    /// A directory has another place.
    pub(super) has_moved: bool,
    /// Anything is, or may be, ignored.
    pub(super) may_ignore: bool,
}

/// Extent of a review of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Review {
    /// None: nothing is or was ignored.
    Nothing,
    /// The tree is walked, as it was before.
    WalkAgain,
    /// The tree is walked for the first time.
    WalkFirst,
    /// The tree is walked, and the files that state rules are read.
    WalkAndRead,
}

/// Step of the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The rules in force were read, and compared with the files.
    Loaded(Files),
    /// Others' changes landed that may state other rules.
    Landed,
    /// Nodes here and at the server are to be brought together.
    Joined,
    /// A review begins.
    ReviewBegins,
    /// A review has decided how names are reported.
    Decided(Review),
    /// All that follows from a review is durable.
    Reviewed(Review),
    /// Rules come into force.
    TurnBegins,
    /// The coming rules are in force.
    TurnEnds(Names),
    /// A fold with the names to be reported again is at the server.
    Sent,
}

impl Stage {
    /// The stage after a step.
    pub(super) const fn next(self, step: Step) -> Self {
        let (walk, files, names) = match (self, step) {
            (Self::Unread(_), Step::Loaded(files)) => (Walk::Due, files, Names::CutReport),
            (Self::Unread(_), _) => return self,
            (Self::Known { walk, files, names }, step) => match step {
                Step::Loaded(files) => (walk, files, names),
                Step::Landed | Step::TurnBegins => (walk, Files::Due, names),
                Step::Joined | Step::Decided(Review::WalkFirst | Review::WalkAndRead) => (walk, files, Names::Due),
                Step::Decided(Review::Nothing | Review::WalkAgain) => (walk, files, names),
                Step::ReviewBegins => (Walk::Due, files, names),
                Step::Reviewed(Review::WalkAndRead) => (Walk::Made, Files::Read, names),
                Step::Reviewed(Review::Nothing | Review::WalkAgain | Review::WalkFirst) => (Walk::Made, files, names),
                Step::TurnEnds(Names::Due) => (walk, Files::Read, Names::Due),
                Step::TurnEnds(Names::CutReport) => (walk, Files::Read, names),
                Step::Sent => (walk, files, Names::CutReport),
            },
        };
        Self::Known { walk, files, names }
    }

    /// The review that a cut needs. Only the cut of a fold brings other rules.
    pub(super) const fn review(self, cut: CutFor, changed: &Changed) -> Review {
        let (walk, files, names) = match self {
            Self::Unread(_) => (Walk::Due, Files::Read, Names::CutReport),
            Self::Known { walk, files, names } => (walk, files, names),
        };
        match (cut, walk, files, names) {
            (_, _, Files::Read, Names::CutReport) if !changed.has_sources && !changed.may_ignore => Review::Nothing,
            (CutFor::Landing, Walk::Due, ..) => Review::WalkFirst,
            (CutFor::Landing, Walk::Made, ..) => Review::WalkAgain,
            (CutFor::Fold, Walk::Due, ..) | (CutFor::Fold, _, Files::Due, _) => Review::WalkAndRead,
            (CutFor::Fold, Walk::Made, Files::Read, _) if changed.has_sources || changed.has_moved => {
                Review::WalkAndRead
            }
            (CutFor::Fold, Walk::Made, Files::Read, _) => Review::WalkAgain,
        }
    }

    /// Whether the tree was walked by the rules in force.
    pub(super) const fn is_reviewed(self) -> bool {
        matches!(self, Self::Known { walk: Walk::Made, .. })
    }

    /// Whether names are to be reported again.
    pub(super) const fn has_names_to_tell(self) -> bool {
        matches!(self, Self::Known { names: Names::Due, .. })
    }
}
