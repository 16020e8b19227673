//! Branches, calls, barriers, fences.

use super::{Case, HEADER, block, forms, whole, wrapped};
use crate::exec::contract::Fault;

/// A case in which the form must end the kernel with `fault`.
fn traps(form: &str, operands: &str, fault: Fault) -> Case {
    let text = wrapped(
        "",
        "",
        &format!("setp.eq.u32 %p1, %t, 40; @%p1 {form} {operands}; mov.u32 %r0, 0;"),
    );
    let prove = move || {
        let bench = super::Bench::new();
        let (p, _) = bench.load(&text);
        let out = bench.words(&[0; 64]);
        let end = |n| bench.launch(&p, "k", [1, 1, 1], [n, 1, 1], &[out]);
        assert_eq!(end(64), Err(fault.clone()), "{text}");
        assert!(end(40).is_ok(), "a trap that no thread reaches");
    };
    Case {
        forms: vec![form.to_owned()],
        text: String::new(),
        prove: Box::new(prove),
    }
}

fn branches() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, _) in forms("bra{,.uni}") {
        // Loops of different lengths, forward jumps over code, and a branch that is never taken.
        let body = format!(
            "mov.u32 %r0, 0; mov.u32 %r1, 0; L: add.u32 %r1, %r1, 1; add.u32 %r0, %r0, %r1;\n\
             setp.le.u32 %p1, %r1, %t; @%p1 bra L; {form} OVER; mov.u32 %r0, 99; OVER:\n\
             setp.gt.u32 %p2, %t, 1000; @%p2 {form} L;"
        );
        out.push(block(&[&form], &body, 64, |t| (t + 1) * (t + 2) / 2));
    }
    for (form, _) in forms("brx.idx{,.uni}") {
        let body = format!(
            "and.b32 %r1, %t, 3; T: .branchtargets A, B, C, D; mov.u32 %r0, 1; {form} %r1, T;\n\
             A: mov.u32 %r0, 10; bra E; B: mov.u32 %r0, 11; bra E; C: mov.u32 %r0, 12; bra E; D: add.u32 %r0, %r0, 12; E:"
        );
        out.push(block(&[&form], &body, 48, |t| 10 + t % 4));
    }
    let body = "mov.u32 %r0, 1; setp.lt.u32 %p1, %t, 10; st.global.u32 [%o], 5; @%p1 exit; mov.u32 %r0, 2;";
    out.push(block(&["exit"], body, 40, |t| if t < 10 { 5 } else { 2 }));
    out
}

fn calls() -> Vec<Case> {
    let mut out = Vec::new();
    for (call, ret) in [("call", "ret"), ("call.uni", "ret.uni")] {
        // Recursion to a depth that depends on the lane, an early return, a guarded call, and a
        // call through a pointer with a prototype.
        let functions = format!(
            ".func (.param .b32 r) sum(.param .b32 n) {{ .reg .b32 %n, %m; .reg .pred %p; ld.param.u32 %n, [n];\n\
             st.param.u32 [r], 0; setp.eq.u32 %p, %n, 0; @%p {ret}; sub.u32 %m, %n, 1;\n\
             {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %m; {call} (b), sum, (a); ld.param.b32 %m, [b]; }}\n\
             add.u32 %n, %n, %m; st.param.u32 [r], %n; {ret}; }}\n\
             .func (.reg .b32 %r) triple(.reg .b32 %v) {{ mul.lo.u32 %r, %v, 3; {ret}; }}\n\
             .func (.reg .b32 %r) negate(.reg .b32 %v) {{ neg.s32 %r, %v; {ret}; }}"
        );
        let body = format!(
            "{{ .param .b32 a; .param .b32 b; st.param.b32 [a], %t; {call} (b), sum, (a); ld.param.b32 %r0, [b]; }}\n\
             setp.gt.u32 %p1, %t, 5; @%p1 {call} (%r0), triple, (%r0);\n\
             and.b32 %r1, %t, 1; setp.eq.u32 %p2, %r1, 0; mov.u64 %d1, triple; mov.u64 %d2, negate; selp.b64 %d1, %d1, %d2, %p2;\n\
             proto: .callprototype (.reg .b32 _) _ (.reg .b32 _); {call} (%r0), %d1, (%r0), proto;"
        );
        out.push(whole(
            &[call, ret],
            wrapped(&functions, "", &body),
            40,
            |t| {
                let sum = t * (t + 1) / 2;
                let v = if t > 5 { 3 * sum } else { sum };
                if t % 2 == 0 { 3 * v } else { v.wrapping_neg() }
            },
        ));
    }
    out
}

/// Threads write, wait and read: at a barrier for all threads, and at a barrier for the first 64 of
/// 128 threads.
fn meeting(form: &str) -> [Case; 2] {
    let body = |who: &str, barrier: &str| {
        format!(
            "mov.u32 %r0, 7; {who} mov.u32 %r5, buf; shl.b32 %r1, %t, 2; add.u32 %r1, %r1, %r5; st.shared.u32 [%r1], %t;\n\
             {barrier}; xor.b32 %r2, %t, 63; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r5; ld.shared.u32 %r0, [%r2]; END:"
        )
    };
    let all = body("", &format!("{form} 0"));
    let some = body(
        "setp.ge.u32 %p1, %t, 64; @%p1 bra END; mov.u32 %r6, 3; mov.u32 %r7, 64;",
        &format!("{form} %r6, %r7"),
    );
    [
        block(&[form], &all, 128, |t| t ^ 63),
        block(&[form], &some, 128, |t| if t < 64 { t ^ 63 } else { 7 }),
    ]
}

/// One warp arrives without waiting; the other warp waits for it.
fn handing_over(form: &str) -> Case {
    let body = format!(
        "mov.u32 %r5, buf; mov.u32 %r0, 0; setp.lt.u32 %p1, %t, 32; @%p1 bra CONSUME;\n\
         st.shared.u32 [%r5+64], 1234; {form} 1, 64; bra END;\n\
         CONSUME: bar.sync 1, 64; ld.shared.u32 %r0, [%r5+64]; END: bar.sync 0;"
    );
    block(&[form], &body, 64, |t| if t < 32 { 1234 } else { 0 })
}

/// Reductions at a barrier, with a predicate that some, all or no threads satisfy; also for 64
/// threads only.
fn reducing(form: &str) -> Vec<Case> {
    let popc = form.contains("popc");
    let and = form.contains(".and");
    let mut out = Vec::new();
    for (limit, negated) in [(70u32, false), (200, false), (0, false), (30, true)] {
        for threads in [96u32, 64] {
            let count = if threads == 64 { ", 64" } else { "" };
            let not = if negated { "!" } else { "" };
            let read = if popc {
                format!("{form} %r0, 2{count}, {not}%p1;")
            } else {
                format!("{form} %p2, 2{count}, {not}%p1; selp.u32 %r0, 1, 0, %p2;")
            };
            let skip = format!("mov.u32 %r0, 77; setp.ge.u32 %p3, %t, {threads}; @%p3 bra END;");
            let body = format!("{skip} setp.lt.u32 %p1, %t, {limit}; {read} END:");
            out.push(block(&[form], &body, 96, move |t| {
                if t >= threads {
                    return 77;
                }
                let yes = (0..threads).filter(|t| (*t < limit) != negated).count() as u32;
                match (popc, and) {
                    (true, _) => yes,
                    (_, true) => u32::from(yes == threads),
                    _ => u32::from(yes != 0),
                }
            }));
        }
    }
    out
}

fn barriers() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, _) in forms(
        "{bar.sync,bar.cta.sync,barrier.sync,barrier.sync.aligned,barrier.cta.sync,barrier.cta.sync.aligned}",
    ) {
        out.extend(meeting(&form));
    }
    for (form, _) in forms(
        "{bar.arrive,bar.cta.arrive,barrier.arrive,barrier.arrive.aligned,barrier.cta.arrive,barrier.cta.arrive.aligned}",
    ) {
        out.push(handing_over(&form));
    }
    for base in ["bar", "bar.cta", "barrier", "barrier.cta"] {
        let aligned = if base.starts_with("barrier") {
            "{,.aligned}"
        } else {
            ""
        };
        for (form, _) in forms(&format!("{base}.red.popc{aligned}.u32")) {
            out.extend(reducing(&form));
        }
        for (form, _) in forms(&format!("{base}.red.{{and,or}}{aligned}.pred")) {
            out.extend(reducing(&form));
        }
    }
    out
}

/// Instructions that order memory accesses or wait, without a visible effect.
fn quiet() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, _) in forms("{membar.cta,membar.gl,membar.sys,membar.proxy.alias,fence.proxy.alias}")
        .into_iter()
        .chain(forms("fence.proxy.async{,.global,.shared::cta}"))
        .chain(forms("griddepcontrol.{wait,launch_dependents}"))
        .chain(forms(
            "fence{,.sc,.acq_rel,.acquire,.release}.{cta,cluster,gpu,sys}",
        ))
    {
        let body =
            format!("mov.u32 %r1, buf; st.shared.u32 [%r1], 5; {form}; ld.shared.u32 %r0, [%r1];");
        out.push(block(&[&form], &body, 32, |_| 5));
    }
    for (form, operand) in [
        ("nanosleep.u32", "100"),
        ("pmevent", "7"),
        ("pmevent.mask", "0xff"),
    ] {
        let body = format!("mov.u32 %r0, 5; {form} {operand}; add.u32 %r0, %r0, %t;");
        out.push(block(&[form], &body, 40, |t| 5 + t));
    }
    out
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = branches();
    out.extend(calls());
    out.extend(barriers());
    out.extend(quiet());
    out.extend(["trap", "brkpt"].map(|form| traps(form, "", Fault::Trap)));
    for (form, p) in forms("tex.1d.v4.{u32,s32,f32}.s32") {
        let to = if p.iter().any(|m| m == "f32") {
            "%f"
        } else {
            "%r"
        };
        let operands = format!("{{{to}0, {to}1, {to}2, {to}3}}, [%d0, {{%r4}}]");
        let fault = Fault::IllegalInstruction("tex: textures are not served".into());
        out.push(traps(&form, &operands, fault));
    }
    out
}

/// Directives in a body, which are not instructions.
#[test]
fn pragmas_are_skipped() {
    let text = format!(
        "{HEADER}.visible .entry k(.param .u64 out) {{ .reg .b64 %o; .pragma \"nounroll\"; ld.param.u64 %o, [out];\n\
         .pragma \"used_bytes_mask 0xff\"; st.global.u32 [%o], 3; ret; }}"
    );
    assert_eq!(super::run(&text, 1), [3]);
}
