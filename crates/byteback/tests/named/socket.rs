//! The program in docs/interface.md, run exactly as printed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use byteback_testkit::tools::printed;

use crate::rig::{Mode, Rig};

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/interface.md"));

#[test]
fn python_program_of_the_document_gets_changes_and_opens_a_cut() {
    let (_, program) = DOCUMENT.split_once("```python\n").unwrap();
    let (program, _) = program.split_once("```").unwrap();
    let mut rig = Rig::new(Mode::Exact);
    fs::write(rig.tree().join("file"), "old").unwrap();
    rig.mount();
    fs::write(rig.tree().join("new"), "content").unwrap();
    let said = printed(
        Command::new("python3")
            .arg("-c")
            .arg(program)
            .arg(rig.state_folder().join("control.sock")),
    );
    let lines: Vec<&str> = said.lines().collect();
    // The root, the file and the new one, none of them known to this consumer; then the path of the
    // cut.
    assert!(said.contains("file") && said.contains("whole"), "{said}");
    let cut = rig.tree().join(".byteback/cut/example");
    assert_eq!(lines.last().map(PathBuf::from), Some(cut.clone()), "{said}");
    assert!(!cut.exists(), "the program ends it");
    rig.umount();
}
