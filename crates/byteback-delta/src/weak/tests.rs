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
}
