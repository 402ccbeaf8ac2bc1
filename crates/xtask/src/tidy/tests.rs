//! Each rule finds its offender and lets a tidy tree pass.

use super::*;

fn tree(changed: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    let tidy = [
        ("Makefile", "test:\n"),
        ("README.md", "Caf\u{e9} is fine in a document.\n"),
        (
            "crates/byteback-oplog/src/lib.rs",
            "//! Log.\n\npub mod cut;\n#[cfg(test)]\nmod tests;\n",
        ),
        (
            "crates/byteback-oplog/src/cut.rs",
            "//! Cut.\n\n#[cfg(test)]\npub(crate) mod model; // naive\nmod tests;\n",
        ),
        ("crates/byteback-oplog/src/cut/model.rs", "//! Model.\n"),
        (
            "crates/byteback-oplog/src/cut/tests.rs",
            "//! Tests may ask Instant::now().\n",
        ),
        ("crates/byteback-oplog/src/tests.rs", "//! Tests.\n"),
        ("crates/byteback-oplog/tests/crash.rs", "//! Tests.\n"),
        ("crates/xtask/src/main.rs", "//! Main.\n"),
    ];
    let mut files: BTreeMap<_, _> = tidy
        .iter()
        .map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()))
        .collect();
    for (path, text) in changed {
        files.insert((*path).to_owned(), text.as_bytes().to_vec());
    }
    files
}

/// The only problem that appears when `path` is replaced by `text`.
fn problem(path: &str, text: &str) -> String {
    let mut found = check(&tree(&[(path, text)]));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

const MAIN: &str = "crates/xtask/src/main.rs";
const TESTS: &str = "crates/byteback-oplog/src/tests.rs";
const ROOT: &str = "crates/byteback-oplog/src/lib.rs";
const ROOT_TEXT: &str = "//! Log.\npub mod cut;\nmod tests;\n";

#[test]
fn a_tidy_tree_passes() {
    assert_eq!(check(&tree(&[])), Vec::<String>::new());
}

#[test]
fn a_missing_header_is_found_but_not_missed_in_unit_tests() {
    assert_eq!(check(&tree(&[(TESTS, "use super::*;\n")])), Vec::<String>::new());
    for path in [MAIN, "crates/byteback-oplog/tests/crash.rs"] {
        for text in ["fn main() {}\n", "", "// Not a header.\n"] {
            assert!(problem(path, text).contains("no `//!` header"));
        }
    }
}

#[test]
fn non_ascii_is_found_in_sources_only() {
    assert!(problem(MAIN, "//! x\n// \u{2192}\n").contains("main.rs:2: not ASCII"));
    assert!(problem("scripts/demo", "echo \u{fc}\n").contains("not ASCII"));
    assert!(problem(".ci/run", "echo \u{fc}\n").contains("not ASCII"));
    assert!(problem("Cargo.toml", "# \u{fc}\n").contains("not ASCII"));
}

#[test]
fn long_files_are_found_and_tests_are_not_counted() {
    let long = |lines| format!("//! x\n{}", "fn f() {}\n".repeat(lines));
    assert!(problem(MAIN, &long(LINES_MAX)).contains("801 production lines"));
    assert_eq!(check(&tree(&[(MAIN, &long(LINES_MAX - 1))])), Vec::<String>::new());
    assert_eq!(check(&tree(&[(TESTS, &long(2 * LINES_MAX))])), Vec::<String>::new());
    let inline = format!(
        "//! x\n#[cfg(test)]\nmod tests {{\n{}}}\n",
        "fn f() {}\n".repeat(LINES_MAX)
    );
    assert_eq!(check(&tree(&[(MAIN, &inline)])), Vec::<String>::new());
}

#[test]
fn unfinished_code_is_found() {
    for word in UNFINISHED {
        assert!(problem(MAIN, &format!("//! x\n{word}\n")).contains("unfinished"));
        assert!(problem(TESTS, &format!("//! x\n// {word}\n")).contains("tests.rs:2"));
        assert!(problem(TESTS, &format!("//! x\nf({word}(x))\n")).contains("tests.rs:2"));
        assert_eq!(
            check(&tree(&[(TESTS, &format!("//! x\nA{word}B\n"))])),
            Vec::<String>::new()
        );
    }
}

#[test]
fn paths_of_a_machine_are_found_in_any_file() {
    for path in MACHINE_PATHS {
        assert!(problem("README.md", &format!("see {path}main\n")).contains("README.md:1"));
        assert!(problem("docs/x.json", &format!("{{\"a\": \"{path}x\"}}\n")).contains("use a relative path"));
    }
}

#[test]
fn binary_files_are_left_alone() {
    let mut files = tree(&[]);
    files.insert(
        "golden.bin".to_owned(),
        [&[0xff, 0xfe][..], MACHINE_PATHS[0].as_bytes()].concat(),
    );
    assert_eq!(check(&files), Vec::<String>::new());
}

#[test]
fn undeclared_modules_are_found() {
    let found = check(&tree(&[(ROOT, "//! Log.\npub mod cut;\n")]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("src/tests.rs: `mod tests;` is missing in crates/byteback-oplog/src/lib.rs"),
        "{found:?}"
    );
    assert!(
        problem("crates/byteback-oplog/src/cut/late.rs", "//! x\n")
            .contains("cut.rs or crates/byteback-oplog/src/cut/mod.rs")
    );
    // A declaration in a comment, of a longer name, or with a body does not count.
    for line in ["// mod tests;", "mod more_tests;", "mod tests {}"] {
        assert!(
            problem(ROOT, &format!("//! Log.\npub mod cut;\n{line}\n")).contains("mod tests;"),
            "{line}"
        );
    }
    let nested = ("crates/byteback-oplog/src/cut/model/deep.rs", "//! x\n");
    assert_eq!(check(&tree(&[nested])).len(), 1);
    assert_eq!(
        check(&tree(&[
            nested,
            ("crates/byteback-oplog/src/cut/model.rs", "//! x\nmod deep;\n")
        ])),
        Vec::<String>::new()
    );
}

#[test]
fn deciding_code_may_not_ask_the_world() {
    for (call, _) in BANNED {
        let found = problem(ROOT, &format!("{ROOT_TEXT}fn f() {{ {call}(); }}\n"));
        assert!(
            found.contains("lib.rs:4") && found.contains("impossible to replay"),
            "{found}"
        );
        // Allowed in comments, in tests and in the outer crates.
        assert_eq!(
            check(&tree(&[(ROOT, &format!("{ROOT_TEXT}// not {call}\n"))])),
            Vec::<String>::new()
        );
        assert_eq!(
            check(&tree(&[(TESTS, &format!("//! x\n{call}();\n"))])),
            Vec::<String>::new()
        );
        assert_eq!(
            check(&tree(&[(MAIN, &format!("//! x\n{call}();\n"))])),
            Vec::<String>::new()
        );
    }
}
