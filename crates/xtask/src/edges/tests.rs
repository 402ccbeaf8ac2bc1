//! The edge check finds forbidden edges, missing rows and stale names, and nothing else.

use serde_json::json;

use super::*;

const TABLE: &str = "
# Map

| other | table |
|---|---|
| `byteback-ignored` -> nothing | x |

| crate | knows |
|---|---|
| `byteback-extents` | ranges -> no arrow |
| `byteback-host` | x |
| `byteback-oplog` -> extents, `byteback-host` | x |
| `byteback-control` -> extents (types only, see there) | x |
| `byteback` (the binary) -> all | x |
| `byteback-bench`, `xtask` | x |

| `byteback-after` | the table has ended |
";

fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
    let list: Vec<_> = dependencies
        .iter()
        .map(|(name, kind)| json!({ "name": name, "kind": kind }))
        .collect();
    json!({ "name": name, "dependencies": list })
}

fn workspace(changed: &[Value]) -> Edges {
    let mut packages = vec![
        package("byteback-extents", &[("serde", None)]),
        package("byteback-host", &[("byteback-extents", Some("dev"))]),
        package("byteback-oplog", &[("byteback-extents", None), ("byteback-host", None)]),
        package("byteback-control", &[]),
        package(
            "byteback",
            &[
                ("byteback-oplog", None),
                ("byteback-host", Some("build")),
                ("clap", None),
            ],
        ),
        package("byteback-bench", &[]),
        package("xtask", &[("serde_json", None)]),
    ];
    packages.retain(|package| changed.iter().all(|other| other["name"] != package["name"]));
    packages.extend(changed.iter().cloned());
    actual(&json!({ "packages": packages })).unwrap()
}

fn problems(changed: &[Value]) -> Vec<String> {
    compare(&parse_table(TABLE), &workspace(changed))
}

#[test]
fn the_table_is_read_as_people_read_it() {
    let table = parse_table(TABLE);
    let names: Vec<_> = table.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "byteback",
            "byteback-bench",
            "byteback-control",
            "byteback-extents",
            "byteback-host",
            "byteback-oplog",
            "xtask"
        ]
    );
    assert_eq!(
        table["byteback-oplog"],
        ["byteback-extents", "byteback-host"].map(String::from).into()
    );
    assert_eq!(table["byteback-control"], ["byteback-extents".to_owned()].into());
    assert_eq!(table["byteback"], ["all".to_owned()].into());
    assert!(table["byteback-extents"].is_empty());
}

#[test]
fn a_workspace_that_keeps_the_table_has_no_problem() {
    assert_eq!(problems(&[]), Vec::<String>::new());
}

#[test]
fn a_forbidden_edge_is_found() {
    for kind in [None, Some("build")] {
        let found = problems(&[package("byteback-extents", &[("byteback-host", kind)])]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("byteback-extents uses byteback-host"), "{found:?}");
    }
    let found = problems(&[package("byteback", &[("byteback-bench", None)])]);
    assert!(
        found.len() == 1 && found[0].contains("byteback uses byteback-bench"),
        "{found:?}"
    );
}

#[test]
fn a_crate_without_a_row_and_a_row_without_a_crate_are_found() {
    let found = problems(&[package("byteback-new", &[])]);
    assert!(
        found.len() == 1 && found[0].contains("byteback-new is missing"),
        "{found:?}"
    );

    let mut smaller = workspace(&[]);
    smaller.remove("byteback-host");
    let found = compare(&parse_table(TABLE), &smaller);
    assert!(
        found
            .iter()
            .any(|p| p.contains("the row of byteback-host names byteback-host")),
        "{found:?}"
    );
    assert!(
        found
            .iter()
            .any(|p| p.contains("the row of byteback-oplog names byteback-host")),
        "{found:?}"
    );
}

#[test]
fn a_document_without_the_table_is_a_problem() {
    let found = compare(&parse_table("# Map\n\nNo table.\n"), &workspace(&[]));
    assert!(found[0].contains("no table"), "{found:?}");
    assert_eq!(found.len(), 8);
}

#[test]
fn metadata_that_makes_no_sense_is_an_error() {
    assert!(actual(&json!({})).is_err());
    assert!(actual(&json!({ "packages": [{ "dependencies": [] }] })).is_err());
    assert!(actual(&json!({ "packages": [{ "name": "x" }] })).is_err());
}
