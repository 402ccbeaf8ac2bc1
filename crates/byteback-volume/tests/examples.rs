//! The examples run.

#[path = "../examples/small_overwrite.rs"]
mod small_overwrite;

#[test]
fn small_overwrite_runs() {
    small_overwrite::main().unwrap();
}
