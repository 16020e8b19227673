//! The hash of copied bytes in a digest: a polynomial whose coefficients are the bytes, evaluated
//! at two points modulo 2^61 - 1. The hash of two joined pieces follows from the hashes and lengths
//! of the pieces, so a daemon may split a copy without changing its hash. Two different byte
//! strings have the same value at a point with a probability of about length / 2^61.

use std::fmt;
use std::str::FromStr;

/// The Mersenne prime 2^61 - 1.
const PRIME: u64 = (1 << 61) - 1;
/// The points at which the polynomial is evaluated: digits of e and of pi, unrelated to copied
/// data.
const PLACES: [u64; 2] = [0x0b7e_1516_28ae_d2a6, 0x1243_f6a8_885a_308d];
/// Powers 0 to 8 of each point.
const POWERS: [[u64; 9]; 2] = [powers(PLACES[0]), powers(PLACES[1])];

/// The hash of a byte string.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents([u64; 2]);

impl Contents {
    /// Appends bytes to the hashed string.
    pub fn append(&mut self, bytes: &[u8]) {
        for (value, power) in self.0.iter_mut().zip(&POWERS) {
            let (words, rest) = bytes.as_chunks::<8>();
            for word in words {
                let mut sum = u128::from(*value) * u128::from(power[8]);
                for (byte, power) in word.iter().zip(power[..8].iter().rev()) {
                    sum += u128::from(*byte) * u128::from(*power);
                }
                *value = reduce(sum);
            }
            for byte in rest {
                *value = reduce(u128::from(*value) * u128::from(power[1]) + u128::from(*byte));
            }
        }
    }

    /// The hash of this string followed by a string of `bytes` bytes whose hash is `next`.
    pub fn join(self, next: Contents, bytes: u64) -> Contents {
        let at = |i: usize| {
            let (mut shift, mut base, mut left) = (1, PLACES[i], bytes);
            while left > 0 {
                if left & 1 == 1 {
                    shift = times(shift, base);
                }
                base = times(base, base);
                left >>= 1;
            }
            reduce(u128::from(self.0[i]) * u128::from(shift) + u128::from(next.0[i]))
        };
        Contents([at(0), at(1)])
    }
}

const fn powers(place: u64) -> [u64; 9] {
    let mut all = [1; 9];
    let mut i = 1;
    while i < all.len() {
        all[i] = times(all[i - 1], place);
        i += 1;
    }
    all
}

const fn times(a: u64, b: u64) -> u64 {
    reduce(a as u128 * b as u128)
}

/// Reduces a number below 2^124 modulo the prime.
const fn reduce(number: u128) -> u64 {
    // 2^61 is congruent to 1, so the upper bits are added to the lower 61 bits.
    ((number as u64 & PRIME) + (number >> 61) as u64) % PRIME
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.0[0], self.0[1])
    }
}

impl FromStr for Contents {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Contents, Self::Err> {
        let both = u128::from_str_radix(text, 16)?;
        Ok(Contents(
            [(both >> 64) as u64, both as u64].map(|v| v % PRIME),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Contents {
        let mut contents = Contents::default();
        contents.append(bytes);
        contents
    }

    #[test]
    fn joined_pieces_hash_like_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        let whole = of(&bytes);
        for cut in [0, 1, 7, 8, 9, 500, 999, 1000] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(of(a).join(of(b), b.len() as u64), whole, "cut at {cut}");
            let mut on = of(a);
            on.append(b);
            assert_eq!(on, whole, "cut at {cut}");
        }
        assert_eq!(whole.to_string().parse(), Ok(whole));
    }

    #[test]
    fn different_bytes_give_different_hashes() {
        let bytes = [0x5a; 4096];
        let whole = of(&bytes);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes;
                other[at] ^= 1 << bit;
                assert_ne!(of(&other), whole, "byte {at}, bit {bit}");
            }
        }
        // The prime as bytes is congruent to 0, but must not hash like zeros. A carry from one byte
        // to the next must change the hash, too.
        assert_ne!(of(&PRIME.to_be_bytes()), of(&[0; 8]));
        assert_ne!(of(&[1, 0]), of(&[0, 255]));
        assert_ne!(of(&[1, 2]), of(&[2, 1]));
        for value in [u64::MAX, PRIME, PRIME - 1] {
            assert!(reduce(u128::from(value) * u128::from(PRIME)) < PRIME);
        }
    }
}
