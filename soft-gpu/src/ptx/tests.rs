//! Parser tests on small texts. The tests on fixtures are in `tests/ptx_parser.rs`.

use super::ast::*;
use super::*;

fn module(items: &str) -> Module {
    parse(format!(".version 8.0\n.target sm_80\n.address_size 64\n{items}").as_bytes())
        .unwrap_or_else(|e| panic!("{e}\n{items}"))
}

fn refusal(items: &str) -> ParseError {
    match parse(format!(".version 8.0\n.target sm_80\n.address_size 64\n{items}").as_bytes()) {
        Err(error) => error,
        Ok(_) => panic!("accepted: {items}"),
    }
}

fn body(text: &str) -> Function {
    module(&format!(
        ".visible .entry k(.param .u64 k_param_0)\n{{\n{text}\n}}"
    ))
    .functions
    .remove(0)
}

fn instructions(text: &str) -> Vec<Instruction> {
    let keep = |s| {
        if let Statement::Inst(i) = s {
            Some(i)
        } else {
            None
        }
    };
    body(text).body.into_iter().filter_map(keep).collect()
}

fn operands(text: &str) -> Vec<Operand> {
    instructions(text).remove(0).operands
}

fn name(text: &str) -> Operand {
    Operand::Name(text.into())
}

#[test]
fn header_words() {
    let parsed =
        parse(b"// c\n.version 7.4 .target sm_75, debug .address_size 64\n\0junk").unwrap();
    assert_eq!(parsed.version, (7, 4));
    assert_eq!(parsed.target, ["sm_75", "debug"]);
    assert_eq!(parsed.address_size, 64);
    assert_eq!(parse(b"").unwrap_err().line, 1);
    assert!(parse(b".target sm_80").is_err());
    assert!(parse(b".version 8\n.target sm_80").is_err());
    let narrow = parse(b".version 8.0 .target sm_80\n.address_size 32").unwrap_err();
    assert!(narrow.unsupported && narrow.line == 2, "{narrow}");
}

#[test]
fn versions_are_those_of_the_language_up_to_the_newest_known() {
    let of = |version: &str| parse(format!("\n.version {version} .target sm_80").as_bytes());
    for (version, parsed) in [
        ("1.0", (1, 0)),
        ("8.9", (8, 9)),
        ("9.5", (9, 5)),
        ("9.9", (9, 9)),
    ] {
        assert_eq!(of(version).expect("known").version, parsed);
    }
    for (version, unsupported) in [
        ("0.0", false),
        ("0.9", false),
        ("10.0", true),
        ("99.9", true),
    ] {
        let refused = of(version).expect_err("no version");
        assert_eq!(
            (refused.unsupported, refused.line),
            (unsupported, 2),
            "{refused}"
        );
        assert!(refused.message.contains(version), "{refused}");
    }
    assert!(of("99999999999.0").is_err());
}

#[test]
fn operand_forms() {
    assert_eq!(
        operands("ld.global.v2.u32 {%r1, _}, [%rd1+-4];"),
        [
            Operand::Vector(vec![name("%r1"), Operand::Sink]),
            Operand::Memory {
                base: Some("%rd1".into()),
                offset: -4
            }
        ]
    );
    assert_eq!(
        operands("setp.lt.and.s32 %p1|%p2, %tid.x, -7, !%p3;"),
        [
            Operand::Pair(Box::new(name("%p1")), Box::new(name("%p2"))),
            name("%tid.x"),
            Operand::Int(-7),
            Operand::Negated(Box::new(name("%p3")))
        ]
    );
    assert_eq!(
        operands("mov.u64 %rd1, sym+4;")[1],
        Operand::Offset("sym".into(), 4)
    );
    assert_eq!(
        operands("ld.u32 %r1, [16];")[1],
        Operand::Memory {
            base: None,
            offset: 16
        }
    );
    assert_eq!(operands("mov.u32 %r1, WARP_SZ;")[1], Operand::Int(32));
    assert_eq!(
        operands("mov.u64 %rd1, 0xFFFFFFFFFFFFFFFFU;")[1],
        Operand::Int(u64::MAX.into())
    );
}

#[test]
fn float_literals_keep_bits_under_a_sign() {
    let Operand::Float { single_bits, .. } = operands("mov.f32 %f1, -0f7FA00001;").remove(1) else {
        panic!("not a float");
    };
    assert_eq!(single_bits, Some(0xffa0_0001));
    let Operand::Float {
        value, double_bits, ..
    } = operands("mov.f64 %d, 0dBFF0000000000000;").remove(1)
    else {
        panic!("not a float");
    };
    assert_eq!((value, double_bits), (-1.0, Some(0xbff0_0000_0000_0000)));
}

#[test]
fn calls_direct_and_indirect() {
    let text = "{ .param .b64 p0; .param .b32 r0;\n\
        st.param.b64 [p0+0], %rd1;\n\
        call.uni (r0), vprintf, (p0, p0);\n\
        call (r0), %rd3, (p0), proto; \n\
        proto : .callprototype (.param .b32 _) _ (.param .b64 _, .param .align 8 .b8 _[16]) .noreturn;\n\
        } call f;";
    let function = body(text);
    assert_eq!(
        function
            .variables
            .iter()
            .map(|v| &v.name[..])
            .collect::<Vec<_>>(),
        ["p0#1", "r0#1"]
    );
    let (label, returns, params) = &function.prototypes[0];
    assert_eq!(
        (label.as_str(), returns.len(), params.len()),
        ("proto#1", 1, 2)
    );
    assert_eq!(params[1].var.size(), 16);
    let all = instructions(text);
    assert_eq!(
        all[0].operands[0],
        Operand::Memory {
            base: Some("p0#1".into()),
            offset: 0
        }
    );
    assert_eq!(
        all[1].operands,
        [
            Operand::List(vec![name("r0#1")]),
            name("vprintf"),
            Operand::List(vec![name("p0#1"), name("p0#1")])
        ]
    );
    assert_eq!(all[2].operands[3], name("proto#1"));
    assert_eq!(all[3].operands, [name("f")]);
}

#[test]
fn scopes_flatten_to_unique_names() {
    let function = body(
        ".reg .b32 t; .reg.pred %p<2>;\n{ .reg.u32 t; @%p1 bra END; mov.u32 t, 1; END: }\n\
         { .reg .u32 t;\n bra END; END:\n { mov.u32 t, 2; } }\n END: mov.u32 t, 3;",
    );
    let names: Vec<_> = function.registers.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["t", "%p0", "%p1", "t#1", "t#2"]);
    let text: Vec<String> = function
        .body
        .iter()
        .map(|s| match s {
            Statement::Label(l) => format!("{l}:"),
            Statement::Inst(i) => match &i.operands[0] {
                Operand::Name(n) => format!("{} {n}", i.opcode),
                other => panic!("{other:?}"),
            },
        })
        .collect();
    assert_eq!(
        text,
        [
            "bra END#1",
            "mov.u32 t#1",
            "END#1:",
            "bra END#2",
            "END#2:",
            "mov.u32 t#2",
            "END:",
            "mov.u32 t"
        ]
    );
    assert_eq!(
        function
            .body
            .iter()
            .filter(|s| matches!(s, Statement::Inst(_)))
            .count(),
        5
    );
}

#[test]
fn branch_tables() {
    let function = body("ts: .branchtargets $A, $B;\n brx.idx %r1, ts; $A: $B: ret;");
    assert_eq!(
        function.targets,
        [("ts".into(), vec!["$A".into(), "$B".into()])]
    );
}

#[test]
fn initialisers() {
    let parsed = module(
        ".func f(); .func v(); .global .align 8 .u64 t[3] = {f, generic(v)+8, v+-4};\n\
         .visible .global .align 4 .b8 m[2][3] = {{1, 2}, {0xFF, -1}};\n\
         .global .v2 .f32 xy = {0f3F800000, 2.5};\n\
         .const .f32 c[] = {1.0};\n\
         .common .global .u32 shared_by_all;\n\
         .extern .shared .align 16 .b8 dyn[];\n\
         .global .u32 a, b = 7;",
    );
    let symbol = |name: &str, addend, generic| Init::Symbol {
        name: name.into(),
        addend,
        generic,
    };
    let v = &parsed.variables;
    assert_eq!(
        v[0].init,
        [
            symbol("f", 0, false),
            symbol("v", 8, true),
            symbol("v", -4, false)
        ]
    );
    assert_eq!(v[1].init, [1, 2, 0, 0xff, -1, 0].map(Init::Int));
    assert!(v[1].visible && v[1].size() == 6 && v[1].align == 4);
    assert_eq!(
        (v[2].init.clone(), v[2].align),
        (vec![Init::Float(1.0), Init::Float(2.5)], 8)
    );
    assert_eq!((v[3].count, v[3].space), (1, Space::Const));
    assert!(v[4].visible && !v[4].external);
    assert_eq!((v[5].count, v[5].external, v[5].align), (0, true, 16));
    assert_eq!(v[7].init, [Init::Int(7)]);
}

#[test]
fn headers() {
    let parsed = module(
        ".func (.param .b32 r) helper(.param .align 8 .b8 s[16], .reg .f32 x) .noreturn { ret; }\n\
         .extern .func (.param .b32 func_retval0) vprintf(.param .b64 a, .param .b64 b);\n\
         .weak .entry k(.param .u64 .ptr .global .align 16 p) .maxntid 256 .reqntid 8, 4\n\
         .minnctapersm 2 .maxnreg 32 .pragma \"nounroll\"; { ret; }\n\
         .entry bare { ret; }",
    );
    let [helper, vprintf, k, bare] = &parsed.functions[..] else {
        panic!("four functions")
    };
    assert_eq!((helper.returns.len(), helper.params[0].var.size()), (1, 16));
    assert!(helper.params[1].in_register && !helper.visible && !helper.kernel);
    assert!(vprintf.declaration && vprintf.params.len() == 2);
    assert!(k.kernel && k.visible && k.params[0].var.align == 8);
    assert_eq!(
        (k.max_ntid, k.req_ntid),
        (Some([256, 1, 1]), Some([8, 4, 1]))
    );
    assert_eq!((k.min_cta_per_sm, k.max_registers), (Some(2), Some(32)));
    assert!(bare.kernel && bare.params.is_empty() && bare.body.len() == 1);
}

#[test]
fn debug_data_is_skipped() {
    let parsed = module(
        ".file 1 \"a b.cu\", 12, 34\n.file\t2 \"c.cu\"\n.entry k { .loc 1 2 3\n mov.u32 a, b;\n\
         .loc 1 2 3, function_name $L__info_string0, inlined_at 1 4 5\n\
         .loc 1 2 3, function_name .debug_str+8, inlined_at 1 4 5\n\
         .pragma \"nounroll\";\n@@DWARF .byte 1 { ;\n ret; }\n\
         .section .debug_abbrev { .b8 1 // }\n { } $L__x: .b32 .debug_str+4 }\n\
         .section .debug_loc { }",
    );
    assert_eq!(parsed.functions[0].body.len(), 2);
    assert_eq!(parsed.functions[0].body.len(), 2);
}

#[test]
fn refusals_name_the_line_and_the_reason() {
    for (items, line, unsupported, word) in [
        ("\n.alias f, g;", 5, true, ".alias"),
        (".global .texref t;", 4, true, "texref"),
        (".global .u8 x[2] = {0xff(f), 1};", 4, true, "masked"),
        (".entry k { .reg .v4 .f32 v; }", 4, true, "vector"),
        (".entry k\n{ add.s32 a b; }", 5, false, "expected `,`"),
        (
            ".entry k {\n .reg .b32 %r<2>; .reg .b32 %r1; }",
            5,
            false,
            "twice",
        ),
        (".entry k {\n L: L: }", 5, false, "twice"),
        (".entry k { } .entry k { }", 4, false, "defined twice"),
        (".entry k {", 4, false, "the end"),
        (
            ".global .b8 x[2] = {1,2,3};",
            4,
            false,
            "more initial values",
        ),
        (".global .b8 x[2][2] = {{1,2,3}};", 4, false, "row"),
        (".global .b8 x = {{1}};", 4, false, "fewer dimensions"),
        (".global .b8 x[];", 4, false, "no size"),
        (
            ".global .b8 x[4294967296][4294967296];",
            4,
            false,
            "too large",
        ),
        (".global .align 3 .b8 x[4];", 4, false, "power of two"),
        (".global .pred p;", 4, false, ".pred"),
        (
            ".entry k { mov.u32 a, 0x10000000000000000; }",
            4,
            false,
            "a number",
        ),
        (".entry k { mov.u32 a, {{{{{{1}}}}}}; }", 4, false, "nested"),
    ] {
        let error = refusal(items);
        assert_eq!(
            (error.line, error.unsupported),
            (line, unsupported),
            "{items}: {error}"
        );
        assert!(error.message.contains(word), "{items}: {error}");
        assert!(error.to_string().starts_with(&format!("PTX line {line}: ")));
    }
}

#[test]
fn the_resources_of_a_text_are_bounded() {
    let error = refusal(".entry k {\n.reg .b32 %r<1000000>;\n.reg .b32 %s<1000000>; }");
    assert!(
        error.line == 6 && error.message.contains("registers"),
        "{error}"
    );
    // The limit of registers grows with the length of the PTX.
    let long = format!("// {}\n", "x".repeat(REGISTER_TEXT * 1000));
    let some = format!("{long}.entry k {{ .reg .b32 %r<{MAX_REGISTERS}>, %s<900>; }}");
    module(&some);
    refusal(&some.replace("900", "1200"));
    refusal(".entry k { .reg .b32 %r<4294967295>; }");
    let error = refusal(".global .b8 x[9][999999999] = {{1},{2}};");
    assert!(error.message.contains("leave out"), "{error}");
    refusal(&format!(".entry k {{ {}", "{".repeat(1_000_000)));
    refusal(&format!(".global .b8 x = {}", "{".repeat(1_000_000)));
    refusal(&format!(".entry k {{ mov a, {}", "[a,(".repeat(1_000_000)));
    refusal(&format!(".entry k {{ mov a, {}", "!".repeat(1_000_000)));
    refusal(&format!(".entry k {{ mov {}; }}", "a,".repeat(1_000_000)));
    assert_eq!(
        operands(&format!("mov.u32 a, {}5;", "-".repeat(1_000_001)))[1],
        Operand::Int(-5)
    );
}

#[test]
fn a_name_is_declared_before_it_is_used() {
    const F: &str = ".func f() { ret; }";
    for late in [
        ".global .u64 x[2] = {1, f};",
        ".global .u64 x = generic(f);",
        ".entry k() { .reg .b64 %r; mov.u64 %r, f; ret; }",
        ".entry k() { { call f; } ret; }",
        ".entry k() { .reg .b64 %r; ld.global.u64 %r, [f+8]; ret; }",
    ] {
        let why = refusal(&format!("{late}\n{F}"));
        assert_eq!((why.line, why.unsupported), (4, false), "{why}");
        assert!(why.message.contains("`f` is used before"), "{why}");
        module(&format!("{F}\n{late}"));
        module(&format!(".func f();\n{late}\n{F}"));
    }
    // Allowed: a function calls itself, an initialiser names its own variable, and a body declares
    // a local name that a later item of the module has too.
    module(".func f() { call f; ret; }\n.global .u64 x = x;");
    module(
        ".entry k() { .reg .b32 f; { .reg .b32 g; mov.u32 f, g; } ret; }\n.func f() { ret; }\n.func g() { ret; }",
    );
    module(".entry k() { bra f; f: ret; }\n.func f() { ret; }");
}
