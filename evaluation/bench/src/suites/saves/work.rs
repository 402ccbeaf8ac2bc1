//! The work of a program that saves.

use std::path::Path;

use crate::SuiteError;

/// A work, before it is prepared: some take long to read, so only one is in memory at a time.
pub(super) struct Case {
    pub(super) name: String,
    /// The absolute goal of the bytes up, in KB, if it has one.
    pub(super) at_most_kb: Option<f64>,
    pub(super) load: Box<dyn Fn() -> Result<Box<dyn Work>, SuiteError>>,
}

/// A work that can be done several times, each time in a copy of the same folder.
pub(super) trait Work {
    /// The number of saves.
    fn saves(&self) -> usize;

    /// Fills the empty folder.
    fn prepare(&self, folder: &Path) -> Result<(), SuiteError>;

    /// Starts the program in a copy of that folder.
    fn open<'a>(&'a self, folder: &'a Path) -> Result<Box<dyn Saves + 'a>, SuiteError>;

    /// Checks that the work ended as it must.
    fn check(&self, _folder: &Path) -> Result<(), SuiteError> {
        Ok(())
    }
}

/// A program at work.
pub(super) trait Saves {
    /// Performs the next save; `index` counts from 0.
    fn save(&mut self, index: usize) -> Result<(), SuiteError>;
}

impl<F: FnMut(usize) -> Result<(), SuiteError>> Saves for F {
    fn save(&mut self, index: usize) -> Result<(), SuiteError> {
        self(index)
    }
}

/// A work without a state of its own between two saves.
pub(super) struct Simple<P, S> {
    pub(super) saves: usize,
    pub(super) prepare: P,
    pub(super) save: S,
}

impl<P, S> Work for Simple<P, S>
where
    P: Fn(&Path) -> Result<(), SuiteError>,
    S: Fn(&Path, usize) -> Result<(), SuiteError>,
{
    fn saves(&self) -> usize {
        self.saves
    }

    fn prepare(&self, folder: &Path) -> Result<(), SuiteError> {
        (self.prepare)(folder)
    }

    fn open<'a>(&'a self, folder: &'a Path) -> Result<Box<dyn Saves + 'a>, SuiteError> {
        Ok(Box::new(move |index: usize| (self.save)(folder, index)))
    }
}

/// A case of a work that is made of two functions.
pub(super) fn simple<P, S>(name: &str, saves: usize, prepare: P, save: S) -> Case
where
    P: Fn(&Path) -> Result<(), SuiteError> + Clone + 'static,
    S: Fn(&Path, usize) -> Result<(), SuiteError> + Clone + 'static,
{
    Case {
        name: name.to_owned(),
        at_most_kb: None,
        load: Box::new(move || {
            Ok(Box::new(Simple {
                saves,
                prepare: prepare.clone(),
                save: save.clone(),
            }))
        }),
    }
}

impl Case {
    /// Sets the absolute goal of the bytes up.
    pub(super) fn at_most_kb(mut self, limit: f64) -> Self {
        self.at_most_kb = Some(limit);
        self
    }
}
