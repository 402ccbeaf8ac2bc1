use super::*;

fn problems(page: &str) -> Vec<String> {
    let files = [
        ("docs/page.md", page),
        ("CHANGELOG.md", "`a_test_that_is_gone`"),
        ("crates/a/src/queue/tests.rs", "fn queue_keeps_order_after_crash() {}"),
        ("scripts/demo", "begin_with_a_function() { :; }"),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec()));
    check(&files.into())
}

#[test]
fn pages_may_name_tests_and_functions_of_scripts() {
    assert_eq!(
        problems("See `queue_keeps_order_after_crash` and `begin_with_a_function`."),
        [""; 0]
    );
}

#[test]
fn pages_that_name_a_missing_test_are_told_with_the_line() {
    let found = problems("One.\nSee `queue_keeps_order_after_a_crash`.");
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("docs/page.md:2: `queue_keeps_order_after_a_crash`"),
        "{found:?}"
    );
}

#[test]
fn pages_may_use_short_names_and_quoted_commands() {
    assert_eq!(
        problems("`len_bytes`, `is_not_there`, `byteback backup DIR`, `a_b_c_d = 1`"),
        [""; 0]
    );
}

#[test]
fn pages_name_paths_that_exist() {
    assert_eq!(
        problems("`crates/a/src/queue`, `crates/a/src/queue/tests`, `scripts/`, `scripts/*`, `crates/NAME.rs`"),
        [""; 0]
    );
    assert_eq!(problems("`crates/a/src/log`, `scripts/dem`").len(), 2);
}
