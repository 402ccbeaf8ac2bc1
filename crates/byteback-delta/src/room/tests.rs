use super::*;

/// The capacities of a list while it is filled in steps.
fn capacities(len: usize, step: usize, announced: u64) -> Vec<usize> {
    let (mut list, mut seen) = (Vec::<u32>::new(), Vec::new());
    while list.len() < len {
        let more = step.min(len - list.len());
        make_room(&mut list, more, announced);
        let room = list.capacity();
        list.resize(list.len() + more, 7);
        assert_eq!(list.capacity(), room, "it grew by itself");
        assert!(room <= AHEAD * list.len(), "{room} for {}", list.len());
        if seen.last() != Some(&room) {
            seen.push(room);
        }
    }
    seen
}

#[test]
fn a_list_that_came_whole_has_no_room_to_spare() {
    for len in [1, 2, 3, 63, 64, 65, 1000, 1 << 16, (1 << 16) + 1] {
        for step in [1, 7, 1024] {
            let capacities = capacities(len, step, len as u64);
            assert_eq!(capacities.last(), Some(&len));
            // The number of elements moved, and the number of moves.
            assert!(
                capacities
                    .iter()
                    .rev()
                    .nth(1)
                    .is_none_or(|before| before * 2 <= len + 2 * step)
            );
            assert!(capacities.len() <= 2 + len.ilog2() as usize, "{capacities:?}");
        }
    }
}

#[test]
fn room_takes_no_memory_for_announced_bytes() {
    assert_eq!(capacities(1000, 10, u64::MAX).last(), Some(&1260));
    assert!(capacities(1000, 1000, 1 << 40) == [2000]);
}

#[test]
fn room_grows_beyond_the_announced_length() {
    assert!(*capacities(1000, 1, 10).last().unwrap() >= 1000);
    assert_eq!(capacities(12, 12, 10), [12]);
}
