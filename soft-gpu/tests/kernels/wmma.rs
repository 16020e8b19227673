//! Tensor-core kernels that NVRTC compiled from `nvcuda::wmma` and inline `mma`.

use crate::harness::load;
use crate::small::{BRAIN, HALF};

/// Random small integers.
fn numbers(n: usize, seed: usize) -> Vec<i32> {
    (0..n)
        .map(|i| ((i * 7919 + seed * 104_729) / 13 % 17) as i32 - 8)
        .collect()
}

fn halves(v: &[i32]) -> Vec<u16> {
    v.iter().map(|x| HALF.nearest(f64::from(*x))).collect()
}

/// `A·B`. The functions `a` and `b` return the element at (row, column).
fn product(
    (m, n, k): (usize, usize, usize),
    a: impl Fn(usize, usize) -> i32,
    b: impl Fn(usize, usize) -> i32,
) -> Vec<i32> {
    (0..m * n)
        .map(|i| (0..k).map(|q| a(i / n, q) * b(q, i % n)).sum())
        .collect()
}

#[test]
fn a_scaled_product_in_fragments() {
    let md = load("wmma");
    let (m, n, k) = (32, 64, 48);
    let (a, b, c) = (numbers(m * k, 1), numbers(n * k, 2), numbers(m * n, 3));
    let (pa, pb) = (md.gpu.upload(&halves(&a)), md.gpu.upload(&halves(&b)));
    let pc = md
        .gpu
        .upload(&c.iter().map(|x| *x as f32).collect::<Vec<f32>>());
    let args: [&dyn crate::harness::Arg; 8] = [
        &pa,
        &pb,
        &pc,
        &(m as i32),
        &(n as i32),
        &(k as i32),
        &0.5f32,
        &2f32,
    ];
    let launch = md.launch("wmma_gemm", [2, 2, 1], [32, 2, 1], &args);
    md.try_launch(&launch).unwrap();
    let sums = product((m, n, k), |r, q| a[r * k + q], |q, col| b[col * k + q]);
    let want: Vec<f32> = sums
        .iter()
        .zip(&c)
        .map(|(s, c)| 0.5 * *s as f32 + 2.0 * *c as f32)
        .collect();
    assert_eq!(md.gpu.read(pc), want);
}

#[test]
fn one_tile_of_each_other_type() {
    let md = load("wmma");
    let (a, b) = (numbers(32 * 16, 4), numbers(16 * 8, 5));
    let brains = |v: &[i32]| {
        v.iter()
            .map(|x| BRAIN.nearest(f64::from(*x)))
            .collect::<Vec<u16>>()
    };
    let d = md.gpu.zeroed::<f32>(32 * 8);
    md.run(
        "wmma_brain",
        1,
        32,
        &[&md.gpu.upload(&brains(&a)), &md.gpu.upload(&brains(&b)), &d],
    );
    // A is stored by columns, B by rows.
    let want = product((32, 8, 16), |r, q| a[q * 32 + r], |q, c| b[q * 8 + c]);
    assert_eq!(
        md.gpu.read(d),
        want.iter().map(|x| *x as f32).collect::<Vec<f32>>()
    );

    let (a, b) = (numbers(8 * 16, 6), numbers(16 * 32, 7));
    let bytes = |v: &[i32]| v.iter().map(|x| (*x * 15) as i8 as u8).collect::<Vec<u8>>();
    let d = md.gpu.zeroed::<i32>(8 * 32);
    md.run(
        "wmma_bytes",
        1,
        32,
        &[&md.gpu.upload(&bytes(&a)), &md.gpu.upload(&bytes(&b)), &d],
    );
    let want = product(
        (8, 32, 16),
        |r, q| 15 * a[r * 16 + q],
        |q, c| 15 * b[c * 16 + q],
    );
    assert_eq!(md.gpu.read(d), want);

    let (a, b) = (numbers(8 * 4, 8), numbers(4 * 8, 9));
    let doubles = |v: &[i32]| v.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let d = md.gpu.zeroed::<f64>(64);
    md.run(
        "wmma_double",
        1,
        32,
        &[
            &md.gpu.upload(&doubles(&a)),
            &md.gpu.upload(&doubles(&b)),
            &d,
        ],
    );
    let want = product((8, 8, 4), |r, q| a[r * 4 + q], |q, c| b[c * 4 + q]);
    assert_eq!(md.gpu.read(d), doubles(&want));
}

#[test]
fn a_product_through_copies_and_row_loads() {
    let md = load("wmma");
    let (m, n, k) = (128, 64, 96);
    let (a, b) = (numbers(m * k, 10), numbers(k * n, 11));
    let (pa, pb) = (md.gpu.upload(&halves(&a)), md.gpu.upload(&halves(&b)));
    let c = md.gpu.zeroed::<f32>(m * n);
    let args: [&dyn crate::harness::Arg; 6] = [&pa, &pb, &c, &(m as i32), &(n as i32), &(k as i32)];
    let launch = md.launch("mma_gemm", [1, 2, 1], [128, 1, 1], &args);
    md.try_launch(&launch).unwrap();
    let want = product((m, n, k), |r, q| a[r * k + q], |q, col| b[q * n + col]);
    assert_eq!(
        md.gpu.read(c),
        want.iter().map(|x| *x as f32).collect::<Vec<f32>>()
    );
}
