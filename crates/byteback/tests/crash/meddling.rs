//! Changes of the folder while it is not mounted: they are not logged, and the next start must find
//! them.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use byteback_host::random::SplitMix64;
use byteback_testkit::local_tree::Tree;
use byteback_testkit::seed::Draw;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

/// Makes a few changes of all kinds below `root`, whose content is `tree`; returns their
/// description.
pub(crate) fn meddle(root: &Path, tree: &Tree, random: &mut SplitMix64) -> Vec<String> {
    let files: Vec<&PathBuf> = tree
        .iter()
        .filter(|(_, entry)| entry.is_file())
        .map(|(path, _)| path)
        .collect();
    let mut done = Vec::new();
    for number in 0..1 + random.below(4) {
        if files.is_empty() {
            return done;
        }
        let path = root.join(files[random.index(files.len())]);
        // An earlier change may have removed it.
        let Ok(before) = fs::symlink_metadata(&path) else {
            continue;
        };
        let what = match random.below(7) {
            0 if before.len() > 0 => {
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.write_all_at(b"!", random.below(before.len())).unwrap();
                "changed one byte, same size, time set back"
            }
            1 => {
                let file = fs::File::options().append(true).open(&path).unwrap();
                std::io::Write::write_all(&mut &file, b"appended behind the back").unwrap();
                "appended"
            }
            2 => {
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.set_len(before.len() / 2).unwrap();
                "cut in half"
            }
            3 => {
                let other = root.join("meddling");
                fs::write(&other, vec![b'?'; usize::try_from(before.len()).unwrap()]).unwrap();
                fs::rename(&other, &path).unwrap();
                "another file in its place, same size and time"
            }
            4 => {
                fs::remove_file(&path).unwrap();
                "removed"
            }
            5 => {
                let mode = 0o600 | u32::try_from(random.below(0o100)).unwrap();
                fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
                "mode changed"
            }
            _ => {
                let directory = root.join(format!("meddling{}", random.next_u64()));
                fs::create_dir(&directory).unwrap();
                fs::write(directory.join("file"), number.to_string()).unwrap();
                "a directory made"
            }
        };
        if path.exists() {
            let time = Timespec {
                tv_sec: before.mtime(),
                tv_nsec: before.mtime_nsec(),
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
        done.push(format!("{}: {what}", path.display()));
    }
    done
}
