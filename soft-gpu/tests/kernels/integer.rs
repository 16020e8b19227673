//! Integer arithmetic, compared with bit-by-bit computations.

use crate::harness::{Plain, Random, load};
use crate::reference::{I32, I64, Same, check_rows, pairs};

/// Runs the kernel `k(inputs…, out, n)` on columns of equal length.
macro_rules! run_columns {
    ($module:expr, $kernel:expr, $width:expr, $ty:ty, $($column:expr),+) => {{
        let module = &$module;
        let n = [$($column.len()),+][0];
        let out = module.gpu.zeroed::<$ty>($width * n);
        module.run($kernel, (n as u32).div_ceil(128), 128, &[$(&module.gpu.upload($column)),+, &out, &(n as u32)]);
        module.gpu.read(out)
    }};
}

fn mixed32() -> (Vec<i32>, Vec<i32>) {
    let (mut a, mut b) = pairs(&I32);
    let mut random = Random(10);
    for _ in 0..300 {
        a.push(random.next() as i32);
        b.push((random.next() as i32) >> random.below(32));
    }
    (a, b)
}

fn show<T: Same + Plain>(columns: &[&[T]], row: usize) -> String {
    columns.iter().map(|c| format!("{:x?} ", c[row])).collect()
}

#[test]
fn arithmetic_of_32_bits() {
    let module = load("integer");
    let (a, b) = mixed32();
    let c: Vec<i32> = b.iter().rev().copied().collect();
    let got = run_columns!(module, "ints32", 24, i32, &a, &b, &c);
    let want = |i: usize| {
        let (x, y, z) = (a[i], b[i], c[i]);
        let (ux, uy) = (x as u32, y as u32);
        let low24 = |v: i32| i64::from(v << 8 >> 8);
        let bad = y == 0 || (x == i32::MIN && y == -1);
        [
            x.wrapping_add(y),
            x.wrapping_sub(y),
            x.wrapping_mul(y).wrapping_add(z),
            if bad { 0 } else { x / y },
            if bad { 0 } else { x % y },
            ux.checked_div(uy).unwrap_or(0) as i32,
            ux.checked_rem(uy).unwrap_or(0) as i32,
            ((i64::from(x) * i64::from(y)) >> 32) as i32,
            ((u64::from(ux) * u64::from(uy)) >> 32) as i32,
            (low24(x) * low24(y)) as i32,
            (u64::from(ux & 0xff_ffff) * u64::from(uy & 0xff_ffff)) as i32,
            x.min(y),
            x.max(y),
            ux.min(uy) as i32,
            ux.max(uy) as i32,
            x.wrapping_abs(),
            x.wrapping_neg(),
            x & y,
            x | y,
            x ^ y,
            !x,
            (x & y) | (!x & z),
            ((i64::from(x) - i64::from(y)).unsigned_abs() as i32).wrapping_add(z),
            (ux.abs_diff(uy) as i32).wrapping_add(z),
        ]
    };
    check_rows("ints32", &got, a.len(), want, |i| show(&[&a, &b, &c], i));
}

#[test]
fn arithmetic_of_64_and_128_bits() {
    let module = load("integer");
    let (mut a, mut b) = pairs(&I64);
    let mut random = Random(11);
    for _ in 0..300 {
        a.push(random.next() as i64);
        b.push((random.next() as i64) >> random.below(64));
    }
    let got = run_columns!(module, "ints64", 20, i64, &a, &b);
    let want = |i: usize| {
        let (x, y) = (a[i], b[i]);
        let (ux, uy) = (x as u64, y as u64);
        let bad = y == 0 || (x == i64::MIN && y == -1);
        let join = |high: u64, low: u64| (u128::from(high) << 64) | u128::from(low);
        let wide = (u128::from(ux) * u128::from(uy)).wrapping_add(join(uy, ux));
        let less = join(ux, uy).wrapping_sub(join(uy, ux));
        [
            x.wrapping_add(y),
            x.wrapping_sub(y),
            x.wrapping_mul(y),
            if bad { 0 } else { x / y },
            if bad { 0 } else { x % y },
            ux.checked_div(uy).unwrap_or(0) as i64,
            ux.checked_rem(uy).unwrap_or(0) as i64,
            ((i128::from(x) * i128::from(y)) >> 64) as i64,
            ((u128::from(ux) * u128::from(uy)) >> 64) as i64,
            x.min(y),
            ux.max(uy) as i64,
            x.wrapping_abs(),
            i64::from(x as i32) * i64::from(y as i32),
            (u64::from(ux as u32) * u64::from(uy as u32)) as i64,
            wide as i64,
            (wide >> 64) as i64,
            less as i64,
            (less >> 64) as i64,
            i64::from(x < y),
            i64::from(ux < uy),
        ]
    };
    check_rows("ints64", &got, a.len(), want, |i| show(&[&a, &b], i));
}

#[test]
fn shifts_beyond_the_width_clamp() {
    let module = load("integer");
    let counts = [
        0u32,
        1,
        2,
        7,
        15,
        16,
        17,
        31,
        32,
        33,
        47,
        63,
        64,
        65,
        100,
        255,
        256,
        1 << 31,
        u32::MAX,
    ];
    let values = [0u32, 1, 0x8000_0000, 0xffff_ffff, 0x1234_5678, 0xdead_beef];
    let (x, k): (Vec<u32>, Vec<u32>) = values.iter().flat_map(|&v| counts.map(|c| (v, c))).unzip();
    let got = run_columns!(module, "shifts", 14, u32, &x, &k);
    let want = |i: usize| {
        let (x, k) = (x[i], k[i]);
        let w = (u64::from(x) << 32) | u64::from(!x);
        let left = w.checked_shl(k).unwrap_or(0);
        let right = w.checked_shr(k).unwrap_or(0);
        let signed = ((w as i64) >> k.min(63)) as u64;
        // __funnelshift with lo = x and hi = !x shifts both words as one number.
        let pair = (u64::from(!x) << 32) | u64::from(x);
        let (wrap, clamp) = (k % 32, k.min(32));
        [
            x.checked_shl(k).unwrap_or(0),
            x.checked_shr(k).unwrap_or(0),
            ((x as i32) >> k.min(31)) as u32,
            left as u32,
            (left >> 32) as u32,
            right as u32,
            (right >> 32) as u32,
            signed as u32,
            (signed >> 32) as u32,
            ((pair << wrap) >> 32) as u32,
            (pair >> wrap) as u32,
            ((u128::from(pair) << clamp) >> 32) as u32,
            (u128::from(pair) >> clamp) as u32,
            u32::from((x as u16).checked_shl(k).unwrap_or(0)),
        ]
    };
    check_rows("shifts", &got, x.len(), want, |i| show(&[&x, &k], i));
}

/// `bfe`, computed bit by bit as the PTX ISA defines it.
fn extract(a: u64, pos: u32, len: u32, width: u32, signed: bool) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    let bit = |at: u32| (a >> at) & 1;
    let sign = if signed && len != 0 {
        bit((pos + len - 1).min(width - 1))
    } else {
        0
    };
    (0..width).fold(0, |d, i| {
        d | (if i < len && pos + i < width {
            bit(pos + i)
        } else {
            sign
        }) << i
    })
}

/// `bfi`, computed bit by bit as the PTX ISA defines it.
fn insert(a: u64, b: u64, pos: u32, len: u32, width: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    (0..width)
        .filter(|i| *i < len && pos + i < width)
        .fold(b, |f, i| {
            (f & !(1 << (pos + i))) | (((a >> i) & 1) << (pos + i))
        })
}

/// `prmt`: selects bytes of `(b, a)`. The first selector is for the least significant byte. Bit 3
/// of a selector replicates the sign.
fn permute(a: u32, b: u32, selectors: [u32; 4]) -> u32 {
    let pool = ((u64::from(b) << 32) | u64::from(a)).to_le_bytes();
    u32::from_le_bytes(selectors.map(|s| {
        let byte = pool[(s & 7) as usize];
        match s & 8 {
            0 => byte,
            _ if byte & 0x80 != 0 => 0xff,
            _ => 0,
        }
    }))
}

fn dot4(a: u32, b: u32, c: u32, signed: bool) -> u32 {
    a.to_le_bytes()
        .iter()
        .zip(b.to_le_bytes())
        .fold(c, |sum, (&x, y)| {
            let product = if signed {
                i32::from(x as i8) * i32::from(y as i8)
            } else {
                i32::from(x) * i32::from(y)
            };
            sum.wrapping_add(product as u32)
        })
}

#[test]
fn bit_operations() {
    let module = load("integer");
    let mut random = Random(12);
    let mut columns = [vec![], vec![], vec![]];
    let edges = [0u32, 1, 0x8000_0000, u32::MAX, 0x0000_ff00, 0x7fff_ffff];
    for round in 0..900 {
        for column in &mut columns {
            // Edge values, small numbers for positions and lengths, or any number.
            column.push(match random.below(3) {
                0 => edges[random.below(6) as usize],
                1 => random.below(70),
                _ => random.next() as u32 ^ round,
            });
        }
    }
    let [a, b, c] = &columns;
    let got = run_columns!(module, "bits", 30, u32, a, b, c);
    let want = |i: usize| {
        let (x, y, z) = (a[i], b[i], c[i]);
        let w = (u64::from(x) << 32) | u64::from(y);
        let first = |v: u64| if v == 0 { 0 } else { v.trailing_zeros() + 1 };
        let find = |v: u64| {
            if v == 0 {
                u32::MAX
            } else {
                63 - v.leading_zeros()
            }
        };
        let signed = extract(w, y, z, 64, true);
        let inserted = insert(w, !w, y, z, 64);
        let n = z & 3;
        [
            x.count_ones(),
            w.count_ones(),
            x.leading_zeros(),
            w.leading_zeros(),
            x.reverse_bits(),
            w.reverse_bits() as u32,
            (w.reverse_bits() >> 32) as u32,
            first(x.into()),
            first(w),
            // __byte_perm uses three bits of each selector.
            permute(x, y, [0, 4, 8, 12].map(|s| (z >> s) & 7)),
            find(x.into()),
            find(if x >> 31 == 1 { !x } else { x }.into()),
            if x == 0 { u32::MAX } else { x.leading_zeros() },
            find(w),
            extract(x.into(), y, z, 32, false) as u32,
            extract(x.into(), y, z, 32, true) as u32,
            insert(x.into(), y.into(), z, x >> 3, 32) as u32,
            signed as u32,
            (signed >> 32) as u32,
            permute(x, y, [n, n + 1, n + 2, n + 3]),
            permute(x, y, [n, (n + 7) % 8, (n + 6) % 8, (n + 5) % 8]),
            permute(x, y, [n; 4]),
            permute(x, y, [n, n.max(1), n.max(2), 3]),
            permute(x, y, [0, 1, 0, 1].map(|s| s + 2 * (n & 1))),
            (x & y) | (y & z) | (x & z),
            dot4(x, y, z, true),
            dot4(x, y, z, false),
            inserted as u32,
            (inserted >> 32) as u32,
            u32::from(x == 0),
        ]
    };
    check_rows("bits", &got, a.len(), want, |i| show(&[a, b, c], i));
}

#[test]
fn saturation() {
    let module = load("integer");
    let (a, b) = mixed32();
    let got = run_columns!(module, "saturating", 6, i32, &a, &b);
    let clamp = |v: i64, low: i64, high: i64| v.clamp(low, high) as i32;
    let want = |i: usize| {
        let (x, y) = (i64::from(a[i]), i64::from(b[i]));
        [
            a[i].saturating_add(b[i]),
            a[i].saturating_sub(b[i]),
            clamp(((x * y) >> 32) + x, i32::MIN.into(), i32::MAX.into()),
            clamp(x, -0x8000, 0x7fff),
            clamp(y, 0, 255),
            clamp(x, 0, u32::MAX.into()),
        ]
    };
    check_rows("saturating", &got, a.len(), want, |i| show(&[&a, &b], i));
}

#[test]
fn carry_chains() {
    let module = load("integer");
    let (a, b) = mixed32();
    let (a, b): (Vec<u32>, Vec<u32>) = a
        .iter()
        .zip(&b)
        .map(|(x, y)| (*x as u32, *y as u32))
        .unzip();
    let got = run_columns!(module, "carries", 12, u32, &a, &b);
    let want = |i: usize| {
        let (x, y) = (u128::from(a[i]), u128::from(b[i]));
        let three = |lo: u128, mid: u128, hi: u128| lo | (mid << 32) | (hi << 64);
        let sum = three(x, x, y) + three(y, x, y);
        let difference = three(x, y, x).wrapping_sub(three(y, x, x));
        let product = x * y + ((y * y) << 32);
        let w = (x << 32) | y;
        let double = w + w;
        let part = |v: u128, k: u32| (v >> (32 * k)) as u32;
        [
            part(sum, 0),
            part(sum, 1),
            part(sum, 2),
            part(sum, 3),
            part(difference, 0),
            part(difference, 1),
            part(difference, 2),
            part(difference, 3),
            part(product, 0),
            part(product, 1),
            part(product, 2),
            part(double, 0) ^ part(double, 1) ^ (part(double, 2) << 31),
        ]
    };
    check_rows("carries", &got, a.len(), want, |i| show(&[&a, &b], i));
}

#[test]
fn arithmetic_of_16_bits() {
    let module = load("integer");
    let edges = [
        0i16, 1, -1, 2, 255, 256, 0x7fff, -0x8000, 1234, -999, 0x5555,
    ];
    let (a, b) = pairs(&edges);
    let got = run_columns!(module, "ints16", 8, i32, &a, &b);
    let want = |i: usize| {
        let (x, y) = (a[i], b[i]);
        let wide = i32::from(x) * i32::from(y);
        [
            x.wrapping_add(y).into(),
            x.wrapping_sub(y).into(),
            i32::from(wide as i16),
            wide >> 16,
            wide,
            (u32::from(x as u16) * u32::from(y as u16)) as i32,
            i32::from((x as u16).max(y as u16) as i16),
            x.min(y).into(),
        ]
    };
    check_rows("ints16", &got, a.len(), want, |i| {
        format!("{} {}", a[i], b[i])
    });
}
