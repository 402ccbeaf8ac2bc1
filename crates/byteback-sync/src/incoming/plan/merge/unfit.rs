//! Names of the server that this tree does not hold: impossible ones, those that the file system
//! refuses, and those that are ignored here.

use byteback_model::{FileId, NodeKind, Place};
use std::collections::HashSet;

use super::super::PlanError;
use super::super::names::unfit;
use super::{Merge, View};

type Result<T> = std::result::Result<T, PlanError>;

/// Reason why this tree does not hold a name of the server.
#[derive(Clone, Copy)]
pub(super) struct Unfit {
    pub(super) why: &'static str,
    /// If it is ignored here: whether it is a directory.
    pub(super) ignored: Option<bool>,
}

impl View<'_> {
    /// Whether a name stands here for an ignored node.
    pub(super) fn is_hidden(&self, place: &Place<FileId>) -> Result<bool> {
        Ok(match self.inner_place(place) {
            Some(inner) => self.here.may_ignore() && self.here.is_hidden(&inner)?,
            None => false,
        })
    }

    pub(super) fn is_withheld(&self, directory: FileId) -> bool {
        let inner = self.inner(directory);
        inner.is_some_and(|inner| self.here.may_ignore() && self.here.is_withheld(inner))
    }

    pub(super) fn holds_hidden(&self, directory: FileId) -> Result<bool> {
        Ok(match self.inner(directory) {
            Some(inner) => self.here.may_ignore() && self.here.holds_hidden(inner)?,
            None => false,
        })
    }
}

impl Merge<'_, '_> {
    /// Reason why this tree cannot hold a name of the server.
    pub(super) fn unfit(&mut self, place: &Place<FileId>, id: FileId) -> Result<Option<Unfit>> {
        let refused = || {
            self.given
                .refused
                .contains(place)
                .then_some("the file system refuses it")
        };
        match unfit(place, self.view.root()).or_else(refused) {
            Some(why) => Ok(Some(Unfit { why, ignored: None })),
            None => self.ignored(place, id),
        }
    }

    /// Whether a name that stands for `id` there is ignored here, or the node under it here is.
    pub(super) fn ignored(&mut self, place: &Place<FileId>, id: FileId) -> Result<Option<Unfit>> {
        if !self.view.here.may_ignore() {
            return Ok(None);
        }
        let here = self.view.node(id)?.map(|node| node.attributes.kind);
        let Some(kind) = here.or_else(|| self.attributes_there(id).map(|there| there.kind)) else {
            return Ok(None);
        };
        let is_directory = kind == NodeKind::Directory;
        let is_ignored = match self.path_of(place.parent)? {
            Some(mut path) => {
                path.push(place.name.as_bytes().to_vec());
                self.view.here.is_ignored(&path.join(&b'/'), is_directory)
            }
            None => false,
        };
        let is_ignored = is_ignored || self.view.is_hidden(place)?;
        Ok(is_ignored.then_some(Unfit {
            why: "it is ignored here",
            ignored: Some(is_directory),
        }))
    }

    /// The names that lead from the root to a directory, as they will be; `None` if that is not
    /// known.
    fn path_of(&mut self, directory: FileId) -> Result<Option<Vec<Vec<u8>>>> {
        let (mut names, mut walked) = (Vec::new(), HashSet::new());
        let mut current = directory;
        while current != self.view.root() {
            let mut place = self.placed.get(&current).and_then(|places| places.first()).cloned();
            if place.is_none() {
                let node = self.view.node(current)?;
                place = node.and_then(|node| node.places.into_iter().next());
            }
            let Some(place) = place.filter(|_| walked.insert(current)) else {
                return Ok(None);
            };
            names.push(place.name.as_bytes().to_vec());
            current = place.parent;
        }
        names.reverse();
        Ok(Some(names))
    }
}
