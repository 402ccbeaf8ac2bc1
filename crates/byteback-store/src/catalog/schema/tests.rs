//! Times in two columns.

use super::*;

#[test]
fn a_time_comes_back_from_its_two_columns() {
    let narrow = [0, -1, 1, i64::MIN, i64::MAX].map(i128::from);
    for ns in narrow {
        assert_eq!(halves(ns).1, 0, "the low column holds it alone");
    }
    let year_2446 = 15_032_385_535_123_456_789;
    let ends = [
        1_i128 << 63,
        -(1 << 63) - 1,
        1 << 64,
        1 << 126,
        -(1 << 126),
        year_2446,
        -year_2446,
    ];
    for ns in narrow.into_iter().chain(ends) {
        let (low, high) = halves(ns);
        assert_eq!(wide(low, high), ns);
    }
    let (low, high) = halves(i128::MAX);
    assert!(wide(low, high) > 1 << 126);
}
