use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn codec_reads_back_what_was_put(unsigned in any::<u64>(), signed in any::<i64>(), bytes in any::<Vec<u8>>()) {
        let mut out = Vec::new();
        put_varint(&mut out, unsigned);
        put_signed(&mut out, signed);
        put_bytes(&mut out, &bytes);
        let mut reader = Reader::new(&out);
        prop_assert_eq!(reader.varint(), Ok(unsigned));
        prop_assert_eq!(reader.signed(), Ok(signed));
        prop_assert_eq!(reader.bytes(), Ok(&bytes[..]));
        prop_assert_eq!(reader.end(), Ok(()));
        for cut in 0..out.len() {
            let mut short = Reader::new(&out[..cut]);
            let all = short.varint().is_ok() && short.signed().is_ok() && short.bytes().is_ok();
            prop_assert!(!all, "a record cut to {} bytes was accepted", cut);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read_but_never_panic(bytes in any::<Vec<u8>>()) {
        let mut reader = Reader::new(&bytes);
        while reader.varint().is_ok() {}
        let _ = Reader::new(&bytes).bytes();
    }
}

#[test]
fn a_varint_beyond_64_bits_is_malformed() {
    assert_eq!(Reader::new(&[0xff; 11]).varint(), Err(Malformed));
    let mut too_big = vec![0xff; 9];
    too_big.push(2);
    assert_eq!(Reader::new(&too_big).varint(), Err(Malformed));
}
