use super::*;
use byteback_host::random::RealRandomness;

#[test]
fn device_token_is_recognised_by_its_form() {
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
