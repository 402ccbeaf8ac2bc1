use super::*;
use crate::measured::{self, Measured};

fn measured(case: &str, contender: &str, [median, min, max]: [f64; 3]) -> Measured {
    Measured {
        case: case.to_owned(),
        metric: "time".to_owned(),
        unit: "s".to_owned(),
        contender: contender.to_owned(),
        median,
        min,
        max,
        runs: 3,
        goal: None,
        met: None,
    }
}

/// Writes each side's files and returns what is printed about them.
fn printed(sides: [&[Vec<Measured>]; 2], all: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    let [base, head] = ["base", "head"].map(|side| {
        let files = sides[usize::from(side == "head")].iter().enumerate();
        files
            .map(|(number, figures)| {
                let path = dir.path().join(format!("{side}-{number}.json"));
                measured::write(&path, "image", figures).unwrap();
                path
            })
            .collect()
    });
    let mut out = Vec::new();
    run(&ChangeArguments { base, head, all }, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn change_within_the_noise_is_not_shown() {
    let base = [vec![measured("1 MiB", "byteback", [2.0, 1.5, 2.5])]];
    let head = [vec![measured("1 MiB", "byteback", [2.4, 2.2, 2.9])]];
    let out = printed([&base, &head], false);
    assert_eq!(out, "1 figures compared, 0 moved out of the other side's range\n");
    let all = printed([&base, &head], true);
    assert!(
        all.contains("2.00 [1.50 .. 2.50]  2.40 [2.20 .. 2.90]  1.200\n"),
        "{all}"
    );
}

#[test]
fn change_beyond_the_noise_is_shown_with_its_ratio() {
    let base = [vec![measured("1 MiB", "byteback", [2.0, 1.5, 2.5])]];
    let head = [vec![measured("1 MiB", "byteback", [3.0, 2.6, 3.5])]];
    let out = printed([&base, &head], false);
    assert!(out.contains("image: 1 MiB  time (s)"), "{out}");
    assert!(out.contains("1.500 *\n"), "{out}");
}

#[test]
fn change_of_exact_figures_needs_two_percent() {
    let exact = |value: f64| [vec![measured("bytes up", "byteback", [value; 3])]];
    let moved = |base: f64, head: f64| printed([&exact(base), &exact(head)], false).contains(" *");
    assert!(!moved(1000.0, 1019.0));
    assert!(moved(1000.0, 1021.0));
    assert!(moved(0.0, 1.0));
    assert!(!moved(0.0, 0.0));
}

#[test]
fn change_joins_the_files_of_a_side() {
    // One file each would say that it moved; the ranges of both files overlap.
    let file = |values| vec![measured("1 MiB", "byteback", values)];
    let base = [file([2.0, 1.9, 2.1]), file([4.0, 3.9, 4.1])];
    let head = [file([3.0, 2.9, 3.1]), file([3.2, 3.1, 3.3])];
    let out = printed([&base, &head], true);
    assert!(
        out.contains("3.00 [1.90 .. 4.10]  3.10 [2.90 .. 3.30]  1.033\n"),
        "{out}"
    );
}

#[test]
fn change_counts_figures_of_one_side_and_skips_unmeasured() {
    let base = [vec![
        measured("old", "byteback", [1.0; 3]),
        measured("nan", "rsync", [f64::NAN; 3]),
    ]];
    let head = [vec![
        measured("new", "byteback", [1.0; 3]),
        measured("nan", "rsync", [1.0; 3]),
    ]];
    let out = printed([&base, &head], false);
    assert!(
        out.ends_with(
            "0 figures compared, 0 moved out of the other side's range\n3 figures were measured on one side only\n"
        ),
        "{out}"
    );
}

#[test]
fn change_refuses_another_version_and_names_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    std::fs::write(&path, br#"{"version": 2, "suite": "image", "figures": []}"#).unwrap();
    let arguments = ChangeArguments {
        base: vec![path.clone()],
        head: vec![path],
        all: false,
    };
    let error = run(&arguments, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("a.json: its format has version 2"), "{error}");
}
