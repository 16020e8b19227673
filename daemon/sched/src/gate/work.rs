//! The identity of an operation, for the prediction of its time.

/// A kernel function, identified by the content of its module and by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(u64);

impl FunctionId {
    /// The function `name` of the module whose content hash is `module`.
    #[must_use]
    pub fn new(module: &[u8], name: &str) -> FunctionId {
        let mut mixed = Mix::new(1);
        mixed.bytes(module);
        mixed.bytes(name.as_bytes());
        FunctionId(mixed.0)
    }
}

/// The key of one prediction: a function with its launch shape, or a graph.
///
/// The key is a hash of 64 bits. A guest that finds a collision affects only its own predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    /// A launch of `function` with this grid, block and number of bytes of dynamic shared memory.
    #[must_use]
    pub fn kernel(function: FunctionId, grid: [u32; 3], block: [u32; 3], shared: u32) -> Key {
        let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        let mut mixed = Mix::new(2);
        mixed.word(function.0);
        mixed.word(pair(grid[0], grid[1]));
        mixed.word(pair(grid[2], shared));
        mixed.word(pair(block[0], block[1]));
        mixed.word(u64::from(block[2]));
        Key(mixed.end())
    }

    /// The key of a graph. The caller uses a new number when the nodes of the graph change.
    #[must_use]
    pub fn graph(graph: u64) -> Key {
        let mut mixed = Mix::new(3);
        mixed.word(graph);
        Key(mixed.end())
    }

    pub(super) fn bits(self) -> u64 {
        self.0
    }
}

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    ToHost,
    /// Within the device.
    OnDevice,
    /// A fill: there is no source.
    Fill,
}

/// An operation that takes GPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    /// A kernel.
    Kernel(Key),
    /// A graph launch, predicted as a whole.
    Graph(Key),
    /// A copy or a fill. The predicted time depends on the number of bytes.
    Bytes {
        /// Direction of the copy.
        direction: Direction,
        /// Number of bytes.
        bytes: u64,
    },
}

/// A multiplicative hash that mixes both high and low bits well. It does not resist adversaries.
struct Mix(u64);

impl Mix {
    fn new(kind: u64) -> Mix {
        Mix(kind)
    }

    fn word(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }

    /// Final mix: every input bit affects every output bit.
    fn end(self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ (mixed >> 33)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_differ_by_each_thing_that_makes_them() {
        let f = FunctionId::new(&[7; 32], "kernel");
        let mut keys = BTreeSet::new();
        keys.insert(Key::kernel(f, [1, 1, 1], [1, 1, 1], 0));
        keys.insert(Key::kernel(f, [2, 1, 1], [1, 1, 1], 0));
        keys.insert(Key::kernel(f, [1, 2, 1], [1, 1, 1], 0));
        keys.insert(Key::kernel(f, [1, 1, 2], [1, 1, 1], 0));
        keys.insert(Key::kernel(f, [1, 1, 1], [2, 1, 1], 0));
        keys.insert(Key::kernel(f, [1, 1, 1], [1, 2, 1], 0));
        keys.insert(Key::kernel(f, [1, 1, 1], [1, 1, 2], 0));
        keys.insert(Key::kernel(f, [1, 1, 1], [1, 1, 1], 1));
        for (module, name) in [(7, "kernel2"), (8, "kernel")] {
            let other = FunctionId::new(&[module; 32], name);
            keys.insert(Key::kernel(other, [1, 1, 1], [1, 1, 1], 0));
        }
        keys.insert(Key::graph(0));
        keys.insert(Key::graph(1));
        assert_eq!(keys.len(), 12);
        // The boundary between module and name changes the hash.
        assert_ne!(FunctionId::new(b"ab", "c"), FunctionId::new(b"a", "bc"));
    }

    #[test]
    fn shapes_spread_over_the_low_bits() {
        let f = FunctionId::new(&[1; 32], "f");
        let sets: BTreeSet<u64> = (1..=512)
            .map(|n| Key::kernel(f, [n, 1, 1], [256, 1, 1], 0).bits() & 127)
            .collect();
        assert!(sets.len() > 115, "{}", sets.len());
    }
}
