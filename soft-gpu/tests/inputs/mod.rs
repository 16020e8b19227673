//! Inputs of tests: pseudo-random words, and patterns that stand for several instructions. The unit
//! tests, `tests/kernels` and the fuzz targets use this file.

/// A generator of reproducible pseudo-random words (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// All strings of a pattern, in which `{a,b}` means each of the alternatives.
pub(crate) fn expand(pattern: &str) -> Vec<String> {
    let Some((head, rest)) = pattern.split_once('{') else {
        return vec![pattern.to_owned()];
    };
    let (choices, tail) = rest.split_once('}').expect("a closing brace");
    let tails = expand(tail);
    choices
        .split(',')
        .flat_map(|c| tails.iter().map(move |t| format!("{head}{c}{t}")))
        .collect()
}
