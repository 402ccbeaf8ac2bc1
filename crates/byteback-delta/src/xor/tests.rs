use super::*;
use crate::model::noise;
use proptest::prelude::*;

const PAGE: usize = 4096;

fn delta(base: &[u8], new: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(put_page_delta(base, new, usize::MAX, &mut out));
    out
}

fn pages() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let len = prop_oneof![Just(PAGE), Just(1), Just(33), Just(100)];
    let edits = proptest::collection::vec((any::<u16>(), 1..60_usize, any::<u8>()), 0..12);
    (len, any::<u64>(), edits).prop_map(|(len, seed, edits)| {
        let base = noise(seed, len);
        let mut new = base.clone();
        for (start, count, by) in edits {
            let start = usize::from(start) % len;
            let end = (start + count).min(len);
            new[start..end]
                .iter_mut()
                .for_each(|byte| *byte = byte.wrapping_add(by));
        }
        (base, new)
    })
}

proptest! {
    #[test]
    fn it_leads_there_and_back_whatever_changed((base, new) in pages()) {
        let delta = delta(&base, &new);
        let mut page = base.clone();
        apply_page_delta(&mut page, &delta).unwrap();
        prop_assert!(page == new);
        apply_page_delta(&mut page, &delta).unwrap();
        prop_assert!(page == base);
        let differing = base.iter().zip(&new).filter(|(base, new)| base != new).count();
        prop_assert_eq!(delta.is_empty(), differing == 0);
        // Each run of other bytes costs four bytes at most, and two equal ones.
        prop_assert!(delta.len() <= differing * 7);
    }

    #[test]
    fn any_bytes_are_refused_or_applied_and_never_panic(delta in proptest::collection::vec(0..20_u8, 0..12)) {
        let mut page = [0; 40];
        if apply_page_delta(&mut page, &delta).is_ok() {
            apply_page_delta(&mut page, &delta).unwrap();
            prop_assert_eq!(page, [0; 40]);
        }
    }
}

#[test]
fn what_is_too_long_is_not_begun() {
    let (base, new) = (noise(1, PAGE), noise(2, PAGE));
    let whole = delta(&base, &new);
    let mut out = vec![1, 2, 3];
    assert!(!put_page_delta(&base, &new, whole.len() - 1, &mut out));
    assert_eq!(out, [1, 2, 3]);
    assert!(put_page_delta(&base, &new, whole.len(), &mut out));
    assert_eq!(out[3..], whole);
}

#[test]
fn golden_bytes() {
    let mut new = [0; 200];
    (new[3], new[6], new[150]) = (1, 2, 0xff);
    assert_eq!(delta(&[0; 200], &new), [3, 4, 1, 0, 0, 2, 0x8f, 1, 1, 0xff]);
}

#[test]
fn what_says_something_impossible_is_refused() {
    assert!(
        apply_page_delta(&mut [0; 4], &[0, 0]).is_err(),
        "nothing is told in no bytes"
    );
    assert!(
        apply_page_delta(&mut [0; 4], &[0, 5, 1, 1, 1, 1, 1]).is_err(),
        "beyond the end"
    );
    assert!(apply_page_delta(&mut [0; 4], &[0, 2, 1]).is_err(), "cut off");
    assert!(apply_page_delta(&mut [0; 4], &[0xff; 30]).is_err());
}
