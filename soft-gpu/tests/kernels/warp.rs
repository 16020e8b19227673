//! Votes, matches, shuffles, reductions, divergence.

use crate::harness::load;

/// Inputs of one warp: small numbers, some of them equal, some negative.
fn values() -> Vec<i32> {
    (0..32)
        .map(|i| (i * 37) % 23 - 8 + i32::from(i == 9) * 120)
        .collect()
}

fn mask_of(test: impl Fn(usize) -> bool) -> u32 {
    (0..32).filter(|&l| test(l)).fold(0, |m, l| m | 1 << l)
}

#[test]
fn votes_and_matches() {
    let module = load("warp");
    for values in [
        values(),
        vec![5; 32],
        (0..32).map(|i| i * 500).collect::<Vec<i32>>(),
    ] {
        let (input, out) = (module.gpu.upload(&values), module.gpu.zeroed::<u32>(8 * 32));
        module.run("votes", 1, 32, &[&input, &out]);
        let uniform = values.iter().all(|v| (*v > 0) == (values[0] > 0));
        let equal = values.iter().all(|v| v / 1000 == values[0] / 1000);
        for (lane, got) in module.gpu.read(out).chunks(8).enumerate() {
            let want = [
                mask_of(|l| values[l] > 0),
                u32::from(values.iter().any(|v| *v > 100)),
                u32::from(values.iter().all(|v| *v > -100)),
                u32::from(uniform),
                mask_of(|l| values[l] % 4 == values[lane] % 4),
                if equal { u32::MAX } else { 0 },
                u32::from(equal),
                mask_of(|l| values[l] % 3 == values[lane] % 3),
            ];
            assert_eq!(got, want, "lane {lane}");
        }
    }
}

#[test]
fn shuffles_of_every_kind() {
    let module = load("warp");
    let v = values();
    let (input, out) = (module.gpu.upload(&v), module.gpu.zeroed::<i32>(10 * 32));
    module.run("shuffles", 1, 32, &[&input, &out]);
    for (lane, got) in module.gpu.read(out).chunks(10).enumerate() {
        // If the source lane is outside the lane's segment, the lane keeps its own value.
        let up = |by: usize, width: usize| {
            if lane % width >= by {
                v[lane - by]
            } else {
                v[lane]
            }
        };
        let down = |by: usize, width: usize| {
            if lane % width + by < width {
                v[lane + by]
            } else {
                v[lane]
            }
        };
        // A butterfly may read from a lower segment, but not from a higher one.
        let xor = |by: usize, width: usize| {
            let source = lane ^ by;
            if source <= (lane | (width - 1)) {
                v[source]
            } else {
                v[lane]
            }
        };
        let want = [
            v[5],
            v[lane / 8 * 8 + (lane + 3) % 8],
            up(3, 32),
            up(3, 16),
            down(5, 32),
            down(5, 8),
            xor(7, 32),
            xor(17, 16),
            v[31 - lane],
            i32::from(lane + 4 < 32),
        ];
        assert_eq!(got, want, "lane {lane}");
    }
}

#[test]
fn halves_of_a_warp_diverge_and_meet() {
    let module = load("warp");
    let v = values();
    let (input, out) = (module.gpu.upload(&v), module.gpu.zeroed::<u32>(4 * 32));
    module.run("divergent", 1, 32, &[&input, &out]);
    let odd_positive = mask_of(|l| l % 2 == 1 && v[l] > 0);
    let even_other = mask_of(|l| l % 2 == 0 && v[l] <= 0);
    for (lane, got) in module.gpu.read(out).chunks(4).enumerate() {
        let want = if lane % 2 == 1 {
            [odd_positive, v[lane ^ 2] as u32, 0xaaaa_aaaa, u32::MAX]
        } else {
            [even_other, v[lane ^ 4] as u32, 0x5555_5555, u32::MAX]
        };
        assert_eq!(got, want, "lane {lane}");
    }
}

#[test]
fn warp_reductions() {
    let module = load("warp");
    let v = values();
    let (input, out) = (module.gpu.upload(&v), module.gpu.zeroed::<i32>(6 * 32));
    module.run("redux", 1, 32, &[&input, &out]);
    let want = [
        v.iter().sum(),
        *v.iter().min().unwrap(),
        v.iter().map(|x| *x as u32).max().unwrap() as i32,
        v.iter().fold(-1, |a, x| a & x),
        v.iter().fold(0, |a, x| a | x),
        v.iter().fold(0, |a, x| a ^ x),
    ];
    for got in module.gpu.read(out).chunks(6) {
        assert_eq!(got, want);
    }
}

#[test]
fn a_warp_that_is_not_full() {
    let module = load("warp");
    let out = module.gpu.zeroed::<u32>(2 * 40);
    module.run("partial_warp", 1, 40, &[&out]);
    for (thread, got) in module.gpu.read(out).chunks(2).enumerate() {
        let want = if thread < 32 {
            [u32::MAX, mask_of(|l| l % 3 == 0)]
        } else {
            [0xff, mask_of(|l| l < 8 && (l + 32) % 3 == 0)]
        };
        assert_eq!(got, want, "thread {thread}");
    }
}
