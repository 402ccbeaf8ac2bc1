use super::*;

#[test]
fn the_seeds_hold() {
    socket_seeds().iter().for_each(|seed| socket(seed));
}

#[test]
fn the_seeds_are_frames_to_their_ends() {
    for seed in socket_seeds() {
        let (mut rest, mut buffer, mut frames) = (&seed[..], Vec::new(), 0);
        read_hello(&mut rest).unwrap();
        while read(&mut rest, &mut buffer, ANSWER_LEN_MAX).unwrap().is_some() {
            frames += 1;
        }
        assert_eq!(frames, 5);
    }
}
