use super::*;

#[test]
fn edits_change_as_much_as_they_say() {
    let content: Vec<u8> = (0..40_000_u32).map(|at| (at % 251) as u8).collect();
    for len in [256, 2048, 8192] {
        let inserted = edited(&content, Edit::Insert, len, 1);
        assert_eq!(inserted.len(), content.len() + len);
        let cut = edited(&content, Edit::Cut, len, 1);
        assert_eq!(cut.len(), content.len() - len);
        let inverse = edited(&content, Edit::Inverse, len, 1);
        assert_eq!(inverse.len(), content.len());
        let differing = content.iter().zip(&inverse).filter(|(one, other)| one != other).count();
        assert_eq!(differing, len);
        assert_eq!(edited(&content, Edit::Inverse, len, 1), inverse, "the same each time");
        assert_ne!(edited(&content, Edit::Inverse, len, 2), inverse);
    }
    assert_eq!(edited(&content, Edit::Cut, 0, 1), content);
}
