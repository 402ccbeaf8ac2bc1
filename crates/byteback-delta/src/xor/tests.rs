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
    fn xor_leads_there_and_back_for_any_change((base, new) in pages()) {
        let delta = delta(&base, &new);
        let mut page = base.clone();
        apply_page_delta(&mut page, &delta).unwrap();
        prop_assert!(page == new);
        apply_page_delta(&mut page, &delta).unwrap();
        prop_assert!(page == base);
        let differing = base.iter().zip(&new).filter(|(base, new)| base != new).count();
        prop_assert_eq!(delta.is_empty(), differing == 0);
        // Each differing run costs at most four bytes, and two equal ones.
        prop_assert!(delta.len() <= differing * 7);
    }

    #[test]
    fn xor_leads_there_and_back_in_any_form((base, new) in pages(), dense in any::<bool>(), limit in 0..PAGE) {
        let mut new = new;
        if dense {
            // Many bytes changed, all in the same way.
            new.iter_mut().step_by(2).for_each(|byte| *byte ^= 0x55);
        }
        let runs = delta(&base, &new);
        let mut out = vec![7];
        if put_packed_page_delta(&base, &new, limit, &mut out) {
            let packed = &out[1..];
            prop_assert!(packed.len() <= limit && packed.len() <= runs.len());
            let mut page = base.clone();
            apply_page_delta(&mut page, packed).unwrap();
            prop_assert!(page == new);
            apply_page_delta(&mut page, packed).unwrap();
            prop_assert!(page == base);
        } else {
            prop_assert!(runs.len() > limit);
            prop_assert_eq!(out, [7]);
        }
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
fn xor_writes_nothing_if_the_delta_exceeds_the_limit() {
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
fn xor_refuses_impossible_input() {
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

#[test]
fn much_that_changed_alike_is_packed() {
    let base = noise(3, PAGE);
    let new: Vec<u8> = base.iter().map(|byte| byte ^ 0x20).collect();
    let mut out = Vec::new();
    assert!(!put_page_delta(&base, &new, 255, &mut out));
    assert!(put_packed_page_delta(&base, &new, 255, &mut out));
    assert_eq!(out[..2], [0x80, 0x20], "the length of the page");
    assert!(out.len() < 32, "{}", out.len());
    let mut page = base;
    apply_page_delta(&mut page, &out).unwrap();
    assert!(page == new);
}

#[test]
fn a_frame_of_another_length_or_a_damaged_one_changes_nothing() {
    let base = noise(3, PAGE);
    let new: Vec<u8> = base.iter().map(|byte| byte ^ 0x20).collect();
    let mut delta = Vec::new();
    assert!(put_packed_page_delta(&base, &new, 255, &mut delta));
    let mut longer = Vec::new();
    varint::put(&mut longer, 2 * PAGE as u64);
    longer.extend(&delta[2..]);
    let before = noise(4, 2 * PAGE);
    let mut page = before.clone();
    assert!(apply_page_delta(&mut page, &longer).is_err());
    assert!(page == before);
    for at in 2..delta.len() {
        let mut damaged = delta.clone();
        damaged[at] ^= 0xff;
        let mut page = base.clone();
        if apply_page_delta(&mut page, &damaged).is_err() {
            assert!(page == base);
        }
        let mut page = base.clone();
        assert!(apply_page_delta(&mut page, &delta[..at]).is_err(), "cut off at {at}");
        assert!(page == base);
    }
}

/// Sampling the exclusive or skips the packing of noise, but of nothing that could be packed.
#[test]
fn xor_does_not_pack_noise() {
    let base = noise(1, PAGE);
    for limit in [255, 816] {
        // Noise over the whole page, and over half of it.
        assert!(is_hopeless(&base, &noise(2, PAGE), limit));
        let mut half = base.clone();
        half[..PAGE / 2].copy_from_slice(&noise(3, PAGE / 2));
        assert_eq!(is_hopeless(&base, &half, limit), limit == 255);
        // Few differing bytes, whatever they are.
        let mut few = base.clone();
        few[1_000..1_000 + limit].copy_from_slice(&noise(4, limit));
        assert!(!is_hopeless(&base, &few, limit));
        // Many equal changes, and repetitions.
        let alike: Vec<u8> = base.iter().map(|byte| byte ^ 0x55).collect();
        let record = noise(5, 64);
        let repeated: Vec<u8> = base
            .iter()
            .zip(record.iter().cycle())
            .map(|(base, byte)| base ^ byte)
            .collect();
        for new in [alike, repeated] {
            assert!(!is_hopeless(&base, &new, limit));
            let mut out = Vec::new();
            assert!(put_packed_page_delta(&base, &new, limit, &mut out));
        }
        assert!(!is_hopeless(&base, &base, limit) && !is_hopeless(&[], &[], limit));
    }
}
