//! Elementary functions must keep the error bounds of CUDA's documentation (CUDA C++ Programming
//! Guide, "Mathematical Functions"; PTX ISA, the `.approx` instructions).

use crate::harness::{Random, load};
use crate::reference::{F32, F64, flush, ulps32, ulps64};

unsafe extern "C" {
    fn erf(x: f64) -> f64;
}

/// For each column, the largest error and the arguments that caused it.
struct Worst<const W: usize> {
    error: [f64; W],
    at: [String; W],
}

impl<const W: usize> Worst<W> {
    fn new() -> Self {
        Worst {
            error: [0.0; W],
            at: std::array::from_fn(|_| String::new()),
        }
    }

    fn add(&mut self, column: usize, error: f64, say: impl FnOnce() -> String) {
        if error > self.error[column] {
            self.error[column] = error;
            self.at[column] = say();
        }
    }

    fn check(&self, names: &[&str; W], bounds: &[f64; W]) {
        let bad: Vec<String> = (0..W)
            .filter(|&k| self.error[k] > bounds[k])
            .map(|k| {
                format!(
                    "{}: {} > {} at {}",
                    names[k], self.error[k], bounds[k], self.at[k]
                )
            })
            .collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }
}

/// Arguments of every order of magnitude, and all pairs of edge values.
fn arguments() -> (Vec<f64>, Vec<f64>) {
    let mut random = Random(16);
    let mut unit = || random.next() as f64 / 2f64.powi(64);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..1500 {
        a.push((unit() - 0.5) * 40.0);
        b.push((unit() - 0.5) * 8.0);
        a.push(2f64.powf((unit() - 0.5) * 200.0));
        b.push((unit() - 0.5) * 3.0);
        a.push((unit() - 0.5) * 2.0);
        b.push(2f64.powf((unit() - 0.5) * 30.0));
        a.push((unit() - 0.5) * 1e6);
        b.push(unit() * 1e3);
    }
    (a, b)
}

const NAMES_F32: [&str; 18] = [
    "sinf", "cosf", "expf", "logf", "sqrtf", "rsqrtf", "tanhf", "powf", "div", "rcp", "exp2f",
    "log2f", "tanf", "atan2f", "fmodf", "erff", "cbrtf", "hypotf",
];

fn reference_f32(x: f64, y: f64) -> [f64; 18] {
    [
        x.sin(),
        x.cos(),
        x.exp(),
        x.ln(),
        x.sqrt(),
        1.0 / x.sqrt(),
        x.tanh(),
        x.powf(y),
        x / y,
        1.0 / x,
        x.exp2(),
        x.log2(),
        x.tan(),
        x.atan2(y),
        x % y,
        // SAFETY: a pure function of libm.
        unsafe { erf(x) },
        x.cbrt(),
        x.hypot(y),
    ]
}

#[test]
fn single_precision() {
    let module = load("math");
    let (mut a, mut b) = arguments();
    for x in F32 {
        for y in F32 {
            a.push(x.into());
            b.push(y.into());
        }
    }
    let a: Vec<f32> = a.iter().map(|v| *v as f32).collect();
    let b: Vec<f32> = b.iter().map(|v| *v as f32).collect();
    let n = a.len();
    let out = module.gpu.zeroed::<f32>(18 * n);
    let (da, db) = (module.gpu.upload(&a), module.gpu.upload(&b));
    module.run(
        "math_f32",
        (n as u32).div_ceil(128),
        128,
        &[&da, &db, &out, &(n as u32)],
    );
    let mut worst = Worst::<18>::new();
    for (i, got) in module.gpu.read(out).chunks(18).enumerate() {
        for (column, want) in reference_f32(a[i].into(), b[i].into())
            .into_iter()
            .enumerate()
        {
            worst.add(column, ulps32(got[column], want), || {
                format!(
                    "({:e}, {:e}): got {:e}, want {want:e}",
                    a[i], b[i], got[column]
                )
            });
        }
    }
    // The documented bounds are distances from the correctly rounded result, which is up to half an
    // ulp from the exact result.
    let documented = [2, 2, 2, 1, 0, 2, 2, 4, 0, 0, 2, 1, 4, 3, 0, 2, 1, 3];
    worst.check(&NAMES_F32, &documented.map(|d| f64::from(d) + 0.5001));
}

#[test]
fn double_precision() {
    let module = load("math");
    let (mut a, mut b) = arguments();
    for x in F64 {
        for y in F64 {
            a.push(x);
            b.push(y);
        }
    }
    let n = a.len();
    let out = module.gpu.zeroed::<f64>(14 * n);
    let (da, db) = (module.gpu.upload(&a), module.gpu.upload(&b));
    module.run(
        "math_f64",
        (n as u32).div_ceil(128),
        128,
        &[&da, &db, &out, &(n as u32)],
    );
    let names = [
        "sin", "cos", "exp", "log", "sqrt", "rsqrt", "tanh", "pow", "div", "rcp", "atan2", "fmod",
        "cbrt", "hypot",
    ];
    let mut worst = Worst::<14>::new();
    for (i, got) in module.gpu.read(out).chunks(14).enumerate() {
        let (x, y) = (a[i], b[i]);
        let want = [
            x.sin(),
            x.cos(),
            x.exp(),
            x.ln(),
            x.sqrt(),
            1.0 / x.sqrt(),
            x.tanh(),
            x.powf(y),
            x / y,
            1.0 / x,
            x.atan2(y),
            x % y,
            x.cbrt(),
            x.hypot(y),
        ];
        for (column, want) in want.into_iter().enumerate() {
            worst.add(column, ulps64(got[column], want), || {
                format!("({x:e}, {y:e}): got {:e}, want {want:e}", got[column])
            });
        }
    }
    // The reference is rounded, too (1 / sqrt twice). An inexact reference adds one ulp.
    worst.check(
        &names,
        &[
            2.0, 2.0, 2.0, 2.0, 0.0, 3.0, 3.0, 3.0, 0.0, 0.0, 3.0, 0.0, 2.0, 3.0,
        ],
    );
}

#[test]
fn fast_math() {
    let module = load("math_fast");
    let (mut a, mut b) = arguments();
    let subnormals = [1e-45, -1e-45, 1e-39, -5e-39, 1.1754942e-38];
    a.extend(subnormals);
    b.extend([1.0; 5]);
    let a: Vec<f32> = a.iter().map(|v| *v as f32).collect();
    let b: Vec<f32> = b.iter().map(|v| *v as f32).collect();
    let n = a.len();
    let out = module.gpu.zeroed::<f32>(18 * n);
    let (da, db) = (module.gpu.upload(&a), module.gpu.upload(&b));
    module.run(
        "math_f32",
        (n as u32).div_ceil(128),
        128,
        &[&da, &db, &out, &(n as u32)],
    );
    let got = module.gpu.read(out);
    let mut worst = Worst::<10>::new();
    for (i, got) in got.chunks(18).enumerate() {
        // Subnormal arguments are flushed to zero.
        let (x, y) = (flush(a[i]), flush(b[i]));
        let want = reference_f32(x.into(), y.into());
        let mut error = [0.0; 10];
        let small = x.abs() <= std::f32::consts::PI;
        // The documentation states absolute bounds here, so the errors are absolute.
        error[0] = if small {
            (f64::from(got[0]) - want[0]).abs() * 2f64.powf(20.9)
        } else {
            0.0
        };
        error[1] = if small {
            (f64::from(got[1]) - want[1]).abs() * 2f64.powf(20.9)
        } else {
            0.0
        };
        let normal = |value: f64| value == 0.0 || value.abs() >= f64::from(f32::MIN_POSITIVE);
        error[2] = if normal(want[2]) {
            ulps32(got[2], want[2]) / (2.5 + (1.173 * f64::from(x)).abs().floor())
        } else {
            0.0
        };
        error[3] = if (0.5..=2.0).contains(&x) {
            (f64::from(got[3]) - want[3]).abs() * 2f64.powf(21.41)
        } else {
            ulps32(got[3], want[3]) / 3.5
        };
        error[4] = ulps32(got[4], want[4]) / 3.5;
        error[5] = ulps32(got[5], want[5]) / 2.5;
        let exact = f64::from(got[6]) - want[6];
        error[6] = if want[6] == 0.0 || exact.is_nan() {
            0.0
        } else {
            (exact / want[6]).abs() * 2f64.powf(10.987)
        };
        let quotient = (2f64.powi(-126)..=2f64.powi(126)).contains(&f64::from(y.abs()));
        error[7] = if quotient && normal(want[8]) {
            ulps32(got[8], want[8]) / 2.5
        } else {
            0.0
        };
        error[8] = if normal(want[9]) {
            ulps32(got[9], want[9]) / 1.6
        } else {
            0.0
        };
        error[9] = if normal(want[10]) {
            ulps32(got[10], want[10]) / 2.5
        } else {
            0.0
        };
        for (column, error) in error.into_iter().enumerate() {
            worst.add(column, error, || {
                format!("({x:e}, {y:e}): got {got:?}, want {want:?}")
            });
        }
    }
    let names = [
        "sin", "cos", "exp", "log", "sqrt", "rsqrt", "tanh", "div", "rcp", "exp2",
    ];
    worst.check(&names, &[1.0; 10]);
    // The last rows are subnormal, so sqrt, rcp and log are those of zero.
    for (row, x) in got.chunks(18).rev().zip(subnormals.iter().rev()) {
        assert_eq!(row[4].abs(), 0.0, "sqrt {x:e}");
        assert_eq!(row[9], f32::INFINITY.copysign(*x as f32), "rcp {x:e}");
        assert_eq!(row[3], f32::NEG_INFINITY, "log {x:e}");
    }
}

#[test]
fn hardware_approximations() {
    let module = load("math");
    let (a, _) = arguments();
    let mut a: Vec<f32> = a.iter().map(|v| *v as f32).collect();
    a.extend(F32);
    let n = a.len();
    let out = module.gpu.zeroed::<f32>(9 * n);
    module.run(
        "approximations",
        (n as u32).div_ceil(64),
        64,
        &[&module.gpu.upload(&a), &out, &(n as u32)],
    );
    let mut worst = Worst::<9>::new();
    for (i, got) in module.gpu.read(out).chunks(9).enumerate() {
        let x = f64::from(a[i]);
        let flushed = f64::from(flush(a[i]));
        let want = [
            x.sin(),
            x.cos(),
            x.exp(),
            x.ln(),
            1.0 / x.sqrt(),
            x.tanh(),
            x.sqrt(),
            1.0 / x,
            1.0 / flushed,
        ];
        let small = x.abs() <= std::f64::consts::PI;
        for (column, want) in want.into_iter().enumerate() {
            let value = f64::from(got[column]);
            let error = match column {
                0 | 1 if small => (value - want).abs() * 2f64.powf(20.9),
                0 | 1 => 0.0,
                2 if x.abs() < 87.0 => ulps32(got[2], want) / (2.5 + (1.173 * x).abs().floor()),
                2 => 0.0,
                3 if (0.5..=2.0).contains(&x) => (value - want).abs() * 2f64.powf(21.41),
                5 if x != 0.0 && !x.is_nan() => ((value - want) / want).abs() * 2f64.powf(10.987),
                8 if want.abs() < f64::from(f32::MIN_POSITIVE) => value.abs(),
                _ => ulps32(got[column], want) / 3.5,
            };
            worst.add(column, error, || {
                format!("{x:e}: got {value:e}, want {want:e}")
            });
        }
    }
    let names = [
        "sin", "cos", "exp", "log", "rsqrt", "tanh", "sqrt", "rcp", "rcp.ftz",
    ];
    worst.check(&names, &[1.0; 9]);
}
