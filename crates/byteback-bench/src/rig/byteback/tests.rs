use super::*;

#[test]
fn the_address_is_taken_from_a_complete_line_only() {
    assert_eq!(listening_on("byteback: listening on http://127.0.0.1:70"), None);
    let address = listening_on("starting\nbyteback: listening on http://127.0.0.1:7017/ (data: x)\n");
    assert_eq!(address, Some(SocketAddr::from(([127, 0, 0, 1], 7017))));
    assert_eq!(listening_on("listening on nothing\n"), None);
}

#[test]
fn a_join_token_is_found_in_a_sentence() {
    assert_eq!(join_token("Use 'bbj_Ab-1_z' once.\n"), Some("bbj_Ab-1_z"));
    assert_eq!(join_token("bbj_x"), Some("bbj_x"));
    assert_eq!(join_token("bbd_x"), None);
}
