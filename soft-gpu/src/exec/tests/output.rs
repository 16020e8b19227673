//! `printf` and assertions.

use super::{Bench, HEADER};
use crate::exec::contract::Fault;

fn bytes(text: &str) -> String {
    let list: Vec<String> = text.bytes().chain([0]).map(|b| b.to_string()).collect();
    format!("[{}] = {{{}}}", list.len(), list.join(", "))
}

/// Prints `format` with arguments that are laid out like C's variable arguments in device code.
fn print(format: &str, args: &[(&str, &str)]) -> Result<String, Fault> {
    let mut stores = String::new();
    let mut at = 0usize;
    for (ty, value) in args {
        let size = if ty.ends_with("64") { 8 } else { 4 };
        at = at.next_multiple_of(size);
        if *ty == "sym.64" {
            stores.push_str(&format!(
                "mov.u64 %d3, {value}; st.local.u64 [buf+{at}], %d3;\n"
            ));
        } else {
            stores.push_str(&format!("st.local.{ty} [buf+{at}], {value};\n"));
        }
        at += size;
    }
    let text = format!(
        "{HEADER}.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
         .global .align 1 .b8 fmt{}; .global .align 1 .b8 word{};\n\
         .visible .entry k() {{ .reg .b64 %d<9>; .reg .b32 %r<4>; .local .align 8 .b8 buf[128];\n{stores}\
         mov.u64 %d0, buf; cvta.local.u64 %d1, %d0; mov.u64 %d2, fmt;\n\
         {{ .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %d2; st.param.b64 [a], %d1; call.uni (r), vprintf, (f, a); ld.param.b32 %r0, [r]; }}\n\
         ret; }}",
        bytes(format),
        bytes("word")
    );
    let bench = Bench::new();
    let (p, _) = bench.load(&text);
    bench.launch(&p, "k", [1, 1, 1], [1, 1, 1], &[])?;
    Ok(bench.printed())
}

#[test]
fn every_conversion() {
    let f = |x: f64| format!("0d{:016X}", x.to_bits());
    let (pi, big, tiny) = (f(std::f64::consts::PI), f(1.5e20), f(-2.5e-7));
    type Args<'a> = Vec<(&'a str, &'a str)>;
    let cases: [(&str, Args<'_>, &str); 24] = [
        ("plain %% text\n", vec![], "plain % text\n"),
        (
            "%d|%5d|%-5d|%05d|%+d|% d",
            vec![
                ("u32", "42"),
                ("u32", "-7"),
                ("u32", "-7"),
                ("u32", "-7"),
                ("u32", "7"),
                ("u32", "7"),
            ],
            "42|   -7|-7   |-0007|+7| 7",
        ),
        (
            "%u %x %X %o %#x %#o",
            vec![
                ("u32", "-1"),
                ("u32", "255"),
                ("u32", "255"),
                ("u32", "8"),
                ("u32", "255"),
                ("u32", "8"),
            ],
            "4294967295 ff FF 10 0xff 010",
        ),
        (
            "%lld %llu %lx",
            vec![("u64", "-5"), ("u64", "-1"), ("u64", "-1")],
            "-5 18446744073709551615 ffffffffffffffff",
        ),
        (
            "%hd %hhu %hhd",
            vec![("u32", "70000"), ("u32", "511"), ("u32", "255")],
            "4464 255 -1",
        ),
        (
            "%zu %td %jd",
            vec![("u64", "9"), ("u64", "-9"), ("u64", "1")],
            "9 -9 1",
        ),
        ("%c%c", vec![("u32", "72"), ("u32", "105")], "Hi"),
        (
            "[%s|%8s|%-8s|%.2s]",
            vec![
                ("sym.64", "word"),
                ("sym.64", "word"),
                ("sym.64", "word"),
                ("sym.64", "word"),
            ],
            "[word|    word|word    |wo]",
        ),
        ("%s", vec![("u64", "0")], "(null)"),
        ("%p %p", vec![("u64", "4096"), ("u64", "0")], "0x1000 (nil)"),
        (
            "%f %.2f %8.3f|%-8.1f|%08.2f",
            vec![
                ("f64", &pi),
                ("f64", &pi),
                ("f64", &pi),
                ("f64", &pi),
                ("f64", &pi),
            ],
            "3.141593 3.14    3.142|3.1     |00003.14",
        ),
        (
            "%.0f %#.0f",
            vec![("f64", "0d4004000000000000"), ("f64", "0d4004000000000000")],
            "2 2.",
        ),
        (
            "%e %.1E %.0e",
            vec![("f64", &pi), ("f64", &big), ("f64", &tiny)],
            "3.141593e+00 1.5E+20 -2e-07",
        ),
        (
            "%g %g %g %g",
            vec![
                ("f64", &pi),
                ("f64", &big),
                ("f64", &tiny),
                ("f64", "0d40F86A0000000000"),
            ],
            "3.14159 1.5e+20 -2.5e-07 100000",
        ),
        (
            "%G %#g %.3g",
            vec![
                ("f64", &big),
                ("f64", "0d3FF0000000000000"),
                ("f64", "0d40934A4584F4C6E7"),
            ],
            "1.5E+20 1.00000 1.23e+03",
        ),
        (
            "%a %A %.1a %a",
            vec![
                ("f64", "0d3FF8000000000000"),
                ("f64", "0dC004000000000000"),
                ("f64", &pi),
                ("f64", "0d0000000000000000"),
            ],
            "0x1.8p+0 -0X1.4P+1 0x1.9p+1 0x0p+0",
        ),
        (
            "%f %F %e",
            vec![
                ("f64", "0d7FF0000000000000"),
                ("f64", "0dFFF0000000000000"),
                ("f64", "0d7FF8000000000000"),
            ],
            "inf -INF nan",
        ),
        (
            "%*d|%-*d|%.*f",
            vec![
                ("u32", "4"),
                ("u32", "9"),
                ("u32", "4"),
                ("u32", "9"),
                ("u32", "1"),
                ("f64", &pi),
            ],
            "   9|9   |3.1",
        ),
        ("%*d|", vec![("u32", "-4"), ("u32", "9")], "9   |"),
        (
            "%.3d %5.3d %.0d|",
            vec![("u32", "7"), ("u32", "7"), ("u32", "0")],
            "007   007 |",
        ),
        (
            "%d %f %d",
            vec![("u32", "1"), ("f64", &pi), ("u32", "2")],
            "1 3.141593 2",
        ),
        ("%", vec![], "%"),
        ("%5", vec![], "%5"),
        ("%y %d", vec![("u32", "3")], "%y 3"),
    ];
    for (format, args, want) in cases {
        assert_eq!(print(format, &args).as_deref(), Ok(want), "{format}");
    }
}

#[test]
fn a_string_argument_that_is_not_mapped_is_a_fault() {
    let got = print("%s", &[("u64", "4096")]);
    assert!(matches!(got, Err(Fault::IllegalAddress(_))), "{got:?}");
    let wide = print("%99999999999d", &[("u32", "1")]).unwrap();
    assert_eq!(wide.len(), 4096, "a field is at most 4096 wide");
}

#[test]
fn assertions_print_and_fault() {
    let text = format!(
        "{HEADER}.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 u, .param .b64 s);\n\
         .global .b8 m{}; .global .b8 f{}; .global .b8 u{};\n\
         .visible .entry k() {{ .reg .b64 %d<4>; .reg .b32 %t; .reg .pred %p; mov.u32 %t, %tid.x; setp.ne.u32 %p, %t, 3; @%p bra END;\n\
         mov.u64 %d0, m; mov.u64 %d1, f; mov.u64 %d2, u;\n\
         {{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; st.param.b64 [a], %d0; st.param.b64 [b], %d1; st.param.b32 [c], 12; st.param.b64 [d], %d2; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }}\n\
         END: ret; }}",
        bytes("x > 0"),
        bytes("a.cu"),
        bytes("void k()")
    );
    let bench = Bench::new();
    let (p, _) = bench.load(&text);
    let got = bench.launch(&p, "k", [1, 1, 1], [32, 1, 1], &[]);
    assert!(matches!(got, Err(Fault::Assert(_))), "{got:?}");
    assert_eq!(
        bench.printed(),
        "a.cu:12: void k(): block: [0,0,0], thread: [3,0,0] Assertion `x > 0` failed.\n"
    );
}
