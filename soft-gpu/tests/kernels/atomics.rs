//! Atomics.

use crate::harness::{Random, load};

const THREADS: usize = 8 * 96;

fn input() -> Vec<u32> {
    let mut random = Random(6);
    (0..THREADS).map(|_| random.next() as u32).collect()
}

/// `atomicInc`, as the PTX ISA defines it. `dec` below is `atomicDec`.
fn inc(old: u32, limit: u32) -> u32 {
    if old >= limit { 0 } else { old + 1 }
}

fn dec(old: u32, limit: u32) -> u32 {
    if old == 0 || old > limit {
        limit
    } else {
        old - 1
    }
}

#[test]
fn global_32_bit() {
    let module = load("atomics");
    let input = input();
    let start: [u32; 12] = [7, 7, u32::MAX, 0, u32::MAX, 0, 0x1234_5678, 50, 50, 0, 0, 9];
    let (cells, din) = (module.gpu.upload(&start), module.gpu.upload(&input));
    module.run("atomics_u32", 8, 96, &[&cells, &din]);
    let mut want = start;
    for &v in &input {
        want[0] = want[0].wrapping_add(v);
        want[1] = want[1].wrapping_sub(v);
        want[2] = want[2].min(v);
        want[3] = want[3].max(v);
        want[4] &= v | 0xff;
        want[5] |= v & 0xf0f0;
        want[6] ^= v;
        want[7] = inc(want[7], 100);
        want[8] = dec(want[8], 100);
        want[9] = (want[9] as i32).min(v as i32) as u32;
        want[10] = (want[10] as i32).max(v as i32) as u32;
        want[11] = want[11].wrapping_sub(v);
    }
    assert_eq!(module.gpu.read(cells), want);
}

#[test]
fn global_64_bit() {
    let module = load("atomics");
    let mut random = Random(7);
    let input: Vec<u64> = (0..THREADS).map(|_| random.next()).collect();
    let start = [1u64, u64::MAX, 0, u64::MAX, 0, 42, 0, 0];
    let (cells, din) = (module.gpu.upload(&start), module.gpu.upload(&input));
    module.run("atomics_u64", 8, 96, &[&cells, &din]);
    let mut want = start;
    for &v in &input {
        want[0] = want[0].wrapping_add(v);
        want[1] = want[1].min(v);
        want[2] = want[2].max(v);
        want[3] &= v | 0xff;
        want[4] |= v & 0xf0f0_f0f0_f0f0_f0f0;
        want[5] ^= v;
        want[6] = (want[6] as i64).min(v as i64) as u64;
        want[7] = (want[7] as i64).max(v as i64) as u64;
    }
    assert_eq!(module.gpu.read(cells), want);
}

#[test]
fn floats() {
    let module = load("atomics");
    let input = input();
    let (f, d, din) = (
        module.gpu.upload(&[0.5f32]),
        module.gpu.upload(&[0.25f64]),
        module.gpu.upload(&input),
    );
    module.run("atomics_float", 8, 96, &[&f, &d, &din]);
    let sum: u32 = input.iter().map(|v| v % 16).sum();
    assert_eq!(module.gpu.read(f), [sum as f32 + 0.5]);
    assert_eq!(module.gpu.read(d), [f64::from(sum) + 0.25]);
}

#[test]
fn shared_memory() {
    let module = load("atomics");
    let input = &input()[..256];
    let gpu = &module.gpu;
    let (out, wide, f) = (
        gpu.zeroed::<u32>(8),
        gpu.zeroed::<u64>(2),
        gpu.zeroed::<f32>(1),
    );
    module.run(
        "atomics_shared",
        1,
        256,
        &[&out, &wide, &f, &gpu.upload(input)],
    );
    let sum = input.iter().fold(0u32, |s, v| s.wrapping_add(*v));
    let want = [
        sum,
        *input.iter().max().unwrap(),
        *input.iter().min().unwrap(),
        input.iter().fold(0, |s, v| s | v),
        input.iter().fold(u32::MAX, |s, v| s & v),
        input.iter().fold(0, |s, v| s ^ v),
        (0..256).fold(0, |c, _| inc(c, 10)),
        sum,
    ];
    assert_eq!(gpu.read(out), want);
    let wide_sum: u64 = input.iter().map(|v| u64::from(*v) << 20).sum();
    assert_eq!(gpu.read(wide), [wide_sum, u64::from(want[1]) << 20]);
    assert_eq!(
        gpu.read(f),
        [input.iter().map(|v| v % 16).sum::<u32>() as f32]
    );
}

#[test]
fn every_ticket_is_drawn_once() {
    let module = load("atomics");
    let n = 4 * 256;
    let (next, taken) = (module.gpu.zeroed::<u32>(1), module.gpu.zeroed::<u32>(n));
    module.run("tickets", 4, 256, &[&next, &taken]);
    assert_eq!(module.gpu.read(next), [n as u32]);
    assert!(module.gpu.read(taken).iter().all(|&t| t == 1));
}

#[test]
fn compare_and_swap_loops_and_spin_locks() {
    let module = load("atomics");
    let gpu = &module.gpu;
    let (product, lock) = (gpu.upload(&[1.0f64.to_bits()]), gpu.zeroed::<u32>(1));
    let guarded = gpu.zeroed::<u32>(1);
    module.run("cas", 4, 64, &[&product, &lock, &guarded]);
    assert_eq!(gpu.read(product), [2f64.powi(256).to_bits()]);
    assert_eq!((gpu.read(guarded), gpu.read(lock)), (vec![256], vec![0]));
}

#[test]
fn exchanges_lose_nothing() {
    let module = load("atomics");
    let (cell, taken) = (module.gpu.zeroed::<u32>(1), module.gpu.zeroed::<u32>(512));
    module.run("exchange", 4, 128, &[&cell, &taken]);
    let mut all = module.gpu.read(taken);
    all.extend(module.gpu.read(cell));
    all.sort_unstable();
    assert_eq!(all, (0..=512).collect::<Vec<u32>>());
}

#[test]
fn reductions_and_explicit_orders() {
    let module = load("atomics");
    let input = input();
    let gpu = &module.gpu;
    let cells = gpu.upload(&[0u32, i32::MIN as u32, u32::MAX, 0, 0, 0, 0, 0]);
    let (wide, f, din) = (
        gpu.zeroed::<u64>(1),
        gpu.zeroed::<f32>(1),
        gpu.upload(&input),
    );
    module.run("reductions", 8, 96, &[&cells, &wide, &f, &din]);
    let n = THREADS as u32;
    let got = gpu.read(cells);
    let want = [
        input.iter().fold(0u32, |s, v| s.wrapping_add(*v)),
        input.iter().map(|v| *v as i32).max().unwrap() as u32,
        *input.iter().min().unwrap(),
        input.iter().fold(0, |s, v| s ^ v),
        (0..n).fold(0, |c, _| inc(c, 6)),
        n,
        n * (n - 1) / 2,
    ];
    assert_eq!(got[..7], want);
    // Any thread may have been the first, so any of their values is accepted.
    assert!(input.iter().any(|v| v | 1 == got[7]), "{:#x}", got[7]);
    assert_eq!(
        gpu.read(wide),
        [input.iter().fold(0, |s, v| s | 1u64 << (v % 64))]
    );
    assert_eq!(gpu.read(f), [2.0 * n as f32]);
}
