use super::*;

#[test]
fn the_address_is_taken_from_a_complete_line_only() {
    assert_eq!(listening_on("byteback: listening on http://127.0.0.1:70"), None);
    let address = listening_on("starting\nbyteback: listening on http://127.0.0.1:7017/ (data: x)\n");
    assert_eq!(address, Some(SocketAddr::from(([127, 0, 0, 1], 7017))));
    let address = listening_on("byteback: listening on https://127.0.0.1:7017\n");
    assert_eq!(address, Some(SocketAddr::from(([127, 0, 0, 1], 7017))));
    assert_eq!(listening_on("listening on nothing\n"), None);
}

#[test]
fn the_summary_is_found_among_other_lines() {
    let text =
        "{\"message_type\":\"status\",\"pid\":1}\nnoise\n{\"message_type\":\"summary\",\"pid\":77,\"more\":[]}\n";
    let ready: Ready = serde_json::from_str(summary_line(text).unwrap()).unwrap();
    assert_eq!(ready.pid, 77);
    assert_eq!(summary_line("{\"message_type\":\"status\"}\n"), None);
}
