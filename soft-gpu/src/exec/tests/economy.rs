//! Omitted instructions, shared columns and reused rules must not change results.

use super::{Bench, HEADER};

/// Runs `body` on 64 threads, which are two warps, and returns the result of each thread in `%r0`.
/// `%t` is the thread number, `%out` the address of the thread's result word, `%in` a table of 256
/// words with three times their index, `%n` the parameter 7.
fn results(body: &str) -> Vec<u32> {
    let bench = Bench::new();
    let (p, _) = bench.load(&text(body));
    let table: Vec<u32> = (0..256).map(|n| n * 3).collect();
    let (input, out) = (bench.words(&table), bench.words(&[0; 64]));
    bench
        .launch(&p, "k", [1, 1, 1], [64, 1, 1], &[out, input, 7])
        .expect("runs");
    bench.read_words(out, 64)
}

fn text(body: &str) -> String {
    format!(
        "{HEADER}.visible .entry k(.param .u64 out, .param .u64 in, .param .u32 n) {{\n\
         .reg .b64 %out, %in, %base, %d<9>; .reg .b32 %t, %n, %r<9>; .reg .pred %p<4>;\n\
         ld.param.u64 %base, [out]; ld.param.u64 %in, [in]; ld.param.u32 %n, [n];\n\
         mov.u32 %t, %tid.x; mad.wide.u32 %out, %t, 4, %base;\n\
         {body}\nst.global.u32 [%out], %r0;\nret;\n}}\n"
    )
}

/// Number of instructions that `body` adds to an empty body.
fn instructions(body: &str) -> usize {
    let bench = Bench::new();
    let count = |body: &str| bench.load(&text(body)).0.code.len();
    count(body) - count("")
}

#[test]
fn moves_of_constant_values_are_omitted() {
    for body in [
        "mov.u32 %r1, %ctaid.x;",
        "mov.u32 %r1, 77;",
        "ld.param.u32 %r1, [n];",
        "ld.param.u32 %r1, [n]; mov.u32 %r2, %r1; mov.u32 %r3, %r2;",
        "cvta.to.global.u64 %d1, %in; mov.u64 %d2, %d1;",
        "add.u32 %r1, %t, 1; mov.u32 %r2, %r1;",
    ] {
        let adds = body.matches("add.u32").count();
        assert_eq!(instructions(body), adds, "{body}");
    }
    for (body, count) in [
        ("mov.u32 %r1, 77; mov.u32 %r1, %t;", 2),
        ("@%p1 mov.u32 %r1, 77;", 1),
        ("L: mov.u32 %r1, %r2;", 1),
        ("mov.u32 %r2, %t; mov.u32 %r2, 5; mov.u32 %r3, %r2;", 3),
        ("ld.param.u16 %r1, [n];", 1),
    ] {
        assert_eq!(instructions(body), count, "{body}");
    }
}

#[test]
fn a_register_with_the_former_value_of_another_stays_separate() {
    // In each round, %r2 has the value that %r1 had in the previous round.
    let body = "mov.u32 %r3, 0; mov.u32 %r0, 0;\n\
                L: setp.eq.u32 %p1, %r3, 0; @%p1 bra FIRST; mad.lo.u32 %r0, %r0, 10, %r2;\n\
                FIRST: add.u32 %r1, %r3, %t; mov.u32 %r2, %r1;\n\
                add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 4; @%p2 bra L;";
    let want = |t: u32| t * 100 + (t + 1) * 10 + t + 2;
    for (t, got) in results(body).into_iter().enumerate() {
        assert_eq!(got, want(t as u32), "thread {t}");
    }
}

/// A body, and a function that computes the result of each thread.
type Expected = (&'static str, fn(u32) -> u32);

#[test]
fn a_changed_address_invalidates_its_memo() {
    let start = "mad.wide.u32 %d1, %t, 4, %in;\n";
    let cases: [Expected; 5] = [
        (
            "ld.global.u32 %r1, [%d1]; ld.global.u32 %r2, [%d1+4]; add.u32 %r0, %r1, %r2;",
            |t| 6 * t + 3,
        ),
        (
            "ld.global.u32 %r1, [%d1]; add.u64 %d1, %d1, 400; ld.global.u32 %r2, [%d1]; add.u32 %r0, %r1, %r2;",
            |t| 6 * t + 300,
        ),
        (
            // The same register with another access size: the rule that was found for words is not
            // valid.
            "ld.global.u32 %r1, [%d1]; ld.global.u8 %r2, [%d1]; add.u32 %r0, %r1, %r2;",
            |t| 3 * t + (3 * t) % 256,
        ),
        (
            "ld.global.u32 %r1, [%d1]; mul.wide.u32 %d2, %r1, 4; add.u64 %d2, %in, %d2;\n\
             ld.global.u64 %d1, [%in]; and.b64 %d1, %d1, 0; add.u64 %d1, %d1, %d2; ld.global.u32 %r0, [%d1];",
            |t| if t < 64 { 9 * t } else { 0 },
        ),
        (
            // Nine address registers in turn, but there are only eight memos.
            "add.u64 %d2, %d1, 4; add.u64 %d3, %d1, 8; add.u64 %d4, %d1, 12; add.u64 %d5, %d1, 16;\n\
             add.u64 %d6, %d1, 20; add.u64 %d7, %d1, 24; add.u64 %d8, %d1, 28; add.u64 %d0, %d1, 32;\n\
             ld.global.u32 %r0, [%d1]; ld.global.u32 %r1, [%d2]; ld.global.u32 %r2, [%d3];\n\
             ld.global.u32 %r3, [%d4]; ld.global.u32 %r4, [%d5]; ld.global.u32 %r5, [%d6];\n\
             ld.global.u32 %r6, [%d7]; ld.global.u32 %r7, [%d8]; ld.global.u32 %r8, [%d0];\n\
             ld.global.u32 %r1, [%d1+4]; ld.global.u32 %r2, [%d2+8]; ld.global.u32 %r8, [%d0+12];\n\
             add.u32 %r0, %r0, %r1; add.u32 %r0, %r0, %r2; add.u32 %r0, %r0, %r8;",
            |t| 3 * (t + t + 1 + t + 3 + t + 11),
        ),
    ];
    for (body, want) in cases {
        for (t, got) in results(&format!("{start}{body}")).into_iter().enumerate() {
            assert_eq!(got, want(t as u32), "thread {t} of\n{body}");
        }
    }
}

#[test]
fn diverged_lanes_do_not_share_memos() {
    // Odd threads take another branch. Its address register has the same memo.
    let body = "and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 1; mad.wide.u32 %d1, %t, 4, %in;\n\
                ld.global.u32 %r2, [%d1]; @%p1 bra ODD;\n\
                ld.global.u32 %r0, [%d1+4]; bra END;\n\
                ODD: mad.wide.u32 %d2, %t, 8, %in; ld.global.u32 %r0, [%d2]; ld.global.u32 %r3, [%d2+4];\n\
                add.u32 %r0, %r0, %r3;\n\
                END: ld.global.u32 %r4, [%d1+8]; bar.sync 0; ld.global.u32 %r5, [%d1+8];\n\
                add.u32 %r0, %r0, %r2; add.u32 %r0, %r0, %r4; sub.u32 %r0, %r0, %r5;";
    for (t, got) in results(body).into_iter().enumerate() {
        let t = t as u32;
        let own = if t % 2 == 1 {
            6 * t + 6 * t + 3
        } else {
            3 * (t + 1)
        };
        assert_eq!(got, own + 3 * t, "thread {t}");
    }
}

#[test]
fn registers_of_unrolled_code_share_columns() {
    let bench = Bench::new();
    let steps: String = (1..200)
        .map(|n| format!("add.u32 %s{n}, %s{}, %t; add.u64 %l{n}, %in, {n};\n", n - 1))
        .collect();
    let body = format!(
        ".reg .b32 %s<200>; .reg .b64 %l<200>;\nL: mov.u32 %s0, %t;\n{steps}mov.u32 %r0, %s199;"
    );
    let (p, _) = bench.load(&text(&body));
    let f = &p.funcs[0];
    assert!(f.n32 < 12 && f.n64 < 12, "{} and {}", f.n32, f.n64);
    for (t, got) in results(&body).into_iter().enumerate() {
        assert_eq!(got, 200 * t as u32, "thread {t}");
    }
}

#[test]
fn a_column_is_not_lent_while_it_holds_a_value() {
    let cases: [Expected; 5] = [
        (
            // %r2 shares the column of %r1. %r1 is not used after %r3 is written, but %r2 is.
            "mov.u32 %r0, 0; mov.u32 %r8, 0;\n\
             L: add.u32 %r1, %t, %r8; mov.u32 %r2, %r1; add.u32 %r3, %t, 100; mad.lo.u32 %r0, %r3, %r2, %r0;\n\
             add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 3; @%p1 bra L;",
            |t| (t + 100) * (3 * t + 3),
        ),
        (
            // %r1 is written in the first round only, but read in every round.
            "mov.u32 %r0, 0; mov.u32 %r8, 0;\n\
             L: setp.eq.u32 %p2, %r8, 0; @%p2 add.u32 %r1, %t, 7; add.u32 %r0, %r0, %r1;\n\
             add.u32 %r2, %t, %r8; add.u32 %r3, %r2, 5; mad.lo.u32 %r0, %r3, 2, %r0;\n\
             add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 3; @%p1 bra L;",
            |t| 9 * t + 57,
        ),
        (
            // From the second round on, %r2 is read before it is written in that round.
            "mov.u32 %r0, 0; mov.u32 %r2, %t; mov.u32 %r8, 0;\n\
             L: mad.lo.u32 %r0, %r0, 3, %r2; add.u32 %r3, %r0, %r8; add.u32 %r4, %r3, 1; add.u32 %r2, %r4, %t;\n\
             add.u32 %r5, %r2, 9; add.u32 %r6, %r5, 1;\n\
             add.u32 %r8, %r8, 1; setp.lt.u32 %p1, %r8, 2; @%p1 bra L;",
            |t| 3 * t + (t + 1 + t),
        ),
        (
            // Some lanes leave early. Their values must not change afterwards.
            "add.u32 %r1, %t, 1; setp.lt.u32 %p1, %t, 5;\n\
             L: @%p1 bra OUT; add.u32 %r2, %t, 2; add.u32 %r3, %r2, %r2; add.u32 %r1, %r1, %r3;\n\
             OUT: mov.u32 %r0, %r1;",
            |t| if t < 5 { t + 1 } else { 3 * t + 5 },
        ),
        (
            // %r2 and %r4 were computed before the label and are used after it.
            "add.u32 %r1, %t, 1; mov.u32 %r2, %r1; add.u32 %r3, %t, 5; add.u32 %r4, %r3, 5;\n\
             L: add.u32 %r0, %r2, %r4;",
            |t| 2 * t + 11,
        ),
    ];
    for (body, want) in cases {
        for (t, got) in results(body).into_iter().enumerate() {
            assert_eq!(got, want(t as u32), "thread {t} of\n{body}");
        }
    }
}

#[test]
fn sums_in_registers_of_other_sums_are_read_before_they_are_written() {
    let product = "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32";
    for to in [
        "%c2, %c3, %c0, %c1",
        "%c1, %c0, %c3, %c2",
        "%c3, %c0, %c2, %c1",
    ] {
        let [e, f, g, h] = to.split(", ").collect::<Vec<_>>()[..] else {
            panic!("four registers");
        };
        let body = format!(
            ".reg .b32 %a<2>, %b, %c<4>, %s<4>, %x<4>;\n\
             cvt.rn.f32.u32 %a0, %t; add.f32 %a1, %a0, 0f40000000; add.f32 %b, %a0, 0f40400000;\n\
             add.f32 %c0, %a0, 0f3F800000; add.f32 %c1, %c0, %a1; add.f32 %c2, %c1, %a1; add.f32 %c3, %c2, %a1;\n\
             {product} {{%s0, %s1, %s2, %s3}}, {{%a0, %a1}}, {{%b}}, {{%c0, %c1, %c2, %c3}};\n\
             {product} {{{to}}}, {{%a0, %a1}}, {{%b}}, {{%c0, %c1, %c2, %c3}};\n\
             xor.b32 %x0, %s0, {e}; xor.b32 %x1, %s1, {f}; xor.b32 %x2, %s2, {g}; xor.b32 %x3, %s3, {h};\n\
             or.b32 %x0, %x0, %x1; or.b32 %x2, %x2, %x3; or.b32 %r0, %x0, %x2;"
        );
        assert_eq!(results(&body), vec![0; 64], "{to}");
    }
}
