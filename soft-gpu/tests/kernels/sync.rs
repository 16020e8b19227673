//! Barriers, and the order of memory accesses between threads.

use soft_gpu::exec::contract::Launch;

use crate::harness::load;

#[test]
fn barriers_that_count() {
    let module = load("sync");
    let (grid, block) = (4usize, 100usize);
    // In block 0 no thread satisfies the predicate, in block 1 all threads, in the other blocks
    // some.
    let input: Vec<i32> = (0..grid * block)
        .map(|i| match i / block {
            0 => -1,
            1 => 1,
            b => i32::from(i % (b + 1) == 0) * 2 - 1,
        })
        .collect();
    let (din, out) = (
        module.gpu.upload(&input),
        module.gpu.zeroed::<i32>(3 * grid * block),
    );
    module.run("counts", grid as u32, block as u32, &[&din, &out]);
    for (i, got) in module.gpu.read(out).chunks(3).enumerate() {
        let start = i / block * block;
        let count = input[start..start + block]
            .iter()
            .filter(|v| **v > 0)
            .count() as i32;
        let (and, or) = (got[1] != 0, got[2] != 0);
        assert_eq!(
            (got[0], and, or),
            (count, count == block as i32, count > 0),
            "thread {i}"
        );
    }
}

#[test]
fn prefix_sum() {
    let module = load("sync");
    for block in [1u32, 32, 77, 1024] {
        let data: Vec<u32> = (0..block).map(|i| i * i + 1).collect();
        let buffer = module.gpu.upload(&data);
        module.run("scan", 1, block, &[&buffer]);
        let want: Vec<u32> = data
            .iter()
            .scan(0u32, |sum, v| {
                *sum += v;
                Some(*sum)
            })
            .collect();
        assert_eq!(module.gpu.read(buffer), want, "block {block}");
    }
}

#[test]
fn named_barriers_with_a_count() {
    let module = load("sync");
    let out = module.gpu.zeroed::<u32>(128);
    module.run("named", 1, 128, &[&out]);
    let want: Vec<u32> = (0..128).map(|i| (i ^ 63) * 3 + (i ^ 127) * 3).collect();
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn barriers_do_not_wait_for_exited_threads() {
    let module = load("sync");
    let out = module.gpu.zeroed::<u32>(256);
    module.run("early_exit", 1, 256, &[&out]);
    let want: Vec<u32> = (0..256).map(|i| 200u32.saturating_sub(i)).collect();
    assert_eq!(module.gpu.read(out), want);
}

#[test]
fn warps_of_a_block_take_turns() {
    let module = load("sync");
    let out = module.gpu.zeroed::<u32>(65);
    module.run("hand_over", 1, 64, &[&out]);
    let got = module.gpu.read(out);
    assert!(
        got[..32].iter().all(|&v| v == 77) && got[64] == 999,
        "{got:?}"
    );
}

#[test]
fn the_last_block_sees_the_writes_of_all_blocks() {
    let module = load("sync");
    // The kernel runs twice, because its counter must return to zero.
    for _ in 0..2 {
        let (part, out) = (module.gpu.zeroed::<u32>(50), module.gpu.zeroed::<u32>(1));
        module.run("last_block", 50, 32, &[&part, &out]);
        assert_eq!(module.gpu.read(out), [50 * 51 / 2]);
    }
}

#[test]
fn all_blocks_of_a_cooperative_launch_run_at_once() {
    let module = load("sync");
    let (blocks, rounds) = (9u32, 5u32);
    let data = module.gpu.zeroed::<u32>(blocks as usize + 1);
    for threads in [1, 2] {
        module.gpu.write(data.address, &[0u32; 10]);
        module
            .gpu
            .write(module.global::<u32>("arrived", 1).address, &[0u32]);
        let launch = Launch {
            cooperative: true,
            threads,
            ..module.launch(
                "grid_barrier",
                [blocks, 1, 1],
                [64, 1, 1],
                &[&data, &rounds],
            )
        };
        module.try_launch(&launch).unwrap();
        let mut want = vec![rounds; blocks as usize];
        want.push(0);
        assert_eq!(module.gpu.read(data), want, "{threads} threads");
    }
}
