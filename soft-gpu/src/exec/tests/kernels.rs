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
