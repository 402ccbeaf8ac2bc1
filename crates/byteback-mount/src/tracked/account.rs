//! The recipients of each change.

use std::sync::Arc;

use byteback_oplog::Log;
use byteback_undo::Undo;

use super::observer::Observer;
use crate::before_images::BeforeImages;
use crate::integrity::Integrity;
use crate::picture::Pictures;

/// The recipients of each change.
#[derive(Clone)]
pub struct Account {
    /// The log of the tree.
    pub log: Arc<Log>,
    /// The pictures that are being read.
    pub pictures: Arc<Pictures>,
    /// The bytes that were overwritten since the last backup, if they are kept.
    pub before_images: Option<Arc<BeforeImages>>,
    /// The store of overwritten bytes, if old bytes are kept for a while.
    pub undo: Option<Arc<Undo>>,
    /// The observer of each change in order, if there is one.
    pub observer: Option<Arc<dyn Observer>>,
    /// The sums of written blocks, if they are kept.
    pub integrity: Option<Arc<Integrity>>,
}
