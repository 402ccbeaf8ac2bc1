//! The choice of connections that may stay or go, without sockets.

use super::*;

fn door(members_max: usize, strangers_max: usize, strangers_per_address_max: usize) -> Arc<Door> {
    let limits = DoorLimits {
        members_max,
        strangers_max,
        strangers_per_address_max,
    };
    Door::new(limits, Arc::new(Metrics::new()))
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn may_stay(guest: &Guest) -> bool {
    !guest.exit().is_shown_to_reader(Waker::noop())
}

fn staying(guests: &[Guest]) -> Vec<usize> {
    (0..guests.len()).filter(|&index| may_stay(&guests[index])).collect()
}

#[test]
fn the_oldest_stranger_of_an_address_makes_room_for_its_newest() {
    let door = door(10, 10, 3);
    let other = door.enter(address(2));
    let guests: Vec<Guest> = (0..20).map(|_| door.enter(address(1))).collect();
    assert_eq!(staying(&guests), [17, 18, 19]);
    assert!(may_stay(&other), "another address loses nothing");
    guests[18].leave();
    let newest = door.enter(address(1));
    assert_eq!(staying(&guests), [17, 18, 19], "a free place is used first");
    assert!(may_stay(&newest));
}

#[test]
fn a_full_door_turns_out_the_address_that_holds_most() {
    let door = door(10, 6, 4);
    let single = door.enter(address(1));
    let many: Vec<Guest> = (0..4).map(|_| door.enter(address(2))).collect();
    let pair = door.enter(address(3));
    let newcomers: Vec<Guest> = (4..7).map(|last| door.enter(address(last))).collect();
    assert_eq!(staying(&many), [3]);
    assert!(may_stay(&single) && may_stay(&pair));
    assert_eq!(staying(&newcomers), [0, 1, 2]);
    // All addresses hold one: the oldest goes.
    let _newest = door.enter(address(9));
    assert!(!may_stay(&single) && may_stay(&pair));
}

#[test]
fn members_keep_their_places_whoever_comes() {
    let door = door(2, 3, 3);
    let members = [door.enter(address(1)), door.enter(address(1))];
    assert!(members.iter().all(Guest::becomes_member));
    assert!(members.iter().all(Guest::becomes_member), "again is no other place");
    let strangers: Vec<Guest> = (0..50).map(|_| door.enter(address(1))).collect();
    assert!(members.iter().all(|guest| may_stay(guest) && guest.is_member()));
    assert_eq!(staying(&strangers), [47, 48, 49]);
    assert!(!strangers[49].becomes_member(), "no place is free");
    assert!(may_stay(&strangers[49]));
    members[0].leave();
    assert!(!strangers[3].becomes_member(), "it has to go, whatever it shows");
    assert!(strangers[49].becomes_member());
}

#[test]
fn a_member_whose_token_ended_is_the_newest_stranger() {
    let door = door(2, 2, 2);
    let member = door.enter(address(1));
    assert!(member.becomes_member());
    let strangers = [door.enter(address(1)), door.enter(address(1))];
    member.becomes_stranger();
    assert!(may_stay(&member) && !member.is_member());
    assert_eq!(staying(&strangers), [1]);
    let _newer = [door.enter(address(1)), door.enter(address(1))];
    assert!(!may_stay(&member));
}

#[test]
fn addresses_of_one_ipv6_network_count_as_one() {
    let door = door(10, 10, 2);
    let of = |text: &str| door.enter(text.parse().unwrap());
    let guests = [
        of("2001:db8::1"),
        of("2001:db8::2:3"),
        of("2001:db8:0:0:ffff::"),
        of("2001:db8:0:1::1"),
        of("::ffff:192.0.2.1"),
        of("192.0.2.1"),
        of("192.0.2.1"),
    ];
    assert_eq!(staying(&guests), [1, 2, 3, 5, 6]);
}
