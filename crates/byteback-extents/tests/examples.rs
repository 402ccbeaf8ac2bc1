//! The examples run.

#[path = "../examples/layered_versions.rs"]
mod layered_versions;
#[path = "../examples/written_ranges.rs"]
mod written_ranges;

#[test]
fn layered_versions_runs() {
    layered_versions::main();
}

#[test]
fn written_ranges_runs() {
    written_ranges::main();
}
