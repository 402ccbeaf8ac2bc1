//! The traffic of recorded saves of real programs, relation table and queue together.
//!
//! Every file has 100,000 bytes, every delta 100; the delay is the default one. Sent contents are
//! named by their file, as in `relation/traces.rs`.

use byteback_extents::ByteRange;

use super::*;
use crate::relation::Decision;
use crate::relation::traces::Player;

const LEN_BYTES: u64 = 100_000;

/// The contents that are sent: whole ones and deltas.
fn sends(lines: &str) -> Vec<String> {
    let mut player = Player::default();
    let mut queue = Queue::new(ClientId(7), QueueOptions::default());
    let mut sent = Vec::new();
    for line in lines.lines() {
        player.unsent = player
            .nodes
            .values()
            .copied()
            .filter(|node| queue.has_unsent_content(*node))
            .collect();
        let played = player.play(line);
        let now_ns = player.now_ns;
        for decision in played.iter().flat_map(|(_, decisions)| decisions) {
            match *decision {
                Decision::Relate {
                    new,
                    base,
                    is_base_removed,
                } => queue.relate(new, base, is_base_removed),
                Decision::Unrelate { new, .. } => queue.unrelate(new),
                Decision::Drop(_) => {}
            }
        }
        let words = line.split(' ').collect::<Vec<_>>();
        let event = match (played, words[1]) {
            (Some((operation, _)), _) => Event::Name(operation),
            (None, "close") => Event::Closed {
                node: player.nodes[words[2]],
            },
            (None, _) => Event::Wrote {
                node: player.nodes[words[2]],
                range: ByteRange::new(0, LEN_BYTES).unwrap(),
                size_bytes: LEN_BYTES,
                base: None,
            },
        };
        queue.event(&event, now_ns);
        drain(&mut queue, &mut player, now_ns, &mut sent);
    }
    drain(&mut queue, &mut player, u64::MAX, &mut sent);
    assert!(queue.is_empty());
    sent
}

fn drain(queue: &mut Queue, player: &mut Player, now_ns: u64, sent: &mut Vec<String>) {
    loop {
        queue.check().unwrap();
        for effect in queue.take_effects() {
            match effect {
                Effect::Unrelated(new) => player.table.finish(new),
                Effect::Rebased { new, base } => player.table.rebase(new, base),
                _ => Vec::new(),
            };
        }
        match queue.poll(now_ns) {
            Poll::Encode(order) => {
                let delta = EncodedDelta {
                    stamp: 1,
                    len_bytes: 100,
                    base_version: None,
                };
                queue.encoded(&order, Some(delta));
            }
            Poll::Send(id) => {
                let group = queue.groups().find(|group| group.id == id).unwrap().clone();
                let contents = queue.nodes_of(&group).filter_map(|(_, node)| node.change.content());
                let label = |node: NodeId| player.labels[node.0 as usize].as_str();
                sent.extend(contents.map(|content| match content.source {
                    ContentSource::Delta { base, .. } => format!("{} from {}", label(content.node), label(base)),
                    ContentSource::Ranges { .. } => format!("{} whole", label(content.node)),
                }));
                queue.applied(id).unwrap();
            }
            Poll::Idle { .. } => return,
            other => panic!("{other:?}"),
        }
    }
}

/// The first save vanishes unsent, and its base serves the second. The third file has no other name
/// when the recording is cut off.
#[test]
fn two_saves_of_gedit_within_the_delay_are_one_delta() {
    let sent = sends(include_str!("../../traces/gedit.txt"));
    assert_eq!(
        sent,
        [
            "notes/.goutputstream-FBUHZ3#1 from notes/thesis.tex#0",
            "notes/.goutputstream-2LTGZ3#1 whole",
        ]
    );
}

#[test]
fn saves_of_vim_are_deltas_and_its_probes_are_never_sent() {
    let sent = sends(include_str!("../../traces/vim-auto.txt"));
    assert_eq!(
        sent,
        [
            "notes/.thesis.tex.swp#2 whole",
            "notes/thesis.tex#3 from notes/thesis.tex#0",
        ]
    );
}

#[test]
fn saves_of_libreoffice_are_deltas() {
    let sent = sends(include_str!("../../traces/libreoffice.txt"));
    assert_eq!(
        sent,
        [
            "Documents/.~lock.report.docx##1 from Documents/.~lock.report.docx##0",
            "Documents/lu168181948r.tmp#1 from Documents/report.docx#0",
            "Documents/lu16818194as.tmp#1 from Documents/lu168181948r.tmp#1",
        ]
    );
}

#[test]
fn saves_of_keepass_are_deltas() {
    let sent = sends(include_str!("../../traces/keepass.txt"));
    assert_eq!(
        sent,
        ["vault/p.tmp#1 from vault/p.kdbx#0", "vault/p.tmp#2 from vault/p.tmp#1",]
    );
}

#[test]
fn queue_sends_writes_of_sed_as_deltas() {
    let sent = sends(include_str!("../../traces/sed.txt"));
    assert_eq!(
        sent,
        [
            "notes/sedDRP5U8#1 from notes/thesis.tex#0",
            "src/sedk6hwj2#1 from src/main.c#0",
            "notes/sedLZY1VI#1 from notes/sedDRP5U8#1",
            "notes/sedKpmTSx#1 from notes/todo.md#0",
        ]
    );
}

#[test]
fn atomic_writes_are_deltas_but_for_a_new_file() {
    let sent = sends(include_str!("../../traces/write-file-atomic.txt"));
    assert_eq!(
        sent,
        [
            "src/main.c.2753723794#1 from src/main.c#0",
            "settings.json.1777341192#1 whole",
        ]
    );
}

#[test]
fn a_save_of_mogrify_is_a_delta() {
    let sent = sends(include_str!("../../traces/mogrify.txt"));
    assert_eq!(sent, ["DCIM/IMG_0002.jpg#1 from DCIM/IMG_0002.jpg#0",]);
}

#[test]
fn a_save_of_word_is_a_delta() {
    let sent = sends("0 rename f t0\n10 create t1\n11 write t1\n600 close t1\n601 rename t1 f\n602 unlink t0");
    assert_eq!(sent, ["t1#1 from f#0",]);
}

#[test]
fn queue_sends_a_deleted_and_recreated_file_as_a_delta() {
    let sent = sends("0 unlink f\n900 create f\n901 write f\n950 close f");
    assert_eq!(sent, ["f#1 from f#0",]);
}

#[test]
fn queue_sends_a_deleted_and_renamed_to_file_as_a_delta() {
    let sent = sends("0 unlink f\n10 create t\n11 write t\n950 close t\n1900 rename t f");
    assert_eq!(sent, ["t#1 from f#0",]);
}
