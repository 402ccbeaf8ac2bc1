//! Identifies the current boot of the machine: after a crash, data can be new while all times are
//! old, so conclusions from times hold within one boot only.

use std::io;

/// The kernel's random boot ID: different after each start.
///
/// # Errors
/// The kernel does not report it.
pub fn boot_id() -> io::Result<[u8; 16]> {
    parse(&std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel's boot ID is malformed"))
}

fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.trim().bytes().filter(|byte| *byte != b'-').collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != 16 || !rest.is_empty() {
        return None;
    }
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_it_and_odd_answers_are_refused() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        let id = parse("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!((id[0], id[1], id[15]), (0, 0x11, 0xff));
        for odd in [
            "",
            "0011",
            "zz112233-4455-6677-8899-aabbccddeeff",
            "00112233-4455-6677-8899-aabbccddeeff0",
        ] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }
}
