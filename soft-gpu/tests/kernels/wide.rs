//! 128-bit integers, compared with those of the host.

use crate::harness::{Random, load};
use crate::reference::check_rows;

/// Edge values, and operands of every length.
fn operands() -> Vec<(u128, u128)> {
    let edges = [
        0,
        1,
        2,
        5,
        0xffff_ffff,
        1 << 32,
        u128::from(u64::MAX),
        1 << 64,
        1 << 96,
        1 << 127,
        u128::MAX / 3,
        u128::MAX - 5,
        u128::MAX,
    ];
    let mut out: Vec<_> = edges
        .into_iter()
        .flat_map(|a| edges.map(|b| (a, b)))
        .collect();
    let mut random = Random(128);
    let mut next = || {
        let wide = u128::from(random.next()) << 64 | u128::from(random.next());
        wide >> random.below(128)
    };
    out.extend((0..1000).map(|_| (next(), next())));
    out
}

/// Runs a kernel on the halves of the operands, and compares the rows with `want`. Halves are
/// listed with the low word first.
fn check<const W: usize>(kernel: &str, rows: &[(u128, u128)], want: fn(u128, u128) -> [u64; W]) {
    let module = load("wide");
    let column = |f: fn(&(u128, u128)) -> u128| {
        let words: Vec<u64> = rows.iter().map(|row| f(row) as u64).collect();
        module.gpu.upload(&words)
    };
    let (a_high, a_low) = (column(|r| r.0 >> 64), column(|r| r.0));
    let (b_high, b_low) = (column(|r| r.1 >> 64), column(|r| r.1));
    let out = module.gpu.zeroed::<u64>(W * rows.len());
    let n = rows.len() as u32;
    module.run(
        kernel,
        n.div_ceil(128),
        128,
        &[&a_high, &a_low, &b_high, &b_low, &out, &n],
    );
    check_rows(
        kernel,
        &module.gpu.read(out),
        rows.len(),
        |i| want(rows[i].0, rows[i].1),
        |i| format!("{:x?}", rows[i]),
    );
}

fn words<const N: usize, const W: usize>(values: [u128; N], rest: &[u64]) -> [u64; W] {
    let halves = values
        .into_iter()
        .flat_map(|v| [v as u64, (v >> 64) as u64]);
    let all: Vec<u64> = halves.chain(rest.iter().copied()).collect();
    all.try_into().expect("a row's words")
}

#[test]
fn divisions_of_128_bits() {
    let mut rows = operands();
    rows.retain(|&(_, b)| b != 0);
    check("divisions", &rows, |a, b| {
        let (x, y) = (a as i128, b as i128);
        words::<8, 16>(
            [
                a / b,
                a % b,
                x.wrapping_div(y) as u128,
                x.wrapping_rem(y) as u128,
                a / 1_000_003,
                a % 1_000_003,
                (x / -5) as u128,
                (x % -5) as u128,
            ],
            &[],
        )
    });
}

#[test]
fn other_arithmetic_of_128_bits() {
    check("others", &operands(), |a, b| {
        let (x, y) = (a as i128, b as i128);
        let by = (b & 127) as u32;
        let compared = [a < b, a <= b, a == b, x < y, x <= y, x != y];
        let compared = compared
            .iter()
            .rev()
            .fold(0, |v, &bit| v << 1 | u64::from(bit));
        words::<9, 20>(
            [
                a.wrapping_add(b),
                a.wrapping_sub(b),
                a.wrapping_mul(b),
                a.wrapping_neg(),
                a << by,
                a >> by,
                (x >> by) as u128,
                x.wrapping_abs() as u128,
                (a & !b) ^ (b << 1),
            ],
            &[compared, u64::from(x as f64 == y as f64)],
        )
    });
}
