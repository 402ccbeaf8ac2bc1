//! A tree that programs of this process use through the gate, without a mount: continuous sync as
//! simulations run it.
//!
//! This is the mounted tree ([`crate::daemon`]) without what needs a kernel or a thread: the same
//! log, gate, pictures, queue and landing. The daemon's work in the background is done on request
//! ([`Embedded::tidy`]). Dropping it without [`Embedded::end`] is a crash: what its disk did not
//! make durable is lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use byteback_control::{LandingTree, LiveTree, TreeService};
use byteback_mount::direct::Direct;
use byteback_mount::tracked::observer::Observer;
use byteback_mount::tracked::{Account, Tracked};
use byteback_oplog::{Close, TIME_TICK_NS};

use crate::daemon::{Rhythm, tidy};
use crate::error::DaemonError;
use crate::live::{Live, LiveOptions, LiveService};
use crate::service::Service;
use crate::tree::TrackedTree;

/// An embedded tree, see the module.
pub struct Embedded {
    tree: Arc<TrackedTree>,
    programs: Direct,
    service: Arc<Service>,
    live: Arc<Live>,
}

impl Embedded {
    /// Opens the gate of `tree`.
    ///
    /// # Errors
    /// If the tree's state cannot be read or written.
    pub fn start(mut tree: TrackedTree, options: LiveOptions) -> Result<Self, DaemonError> {
        let live = Arc::new(Live::open(&tree, options)?);
        tree.log().begin_tracking()?;
        let tracked = Tracked::with_account(Account {
            log: Arc::clone(tree.log()),
            pictures: Arc::clone(tree.pictures()),
            before_images: Some(Arc::clone(tree.before_images())),
            undo: None,
            observer: Some(Arc::clone(&live) as Arc<dyn Observer>),
            integrity: None,
        });
        let path = tree.folder().directory().to_owned();
        let failed = |source: io::Error| DaemonError::Folder {
            path: path.clone(),
            source,
        };
        let programs = Direct::new(&path, Arc::new(tracked)).map_err(failed)?;
        tree.compare_again()?;
        tree.begin_before_images()?;
        live.begin().map_err(failed)?;
        let watching = Arc::downgrade(&live);
        tree.log().set_on_untracked(move |_| {
            if let Some(live) = watching.upgrade() {
                live.abandon("a file was changed, bypassing the gate");
            }
        });
        let tree = Arc::new(tree);
        let service = Arc::new(Service::gated(Arc::clone(&tree)));
        Ok(Self {
            tree,
            programs,
            service,
            live,
        })
    }

    /// The calls by which programs use the tree.
    #[must_use]
    pub fn programs(&self) -> &Direct {
        &self.programs
    }

    /// The service of the tree.
    #[must_use]
    pub fn service(&self) -> Arc<dyn TreeService> {
        Arc::clone(&self.service) as Arc<dyn TreeService>
    }

    /// The changes of the tree to send.
    #[must_use]
    pub fn live(&self) -> Arc<dyn LiveTree> {
        Arc::new(self.live_service())
    }

    /// The side of the tree on which changes of others land.
    #[must_use]
    pub fn landing(&self) -> Arc<dyn LandingTree> {
        Arc::new(self.live_service())
    }

    fn live_service(&self) -> LiveService {
        let landing = self.programs.landing(self.tree.live().clone());
        LiveService::new(Arc::clone(&self.live), Arc::clone(&self.service), landing)
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> &Arc<TrackedTree> {
        &self.tree
    }

    /// Does one round of a daemon's work in the background: checkpoint, mark, compaction.
    pub fn tidy(&self, rhythm: Rhythm) {
        tidy(&self.tree, Some(&self.live), rhythm);
    }

    /// Ends in good order, as after an unmount.
    ///
    /// # Errors
    /// If the last checkpoint failed: the next start then takes more files as changed.
    pub fn end(self) -> Result<(), DaemonError> {
        let ended_at_ns = self.tree.clock().now_ns();
        self.tree
            .clock()
            .sleep(Duration::from_nanos(TIME_TICK_NS.unsigned_abs() + 5_000_000));
        let settler = self.tree.live().clone().settling_up_to(ended_at_ns);
        self.tree.log().checkpoint(&settler, Close::All)?;
        // Changes that cannot be kept are sent at the next start, with everything else since the
        // mark.
        let _ = self.live.end();
        self.tree.log().end_tracking()?;
        Ok(())
    }
}
