//! From nodes to files, while names move.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use byteback_host::clock::RealClock;
use byteback_host::durable::DurableDir;
use byteback_host::random::{SimRandomness, SplitMix64};
use byteback_host::sim::SimDisk;

use super::*;
use byteback_host::tree::Inode;

fn tracked(dir: &std::path::Path) -> LiveTree {
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let disk: Arc<dyn DurableDir> = Arc::new(SimDisk::new(1));
    let log = Arc::new(Log::open(&disk, Arc::clone(&clock), &SimRandomness::new(1)).unwrap());
    let root = Arc::new(Inode::from(fs::File::open(dir).unwrap()));
    let live = LiveTree::new(root, Arc::clone(&log), clock);
    log.scan(&live, &mut |_| {}).unwrap();
    live
}

/// A node of the tree, as this test knows it.
struct Known {
    node: NodeId,
    ino: u64,
    parent: usize,
    name: String,
}

fn path_of(known: &[Known], mut at: usize) -> PathBuf {
    let mut names = Vec::new();
    while at != 0 {
        names.push(known[at].name.as_str());
        at = known[at].parent;
    }
    names.into_iter().rev().collect()
}

/// More directories than are kept, looked for at random while they are renamed and exchanged by way
/// of the log: what is found is the node that was asked for, whatever was kept on the way.
#[test]
fn a_node_is_found_wherever_it_was_moved_to() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = SplitMix64::new(5);
    let mut known = vec![Known {
        node: NodeId::ROOT,
        ino: 0,
        parent: 0,
        name: String::new(),
    }];
    for number in 1..300 {
        let parent = if random.coin() {
            random.below(number) as usize
        } else {
            number as usize - 1
        };
        let name = format!("d{number}");
        known.push(Known {
            node: NodeId::ROOT,
            ino: 0,
            parent,
            name: name.clone(),
        });
        fs::create_dir(dir.path().join(path_of(&known, number as usize))).unwrap();
    }
    let live = tracked(dir.path());
    for at in 1..known.len() {
        known[at].ino = fs::metadata(dir.path().join(path_of(&known, at))).unwrap().ino();
        let parent = known[known[at].parent].node;
        known[at].node = live.log().child(parent, OsStr::new(&known[at].name)).unwrap().unwrap();
    }
    for step in 0..3000 {
        let at = 1 + random.below(known.len() as u64 - 1) as usize;
        if random.below(4) == 0 {
            let to = random.below(known.len() as u64) as usize;
            let mut above = to;
            while above != 0 && above != at {
                above = known[above].parent;
            }
            if above == at {
                continue;
            }
            let name = format!("m{step}");
            let (from, into) = (path_of(&known, at), path_of(&known, to).join(&name));
            let operation = live.log().begin();
            fs::rename(dir.path().join(from), dir.path().join(into)).unwrap();
            let before = (known[known[at].parent].node, OsStr::new(&known[at].name));
            operation.renamed(before, (known[to].node, OsStr::new(&name)), known[at].node, None);
            drop(operation);
            (known[at].parent, known[at].name) = (to, name);
        }
        let (_, stat) = live.find(known[at].node).unwrap().unwrap();
        assert_eq!(stat.ino, known[at].ino, "step {step}");
        assert!(live.directories.len() <= 64);
    }
    assert_eq!(live.directories.len(), 64, "the test is too small to let anything go");
    let gone = NodeId(known.iter().map(|known| known.node.0).max().unwrap() + 1);
    assert!(live.find(gone).unwrap().is_none());
}

/// As a checkpoint asks: one after the other, as they came into being.
#[test]
fn a_chain_of_directories_costs_each_of_its_links_a_few_steps() {
    const DEPTH: u64 = 20_000;
    let directories = KeptDirectories::default();
    let asked = Cell::new(0_u64);
    let place_of = |node: NodeId| -> Result<_, ()> {
        asked.set(asked.get() + 1);
        Ok(Some((NodeId(node.0 - 1), OsString::from("a"))))
    };
    let any = Arc::new(Inode::from(fs::File::open("/").unwrap()));
    for node in NodeId::ROOT.0 + 1..=DEPTH {
        let way = directories.way_to(NodeId(node), place_of, DEPTH_MAX).unwrap().unwrap();
        let (_, on_the_way) = way.steps.split_last().unwrap();
        for (step, _) in on_the_way {
            directories.keep(*step, Arc::clone(&any));
        }
    }
    assert!(asked.get() < 3 * DEPTH, "{} questions", asked.get());
    let too_deep = directories.way_to(NodeId(DEPTH * 2), place_of, 1000);
    assert!(matches!(too_deep, Err(WayError::TooDeep)));
}
