use std::collections::BTreeMap;

use clap::{CommandFactory, Parser};

use super::*;
use crate::arguments::{Arguments, Command as Given};

/// The values of a flag, and the flags that it requires.
fn values() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("mode", vec!["fast"]),
        ("granularity", vec!["page"]),
        ("extents-per-file", vec!["7"]),
        ("undo-window", vec!["1h"]),
        ("undo-budget", vec!["2G"]),
        ("scrub-rate", vec!["3"]),
        ("delay", vec!["1s"]),
        ("removals-max", vec!["20"]),
        ("data", vec!["/data"]),
        ("listen", vec!["[::1]:1"]),
        ("guide", vec!["/guide"]),
        ("address", vec!["example.org"]),
        ("certificate", vec!["/c", "--key", "/k"]),
        ("key", vec!["/k", "--certificate", "/c"]),
    ])
}

/// Flags that name places are resolved separately; limits are recorded with the folder; two flags
/// answer a question of one start and are refused; the rest describe how this very process runs.
const NOT_PASSED_ON: [&str; 8] = [
    "at",
    "volume",
    "limit-rate",
    "start-over",
    "accept-removals",
    "foreground",
    "detached",
    "help",
];

#[test]
fn a_unit_gets_every_flag_of_its_command() {
    let values = values();
    for verb in ["serve", "mount", "sync"] {
        let described = Arguments::command();
        let command = described.find_subcommand(verb).unwrap();
        let mut count = 0;
        for argument in command.get_arguments() {
            let Some(flag) = argument.get_long().filter(|flag| !NOT_PASSED_ON.contains(flag)) else {
                continue;
            };
            let mut words = vec!["byteback", "service", "install", verb];
            let long = format!("--{flag}");
            words.push(&long);
            if argument.get_action().takes_values() {
                words.extend(
                    values
                        .get(flag)
                        .unwrap_or_else(|| panic!("{verb} {long}: say what may stand behind it")),
                );
            }
            match (verb, flag) {
                ("serve", "data") => {}
                ("serve", _) => words.extend(["--data", "/data"]),
                _ => words.push("/folder"),
            }
            let given = Arguments::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
            let Given::Service(ServiceArguments {
                verb: Verb::Install(install),
            }) = given.command
            else {
                panic!("{words:?}");
            };
            let passed_on = match &install.what {
                What::Serve(serve) => serve.passed_on(Path::new("/data")),
                What::Mount(mount) => mount.passed_on(),
                What::Sync(sync) => sync.passed_on(),
            };
            let at = passed_on.iter().position(|word| *word == *long);
            let at = at.unwrap_or_else(|| panic!("{verb} {long} is lost in {passed_on:?}"));
            if let Some(value) = values.get(flag).filter(|_| argument.get_action().takes_values()) {
                assert_eq!(passed_on[at + 1], *value[0], "{verb} {long}");
            }
            count += 1;
        }
        assert!(count >= 4, "{verb}: {count} flags");
    }
}
