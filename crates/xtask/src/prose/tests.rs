//! Each rule is found where it is broken, and nowhere else.

use super::*;

fn found(text: &str) -> Vec<(&'static str, usize)> {
    let files = BTreeMap::from([("crates/byteback-x/src/a.rs".to_owned(), text.as_bytes().to_vec())]);
    let places = find(&files);
    let reported = places.iter().map(|((_, rule), found)| (rule.name(), found.len()));
    reported.collect()
}

#[test]
fn relative_subjects_are_counted_by_sentence() {
    assert_eq!(
        found("// What is lost is lost. Who finds it keeps it. The end."),
        [("relative", 2)]
    );
    assert_eq!(
        found("    /// - Whoever asks is told what is known."),
        [("relative", 1)]
    );
    assert_eq!(found("// Whatsoever, and whoever. So what."), []);
    assert_eq!(found("let text = \"What is lost\";"), []);
}

#[test]
fn stiff_phrases_are_counted_in_comments_only() {
    assert_eq!(
        found("//! So somebody, and so many others, of which it is."),
        [("stiff", 3)]
    );
    assert_eq!(found("let somebody = \"so many\";"), []);
}

#[test]
fn pronoun_without_a_noun_is_a_whole_comment() {
    assert_eq!(found("/// It is none.\nstruct A;"), [("pronoun", 1)]);
    assert_eq!(found("/// The end of a file.\n/// It is none.\nstruct A;"), []);
    assert_eq!(found("// It is none."), []);
    assert_eq!(found("/// Its end.\nstruct A;"), []);
}

#[test]
fn wide_comments_are_counted_and_wide_code_is_not() {
    let (fits, wide) = ("a".repeat(97), "a".repeat(98));
    assert_eq!(found(&format!("// {fits}")), []);
    assert_eq!(found(&format!("// {wide}")), [("wide", 1)]);
    assert_eq!(found(&format!("let {wide} = 1;")), []);
    assert_eq!(found(&format!("//! | {wide} |\n//!     {wide}")), []);
}

#[test]
fn long_names_are_counted_of_tests_only() {
    let name = "n".repeat(61);
    assert_eq!(found(&format!("#[test]\nfn {name}() {{}}")), [("long-test-name", 1)]);
    assert_eq!(
        found(&format!("#[test]\n#[ignore = \"slow\"]\nfn {name}() {{}}")),
        [("long-test-name", 1)]
    );
    assert_eq!(found(&format!("#[test]\nfn {}() {{}}", "n".repeat(60))), []);
    assert_eq!(found(&format!("#[test]\nfn a() {{}}\n\nfn {name}() {{}}")), []);
}

#[test]
fn ceiling_is_neither_passed_nor_left_too_high() {
    let key = |rule| ("byteback-x".to_owned(), rule);
    let places = Places::from([
        (key(Rule::Stiff), vec!["a".to_owned(); 2]),
        (key(Rule::Wide), vec!["a".to_owned()]),
    ]);
    let ceilings = |stiff, wide, relative| {
        Counts::from([
            (key(Rule::Stiff), stiff),
            (key(Rule::Wide), wide),
            (key(Rule::Relative), relative),
        ])
    };
    assert_eq!(compare(&places, &ceilings(2, 1, 0)), Vec::<String>::new());
    let above = compare(&places, &ceilings(1, 1, 0));
    assert!(
        above.len() == 1 && above[0].contains("2 times 'stiff', but the ceiling is 1"),
        "{above:?}"
    );
    let below = compare(&places, &ceilings(2, 1, 5));
    assert!(
        below.len() == 1 && below[0].contains("only 0 times 'relative'"),
        "{below:?}"
    );
    assert_eq!(compare(&places, &Counts::new()).len(), 2);
}

#[test]
fn ceilings_are_read_as_they_were_written() {
    let key = ("byteback-x".to_owned(), Rule::LongTestName);
    let counts = Counts::from([(key, 7)]);
    assert_eq!(parse(&print(&counts)), Ok(counts));
    for damaged in [
        "byteback-x",
        "byteback-x stiff",
        "byteback-x nonsense 1",
        "byteback-x stiff -1",
        "\n",
    ] {
        assert!(parse(damaged).is_err(), "{damaged:?}");
    }
}
