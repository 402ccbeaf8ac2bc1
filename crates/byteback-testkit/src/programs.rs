//! Programs at work in a real directory.

use crate::seed::Draw;
use byteback_host::random::SplitMix64;
use byteback_host::tree::{self, SetTime};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Makes one change as a program would; some fail, as some programs do.
pub fn change(dir: &Path, random: &mut SplitMix64) {
    let all = below(dir);
    let mut dirs: Vec<&Path> = all
        .iter()
        .filter(|path| path.symlink_metadata().unwrap().is_dir())
        .map(|path| &**path)
        .collect();
    dirs.push(dir);
    let files: Vec<&PathBuf> = all
        .iter()
        .filter(|path| path.symlink_metadata().unwrap().is_file())
        .collect();
    let name = match random.below(10) {
        0 => OsString::from_vec(vec![0xfe, b'0' + random.below(9) as u8]),
        _ => OsString::from(format!("n{}", random.below(25))),
    };
    let new = dirs[random.index(dirs.len())].join(name);
    let bytes: Vec<u8> = (0..random.below(9000)).map(|_| random.next_u64() as u8).collect();
    match random.below(14) {
        0..=2 => drop(fs::write(&new, &bytes)),
        3 => drop(fs::create_dir(&new)),
        4 => drop(symlink("somewhere", &new)),
        // As git and builds do: a folder that comes and goes, with entries in it.
        5 if fs::create_dir(&new).is_ok() => {
            fs::write(new.join("inside"), &bytes).unwrap();
            fs::remove_dir_all(&new).unwrap();
        }
        6 if !all.is_empty() => {
            let path = &all[random.index(all.len())];
            let _ = if path.symlink_metadata().unwrap().is_dir() {
                fs::remove_dir_all(path)
            } else {
                fs::remove_file(path)
            };
        }
        7 | 8 if !all.is_empty() => drop(fs::rename(&all[random.index(all.len())], &new)),
        9 if !files.is_empty() => drop(fs::hard_link(files[random.index(files.len())], &new)),
        10 if !all.is_empty() => {
            let path = &all[random.index(all.len())];
            if !path.symlink_metadata().unwrap().is_symlink() {
                fs::set_permissions(path, fs::Permissions::from_mode([0o700, 0o755, 0o711][random.index(3)])).unwrap();
            }
        }
        // The same length and time, other bytes.
        11 if !files.is_empty() => {
            let path = files[random.index(files.len())];
            let was = fs::metadata(path).unwrap();
            if was.len() > 0 {
                let file = File::options().write(true).open(path).unwrap();
                file.write_all_at(&[random.next_u64() as u8], random.below(was.len()))
                    .unwrap();
                let time = was.mtime() * 1_000_000_000 + was.mtime_nsec();
                tree::set_times(&file, SetTime::Keep, SetTime::To(time.into())).unwrap();
            }
        }
        12 if !files.is_empty() => {
            let file = File::options()
                .write(true)
                .open(files[random.index(files.len())])
                .unwrap();
            file.set_len(random.below(200_000)).unwrap();
        }
        _ if !files.is_empty() => {
            let file = File::options()
                .write(true)
                .open(files[random.index(files.len())])
                .unwrap();
            file.write_all_at(&bytes, random.below(100_000)).unwrap();
        }
        _ => {}
    }
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() {
            found.extend(below(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}
