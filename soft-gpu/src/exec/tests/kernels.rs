//! Whole kernels in short hand-written PTX.

use super::{Bench, HEADER};
use crate::exec::contract::Fault;

const VECADD: &str = "
.visible .entry vecadd(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<11>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r2, [n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r1, %r3, %r4, %r5;
    setp.ge.s32 %p1, %r1, %r2;
    @%p1 bra $L__BB0_2;
    cvta.to.global.u64 %rd4, %rd1;
    mul.wide.s32 %rd5, %r1, 4;
    add.s64 %rd6, %rd4, %rd5;
    cvta.to.global.u64 %rd7, %rd2;
    add.s64 %rd8, %rd7, %rd5;
    ld.global.f32 %f1, [%rd8];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f2, %f1;
    cvta.to.global.u64 %rd9, %rd3;
    add.s64 %rd10, %rd9, %rd5;
    st.global.f32 [%rd10], %f3;
$L__BB0_2:
    ret;
}";

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|w| f32::from_bits(*w)).collect()
}

fn bits(values: impl Iterator<Item = f32>) -> Vec<u32> {
    values.map(f32::to_bits).collect()
}

#[test]
fn text_for_the_first_generation_of_devices_needs_no_modifiers() {
    let body = "
.visible .entry old(.param .u64 p)
{
    .reg .f32 %a, %b, %c;
    .reg .b64 %p;
    ld.param.u64 %p, [p];
    ld.global.f32 %a, [%p];
    ld.global.f32 %b, [%p+4];
    mad.f32 %c, %a, %b, %a;
    st.global.f32 [%p+8], %c;
    div.f32 %c, %a, %b;
    st.global.f32 [%p+12], %c;
    rcp.f32 %c, %b;
    st.global.f32 [%p+16], %c;
    add.f32 %c, %a, 0f00000001;
    st.global.f32 [%p+20], %c;
    sub.f32 %c, %c, %a;
    add.f32 %c, %c, 0f00000001;
    st.global.f32 [%p+24], %c;
    ret;
}";
    let bench = Bench::new();
    let old = format!(".version 1.4\n.target sm_13\n.address_size 64\n{body}");
    let (program, _) = bench.load(&old);
    let p = bench.words(&bits([3.0, 2.0, 0.0, 0.0, 0.0, 0.0, 7.0].into_iter()));
    bench.launch(&program, "old", [1; 3], [1; 3], &[p]).unwrap();
    let out = floats(&bench.read_words(p, 7));
    assert_eq!(
        out[2..],
        [9.0, 1.5, 0.5, 3.0, 0.0],
        "subnormals are flushed"
    );
    let new = crate::ptx::parse(format!("{HEADER}{body}").as_bytes()).unwrap();
    assert_eq!((new.virtual_arch(), new.first_generation()), (80, false));
    let options = crate::exec::contract::LoadOptions::of((8, 0));
    let refused =
        crate::exec::program::Program::load(format!("{HEADER}{body}").as_bytes(), &options);
    assert!(refused.is_err(), "newer PTX must name the rounding");
}

#[test]
fn vector_add() {
    let bench = Bench::new();
    let (p, _) = bench.load(&format!("{HEADER}{VECADD}"));
    let n = 10_007usize;
    let a = bits((0..n).map(|i| i as f32 * 0.5));
    let b = bits((0..n).map(|i| 3.0 - i as f32));
    let (pa, pb, pc) = (bench.words(&a), bench.words(&b), bench.words(&vec![0; n]));
    let stats = bench
        .launch(
            &p,
            "vecadd",
            [(n as u32).div_ceil(192), 1, 1],
            [192, 1, 1],
            &[pa, pb, pc, n as u64],
        )
        .unwrap();
    assert!(stats.warp_instructions > 313 * 10, "{stats:?}");
    let c = floats(&bench.read_words(pc, n));
    for (i, c) in c.into_iter().enumerate() {
        assert_eq!(c, i as f32 * 0.5 + (3.0 - i as f32), "element {i}");
    }
}

#[test]
fn out_of_bounds_is_a_fault() {
    let bench = Bench::new();
    let (p, _) = bench.load(&format!("{HEADER}{VECADD}"));
    let pa = bench.words(&[0; 128]);
    let run = |n: u64, c: u64| bench.launch(&p, "vecadd", [4, 1, 1], [128, 1, 1], &[pa, pa, c, n]);
    assert!(run(128, pa).is_ok());
    let beyond = run(512, pa);
    assert!(
        matches!(&beyond, Err(Fault::IllegalAddress(t)) if t.contains("vecadd")),
        "{beyond:?}"
    );
    assert!(matches!(run(32, 0), Err(Fault::IllegalAddress(_))));
    assert!(matches!(run(32, u64::MAX - 64), Err(Fault::Misaligned(_))));
    assert!(matches!(
        run(32, u64::MAX - 63),
        Err(Fault::IllegalAddress(_))
    ));
    assert!(matches!(run(32, pa + 2), Err(Fault::Misaligned(_))));
    assert!(matches!(run(32, 1 << 48), Err(Fault::IllegalAddress(_))));
}

const MATMUL: &str = "
.shared .align 4 .b8 As[1024];
.shared .align 4 .b8 Bs[1024];
.visible .entry matmul(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<3>;
    .reg .f32 %f<6>;
    .reg .b32 %r<30>;
    .reg .b64 %rd<14>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %tid.y;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ctaid.y;
    shl.b32 %r6, %r5, 4;
    add.s32 %r6, %r6, %r3;      // row
    shl.b32 %r7, %r4, 4;
    add.s32 %r7, %r7, %r2;      // column
    mov.f32 %f1, 0f00000000;
    mov.u32 %r8, 0;             // tile
    shl.b32 %r9, %r3, 6;
    mov.u32 %r10, As;
    add.s32 %r11, %r10, %r9;    // row of As
    shl.b32 %r12, %r2, 2;
    mov.u32 %r13, Bs;
    add.s32 %r14, %r13, %r12;   // column of Bs
    add.s32 %r15, %r11, %r12;   // own place in As
    add.s32 %r16, %r14, %r9;    // own place in Bs
TILE:
    add.s32 %r17, %r8, %r2;
    mad.lo.s32 %r18, %r6, %r1, %r17;
    mul.wide.s32 %rd4, %r18, 4;
    add.s64 %rd5, %rd1, %rd4;
    ld.global.f32 %f2, [%rd5];
    st.shared.f32 [%r15], %f2;
    add.s32 %r19, %r8, %r3;
    mad.lo.s32 %r20, %r19, %r1, %r7;
    mul.wide.s32 %rd6, %r20, 4;
    add.s64 %rd7, %rd2, %rd6;
    ld.global.f32 %f3, [%rd7];
    st.shared.f32 [%r16], %f3;
    bar.sync 0;
    mov.u32 %r21, 0;
    mov.u32 %r22, %r11;
    mov.u32 %r23, %r14;
K:
    ld.shared.f32 %f4, [%r22];
    ld.shared.f32 %f5, [%r23];
    fma.rn.f32 %f1, %f4, %f5, %f1;
    add.s32 %r22, %r22, 4;
    add.s32 %r23, %r23, 64;
    add.s32 %r21, %r21, 1;
    setp.lt.s32 %p1, %r21, 16;
    @%p1 bra K;
    bar.sync 0;
    add.s32 %r8, %r8, 16;
    setp.lt.s32 %p2, %r8, %r1;
    @%p2 bra TILE;
    mad.lo.s32 %r24, %r6, %r1, %r7;
    mul.wide.s32 %rd8, %r24, 4;
    add.s64 %rd9, %rd3, %rd8;
    st.global.f32 [%rd9], %f1;
    ret;
}";

#[test]
fn tiled_matrix_product() {
    let bench = Bench::new();
    let (p, _) = bench.load(&format!("{HEADER}{MATMUL}"));
    let info = p.kernel_info(p.kernel("matmul").unwrap());
    assert_eq!(info.shared_bytes, 2048);
    assert_eq!(info.params, [(0, 8), (8, 8), (16, 8), (24, 4)]);
    let n = 64usize;
    let a: Vec<f32> = (0..n * n).map(|i| ((i * 7) % 13) as f32 - 6.0).collect();
    let b: Vec<f32> = (0..n * n).map(|i| ((i * 5) % 11) as f32 * 0.25).collect();
    let pa = bench.words(&bits(a.iter().copied()));
    let pb = bench.words(&bits(b.iter().copied()));
    let pc = bench.words(&vec![0; n * n]);
    let tiles = n as u32 / 16;
    bench
        .launch(
            &p,
            "matmul",
            [tiles, tiles, 1],
            [16, 16, 1],
            &[pa, pb, pc, n as u64],
        )
        .unwrap();
    let c = floats(&bench.read_words(pc, n * n));
    for row in 0..n {
        for col in 0..n {
            let mut want = 0f32;
            for k in 0..n {
                want = a[row * n + k].mul_add(b[k * n + col], want);
            }
            assert_eq!(c[row * n + col], want, "row {row}, column {col}");
        }
    }
}
