//! printf, assert, trap.

use soft_gpu::exec::contract::Fault;

use crate::harness::load;

#[test]
fn printf_formats() {
    let module = load("output");
    module.run("print_formats", 1, 1, &[]);
    let want = [
        "plain",
        "-1 2    42|42   |00042|+42",
        "4000000000 ff FF 0xff 10",
        "-1099511627776 9223372036854775808 10000000000 -5",
        "1.500000 3.14   -2.500|2.2     |1.234568e+04 0.0001 1E+20",
        "ok text|     right|left  |cu",
        "%  99.5%",
        "     7|8   |2.5",
        "0x1234",
        "4464 4464",
        "inf -inf -0.000000 7",
        "",
    ];
    let got = module.gpu.printed();
    for (line, (got, want)) in got.split('\n').zip(want).enumerate() {
        assert_eq!(got, want, "line {line}");
    }
    assert_eq!(got.split('\n').count(), want.len());
}

#[test]
fn printf_of_many_threads_keeps_lines_whole() {
    let module = load("output");
    module.run("print_threads", 3, 40, &[]);
    let printed = module.gpu.printed();
    let mut lines: Vec<&str> = printed.lines().collect();
    let mut want: Vec<String> = (0..3)
        .flat_map(|b| {
            (0..40)
                .step_by(2)
                .map(move |t| format!("thread {t} of block {b}"))
        })
        .collect();
    lines.sort_unstable();
    want.sort_unstable();
    assert_eq!(lines, want);
}

#[test]
fn printf_returns_the_number_of_arguments() {
    let module = load("output");
    let out = module.gpu.zeroed::<i32>(1);
    module.run("print_result", 1, 1, &[&out]);
    assert_eq!(module.gpu.printed(), "1 two 3.000000\n");
    assert_eq!(module.gpu.read(out), [3]);
}

#[test]
fn printf_of_a_wild_string_reads_nothing_it_may_not() {
    let module = load("output");
    for address in [0u64, 1, 0x1234_5678, u64::MAX, 1 << 63] {
        if let Err(fault) = module.try_run("print_wild", 1, 1, &[&address]) {
            assert!(
                matches!(fault, Fault::IllegalAddress(_)),
                "{address:#x}: {fault:?}"
            );
        }
        assert!(module.gpu.printed().len() < 100);
    }
    // A string without a NUL, which reaches to the end of its allocation.
    let endless = module.gpu.upload(&[b'x'; 512]);
    if let Err(fault) = module.try_run("print_wild", 1, 1, &[&endless]) {
        assert!(matches!(fault, Fault::IllegalAddress(_)), "{fault:?}");
    }
    assert!(module.gpu.printed().len() < 2000);
}

#[test]
fn an_assertion_that_fails_ends_the_kernel_with_its_message() {
    let module = load("output");
    let mut input = vec![1i32; 64];
    let good = module.gpu.upload(&input);
    module.run("asserts", 1, 64, &[&good]);
    input[41] = -1;
    let bad = module.gpu.upload(&input);
    let fault = module.try_run("asserts", 1, 64, &[&bad]).unwrap_err();
    let Fault::Assert(text) = &fault else {
        panic!("{fault:?}")
    };
    for part in ["in[i] >= 0", "output.cu", "45", "asserts", "41"] {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

#[test]
fn trap_ends_the_kernel() {
    let module = load("output");
    let mut input = vec![1i32; 64];
    module.run("traps", 2, 32, &[&module.gpu.upload(&input)]);
    input[63] = -1;
    assert_eq!(
        module.try_run("traps", 1, 64, &[&module.gpu.upload(&input)]),
        Err(Fault::Trap)
    );
}
