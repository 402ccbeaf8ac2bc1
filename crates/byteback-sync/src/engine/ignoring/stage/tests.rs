use super::*;

const NOTHING_CHANGED: Changed = Changed {
    has_sources: false,
    has_moved: false,
    may_ignore: false,
};

const WALKS: [Walk; 2] = [Walk::Due, Walk::Made];
const FILES: [Files; 2] = [Files::Due, Files::Read];
const NAMES: [Names; 2] = [Names::Due, Names::CutReport];

fn stages() -> Vec<Stage> {
    let mut stages = vec![Stage::Unread(LocalTree::New), Stage::Unread(LocalTree::Known)];
    for walk in WALKS {
        for files in FILES {
            stages.extend(NAMES.map(|names| Stage::Known { walk, files, names }));
        }
    }
    stages
}

/// The stage as three letters: what is due of the walk, the files and the names.
fn reported(stage: Stage) -> String {
    match stage {
        Stage::Unread(_) => "unread".to_owned(),
        Stage::Known { walk, files, names } => [
            if walk == Walk::Due { 'w' } else { '-' },
            if files == Files::Due { 'f' } else { '-' },
            if names == Names::Due { 'n' } else { '-' },
        ]
        .iter()
        .collect(),
    }
}

fn all(step: Step) -> Vec<String> {
    let known = stages().into_iter().filter(|stage| !matches!(stage, Stage::Unread(_)));
    known.map(|stage| reported(stage.next(step))).collect()
}

#[test]
fn stage_follows_its_table() {
    let begun = ["wfn", "wf-", "w-n", "w--", "-fn", "-f-", "--n", "---"];
    assert_eq!(all(Step::Decided(Review::WalkAgain)), begun);
    assert_eq!(all(Step::Decided(Review::Nothing)), begun);
    let files_due = ["wfn", "wf-", "wfn", "wf-", "-fn", "-f-", "-fn", "-f-"];
    assert_eq!(all(Step::Landed), files_due);
    assert_eq!(all(Step::TurnBegins), files_due);
    let names_due = ["wfn", "wfn", "w-n", "w-n", "-fn", "-fn", "--n", "--n"];
    assert_eq!(all(Step::Joined), names_due);
    assert_eq!(all(Step::Decided(Review::WalkFirst)), names_due);
    assert_eq!(all(Step::Decided(Review::WalkAndRead)), names_due);
    let walk_due = ["wfn", "wf-", "w-n", "w--", "wfn", "wf-", "w-n", "w--"];
    assert_eq!(all(Step::ReviewBegins), walk_due);
    let walk_made = ["-fn", "-f-", "--n", "---", "-fn", "-f-", "--n", "---"];
    assert_eq!(all(Step::Reviewed(Review::WalkAgain)), walk_made);
    assert_eq!(all(Step::Reviewed(Review::WalkFirst)), walk_made);
    let read = ["--n", "---", "--n", "---", "--n", "---", "--n", "---"];
    assert_eq!(all(Step::Reviewed(Review::WalkAndRead)), read);
    let turned = ["w-n", "w--", "w-n", "w--", "--n", "---", "--n", "---"];
    assert_eq!(all(Step::TurnEnds(Names::CutReport)), turned);
    let turned = ["w-n", "w-n", "w-n", "w-n", "--n", "--n", "--n", "--n"];
    assert_eq!(all(Step::TurnEnds(Names::Due)), turned);
    let sent = ["wf-", "wf-", "w--", "w--", "-f-", "-f-", "---", "---"];
    assert_eq!(all(Step::Sent), sent);
}

#[test]
fn stage_changes_only_after_the_rules_were_read() {
    let unread = Stage::Unread(LocalTree::New);
    for step in [
        Step::Landed,
        Step::Joined,
        Step::ReviewBegins,
        Step::Reviewed(Review::WalkAndRead),
        Step::TurnBegins,
        Step::TurnEnds(Names::Due),
        Step::Sent,
    ] {
        assert_eq!(unread.next(step), unread, "{step:?}");
    }
    assert_eq!(reported(unread.next(Step::Loaded(Files::Due))), "wf-");
    assert_eq!(reported(unread.next(Step::Loaded(Files::Read))), "w--");
}

/// The review, decided by one flag for each thing that is due.
fn by_flags(stage: Stage, cut: CutFor, changed: &Changed) -> Review {
    let (is_first, is_due, is_reported_again) = match stage {
        Stage::Unread(_) => (true, false, false),
        Stage::Known { walk, files, names } => (walk == Walk::Due, files == Files::Due, names == Names::Due),
    };
    let is_asked_for = changed.has_sources || is_due || is_reported_again;
    if !is_asked_for && !changed.may_ignore {
        return Review::Nothing;
    }
    match cut {
        CutFor::Fold if is_first || is_due || changed.has_sources || changed.has_moved => Review::WalkAndRead,
        _ if is_first => Review::WalkFirst,
        _ => Review::WalkAgain,
    }
}

#[test]
fn review_is_as_wide_as_what_is_due() {
    let mut seen = Vec::new();
    for stage in stages() {
        for cut in [CutFor::Fold, CutFor::Landing] {
            for bits in 0..8 {
                let changed = Changed {
                    has_sources: bits & 1 > 0,
                    has_moved: bits & 2 > 0,
                    may_ignore: bits & 4 > 0,
                };
                let review = stage.review(cut, &changed);
                assert_eq!(review, by_flags(stage, cut, &changed), "{stage:?} {cut:?} {changed:?}");
                seen.push(review);
            }
        }
    }
    for review in [
        Review::Nothing,
        Review::WalkAgain,
        Review::WalkFirst,
        Review::WalkAndRead,
    ] {
        assert!(seen.contains(&review), "{review:?}");
    }
}

#[test]
fn stages_are_all_reached_and_end_with_nothing_due() {
    let reviews = [
        Review::Nothing,
        Review::WalkAgain,
        Review::WalkFirst,
        Review::WalkAndRead,
    ];
    let mut steps = vec![
        Step::Landed,
        Step::Joined,
        Step::ReviewBegins,
        Step::TurnBegins,
        Step::Sent,
    ];
    steps.extend(FILES.map(Step::Loaded));
    steps.extend(NAMES.map(Step::TurnEnds));
    steps.extend(reviews.map(Step::Decided));
    steps.extend(reviews.map(Step::Reviewed));
    let mut reached = vec![Stage::Unread(LocalTree::Known)];
    let mut at = 0;
    while let Some(stage) = reached.get(at).copied() {
        at += 1;
        for step in &steps {
            let after = stage.next(*step);
            if !reached.contains(&after) {
                reached.push(after);
            }
        }
    }
    let missing: Vec<Stage> = stages().into_iter().filter(|stage| !reached.contains(stage)).collect();
    assert_eq!(missing, [Stage::Unread(LocalTree::New)]);
    for stage in reached {
        // A fold that is sent ends whatever was due.
        let stage = stage.next(Step::Loaded(Files::Read));
        let review = stage.review(CutFor::Fold, &NOTHING_CHANGED);
        let ended = match review {
            Review::Nothing => stage,
            review => {
                let begun = stage.next(Step::ReviewBegins).next(Step::Decided(review));
                begun.next(Step::Reviewed(review)).next(Step::Sent)
            }
        };
        assert!(!ended.has_names_to_tell(), "{stage:?}");
        assert_eq!(
            ended.review(CutFor::Fold, &NOTHING_CHANGED),
            Review::Nothing,
            "{stage:?}"
        );
    }
}
