use super::*;

/// The product, bit by bit.
fn naive_product(field: &Field, a: u64, b: u64) -> u64 {
    let (mut product, mut shifted) = (0, b);
    for bit in (0..field.width).rev() {
        if a & (1 << bit) != 0 {
            product ^= shifted;
        }
        shifted = times_x(shifted, field.polynomial);
    }
    product
}

#[test]
fn products_are_those_of_single_bits_and_powers_have_inverses() {
    for kind in CrcKind::ALL {
        let field = Field::of(kind);
        let mask = u64::MAX >> (64 - field.width);
        let one = 1 << (field.width - 1);
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..2000_u64 {
            x = x.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(round);
            let (a, b) = (x & mask, x.rotate_left(29) & mask);
            assert_eq!(field.multiply(a, b), naive_product(field, a, b), "{a:x} {b:x}");
            let exponent = x >> (round % 64);
            assert_eq!(
                field.multiply(field.power(exponent), field.inverse_power(exponent)),
                one,
                "{exponent}"
            );
        }
        let mut power = one;
        for exponent in 0..1000 {
            assert_eq!(field.power(exponent), power);
            for _ in 0..8 {
                power = times_x(power, field.polynomial);
            }
        }
    }
}
