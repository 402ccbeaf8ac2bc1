//! The save patterns of real programs, recorded, and the relation table's decisions on them.
//!
//! `traces/NAME.txt` are cut out of recordings of the programs by `traces/extract.py` (see there
//! for the form of a line); the operations that no recording has are written out here. A file is
//! called by the path under which it came into being and the number of files that had this path
//! before it; a file from before the recording has number 0.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Plays the operations of a tree of paths to a table.
#[derive(Default)]
pub(crate) struct Player {
    pub(crate) table: RelationTable,
    pub(crate) nodes: BTreeMap<String, NodeId>,
    pub(crate) labels: Vec<String>,
    links: BTreeMap<NodeId, u64>,
    pub(crate) unsent: BTreeSet<NodeId>,
    relations: Vec<String>,
    room_bytes: Option<u64>,
    pub(crate) now_ns: u64,
}

impl Player {
    fn new_node(&mut self, path: &str, number: usize) -> NodeId {
        let node = NodeId(self.labels.len() as u64);
        self.labels.push(format!("{path}#{number}"));
        self.nodes.insert(path.to_owned(), node);
        self.links.insert(node, 1);
        node
    }

    fn node(&mut self, path: &str) -> NodeId {
        match self.nodes.get(path) {
            Some(&node) => node,
            None => self.new_node(path, 0),
        }
    }

    /// Takes the name of a node away, after asking whether the node is to be kept.
    fn victim(&mut self, path: &str) -> Victim {
        let node = self.node(path);
        self.nodes.remove(path);
        let links = self.links.get_mut(&node).unwrap();
        *links -= 1;
        let is_last = *links == 0;
        let room_bytes = self.room_bytes.unwrap_or(u64::MAX);
        Victim {
            node,
            kind: NodeKind::File,
            is_last,
            is_kept: is_last && self.table.is_worth_keeping(NodeKind::File, 1000, room_bytes),
            len_bytes: 1000,
        }
    }

    /// Plays a line. Returns the operation on names and the table's decisions; `None` for
    /// operations on contents.
    pub(crate) fn play(&mut self, line: &str) -> Option<(NameOperation, Vec<Decision>)> {
        let words = line.split(' ').collect::<Vec<_>>();
        let (now_ms, operation, path) = (words[0].parse::<u64>().unwrap(), words[1], words[2]);
        self.now_ns = now_ms * 1_000_000;
        let file = |node| Moved {
            node,
            kind: NodeKind::File,
        };
        let operation = match operation {
            "create" => {
                let start = format!("{path}#");
                let of_path = |label: &&String| label.starts_with(&start) && !label.ends_with("#0");
                let before = self.labels.iter().filter(of_path).count();
                let node = self.new_node(path, before + 1);
                NameOperation::Created {
                    at: place(path),
                    node: file(node),
                }
            }
            "unlink" => NameOperation::Unlinked {
                at: place(path),
                victim: self.victim(path),
            },
            "link" => {
                let node = self.node(path);
                self.nodes.insert(words[3].to_owned(), node);
                *self.links.get_mut(&node).unwrap() += 1;
                NameOperation::Linked {
                    at: place(words[3]),
                    node: file(node),
                }
            }
            "rename" => {
                let node = self.node(path);
                let is_over = words.get(4) == Some(&"over");
                let replaced = is_over.then(|| self.victim(words[3]));
                self.nodes.remove(path);
                self.nodes.insert(words[3].to_owned(), node);
                NameOperation::Renamed {
                    from: place(path),
                    to: place(words[3]),
                    node: file(node),
                    replaced,
                }
            }
            "exchange" => {
                let (one, other) = (self.node(path), self.node(words[3]));
                self.nodes.insert(path.to_owned(), other);
                self.nodes.insert(words[3].to_owned(), one);
                NameOperation::Exchanged {
                    one: place(path),
                    one_node: file(one),
                    other: place(words[3]),
                    other_node: file(other),
                }
            }
            _ => {
                let node = self.node(path);
                self.unsent.insert(node);
                return None;
            }
        };
        let decisions = self
            .table
            .observe(&operation, self.now_ns, |node| self.unsent.contains(&node));
        for decision in &decisions {
            if let Decision::Relate { new, base, .. } = *decision {
                let label = |node: NodeId| self.labels[node.0 as usize].clone();
                self.relations.push(format!("{} against {}", label(new), label(base)));
            }
        }
        self.table.check(self.now_ns).unwrap();
        Some((operation, decisions))
    }
}

/// The names of the traces in one directory: only their equality matters.
fn place(path: &str) -> Place<NodeId> {
    Place::new(NodeId(u64::MAX), path.as_bytes())
}

#[track_caller]
fn finds(lines: &str, expected: &[&str]) {
    let mut player = Player::default();
    for line in lines.lines() {
        player.play(line);
    }
    assert_eq!(player.relations, expected);
}

#[test]
fn gedit_renames_over_and_closes_afterwards() {
    let lines = include_str!("../../traces/gedit.txt");
    finds(
        lines,
        &[
            "notes/.goutputstream-4DUBZ3#1 against notes/thesis.tex#0",
            "notes/.goutputstream-FBUHZ3#1 against notes/.goutputstream-4DUBZ3#1",
        ],
    );
}

#[test]
fn gedit_of_the_paper_links_a_backup_and_renames_over() {
    let lines = "0 create tmp\n1 write tmp\n2 link f f~\n3 rename tmp f over\n4 unlink f~";
    finds(lines, &["tmp#1 against f#0"]);
}

#[test]
fn word_renames_away_and_renames_back() {
    let lines = "0 rename f t0\n10 create t1\n11 write t1\n600 close t1\n601 rename t1 f\n602 unlink t0";
    finds(lines, &["t1#1 against f#0"]);
}

#[test]
fn vim_renames_away_and_creates() {
    let lines = include_str!("../../traces/vim-auto.txt");
    finds(
        lines,
        &[
            "notes/.thesis.tex.swp#2 against notes/.thesis.tex.swp#1",
            "notes/thesis.tex#1 against notes/thesis.tex#0",
            "notes/4913#2 against notes/4913#1",
            "notes/thesis.tex#2 against notes/thesis.tex#1",
            "notes/4913#3 against notes/4913#2",
            "notes/thesis.tex#3 against notes/thesis.tex#2",
            "notes/4913#4 against notes/4913#3",
        ],
    );
}

#[test]
fn vim_keeps_a_backup_by_renaming() {
    let lines = include_str!("../../traces/vim-rename-backup.txt");
    finds(
        lines,
        &[
            "notes/thesis.tex#0 against notes/thesis.tex~#0",
            "notes/thesis.tex#1 against notes/thesis.tex#0",
            "notes/thesis.tex#2 against notes/thesis.tex#1",
            "notes/thesis.tex#3 against notes/thesis.tex#2",
        ],
    );
}

#[test]
fn vim_copies_to_a_backup_that_it_removed_before() {
    let lines = include_str!("../../traces/vim-copy.txt");
    finds(
        lines,
        &[
            "notes/thesis.tex~#1 against notes/thesis.tex~#0",
            "notes/thesis.tex~#2 against notes/thesis.tex~#1",
            "notes/thesis.tex~#3 against notes/thesis.tex~#2",
        ],
    );
}

#[test]
fn vim_without_a_backup_rewrites_in_place() {
    finds(include_str!("../../traces/vim-nowritebackup.txt"), &[]);
}

#[test]
fn libreoffice_writes_for_seconds_and_renames_over() {
    let lines = include_str!("../../traces/libreoffice.txt");
    finds(
        lines,
        &[
            "Documents/.~lock.report.docx##1 against Documents/.~lock.report.docx##0",
            "Documents/lu168181948r.tmp#1 against Documents/report.docx#0",
            "Documents/.~lock.report.docx##2 against Documents/.~lock.report.docx##1",
            "Documents/lu16818194as.tmp#1 against Documents/lu168181948r.tmp#1",
        ],
    );
}

#[test]
fn keepass_uses_one_temporary_name() {
    let lines = include_str!("../../traces/keepass.txt");
    finds(
        lines,
        &[
            "vault/p.tmp#1 against vault/p.kdbx#0",
            "vault/p.tmp#2 against vault/p.tmp#1",
        ],
    );
}

#[test]
fn sed_renames_over_with_and_without_a_backup() {
    let lines = include_str!("../../traces/sed.txt");
    finds(
        lines,
        &[
            "notes/sedDRP5U8#1 against notes/thesis.tex#0",
            "notes/sedVbvajd#1 against notes/todo.md#0",
            "src/sedk6hwj2#1 against src/main.c#0",
            "notes/sedJtIMGc#1 against notes/sedDRP5U8#1",
            "notes/sedLZY1VI#1 against notes/sedJtIMGc#1",
            "notes/sedKpmTSx#1 against notes/sedVbvajd#1",
        ],
    );
}

#[test]
fn perl_links_or_renames_its_backup() {
    let lines = include_str!("../../traces/perl.txt");
    finds(
        lines,
        &[
            "src/XXXwMRXf#1 against src/main.c#0",
            "notes/XXNAckL4#1 against notes/todo.md#0",
            "src/XXb1EwSh#1 against src/XXXwMRXf#1",
            "notes/XXUcqZpj#1 against notes/XXNAckL4#1",
        ],
    );
}

#[test]
fn relation_table_finds_atomic_writes_of_editors() {
    let lines = include_str!("../../traces/write-file-atomic.txt");
    finds(
        lines,
        &[
            "src/main.c.2213399721#1 against src/main.c#0",
            "src/main.c.2753723794#1 against src/main.c.2213399721#1",
            "settings.json.1777341192#1 against settings.json.3560317184#1",
        ],
    );
}

#[test]
fn exiftool_keeps_the_original_under_another_name() {
    let lines = include_str!("../../traces/exiftool.txt");
    finds(
        lines,
        &[
            "DCIM/IMG_0001.jpg_exiftool_tmp#1 against DCIM/IMG_0001.jpg#0",
            "DCIM/IMG_0001.jpg_exiftool_tmp#2 against DCIM/IMG_0001.jpg_exiftool_tmp#1",
            "DCIM/IMG_0001.jpg_exiftool_tmp#3 against DCIM/IMG_0001.jpg_exiftool_tmp#2",
        ],
    );
}

#[test]
fn mogrify_renames_away_and_creates() {
    let lines = include_str!("../../traces/mogrify.txt");
    finds(lines, &["DCIM/IMG_0002.jpg#1 against DCIM/IMG_0002.jpg#0"]);
}

#[test]
fn emacs_renames_its_backup_and_creates() {
    finds("0 rename f f~\n1 create f\n2 write f\n3 close f", &["f#1 against f#0"]);
}

#[test]
fn relation_table_finds_delete_then_create() {
    finds(
        "0 unlink f\n900 create f\n901 write f\n950 close f",
        &["f#1 against f#0"],
    );
}

#[test]
fn relation_table_finds_delete_then_rename() {
    let lines = "0 create t\n1 write t\n2 close t\n3 unlink f\n4 rename t f";
    finds(lines, &["t#1 against f#0"]);
}

#[test]
fn relation_table_finds_backup_link_then_unlink() {
    let lines = "0 link f f~\n1 unlink f\n2 create f\n3 write f\n4 unlink f~";
    finds(lines, &["f#1 against f#0"]);
}

#[test]
fn relation_table_finds_unlink_then_link_of_a_temporary() {
    let lines = "0 create t\n1 write t\n2 close t\n3 unlink f\n4 link t f\n5 unlink t";
    finds(lines, &["t#1 against f#0"]);
}

#[test]
fn exchanged_names_are_found_from_both_sides() {
    finds(
        "0 create t\n1 write t\n2 exchange t f\n3 unlink t",
        &["t#1 against f#0"],
    );
    finds(
        "0 create t\n1 write t\n2 exchange f t\n3 unlink t",
        &["t#1 against f#0"],
    );
}

#[test]
fn relation_does_not_join_a_file_to_itself_by_an_unlinked_name() {
    finds("0 create t\n1 write t\n2 link t f\n3 unlink t\n4 rename f t", &[]);
}

#[test]
fn relation_table_misses_what_comes_too_late() {
    finds("0 unlink f\n2000 create f", &[]);
    finds("0 rename f g\n2000 create f", &[]);
    finds("0 unlink f\n1999 create f", &["f#1 against f#0"]);
}

#[test]
fn relation_table_keeps_nothing_when_space_is_short() {
    let mut player = Player {
        room_bytes: Some(1 << 20),
        ..Player::default()
    };
    player.play("0 unlink f");
    player.play("1 create f");
    assert!(player.relations.is_empty() && player.table.kept().next().is_none());
}
