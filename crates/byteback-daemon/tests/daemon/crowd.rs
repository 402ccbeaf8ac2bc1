//! Programs that ask for more than their share: the one too many is refused, and nobody else notices.

use std::fs;

use byteback_control::{CutRequest, ErrorKind, Outcome, TreeService};
use byteback_ioctl::{DeltaError, DeltaFile};
use byteback_mount::CacheMode;

use crate::fixture::Fixture;

fn save(service: &dyn TreeService, consumer: &str) -> byteback_control::Result<()> {
    let cut = service.cut(&CutRequest::of(consumer))?;
    let (note, unsaved) = (Vec::new(), Vec::new());
    service.finish(cut.cut, &Outcome::Saved { note, unsaved }).map(drop)
}

#[test]
fn a_program_that_makes_up_consumers_is_refused_and_those_that_are_known_go_on() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.consumers_max(4);
    fixture.mount();
    fs::write(fixture.tree().join("file"), vec![1; 1000]).unwrap();
    let client = fixture.client();
    let file = fs::File::open(fixture.tree().join("file")).unwrap();
    let commit = |name: &str| DeltaFile::open(&file, name, None)?.commit();
    save(&client, "backup").unwrap();
    commit("one").unwrap();
    match commit("two") {
        Err(DeltaError::System { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::EDQUOT)),
        other => panic!("{other:?}"),
    }
    save(&client, "three").unwrap();
    save(&client, "four").unwrap();
    let refused = save(&client, "five").unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Refused, "{refused}");
    assert!(refused.message.contains("byteback consumers drop"), "{refused}");
    save(&client, "backup").unwrap();
    commit("one").unwrap();
    assert_eq!(client.status().unwrap().consumers.len(), 4);
    drop(file);
    fixture.umount();
    // The same without a mount.
    let service = fixture.unmounted();
    assert_eq!(save(&service, "five").unwrap_err().kind, ErrorKind::Refused);
    assert!(service.drop_consumer("four").unwrap());
    save(&service, "five").unwrap();
}

#[test]
fn a_program_that_never_ends_its_cuts_is_refused_at_last() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    fs::write(fixture.tree().join("file"), vec![1; 1000]).unwrap();
    let (client, other) = (fixture.client(), fixture.client());
    let request = CutRequest {
        anonymous: true,
        ..CutRequest::of("leaks")
    };
    let mut cuts = Vec::new();
    let refused = loop {
        match client.cut(&request) {
            Ok(cut) => cuts.push(cut.cut),
            Err(refused) => break refused,
        }
        assert!(cuts.len() < 10_000, "no limit");
    };
    assert_eq!(refused.kind, ErrorKind::Refused, "{refused}");
    assert_eq!(cuts.len(), 256);
    assert_eq!(save(&other, "backup").unwrap_err().kind, ErrorKind::Refused);
    client.finish(cuts[0], &Outcome::Abandoned).unwrap();
    save(&other, "backup").unwrap();
    // It ends, and its cuts with it.
    client.cut(&request).unwrap();
    drop(client);
    for _ in 0..1000 {
        if save(&other, "backup").is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("its cuts are still open");
}
