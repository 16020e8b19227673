//! The kernels that demo programs use.

use std::time::{Duration, Instant};

use soft_gpu::exec::contract::Fault;

use crate::harness::{Random, load};

#[test]
fn null_kernel_runs_at_every_size() {
    let module = load("demo/null");
    module.run("null_kernel", 1, 1, &[]);
    module.run("null_kernel", 1000, 33, &[]);
    module.run("null_kernel", 1, 1024, &[]);
    assert_eq!(
        module
            .program
            .kernels()
            .map(|(name, _)| name)
            .collect::<Vec<_>>(),
        ["null_kernel"]
    );
}

#[test]
fn the_device_is_asked_and_work_is_counted() {
    let module = load("demo/null");
    let stats = module.try_run("null_kernel", 1000, 33, &[]).unwrap();
    assert!(
        module.gpu.turns() >= 1000,
        "a turn at every block's start: {}",
        module.gpu.turns()
    );
    let again = module.try_run("null_kernel", 1000, 33, &[]).unwrap();
    assert_eq!(stats.warp_instructions, again.warp_instructions);
    let half = module.try_run("null_kernel", 500, 33, &[]).unwrap();
    assert!(
        half.warp_instructions >= 1000 && stats.warp_instructions == 2 * half.warp_instructions
    );
    let matmul = load("demo/matmul");
    let info = matmul.program.kernel_info(matmul.kernel("matmul"));
    assert_eq!((info.shared_bytes, info.param_bytes), (2048, 28));
    assert_eq!(info.params, [(0, 8), (8, 8), (16, 8), (24, 4)]);
}

#[test]
fn vector_add() {
    let module = load("demo/vecadd");
    let n = 10_007;
    let mut random = Random(1);
    let a: Vec<f32> = (0..n)
        .map(|_| f32::from_bits(random.next() as u32 & 0xbfff_ffff))
        .collect();
    let b: Vec<f32> = (0..n)
        .map(|_| f32::from_bits(random.next() as u32 & 0xbfff_ffff))
        .collect();
    let (da, db) = (module.gpu.upload(&a), module.gpu.upload(&b));
    let dc = module.gpu.zeroed::<f32>(n + 100);
    module.run(
        "vecadd",
        (n as u32).div_ceil(256),
        256,
        &[&da, &db, &dc, &(n as u32)],
    );
    let c = module.gpu.read(dc);
    for i in 0..n {
        assert_eq!(c[i].to_bits(), (a[i] + b[i]).to_bits(), "{i}");
    }
    assert!(c[n..].iter().all(|&v| v == 0.0), "written past the end");
}

#[test]
fn saxpy_in_a_grid_stride_loop() {
    let module = load("demo/saxpy");
    let n = 5000;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.37).collect();
    let y: Vec<f32> = (0..n).map(|i| 1e6 - i as f32).collect();
    let (dx, dy) = (module.gpu.upload(&x), module.gpu.upload(&y));
    module.run("saxpy", 3, 96, &[&2.5f32, &dx, &dy, &(n as u32)]);
    let got = module.gpu.read(dy);
    for i in 0..n {
        // NVRTC compiles this to one fused multiply-add.
        assert_eq!(got[i], 2.5f32.mul_add(x[i], y[i]), "{i}");
    }
}

#[test]
fn tiled_matrix_product() {
    let module = load("demo/matmul");
    for n in [1usize, 16, 50] {
        let a: Vec<f32> = (0..n * n).map(|i| (i % 17) as f32 - 8.0).collect();
        let b: Vec<f32> = (0..n * n).map(|i| (i % 13) as f32 * 0.5).collect();
        let (da, db, dc) = (
            module.gpu.upload(&a),
            module.gpu.upload(&b),
            module.gpu.zeroed::<f32>(n * n),
        );
        let tiles = n.div_ceil(16) as u32;
        let launch = module.launch(
            "matmul",
            [tiles, tiles, 1],
            [16, 16, 1],
            &[&da, &db, &dc, &(n as u32)],
        );
        module.try_launch(&launch).unwrap();
        let c = module.gpu.read(dc);
        for row in 0..n {
            for col in 0..n {
                // Elements are halves of small integers, so sums are exact in any order.
                let want: f32 = (0..n).map(|k| a[row * n + k] * b[k * n + col]).sum();
                assert_eq!(c[row * n + col], want, "n {n} row {row} col {col}");
            }
        }
    }
}

#[test]
fn reduction_by_shuffles_and_atomics() {
    let module = load("demo/reduce");
    let n = 20_011u32;
    let mut random = Random(2);
    let whole: Vec<u32> = (0..n).map(|_| random.next() as u32).collect();
    let small: Vec<f32> = whole.iter().map(|v| (v % 64) as f32).collect();
    let (du, df) = (module.gpu.upload(&whole), module.gpu.upload(&small));
    for (grid, block) in [(1, 32), (4, 256), (7, 1024)] {
        let (su, sf) = (module.gpu.upload(&[5u32]), module.gpu.zeroed::<f32>(1));
        module.run("reduce_u32", grid, block, &[&du, &su, &n]);
        module.run("reduce_f32", grid, block, &[&df, &sf, &n]);
        let want = whole.iter().fold(5u32, |sum, &v| sum.wrapping_add(v));
        assert_eq!(module.gpu.read(su), [want], "{grid} x {block}");
        // Sums below 2^24 are exact, so the order of the additions does not matter.
        assert_eq!(
            module.gpu.read(sf),
            [small.iter().sum::<f32>()],
            "{grid} x {block}"
        );
    }
}

#[test]
fn mandelbrot_counts_the_steps_of_a_cpu() {
    let module = load("demo/mandelbrot");
    let (w, h, most) = (70u32, 41u32, 100u32);
    let out = module.gpu.zeroed::<u32>((w * h) as usize);
    let launch = module.launch(
        "mandelbrot",
        [w.div_ceil(32), h.div_ceil(8), 1],
        [32, 8, 1],
        &[&out, &w, &h, &most],
    );
    module.try_launch(&launch).unwrap();
    for (at, steps) in (0..w * h).zip(module.gpu.read(out)) {
        let cx = -2.25 + 3.0 / f64::from(w) * f64::from(at % w);
        let cy = -1.25 + 2.5 / f64::from(h) * f64::from(at / w);
        let (mut x, mut y) = (0.0f64, 0.0f64);
        let left = (0..most).find(|_| {
            let far = x * x + y * y > 4.0;
            (x, y) = (x * x - y * y + cx, 2.0 * x * y + cy);
            far
        });
        assert_eq!(steps, left.unwrap_or(most), "pixel {} {}", at % w, at / w);
    }
}

#[test]
fn bodies_attract_each_other() {
    let module = load("demo/nbody");
    // With blocks of 33 threads, the unrolled loop has a remainder.
    let (n, block, soft) = (99usize, 33u32, 0.25f32);
    let mut random = Random(6);
    let bodies: Vec<f32> = (0..4 * n)
        .map(|_| (random.next() % 1024) as f32 / 512.0 - 1.0)
        .collect();
    let (input, output) = (module.gpu.upload(&bodies), module.gpu.zeroed::<f32>(4 * n));
    let mut launch = module.launch(
        "nbody",
        [n as u32 / block, 1, 1],
        [block, 1, 1],
        &[&input, &output, &(n as u32), &soft],
    );
    launch.dynamic_shared = 16 * block;
    module.try_launch(&launch).unwrap();
    let got = module.gpu.read(output);
    for (i, me) in bodies.chunks_exact(4).enumerate() {
        for axis in 0..3 {
            let pull = |other: &[f32]| {
                let d = |k: usize| f64::from(other[k]) - f64::from(me[k]);
                let r = d(0) * d(0) + d(1) * d(1) + d(2) * d(2) + f64::from(soft);
                f64::from(other[3]) * d(axis) / (r * r.sqrt())
            };
            let want: f64 = bodies.chunks_exact(4).map(pull).sum();
            let error = (f64::from(got[4 * i + axis]) - want).abs();
            assert!(error < 1e-4, "body {i} axis {axis}: {want}, off by {error}");
        }
    }
}

#[test]
fn spin_takes_at_least_its_time() {
    let module = load("demo/spin");
    let start = Instant::now();
    module.run("spin_ns", 2, 32, &[&5_000_000u64]);
    assert!(
        start.elapsed() >= Duration::from_millis(5),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_flag_from_outside_ends_a_spin() {
    let module = load("demo/spin");
    let flag = module.gpu.zeroed::<u32>(1);
    std::thread::scope(|scope| {
        let kernel = scope.spawn(|| module.try_run("spin_flag", 1, 64, &[&flag]));
        wait_for_turns(&module.gpu);
        assert!(!kernel.is_finished());
        module
            .gpu
            .cell(flag)
            .store(1, std::sync::atomic::Ordering::SeqCst);
        kernel.join().unwrap().unwrap();
    });
}

#[test]
fn a_kernel_that_never_ends_is_stopped_by_the_device() {
    let module = load("demo/spin");
    std::thread::scope(|scope| {
        let kernel = scope.spawn(|| module.try_run("hang", 4, 128, &[]));
        wait_for_turns(&module.gpu);
        assert!(!kernel.is_finished());
        module.gpu.stop();
        assert_eq!(kernel.join().unwrap(), Err(Fault::Stopped));
    });
}

/// Returns when a running kernel has called `turn` several times.
fn wait_for_turns(gpu: &crate::harness::Gpu) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while gpu.turns() < 20 {
        assert!(
            Instant::now() < deadline,
            "the kernel never asked for its turn"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
