//! The cases: each has the inputs of a kernel, and the same computation as a loop in plain Rust.
//!
//! The loops are written as usual for one thread: over slices, in the kernel's order, without
//! intrinsics or threads. The compiler vectorises them as far as it can for any x86-64. Where
//! possible, the inputs are small multiples of powers of two: then sums are exact in any order, and
//! the results must be equal.

use std::hint::black_box;

use anyhow::{Result, ensure};

use crate::cuda::Shape;

/// An argument of a kernel.
pub(super) enum Arg {
    /// Device memory with these bytes.
    Input(Vec<u8>),
    /// Device memory of this many bytes, which the kernel writes.
    Output(usize),
    /// A 32-bit value.
    Word(u32),
}

/// A kernel and its plain loop.
pub(super) trait Case {
    /// Name of the figure.
    fn name(&self) -> &'static str;
    /// File and kernel name.
    fn kernel(&self) -> (&'static str, &'static str);
    /// Dimensions of the launch.
    fn shape(&self) -> Shape;
    /// Arguments in order.
    fn args(&self) -> Vec<Arg>;
    /// Runs the plain loop and keeps its result.
    fn plain(&mut self);
    /// Compares the kernel's result with the plain loop's.
    fn check(&self, device: &[u8]) -> Result<()>;
}

/// All cases.
pub(super) fn cases() -> Vec<Box<dyn Case>> {
    vec![
        Box::new(VectorAdd::new(4 << 20)),
        Box::new(Matmul::new(512)),
        Box::new(Reduce::new(1 << 20)),
        Box::new(Mandelbrot::new(512, 256)),
        Box::new(NBody::new(2048)),
    ]
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|c| u32::from_ne_bytes(*c))
}

fn equal(device: &[u8], plain: impl Iterator<Item = u32>) -> Result<()> {
    for (i, (d, p)) in words(device).zip(plain).enumerate() {
        ensure!(
            d == p,
            "word {i} is {d:#x} on soft-gpu, {p:#x} in the plain loop"
        );
    }
    Ok(())
}

/// `len` multiples of 1/64 in [-1/2, 1/2), pseudo-random.
fn sixty_fourths(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 16 & 63) as f32 - 32.0) / 64.0
    };
    (0..len).map(|_| next()).collect()
}

fn flat(blocks: usize, threads: u32) -> Shape {
    Shape {
        grid: [blocks as u32, 1, 1],
        block: [threads, 1, 1],
        shared: 0,
    }
}

/// `c = a + b`.
struct VectorAdd {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl VectorAdd {
    fn new(n: usize) -> VectorAdd {
        VectorAdd {
            a: sixty_fourths(n, 1),
            b: sixty_fourths(n, 2),
            c: vec![0.0; n],
        }
    }
}

impl Case for VectorAdd {
    fn name(&self) -> &'static str {
        "vecadd_4mi"
    }

    fn kernel(&self) -> (&'static str, &'static str) {
        ("vecadd", "vecadd")
    }

    fn shape(&self) -> Shape {
        flat(self.c.len().div_ceil(256), 256)
    }

    fn args(&self) -> Vec<Arg> {
        vec![
            Arg::Input(bytes(&self.a)),
            Arg::Input(bytes(&self.b)),
            Arg::Output(self.c.len() * 4),
            Arg::Word(self.c.len() as u32),
        ]
    }

    fn plain(&mut self) {
        let (a, b) = (black_box(&self.a), black_box(&self.b));
        for ((c, a), b) in self.c.iter_mut().zip(a).zip(b) {
            *c = a + b;
        }
        black_box(&mut self.c);
    }

    fn check(&self, device: &[u8]) -> Result<()> {
        equal(device, self.c.iter().map(|c| c.to_bits()))
    }
}

/// Rows and columns of a tile.
const TILE: usize = 16;

/// `c = a b` for square matrices in tiles.
struct Matmul {
    n: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Matmul {
    fn new(n: usize) -> Matmul {
        Matmul {
            n,
            a: sixty_fourths(n * n, 3),
            b: sixty_fourths(n * n, 4),
            c: vec![0.0; n * n],
        }
    }

    /// Computes one tile of the result, like one block.
    fn tile(&mut self, row: usize, col: usize) {
        let n = self.n;
        let mut sum = [[0.0f32; TILE]; TILE];
        let (mut ta, mut tb) = ([[0.0f32; TILE]; TILE], [[0.0f32; TILE]; TILE]);
        for t in (0..n).step_by(TILE) {
            for y in 0..TILE {
                let (at_a, at_b) = ((row + y) * n + t, (t + y) * n + col);
                ta[y].copy_from_slice(&self.a[at_a..at_a + TILE]);
                tb[y].copy_from_slice(&self.b[at_b..at_b + TILE]);
            }
            for y in 0..TILE {
                for k in 0..TILE {
                    for x in 0..TILE {
                        sum[y][x] += ta[y][k] * tb[k][x];
                    }
                }
            }
        }
        for (y, sum) in sum.iter().enumerate() {
            let at = (row + y) * n + col;
            self.c[at..at + TILE].copy_from_slice(sum);
        }
    }
}

impl Case for Matmul {
    fn name(&self) -> &'static str {
        "matmul_512"
    }

    fn kernel(&self) -> (&'static str, &'static str) {
        ("matmul", "matmul")
    }

    fn shape(&self) -> Shape {
        let tiles = (self.n / TILE) as u32;
        Shape {
            grid: [tiles, tiles, 1],
            block: [TILE as u32, TILE as u32, 1],
            shared: 0,
        }
    }

    fn args(&self) -> Vec<Arg> {
        vec![
            Arg::Input(bytes(&self.a)),
            Arg::Input(bytes(&self.b)),
            Arg::Output(self.c.len() * 4),
            Arg::Word(self.n as u32),
        ]
    }

    fn plain(&mut self) {
        for row in (0..self.n).step_by(TILE) {
            for col in (0..self.n).step_by(TILE) {
                self.tile(row, col);
            }
        }
        black_box(&mut self.c);
    }

    fn check(&self, device: &[u8]) -> Result<()> {
        // Products are multiples of 2⁻¹², and sums of 512 products are below 2¹⁰: the results are
        // exact.
        equal(device, self.c.iter().map(|c| c.to_bits()))
    }
}

/// The sum of a vector.
struct Reduce {
    a: Vec<f32>,
    sum: f32,
}

impl Reduce {
    fn new(n: usize) -> Reduce {
        Reduce {
            a: sixty_fourths(n, 5),
            sum: 0.0,
        }
    }
}

impl Case for Reduce {
    fn name(&self) -> &'static str {
        "reduce_1mi"
    }

    fn kernel(&self) -> (&'static str, &'static str) {
        ("reduce", "reduce_f32")
    }

    fn shape(&self) -> Shape {
        flat(64, 256)
    }

    fn args(&self) -> Vec<Arg> {
        vec![
            Arg::Input(bytes(&self.a)),
            Arg::Output(4),
            Arg::Word(self.a.len() as u32),
        ]
    }

    fn plain(&mut self) {
        self.sum = 0.0;
        for a in black_box(&self.a) {
            self.sum += a;
        }
        black_box(&mut self.sum);
    }

    fn check(&self, device: &[u8]) -> Result<()> {
        // Every partial sum of a million values of at most 32/64 stays far below 2²⁴/64: the result
        // is exact.
        equal(device, std::iter::once(self.sum.to_bits()))
    }
}

/// For each point: the number of steps until it leaves the circle, at most `most`.
struct Mandelbrot {
    side: u32,
    most: u32,
    steps: Vec<u32>,
}

impl Mandelbrot {
    fn new(side: u32, most: u32) -> Mandelbrot {
        Mandelbrot {
            side,
            most,
            steps: vec![0; (side * side) as usize],
        }
    }
}

impl Case for Mandelbrot {
    fn name(&self) -> &'static str {
        "mandelbrot_f64_512"
    }

    fn kernel(&self) -> (&'static str, &'static str) {
        ("mandelbrot", "mandelbrot")
    }

    fn shape(&self) -> Shape {
        Shape {
            grid: [self.side.div_ceil(32), self.side.div_ceil(8), 1],
            block: [32, 8, 1],
            shared: 0,
        }
    }

    fn args(&self) -> Vec<Arg> {
        vec![
            Arg::Output(self.steps.len() * 4),
            Arg::Word(self.side),
            Arg::Word(self.side),
            Arg::Word(self.most),
        ]
    }

    fn plain(&mut self) {
        let (side, most) = black_box((self.side, self.most));
        for (at, steps) in (0..side * side).zip(&mut self.steps) {
            let cx = -2.25 + 3.0 / f64::from(side) * f64::from(at % side);
            let cy = -1.25 + 2.5 / f64::from(side) * f64::from(at / side);
            let (mut x, mut y) = (0.0f64, 0.0f64);
            let mut n = 0;
            while n < most {
                let (xx, yy) = (x * x, y * y);
                if xx + yy > 4.0 {
                    break;
                }
                y = 2.0 * x * y + cy;
                x = xx - yy + cx;
                n += 1;
            }
            *steps = n;
        }
        black_box(&mut self.steps);
    }

    fn check(&self, device: &[u8]) -> Result<()> {
        equal(device, self.steps.iter().copied())
    }
}

/// Softening term that [`NBody`] adds to a squared distance.
const SOFT: f32 = 0.01;
/// Threads per block of [`NBody`].
const BODIES: u32 = 128;

/// Accelerations of bodies by their mutual attraction.
struct NBody {
    bodies: Vec<[f32; 4]>,
    out: Vec<[f32; 4]>,
}

impl NBody {
    fn new(n: usize) -> NBody {
        let values = sixty_fourths(4 * n, 6);
        NBody {
            bodies: values.as_chunks::<4>().0.to_vec(),
            out: vec![[0.0; 4]; n],
        }
    }
}

impl Case for NBody {
    fn name(&self) -> &'static str {
        "nbody_2048"
    }

    fn kernel(&self) -> (&'static str, &'static str) {
        ("nbody", "nbody")
    }

    fn shape(&self) -> Shape {
        Shape {
            shared: 16 * BODIES,
            ..flat(self.bodies.len() / BODIES as usize, BODIES)
        }
    }

    fn args(&self) -> Vec<Arg> {
        vec![
            Arg::Input(bytes(self.bodies.as_flattened())),
            Arg::Output(self.out.len() * 16),
            Arg::Word(self.bodies.len() as u32),
            Arg::Word(SOFT.to_bits()),
        ]
    }

    fn plain(&mut self) {
        let bodies = black_box(&self.bodies);
        for (out, me) in self.out.iter_mut().zip(bodies) {
            let mut a = [0.0f32; 3];
            for other in bodies {
                let d = [other[0] - me[0], other[1] - me[1], other[2] - me[2]];
                let r = 1.0 / (d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + SOFT).sqrt();
                let s = other[3] * r * r * r;
                for (a, d) in a.iter_mut().zip(d) {
                    *a += d * s;
                }
            }
            *out = [a[0], a[1], a[2], 0.0];
        }
        black_box(&mut self.out);
    }

    fn check(&self, device: &[u8]) -> Result<()> {
        // The kernel uses fused and approximate operations. Each of the 2048 terms is at most
        // 1/2·SOFT⁻¹·√(4/27), with a relative error of about 2⁻²².
        let near = |d: f32, p: f32| (d - p).abs() <= 2e-3 + 1e-3 * p.abs();
        for (i, (d, p)) in words(device).zip(self.out.as_flattened()).enumerate() {
            let d = f32::from_bits(d);
            ensure!(
                near(d, *p),
                "value {i} is {d} on soft-gpu, {p} in the plain loop"
            );
        }
        Ok(())
    }
}
