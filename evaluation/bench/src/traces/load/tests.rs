use super::*;

fn number(value: u32) -> [u8; 4] {
    value.to_le_bytes()
}

#[test]
fn generated_parts_are_woven_into_the_initial_tree() {
    let map = [number(2), number(3), number(4), number(1), number(0), number(1)].concat();
    let generated = Generated {
        text: b"0123456789".to_vec(),
        map,
    };
    let mut data = b"abcXYZ".as_slice();
    assert_eq!(generated.weave(&mut data, 10).unwrap(), b"ab3456c0XY");
    assert_eq!(data, b"Z", "the payload begins where the tree ends");
}

#[test]
fn a_map_that_points_beyond_the_text_is_refused() {
    let map = [number(0), number(8), number(4)].concat();
    let generated = Generated {
        text: b"0123456789".to_vec(),
        map,
    };
    assert!(generated.weave(&mut b"".as_slice(), 4).is_err());
}

#[test]
fn a_write_whose_bytes_are_elsewhere_is_refused() {
    let write = |start, len| Timed {
        at_us: 0,
        operation: Operation::Write {
            handle: 1,
            offset: 0,
            data: Payload { start, len },
        },
    };
    assert!(check_payload(&[write(0, 5), write(5, 5)], 10).is_ok());
    assert!(check_payload(&[write(0, 5), write(6, 4)], 10).is_err(), "a gap");
    assert!(check_payload(&[write(0, 11)], 10).is_err(), "beyond the end");
}
