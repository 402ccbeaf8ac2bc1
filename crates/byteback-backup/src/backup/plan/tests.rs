use super::*;

fn known(log: LogKnowledge) -> Known {
    Known {
        choice: DeltaChoice::Auto,
        log,
        size_bytes: 1 << 20,
        changed_bytes: 0,
        searchable_bytes: 0,
        block_bytes: 0,
        server_has: true,
        answers: Answers::ALL,
        proof_refused: false,
        conditions: Conditions::default(),
    }
}

/// Fixed answers; one that must not be asked for is `None`.
#[derive(Clone, Default)]
struct Told {
    overwritten_bytes: u64,
    sums_know_most: Option<bool>,
    leaves_exist: Option<bool>,
    sent_share: Option<f64>,
    former_search: Option<(DeltaMethod, Searches)>,
}

impl Hints for Told {
    fn overwritten_bytes(&mut self) -> u64 {
        self.overwritten_bytes
    }

    fn sums_know_most(&mut self) -> bool {
        self.sums_know_most.expect("the block checksums need not be asked")
    }

    fn leaves_exist(&mut self) -> bool {
        self.leaves_exist.expect("the tree need not be asked")
    }

    fn sent_share(&mut self) -> Option<f64> {
        Some(self.sent_share.expect("the record need not be asked"))
    }

    fn former_searches(&mut self, method: DeltaMethod) -> Option<Searches> {
        let (former, searches) = self.former_search.expect("the record need not be asked");
        (former == method).then_some(searches)
    }
}

fn unasked() -> Told {
    Told::default()
}

#[test]
fn plan_chooses_the_cheapest_method() {
    let untracked = LogKnowledge::Whole(WholeReason::Untracked);
    let little = Told {
        sent_share: Some(0.01),
        ..Told::default()
    };
    let chosen = |known: Known| plan(&known, &mut little.clone()).map(|plan| (plan.method, plan.cause, plan.fallback));
    assert_eq!(chosen(known(LogKnowledge::Unchanged)), None);
    assert_eq!(
        chosen(known(LogKnowledge::Ranges)),
        Some((DeltaMethod::Log, Cause::LogKnew, None))
    );
    assert_eq!(
        chosen(known(LogKnowledge::Rewritten)),
        Some((DeltaMethod::SkyF, Cause::Rewritten, None))
    );
    let cause = Cause::Whole(WholeReason::Untracked);
    for (leaves_exist, sums_know_most, size_bytes, method) in [
        (true, None, 1 << 20, DeltaMethod::SkyF),
        (false, Some(true), 1 << 20, DeltaMethod::Sums),
        (false, Some(false), 128 << 10, DeltaMethod::Rsync),
        (false, Some(false), 1 << 20, DeltaMethod::SkyF),
        (false, Some(true), 1 << 30, DeltaMethod::Sums),
        // Over a fast link reading and summing count most.
        (false, Some(false), 1 << 30, DeltaMethod::SkyF),
    ] {
        let mut of_size = Known {
            size_bytes,
            ..known(untracked)
        };
        if size_bytes >= SUMMED_LEN_MIN {
            of_size.conditions.link_bytes_per_s = 1_250_000_000;
        }
        let planned = plan(
            &of_size,
            &mut Told {
                sums_know_most,
                leaves_exist: Some(leaves_exist),
                // Of a long file less changed, as its blocks are long.
                sent_share: Some(if size_bytes == 1 << 30 { 0.001 } else { 0.01 }),
                ..Told::default()
            },
        )
        .unwrap();
        assert_eq!((planned.method, planned.cause, planned.fallback), (method, cause, None));
    }
    let new = Known {
        server_has: false,
        ..known(LogKnowledge::Unchanged)
    };
    assert_eq!(chosen(new), Some((DeltaMethod::Full, Cause::New, None)));
}

#[test]
fn plan_searches_long_ranges_unless_that_found_nothing() {
    let method = |searchable_bytes, size_bytes, searched_share: Option<f64>| {
        let known = Known {
            size_bytes,
            searchable_bytes,
            ..known(LogKnowledge::Ranges)
        };
        let told = Told {
            former_search: searched_share.map(|share| (DeltaMethod::LogSearched, Searches::after(share))),
            sums_know_most: Some(false),
            ..Told::default()
        };
        let planned = plan(&known, &mut ToldOnce(told)).unwrap();
        assert_eq!((planned.cause, planned.fallback), (Cause::LogKnew, None));
        planned.method
    };
    const MIB: u64 = 1 << 20;
    // Short, in the file and at all.
    assert_eq!(method(MIB - 1, 100 * MIB, None), DeltaMethod::Log);
    assert_eq!(method(70_000, MIB, None), DeltaMethod::Log);
    for (searchable_bytes, size_bytes) in [(MIB, 100 * MIB), (600_000, 2 * MIB), (90 * MIB, 100 * MIB)] {
        for (share, expected) in [
            (None, DeltaMethod::LogSearched),
            (Some(0.5), DeltaMethod::LogSearched),
            (Some(1.0), DeltaMethod::Log),
        ] {
            assert_eq!(
                method(searchable_bytes, size_bytes, share),
                expected,
                "{searchable_bytes} {share:?}"
            );
        }
    }
    for known in [
        Known {
            proof_refused: true,
            ..known(LogKnowledge::Ranges)
        },
        Known {
            answers: {
                let mut answers = Answers::ALL;
                answers.end_of(Call::Signature);
                answers
            },
            ..known(LogKnowledge::Ranges)
        },
    ] {
        let known = Known {
            searchable_bytes: MIB,
            ..known
        };
        assert_eq!(
            plan(&known, &mut unasked()).map(|plan| plan.method),
            Some(DeltaMethod::Log)
        );
    }
    let trimmed = Known {
        searchable_bytes: MIB,
        ..known(LogKnowledge::Ranges)
    };
    let told = Told {
        sums_know_most: Some(true),
        ..Told::default()
    };
    assert_eq!(
        plan(&trimmed, &mut ToldOnce(told)).map(|plan| plan.method),
        Some(DeltaMethod::Log)
    );
    let searched = Plan::new(DeltaMethod::LogSearched, Cause::LogKnew);
    assert_eq!(searched.fall_back(Fallback::Appended).method, DeltaMethod::Log);
}

/// Answers of which the searched share may be unknown.
struct ToldOnce(Told);

impl Hints for ToldOnce {
    fn overwritten_bytes(&mut self) -> u64 {
        self.0.overwritten_bytes()
    }

    fn sums_know_most(&mut self) -> bool {
        self.0.sums_know_most()
    }

    fn leaves_exist(&mut self) -> bool {
        self.0.leaves_exist()
    }

    fn sent_share(&mut self) -> Option<f64> {
        self.0.sent_share()
    }

    fn former_searches(&mut self, method: DeltaMethod) -> Option<Searches> {
        let (former, searches) = self.0.former_search?;
        (former == method).then_some(searches)
    }
}

#[test]
fn plan_looks_blocks_up_where_little_of_a_file_was_written() {
    let method = |block_bytes, searchable_bytes, size_bytes, former_search: Option<(DeltaMethod, f64)>| {
        let known = Known {
            size_bytes,
            searchable_bytes,
            block_bytes,
            ..known(LogKnowledge::Ranges)
        };
        let told = Told {
            former_search: former_search.map(|(method, sent)| (method, Searches::after(sent))),
            sums_know_most: Some(false),
            ..Told::default()
        };
        plan(&known, &mut ToldOnce(told)).unwrap().method
    };
    let (looked_up, searched) = (DeltaMethod::LogLookedUp, DeltaMethod::LogSearched);
    const MIB: u64 = 1 << 20;
    assert_eq!(method(2 * MIB, 0, 100 * MIB, None), looked_up);
    assert_eq!(method(2 * MIB, 2 * MIB, 100 * MIB, None), looked_up);
    // A way that found nothing gives way to the other one, or to none.
    assert_eq!(method(2 * MIB, 2 * MIB, 100 * MIB, Some((looked_up, 1.0))), searched);
    assert_eq!(method(2 * MIB, 0, 100 * MIB, Some((looked_up, 1.0))), DeltaMethod::Log);
    // Most of the file.
    assert_eq!(method(90 * MIB, 90 * MIB, 100 * MIB, None), searched);
    assert_eq!(method(90 * MIB, 90 * MIB, 100 * MIB, Some((searched, 1.0))), looked_up);
    // Going through the leaves would cost more than the bytes.
    assert_eq!(method(MIB / 8, 0, 1 << 40, None), DeltaMethod::Log);
    assert_eq!(method(60_000, 0, 100 * MIB, None), DeltaMethod::Log);
}

#[test]
fn plan_follows_the_requested_method_where_possible() {
    for log in [
        LogKnowledge::Ranges,
        LogKnowledge::Rewritten,
        LogKnowledge::Whole(WholeReason::Interrupted),
    ] {
        for (choice, method) in [
            (DeltaChoice::Rsync, DeltaMethod::Rsync),
            (DeltaChoice::Hash, DeltaMethod::Hash),
            (DeltaChoice::Webr, DeltaMethod::Webr),
            (DeltaChoice::Cdc, DeltaMethod::Cdc),
            (DeltaChoice::SkyF, DeltaMethod::SkyF),
            (DeltaChoice::SkyC, DeltaMethod::SkyC),
            (DeltaChoice::Full, DeltaMethod::Full),
        ] {
            let asked = Known { choice, ..known(log) };
            let planned = plan(&asked, &mut unasked()).unwrap();
            assert_eq!(
                (planned.method, planned.cause, planned.fallback),
                (method, Cause::Asked, None)
            );
            let unchanged = Known {
                log: LogKnowledge::Unchanged,
                ..asked
            };
            assert_eq!(plan(&unchanged, &mut unasked()), None);
            let new = Known {
                server_has: false,
                ..asked
            };
            assert_eq!(plan(&new, &mut unasked()).unwrap().cause, Cause::New);
        }
    }
}

#[test]
fn plan_sends_unsearchable_files_whole_with_the_reason() {
    // Without a round trip, even a short file is worth a question.
    let rewritten = Known {
        conditions: Conditions {
            round_trip_ns: 0,
            ..Conditions::default()
        },
        ..known(LogKnowledge::Rewritten)
    };
    let little = Told {
        sent_share: Some(0.01),
        ..Told::default()
    };
    let fallback = |known: Known| {
        let planned = plan(&known, &mut little.clone()).unwrap();
        assert_eq!((planned.method, planned.cause), (DeltaMethod::Full, Cause::Rewritten));
        planned.fallback.unwrap()
    };
    let of_size = |size_bytes| Known {
        size_bytes,
        ..rewritten
    };
    assert_eq!(fallback(of_size(EXAMINED_LEN_MIN - 1)), Fallback::TooShort);
    assert_eq!(
        plan(&of_size(EXAMINED_LEN_MIN), &mut little.clone()).unwrap().fallback,
        None
    );
    assert_eq!(
        plan(&of_size(EXAMINED_LEN_MAX), &mut little.clone()).unwrap().fallback,
        None
    );
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
fn plan_falls_back_only_for_methods_needing_a_missing_call() {
    let methods = [
        (DeltaChoice::Rsync, &[Call::Signature][..]),
        (DeltaChoice::Hash, &[Call::Signature]),
        (DeltaChoice::Webr, &[Call::Matches]),
        (DeltaChoice::Cdc, &[Call::Chunks]),
        (DeltaChoice::SkyF, &[Call::Signature]),
        (DeltaChoice::SkyC, &[Call::Signature, Call::Chunks]),
    ];
    for lacking in [Call::Signature, Call::Matches, Call::Chunks] {
        let mut answers = Answers::ALL;
        answers.end_of(lacking);
        for (choice, calls) in methods {
            let asked = Known {
                choice,
                answers,
                ..known(LogKnowledge::Rewritten)
            };
            let fallback = plan(&asked, &mut unasked()).unwrap().fallback;
            assert_eq!(
                fallback,
                calls.contains(&lacking).then_some(Fallback::NoSignature),
                "{choice:?}"
            );
        }
    }
}

#[test]
fn the_record_of_former_backups_is_asked_only_if_it_decides() {
    let rewritten = Known {
        size_bytes: 100 << 20,
        ..known(LogKnowledge::Rewritten)
    };
    // Over a slow link even a small match is worth a search, over a fast one hardly any is.
    let over = |megabits_per_s: u64| Known {
        conditions: Conditions {
            link_bytes_per_s: megabits_per_s * 125_000,
            ..Conditions::default()
        },
        ..rewritten
    };
    let slow = Known {
        answers: Answers {
            chunks: false,
            matches: false,
            ..Answers::ALL
        },
        ..over(1)
    };
    let reported = |sent_share| Told {
        sent_share: Some(sent_share),
        ..Told::default()
    };
    let planned = |known: &Known, reported: &mut Told| plan(known, reported).map(|plan| (plan.method, plan.fallback));
    for share in [0.02, 0.2] {
        let found = planned(&over(100), &mut reported(share)).unwrap();
        assert_eq!(found.1, None, "{share}: {found:?}");
    }
    assert_eq!(
        planned(&over(100), &mut reported(1.0)),
        Some((DeltaMethod::Full, Some(Fallback::CostsLess)))
    );
    let busy = Known {
        conditions: Conditions {
            link_bytes_per_s: 10_000_000_000,
            processor_share: 0.01,
            ..Conditions::default()
        },
        ..slow
    };
    assert_eq!(
        planned(&busy, &mut unasked()),
        Some((DeltaMethod::Full, Some(Fallback::CostsLess)))
    );
}

#[test]
fn plan_chooses_only_methods_the_server_supports() {
    let none = {
        let mut none = Answers::ALL;
        none.end();
        none
    };
    for signature in [false, true] {
        for matches in [false, true] {
            for chunks in [false, true] {
                let answers = Answers {
                    excerpt: false,
                    excerpt_bytes: false,
                    groups: false,
                    digests: false,
                    alike: false,
                    lookup: false,
                    signature,
                    matches,
                    chunks,
                };
                let known = Known {
                    answers,
                    ..known(LogKnowledge::Rewritten)
                };
                let mut reported = Told {
                    sent_share: Some(0.01),
                    ..Told::default()
                };
                let planned = plan(&known, &mut reported).unwrap();
                if answers == none {
                    assert_eq!(planned.fallback, Some(Fallback::NoSignature));
                } else {
                    assert_eq!(planned.fallback, None, "{answers:?}");
                    assert!(answers.suffice_for(planned.method), "{planned:?} {answers:?}");
                    assert_ne!(planned.method, DeltaMethod::Full);
                }
            }
        }
    }
}

#[test]
fn ranges_are_compared_with_enough_of_what_was_overwritten() {
    let method = |log, changed_bytes, overwritten_bytes| {
        let known = Known {
            changed_bytes,
            ..known(log)
        };
        let told = Told {
            overwritten_bytes,
            sums_know_most: Some(false),
            ..Told::default()
        };
        plan(&known, &mut ToldOnce(told)).map(|plan| plan.method)
    };
    let compared = Some(DeltaMethod::LogCompared);
    assert_eq!(method(LogKnowledge::Ranges, 4000, 1000), compared);
    assert_eq!(method(LogKnowledge::Rewritten, 4000, 1000), compared);
    assert_eq!(method(LogKnowledge::Ranges, 4000, 999), Some(DeltaMethod::Log));
    assert_eq!(method(LogKnowledge::Ranges, 100, 100), Some(DeltaMethod::Log));
    let much = COMPARED_LEN_MAX + 1;
    assert_eq!(method(LogKnowledge::Ranges, much, much), Some(DeltaMethod::Log));
    let told = Told {
        overwritten_bytes: 4000,
        ..Told::default()
    };
    let refused = Known {
        changed_bytes: 4000,
        proof_refused: true,
        ..known(LogKnowledge::Ranges)
    };
    assert_eq!(
        plan(&refused, &mut told.clone()).map(|plan| plan.method),
        Some(DeltaMethod::Log)
    );
}
