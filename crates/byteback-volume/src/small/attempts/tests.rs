use super::*;

fn compared(attempts: &mut Attempts, ino: Nid, pages: u32) -> Vec<u32> {
    let is_compared = |page: &u32| {
        let is_worth_one = attempts.is_worth_one(ino);
        if is_worth_one {
            attempts.missed(ino);
        }
        let _ = page;
        is_worth_one
    };
    (0..pages).filter(is_compared).collect()
}

#[test]
fn what_is_compared_in_vain_is_left_alone_for_longer_each_time() {
    let mut attempts = Attempts::default();
    let file = Nid(3);
    let first: Vec<u32> = (0..=16).chain([18, 21, 26, 35, 52, 85, 150, 215, 280, 345]).collect();
    assert_eq!(compared(&mut attempts, file, 400), first);
    // Others are not judged by it; the next call begins anew, but has learned.
    assert!(attempts.is_worth_one(Nid(4)) && !attempts.is_worth_one(file));
    attempts.begin(file);
    assert_eq!(compared(&mut attempts, file, 70), [0, 65]);
    // One hit is enough.
    attempts.hit(file);
    assert_eq!(compared(&mut attempts, file, 20).len(), 18);
    attempts.forget(file);
    assert!(attempts.is_worth_one(file));
}

#[test]
fn no_more_is_remembered_than_there_is_room_for() {
    let mut attempts = Attempts::default();
    for number in 0..10_000 {
        attempts.missed(Nid(number));
        assert!(attempts.of.len() <= FILES_MAX);
    }
}
