use super::*;

fn known(log: LogSays) -> Known {
    Known {
        choice: DeltaChoice::Auto,
        log,
        size_bytes: 1 << 20,
        server_has: true,
        answers: Answers::ALL,
        proof_refused: false,
    }
}

fn unasked() -> bool {
    panic!("the block checksums need not be asked")
}

#[test]
fn what_costs_least_is_chosen() {
    let untracked = LogSays::Whole(WholeReason::Untracked);
    let chosen = |known: Known| plan(&known, unasked).map(|plan| (plan.method, plan.cause, plan.fallback));
    assert_eq!(chosen(known(LogSays::Unchanged)), None);
    assert_eq!(
        chosen(known(LogSays::Ranges)),
        Some((DeltaMethod::Log, Cause::LogKnew, None))
    );
    assert_eq!(
        chosen(known(LogSays::Rewritten)),
        Some((DeltaMethod::Rsync, Cause::Rewritten, None))
    );
    let cause = Cause::Whole(WholeReason::Untracked);
    for (sums_know, method) in [(true, DeltaMethod::Sums), (false, DeltaMethod::Rsync)] {
        let planned = plan(&known(untracked), || sums_know).unwrap();
        assert_eq!((planned.method, planned.cause, planned.fallback), (method, cause, None));
    }
    let new = Known {
        server_has: false,
        ..known(LogSays::Unchanged)
    };
    assert_eq!(chosen(new), Some((DeltaMethod::Full, Cause::New, None)));
}

#[test]
fn what_is_asked_for_is_done_where_it_can_be_done() {
    for log in [
        LogSays::Ranges,
        LogSays::Rewritten,
        LogSays::Whole(WholeReason::Interrupted),
    ] {
        for (choice, method) in [
            (DeltaChoice::Rsync, DeltaMethod::Rsync),
            (DeltaChoice::Hash, DeltaMethod::Hash),
            (DeltaChoice::Webr, DeltaMethod::Webr),
            (DeltaChoice::Cdc, DeltaMethod::Cdc),
            (DeltaChoice::Full, DeltaMethod::Full),
        ] {
            let asked = Known { choice, ..known(log) };
            let planned = plan(&asked, unasked).unwrap();
            assert_eq!(
                (planned.method, planned.cause, planned.fallback),
                (method, Cause::Asked, None)
            );
            let unchanged = Known {
                log: LogSays::Unchanged,
                ..asked
            };
            assert_eq!(plan(&unchanged, unasked), None);
            let new = Known {
                server_has: false,
                ..asked
            };
            assert_eq!(plan(&new, unasked).unwrap().cause, Cause::New);
        }
    }
}

#[test]
fn what_cannot_be_looked_for_is_sent_whole_with_the_reason() {
    let rewritten = known(LogSays::Rewritten);
    let fallback = |known: Known| {
        let planned = plan(&known, unasked).unwrap();
        assert_eq!((planned.method, planned.cause), (DeltaMethod::Full, Cause::Rewritten));
        planned.fallback.unwrap()
    };
    let of_size = |size_bytes| Known {
        size_bytes,
        ..rewritten
    };
    assert_eq!(fallback(of_size(EXAMINED_LEN_MIN - 1)), Fallback::TooShort);
    assert_eq!(plan(&of_size(EXAMINED_LEN_MIN), unasked).unwrap().fallback, None);
    assert_eq!(plan(&of_size(EXAMINED_LEN_MAX), unasked).unwrap().fallback, None);
    assert_eq!(fallback(of_size(EXAMINED_LEN_MAX + 1)), Fallback::TooLong);
    let mut answers = Answers::ALL;
    answers.end();
    let mute = Known { answers, ..rewritten };
    assert_eq!(fallback(mute), Fallback::NoSignature);
    let refused = Known {
        proof_refused: true,
        answers,
        ..rewritten
    };
    assert_eq!(fallback(refused), Fallback::ProofRefused);
}

#[test]
fn a_call_that_a_server_has_not_ends_what_needs_it_and_nothing_else() {
    let methods = [
        (DeltaChoice::Rsync, Call::Signature),
        (DeltaChoice::Hash, Call::Signature),
        (DeltaChoice::Webr, Call::Matches),
        (DeltaChoice::Cdc, Call::Chunks),
    ];
    for lacking in [Call::Signature, Call::Matches, Call::Chunks] {
        let mut answers = Answers::ALL;
        answers.end_of(lacking);
        for (choice, call) in methods {
            let asked = Known {
                choice,
                answers,
                ..known(LogSays::Rewritten)
            };
            let fallback = plan(&asked, unasked).unwrap().fallback;
            assert_eq!(
                fallback,
                (call == lacking).then_some(Fallback::NoSignature),
                "{choice:?}"
            );
        }
    }
}
