use super::*;
use crate::random::Random;
use crate::suites::skysync::content::{Edit, edited};

#[test]
fn what_is_found_makes_the_new_content_and_little_is_literal() {
    let mut base = vec![0; 1 << 20];
    Random::new(1).fill(&mut base);
    for edit in Edit::ALL {
        let new = edited(&base, edit, 1024, 7);
        let (of_new, of_base) = (list(&new), list(&base));
        let tokens = search(&of_new, &base, &of_base);
        let extents = find(&of_new, &tokens, &new);
        assert!(apply(&base, &new, &extents) == new, "{edit:?}");
        let to_server = wire(&of_new, &tokens).0 + encode(&extents, &new).len() as u64;
        // Four pieces, each in a chunk or two, and the list.
        assert!(to_server < 120_000, "{edit:?}: {to_server}");
    }
}
