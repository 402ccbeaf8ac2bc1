use super::*;

fn problems(page: &str) -> Vec<String> {
    let files = [
        (PAGE, page),
        ("crates/byteback-oplog/src/cut.rs", "fn cut_is_a_moment() {}"),
        ("crates/byteback-oplog/src/log/a.rs", ""),
        ("crates/byteback/tests/cut/main.rs", ""),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()));
    check(&files.into())
}

#[test]
fn invariants_page_names_only_what_exists() {
    let sound = "# Invariants\n\n## Cuts\n\n### Cut\n\nA moment.\n\n- Kept in: `oplog/cut`, `oplog/log`, `Log::cut`\n\
                 - Tests: `cut_is_a_moment` (oplog), `crates/byteback/tests/cut`\n\n## Other\n";
    assert_eq!(problems(sound), [""; 0]);
    for (old, new, problem) in [
        ("`cut_is_a_moment`", "`cut_was_renamed`", "names `cut_was_renamed`"),
        ("`oplog/log`", "`oplog/moved`", "names `oplog/moved`"),
        ("tests/cut`", "tests/gone`", "names `crates/byteback/tests/gone`"),
        ("A moment.", "", "is to be a claim"),
        ("- Tests: ", "- Test: ", "lacks a line"),
    ] {
        let found = problems(&sound.replace(old, new));
        assert!(found.len() == 1 && found[0].contains(problem), "{new}: {found:?}");
    }
}

#[test]
fn invariants_page_must_exist() {
    assert_eq!(check(&BTreeMap::new()), ["docs/invariants.md: it is missing"]);
}
