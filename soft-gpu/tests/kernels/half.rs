//! Kernels that use `cuda_fp16.h` and `cuda_bf16.h`, compiled by NVRTC.

use crate::harness::{Random, load};
use crate::small::{BRAIN, HALF, Small};

const N: usize = 700;

/// Values between 2⁻⁵ and 2⁵ of both signs. For these, a product plus an addend is exact in a
/// double.
fn numbers(f: Small, random: &mut Random, n: usize) -> Vec<u16> {
    (0..n)
        .map(|_| {
            let x = (f64::from(random.below(1 << 20)) / f64::from(1 << 20) * 10.0 - 5.0).exp2();
            f.nearest(if random.below(2) == 0 { x } else { -x })
        })
        .collect()
}

fn max_nan(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

fn truncated(x: f64) -> u16 {
    let h = HALF.nearest(x);
    if HALF.value(h).abs() > x.abs() {
        h - 1
    } else {
        h
    }
}

fn close(got: u16, want: f64, relative: f64, absolute: f64, what: &str) {
    let got = HALF.value(got);
    if want > 70_000.0 {
        assert_eq!(got, f64::INFINITY, "{what}");
        return;
    }
    assert!(
        (got - want).abs() <= relative * want.abs() + absolute,
        "{what}: {got}, not {want}"
    );
}

#[test]
fn scalar_halves() {
    let m = load("half");
    let mut random = Random(21);
    let mut x = numbers(HALF, &mut random, N);
    let y = numbers(HALF, &mut random, N);
    let z = numbers(HALF, &mut random, N);
    x[0] = 0x7e01;
    let out = m.gpu.zeroed::<u16>(21 * N);
    let (px, py, pz) = (m.gpu.upload(&x), m.gpu.upload(&y), m.gpu.upload(&z));
    m.run("half_scalar", 3, 256, &[&px, &py, &pz, &out, &(N as u32)]);
    let out = m.gpu.read(out);
    for i in 0..N {
        let [a, b, c] = [x[i], y[i], z[i]].map(|h| HALF.value(h));
        let fma = a * b + c;
        let relu = if fma < 0.0 { 0.0 } else { fma };
        let sat = if (a + b).is_nan() {
            0.0
        } else {
            (a + b).clamp(0.0, 1.0)
        };
        let int = if a.is_nan() { 0.0 } else { a.round_ties_even() };
        let rz = if a.is_nan() {
            0x7fff
        } else {
            truncated(a * 1.000_976_562_5)
        };
        let exact = [
            a + b,
            a - b,
            a * b,
            fma,
            sat,
            relu,
            -a,
            a.abs(),
            a.min(b),
            max_nan(a, b),
            a / b,
            a.sqrt(),
            1.0 / a,
            a.floor(),
            a.round_ties_even(),
            HALF.value(rz),
            int,
        ];
        for (k, want) in exact.into_iter().enumerate() {
            let (got, want) = (HALF.value(out[k * N + i]), HALF.value(HALF.nearest(want)));
            let same = got == want || got.is_nan() && want.is_nan();
            assert!(same, "result {k} of {a}, {b}, {c}: {got}, not {want}");
        }
        let lt = if a < b { x[i] } else { y[i] };
        let geu = if a < b { x[i] } else { z[i] };
        assert_eq!([out[17 * N + i], out[18 * N + i]], [lt, geu], "{a} {b}");
        if !a.is_nan() {
            close(
                out[19 * N + i],
                a.exp2(),
                2f64.powi(-10),
                2f64.powi(-24),
                "exp2",
            );
            close(out[20 * N + i], a.tanh(), 0.0, 2f64.powf(-10.987), "tanh");
        }
    }
}

#[test]
fn pairs_of_halves() {
    let m = load("half");
    let mut random = Random(22);
    let v: Vec<Vec<u16>> = (0..3).map(|_| numbers(HALF, &mut random, 2 * N)).collect();
    let mut y = v[1].clone();
    y[..200].copy_from_slice(&v[0][..200]);
    let out = m.gpu.zeroed::<u16>(20 * N);
    let (px, py, pz) = (m.gpu.upload(&v[0]), m.gpu.upload(&y), m.gpu.upload(&v[2]));
    m.run("half_pairs", 3, 256, &[&px, &py, &pz, &out, &(N as u32)]);
    let out = m.gpu.read(out);
    for i in 0..N {
        let pair = |v: &[u16]| [HALF.value(v[2 * i]), HALF.value(v[2 * i + 1])];
        let (a, b, c) = (pair(&v[0]), pair(&y), pair(&v[2]));
        let each = |f: &dyn Fn(usize) -> f64| [0, 1].map(|j| HALF.nearest(f(j)));
        let truth = |t: bool| if t { 1.0 } else { 0.0 };
        let equal = a[0] == b[0] && a[1] == b[1];
        let greater = a[0] > b[0] && a[1] > b[1];
        let chosen = [
            if equal { a[0] } else { b[1] },
            if greater { a[1] } else { c[0] },
        ];
        let want = [
            each(&|j| a[j] + b[j]),
            each(&|j| a[j] * b[j]),
            each(&|j| a[j] * b[j] + c[j]),
            each(&|j| (a[j] * b[j] + c[j]).max(0.0)),
            each(&|j| a[j].max(b[j])),
            each(&|j| truth(a[j] <= b[j])),
            each(&|j| truth(a[j] != b[j])),
            each(&|j| a[1 - j]),
            each(&|j| if j == 0 { a[0] } else { b[1] }),
            each(&|j| chosen[j]),
        ];
        for (k, want) in want.into_iter().enumerate() {
            let at = 2 * (k * N + i);
            assert_eq!(out[at..at + 2], want, "result {k} of {a:?}, {b:?}, {c:?}");
        }
    }
}

#[test]
fn scalar_brains() {
    let m = load("half");
    let mut random = Random(23);
    let v: Vec<Vec<u16>> = (0..3).map(|_| numbers(BRAIN, &mut random, N)).collect();
    let out = m.gpu.zeroed::<u16>(11 * N);
    let (px, py, pz) = (
        m.gpu.upload(&v[0]),
        m.gpu.upload(&v[1]),
        m.gpu.upload(&v[2]),
    );
    m.run("brain_scalar", 3, 256, &[&px, &py, &pz, &out, &(N as u32)]);
    let out = m.gpu.read(out);
    for i in 0..N {
        let [a, b, c] = [0, 1, 2].map(|k| BRAIN.value(v[k][i]));
        let fma = a * b + c;
        let want = [
            a + b,
            a - b,
            a * b,
            fma,
            fma.max(0.0),
            -a,
            a.abs(),
            a.min(b),
            a.max(b),
            a * 1.003_906_25,
            a.trunc(),
        ];
        for (k, want) in want.into_iter().enumerate() {
            let (got, want) = (
                BRAIN.value(out[k * N + i]),
                BRAIN.value(BRAIN.nearest(want)),
            );
            assert_eq!(got, want, "result {k} of {a}, {b}, {c}");
        }
    }
}

#[test]
fn a_dot_product_of_pairs() {
    let m = load("half");
    // Small integers, whose sums a half represents exactly in any order.
    let x: Vec<u16> = (0..1024)
        .map(|i| HALF.nearest(f64::from(i % 3 - 1)))
        .collect();
    let y: Vec<u16> = (0..1024)
        .map(|i| HALF.nearest(f64::from(i % 7 - 2)))
        .collect();
    let sum = m.gpu.zeroed::<u16>(1);
    m.run(
        "half_dot",
        2,
        64,
        &[&m.gpu.upload(&x), &m.gpu.upload(&y), &sum, &512u32],
    );
    let want: i32 = (0..1024).map(|i| (i % 3 - 1) * (i % 7 - 2)).sum();
    assert_eq!(HALF.value(m.gpu.read(sum)[0]), f64::from(want));
}
