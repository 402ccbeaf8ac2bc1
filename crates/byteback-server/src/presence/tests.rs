use super::*;

async fn ends(future: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(Duration::from_millis(20), future).await.is_ok()
}

#[tokio::test]
async fn presence_turns_out_only_the_revoked_device() {
    let presence = Arc::new(Presence::default());
    let (first, second, other) = (presence.enter(1), presence.enter(1), presence.enter(2));
    let (first_out, second_out) = (first.revoked(), second.revoked());
    presence.turn_out(1);
    presence.turn_out(3);
    assert!(ends(first_out).await && ends(second_out).await);
    assert!(!ends(other.revoked()).await);
    // A request that enters while others are on their way out is turned out, too.
    assert!(ends(presence.enter(1).revoked()).await);
    drop((first, second));
    assert_eq!(presence.devices(), [2]);
    drop(other);
    assert!(presence.devices().is_empty());
}

#[test]
fn that_a_device_was_seen_is_noted_now_and_then() {
    let presence = Presence::default();
    assert!(presence.is_to_be_noted(1) && !presence.is_to_be_noted(1) && presence.is_to_be_noted(2));
}
