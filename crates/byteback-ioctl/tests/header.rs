//! The C header and library compile as C and C++ with the strictest warnings, so that no program
//! that includes them sees a warning.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

const STRICT: [&str; 8] = [
    "-pedantic",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wconversion",
    "-Wshadow",
    "-Wundef",
    "-I",
];

fn library() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../libbyteback")
}

/// Runs a compiler with the strictest warnings; panics with its output if it fails.
fn compile(compiler: &str, arguments: &[&str], what: &[&Path], output: &Path) {
    let compiled = Command::new(compiler)
        .args(arguments)
        .args(STRICT)
        .arg(library().join("include"))
        .arg("-o")
        .arg(output)
        .args(what)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; `make dependencies` installs it"));
    assert!(
        compiled.status.success(),
        "{compiler} {arguments:?}: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );
}

fn run(program: &Path) -> String {
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{}: {:?}", program.display(), output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_header_and_the_library_are_c_and_cplusplus() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let of_library = |name: &str| library().join(name);
    let mut layouts = Vec::new();
    for standard in ["-std=c99", "-std=c11", "-std=gnu17"] {
        compile(
            "cc",
            &[standard, "-Wc++-compat", "-Wstrict-prototypes"],
            &[&of_library("tests/layout.c")],
            &at("layout"),
        );
        layouts.push(run(&at("layout")));
        let of_system = [standard, "-D_DEFAULT_SOURCE", "-c"];
        compile("cc", &of_system, &[&of_library("libbyteback.c")], &at("libbyteback.o"));
    }
    for standard in ["-std=c++11", "-std=c++17", "-std=c++20"] {
        compile(
            "c++",
            &[standard, "-x", "c++"],
            &[&of_library("tests/layout.c")],
            &at("layout"),
        );
        layouts.push(run(&at("layout")));
        let files = [&*of_library("tests/linkage.cpp"), &*at("libbyteback.o")];
        compile("c++", &[standard], &files, &at("linkage"));
        run(&at("linkage"));
    }
    assert!(layouts[0].contains("BYTEBACK_DELTA_OPEN"));
    for layout in &layouts {
        assert_eq!(*layout, layouts[0], "the languages disagree");
    }
}
