//! Cooperative groups: kernels that use `cooperative_groups.h`, compiled by NVRTC.

use soft_gpu::exec::contract::Launch;

use crate::harness::{Random, load};

#[test]
fn the_whole_grid_meets() {
    let module = load("groups");
    let (blocks, rounds) = (9u32, 5u32);
    for threads in [1, 2] {
        let data = module.gpu.zeroed::<u32>(blocks as usize + 2);
        let launch = Launch {
            cooperative: true,
            threads,
            ..module.launch("grid_rounds", [blocks, 1, 1], [64, 1, 1], &[&data, &rounds])
        };
        module.try_launch(&launch).unwrap();
        let mut want = vec![rounds; blocks as usize];
        want.extend([0, blocks * 64]);
        assert_eq!(module.gpu.read(data), want, "{threads} threads");
    }
}

#[test]
fn tiles_labels_and_coalesced_lanes() {
    let module = load("groups");
    let mut random = Random(11);
    let threads = 96usize;
    let values: Vec<i32> = (0..threads)
        .map(|_| random.below(2000) as i32 - 1000)
        .collect();
    let (input, out) = (
        module.gpu.upload(&values),
        module.gpu.zeroed::<i32>(12 * threads),
    );
    module.run("groups", 1, threads as u32, &[&input, &out]);
    for (t, got) in module.gpu.read(out).chunks(12).enumerate() {
        let v = |k: usize| values[k];
        let (warp, eight) = (t / 32 * 32..t / 32 * 32 + 32, t / 8 * 8..t / 8 * 8 + 8);
        let same: Vec<usize> = warp.clone().filter(|k| v(*k) & 3 == v(t) & 3).collect();
        let odd: Vec<usize> = warp.clone().filter(|k| v(*k) & 1 != 0).collect();
        let positive = eight.clone().filter(|k| v(*k) > 0);
        let mut want = vec![
            eight.clone().map(v).sum(),
            warp.clone().map(v).max().unwrap(),
            v(t ^ 3),
            i32::from(eight.clone().any(|k| v(k) > 500)),
            positive.fold(0, |m, k| m | 1 << (k % 8)),
            same.len() as i32,
            same.iter().position(|k| *k == t).unwrap() as i32,
            same.iter().map(|k| v(*k)).sum(),
            same.iter().fold(0, |x, k| x ^ v(*k)),
        ];
        want.extend(if v(t) & 1 != 0 {
            [odd.len() as i32, odd.iter().map(|k| v(*k)).min().unwrap()]
        } else {
            [-1, -1]
        });
        want.push((warp.start..=t).map(v).sum());
        assert_eq!(got, want, "thread {t}");
    }
}
