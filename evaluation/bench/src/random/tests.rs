use super::*;

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let bytes = |seed| {
        let mut buffer = [0; 21];
        Random::new(seed).fill(&mut buffer);
        buffer
    };
    assert_eq!(bytes(7), bytes(7));
    assert_ne!(bytes(7), bytes(8));
    assert!(
        bytes(7)[16..].iter().any(|&byte| byte != 0),
        "the odd end is filled too"
    );
}

#[test]
fn scattered_ranges_lie_in_the_file_and_touch_nothing() {
    let offsets = Random::new(3).scattered(1000, 100, 500_000);
    assert_eq!(offsets.len(), 1000);
    assert!(offsets.windows(2).all(|pair| pair[0] + 100 < pair[1]));
    assert!(offsets.iter().all(|offset| offset + 100 <= 500_000));
}

#[test]
fn text_has_the_length_asked_for_and_compresses() {
    let text = text(&mut Random::new(5), 10_000);
    assert_eq!(text.len(), 10_000);
    let compressed = zstd::encode_all(text.as_bytes(), 3).unwrap();
    assert!(compressed.len() < 5000, "{}", compressed.len());
}
