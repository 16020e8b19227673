//! Conversions and arithmetic in every rounding mode, compared with the rounding modes of the CPU.

use crate::harness::{Random, load};
use crate::reference::*;

fn floats() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let (mut a, mut b) = pairs(&F32);
    let mut c: Vec<f32> = b
        .iter()
        .zip(&a)
        .map(|(b, a)| (a * 0.7 - b).clamp(-1e38, 1e38))
        .collect();
    let mut random = Random(13);
    for _ in 0..600 {
        // Numbers with similar exponents, so that sums cancel and are rounded.
        let mut one = || {
            let bits = random.next() as u32;
            f32::from_bits((bits & 0x807f_ffff) | ((110 + random.below(30)) << 23))
        };
        a.push(one());
        b.push(one());
        c.push(one());
    }
    (a, b, c)
}

fn doubles() -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut a, mut b) = pairs(&F64);
    let mut c: Vec<f64> = b
        .iter()
        .zip(&a)
        .map(|(b, a)| (a * 0.7 - b).clamp(-1e308, 1e308))
        .collect();
    let mut random = Random(14);
    for _ in 0..600 {
        let mut one = || {
            let bits = random.next();
            f64::from_bits(
                (bits & 0x800f_ffff_ffff_ffff) | (u64::from(1000 + random.below(40)) << 52),
            )
        };
        a.push(one());
        b.push(one());
        c.push(one());
    }
    (a, b, c)
}

macro_rules! arithmetic_test {
    ($name:ident, $kernel:literal, $columns:ident, $ty:ty, $ops:ident) => {
        #[test]
        fn $name() {
            let module = load("convert");
            let (a, b, c) = $columns();
            let n = a.len();
            let out = module.gpu.zeroed::<$ty>(24 * n);
            let gpu = &module.gpu;
            let inputs = (gpu.upload(&a), gpu.upload(&b), gpu.upload(&c));
            module.run(
                $kernel,
                (n as u32).div_ceil(96),
                96,
                &[&inputs.0, &inputs.1, &inputs.2, &out, &(n as u32)],
            );
            let want = |i: usize| {
                let (x, y, z) = (a[i], b[i], c[i]);
                let mut row = [0.0; 24];
                for (k, round) in ROUNDS.into_iter().enumerate() {
                    row[k] = rounded(round, || $ops::add(x, y));
                    row[4 + k] = rounded(round, || $ops::mul(x, y));
                    row[8 + k] = rounded(round, || $ops::fma(x, y, z));
                    row[12 + k] = rounded(round, || $ops::div(x, y));
                    row[16 + k] = rounded(round, || $ops::sqrt(x));
                    row[20 + k] = rounded(round, || $ops::div(1.0, x));
                }
                row
            };
            check_rows($kernel, &gpu.read(out), n, want, |i| {
                format!("({:e}, {:e}, {:e})", a[i], b[i], c[i])
            });
        }
    };
}
arithmetic_test!(
    single_arithmetic_in_every_rounding,
    "float_arithmetic",
    floats,
    f32,
    single
);
arithmetic_test!(
    double_arithmetic_in_every_rounding,
    "double_arithmetic",
    doubles,
    f64,
    double
);

/// Clamps to [0, 1]; NaN becomes 0 (PTX ISA, `.sat`).
fn saturate(a: f32) -> f32 {
    if a.is_nan() { 0.0 } else { a.clamp(0.0, 1.0) }
}

/// The smaller operand. -0 is less than +0, and a number is preferred to NaN.
fn minimum(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a == 0.0 && b == 0.0 => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ => {
            if a < b {
                a
            } else {
                b
            }
        }
    }
}

fn bits_of(tests: &[bool]) -> u32 {
    tests
        .iter()
        .enumerate()
        .fold(0, |m, (i, t)| m | u32::from(*t) << i)
}

fn modes_of(x: f32, y: f32) -> [u32; 22] {
    let (fx, fy) = (flush(x), flush(y));
    let nan = x.is_nan() || y.is_nan();
    let equal = fx == fy;
    let floats = [
        flush(fx + fy),
        flush(fx * fy),
        flush(fx.mul_add(fy, fy)),
        saturate(x + y),
        saturate(flush(fx * fy)),
        saturate(x.mul_add(y, y)),
        minimum(x, y),
        -minimum(-x, -y),
        minimum(fx, fy),
        if nan { f32::NAN } else { -minimum(-x, -y) },
        x.abs(),
        -fx,
        // The magnitude of the second operand with the sign of the first.
        y.copysign(x),
    ];
    let mut row = [0; 22];
    for (cell, value) in row.iter_mut().zip(floats) {
        *cell = value.to_bits();
    }
    row[13] = bits_of(&[x < y, x <= y, x > y, x >= y, x == y, x != y]);
    // If an operand is NaN, these comparisons are not the opposites of the comparisons above.
    row[14] = !bits_of(&[x < y, x <= y, x > y, x >= y, x == y]) & 0x1f;
    row[15] = if equal { 1 } else { 2 + 4 };
    row[16] = u32::from(!nan) + 2 * u32::from(x.is_nan() || !nan);
    row[17] = if x < y { u32::MAX } else { 0 };
    row[18] = u32::from(x.is_infinite());
    row[19] = u32::from(x.is_subnormal());
    row[20] = flush(fx - fy).to_bits();
    row[21] = saturate(x).to_bits();
    row
}

#[test]
fn flushing_saturation_and_comparisons() {
    let module = load("convert");
    let (a, b, _) = floats();
    let n = a.len();
    let out = module.gpu.zeroed::<u32>(22 * n);
    module.run(
        "float_modes",
        (n as u32).div_ceil(64),
        64,
        &[
            &module.gpu.upload(&a),
            &module.gpu.upload(&b),
            &out,
            &(n as u32),
        ],
    );
    // In columns with floats, any NaN is accepted. The PTX ISA does not define whether a saturated
    // zero keeps its sign.
    let saturated = |column: usize| [3, 4, 5, 21].contains(&column);
    let nan = |column: usize| !(13..20).contains(&column);
    let canonical = |row: &mut [u32]| {
        for (column, value) in row.iter_mut().enumerate() {
            if nan(column) && f32::from_bits(*value).is_nan() {
                *value = 0x7fff_ffff;
            }
            if saturated(column) && *value == 1 << 31 {
                *value = 0;
            }
        }
    };
    let mut got = module.gpu.read(out);
    got.chunks_mut(22).for_each(canonical);
    let want = |i: usize| {
        let mut row = modes_of(a[i], b[i]);
        canonical(&mut row);
        row
    };
    check_rows("float_modes", &got, n, want, |i| {
        format!("({:e}, {:e})", a[i], b[i])
    });
}

/// Floats near every limit of an integer type.
fn near_integers() -> Vec<f64> {
    let mut values: Vec<f64> = F64.to_vec();
    values.extend(F32.iter().map(|v| f64::from(*v)));
    for power in [7, 8, 15, 16, 31, 32, 63, 64] {
        for offset in [-1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0] {
            values.extend([2f64.powi(power) + offset, -(2f64.powi(power) + offset)]);
        }
    }
    for half in -9..10 {
        values.push(f64::from(half) * 0.5);
    }
    values
}

/// The columns `_rn`, `_rz`, `_rd`, `_ru`, for signed integers and then for unsigned integers.
fn integers(a: f64, bits: u32, double: bool) -> [i128; 8] {
    let mut row = [0; 8];
    for (k, round) in ROUNDS.into_iter().enumerate() {
        row[k] = to_integer(a, round, bits, true, double);
        row[4 + k] = to_integer(a, round, bits, false, double);
    }
    row
}

#[test]
fn singles_to_integers() {
    let module = load("convert");
    let a: Vec<f32> = near_integers().iter().map(|v| *v as f32).collect();
    let n = a.len();
    let (out, wide) = (
        module.gpu.zeroed::<i32>(12 * n),
        module.gpu.zeroed::<i64>(8 * n),
    );
    let input = module.gpu.upload(&a);
    module.run(
        "float_to_int",
        (n as u32).div_ceil(64),
        64,
        &[&input, &out, &wide, &(n as u32)],
    );
    let want = |i: usize| {
        let x = f64::from(a[i]);
        let mut row = [0; 12];
        for (cell, value) in row.iter_mut().zip(integers(x, 32, false)) {
            *cell = value as i32;
        }
        row[8] = to_integer(x, Round::Nearest, 16, true, false) as i32;
        row[9] = to_integer(x, Round::Zero, 16, false, false) as i32;
        row[10] = to_integer(x, Round::Nearest, 8, true, false) as i32;
        row[11] = to_integer(x, Round::Zero, 32, true, false) as i32;
        row
    };
    check_rows("float_to_int", &module.gpu.read(out), n, want, |i| {
        format!("{:e}", a[i])
    });
    let want = |i: usize| integers(a[i].into(), 64, false).map(|v| v as i64);
    check_rows("float_to_int wide", &module.gpu.read(wide), n, want, |i| {
        format!("{:e}", a[i])
    });
}

#[test]
fn doubles_to_integers_and_singles() {
    let module = load("convert");
    let a = near_integers();
    let n = a.len();
    let gpu = &module.gpu;
    let (out, wide, single) = (
        gpu.zeroed::<i32>(8 * n),
        gpu.zeroed::<i64>(8 * n),
        gpu.zeroed::<f32>(4 * n),
    );
    module.run(
        "double_to_int",
        (n as u32).div_ceil(64),
        64,
        &[&gpu.upload(&a), &out, &wide, &single, &(n as u32)],
    );
    let show = |i: usize| format!("{:e}", a[i]);
    check_rows(
        "double_to_int",
        &gpu.read(out),
        n,
        |i| integers(a[i], 32, true).map(|v| v as i32),
        show,
    );
    check_rows(
        "double_to_int wide",
        &gpu.read(wide),
        n,
        |i| integers(a[i], 64, true).map(|v| v as i64),
        show,
    );
    let want = |i: usize| ROUNDS.map(|round| rounded(round, || narrow(a[i])));
    check_rows("double_to_float", &gpu.read(single), n, want, show);
}

#[test]
fn integers_to_floats() {
    let module = load("convert");
    let mut a: Vec<i64> = I64.to_vec();
    let mut random = Random(15);
    a.extend((0..500).map(|_| (random.next() as i64) >> random.below(64)));
    let n = a.len();
    let gpu = &module.gpu;
    let (out, wide) = (gpu.zeroed::<f32>(16 * n), gpu.zeroed::<f64>(10 * n));
    module.run(
        "int_to_float",
        (n as u32).div_ceil(64),
        64,
        &[&gpu.upload(&a), &out, &wide, &(n as u32)],
    );
    let show = |i: usize| format!("{:#x}", a[i]);
    let want = |i: usize| {
        let x = a[i];
        let single = |v: i128, round| from_integer(v, 24, round) as f32;
        let mut row = [0.0; 16];
        for (k, round) in ROUNDS.into_iter().enumerate() {
            row[k] = single(x.into(), round);
            row[4 + k] = single((x as u64).into(), round);
            row[8 + k] = single((x as i32).into(), round);
        }
        row[12] = single((x as u32).into(), Round::Nearest);
        row[13] = single((x as u32).into(), Round::Up);
        row[14] = f32::from(x as i16);
        row[15] = f32::from(x as u8);
        row
    };
    check_rows("int_to_float", &gpu.read(out), n, want, show);
    let want = |i: usize| {
        let x = a[i];
        let mut row = [0.0; 10];
        for (k, round) in ROUNDS.into_iter().enumerate() {
            row[k] = from_integer(x.into(), 53, round);
            row[4 + k] = from_integer((x as u64).into(), 53, round);
        }
        row[8] = f64::from(x as i32);
        row[9] = f64::from(x as u32);
        row
    };
    check_rows("int_to_double", &gpu.read(wide), n, want, show);
}

#[test]
fn rounding_to_integral_values() {
    let module = load("convert");
    let a = near_integers();
    let n = a.len();
    let gpu = &module.gpu;
    let (out, single) = (gpu.zeroed::<f64>(5 * n), gpu.zeroed::<f32>(5 * n));
    module.run(
        "integral",
        (n as u32).div_ceil(64),
        64,
        &[&gpu.upload(&a), &out, &single, &(n as u32)],
    );
    let show = |i: usize| format!("{:e}", a[i]);
    let row = |x: f64| {
        let [even, zero, down, up] = ROUNDS.map(|round| integral(x, round));
        [even, zero, down, up, x.round()]
    };
    check_rows("integral", &gpu.read(out), n, |i| row(a[i]), show);
    let want = |i: usize| row(f64::from(a[i] as f32)).map(|v| v as f32);
    check_rows("integral single", &gpu.read(single), n, want, show);
}

#[test]
fn integers_of_other_widths() {
    let module = load("convert");
    let mut a: Vec<i64> = I64.to_vec();
    a.extend([
        0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x1_0000, -128, -129, -32_768, -32_769,
    ]);
    let n = a.len();
    let out = module.gpu.zeroed::<i64>(8 * n);
    module.run(
        "int_to_int",
        1,
        64,
        &[&module.gpu.upload(&a), &out, &(n as u32)],
    );
    let want = |i: usize| {
        let x = a[i];
        [
            i64::from(x as i8),
            i64::from(x as u8),
            i64::from(x as i16),
            i64::from(x as u16),
            i64::from(x as i32),
            i64::from(x as u32),
            x.clamp(i32::MIN.into(), i32::MAX.into()),
            x.clamp(0, 0xffff),
        ]
    };
    check_rows("int_to_int", &module.gpu.read(out), n, want, |i| {
        format!("{:#x}", a[i])
    });
}
