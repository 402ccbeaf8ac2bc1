use super::*;
use byteback_host::random::RealRandomness;

#[test]
fn only_what_has_the_form_of_a_device_token_is_taken_for_one() {
    let token = draw_device_token(&RealRandomness).unwrap();
    assert_eq!(token.len(), 4 + 43);
    assert!(is_device_token(&token));
    let join = draw_join_token(&RealRandomness).unwrap();
    assert_eq!(join.len(), 4 + 22);
    let longer = format!("{token}A");
    for wrong in ["", "bbd_", &join, &token[..46], &longer, &token.replace("bbd_", "bbj_")] {
        assert!(!is_device_token(wrong), "{wrong}");
    }
}
