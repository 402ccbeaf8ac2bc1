//! Damaged blocks that are put right in place, accepted, or landed over, while programs have the
//! file open.

use byteback_control::Expected;
use byteback_delta::Target;

use super::*;

/// A mounted tree on a disk of its own, of which everything was sent.
struct Rig {
    fixture: Fixture,
    served: Served,
    below: OwnedFd,
    disk: Disk,
}

impl Rig {
    fn new() -> Self {
        let disk = Disk::new();
        let mut fixture = Fixture::inside(&disk.path(), CacheMode::Exact);
        let below = below(&fixture);
        fixture.checksums = Some(ChecksumOptions::default());
        fixture.live = Some(crate::live::options(Duration::ZERO));
        fixture.mount();
        let served = fixture.served();
        send_fold(&served);
        Self {
            fixture,
            served,
            below,
            disk,
        }
    }

    fn send_all(&self) {
        loop {
            match self.served.live.poll().unwrap() {
                Work::Send(group) => self.served.live.applied(group.id).unwrap(),
                Work::Idle(None) => return,
                Work::Idle(_) => self.served.live.wait(Duration::from_millis(5)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn write(&self, name: &str, content: &[u8]) -> NodeId {
        fs::write(self.fixture.tree().join(name), content).unwrap();
        self.send_all();
        let place = byteback_model::Place {
            parent: NodeId::ROOT,
            name: name.into(),
        };
        self.served.landing.child(&place).unwrap().unwrap()
    }

    /// Flips a bit, which the next read notices.
    fn flip(&self, name: &str, at: u64) {
        self.disk.flip(&self.below, name, at);
        read_to_send(&self.fixture, name).unwrap_err();
    }

    fn heal(&self, node: NodeId, offset: u64, good: &[u8]) -> u64 {
        self.served.landing.heal(node, offset, good).unwrap().done().unwrap()
    }

    fn end(mut self) {
        drop(self.served);
        self.fixture.umount();
    }
}

#[test]
fn healing_repairs_only_proven_blocks_unnoticed() {
    let rig = Rig::new();
    let mut content = SplitMix64::new(21).bytes(4 * BLOCK as usize + 100);
    let node = rig.write("file", &content);
    let path = rig.fixture.tree().join("file");
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    for at in [5, 2 * BLOCK + 7, 4 * BLOCK + 50] {
        rig.flip("file", at);
    }
    // The end of the file was changed since the server got it, which has it as it was.
    let sent = content.clone();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"new", 4 * BLOCK + 10).unwrap();
    content[4 * BLOCK as usize + 10..][..3].copy_from_slice(b"new");
    rig.send_all();
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    assert_ne!(before, written);
    assert_eq!(
        damaged(&rig.fixture)[0].ranges,
        [(0, BLOCK), (2 * BLOCK, BLOCK), (4 * BLOCK, BLOCK)]
    );

    // Other bytes prove nothing, and sound blocks are not touched.
    let other = SplitMix64::new(22).bytes(5 * BLOCK as usize);
    assert_eq!(rig.heal(node, 0, &other), 0);
    assert_eq!(damaged(&rig.fixture)[0].ranges.len(), 3);
    assert_eq!(rig.heal(node, BLOCK, &sent[BLOCK as usize..2 * BLOCK as usize]), 0);
    assert_eq!(rig.heal(node, 2 * BLOCK, &sent[2 * BLOCK as usize..]), BLOCK + 100);
    assert_eq!(damaged(&rig.fixture)[0].ranges, [(0, BLOCK)]);
    assert_eq!(rig.heal(node, 0, &sent), BLOCK);
    assert_eq!(damaged(&rig.fixture), []);
    assert_eq!(fs::read(&path).unwrap(), content);
    assert_eq!(read_to_send(&rig.fixture, "file").unwrap(), content);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written);
    assert!(
        matches!(rig.served.live.poll().unwrap(), Work::Idle(_)),
        "it is no news"
    );
    drop(file);
    rig.end();
}

#[test]
fn healing_sends_accepted_content_as_it_is() {
    let rig = Rig::new();
    let mut content = SplitMix64::new(23).bytes(3 * BLOCK as usize + 100);
    let node = rig.write("file", &content);
    for at in [BLOCK + 1, 3 * BLOCK + 9] {
        rig.flip("file", at);
        content[at as usize] ^= 0x10;
    }
    let accepted = rig.served.landing.accept(node).unwrap().done();
    assert_eq!(accepted, Some(BLOCK + 100));
    assert_eq!(damaged(&rig.fixture), []);
    let group = next_group(&rig.served);
    let changed = &group.contents[0];
    let byteback_control::LiveSource::Ranges(ranges) = &changed.source else {
        panic!("{changed:?}")
    };
    assert_eq!(*ranges, [(BLOCK, BLOCK), (3 * BLOCK, 100)]);
    let (bytes, error) = read_live(&*rig.served.live, changed);
    assert_eq!(error, None);
    let wanted = [
        &content[BLOCK as usize..2 * BLOCK as usize],
        &content[3 * BLOCK as usize..],
    ]
    .concat();
    assert_eq!(bytes, wanted);
    rig.served.live.applied(group.id).unwrap();
    rig.send_all();
    assert_eq!(fs::read(rig.fixture.tree().join("file")).unwrap(), content);
    // Its sums are kept again.
    rig.flip("file", BLOCK + 1);
    rig.end();
}

#[test]
fn landing_in_a_damaged_block_does_not_hide_the_damage() {
    let rig = Rig::new();
    let content = SplitMix64::new(24).bytes(3 * BLOCK as usize);
    let node = rig.write("file", &content);
    rig.flip("file", BLOCK + 1000);
    rig.flip("file", 2 * BLOCK);
    {
        let mut file = rig
            .served
            .landing
            .watch_file(node, Expected::Unqueued)
            .unwrap()
            .done()
            .unwrap();
        // A part of the one, and all of the other.
        file.write_range(BLOCK + 5, b"from elsewhere").unwrap();
        file.write_range(2 * BLOCK, &[9; BLOCK as usize]).unwrap();
    }
    assert_eq!(damaged(&rig.fixture)[0].ranges, [(BLOCK, BLOCK)]);
    read_to_send(&rig.fixture, "file").unwrap_err();
    let mut good = content[BLOCK as usize..2 * BLOCK as usize].to_vec();
    good[5..19].copy_from_slice(b"from elsewhere");
    assert_eq!(rig.heal(node, BLOCK, &good), BLOCK);
    let sent = read_to_send(&rig.fixture, "file").unwrap();
    assert_eq!(sent[BLOCK as usize..2 * BLOCK as usize], good);
    assert_eq!(damaged(&rig.fixture), []);
    rig.end();
}
