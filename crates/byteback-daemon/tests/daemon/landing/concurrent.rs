//! Landings beside programs at work, and with crashes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use byteback_control::Expected;
use byteback_delta::Target;
use byteback_host::random::SplitMix64;
use byteback_model::NodeKind;
use byteback_mount::CacheMode;

use super::*;
use crate::coverage::assert_saved;
use crate::live::check_tree;
use crate::live::server::{Node, Server};
use crate::operations::{Op, Random, Side, generate, look, seed};
use crate::saved::{OpenBackup, Saved};

const UNQUEUED: Expected<'static> = Expected::Unqueued;

fn pick<T: Clone>(random: &mut SplitMix64, of: &[T]) -> Option<T> {
    let index = random.below((of.len() as u64).max(1)) as usize;
    of.get(index).cloned()
}

/// Lands something below "landed" that is based on what the server has, and reports it to the
/// server.
fn land_one(landing: &dyn LandingTree, server: &mut Server, random: &mut SplitMix64) -> bool {
    let paths = server.paths("landed");
    let nodes: Vec<NodeId> = paths.values().copied().collect();
    let kind = |server: &Server, node: &NodeId| server.nodes[node].kind.unwrap();
    let directories: Vec<NodeId> = nodes
        .iter()
        .copied()
        .filter(|node| kind(server, node) == NodeKind::Directory)
        .collect();
    let Some(parent) = pick(random, &directories) else {
        return false;
    };
    let at = name_in(parent, ["a", "b", "c", "d"][random.below(4) as usize]);
    let key = (at.parent, at.name.clone());
    let there = server.names.get(&key).copied();
    match (random.below(6), there) {
        (0..=2, None) => {
            let api = [NodeKind::File, NodeKind::File, NodeKind::Directory, NodeKind::Fifo][random.below(4) as usize];
            let wanted = attributes(api);
            let Landed::Done((node, _)) = landing.make(&at, &wanted, UNQUEUED).unwrap() else {
                return false;
            };
            let kind = landing.look(node).unwrap().map(|found| found.kind);
            let made = Node {
                // A program may have removed it already.
                kind: kind.or(match api {
                    NodeKind::File => Some(NodeKind::File),
                    NodeKind::Directory => Some(NodeKind::Directory),
                    _ => Some(NodeKind::Fifo),
                }),
                attributes: Some(wanted),
                ..Node::default()
            };
            server.nodes.insert(node, made);
            server.names.insert(key, node);
        }
        (0..=1, Some(node)) => {
            let is_used = server.names.keys().any(|(parent, _)| *parent == node);
            if is_used || landing.remove(&at, node, UNQUEUED).unwrap().done().is_none() {
                return false;
            }
            server.names.remove(&key);
            server.forget_nameless();
        }
        (2..=3, Some(node)) if kind(server, &node) == NodeKind::File => {
            let Some(parent) = pick(random, &directories) else {
                return false;
            };
            let to = name_in(parent, ["a", "b", "c", "d"][random.below(4) as usize]);
            let to_key = (to.parent, to.name.clone());
            let over = server.names.get(&to_key).copied();
            let is_fine = over.is_none_or(|over| over != node && kind(server, &over) != NodeKind::Directory);
            if !is_fine || landing.rename(node, &at, &to, over, UNQUEUED).unwrap().done().is_none() {
                return false;
            }
            server.names.remove(&key);
            server.names.insert(to_key, node);
            server.forget_nameless();
        }
        (4, Some(node)) if kind(server, &node) != NodeKind::Symlink => {
            let mut wanted = server.nodes[&node].attributes.clone().unwrap();
            wanted.mode = [0o700, 0o711, 0o755][random.below(3) as usize];
            if landing
                .set_attributes(node, &wanted, UNQUEUED)
                .unwrap()
                .done()
                .is_none()
            {
                return false;
            }
            server.nodes.get_mut(&node).unwrap().attributes = Some(wanted);
        }
        (_, Some(node)) if kind(server, &node) == NodeKind::File => {
            let Landed::Done(mut file) = landing.watch_file(node, UNQUEUED).unwrap() else {
                return false;
            };
            let len = random.below(30_000);
            let bytes = random.bytes(len as usize);
            if file.set_len_bytes(len).is_err() {
                return false;
            }
            file.write_range(0, &bytes).unwrap();
            server.nodes.get_mut(&node).unwrap().content = bytes;
        }
        _ => return false,
    }
    true
}

#[test]
fn landing_beside_programs_and_cuts_ends_in_the_same_tree() {
    let seed = seed();
    let mut random = SplitMix64::new(seed);
    let mut rig = Rig::new(|tree| {
        for name in ["work", "landed"] {
            std::fs::create_dir(tree.join(name)).unwrap();
        }
    });
    let (tree, landing, client) = (rig.fixture.tree(), rig.landing(), rig.fixture.client());
    let (mut saved, mut begun) = (Saved::default(), None);
    let stop = AtomicBool::new(false);
    let (mut landed, mut cuts) = (0, 0);
    std::thread::scope(|scope| {
        // Also if an assertion fails: the scope waits for the workers.
        scopeguard::defer! { stop.store(true, Ordering::SeqCst) }
        for (index, name) in ["work", "landed"].into_iter().enumerate() {
            let (dir, stop) = (tree.join(name), &stop);
            scope.spawn(move || {
                let mut random = Random::new(seed + index as u64);
                let mut side = Side::new(dir);
                while !stop.load(Ordering::SeqCst) {
                    let op = generate(&mut random);
                    // A program that maps files of a daemon in the same process may wait for it for
                    // ever.
                    if !matches!(op, Op::Store { .. } | Op::Umask { .. }) {
                        let _ = side.apply(&op);
                    }
                    if random.below(4) == 0 {
                        std::thread::sleep(Duration::from_millis(random.below(6)));
                    }
                }
                side.close_all();
            });
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(6) || landed < 50 {
            assert!(began.elapsed() < Duration::from_secs(600), "{landed} landed");
            rig.drain.step();
            for _ in 0..3 {
                landed += usize::from(land_one(&*landing, &mut rig.drain.server, &mut random));
            }
            if random.below(30) == 0 {
                match begun.take() {
                    None => begun = Some(OpenBackup::cut(&client, "other")),
                    Some(cut) => {
                        cut.save(&client, &mut saved);
                        cuts += 1;
                    }
                }
            }
        }
    });
    rig.drain.finish();
    check_tree(&rig.drain.server, &tree);
    if let Some(cut) = begun.take() {
        cut.save(&client, &mut saved);
    }
    OpenBackup::cut(&client, "other").save(&client, &mut saved);
    assert_saved(CacheMode::Exact, &saved, &look(&tree), &|| format!("seed {seed}"));
    println!("{landed} landed, {cuts} cuts; {}", rig.drain.summary());
    drop(client);
    rig.end();
}

/// Lands something somewhere, whatever waits to be sent.
pub(crate) fn land_at_random(landing: &dyn LandingTree, random: &mut SplitMix64) {
    const ANYHOW: Expected<'static> = Expected::Folded(&[]);
    let Ok(top) = landing.entries(NodeId::ROOT, None) else {
        return;
    };
    let mut directories = vec![NodeId::ROOT];
    directories.extend(
        top.iter()
            .filter(|entry| entry.kind == NodeKind::Directory)
            .map(|entry| entry.node),
    );
    let Some(parent) = pick(random, &directories) else {
        return;
    };
    let at = name_in(parent, ["a", "b", "c", "d", "e"][random.below(5) as usize]);
    let there = landing.child(&at).unwrap();
    // Refused or overtaken steps do not matter: the programs at work here know nothing of this.
    match (random.below(6), there) {
        (_, None) => {
            let kind = [NodeKind::File, NodeKind::File, NodeKind::Directory, NodeKind::Fifo][random.below(4) as usize];
            let _ = landing.make(&at, &attributes(kind), ANYHOW);
        }
        (0, Some(node)) => drop(landing.remove(&at, node, ANYHOW)),
        (1, Some(node)) => {
            let to = name_in(NodeId::ROOT, ["a", "b", "c", "d", "e"][random.below(5) as usize]);
            let over = landing.child(&to).unwrap();
            drop(landing.rename(node, &at, &to, over, ANYHOW));
        }
        (2, Some(node)) => drop(landing.set_attributes(node, &attributes(NodeKind::File), ANYHOW)),
        (3, Some(_)) => drop(landing.sync()),
        (_, Some(node)) => {
            if let Ok(Landed::Done(mut file)) = landing.watch_file(node, ANYHOW) {
                let len = random.below(90_000);
                let bytes = random.bytes(len as usize / 2);
                let _ = file.set_len_bytes(len);
                let _ = file.write_range(len / 3, &bytes);
            }
        }
    }
}

#[test]
fn daemon_killed_during_a_landing_knows_of_it_afterwards() {
    let seed = seed();
    let mut random = SplitMix64::new(seed);
    let mut fixture = Fixture::new(CacheMode::Exact);
    let mut saved = Saved::default();
    fixture.live = Some(crate::live::options(Duration::ZERO));
    for life in 0..8 {
        fixture.lands = Some(seed + life);
        fixture.mount_mortal();
        let client = fixture.client();
        OpenBackup::cut(&client, "other").save(&client, &mut saved);
        drop(client);
        std::thread::sleep(Duration::from_millis(100 + random.below(400)));
        fixture.kill();
        fixture.mount();
        let client = fixture.client();
        OpenBackup::cut(&client, "other").save(&client, &mut saved);
        drop(client);
        assert_saved(CacheMode::Exact, &saved, &look(&fixture.tree()), &|| {
            format!("seed {seed}, life {life}")
        });
        fixture.umount();
    }
    let names = look(&fixture.tree()).len();
    println!("{names} names");
    assert!(names > 2);
}

/// The cost of landing a tree of small files.
#[test]
#[ignore = "it measures"]
fn cost_of_a_tree_of_small_files() {
    const FILES: usize = 10_000;
    let rig = Rig::new(|_| {});
    let landing = rig.landing();
    let began = Instant::now();
    let mut directory = NodeId::ROOT;
    for number in 0..FILES {
        if number % 100 == 0 {
            let at = name_in(NodeId::ROOT, &format!("dir{}", number / 100));
            directory = done(landing.make(&at, &attributes(NodeKind::Directory), UNQUEUED)).0;
        }
        land_file(&*landing, &name_in(directory, &format!("file{number}")), &[7; 2000]);
    }
    let landed = began.elapsed();
    landing.sync().unwrap();
    println!(
        "{FILES} files landed in {landed:?}, durable after {:?}",
        began.elapsed()
    );
    rig.assert_silent();
    rig.end();
}
