//! Polynomials over GF(2) modulo a CRC's polynomial, in the bit order of reflected CRCs: the
//! highest bit is x^0.
//!
//! Appending a zero byte to a content multiplies its CRC (inversions apart) by x^8. So appending n
//! zeros is one multiplication by x^(8n), and removing them one by x^(-8n), which exists because no
//! CRC's polynomial is divisible by x. The powers are composed of tabulated ones, one for each byte
//! of n: at most eight multiplications for any length, one or two for the usual lengths.

use std::sync::LazyLock;

use super::CrcKind;

/// The number of values of an exponent's digit.
const DIGIT_VALUES: usize = 256;

/// The number of digits of an exponent.
const DIGITS: usize = 8;

/// Arithmetic modulo one polynomial.
pub(super) struct Field {
    /// The number of bits of an element.
    width: u32,
    /// The polynomial without its highest term.
    polynomial: u64,
    /// The reduction that multiplication by x^4 adds for the terms of degree above `width` - 5;
    /// indexed by the lowest four bits of the element.
    times_x4: [u64; 16],
    /// x^(8 d 256^i) for each digit place i and digit d.
    powers: Powers,
    inverse_powers: Powers,
}

type Powers = Box<[[u64; DIGIT_VALUES]; DIGITS]>;

static CRC32C: LazyLock<Field> = LazyLock::new(|| Field::new(32, 0x82f6_3b78));
static CRC32: LazyLock<Field> = LazyLock::new(|| Field::new(32, 0xedb8_8320));
static CRC64_NVME: LazyLock<Field> = LazyLock::new(|| Field::new(64, 0x9a6c_9329_ac4b_c9b5));

impl Field {
    /// The field of a CRC; built once.
    pub(super) fn of(kind: CrcKind) -> &'static Self {
        match kind {
            CrcKind::Crc32c => &CRC32C,
            CrcKind::Crc32 => &CRC32,
            CrcKind::Crc64Nvme => &CRC64_NVME,
        }
    }

    /// Builds the field of a reflected polynomial, given without its highest term.
    fn new(width: u32, polynomial: u64) -> Self {
        let mut field = Self {
            width,
            polynomial,
            times_x4: [0; 16],
            powers: Box::new([[0; DIGIT_VALUES]; DIGITS]),
            inverse_powers: Box::new([[0; DIGIT_VALUES]; DIGITS]),
        };
        for value in 0..16 {
            field.times_x4[value as usize] = (0..4).fold(value, |element, _| times_x(element, polynomial));
        }
        let one = 1 << (width - 1);
        let x8 = (0..8).fold(one, |element, _| times_x(element, polynomial));
        // (P + 1) / x, as x times it is P + 1, which is 1. P + 1 has the terms x^width (which
        // becomes x^(width - 1), the lowest bit) and those of `polynomial` but for the constant
        // one.
        let inverse_x = ((polynomial & !one) << 1) | 1;
        let inverse_x8 = (0..8).fold(one, |element, _| field.multiply(element, inverse_x));
        field.powers = field.powers_of(one, x8);
        field.inverse_powers = field.powers_of(one, inverse_x8);
        field
    }

    fn powers_of(&self, one: u64, base: u64) -> Powers {
        let mut powers = Box::new([[0; DIGIT_VALUES]; DIGITS]);
        let mut base = base;
        for place in powers.iter_mut() {
            let mut power = one;
            for value in place.iter_mut() {
                *value = power;
                power = self.multiply(power, base);
            }
            base = power;
        }
        powers
    }

    /// The product, four bits of `a` at a time.
    pub(super) fn multiply(&self, a: u64, b: u64) -> u64 {
        let mut products = [0; 16];
        products[8] = b;
        for bit in [4, 2, 1] {
            // The highest of the four bits is x^0.
            products[bit] = times_x(products[2 * bit], self.polynomial);
        }
        for value in 1..16_usize {
            let low = value & value.wrapping_neg();
            products[value] = products[low] ^ products[value & !low];
        }
        // Horner's scheme, from the highest powers, which are the lowest bits.
        let mut product = 0_u64;
        let mut left = a;
        for _ in 0..self.width / 4 {
            product = (product >> 4) ^ self.times_x4[(product & 15) as usize] ^ products[(left & 15) as usize];
            left >>= 4;
        }
        product
    }

    /// x^(8 `exponent`).
    pub(super) fn power(&self, exponent: u64) -> u64 {
        self.compose(&self.powers, exponent)
    }

    /// x^(-8 `exponent`).
    pub(super) fn inverse_power(&self, exponent: u64) -> u64 {
        self.compose(&self.inverse_powers, exponent)
    }

    fn compose(&self, powers: &Powers, exponent: u64) -> u64 {
        let mut product = None;
        for (place, digit) in powers.iter().zip(exponent.to_le_bytes()) {
            if digit != 0 {
                let power = place[usize::from(digit)];
                product = Some(product.map_or(power, |product| self.multiply(product, power)));
            }
        }
        product.unwrap_or(1 << (self.width - 1))
    }
}

fn times_x(element: u64, polynomial: u64) -> u64 {
    (element >> 1) ^ if element & 1 == 0 { 0 } else { polynomial }
}

#[cfg(test)]
mod tests;
