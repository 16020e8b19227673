//! Loops, branches, switches.

use crate::harness::{Random, load};

#[test]
fn loops_whose_length_differs_by_lane() {
    let module = load("control");
    let input: Vec<u32> = (0..256).collect();
    let (din, out) = (module.gpu.upload(&input), module.gpu.zeroed::<u32>(256));
    module.run("collatz", 4, 64, &[&din, &out]);
    let steps = |mut v: u64| {
        let mut n = 0;
        while v > 1 {
            v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
            n += 1;
        }
        n
    };
    let want: Vec<u32> = input.iter().map(|v| steps(u64::from(*v))).collect();
    assert_eq!(module.gpu.read(out), want);
}

/// The same computation as the kernel `nested` in control.cu.
fn nested(input: u32) -> u32 {
    let mut sum = 0u32;
    for a in 0..input % 13 {
        if a % 5 == 3 {
            continue;
        }
        for b in a..40 {
            if (a * b + input).is_multiple_of(17) {
                break;
            }
            sum += if b % 2 == 1 { a * b } else { a + b };
            if sum > 2000 {
                return sum;
            }
        }
        sum ^= a;
    }
    sum
}

#[test]
fn nested_loops_with_break_continue_and_goto() {
    let module = load("control");
    let mut random = Random(8);
    let input: Vec<u32> = (0..512).map(|_| random.below(100_000)).collect();
    let (din, out) = (module.gpu.upload(&input), module.gpu.zeroed::<u32>(512));
    module.run("nested", 1, 512, &[&din, &out]);
    let want: Vec<u32> = input.iter().map(|v| nested(*v)).collect();
    assert_eq!(module.gpu.read(out), want);
}

/// The same computation as the kernel `choose` in control.cu.
fn choose(v: u32) -> u32 {
    let mix = |v: u32, k: u32| v.wrapping_mul(2_654_435_761).wrapping_add(k);
    match v % 12 {
        0 => mix(v, 1),
        1 => v / 7,
        2 => v.count_ones(),
        3 => (mix(v, 4) ^ 9).wrapping_add(77),
        4 => v.wrapping_add(77),
        5 => v.reverse_bits(),
        6 => v % 1000,
        7 => mix(mix(v, 2), 3),
        8 => v.rotate_left(5),
        9 => 123,
        10 => !v,
        _ => 0x1234,
    }
}

#[test]
fn a_switch_takes_every_case() {
    let module = load("control");
    let mut random = Random(9);
    let input: Vec<u32> = (0..256)
        .map(|i| if i < 24 { i } else { random.next() as u32 })
        .collect();
    let (din, out) = (module.gpu.upload(&input), module.gpu.zeroed::<u32>(256));
    module.run("choose", 1, 256, &[&din, &out]);
    let want: Vec<u32> = input.iter().map(|v| choose(*v)).collect();
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn an_indexed_branch() {
    let module = load("control");
    let input: Vec<u32> = (0..64).map(|i| i * i).collect();
    let (din, out) = (module.gpu.upload(&input), module.gpu.zeroed::<u32>(64));
    module.run("indexed_branch", 1, 64, &[&din, &out]);
    let want: Vec<u32> = input
        .iter()
        .map(|v| match v % 3 {
            0 => 10,
            1 => v + 20,
            _ => v * 30,
        })
        .collect();
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn mandelbrot_in_doubles() {
    let module = load("control");
    let (width, height, limit) = (48u32, 30u32, 200u32);
    let out = module.gpu.zeroed::<u32>((width * height) as usize);
    let grid = [width.div_ceil(16), height.div_ceil(8), 1];
    let launch = module.launch(
        "mandelbrot",
        grid,
        [16, 8, 1],
        &[&out, &width, &height, &limit],
    );
    module.try_launch(&launch).unwrap();
    let got = module.gpu.read(out);
    for y in 0..height {
        for x in 0..width {
            let cr = f64::from(x) * (3.0 / f64::from(width)) - 2.0;
            let ci = f64::from(y) * (2.0 / f64::from(height)) - 1.0;
            let (mut zr, mut zi, mut n) = (0.0f64, 0.0f64, 0);
            while n < limit && zr * zr + zi * zi <= 4.0 {
                (zr, zi) = (zr * zr - zi * zi + cr, 2.0 * (zr * zi) + ci);
                n += 1;
            }
            assert_eq!(got[(y * width + x) as usize], n, "pixel {x} {y}");
        }
    }
}
