//! A keeper in memory, and the tests of other rooms once more with layers beside the files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Weak;

use super::*;

/// The volume's promise, in memory: a file that is made durable takes all its waiting layers with
/// it.
#[derive(Default)]
pub(crate) struct MemoryKeeper {
    tree: Mutex<Option<TreeId>>,
    layers: Mutex<BTreeMap<(NodeId, Epoch), Vec<u8>>>,
    /// The state of each file when its waiting layers were last put, by node.
    noted: Mutex<BTreeMap<NodeId, (u64, Fence)>>,
    /// The present state of files, by inode.
    looks: Mutex<BTreeMap<u64, Fence>>,
    waiting: Mutex<Option<Arc<dyn WaitingLayers>>>,
}

impl fmt::Debug for MemoryKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryKeeper").finish_non_exhaustive()
    }
}

impl MemoryKeeper {
    /// Says what files look like.
    pub(crate) fn look(&self, looks: BTreeMap<u64, Fence>) {
        *self.looks.lock() = looks;
    }

    /// Puts all that waits: everything is durable as it is.
    pub(crate) fn flush_waiting(&self) {
        let waiting = self.waiting.lock().clone();
        let waiting = waiting.map_or_else(Vec::new, |waiting| waiting.all());
        let mut layers = self.layers.lock();
        for waiting in waiting {
            let place = (waiting.node, waiting.epoch);
            if layers.contains_key(&place) || !waiting.is_of_attributes() {
                let sum = waiting.over(layers.get(&place).map(Vec::as_slice));
                layers.insert(place, sum.bytes);
                if let Some(fence) = self.looks.lock().get(&waiting.inode) {
                    self.noted.lock().insert(waiting.node, (waiting.inode, *fence));
                }
            }
        }
    }

    /// How many layers there are.
    pub(crate) fn count(&self) -> usize {
        self.layers.lock().len()
    }

    fn places(&self) -> Vec<(NodeId, Epoch)> {
        self.layers.lock().keys().copied().collect()
    }
}

impl LayerKeeper for MemoryKeeper {
    fn found(&self, tree: TreeId) -> io::Result<Vec<FoundLayer>> {
        *self.waiting.lock() = None;
        if self.tree.lock().replace(tree) != Some(tree) {
            self.layers.lock().clear();
            self.noted.lock().clear();
        }
        let (noted, looks) = (self.noted.lock(), self.looks.lock());
        let found = self.places().into_iter().map(|(node, epoch)| {
            let noted = noted.get(&node);
            let explained = noted.filter(|(inode, fence)| looks.get(inode) == Some(fence));
            let explained = explained.map(|(_, fence)| *fence);
            FoundLayer { node, epoch, explained }
        });
        Ok(found.collect())
    }

    fn begin(&self, waiting: Arc<dyn WaitingLayers>) {
        *self.waiting.lock() = Some(waiting);
    }

    fn get(&self, node: NodeId, epoch: Epoch) -> io::Result<Option<Vec<u8>>> {
        Ok(self.layers.lock().get(&(node, epoch)).cloned())
    }

    fn put(&self, node: NodeId, epoch: Epoch, layer: &KeptLayer) -> io::Result<()> {
        self.layers.lock().insert((node, epoch), layer.bytes.clone());
        Ok(())
    }

    fn remove(&self, node: NodeId, epoch: Epoch) -> io::Result<()> {
        self.layers.lock().remove(&(node, epoch));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.flush_waiting();
        Ok(())
    }
}

thread_local! {
    static KEEPER: RefCell<Option<Arc<MemoryKeeper>>> = const { RefCell::new(None) };
}

/// The keeper of layers for the logs that this thread opens, if any.
pub(crate) fn keeper() -> Option<Arc<MemoryKeeper>> {
    KEEPER.with_borrow(Clone::clone)
}

pub(crate) fn as_keeper(keeper: &Option<Arc<MemoryKeeper>>) -> Option<Arc<dyn LayerKeeper>> {
    keeper.clone().map(|keeper| keeper as Arc<dyn LayerKeeper>)
}

/// Runs a test with layers beside the files.
pub(crate) fn beside(test: impl FnOnce()) -> Arc<MemoryKeeper> {
    let keeper = Arc::new(MemoryKeeper::default());
    KEEPER.set(Some(Arc::clone(&keeper)));
    test();
    KEEPER.set(None);
    keeper
}

#[test]
fn a_log_is_let_go_though_its_keeper_is_not() {
    use byteback_host::clock::SimClock;
    use byteback_host::durable::DurableDir;
    use byteback_host::random::SimRandomness;
    use byteback_host::sim::SimDisk;
    let dir: Arc<dyn DurableDir> = Arc::new(SimDisk::new(1));
    let keeper = Some(Arc::new(MemoryKeeper::default()));
    let clock = Arc::new(SimClock::new(1_000));
    let random = SimRandomness::new(7);
    let log = crate::Log::open_kept(&dir, as_keeper(&keeper), clock, &random, crate::LogOptions::default()).unwrap();
    let kept: Weak<KeeperHandle> = Arc::downgrade(log.kept.as_ref().unwrap());
    drop(log);
    assert!(kept.upgrade().is_none());
    // And no intents are there.
    assert_eq!(dir.list().unwrap(), ["log.redb"]);
}

#[test]
fn log_is_opened_only_with_the_keeper_it_began_with_or_without() {
    use byteback_host::clock::SimClock;
    use byteback_host::durable::DurableDir;
    use byteback_host::random::SimRandomness;
    use byteback_host::sim::SimDisk;
    let keeper = as_keeper(&Some(Arc::new(MemoryKeeper::default())));
    let random = SimRandomness::new(7);
    for (started, other) in [(keeper.clone(), None), (None, keeper)] {
        let dir: Arc<dyn DurableDir> = Arc::new(SimDisk::new(1));
        let open = |keeper: &Option<Arc<dyn LayerKeeper>>| {
            let (clock, options) = (Arc::new(SimClock::new(1_000)), crate::LogOptions::default());
            crate::Log::open_kept(&dir, keeper.clone(), clock, &random, options)
        };
        drop(open(&started).unwrap());
        let files = dir.list().unwrap();
        let refused = open(&other).map(drop).unwrap_err();
        match &started {
            // Layers would be missing.
            Some(_) => assert!(matches!(refused, LogError::LayersBeside), "{refused}"),
            None => assert!(matches!(refused, LogError::LayersInDatabase), "{refused}"),
        }
        assert_eq!(dir.list().unwrap(), files);
        drop(open(&started).unwrap());
    }
}
