//! Memory instructions, windows, atomics, calls, built-ins, and refusals of the loader.

use super::{Bench, HEADER};
use crate::exec::contract::{Fault, LoadError, LoadOptions};
use crate::exec::program::Program;

fn one_thread(body: &str, decl: &str, params: &[u64], bench: &Bench) -> Result<(), Fault> {
    let names: Vec<String> = (0..params.len())
        .map(|k| format!(".param .u64 p{k}"))
        .collect();
    let text = format!(
        "{HEADER}{decl}\n.visible .entry k({}) {{\n\
         .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .f32 %f<8>; .reg .b64 %d<16>; .reg .f64 %g<4>; .reg .pred %p<4>;\n{body}\nret;\n}}\n",
        names.join(", ")
    );
    let (p, _) = bench.load(&text);
    bench
        .launch(&p, "k", [1, 1, 1], [1, 1, 1], params)
        .map(|_| ())
}

#[test]
fn widths_signs_and_vectors() {
    let bench = Bench::new();
    let src = bench.words(&[0x8081_f2f3, 0xffff_8000, 3, 4]);
    let out = bench.alloc(128);
    let body = "ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1];\n\
        ld.global.s8 %r0, [%d0+1]; st.global.u32 [%d1], %r0;\n\
        ld.global.nc.u8 %h0, [%d0+3]; st.global.u16 [%d1+4], %h0;\n\
        ld.global.s16 %d2, [%d0+2]; st.global.u64 [%d1+8], %d2;\n\
        ld.global.v4.u32 {%r1, _, %r3, %r4}, [%d0]; st.global.v2.u32 [%d1+16], {%r4, %r3};\n\
        ld.volatile.global.v2.u8 {%h1, %h2}, [%d0+2]; st.global.v2.u8 [%d1+24], {%h2, %h1};\n\
        ld.relaxed.gpu.global.s32 %d3, [%d0+4]; st.release.sys.global.u64 [%d1+32], %d3;\n\
        ld.global.L1::no_allocate.L2::128B.v2.b64 {%d4, %d5}, [%d0]; st.global.b64 [%d1+40], %d5;";
    one_thread(body, "", &[src, out], &bench).unwrap();
    let got = bench.read(out, 48);
    let word = |at: usize| u32::from_le_bytes(got[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xffff_fff2);
    assert_eq!(word(4), 0x80);
    assert_eq!((word(8), word(12)), (0xffff_8081, 0xffff_ffff));
    assert_eq!((word(16), word(20)), (4, 3));
    assert_eq!(&got[24..26], [0x80, 0x81]);
    assert_eq!((word(32), word(36)), (0xffff_8000, 0xffff_ffff));
    assert_eq!((word(40), word(44)), (3, 4));
}

#[test]
fn generic_addresses_of_every_window() {
    let bench = Bench::new();
    let out = bench.alloc(64);
    let decl = ".shared .align 8 .u64 box; .global .u32 cell = 77; .const .u32 fixed = 88;";
    let body = ".local .align 8 .b8 frame[16];\n\
        ld.param.u64 %d0, [p0];\n\
        cvta.shared.u64 %d1, box; st.u64 [%d1], 11; ld.shared.u64 %d2, [box]; st.global.u64 [%d0], %d2;\n\
        mov.u64 %d3, frame; cvta.local.u64 %d4, %d3; st.u32 [%d4+4], 22; ld.local.u32 %r0, [frame+4]; st.global.u32 [%d0+8], %r0;\n\
        cvta.param.u64 %d5, p0; ld.u64 %d6, [%d5]; sub.u64 %d6, %d6, %d0; st.global.u64 [%d0+16], %d6;\n\
        cvta.global.u64 %d7, cell; ld.u32 %r1, [%d7]; st.u32 [%d0+24], %r1;\n\
        ld.const.u32 %r2, [fixed]; st.u32 [%d0+28], %r2;\n\
        isspacep.shared %p0, %d1; isspacep.local %p1, %d4; isspacep.global %p2, %d7; isspacep.shared %p3, %d7;\n\
        selp.u32 %r3, 1, 0, %p0; @%p1 add.u32 %r3, %r3, 2; @%p2 add.u32 %r3, %r3, 4; @%p3 add.u32 %r3, %r3, 8; st.u32 [%d0+32], %r3;\n\
        cvta.to.shared.u64 %d8, %d1; cvt.u32.u64 %r4, %d8; ld.shared.u32 %r5, [%r4]; st.u32 [%d0+36], %r5;";
    one_thread(body, decl, &[out], &bench).unwrap();
    assert_eq!(
        bench.read_words(out, 10),
        [11, 0, 22, 0, 0, 0, 77, 88, 7, 11]
    );
    // The parameter window is read-only. An access beyond the end of shared memory faults.
    let stray = |body: &str| one_thread(body, decl, &[out], &bench);
    for body in [
        "cvta.param.u64 %d5, p0; st.u64 [%d5], 1;",
        "mov.u32 %r0, box; ld.shared.u32 %r1, [%r0+1048576];",
        "mov.u32 %r0, box; st.shared.u32 [%r0+-4], 1;",
        "mov.u64 %d0, 0; atom.global.add.u32 %r0, [%d0], 1;",
        "cvta.local.u64 %d0, 0; ld.u32 %r0, [%d0+600000];",
        "mov.u64 %d0, vfn; ld.u32 %r0, [%d0];",
    ] {
        let decl = ".shared .align 8 .u64 box; .global .u32 cell = 77; .const .u32 fixed = 88; .func vfn() { ret; }";
        let got = one_thread(body, decl, &[out], &bench);
        assert!(
            matches!(got, Err(Fault::IllegalAddress(_))),
            "{body}: {got:?}"
        );
    }
    assert!(matches!(
        stray("mov.u32 %r0, box; ld.shared.u64 %d1, [%r0+4];"),
        Err(Fault::Misaligned(_))
    ));
    assert_eq!(stray("trap;"), Err(Fault::Trap));
}

#[test]
fn every_atomic() {
    let cases: [(&str, &str, u64, u64, u64); 20] = [
        ("add.u32", "b32", 5, 0xffff_ffff, 4),
        ("add.s32", "b32", 5, 7, 12),
        ("add.u64", "b64", u64::MAX, 2, 1),
        ("add.f32", "b32", 0x3f80_0000, 0x4000_0000, 0x4040_0000),
        (
            "add.f64",
            "b64",
            0x3ff0_0000_0000_0000,
            0x3ff0_0000_0000_0000,
            0x4000_0000_0000_0000,
        ),
        ("min.s32", "b32", 3, 0xffff_ffff, 0xffff_ffff),
        ("min.u32", "b32", 3, 0xffff_ffff, 3),
        ("max.s32", "b32", 3, 0xffff_ffff, 3),
        ("max.u32", "b32", 3, 0xffff_ffff, 0xffff_ffff),
        ("min.s64", "b64", 3, u64::MAX, u64::MAX),
        ("min.u64", "b64", 3, u64::MAX, 3),
        ("max.s64", "b64", 3, u64::MAX, 3),
        ("max.u64", "b64", 3, u64::MAX, u64::MAX),
        ("and.b32", "b32", 12, 10, 8),
        ("or.b64", "b64", 12, 10, 14),
        ("xor.b32", "b32", 12, 10, 6),
        ("exch.b64", "b64", 12, 10, 10),
        ("inc.u32", "b32", 9, 9, 0),
        ("inc.u32", "b32", 8, 9, 9),
        ("dec.u32", "b32", 0, 9, 9),
    ];
    for (op, ty, start, operand, want) in cases {
        for space in ["global", "shared", "generic"] {
            let bench = Bench::new();
            let out = bench.longs(&[start, 0]);
            let r = if ty == "b32" { "%r0" } else { "%d4" };
            let n = &ty[1..];
            let literal = match op {
                "add.f32" => format!("0f{operand:08X}"),
                "add.f64" => format!("0d{operand:016X}"),
                _ => operand.to_string(),
            };
            let (setup, addr, suffix) = match space {
                "global" => (String::new(), "%d0", ".global"),
                "shared" => (
                    format!("mov.u64 %d1, cell; st.shared.u64 [%d1], {start};"),
                    "%d1",
                    ".shared",
                ),
                _ => (String::new(), "%d0", ""),
            };
            let back = if space == "shared" {
                "ld.shared.u64 %d5, [%d1]; st.global.u64 [%d0], %d5;"
            } else {
                ""
            };
            let body = format!(
                "ld.param.u64 %d0, [p0]; {setup}\natom{suffix}.{op} {r}, [{addr}], {literal};\n{back} st.global.u{n} [%d0+8], {r};"
            );
            one_thread(&body, ".shared .align 8 .u64 cell;", &[out], &bench).unwrap();
            assert_eq!(bench.read_longs(out, 2), [want, start], "atom.{space}.{op}");
        }
    }
    let bench = Bench::new();
    let out = bench.words(&[5, 5, 0, 0x0001_0002]);
    let body = "ld.param.u64 %d0, [p0];\n\
        atom.acq_rel.gpu.global.cas.b32 %r0, [%d0], 5, 9; atom.global.cas.b32 %r1, [%d0+4], 4, 9; st.global.u32 [%d0+8], %r0;\n\
        red.relaxed.gpu.global.add.u32 [%d0+4], 10; mov.u16 %h0, 1; mov.u16 %h1, 7; atom.global.cas.b16 %h2, [%d0+14], %h0, %h1;";
    one_thread(body, "", &[out], &bench).unwrap();
    assert_eq!(bench.read_words(out, 4), [9, 15, 5, 0x0007_0002]);
}

#[test]
fn contended_atomics_of_many_blocks() {
    let bench = Bench::new();
    let text = format!(
        "{HEADER}.visible .entry k(.param .u64 c) {{ .reg .b64 %c; .reg .f32 %f; .reg .b32 %r;\n\
         ld.param.u64 %c, [c]; red.global.add.u32 [%c], 1; mov.f32 %f, 0f3F800000; red.global.add.f32 [%c+4], %f;\n\
         atom.global.inc.u32 %r, [%c+8], 99; red.global.max.u32 [%c+12], %r; ret; }}"
    );
    let (p, _) = bench.load(&text);
    let cell = bench.words(&[0, 0, 0, 0]);
    bench
        .launch(&p, "k", [50, 2, 1], [128, 1, 1], &[cell])
        .unwrap();
    assert_eq!(
        bench.read_words(cell, 4),
        [12800, 12800f32.to_bits(), 0, 99]
    );
}

#[test]
fn calls_arguments_and_depth() {
    let bench = Bench::new();
    let out = bench.alloc(64);
    let decl = "
        .func (.reg .b32 %ret) add3(.reg .b32 %a, .reg .b64 %b, .reg .b32 %c) { .reg .b32 %t; cvt.u32.u64 %t, %b; add.u32 %ret, %a, %t; add.u32 %ret, %ret, %c; ret; }
        .func (.param .align 4 .b8 r[8]) swap(.param .align 4 .b8 v[8]) { .reg .b32 %x, %y; ld.param.u32 %x, [v]; ld.param.u32 %y, [v+4]; st.param.u32 [r], %y; st.param.u32 [r+4], %x; ret; }
        .func (.param .b64 r) deep(.param .b64 n) { .reg .b64 %n, %m; .reg .pred %p; ld.param.u64 %n, [n]; setp.eq.u64 %p, %n, 0; @%p bra END; sub.u64 %m, %n, 1;
          { .param .b64 a; .param .b64 b; st.param.b64 [a], %m; call.uni (b), deep, (a); ld.param.b64 %m, [b]; } add.u64 %n, %n, %m; END: st.param.b64 [r], %n; ret; }";
    let body = |n: u32| {
        format!("ld.param.u64 %d0, [p0];
        call (%r0), add3, (5, 6, %r1); st.global.u32 [%d0], %r0;
        {{ .param .align 4 .b8 in[8]; .param .align 4 .b8 back[8]; st.param.u32 [in], 1; st.param.u32 [in+4], 2; call (back), swap, (in); ld.param.v2.u32 {{%r3, %r4}}, [back]; st.global.v2.u32 [%d0+8], {{%r3, %r4}}; }}
        {{ .param .b64 in; .param .b64 back; st.param.b64 [in], {n}; call (back), deep, (in); ld.param.b64 %d1, [back]; st.global.u64 [%d0+16], %d1; }}")
    };
    let go = |n| one_thread(&format!("mov.u32 %r1, 7;{}", body(n)), decl, &[out], &bench);
    go(100).unwrap();
    assert_eq!(bench.read_words(out, 6), [18, 0, 2, 1, 5050, 0]);
    assert_eq!(go(u32::MAX), Err(Fault::StackOverflow));
}

#[test]
fn calls_through_pointers() {
    let decl = "
        .func (.param .b32 r) twice(.param .b32 v) { .reg .b32 %x; ld.param.u32 %x, [v]; shl.b32 %x, %x, 1; st.param.u32 [r], %x; ret; }
        .func (.param .b32 r) square(.param .b32 v) { .reg .b32 %x; ld.param.u32 %x, [v]; mul.lo.u32 %x, %x, %x; st.param.u32 [r], %x; ret; }
        .func nothing() { ret; }
        .global .u64 table[3] = { twice, square, nothing };";
    let text = format!(
        "{HEADER}{decl}.visible .entry k(.param .u64 out, .param .u32 pick) {{ .reg .b64 %o, %t, %f; .reg .b32 %i, %v, %p;\n\
         ld.param.u64 %o, [out]; ld.param.u32 %p, [pick]; mov.u32 %i, %tid.x; mad.wide.u32 %o, %i, 4, %o; mov.u64 %t, table;\n\
         and.b32 %v, %i, 1; add.u32 %v, %v, %p; mad.wide.u32 %t, %v, 8, %t; ld.global.u64 %f, [%t];\n\
         {{ .param .b32 in; .param .b32 back; proto: .callprototype (.param .b32 _) _ (.param .b32 _); st.param.b32 [in], %i; call (back), %f, (in), proto; ld.param.b32 %v, [back]; }}\n\
         st.global.u32 [%o], %v; ret; }}"
    );
    let bench = Bench::new();
    let (p, _) = bench.load(&text);
    let out = bench.words(&[0; 40]);
    bench
        .launch(&p, "k", [1, 1, 1], [40, 1, 1], &[out, 0])
        .unwrap();
    let want: Vec<u32> = (0..40)
        .map(|i| if i % 2 == 0 { 2 * i } else { i * i })
        .collect();
    assert_eq!(bench.read_words(out, 40), want);
    // An indirect call of a function with another signature, and of an address that is not a
    // function.
    for pick in [1u64, 2] {
        let got = bench.launch(&p, "k", [1, 1, 1], [40, 1, 1], &[out, pick]);
        assert!(got.is_err(), "pick {pick}: {got:?}");
    }
}

#[test]
fn device_heap() {
    let bench = Bench::new();
    let out = bench.alloc(64);
    let decl = ".extern .func (.param .b64 r) malloc (.param .b64 n);\n.extern .func free (.param .b64 p);";
    let body = "ld.param.u64 %d0, [p0];\n\
        { .param .b64 n; .param .b64 p; st.param.b64 [n], 100; call.uni (p), malloc, (n); ld.param.b64 %d1, [p]; }\n\
        st.u32 [%d1+96], 5; ld.u32 %r0, [%d1+96]; st.global.u32 [%d0], %r0;\n\
        { .param .b64 n; .param .b64 p; st.param.b64 [n], 1000000000; call.uni (p), malloc, (n); ld.param.b64 %d2, [p]; }\n\
        st.global.u64 [%d0+8], %d2; { .param .b64 p; st.param.b64 [p], %d1; call.uni free, (p); }";
    one_thread(body, decl, &[out], &bench).unwrap();
    assert_eq!(bench.read_words(out, 4), [5, 0, 0, 0]);
    let twice = format!("{body} {{ .param .b64 p; st.param.b64 [p], %d1; call.uni free, (p); }}");
    assert!(matches!(
        one_thread(&twice, decl, &[out], &bench),
        Err(Fault::IllegalAddress(_))
    ));
}

fn refused(text: &str) -> LoadError {
    match Program::load(text.as_bytes(), &LoadOptions::of((8, 0))) {
        Err(e) => e,
        Ok(_) => panic!("loaded: {text}"),
    }
}

#[test]
fn the_loader_names_refused_instructions() {
    let kernel = |body: &str| {
        format!(
            "{HEADER}.visible .entry k() {{\n.reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<4>;\n{body}\nret; }}"
        )
    };
    let unsupported = |body: &str, word: &str| match refused(&kernel(body)) {
        LoadError::Unsupported(t) => {
            assert!(
                t.contains(word) && t.contains("line 6") && t.contains("function k"),
                "{t}"
            );
        }
        other => panic!("{body}: {other:?}"),
    };
    unsupported(
        "tex.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%d0, {%r4, %r5}];",
        "tex.2d",
    );
    unsupported("vadd4.u32.u32.u32 %r0, %r1, %r2, %r3;", "vadd4");
    unsupported("barrier.cluster.arrive;", "barrier.cluster");
    unsupported("wgmma.fence.sync.aligned;", "wgmma.fence");
    for body in [
        "add.s32 %r0, %r1;",
        "add.s32 %d0, %r1, %r2;",
        "add.s32 %r0, %r1, %nope;",
        "bra NOWHERE;",
        "ld.global.u32 %r0, %d0;",
        "setp.eq.s32 %r0, %r1, %r2;",
        "call nothing, ();",
        "@%r0 bra L; L:",
        "st.param.u32 [q], %r0;",
    ] {
        let e = refused(&kernel(body));
        assert!(matches!(e, LoadError::Syntax(_)), "{body}: {e:?}");
    }
    assert!(matches!(refused(""), LoadError::NoBinary(_)));
    assert!(matches!(refused("  \n\0"), LoadError::NoBinary(_)));
    assert!(matches!(refused("\x7fELF\u{2}"), LoadError::NoBinary(_)));
    assert!(
        matches!(refused(".version 8.0\n.target sm_90\n.address_size 64\n"), LoadError::Syntax(t) if t.contains("sm_90"))
    );
    assert!(matches!(
        refused(&kernel("").replace("%r<9>;", "%r<9>; .shared .b8 big[2000000];")),
        LoadError::Syntax(_)
    ));
    assert!(
        matches!(refused(&format!("{HEADER}.extern .func cudaLaunch();\n.visible .entry k() {{ call cudaLaunch, (); ret; }}")), LoadError::Unsupported(t) if t.contains("cudaLaunch"))
    );
}

#[test]
fn shared_variables_overlap_unless_one_kernel_reaches_both() {
    let text = format!(
        "{HEADER}.shared .align 16 .b8 a[1000];\n.shared .align 16 .b8 b[3000];\n.shared .align 4 .b8 c[8];\n.extern .shared .align 16 .b8 dyn[];\n\
         .func f() {{ .reg .b32 %r; mov.u32 %r, c; ret; }}\n\
         .visible .entry one(.param .u64 o) {{ .reg .b32 %r<4>; .reg .b64 %o; mov.u32 %r1, a; mov.u32 %r2, dyn; call f, (); ld.param.u64 %o, [o]; st.global.u32 [%o], %r2; ret; }}\n\
         .visible .entry two() {{ .reg .b32 %r; mov.u32 %r, b; ret; }}\n.visible .entry three() {{ ret; }}"
    );
    let bench = Bench::new();
    let (p, _) = bench.load(&text);
    let bytes = |k: &str| p.kernel_info(p.kernel(k).unwrap()).shared_bytes;
    assert_eq!(
        (bytes("one"), bytes("two"), bytes("three")),
        (1008, 3000, 0)
    );
    let out = bench.words(&[0]);
    bench
        .launch_with(&p, "one", [1, 1, 1], [1, 1, 1], &[out], 512, false)
        .unwrap();
    assert_eq!(
        bench.read_words(out, 1),
        [1008],
        "dynamic memory follows the static"
    );
}
