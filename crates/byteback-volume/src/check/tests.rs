//! The check, on volumes that are whole and on damaged ones.

/// The check must not share the assumptions of the rest of the crate.
#[test]
fn the_check_knows_the_format_and_nothing_of_the_rest() {
    let sources = [
        include_str!("../check.rs"),
        include_str!("files.rs"),
        include_str!("image.rs"),
        include_str!("names.rs"),
        include_str!("problem.rs"),
        include_str!("totals.rs"),
    ];
    for (number, line) in sources.iter().flat_map(|source| source.lines()).enumerate() {
        let is_allowed = |rest: &str| rest.starts_with("format") || rest.starts_with("error");
        for (at, found) in line.match_indices("crate::") {
            assert!(is_allowed(&line[at + found.len()..]), "line {number}: {line}");
        }
    }
}
