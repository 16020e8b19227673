//! PTX that Triton generated for sm_80 (`tests/clients/triton_ptx.py generate`).

use crate::harness::{Arg, Module, Random, load};
use crate::small::{BRAIN, HALF};

/// The number after `"name": ` in the first line of the file. That line describes the launch.
fn fact(stem: &str, name: &str) -> u32 {
    let path = format!("{}/fixtures/triton/{stem}.ptx", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().next().unwrap();
    let (_, rest) = line.split_once(&format!("\"{name}\": ")).unwrap();
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

/// Runs a kernel. Triton appends two pointers to scratch memory, which these kernels do not use.
fn run(m: &Module, stem: &str, kernel: &str, grid: [u32; 3], args: &[&dyn Arg]) {
    let mut all = args.to_vec();
    all.extend([&0u64 as &dyn Arg, &0u64]);
    let mut launch = m.launch(kernel, grid, [fact(stem, "threads"), 1, 1], &all);
    launch.dynamic_shared = fact(stem, "shared");
    if let Err(fault) = m.try_launch(&launch) {
        panic!("{stem}: {fault:?}");
    }
}

fn module(stem: &str) -> Module {
    load(&format!("triton/{stem}"))
}

/// Numbers between -2 and 2.
fn numbers(random: &mut Random, n: usize) -> Vec<f32> {
    (0..n)
        .map(|_| random.below(40_001) as f32 / 10_000.0 - 2.0)
        .collect()
}

#[test]
fn adds() {
    let m = module("add_fp32");
    let mut random = Random(31);
    let (x, y) = (numbers(&mut random, 5000), numbers(&mut random, 5000));
    let out = m.gpu.zeroed::<f32>(5000);
    let (px, py) = (m.gpu.upload(&x), m.gpu.upload(&y));
    run(
        &m,
        "add_fp32",
        "add",
        [5, 1, 1],
        &[&px, &py, &out, &5000i32],
    );
    let want: Vec<f32> = x.iter().zip(&y).map(|(a, b)| a + b).collect();
    assert_eq!(m.gpu.read(out), want);
}

#[test]
fn softmax_of_rows() {
    let m = module("softmax_fp32");
    let (rows, n, stride) = (5, 1000, 1008);
    let x = numbers(&mut Random(32), rows * stride);
    let out = m.gpu.zeroed::<f32>(rows * stride);
    let (px, s, n32) = (m.gpu.upload(&x), stride as i32, n as i32);
    run(
        &m,
        "softmax_fp32",
        "softmax",
        [rows as u32, 1, 1],
        &[&out, &px, &s, &n32],
    );
    let got = m.gpu.read(out);
    for row in 0..rows {
        let at = row * stride;
        let e: Vec<f64> = x[at..at + n].iter().map(|v| f64::from(*v).exp()).collect();
        let sum: f64 = e.iter().sum();
        for (i, e) in e.iter().enumerate() {
            let error = (f64::from(got[at + i]) - e / sum).abs();
            assert!(error <= 1e-5 * e / sum, "row {row}, {i}: {}", got[at + i]);
        }
        assert!(
            got[at + n..at + stride].iter().all(|v| *v == 0.0),
            "beyond the row"
        );
    }
}

#[test]
fn elementwise_in_bfloat16() {
    let m = module("axpy_bf16");
    let mut random = Random(33);
    let brains = |v: Vec<f32>| {
        v.iter()
            .map(|x| BRAIN.nearest(f64::from(*x)))
            .collect::<Vec<u16>>()
    };
    let (x, y) = (
        brains(numbers(&mut random, 1500)),
        brains(numbers(&mut random, 1500)),
    );
    let out = m.gpu.zeroed::<u16>(1500);
    let (px, py) = (m.gpu.upload(&x), m.gpu.upload(&y));
    run(
        &m,
        "axpy_bf16",
        "axpy",
        [2, 1, 1],
        &[&px, &py, &out, &1500i32],
    );
    for (i, got) in m.gpu.read(out).iter().enumerate() {
        let (a, b) = (BRAIN.value(x[i]), BRAIN.value(y[i]));
        let want = if a < b { a * b + a } else { (a - b).max(b) };
        // The product and the sum may be rounded once together, or once each.
        let bound = 2f64.powi(-8) * (2.0 * want.abs() + 1.0);
        assert!((BRAIN.value(*got) - want).abs() <= bound, "{a} {b}");
    }
}

/// Sizes that are not multiples of the tile (64, 64, 32). A row is a multiple of 16 bytes.
const SIZES: (usize, usize, usize) = (144, 80, 112);

fn matmul(m: &Module, stem: &str, pointers: [&dyn Arg; 3]) {
    let (rows, n, k) = SIZES;
    let [a, b, c] = pointers;
    let (rows, n, k) = (rows as i32, n as i32, k as i32);
    run(
        m,
        stem,
        "matmul",
        [3, 2, 1],
        &[a, b, c, &rows, &n, &k, &k, &n, &n],
    );
}

/// Checks that every element is within `tolerance` of the exact sum, relative to the sum of the
/// magnitudes of its terms.
fn check(got: &[f32], a: &[f64], b: &[f64], tolerance: f64) {
    let (m, n, k) = SIZES;
    for r in 0..m {
        for c in 0..n {
            let terms = (0..k).map(|q| a[r * k + q] * b[q * n + c]);
            let size: f64 = terms.clone().map(f64::abs).sum();
            let error = (f64::from(got[r * n + c]) - terms.sum::<f64>()).abs();
            assert!(error <= tolerance * size, "({r}, {c}): off by {error}");
        }
    }
}

#[test]
fn products_of_halves() {
    let md = module("matmul_fp16");
    let (m, n, k) = SIZES;
    let mut random = Random(34);
    let halves = |v: Vec<f32>| {
        v.iter()
            .map(|x| HALF.nearest(f64::from(*x)))
            .collect::<Vec<u16>>()
    };
    let (a, b) = (
        halves(numbers(&mut random, m * k)),
        halves(numbers(&mut random, k * n)),
    );
    let c = md.gpu.zeroed::<f32>(m * n);
    matmul(
        &md,
        "matmul_fp16",
        [&md.gpu.upload(&a), &md.gpu.upload(&b), &c],
    );
    let values = |v: &[u16]| v.iter().map(|h| HALF.value(*h)).collect::<Vec<f64>>();
    check(&md.gpu.read(c), &values(&a), &values(&b), 1e-6);
}

#[test]
fn products_of_singles_in_tf32() {
    let md = module("matmul_tf32");
    let (m, n, k) = SIZES;
    let mut random = Random(35);
    let (a, b) = (numbers(&mut random, m * k), numbers(&mut random, k * n));
    let c = md.gpu.zeroed::<f32>(m * n);
    matmul(
        &md,
        "matmul_tf32",
        [&md.gpu.upload(&a), &md.gpu.upload(&b), &c],
    );
    let values = |v: &[f32]| v.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let got = md.gpu.read(c);
    // Each factor keeps 10 bits of its fraction.
    check(&got, &values(&a), &values(&b), 2f64.powi(-9));
    let cut = |v: &[f32]| {
        let kept = v.iter().map(|x| f32::from_bits(x.to_bits() & !0x1fff));
        kept.map(f64::from).collect::<Vec<f64>>()
    };
    check(&got, &cut(&a), &cut(&b), 1e-6);
}

#[test]
fn products_of_bytes() {
    let md = module("matmul_int8");
    let (m, n, k) = SIZES;
    let mut random = Random(36);
    let bytes =
        |random: &mut Random, n: usize| (0..n).map(|_| random.next() as u8).collect::<Vec<u8>>();
    let (a, b) = (bytes(&mut random, m * k), bytes(&mut random, k * n));
    let c = md.gpu.zeroed::<i32>(m * n);
    matmul(
        &md,
        "matmul_int8",
        [&md.gpu.upload(&a), &md.gpu.upload(&b), &c],
    );
    let got = md.gpu.read(c);
    for r in 0..m {
        for col in 0..n {
            let term = |q: usize| i32::from(a[r * k + q] as i8) * i32::from(b[q * n + col] as i8);
            assert_eq!(
                got[r * n + col],
                (0..k).map(term).sum::<i32>(),
                "({r}, {col})"
            );
        }
    }
}
