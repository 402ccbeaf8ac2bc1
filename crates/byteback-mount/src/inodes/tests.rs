//! The life of nodes: numbers, names, and when an entry dies.

use super::*;

const DEV: u64 = 7;

fn identity(ino: u64) -> Identity {
    Identity {
        dev: DEV,
        ino,
        birth_ns: Some((1_000 + (ino >> 8)).cast_signed()),
    }
}

fn table() -> InodeTable {
    InodeTable::new(identity(2))
}

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

#[test]
fn numbers_are_inode_numbers() {
    let mut table = table();
    let seen = table.intern(InodeNumber::ROOT, name("a"), identity(55), NodeKind::File);
    assert_eq!(seen.node, InodeNumber::new(55));
    assert_eq!(table.node_of(DEV, 2), InodeNumber::ROOT);
}

#[test]
fn inode_one_and_foreign_devices_get_stable_synthetic_numbers() {
    let mut table = table();
    let one = table.node_of(DEV, 1);
    assert_ne!(one, InodeNumber::ROOT);
    let foreign = Identity {
        dev: DEV + 1,
        ..identity(55)
    };
    let first = table.intern(InodeNumber::ROOT, name("a"), foreign, NodeKind::File).node;
    assert_ne!(first, InodeNumber::new(55));
    table.forget(first, 1);
    assert_eq!(table.len(), 1);
    assert_eq!(
        table.intern(InodeNumber::ROOT, name("b"), foreign, NodeKind::File).node,
        first
    );
}

#[test]
fn a_taken_number_is_not_shared_and_not_given_up() {
    let mut table = table();
    let foreign = Identity {
        dev: DEV + 1,
        ..identity(9)
    };
    let squatter = table.intern(InodeNumber::ROOT, name("x"), foreign, NodeKind::File).node;
    // An inode of the main device whose own number is the synthetic one above.
    let clash = identity(squatter.get());
    let displaced = table.intern(InodeNumber::ROOT, name("y"), clash, NodeKind::File).node;
    assert_ne!(displaced, squatter);
    // When the squatter goes, the displaced inode keeps the number it has: one inode, one node.
    table.forget(squatter, 1);
    assert_eq!(
        table.intern(InodeNumber::ROOT, name("y"), clash, NodeKind::File).node,
        displaced
    );
    table.forget(displaced, 2);
    assert_eq!(table.len(), 1);
    assert_eq!(table.node_of(DEV, squatter.get()), squatter);
}

#[test]
fn an_entry_lives_while_looked_up_or_parent() {
    let mut table = table();
    let dir = table
        .intern(InodeNumber::ROOT, name("d"), identity(10), NodeKind::Directory)
        .node;
    let file = table.intern(dir, name("f"), identity(11), NodeKind::File).node;
    assert!(!table.forget(dir, 1), "the child's name still needs it");
    assert!(table.latest_link(dir).is_some());
    assert!(table.forget(file, 1));
    assert_eq!(table.len(), 1, "the directory went with its last child");
}

#[test]
fn hard_links_are_several_names_of_one_node() {
    let mut table = table();
    let a = table
        .intern(InodeNumber::ROOT, name("a"), identity(20), NodeKind::File)
        .node;
    let b = table
        .intern(InodeNumber::ROOT, name("b"), identity(20), NodeKind::File)
        .node;
    assert_eq!(a, b);
    table.remove_link(table.bearer(a), InodeNumber::ROOT, name("b"), false);
    let (link, _) = table.latest_link(a).unwrap();
    assert_eq!(link.name, name("a"));
    assert!(!table.forget(a, 1));
    assert!(table.forget(a, 1));
}

#[test]
fn many_hard_links_are_capped() {
    let mut table = table();
    for n in 0..1000 {
        table.intern(InodeNumber::ROOT, name(&format!("n{n}")), identity(20), NodeKind::File);
    }
    let known = table.known(InodeNumber::new(20)).unwrap();
    assert_eq!(known.links.len(), LINKS_MAX);
    assert_eq!(known.links.first().unwrap().name, name("n999"));
    table.forget(InodeNumber::new(20), 1000);
    assert_eq!(table.len(), 1);
}

#[test]
fn a_directory_has_one_name() {
    let mut table = table();
    let dir = table
        .intern(InodeNumber::ROOT, name("old"), identity(10), NodeKind::Directory)
        .node;
    table.intern(InodeNumber::ROOT, name("new"), identity(10), NodeKind::Directory);
    assert_eq!(table.known(dir).unwrap().links.len(), 1);
    assert_eq!(table.latest_link(dir).unwrap().0.name, name("new"));
}

#[test]
fn a_reused_number_is_another_generation() {
    let mut table = table();
    let first = table.intern(InodeNumber::ROOT, name("a"), identity(30), NodeKind::File);
    let reborn = Identity {
        birth_ns: Some(99_999),
        ..identity(30)
    };
    let second = table.intern(InodeNumber::ROOT, name("b"), reborn, NodeKind::File);
    assert_eq!(first.node, second.node);
    assert_ne!(first.generation, second.generation);
    assert_eq!(
        table.known(first.node).unwrap().links.len(),
        1,
        "the old name is not its name"
    );
}

#[test]
fn inode_number_reused_is_a_new_generation_without_birth_time() {
    let mut table = table();
    let nameless = Identity {
        birth_ns: None,
        ..identity(30)
    };
    let first = table.intern(InodeNumber::ROOT, name("a"), nameless, NodeKind::File);
    table.remove_link(table.bearer(first.node), InodeNumber::ROOT, name("a"), true);
    let second = table.intern(InodeNumber::ROOT, name("a"), nameless, NodeKind::File);
    assert_ne!(first.generation, second.generation);
}

#[test]
fn a_number_is_borne_by_another_before_the_removal_is_known() {
    let mut table = table();
    let file = table.intern_new(InodeNumber::ROOT, name("f"), identity(30), NodeKind::File);
    let bearer = table.bearer(file.node);
    // The file is gone from the disk, its number goes to a directory within one tick of the clock,
    // and only then is the table told.
    let dir = table.intern_new(InodeNumber::ROOT, name("d"), identity(30), NodeKind::Directory);
    table.remove_link(bearer, InodeNumber::ROOT, name("f"), true);
    assert_eq!(file.node, dir.node);
    assert_ne!(file.generation, dir.generation);
    assert_eq!(table.latest_link(dir.node).unwrap().0.name, name("d"));
    let again = table.intern(InodeNumber::ROOT, name("d"), identity(30), NodeKind::Directory);
    assert_eq!(dir, again, "a directory in use becomes no other");
}

#[test]
fn inode_found_before_a_creation_is_looked_at_again() {
    let mut table = table();
    table.intern_new(InodeNumber::ROOT, name("f"), identity(30), NodeKind::File);
    let births = table.births();
    let reborn = table.intern_new(InodeNumber::ROOT, name("d"), identity(30), NodeKind::Directory);
    let seen = table.intern_seen(births, (InodeNumber::ROOT, name("f")), identity(30), NodeKind::File);
    assert_eq!(seen, None);
    assert_eq!(table.latest_link(reborn.node).unwrap().0.name, name("d"));
    let births = table.births();
    let seen = table.intern_seen(
        births,
        (InodeNumber::ROOT, name("d")),
        identity(30),
        NodeKind::Directory,
    );
    assert_eq!(seen, Some(reborn));
}

/// Random lookups, removals and forgets against a plain list of who holds what; at the end nothing
/// may be left.
#[test]
fn random_lives_leave_nothing_behind() {
    let seed = std::env::var("BYTEBACK_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    println!("BYTEBACK_SEED={seed}");
    let mut state: u64 = seed;
    let mut random = move |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut table = table();
    let mut lookups: HashMap<InodeNumber, u64> = HashMap::new();
    for _ in 0..20_000 {
        let ino = 10 + random(40);
        let kind = if ino < 20 { NodeKind::Directory } else { NodeKind::File };
        // Directories only below the root: the kernel never sees a cycle.
        let parent = if kind == NodeKind::Directory || random(2) == 0 {
            InodeNumber::ROOT
        } else {
            InodeNumber::new(10 + random(10))
        };
        let text = format!("n{}", random(5));
        match random(4) {
            0 | 1 => {
                if table.known(parent).is_some() {
                    let seen = match random(2) {
                        0 => table.intern_new(parent, name(&text), identity(ino), kind),
                        _ => table.intern(parent, name(&text), identity(ino), kind),
                    };
                    *lookups.entry(seen.node).or_default() += 1;
                }
            }
            2 => {
                let bearer = table.bearer(InodeNumber::new(ino));
                table.remove_link(bearer, parent, name(&text), random(2) == 0);
            }
            _ => {
                let held = lookups.remove(&InodeNumber::new(ino)).unwrap_or(0);
                let dropped = if held == 0 { 0 } else { 1 + random(held) };
                table.forget(InodeNumber::new(ino), dropped);
                if held > dropped {
                    lookups.insert(InodeNumber::new(ino), held - dropped);
                }
            }
        }
        for node in lookups.keys() {
            assert!(
                table.known(*node).is_some(),
                "{node} is held by the kernel and must live"
            );
        }
    }
    for (node, held) in lookups {
        table.forget(node, held);
    }
    assert_eq!(table.len(), 1);
    assert!(table.displaced.is_empty());
}
