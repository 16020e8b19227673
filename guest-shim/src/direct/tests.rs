use super::*;

/// Whether a kernel with these instructions is direct.
fn direct(body: &str) -> bool {
    let text = format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n\
         .visible .entry kernel(.param .u64 a, .param .u32 n)\n.maxntid 128, 1, 1\n{{\n{body}\nret;\n}}\n"
    );
    kernels([&text[..]]).contains("kernel")
}

#[test]
fn kernels_that_use_their_parameters_alone_are_direct() {
    assert!(direct(""));
    assert!(direct(
        "ld.param.u64 %rd1, [a]; cvta.to.global.u64 %rd2, %rd1; mov.u32 %r1, %tid.x;
         mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd2, %rd3;
         $L__BB0_1: ld.global.f32 %f1, [%rd4+4]; add.f32 %f2, %f1, %f1;
         @%p1 st.global.f32 [%rd4], %f2; @!%p1 bra $L__BB0_1;"
    ));
    // An index that was loaded.
    assert!(direct(
        "ld.param.u64 p, [a]; ld.global.u32 i, [p]; mul.wide.s32 o, i, 8; add.s64 q, p, o;
         cvt.s64.s32 k, i; shl.b64 l, k, 3; add.s64 r, p, l; st.global.u64 [q], p; ld.global.u64 v, [r];"
    ));
    // An address in shared memory that was loaded from shared memory.
    assert!(direct(
        ".shared .align 8 .b8 tile[64]; mov.u32 %r1, tile; ld.shared.u64 %rd1, [%r1]; ld.shared.u64 %rd2, [%rd1];"
    ));
}

#[test]
fn kernels_that_follow_what_they_load_are_not() {
    assert!(!direct(
        "ld.param.u64 p, [a]; ld.global.u64 q, [p]; ld.global.u32 v, [q];"
    ));
    assert!(!direct(
        "ld.param.u64 p, [a]; ld.global.u64 q, [p]; st.global.u32 [q+8], 1;"
    ));
    assert!(!direct(
        "ld.param.u64 p, [a]; ld.global.v2.b64 {q, r}, [p]; red.global.add.u32 [r], 1;"
    ));
    // That the value was loaded is known only after the second pass over the loop.
    assert!(!direct(
        "ld.param.u64 p, [a]; L: ld.global.u32 v, [p]; mov.b64 p, q; ld.u64 q, [p]; bra L;"
    ));
    // The address is assembled from two halves.
    assert!(!direct(
        "ld.global.u32 l, [a]; ld.global.u32 h, [a+4]; mov.b64 p, {l, h}; st.u32 [p], 1;"
    ));
    assert!(!direct(
        "ld.global.u32 h, [a]; cvt.u64.u32 p, h; shl.b64 p, p, 32; or.b64 q, p, p; st.u32 [q], 1;"
    ));
    assert!(!direct(
        "ld.global.u32 h, [a]; cvt.u64.u32 p, h; mul.lo.s64 p, p, 4294967296; st.u32 [p], 1;"
    ));
    // Loaded through shared memory, by an atomic exchange, and after a `.loc` line.
    assert!(!direct("ld.shared.u64 q, [a]; st.global.u32 [q], 1;"));
    assert!(!direct(
        "atom.global.exch.b64 q, [a], 0; st.global.u32 [q], 1;"
    ));
    assert!(!direct(
        ".loc 1 2 3\nld.global.u64 q, [a];\n.loc 1 3 3\nst.global.u32 [q], 1;"
    ));
    // Called functions and textures are not analysed.
    assert!(!direct("call.uni helper, ();"));
    assert!(!direct("tex.1d.v4.f32.s32 {a, b, c, d}, [t, {i}];"));
}

/// Kernels from nvcc and Triton: the fixtures of soft-gpu that follow no pointers.
#[test]
fn kernels_of_compilers_are_direct() {
    let demo = [
        include_str!("../../../soft-gpu/fixtures/demo/vecadd.ptx"),
        include_str!("../../../soft-gpu/fixtures/demo/matmul.ptx"),
        include_str!("../../../soft-gpu/fixtures/demo/nbody.ptx"),
        include_str!("../../../soft-gpu/fixtures/demo/reduce.ptx"),
        include_str!("../../../soft-gpu/fixtures/demo/saxpy.ptx"),
        include_str!("../../../soft-gpu/fixtures/demo/mandelbrot.ptx"),
        include_str!("../../../soft-gpu/fixtures/demo/null.ptx"),
        include_str!("../../../soft-gpu/fixtures/triton/add_fp32.ptx"),
        include_str!("../../../soft-gpu/fixtures/triton/axpy_bf16.ptx"),
        include_str!("../../../soft-gpu/fixtures/triton/softmax_fp32.ptx"),
        include_str!("../../../soft-gpu/fixtures/triton/matmul_fp16.ptx"),
        include_str!("../../../soft-gpu/fixtures/triton/matmul_int8.ptx"),
        include_str!("../../../soft-gpu/fixtures/triton/matmul_tf32.ptx"),
        include_str!("../../../soft-gpu/fixtures/wmma.ptx"),
        include_str!("../../../soft-gpu/fixtures/integer.ptx"),
    ];
    for text in demo {
        let all = text.matches(".entry").count();
        assert_eq!(kernels([text]).len(), all, "{text}");
    }
}

/// Whether a kernel with these instructions is direct. Before them, the kernel loads 64-bit and
/// 32-bit values, which must not become addresses.
fn after_loads(body: &str) -> bool {
    direct(&format!(
        ".reg .b64 p, q, r, s; .reg .b32 l, h;
         ld.param.u64 p, [a]; ld.global.u64 v, [p]; ld.global.u32 l, [p]; ld.global.u32 h, [p+4];
         cvt.u64.u32 w, h; {body}"
    ))
}

#[test]
fn a_loaded_address_is_seen_however_it_is_written() {
    // For comparison: the same instruction on a parameter is direct.
    assert!(after_loads("st.global.u32[p],1;"));
    for body in [
        "st.global.u32[v],1;",
        "st.global.u32 [v],1;",
        "st.global.u32\t[ v + 0 ] , 1;",
        "@q st.global.u32[v],1;",
        "@ !q st.global.u32[v],1;",
        "L:st.global.u32[v],1;",
        "{st.global.u32[v],1;}",
        ".loc 1 2 3 st.global.u32[v],1;",
        ".loc 1 2 3, function_name f+4, inlined_at 1 2 3 st.global.u32 [v], 1;",
        "st /**/ .global.u32 [v], 1;",
        "st .global .u32 [v], 1;",
        "atom.global.add.u32 x,[v],1;",
        "red.global.add.u32[v],1;",
        "prefetch.global.L2 [v];",
        "cp.async.ca.shared.global [s], [v], 16;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [v], 16, [s];",
        "ldmatrix.sync.aligned.m8n8.x1.b16 {x}, [v];",
        "wmma.store.d.sync.aligned.row.m16n16k16.f32 [v], {x}, l;",
        "ld.global.nc.v2.u32 {x, y}, [v+8];",
        "mov.b64 q, v; st.u32 [q], 1;",
        "cvta.to.global.u64 q, v; st.global.u32 [q], 1;",
        "selp.b64 q, p, v, c; st.u32 [q], 1;",
        "add.s64 q, p, v; st.u32 [q], 1;",
        "and.b64 q, v, -4; st.u32 [q], 1;",
        "st.shared.u64 [s], p; ld.shared.u64 q, [s]; st.u32 [q], 1;",
        "ld.local.u64 q, [s]; st.u32 [q], 1;",
        "ld.const.u64 q, [table]; st.u32 [q], 1;",
        "atom.shared.exch.b64 q, [s], 0; st.u32 [q], 1;",
    ] {
        assert!(!after_loads(body), "{body}");
    }
}

#[test]
fn numbers_that_may_be_addresses_are_no_offsets() {
    for body in [
        "mul.wide.u32 q, h, 4;",
        "mul.wide.s32 q, h, 8192;",
        "mad.wide.u32 q, h, 4, 12;",
        "mul.lo.s64 q, w, 12;",
        "shl.b64 q, w, 13;",
        "cvt.s64.s32 s, h; shl.b64 q, s, 2;",
    ] {
        let body = format!("{body} add.s64 r, p, q; st.u32 [r], 1;");
        assert!(after_loads(&body), "{body}");
    }
    for body in [
        "mul.wide.u32 s, h, 2147483648; shl.b64 q, s, 1;",
        "mul.wide.u32 s, h, 8192; shl.b64 q, s, 1;",
        "mul.wide.u32 q, h, 8193;",
        "mul.wide.u32 q, h, l;",
        "mul.wide.u32 q, h, 0X4;",
        "mul.wide.u32 q, h, 0x4;",
        "mul.wide.u32 q, h, 0b100;",
        "mul.wide.u32 q, h, 010;",
        "mul.wide.u32 q, h, (1<<2);",
        "mul.wide.u32 q, h, 4U;",
        "mad.wide.u32 q, h, 65536, w;",
        "mul.lo.s64 q, w, (1<<32);",
        "mul.lo.s64 q, w, 0X100000000;",
        "mul.lo.s64 q, w, 4294967296;",
        "mov.u64 r, 4294967296; mul.lo.s64 q, w, r;",
        "mad.lo.s64 q, w, 4294967296, w;",
        "shl.b64 s, w, 8; shl.b64 t, s, 8; shl.b64 u, t, 8; shl.b64 q, u, 8;",
        "L: shl.b64 w, w, 8; mov.b64 q, w; bra L;",
        "add.s64 s, w, w; mov.b64 q, s;",
        "L: add.s64 w, w, w; mov.b64 q, w; bra L;",
        "shl.b64 q, w, 14;",
        "shl.b64 q, w, l;",
        "mov.b64 q, {l, h};",
        "mov.b64 {q}, v;",
        "mov.b64 {l, x}, v; mov.b64 q, {l, x};",
        "or.b64 q, w, w;",
        "xor.b64 q, w, w;",
        "bfi.b64 q, w, w, 32, 32;",
        "not.b64 q, w;",
        "neg.s64 q, w;",
        "and.b64 q, w, w;",
        "cvt.rn.f32.u32 f, h; cvt.rzi.u64.f32 q, f;",
        "add.f64 q, w, w;",
        "mov.b64 q, %clock64;",
        "mov.b64 q, %unknown;",
        "add.s64 q, w, 52776558133248;",
        "add.s64 q, w, -9223372036854775808;",
        "mul.wide.s32 q, h, -2147483648;",
        "add.cc.u64 q, w, 1;",
        "popc.b64 q, v;",
        "vadd.u32.u32.u32 q, h, h, h;",
    ] {
        let body = format!("{body} add.s64 r, p, q; st.u32 [r], 1;");
        assert!(!after_loads(&body), "{body}");
    }
}

/// The base of an address is one whole word of the parameters, or a variable.
#[test]
fn what_is_no_word_of_the_parameters_is_no_address() {
    let of = |params: &str, body: &str| {
        let text = format!(".entry kernel({params}) {{ {body} st.global.u32 [q], 1; ret; }}");
        kernels([&text[..]]).contains("kernel")
    };
    let structure = ".param .align 8 .b8 a[16], .param .u64 b";
    assert!(of(structure, "ld.param.u64 q, [a+8];"));
    assert!(of(structure, "ld.param.v2.u64 {p, q}, [a];"));
    assert!(of(
        structure,
        "ld.param.u64 p, [a]; ld.param.u32 n, [a+12]; mul.wide.s32 o, n, 4; add.s64 q, o, p;"
    ));
    assert!(of(
        ".param .u64 .ptr .global .align 1 a",
        "ld.param.b64 q, [a];"
    ));
    assert!(of(
        structure,
        ".shared .align 4 .b8 tile[64]; mov.u64 q, tile;"
    ));
    for (params, body) in [
        (structure, "ld.param.u64 q, [a+4];"),
        (structure, "ld.param.u64 q, [a+16];"),
        (structure, "ld.param.v2.u64 {p, q}, [a+8];"),
        (structure, "ld.param.u64 q, [a+0x8];"),
        (structure, "ld.param.u64 q, [a+9223372036854775800];"),
        (structure, "ld.param.u64 q, [a+-8];"),
        (structure, "mov.b64 p, a; ld.param.u64 q, [p];"),
        (structure, ".reg .b64 a; ld.param.u64 q, [a];"),
        (structure, "mov.b64 a, b; ld.param.u64 q, [a];"),
        (structure, "ld.param::func.u64 q, [a];"),
        (
            structure,
            ".param .b64 a; st.param.b64 [a], 1; ld.param.u64 q, [a];",
        ),
        (
            structure,
            "ld.param.u32 l, [a]; ld.param.u32 h, [a+4]; mov.b64 q, {l, h};",
        ),
        (
            structure,
            "ld.param.u64 p, [a]; ld.param.u64 r, [b]; sub.s64 q, p, r;",
        ),
        (structure, "ld.param.u64 p, [a]; xor.b64 q, p, 1;"),
        (structure, "ld.param.u64 p, [a]; and.b64 q, p, -16;"),
        (
            structure,
            "ld.param.u64 p, [a]; add.s64 q, p, 17592186044416;",
        ),
        (
            structure,
            "ld.param.u64 p, [a]; @c mov.b64 q, p; @!c mov.b64 q, 64;",
        ),
        (structure, "mov.u64 q, 4096;"),
        (structure, "add.s64 q, q, 4;"),
        (structure, "mov.u64 q, WARP_SZ;"),
        (structure, ".reg .b64 q;"),
        (".param .align 4 .b8 a[16]", "ld.param.u64 q, [a+8];"),
        (".param .b8 a[16]", "ld.param.u64 q, [a+8];"),
        (".param .u32 a, .param .u32 b", "ld.param.u64 q, [a];"),
    ] {
        assert!(!of(params, body), "{params}: {body}");
    }
    assert!(!direct(
        "ld.param.u64 p, [a]; st.global.u32 [p+17592186044416], 1;"
    ));
    assert!(!direct("st.global.u32 [52776558133248], 1;"));
}

#[test]
fn what_is_not_known_counts_as_anything() {
    for body in [
        "call (x), helper, (y);",
        "tex.2d.v4.f32.f32 {a, b, c, d}, [t, {x, y}];",
        "suld.b.1d.b32 {x}, [t, {y}];",
        "mapa.u64 x, y, 1;",
        "multimem.red.global.add.u32 [a], 1;",
        "frobnicate.u32 x, y;",
        "ST.global.u32 [x], 1;",
        "add.s32 x, (1+2), 3;",
        "add.s32 x, v.x, 3;",
        "add.s32 x, y+3, 3;",
        "add.s32 x,, 3;",
        "mov.b64 {{x}}, y;",
        "ld.u32 x, y;",
        "mov.u32 [x], 1;",
        "ld.shared.global.u32 x, [y];",
        "ld.shared.u32 x, [y;",
        ".unknown 1;",
        ".pragma \"a\" st.global.u32 [x], 1;",
        ".loc 1 2;",
        ".local .b8 x[4] = {1};",
        "#define st ld\n",
        "@@DWARF .byte 1\n",
        "\u{e9};",
        "\"open",
        "{",
    ] {
        assert!(!direct(body), "{body}");
    }
    for body in [
        ".pragma \"nounroll\";",
        ".pragma \"}\"; .pragma \"{\", \"; // /*\";",
        "/* } */ // }\n",
        "L: .branchtargets A, B; brx.idx x, L;",
        "bar.sync 0; membar.gl; exit;",
    ] {
        assert!(direct(body), "{body}");
    }
    // The text after a string with a brace is analysed as usual.
    assert!(!after_loads(".pragma \"}\"; st.global.u32 [v], 1;"));
}

#[test]
fn each_kernel_is_looked_at_by_itself_and_nothing_else_is_text() {
    let text = "// .entry no() { }\n/* .entry neither() {} */ .func helper() { ret; }
        .entry declared();
        .visible .entry one(.param .u64 a) { { .reg .b64 q; } ret; }
        .entry two(.param .u64 a) { ld.global.u64 q, [a]; st.global.u64 [q], q; }
        .entry three() { /* st */ ret; }";
    let mut found: Vec<_> = kernels([text]).into_iter().collect();
    found.sort();
    assert_eq!(found, ["one", "three"]);
    assert!(kernels([""]).is_empty());
    let other = text.replace("ret;", "call helper;");
    assert!(
        kernels([text, &other]).is_empty(),
        "of two texts either may be run"
    );
    for at in 0..text.len() {
        kernels([&text[..at]]);
        kernels([&text[at..]]);
    }
    // Deeply nested operands must not overflow the stack.
    let deep =
        |open: &str, close: &str| format!("{}x{}", open.repeat(1 << 17), close.repeat(1 << 17));
    for operand in [deep("{", "}"), deep("[", "]")] {
        assert!(!direct(&format!("mov.b64 {operand}, y, {operand};")));
    }
    direct(&format!("mov.b64 {}, y;", deep("x|", "|x")));
    // Of two kernels with the same name, both must be direct.
    let twice = ".entry one() { ret; } .entry one() { call f; }";
    assert!(kernels([twice]).is_empty());
}
