//! Programs that ask for more than their share: the one too many is refused, and no other notices.

use std::fs;
use std::os::unix::fs::FileExt;

use byteback_control::{CutRequest, ErrorKind, Outcome, TreeService};
use byteback_ioctl::{DeltaError, DeltaFile};
use byteback_mount::CacheMode;

use crate::fixture::Fixture;
use crate::other_mount::OtherMount;

fn save(service: &dyn TreeService, consumer: &str) -> byteback_control::Result<()> {
    let cut = service.cut(&CutRequest::of(consumer))?;
    let (note, unsaved) = (Vec::new(), Vec::new());
    service.finish(cut.cut, &Outcome::Saved { note, unsaved }).map(drop)
}

#[test]
fn consumers_beyond_the_limit_are_refused_and_known_ones_go_on() {
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
    // The client ends, and its cuts with it.
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

/// The log is on the same disk: the backup may have to begin anew, but no program is refused for
/// it.
#[test]
fn backup_keeps_room_free_for_the_log() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let state = fixture.folder().path().parent().unwrap().to_owned();
    fs::create_dir_all(&state).unwrap();
    let _small = OtherMount::new(&["-t", "tmpfs", "-o", "size=48m", "tmpfs"], &state);
    fixture.mount();
    let free = || {
        let space = rustix::fs::statvfs(&state).unwrap();
        space.f_bavail * space.f_frsize
    };
    fs::write(fixture.tree().join("large"), vec![1; 64 << 20]).unwrap();
    let client = fixture.client();
    let cut = client.cut(&CutRequest::of("backup")).unwrap();
    let large = fs::File::options()
        .write(true)
        .open(fixture.tree().join("large"))
        .unwrap();
    let mut least = free();
    for piece in 0..64 * 16 {
        large.write_all_at(&vec![2; 1 << 16], piece << 16).unwrap();
        least = least.min(free());
    }
    assert!(least > 1 << 20, "only {least} bytes were left for the log");
    client.finish(cut.cut, &Outcome::Abandoned).unwrap();
    drop(large);
    fixture.umount();
}
