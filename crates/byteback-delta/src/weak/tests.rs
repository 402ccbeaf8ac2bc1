use super::*;
use crate::model::noise;

fn naive(window: &[u8]) -> u32 {
    let n = window.len() as u64;
    let a: u64 = window.iter().map(|&x| u64::from(x)).sum();
    let b: u64 = window
        .iter()
        .enumerate()
        .map(|(i, &x)| (n - i as u64) * u64::from(x))
        .sum();
    ((b as u32 & 0xffff) << 16) | (a as u32 & 0xffff)
}

#[test]
fn a_window_that_rolled_has_the_sum_of_its_bytes() {
    let bytes = noise(7, 5000);
    for len in [1, 2, 31, 32, 33, 64, 700, 1023] {
        let mut sum = RollingSum::of(&bytes[..len]);
        for start in 0..bytes.len() - len {
            assert_eq!(sum.value(), naive(&bytes[start..start + len]), "{len} at {start}");
            sum.roll(bytes[start], bytes[start + len]);
        }
    }
}

#[test]
fn large_windows_of_the_largest_byte_do_not_overflow() {
    let bytes = vec![255; (1 << 20) + 1];
    let mut sum = RollingSum::of(&bytes[..1 << 20]);
    assert_eq!(sum.value(), naive(&bytes[..1 << 20]));
    sum.roll(255, 255);
    assert_eq!(sum.value(), naive(&bytes[1..]));
}

#[test]
fn kinds_have_numbers() {
    assert_eq!(WeakKind::from_code(WeakKind::Rsync.code()), Some(WeakKind::Rsync));
    assert_eq!(WeakKind::from_code(0), None);
    for kind in [WeakKind::LibrsyncRollsum, WeakKind::LibrsyncRabinKarp] {
        assert_eq!(WeakKind::from_code(kind.code()), None, "not in our own signatures");
    }
}

/// librsync's definition, byte by byte.
fn naive_rollsum(window: &[u8]) -> u32 {
    let (mut a, mut b) = (0_u32, 0_u32);
    for &byte in window {
        a = a.wrapping_add(u32::from(byte) + 31);
        b = b.wrapping_add(a);
    }
    (b << 16) | (a & 0xffff)
}

fn naive_rabin_karp(window: &[u8]) -> u32 {
    window.iter().fold(1, |hash: u32, &byte| {
        hash.wrapping_mul(0x0810_4225).wrapping_add(u32::from(byte))
    })
}

fn check_librsync<R: Rolling>(naive: fn(&[u8]) -> u32) {
    let bytes = noise(8, 3000);
    for len in [0, 1, 2, 15, 16, 17, 31, 64, 700, 1023] {
        let mut sum = R::of(&bytes[..len]);
        for start in 0..bytes.len() - len {
            assert_eq!(sum.value(), naive(&bytes[start..start + len]), "{len} at {start}");
            let mut shorter = sum;
            for end in 0..len.min(20) {
                shorter.shorten(bytes[start + end]);
                assert_eq!(shorter.value(), naive(&bytes[start + end + 1..start + len]));
            }
            if len > 0 {
                sum.roll(bytes[start], bytes[start + len]);
            } else {
                sum = R::of(&[]);
            }
        }
    }
}

#[test]
fn librsyncs_sums_are_those_of_their_definitions_rolled_or_not() {
    check_librsync::<Rollsum>(naive_rollsum);
    check_librsync::<RabinKarp>(naive_rabin_karp);
    check_librsync::<RollingSum>(naive);
    // Long ones, in which the triangle of the length overflows.
    let bytes = vec![255; 100_003];
    assert_eq!(Rollsum::of(&bytes).value(), naive_rollsum(&bytes));
    assert_eq!(RabinKarp::of(&bytes).value(), naive_rabin_karp(&bytes));
}
