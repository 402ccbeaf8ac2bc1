//! System calls that no base-system program makes, made by another user: this test program once
//! more.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const CALL_VARIABLE: &str = "BYTEBACK_TEST_CALL";

/// No test: makes the call that another test asks for.
#[test]
#[ignore = "started by other tests as another user"]
fn call_for_another_test() {
    let Ok(call) = std::env::var(CALL_VARIABLE) else {
        return;
    };
    let words: Vec<&str> = call.split('|').collect();
    match words[..] {
        ["create", path, mode] => {
            rustix::process::umask(rustix::fs::Mode::empty());
            let mode = u32::from_str_radix(mode, 8).unwrap();
            fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(path)
                .unwrap();
        }
        ["copy", from, to] => {
            let (from, to) = (
                fs::File::open(from).unwrap(),
                fs::OpenOptions::new().write(true).open(to).unwrap(),
            );
            assert_eq!(rustix::fs::copy_file_range(&from, None, &to, None, 3).unwrap(), 3);
        }
        // Stores through a shared mapping and holds it until standard input ends.
        ["map", path] => {
            let file = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(path)
                .unwrap();
            file.write_all_at(&[b'.'; 8192], 0).unwrap();
            let mapping = crate::semantics::stores::Mapping::of(&file);
            mapping.store(100, b"stored");
            println!("CALL ready");
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        _ => panic!("unknown call {call}"),
    }
}

/// Copies this program to where every user can reach it.
pub(crate) fn program_in(dir: &Path) -> PathBuf {
    let program = dir.join("program");
    if !program.exists() {
        // By another process: a writing descriptor of ours could be inherited by what another test
        // starts just then, and the program could not be run while that is open.
        let copied = std::process::Command::new("cp")
            .arg(std::env::current_exe().unwrap())
            .arg(&program)
            .status();
        assert!(copied.unwrap().success());
    }
    program
}

/// The shell command for a call, to be run by another user.
pub(crate) fn call_script(program: &Path, words: &[&str]) -> String {
    format!(
        "{CALL_VARIABLE}='{}' {} --ignored --exact other_user::call_for_another_test --nocapture",
        words.join("|"),
        program.display()
    )
}
