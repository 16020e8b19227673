//! Calls of the device runtime, for a device that has none, and their share of the turn.
//! `tests/driver_nested.rs` tests launches.

use super::{Bench, HEADER};
use crate::exec::runtime::call::COST;

/// Runs `count` calls in each lane of a warp; returns the last result and the instructions.
fn called(declaration: &str, call: &str, count: u32) -> (u32, u64) {
    let text = format!(
        "{HEADER}{declaration}\n.visible .entry k(.param .u64 out) {{ .reg .b64 %o, %q; .reg .b32 %r, %n; .reg .pred %p;\n\
         ld.param.u64 %o, [out]; mov.u32 %n, {count}; mov.u32 %r, 0;\n\
         L: {call} sub.u32 %n, %n, 1; setp.ne.u32 %p, %n, 0; @%p bra L;\n\
         st.global.u32 [%o], %r; ret; }}\n"
    );
    let bench = Bench::new();
    let (program, _) = bench.load(&text);
    let out = bench.words(&[7]);
    let ran = bench.launch(&program, "k", [1, 1, 1], [32, 1, 1], &[out]);
    let stats = ran.expect("no fault");
    (bench.read_words(out, 1)[0], stats.warp_instructions)
}

#[test]
fn calls_count_for_the_work_of_the_driver_and_end_the_slice() {
    let declaration = ".extern .func (.param .b32 r) __cudaCDP2GetDevice(.param .b64 p);";
    let call = "call (%r), __cudaCDP2GetDevice, (%o);";
    let (result, one) = called(declaration, call, 1);
    assert_eq!(
        result, 801,
        "cudaErrorNotSupported: the device has no runtime"
    );
    let (_, many) = called(declaration, call, 101);
    assert!(many - one >= 100 * 32 * COST, "{one} and {many}");
    let declaration = ".extern .func (.param .b64 r) malloc(.param .b64 n);";
    let call = "call (%q), malloc, (8);";
    let (one, many) = (called(declaration, call, 1), called(declaration, call, 101));
    assert!(many.1 - one.1 >= 100 * 32 * COST, "{one:?} and {many:?}");
}

#[test]
fn a_call_with_other_arguments_is_refused_at_the_load() {
    let load = |arguments: &str, call: &str| {
        let text = format!(
            "{HEADER}.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2({arguments});\n\
             .visible .entry k() {{ .reg .b32 %r; .reg .b64 %q; .param .align 4 .b8 s[4];\n\
             call (%r), __cudaCDP2LaunchDeviceV2, ({call}); ret; }}\n"
        );
        crate::exec::program::Program::load(
            text.as_bytes(),
            &crate::exec::contract::LoadOptions::of((8, 0)),
        )
    };
    assert!(load(".param .b64 a, .param .b64 s", "%q, %q").is_ok());
    let short = load(".param .b64 a", "%q").expect_err("one argument");
    assert!(
        format!("{short:?}").contains("takes 2 arguments"),
        "{short:?}"
    );
    let small = load(".param .b64 a, .param .align 4 .b8 s[4]", "%q, s");
    let small = small.expect_err("four bytes");
    assert!(format!("{small:?}").contains("has 8 bytes"), "{small:?}");
}
