//! The groups are complete, and the help fits a terminal.

use super::*;

#[test]
fn every_command_stands_in_one_group() {
    let command = Arguments::described();
    let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    grouped.sort_unstable();
    let mut known: Vec<&str> = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(Command::get_name)
        .chain(["help"])
        .collect();
    known.sort_unstable();
    assert_eq!(grouped, known);
}

#[test]
fn lines_of_the_list_fit_80_columns() {
    let template = template(&Arguments::described());
    let long: Vec<&str> = template.lines().filter(|line| line.len() > 80).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn foreign_verbs_are_not_ours_and_point_to_ones_that_are() {
    let command = Arguments::described();
    for (foreign, ours) in FOREIGN_VERBS {
        assert!(
            command.find_subcommand(foreign).is_none(),
            "{foreign} is a command of ours"
        );
        for (at, prefix) in ours.match_indices("'byteback ") {
            let verb = ours.get(at + prefix.len()..).unwrap();
            let verb = verb.split([' ', '\'']).next().unwrap();
            if verb.starts_with("--") {
                continue;
            }
            assert!(
                command.find_subcommand(verb).is_some(),
                "{foreign}: {verb} is no command"
            );
        }
    }
}
