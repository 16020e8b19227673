//! The hasher of tables whose keys are handles or request numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by handle or request number. A guest that chooses colliding handles only slows itself
/// down.
pub type HandleMap<V> = HashMap<u64, V, BuildHasherDefault<HandleHasher>>;

/// A hasher for handles and request numbers, which are small counters with a tag in the high bits.
/// One multiplication spreads the counters.
#[derive(Debug, Default, Clone, Copy)]
pub struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        // Fibonacci hashing. The rotation moves the well-mixed high bits to the low bits, from
        // which the table takes its index.
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(32);
    }
}
