//! Warp-wide operations, divergence and barriers.

use super::{Bench, HEADER};
use crate::exec::contract::Fault;

/// Runs a body for one block, and returns `%r0` of each thread. `%t` is the thread index.
fn block(body: &str, threads: u32) -> Vec<u32> {
    let bench = Bench::new();
    let (p, _) = bench.load(&wrapped(body));
    let out = bench.words(&vec![0xeeee_eeee; threads as usize]);
    bench
        .launch(&p, "k", [1, 1, 1], [threads, 1, 1], &[out])
        .unwrap();
    bench.read_words(out, threads as usize)
}

fn wrapped(body: &str) -> String {
    format!(
        "{HEADER}.visible .entry k(.param .u64 out) {{\n\
         .reg .b32 %t, %l, %r<16>; .reg .b64 %o, %d<4>; .reg .pred %p<8>;\n\
         .shared .align 8 .b8 buf[4096];\n\
         ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mov.u32 %l, %laneid;\n\
         mad.wide.u32 %o, %t, 4, %o;\n{body}\nst.global.u32 [%o], %r0;\nret;\n}}\n"
    )
}

#[test]
fn shuffles_within_segments() {
    // (mode, lane operand, clamp and segment mask, formula of the source lane in the PTX manual)
    type Source = fn(i32) -> i32;
    let cases: [(&str, &str, &str, Source); 7] = [
        ("up", "1", "0", |l| l - 1),
        ("down", "3", "31", |l| l + 3),
        ("bfly", "5", "31", |l| l ^ 5),
        ("idx", "7", "31", |_| 7),
        // Segments of 8 lanes: clamp 31, segment mask 0x18.
        ("down", "2", "0x181f", |l| {
            if l % 8 + 2 < 8 { l + 2 } else { -1 }
        }),
        ("up", "2", "0x1800", |l| if l % 8 >= 2 { l - 2 } else { -1 }),
        ("idx", "3", "0x181f", |l| l / 8 * 8 + 3),
    ];
    for (mode, b, c, source) in cases {
        let body = format!(
            "add.u32 %r1, %t, 100; shfl.sync.{mode}.b32 %r0|%p1, %r1, {b}, {c}, -1;\n\
             @!%p1 add.u32 %r0, %r0, 1000;"
        );
        let got = block(&body, 32);
        for (l, got) in got.into_iter().enumerate() {
            let s = source(l as i32);
            let want = if (0..32).contains(&s) {
                100 + s
            } else {
                1100 + l as i32
            };
            assert_eq!(got, want as u32, "shfl.{mode} {b} {c}, lane {l}");
        }
    }
}

#[test]
fn votes_and_matches() {
    let got = block(
        "and.b32 %r1, %t, 3; setp.eq.u32 %p1, %r1, 0; vote.sync.ballot.b32 %r0, %p1, -1;",
        64,
    );
    assert!(got.iter().all(|v| *v == 0x1111_1111), "{got:x?}");
    let got = block(
        "setp.lt.u32 %p1, %t, 32; vote.sync.all.pred %p2, %p1, -1; vote.sync.any.pred %p3, !%p1, -1;\n\
         vote.sync.uni.pred %p4, %p1, -1; selp.u32 %r0, 1, 0, %p2; @%p3 add.u32 %r0, %r0, 2; @%p4 add.u32 %r0, %r0, 4;",
        64,
    );
    assert_eq!(&got[..32], [5; 32]);
    assert_eq!(&got[32..], [6; 32]);
    let got = block("shr.u32 %r1, %t, 3; match.any.sync.b32 %r0, %r1, -1;", 32);
    for (l, v) in got.iter().enumerate() {
        assert_eq!(*v, 0xff << (l / 8 * 8));
    }
    let got = block(
        "cvt.u64.u32 %d0, %t; match.all.sync.b64 %r0|%p1, %d0, -1; @%p1 add.u32 %r0, %r0, 7;",
        32,
    );
    assert_eq!(got, [0; 32]);
    let got = block(
        "mov.u32 %r1, 9; match.all.sync.b32 %r0|%p1, %r1, -1; @!%p1 mov.u32 %r0, 0;",
        32,
    );
    assert_eq!(got, [u32::MAX; 32]);
}

#[test]
fn warp_reductions() {
    let cases = [
        ("add.u32", 496u32),
        ("max.s32", 31),
        ("min.u32", 0),
        ("or.b32", 31),
        ("xor.b32", 0),
        ("and.b32", 0),
    ];
    for (op, want) in cases {
        assert_eq!(
            block(&format!("redux.sync.{op} %r0, %t, -1;"), 32),
            [want; 32],
            "{op}"
        );
    }
    let half = block(
        "setp.lt.u32 %p1, %t, 16; mov.u32 %r0, 5; @%p1 redux.sync.add.s32 %r0, %t, 0xffff;",
        32,
    );
    assert_eq!(&half[..16], [120; 16]);
    assert_eq!(&half[16..], [5; 16]);
}

#[test]
fn lanes_wait_for_each_other_at_a_shuffle() {
    // The upper lanes take a longer path. The shuffle names all lanes, so the lower lanes must wait
    // for them.
    let body = "mov.u32 %r1, %t; setp.lt.u32 %p1, %t, 16; @%p1 bra JOIN;\n\
        mov.u32 %r2, 0;\n\
        LOOP: add.u32 %r2, %r2, 1; add.u32 %r1, %r1, 1000; setp.lt.u32 %p2, %r2, 50; @%p2 bra LOOP;\n\
        bra JOIN;\n\
        JOIN: shfl.sync.bfly.b32 %r0, %r1, 16, 31, -1;";
    let got = block(body, 32);
    for (l, v) in got.into_iter().enumerate() {
        let from = l ^ 16;
        assert_eq!(
            v as usize,
            if from < 16 { from } else { from + 50_000 },
            "lane {l}"
        );
    }
}

#[test]
fn exited_lanes_do_not_hold_a_shuffle() {
    // The lower lanes wait at a shuffle that names all lanes. Then the upper lanes exit.
    let body = "mov.u32 %r0, %t; setp.ge.u32 %p1, %t, 16; @%p1 bra OUT;\n\
        shfl.sync.bfly.b32 %r0, %t, 1, 31, -1; st.global.u32 [%o], %r0; ret;\n\
        OUT: exit;";
    let got = block(body, 32);
    for (l, v) in got.into_iter().enumerate() {
        let want = if l < 16 { l as u32 ^ 1 } else { 0xeeee_eeee };
        assert_eq!(v, want, "lane {l}");
    }
}

#[test]
fn lanes_may_name_different_members_at_one_instruction() {
    // Four teams: the lanes with equal remainders modulo 4. They run the same instruction at once,
    // and each team reduces and votes separately.
    let body = "and.b32 %r1, %t, 3; match.any.sync.b32 %r2, %r1, -1;\n\
        redux.sync.add.u32 %r0, %t, %r2; setp.gt.u32 %p1, %t, 20; vote.sync.ballot.b32 %r3, %p1, %r2;\n\
        shl.b32 %r0, %r0, 8; popc.b32 %r3, %r3; add.u32 %r0, %r0, %r3; bar.warp.sync %r2;";
    for (l, v) in block(body, 32).into_iter().enumerate() {
        let team = || (0..32u32).filter(|k| k % 4 == l as u32 % 4);
        let want = team().sum::<u32>() << 8 | team().filter(|k| *k > 20).count() as u32;
        assert_eq!(v, want, "lane {l}");
    }
    // Two of the teams arrive late, by another path.
    let body = "and.b32 %r1, %t, 3; match.any.sync.b32 %r2, %r1, -1; mov.u32 %r4, %t;\n\
        setp.gt.u32 %p1, %t, 17; @%p1 bra LATE;\n\
        JOIN: redux.sync.max.u32 %r0, %r4, %r2; bra END;\n\
        LATE: add.u32 %r4, %r4, 100; bra JOIN;\n\
        END:";
    for (l, v) in block(body, 32).into_iter().enumerate() {
        assert_eq!(v, 128 + l as u32 % 4, "lane {l}");
    }
}

#[test]
fn divergent_masks() {
    let got = block(
        "setp.lt.u32 %p1, %t, 10; activemask.b32 %r0; @%p1 activemask.b32 %r0;",
        32,
    );
    assert_eq!(&got[..10], [0x3ff; 10]);
    assert_eq!(&got[10..], [u32::MAX; 22]);
    let got = block(
        "mov.u32 %r1, %lanemask_lt; mov.u32 %r2, %lanemask_ge; xor.b32 %r0, %r1, %r2;",
        32,
    );
    assert_eq!(got, [u32::MAX; 32]);
}

#[test]
fn a_spin_lock_between_lanes_of_a_warp() {
    // Each lane takes the lock once. The lane that holds the lock must make progress, although the
    // spinning lanes have a lower pc.
    let body = "mov.u32 %r5, buf; setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u32 [%r5], 0; @%p1 st.shared.u32 [%r5+4], 0;\n\
        bar.sync 0;\n\
        SPIN: atom.shared.cas.b32 %r1, [%r5], 0, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra SPIN;\n\
        ld.volatile.shared.u32 %r2, [%r5+4]; add.u32 %r2, %r2, 1; st.volatile.shared.u32 [%r5+4], %r2;\n\
        membar.cta; atom.shared.exch.b32 %r3, [%r5], 0;\n\
        bar.sync 0; ld.shared.u32 %r0, [%r5+4];";
    assert_eq!(block(body, 64), [64; 64]);
}

#[test]
fn barriers_with_counts_and_reductions() {
    // Warps 0 and 1 use barrier 3 (64 threads); warps 2 and 3 never arrive there.
    let body = "mov.u32 %r0, 7; setp.ge.u32 %p1, %t, 64; @%p1 bra END;\n\
        mov.u32 %r5, buf; shl.b32 %r1, %t, 2; add.u32 %r1, %r1, %r5; st.shared.u32 [%r1], %t;\n\
        barrier.sync 3, 64;\n\
        xor.b32 %r2, %t, 63; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r5; ld.shared.u32 %r0, [%r2];\n\
        END: bar.sync 0;";
    let got = block(body, 128);
    for (t, v) in got.into_iter().enumerate() {
        assert_eq!(v, if t < 64 { 63 - t as u32 } else { 7 });
    }
    let body = "setp.lt.u32 %p1, %t, 70; bar.red.popc.u32 %r0, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, %p1;\n\
        @%p2 add.u32 %r0, %r0, 1000; @%p3 add.u32 %r0, %r0, 2000;";
    assert_eq!(block(body, 96), [2070; 96]);
    // Producer and consumer: one warp arrives, the other warp waits.
    let body = "mov.u32 %r5, buf; mov.u32 %r0, 0; setp.lt.u32 %p1, %t, 32; @%p1 bra CONSUME;\n\
        st.shared.u32 [%r5+64], 1234; bar.arrive 1, 64; bra END;\n\
        CONSUME: bar.sync 1, 64; ld.shared.u32 %r0, [%r5+64];\n\
        END: bar.sync 0;";
    let got = block(body, 64);
    assert_eq!((got[0], got[63]), (1234, 0));
}

#[test]
fn predicates_may_be_constants() {
    let body = "setp.lt.u32 %p1, %t, 3; xor.pred %p2, %p1, -1; and.pred %p1, 1, %p1; or.pred %p3, %p2, 0;\n\
        mov.u32 %r0, 0; @%p1 add.u32 %r0, %r0, 1; @%p2 add.u32 %r0, %r0, 10; @%p3 add.u32 %r0, %r0, 100;";
    let got = block(body, 32);
    for (t, v) in got.into_iter().enumerate() {
        assert_eq!(v, if t < 3 { 1 } else { 110 });
    }
}

#[test]
fn a_reduction_ends_while_other_lanes_are_in_a_function() {
    // The lower halves of both warps wait at a counted bar.red. When the barrier completes, the
    // upper halves are inside a long function, and their registers must not change.
    let text = format!(
        "{HEADER}.func (.reg .b32 %out) slow(.reg .b32 %in) {{ .reg .b32 %n, %s; .reg .pred %p; mov.u32 %n, 0; mov.u32 %s, 0;\n\
         L: add.u32 %s, %s, %in; add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 30000; @%p bra L; mov.u32 %out, %s; ret; }}\n\
         .visible .entry k(.param .u64 out) {{ .reg .b32 %t, %r<4>; .reg .b64 %o; .reg .pred %p<4>;\n\
         ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mad.wide.u32 %o, %t, 4, %o;\n\
         setp.lt.u32 %p0, %t, 10; and.b32 %r1, %t, 16; setp.ne.u32 %p1, %r1, 0; mov.u32 %r0, 0;\n\
         @%p1 bra SLOW; barrier.red.popc.u32 %r0, 1, 32, %p0; bra END;\n\
         SLOW: call (%r0), slow, (%t);\n\
         END: st.global.u32 [%o], %r0; ret; }}\n"
    );
    let bench = Bench::new();
    let (p, _) = bench.load(&text);
    let out = bench.words(&[0; 64]);
    bench
        .launch(&p, "k", [1, 1, 1], [64, 1, 1], &[out])
        .unwrap();
    for (t, v) in bench.read_words(out, 64).into_iter().enumerate() {
        let want = if t & 16 != 0 { 30_000 * t as u32 } else { 10 };
        assert_eq!(v, want, "thread {t}");
    }
}

#[test]
fn exited_threads_do_not_hold_a_barrier() {
    let body = "mov.u32 %r0, 1; setp.ge.u32 %p1, %t, 40; @%p1 exit; bar.sync 0; mov.u32 %r0, 2;";
    let got = block(body, 100);
    assert_eq!(&got[..40], [2; 40]);
    assert_eq!(&got[40..], [0xeeee_eeee; 60]);
}

#[test]
fn a_barrier_that_nobody_completes_hangs_until_stopped() {
    let bench = Bench::new();
    let (p, _) = bench.load(&wrapped(
        "setp.lt.u32 %p1, %t, 32; @%p1 bar.sync 1, 96; mov.u32 %r0, 0;",
    ));
    let out = bench.alloc(512);
    bench.turns.store(20, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        bench.launch(&p, "k", [1, 1, 1], [64, 1, 1], &[out]),
        Err(Fault::Stopped)
    );
    let (p, _) = bench.load(&wrapped("SPIN: bra SPIN;"));
    bench.turns.store(20, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        bench.launch(&p, "k", [64, 1, 1], [64, 1, 1], &[out]),
        Err(Fault::Stopped)
    );
}

#[test]
fn indexed_branches() {
    let body = "and.b32 %r1, %t, 3; T: .branchtargets A, B, C, D; brx.idx %r1, T;\n\
        A: mov.u32 %r0, 10; bra END; B: mov.u32 %r0, 11; bra END; C: mov.u32 %r0, 12; bra END; D: mov.u32 %r0, 13; END:";
    let got = block(body, 48);
    for (t, v) in got.into_iter().enumerate() {
        assert_eq!(v, 10 + t as u32 % 4);
    }
    let bench = Bench::new();
    let (p, _) = bench.load(&wrapped(
        "T: .branchtargets A; brx.idx %t, T; A: mov.u32 %r0, 0;",
    ));
    let out = bench.alloc(512);
    let got = bench.launch(&p, "k", [1, 1, 1], [32, 1, 1], &[out]);
    assert!(matches!(got, Err(Fault::IllegalInstruction(_))), "{got:?}");
}

#[test]
fn blocks_meet() {
    // Every block increments a counter and spins until all blocks have incremented it, so all
    // blocks must be resident. The test includes launches that are not cooperative, as of programs
    // that compute the grid from the occupancy, and runs with and without sleep.
    let text = format!(
        "{HEADER}.visible .entry k(.param .u64 cell) {{ .reg .b64 %c; .reg .b32 %r<4>; .reg .pred %p;\n\
         ld.param.u64 %c, [cell]; atom.global.add.u32 %r0, [%c], 1; mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ntid.x; mul.lo.u32 %r1, %r1, %r2;\n\
         SPIN: ld.acquire.gpu.global.u32 %r3, [%c]; setp.lt.u32 %p, %r3, %r1; @%p bra SPIN; ret; }}\n"
    );
    let bench = Bench::new();
    let napping = text.replace("SPIN:", "SPIN: nanosleep.u32 20;");
    for (text, cooperative) in [(&text, true), (&text, false), (&napping, false)] {
        let (p, _) = bench.load(text);
        let cell = bench.words(&[0]);
        bench
            .launch_with(&p, "k", [24, 1, 1], [64, 1, 1], &[cell], 0, cooperative)
            .unwrap();
        assert_eq!(bench.read_words(cell, 1), [24 * 64]);
    }
}

#[test]
fn blocks_that_wait_with_plain_loads_meet_as_well() {
    // The last block ends the wait of the others. The turns of the waiting blocks are short if
    // their loads bypass the first-level cache, otherwise long.
    for (load, waits) in [
        ("ld.global.u32", false),
        ("ld.volatile.global.u32", true),
        ("ld.global.cg.u32", true),
    ] {
        let text = format!(
            "{HEADER}.visible .entry k(.param .u64 cell) {{ .reg .b64 %c; .reg .b32 %r<4>; .reg .pred %p;\n\
             ld.param.u64 %c, [cell]; mov.u32 %r0, %ctaid.x; add.u32 %r0, %r0, 1; mov.u32 %r1, %nctaid.x;\n\
             setp.lt.u32 %p, %r0, %r1; @%p bra SPIN; st.global.u32 [%c], %r1;\n\
             SPIN: {load} %r3, [%c]; setp.lt.u32 %p, %r3, %r1; @%p bra SPIN; ret; }}\n"
        );
        let bench = Bench::new();
        let (p, _) = bench.load(&text);
        assert_eq!(p.funcs[0].waits, waits, "{load}");
        let cell = bench.words(&[0]);
        bench
            .launch(&p, "k", [8, 1, 1], [64, 1, 1], &[cell])
            .unwrap();
        assert_eq!(bench.read_words(cell, 1), [8], "{load}");
    }
}

#[test]
fn reserved_shared_memory_lies_beside_the_variables() {
    // Cooperative groups of several warps use this memory. A variable of another kernel may have
    // the same offset.
    let text = format!(
        "{HEADER}.visible .entry k(.param .u64 out) {{ .shared .align 8 .b8 own[256]; .reg .b64 %o; .reg .b32 %r<9>;\n\
         mov.u32 %r0, %tid.x; shl.b32 %r3, %r0, 2; mov.u32 %r1, %reserved_smem_offset_1; add.u32 %r4, %r1, %r3;\n\
         mov.u32 %r2, own; add.u32 %r2, %r2, %r3; st.shared.u32 [%r4], %r0; st.shared.u32 [%r2], 0; bar.sync 0;\n\
         xor.b32 %r3, %r3, 252; add.u32 %r1, %r1, %r3; ld.shared.u32 %r5, [%r1];\n\
         mov.u32 %r6, %reserved_smem_offset_end; mov.u32 %r7, %reserved_smem_offset_begin; sub.u32 %r6, %r6, %r7;\n\
         mov.u32 %r7, %reserved_smem_offset_cap; sub.u32 %r6, %r6, %r7; add.u32 %r5, %r5, %r6;\n\
         ld.param.u64 %o, [out]; mad.wide.u32 %o, %r0, 4, %o; st.global.u32 [%o], %r5; ret; }}\n\
         .visible .entry other() {{ .shared .b32 own[4]; .reg .b32 %r; mov.u32 %r, own; st.shared.u32 [%r], 1; ret; }}\n"
    );
    let bench = Bench::new();
    let (p, _) = bench.load(&text);
    let out = bench.words(&[0; 64]);
    bench
        .launch(&p, "k", [1, 1, 1], [64, 1, 1], &[out])
        .unwrap();
    let want: Vec<u32> = (0..64).rev().collect();
    assert_eq!(bench.read_words(out, 64), want);
    for (kernel, bytes) in [("k", 256 + 512), ("other", 16)] {
        let id = p.kernel(kernel).expect("a kernel");
        assert_eq!(p.kernel_info(id).shared_bytes, bytes, "{kernel}");
    }
}
