//! Special registers in a grid of three dimensions, and a barrier for the whole grid.

use super::{Case, HEADER, forms, run_grid};

const GRID: [u32; 3] = [2, 3, 2];
const BLOCK: [u32; 3] = [5, 4, 3];

/// A module whose kernel runs `body` and stores `%r0` of each thread at the thread's number in the
/// grid.
fn text(body: &str) -> String {
    format!(
        "{HEADER}.visible .entry k(.param .u64 out) {{\n\
         .reg .b32 %r<16>; .reg .b64 %o, %d<4>; .reg .pred %p<4>; .shared .align 16 .b8 fixed[100];\n\
         ld.param.u64 %o, [out]; mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.u32 %r1, %r1, %r2, %r3;\n\
         mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r1, %r2, %r3;\n\
         mov.u32 %r2, %ntid.z; mov.u32 %r3, %tid.z; mad.lo.u32 %r1, %r1, %r2, %r3;\n\
         mov.u32 %r2, %ntid.y; mov.u32 %r3, %tid.y; mad.lo.u32 %r1, %r1, %r2, %r3;\n\
         mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;\n\
         mov.u32 %r4, fixed; mad.wide.u32 %o, %r1, 4, %o;\n{body}\nst.global.u32 [%o], %r0; ret; }}\n"
    )
}

/// The case of one register. `want` computes its value from the thread's index in the block and the
/// block's index in the grid.
fn register(name: &str, want: impl Fn(u32, u32) -> u32 + 'static) -> Case {
    let wide = matches!(name, "%gridid" | "%pm0_64");
    let body = if wide {
        format!("mov.u64 %d0, {name}; cvt.u32.u64 %r0, %d0;")
    } else {
        format!("mov.u32 %r0, {name};")
    };
    let text = text(&body);
    let named = name.to_owned();
    let prove = move || {
        let threads = BLOCK.iter().product::<u32>();
        for (n, got) in run_grid(&text, GRID, BLOCK, false).into_iter().enumerate() {
            let (t, b) = (n as u32 % threads, n as u32 / threads);
            assert_eq!(got, want(t, b), "{named} of thread {t} of block {b}");
        }
    };
    Case {
        forms: vec![name.to_owned()],
        text: String::new(),
        prove: Box::new(prove),
    }
}

fn axis(n: u32, size: [u32; 3], axis: usize) -> u32 {
    [n % size[0], n / size[0] % size[1], n / size[0] / size[1]][axis]
}

/// A clock never goes back, and it advances during a loop.
fn clock(name: &str) -> Case {
    let body = match name {
        "%clock64" | "%globaltimer" => format!(
            "mov.u64 %d0, {name}; mov.u32 %r5, 0; L: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 3000; @%p1 bra L;\n\
             mov.u64 %d1, {name}; setp.gt.u64 %p2, %d1, %d0; selp.u32 %r0, 1, 0, %p2;"
        ),
        // The low word may wrap once between the readings; the difference is small even then.
        "%clock" | "%globaltimer_lo" => format!(
            "mov.u32 %r6, {name}; mov.u32 %r5, 0; L: add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 3000; @%p1 bra L;\n\
             mov.u32 %r7, {name}; sub.u32 %r7, %r7, %r6; setp.gt.s32 %p2, %r7, 0; selp.u32 %r0, 1, 0, %p2;"
        ),
        // The whole clock is read before and after the high word. The high word must lie between
        // their high words.
        _ => {
            let whole = if name == "%clock_hi" {
                "%clock64"
            } else {
                "%globaltimer"
            };
            format!(
                "mov.u32 %r6, {name}; mov.u64 %d0, {whole}; mov.u32 %r7, {name}; shr.u64 %d0, %d0, 32; cvt.u32.u64 %r8, %d0;\n\
                 setp.ge.u32 %p1, %r8, %r6; setp.le.and.u32 %p1, %r8, %r7, %p1; selp.u32 %r0, 1, 0, %p1;"
            )
        }
    };
    let text = text(&body);
    let named = name.to_owned();
    Case {
        forms: vec![name.to_owned()],
        text: String::new(),
        prove: Box::new(move || {
            let got = run_grid(&text, [1, 1, 1], [32, 1, 1], false);
            assert_eq!(got, [1; 32], "{named}");
        }),
    }
}

/// The barrier of `grid.sync()` in cooperative groups. It uses a word of the workspace, whose
/// address is in `%envreg1` and `%envreg2`; the top bit of the word flips when all blocks have
/// arrived.
fn grid_barrier() -> Case {
    let text = format!(
        "{HEADER}.global .u32 cells[64];\n.visible .entry k(.param .u64 out) {{\n\
         .reg .b32 %r<20>; .reg .b64 %o, %w, %c, %d<4>; .reg .pred %p<4>;\n\
         ld.param.u64 %o, [out]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %nctaid.x; mov.u32 %r2, %tid.x; mov.u32 %r14, 0;\n\
         mov.u32 %r3, %envreg1; mov.u32 %r4, %envreg2; mov.b64 %w, {{%r4, %r3}};\n\
         mov.u64 %c, cells; mad.wide.u32 %d0, %r0, 4, %c;\n\
         ROUND: setp.ne.u32 %p0, %r2, 0; @%p0 bra BLOCK;\n\
         ld.global.u32 %r5, [%d0]; add.u32 %r5, %r5, 1; st.global.u32 [%d0], %r5;\n\
         setp.eq.u32 %p1, %r0, 0; sub.u32 %r6, 0x80000001, %r1; selp.u32 %r6, %r6, 1, %p1;\n\
         fence.acq_rel.gpu; atom.add.release.gpu.u32 %r7, [%w+4], %r6;\n\
         SPIN: ld.acquire.gpu.u32 %r8, [%w+4]; xor.b32 %r9, %r8, %r7; setp.ge.s32 %p2, %r9, 0; @%p2 bra SPIN;\n\
         add.u32 %r10, %r0, 1; rem.u32 %r10, %r10, %r1; mad.wide.u32 %d1, %r10, 4, %c; ld.relaxed.gpu.u32 %r11, [%d1];\n\
         setp.gt.u32 %p3, %r11, %r14; selp.u32 %r12, 1, 0, %p3;\n\
         BLOCK: bar.sync 0; add.u32 %r14, %r14, 1; setp.lt.u32 %p1, %r14, 6; @%p1 bra ROUND;\n\
         mov.u32 %r13, %ntid.x; mad.lo.u32 %r13, %r0, %r13, %r2; mad.wide.u32 %o, %r13, 4, %o;\n\
         @%p0 mov.u32 %r12, 1; st.global.u32 [%o], %r12; ret; }}\n"
    );
    Case {
        forms: vec!["%envreg1".into(), "%envreg2".into()],
        text: String::new(),
        prove: Box::new(move || {
            let got = run_grid(&text, [12, 1, 1], [64, 1, 1], true);
            assert!(
                got.iter().all(|v| *v == 1),
                "a block saw its neighbour behind: {got:?}"
            );
        }),
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for (name, p) in forms("{%tid,%ntid,%ctaid,%nctaid}.{x,y,z}") {
        let k = ["x", "y", "z"].iter().position(|d| *d == p[1]).unwrap();
        let base = p[0].clone();
        out.push(register(&name, move |t, b| match base.as_str() {
            "%tid" => axis(t, BLOCK, k),
            "%ntid" => BLOCK[k],
            "%ctaid" => axis(b, GRID, k),
            _ => GRID[k],
        }));
    }
    out.push(register("%laneid", |t, _| t % 32));
    out.push(register("%warpid", |t, _| t / 32));
    out.push(register("%nwarpid", |_, _| 2));
    out.push(register("%nsmid", |_, _| 2));
    out.push(register("%gridid", |_, _| 0));
    out.push(register("%pm0", |_, _| 0));
    out.push(register("%pm0_64", |_, _| 0));
    out.push(register("%envreg0", |_, _| 0));
    // In launches that are not cooperative, there is no workspace.
    out.push(register("%envreg1", |_, _| 0));
    out.push(register("%envreg2", |_, _| 0));
    out.push(register("%lanemask_eq", |t, _| 1 << (t % 32)));
    out.push(register("%lanemask_lt", |t, _| (1 << (t % 32)) - 1));
    out.push(register("%lanemask_le", |t, _| u32::MAX >> (31 - t % 32)));
    out.push(register("%lanemask_gt", |t, _| {
        !(u32::MAX >> (31 - t % 32))
    }));
    out.push(register("%lanemask_ge", |t, _| u32::MAX << (t % 32)));
    out.push(register("%dynamic_smem_size", |_, _| 64));
    out.push(register("%total_smem_size", |_, _| 112 + 64));
    // The launch has two threads, and a block reports the number of its thread.
    let smid = text("mov.u32 %r5, %smid; setp.lt.u32 %p1, %r5, 2; selp.u32 %r0, 1, 0, %p1;");
    out.push(Case {
        forms: vec!["%smid".into()],
        text: String::new(),
        prove: Box::new(move || {
            let got = run_grid(&smid, GRID, BLOCK, false);
            assert!(got.iter().all(|v| *v == 1), "{got:?}");
        }),
    });
    for (name, _) in forms("%{clock,clock_hi,clock64,globaltimer,globaltimer_lo,globaltimer_hi}") {
        out.push(clock(&name));
    }
    out.push(grid_barrier());
    out
}
