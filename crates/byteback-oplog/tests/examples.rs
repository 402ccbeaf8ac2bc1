//! The examples run.

#[path = "../examples/changes_since_mark.rs"]
mod changes_since_mark;

#[test]
fn changes_since_mark_runs() {
    changes_since_mark::main().unwrap();
}
