//! The examples run.

#[path = "../examples/signature_to_delta.rs"]
mod signature_to_delta;

#[test]
fn signature_to_delta_runs() {
    signature_to_delta::main().unwrap();
}
