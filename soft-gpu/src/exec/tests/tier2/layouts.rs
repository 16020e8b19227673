//! The fragment layouts of `mma`, as in the PTX manual.

/// The place (row, column) of an element, for lane group `g`, lane `t` of the group and element
/// `i`.
pub(super) type Place = fn(g: usize, t: usize, i: usize) -> (usize, usize);

/// One form of `mma`.
pub(super) struct Form {
    /// Sizes m, n and k.
    pub(super) size: (usize, usize, usize),
    /// Bits per element of A and B.
    pub(super) bits: usize,
    /// Places of the elements of A, and of B.
    pub(super) a: Place,
    pub(super) b: Place,
}

pub(super) fn accumulator(g: usize, t: usize, i: usize) -> (usize, usize) {
    (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1))
}

const fn form(size: (usize, usize, usize), bits: usize, a: Place, b: Place) -> Form {
    Form { size, bits, a, b }
}

pub(super) const M16N8K16_16: Form = form(
    (16, 8, 16),
    16,
    |g, t, i| {
        let row = if i < 2 || (4..6).contains(&i) {
            g
        } else {
            g + 8
        };
        (row, t * 2 + (i & 1) + if i >= 4 { 8 } else { 0 })
    },
    |g, t, i| (t * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, g),
);
pub(super) const M16N8K8_16: Form = form(
    (16, 8, 8),
    16,
    |g, t, i| (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1)),
    |g, t, i| (t * 2 + i, g),
);
pub(super) const M16N8K8_32: Form = form(
    (16, 8, 8),
    32,
    |g, t, i| {
        (
            if i % 2 == 0 { g } else { g + 8 },
            if i < 2 { t } else { t + 4 },
        )
    },
    |g, t, i| (if i == 0 { t } else { t + 4 }, g),
);
pub(super) const M16N8K4_32: Form = form(
    (16, 8, 4),
    32,
    |g, t, i| (if i == 0 { g } else { g + 8 }, t),
    |g, t, _| (t, g),
);
pub(super) const M8N8K4_64: Form = form((8, 8, 4), 64, |g, t, _| (g, t), |g, t, _| (t, g));
pub(super) const M16N8K4_64: Form = form(
    (16, 8, 4),
    64,
    |g, t, i| (if i == 0 { g } else { g + 8 }, t),
    |g, t, _| (t, g),
);
pub(super) const M16N8K8_64: Form = form(
    (16, 8, 8),
    64,
    |g, t, i| {
        (
            if i % 2 == 0 { g } else { g + 8 },
            if i < 2 { t } else { t + 4 },
        )
    },
    |g, t, i| (t + 4 * i, g),
);
pub(super) const M16N8K16_64: Form = form(
    (16, 8, 16),
    64,
    |g, t, i| (if i % 2 == 0 { g } else { g + 8 }, (i / 2) * 4 + t),
    |g, t, i| (t + 4 * i, g),
);
pub(super) const M8N8K16_8: Form = form(
    (8, 8, 16),
    8,
    |g, t, i| (g, t * 4 + i),
    |g, t, i| (t * 4 + i, g),
);
pub(super) const M16N8K16_8: Form = form(
    (16, 8, 16),
    8,
    |g, t, i| (if i < 4 { g } else { g + 8 }, t * 4 + (i & 3)),
    |g, t, i| (t * 4 + i, g),
);
pub(super) const M16N8K32_8: Form = form(
    (16, 8, 32),
    8,
    |g, t, i| {
        let row = if i < 4 || (8..12).contains(&i) {
            g
        } else {
            g + 8
        };
        (row, t * 4 + (i & 3) + if i >= 8 { 16 } else { 0 })
    },
    |g, t, i| (t * 4 + (i & 3) + if i >= 4 { 16 } else { 0 }, g),
);
pub(super) const M8N8K32_4: Form = form(
    (8, 8, 32),
    4,
    |g, t, i| (g, t * 8 + i),
    |g, t, i| (t * 8 + i, g),
);
pub(super) const M16N8K32_4: Form = form(
    (16, 8, 32),
    4,
    |g, t, i| (if i < 8 { g } else { g + 8 }, t * 8 + (i & 7)),
    |g, t, i| (t * 8 + i, g),
);
pub(super) const M16N8K64_4: Form = form(
    (16, 8, 64),
    4,
    |g, t, i| {
        let row = if i < 8 || (16..24).contains(&i) {
            g
        } else {
            g + 8
        };
        (row, t * 8 + (i & 7) + if i >= 16 { 32 } else { 0 })
    },
    |g, t, i| (t * 8 + (i & 7) + if i >= 8 { 32 } else { 0 }, g),
);
pub(super) const M8N8K128_1: Form = form(
    (8, 8, 128),
    1,
    |g, t, i| (g, t * 32 + i),
    |g, t, i| (t * 32 + i, g),
);
pub(super) const M16N8K128_1: Form = form(
    (16, 8, 128),
    1,
    |g, t, i| (if i < 32 { g } else { g + 8 }, t * 32 + (i & 31)),
    |g, t, i| (t * 32 + i, g),
);
pub(super) const M16N8K256_1: Form = form(
    (16, 8, 256),
    1,
    |g, t, i| {
        let row = if i < 32 || (64..96).contains(&i) {
            g
        } else {
            g + 8
        };
        (row, t * 32 + (i & 31) + if i >= 64 { 128 } else { 0 })
    },
    |g, t, i| (t * 32 + (i & 31) + if i >= 32 { 128 } else { 0 }, g),
);
