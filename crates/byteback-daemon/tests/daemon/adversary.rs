//! Ways in which a change could be missed or a wrong byte be saved, each of them once found by
//! reading the code as an adversary.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use byteback_control::{CutRequest, Outcome, TreeService};
use byteback_mount::CacheMode;

use crate::fixture::Fixture;
use crate::other_mount::OtherMount;
use crate::saved::{OpenBackup, Saved};

fn content(saved: &Saved, path: &str) -> Vec<u8> {
    saved.tree()[std::path::Path::new(path)].1.clone()
}

/// The changed files, on the first page of a cut.
fn files_of(tree: &dyn TreeService, cut: &byteback_control::CutInfo) -> Vec<byteback_model::NodeId> {
    let page = tree
        .changes(cut.cut, &byteback_control::ChangesCursor::default())
        .unwrap();
    let files = page
        .nodes
        .iter()
        .filter(|change| change.kind == byteback_model::NodeKind::File);
    files.map(|change| change.node).collect()
}

#[test]
fn cut_saves_a_file_removed_and_then_written_as_it_was() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    fs::write(fixture.tree().join("log"), vec![1; 300_000]).unwrap();
    let file = fs::File::options()
        .write(true)
        .open(fixture.tree().join("log"))
        .unwrap();
    let client = fixture.client();
    let begun = OpenBackup::cut(&client, "backup");
    fs::remove_file(fixture.tree().join("log")).unwrap();
    file.write_all_at(&[9; 1000], 5000).unwrap();
    let mut saved = Saved::default();
    begun.save(&client, &mut saved);
    assert!(content(&saved, "log") == vec![1; 300_000], "bytes from after the cut");
}

#[test]
fn a_mark_moves_only_over_the_cut_that_was_saved() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    let mut saved = Saved::default();
    fs::write(fixture.tree().join("file"), vec![1; 1000]).unwrap();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    fs::write(fixture.tree().join("file"), vec![2; 1000]).unwrap();
    let (one, other) = (fixture.client(), fixture.client());
    let first = OpenBackup::cut(&one, "backup");
    fs::write(fixture.tree().join("file"), vec![3; 1000]).unwrap();
    let second = OpenBackup::cut(&other, "backup");
    first.save(&one, &mut saved);
    // The second backup dies.
    drop((second, other));
    std::thread::sleep(Duration::from_millis(100));
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    assert!(
        content(&saved, "file") == vec![3; 1000],
        "a change between the two cuts is lost"
    );
}

#[test]
fn file_changed_just_before_the_look_is_not_trusted() {
    let fixture = Fixture::new(CacheMode::Exact);
    let path = fixture.tree().join("file");
    fs::write(&path, vec![1; 1000]).unwrap();
    let service = fixture.unmounted();
    let request = CutRequest::of("backup");
    let file = |cut: &byteback_control::CutInfo| files_of(&service, cut).first().copied();
    let cut = service.cut(&request).unwrap();
    let node = file(&cut).unwrap();
    fs::write(&path, vec![2; 1000]).unwrap();
    service.attributes(cut.cut, &[node]).unwrap();
    service.read(cut.cut, node, &[(0, 1000)], &mut |_| Ok(())).unwrap();
    // However long the rest of the backup takes: another change of that moment would not show.
    std::thread::sleep(Duration::from_millis(60));
    let outcome = Outcome::Saved {
        note: Vec::new(),
        unsaved: Vec::new(),
    };
    service.finish(cut.cut, &outcome).unwrap();
    drop(service);
    let service = fixture.unmounted();
    let cut = service.cut(&request).unwrap();
    let page = service
        .changes(cut.cut, &byteback_control::ChangesCursor::default())
        .unwrap();
    assert!(page.nodes.iter().any(|change| change.node == node), "{page:?}");
}

#[test]
fn a_change_from_behind_is_not_hidden_by_one_through_the_mount() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let path = fixture.tree().join("file");
    fs::write(&path, vec![1; 100_000]).unwrap();
    // As a program that had it open before the mount, or that wrote between the scan and the mount.
    let old = fs::File::options().write(true).open(&path).unwrap();
    fixture.mount();
    let mut saved = Saved::default();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    fixture.umount();
    fixture.mount();
    old.write_all_at(&[2; 10], 50_000).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .write_all_at(&[3; 10], 0)
        .unwrap();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    fixture.umount();
    fixture.mount();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    assert!(content(&saved, "file")[50_000] == 2, "lost for good");
}

#[test]
fn a_store_after_an_unmounted_folder_was_read_is_found() {
    let fixture = Fixture::new(CacheMode::Exact);
    let path = fixture.tree().join("mapped");
    fs::write(&path, vec![1; 8192]).unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: a fresh mapping of a file that nobody shortens.
    let map = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            8192,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            &file,
            0,
        )
    }
    .unwrap()
    .cast::<u8>();
    // SAFETY: within the mapping.
    unsafe { map.write_volatile(2) };
    std::thread::sleep(Duration::from_millis(60));
    let mut saved = Saved::default();
    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    drop(service);
    assert_eq!(content(&saved, "mapped")[0], 2);
    // SAFETY: within the mapping.
    unsafe { map.write_volatile(3) };
    std::thread::sleep(Duration::from_millis(60));
    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    assert_eq!(
        content(&saved, "mapped")[0],
        3,
        "a store into a page that was dirty already"
    );
}

#[test]
fn a_picture_is_not_read_when_nothing_protects_it_any_more() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    fs::write(fixture.tree().join("file"), vec![1; 300_000]).unwrap();
    let client = fixture.client();
    let request = CutRequest::of("backup");
    let cut = client.cut(&request).unwrap();
    let node = files_of(&client, &cut)[0];
    let held = fs::File::open(fixture.tree().join("file")).unwrap();
    fixture.detach();
    fs::write(fixture.tree().join("file"), vec![2; 300_000]).unwrap();
    let mut wrong = false;
    let read = client.read(cut.cut, node, &[(0, 300_000)], &mut |piece| {
        if let byteback_control::Piece::Data { bytes, .. } = piece {
            wrong |= bytes.contains(&2);
        }
        Ok(())
    });
    assert!(!(read.is_ok() && wrong), "bytes from after the cut, and nobody says so");
    let _ = client.finish(cut.cut, &Outcome::Abandoned);
    drop(held);
}

#[test]
fn overlay_files_of_a_lower_layer_keep_identity_when_changed() {
    let _ = Command::new("modprobe").arg("overlay").stderr(Stdio::null()).status();
    if !fs::read_to_string("/proc/filesystems").unwrap().contains("\toverlay\n") {
        println!("skipped: this kernel has no overlayfs");
        return;
    }
    let mut fixture = Fixture::new(CacheMode::Exact);
    let side = tempfile::Builder::new()
        .prefix("byteback-overlay-")
        .tempdir_in("/var/tmp")
        .unwrap();
    // An overlay cannot lie over another one, as which a container's disk may come.
    let _side = OtherMount::new(&["-t", "tmpfs", "tmpfs"], side.path());
    for name in ["lower", "upper", "work"] {
        fs::create_dir(side.path().join(name)).unwrap();
    }
    fs::write(side.path().join("lower/file"), vec![1; 10_000]).unwrap();
    fs::write(side.path().join("lower/moved"), vec![1; 10_000]).unwrap();
    fs::create_dir(side.path().join("lower/dir")).unwrap();
    fs::write(side.path().join("lower/dir/inner"), vec![1; 10_000]).unwrap();
    let at = |name: &str| side.path().join(name).display().to_string();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        at("lower"),
        at("upper"),
        at("work")
    );
    let _overlay = OtherMount::new(&["-t", "overlay", "overlay", "-o", &options], &fixture.tree());
    fixture.mount();
    let mut saved = Saved::default();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    fs::File::options()
        .write(true)
        .open(fixture.tree().join("file"))
        .unwrap()
        .write_all_at(&[2; 10], 5)
        .unwrap();
    fs::write(fixture.tree().join("dir/new"), b"new").unwrap();
    fs::set_permissions(
        fixture.tree().join("dir/inner"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    fs::rename(fixture.tree().join("moved"), fixture.tree().join("dir/moved")).unwrap();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    assert_eq!(content(&saved, "file")[5], 2);
    assert_eq!(content(&saved, "dir/new"), b"new");
    assert_eq!(saved.tree()[std::path::Path::new("dir/inner")].0.mode, 0o600);
    fixture.umount();
}

#[test]
fn removing_what_was_read_already_costs_no_descriptors() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    let path = |number: u32| fixture.tree().join(format!("photo {number}"));
    for number in 0..100 {
        fs::write(path(number), vec![1; 100_000]).unwrap();
    }
    let client = fixture.client();
    let request = CutRequest::of("backup");
    let cut = client.cut(&request).unwrap();
    for file in files_of(&client, &cut) {
        client.read(cut.cut, file, &[(0, 100_000)], &mut |_| Ok(())).unwrap();
    }
    for number in 0..100 {
        fs::remove_file(path(number)).unwrap();
    }
    let held = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|target| target.to_string_lossy().contains("photo"))
        .count();
    assert_eq!(held, 0);
    client.finish(cut.cut, &Outcome::Abandoned).unwrap();
}

/// The open files without a name: what their links in `/proc` say, and how much each takes on its
/// disk.
fn unnamed_files() -> Vec<(PathBuf, u64)> {
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let unnamed = open.filter_map(|entry| {
        // Other tests open and close files meanwhile.
        let path = entry.unwrap().path();
        let (link, stat) = (fs::read_link(&path).ok()?, fs::metadata(&path).ok()?);
        (stat.is_file() && stat.nlink() == 0).then(|| (link, stat.blocks() * 512))
    });
    unnamed.collect()
}

#[test]
fn a_picture_without_room_is_given_up_and_frees_what_it_held() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    // The log shares the small disk, and must not come when the picture has just filled it.
    fixture.still();
    let state = fixture.folder().path().parent().unwrap().to_owned();
    fs::create_dir_all(&state).unwrap();
    let _small = OtherMount::new(&["-t", "tmpfs", "-o", "size=24m", "tmpfs"], &state);
    // The copies of the picture, and the files that it keeps open.
    let held_below = |path: &Path| {
        let unnamed = unnamed_files().into_iter();
        let below = unnamed.filter(|(link, _)| link.starts_with(path));
        below.map(|(_, bytes)| bytes).collect::<Vec<_>>()
    };
    fs::write(fixture.tree().join("clean"), vec![1; 1000]).unwrap();
    fixture.mount();
    fs::write(fixture.tree().join("large"), vec![1; 64 << 20]).unwrap();
    fs::write(fixture.tree().join("removed"), vec![1; 1 << 20]).unwrap();
    let client = fixture.client();
    let begun = OpenBackup::cut(&client, "backup");
    fs::remove_file(fixture.tree().join("removed")).unwrap();
    let large = fs::File::options()
        .write(true)
        .open(fixture.tree().join("large"))
        .unwrap();
    large.write_all_at(&vec![2; 1 << 20], 0).unwrap();
    assert_eq!(held_below(&state), [1 << 20], "what was overwritten");
    assert_eq!(held_below(&fixture.tree()), [1 << 20], "what was removed");
    for piece in 1..64 {
        large.write_all_at(&vec![2; 1 << 20], piece << 20).unwrap();
    }
    assert_eq!(held_below(&state), [0; 0], "still taken of what was overwritten");
    assert_eq!(held_below(&fixture.tree()), [0; 0], "still taken of what was removed");
    fs::write(fixture.tree().join("clean"), vec![2; 1000]).unwrap();
    let error = begun.try_attributes(&client).unwrap_err();
    assert_eq!(error.kind, byteback_control::ErrorKind::PictureLost);
    begun.abandon(&client);
    let mut saved = Saved::default();
    OpenBackup::cut(&client, "backup").save(&client, &mut saved);
    assert!(content(&saved, "large") == vec![2; 64 << 20]);
    drop(large);
    fixture.umount();
}

#[test]
fn programs_that_were_there_before_the_mount_are_named() {
    use std::io::{Read, Write};
    let mut fixture = Fixture::new(CacheMode::Exact);
    let tree = fixture.tree();
    fs::create_dir(tree.join("sub")).unwrap();
    let shell = |script: &str, directory: &std::path::Path| {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", script])
            .current_dir(directory)
            .env("TREE", &tree)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        shell.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        shell
    };
    let stands = shell("echo ready; read go", &tree.join("sub"));
    let reads = shell("exec 5< $TREE; echo ready; read go", "/".as_ref());
    let writes = shell("exec 5> $TREE/file; echo ready; read go", "/".as_ref());
    fixture.mount();
    let through = shell("exec 5> $TREE/other; cd $TREE; echo ready; read go", "/".as_ref());
    let found: Vec<(u32, bool, usize)> = fixture
        .programs_below()
        .iter()
        .map(|program| (program.pid, program.works_there, program.open_files))
        .collect();
    let mut expected = vec![(stands.id(), true, 0), (writes.id(), false, 1)];
    expected.sort_unstable();
    assert_eq!(found, expected);
    for mut shell in [stands, reads, writes, through] {
        shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
        shell.wait().unwrap();
    }
    assert!(fixture.programs_below().is_empty());
}

#[test]
fn full_disk_allows_removing_and_overwriting_and_misses_nothing() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let disk = fixture.tree().parent().unwrap().to_owned();
    let _small = OtherMount::new(&["-t", "tmpfs", "-o", "size=24m", "tmpfs"], &disk);
    fs::create_dir(fixture.tree()).unwrap();
    let tree = fixture.tree();
    for number in 0..200 {
        fs::write(tree.join(format!("old {number}")), vec![1; 5000]).unwrap();
    }
    fs::write(tree.join("large"), vec![1; 1 << 20]).unwrap();
    fixture.mount();
    let mut saved = Saved::default();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    let junk = fs::File::create(disk.join("junk")).unwrap();
    let mut at = 0;
    while let Ok(more) = junk.write_at(&[0; 4096], at) {
        at += more as u64;
    }
    // So much that the log has to grow.
    for number in 0..6000 {
        std::os::unix::fs::symlink("nowhere", tree.join(format!("link {number}"))).unwrap_or_default();
    }
    let request = CutRequest::of("backup");
    let refused = fixture.client().cut(&request).map(|cut| cut.cut);
    println!("a cut on the full disk: {refused:?}");
    for number in 0..200 {
        let file = fs::File::options().write(true).open(tree.join(format!("old {number}")));
        file.unwrap().write_all_at(&[2; 10], 100).unwrap();
    }
    fs::remove_file(tree.join("large")).unwrap();
    // Not by removing it: a process that another test is starting may have it open for a moment,
    // too.
    junk.set_len(0).unwrap();
    OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    for number in 0..200 {
        let name = format!("old {number}");
        assert!(content(&saved, &name) == fs::read(tree.join(&name)).unwrap(), "{name}");
    }
    let names: Vec<_> = crate::operations::look(&tree).into_keys().collect();
    assert_eq!(saved.tree().into_keys().collect::<Vec<_>>(), names);
    fixture.umount();
}

#[test]
fn log_answers_a_forgotten_time_with_everything_and_says_so() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    fixture.mount();
    let mut saved = Saved::default();
    for value in 1..4 {
        fs::write(fixture.tree().join("file"), vec![value; 1000]).unwrap();
        OpenBackup::cut(&fixture.client(), "backup").save(&fixture.client(), &mut saved);
    }
    let request = CutRequest {
        look_only: true,
        since: Some(byteback_oplog::Epoch(1)),
        ..CutRequest::of("other")
    };
    assert_eq!(fixture.client().cut(&request).unwrap().since, None);
}

#[test]
fn backup_keeps_what_another_mount_hides() {
    let fixture = Fixture::new(CacheMode::Exact);
    let sub = fixture.tree().join("sub");
    fs::create_dir(&sub).unwrap();
    fs::write(sub.join("file"), vec![1; 1000]).unwrap();
    let mut saved = Saved::default();
    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    drop(service);
    let other = OtherMount::new(&["-t", "tmpfs", "tmpfs"], &sub);
    fs::write(sub.join("of the other"), b"").unwrap();
    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    drop(service);
    drop(other);
    let names: Vec<String> = saved.tree().keys().map(|path| path.display().to_string()).collect();
    assert_eq!(names, ["", "sub", "sub/file"]);
}

/// ext4 with small inodes, ext3, HFS+ and FAT keep no parts of a second: two changes within one
/// leave the same times.
#[test]
fn change_in_the_same_second_is_found_where_times_are_seconds() {
    let fixture = Fixture::new(CacheMode::Exact);
    let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    image.as_file().set_len(16 << 20).unwrap();
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-I", "128"])
        .arg(image.path())
        .stderr(Stdio::null())
        .status()
        .expect("mkfs.ext4 is missing; scripts/install-dependencies installs e2fsprogs");
    assert!(made.success(), "mkfs.ext4: {made}");
    let _disk = OtherMount::new(&["-o", "loop", image.path().to_str().unwrap()], &fixture.tree());
    let path = fixture.tree().join("file");
    let millis = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_millis();
    while millis() > 100 {
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(&path, vec![1; 1000]).unwrap();
    let before = fs::metadata(&path).unwrap();
    assert_eq!(
        std::os::unix::fs::MetadataExt::ctime_nsec(&before),
        0,
        "these times are exact"
    );
    std::thread::sleep(Duration::from_millis(60));
    let mut saved = Saved::default();
    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    drop(service);
    // On a slow machine it is the next second by now, and this shows nothing.
    fs::write(&path, vec![2; 1000]).unwrap();
    let service = fixture.unmounted();
    OpenBackup::cut(&service, "backup").save(&service, &mut saved);
    drop(service);
    assert!(content(&saved, "file") == vec![2; 1000], "a change of the same second");
    // In the end the file is known.
    std::thread::sleep(Duration::from_millis(2200));
    for asked in [1000, 0] {
        let service = fixture.unmounted();
        OpenBackup::cut(&service, "backup").save(&service, &mut saved);
        assert_eq!(saved.requested_bytes, asked);
    }
}

/// A backup that keeps checksums of blocks reads, and sums, all of a block of which a part is
/// reported.
#[test]
fn cut_holds_a_partly_changed_block_whole_and_reads_no_other() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    let path = fixture.tree().join("file");
    fs::write(&path, vec![1; 100_000]).unwrap();
    fixture.mount();
    let client = fixture.client();
    OpenBackup::cut(&client, "backup").save(&client, &mut Saved::default());
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[2; 100], 9000).unwrap();
    let request = CutRequest::of("backup");
    let cut = client.cut(&request).unwrap();
    let node = files_of(&client, &cut)[0];
    // Beside what is reported, before it is read.
    file.write_all_at(&[3; 100], 9500).unwrap();
    let mut read = Vec::new();
    let mut take = |piece: byteback_control::Piece<'_>| {
        if let byteback_control::Piece::Data { bytes, .. } = piece {
            read.extend_from_slice(bytes);
        }
        Ok(())
    };
    client.read(cut.cut, node, &[(8192, 4096)], &mut take).unwrap();
    let mut expected = vec![1; 4096];
    expected[9000 - 8192..9100 - 8192].fill(2);
    assert!(read == expected, "what was written after the cut was read");
    let refused = client.read(cut.cut, node, &[(20_000, 100)], &mut |_| Ok(()));
    assert!(refused.is_err(), "what is not held still was read");
    client.finish(cut.cut, &Outcome::Abandoned).unwrap();
    drop(file);
    fixture.umount();
}

/// A backup that compares files with those of a server reads all of them, not only what is
/// reported.
#[test]
fn cut_holds_whole_changed_files_for_readers_who_ask() {
    let mut fixture = Fixture::new(CacheMode::Exact);
    for name in ["changed", "other"] {
        fs::write(fixture.tree().join(name), vec![1; 100_000]).unwrap();
    }
    fixture.mount();
    let client = fixture.client();
    OpenBackup::cut(&client, "backup").save(&client, &mut Saved::default());
    let open = |name| fs::File::options().write(true).open(fixture.tree().join(name)).unwrap();
    let (changed, other) = (open("changed"), open("other"));
    changed.write_all_at(&[2; 100], 9000).unwrap();
    let cut = client
        .cut(&CutRequest {
            whole_files: true,
            ..CutRequest::of("backup")
        })
        .unwrap();
    let nodes = files_of(&client, &cut);
    assert_eq!(nodes.len(), 1);
    changed.write_all_at(&[3; 100], 50_000).unwrap();
    other.write_all_at(&[3; 100], 50_000).unwrap();
    let mut read = Vec::new();
    let mut take = |piece: byteback_control::Piece<'_>| {
        if let byteback_control::Piece::Data { bytes, .. } = piece {
            read.extend_from_slice(bytes);
        }
        Ok(())
    };
    client.read(cut.cut, nodes[0], &[(0, 100_000)], &mut take).unwrap();
    let mut expected = vec![1; 100_000];
    expected[9000..9100].fill(2);
    assert!(read == expected, "what was written after the cut was read");
    client.finish(cut.cut, &Outcome::Abandoned).unwrap();
    drop((changed, other));
    fixture.umount();
}
