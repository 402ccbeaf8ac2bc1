use super::*;

#[test]
fn damaged_messages_never_exceed_the_limit() {
    // A context has no checksums: TLS and the records of a batch have. Damage must not panic, and
    // never yields more than a message may have.
    let mut packer = Packer::new().unwrap();
    let message = "GET /v1/folders/documents/nodes/0123456789/content"
        .repeat(7)
        .into_bytes();
    let packed = packer.pack(&message).unwrap();
    assert_eq!(Unpacker::new().unwrap().unpack(&packed).unwrap(), message);
    for len in 0..packed.len() {
        let cut = Unpacker::new().unwrap().unpack(&packed[..len]);
        assert!(cut.map_or(true, |cut| cut.len() < message.len()), "{len}");
    }
    for bit in 0..packed.len() * 8 {
        let mut damaged = packed.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(read) = Unpacker::new().unwrap().unpack(&damaged) {
            assert!(read.len() <= MESSAGE_LEN_MAX);
        }
    }
}

#[test]
fn messages_of_the_longest_length_pass() {
    let (mut packer, mut unpacker) = (Packer::new().unwrap(), Unpacker::new().unwrap());
    let mut random = 1_u64;
    let noise: Vec<u8> = (0..MESSAGE_LEN_MAX)
        .map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random.to_le_bytes()[3]
        })
        .collect();
    for message in [noise.clone(), vec![0; MESSAGE_LEN_MAX], Vec::new(), noise] {
        let packed = packer.pack(&message).unwrap();
        assert!(packed.len() <= PACKED_LEN_MAX);
        assert_eq!(unpacker.unpack(&packed).unwrap(), message);
    }
}
