//! Generates small random kernels from bytes. They consist of well-typed instructions of every
//! family, in blocks that branch, loop, call and meet at barriers. Most of their addresses are
//! valid. The kernels must load; they may end in any way.

use std::fmt::Write;

use crate::inputs::expand;

/// Patterns of instructions, with their operands. In a pattern, `{a,b}` means each of the
/// alternatives. In the operands, letters are registers: `h` 16 bits, `r` 32, `l` 64, `f` single,
/// `g` double, `p` predicate. The letter `i` is an immediate below 64. In brackets, letters are
/// addresses: `G` global, `S` shared, `K` local, `N` generic.
const FORMS: &[(&str, &str)] = &[
    (
        "{add,sub,min,max,div,rem,mul.lo,mul.hi}.{u32,s32}",
        "r, r, r",
    ),
    (
        "{add,sub,min,max,div,rem,mul.lo,mul.hi}.{u64,s64}",
        "l, l, l",
    ),
    (
        "{add,sub,min,max,div,rem,mul.lo,mul.hi}.{u16,s16}",
        "h, h, h",
    ),
    ("{add,sub}.sat.s32", "r, r, r"),
    ("mul.wide.{u16,s16}", "r, h, h"),
    ("mul.wide.{u32,s32}", "l, r, r"),
    ("{mad.lo,mad.hi,sad}.{u32,s32}", "r, r, r, r"),
    ("{mad.lo,mad.hi,sad}.{u64,s64}", "l, l, l, l"),
    ("mad.wide.{u32,s32}", "l, r, r, l"),
    ("{mul24.lo,mul24.hi}.{u32,s32}", "r, r, r"),
    (
        "{add.cc,addc,addc.cc,sub.cc,subc,subc.cc}.{u32,s32}",
        "r, r, r",
    ),
    (
        "{add.cc,addc,addc.cc,sub.cc,subc,subc.cc}.{u64,s64}",
        "l, l, l",
    ),
    ("{mad.lo.cc,madc.hi,madc.lo.cc}.u32", "r, r, r, r"),
    ("{madc.lo.cc,madc.hi.cc}.{u64,s64}", "l, l, l, l"),
    ("{abs,neg}.s32", "r, r"),
    ("{abs,neg}.s64", "l, l"),
    ("{popc,clz,brev,not,cnot}.b32", "r, r"),
    ("{popc,clz}.b64", "r, l"),
    ("bfind{,.shiftamt}.{u32,s32}", "r, r"),
    ("bfind{,.shiftamt}.{u64,s64}", "r, l"),
    ("bfe.{u32,s32}", "r, r, r, r"),
    ("bfe.{u64,s64}", "l, l, r, r"),
    ("bfi.b32", "r, r, r, r, r"),
    ("bfi.b64", "l, l, l, r, r"),
    ("{bmsk,szext}.{clamp,wrap}.{b32,u32,s32}", "r, r, r"),
    ("fns.b32", "r, r, r, r"),
    ("{dp4a,dp2a.lo,dp2a.hi}.{u32,s32}.{u32,s32}", "r, r, r, r"),
    ("{and,or,xor}.b32", "r, r, r"),
    ("{and,or,xor}.b64", "l, l, l"),
    ("{and,or,xor}.pred", "p, p, p"),
    ("not.pred", "p, p"),
    ("lop3.b32", "r, r, r, r, i"),
    ("lop3.{and,or}.b32", "r|p, r, r, r, i, p"),
    ("{shl,shr}.{b32,u32,s32}", "r, r, r"),
    ("{shl,shr}.{b64,u64,s64}", "l, l, r"),
    ("{shl,shr}.{b16,u16,s16}", "h, h, r"),
    ("shf.{l,r}.{clamp,wrap}.b32", "r, r, r, r"),
    ("prmt.b32{,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}", "r, r, r, r"),
    ("selp.{b32,s32}", "r, r, r, p"),
    ("selp.b64", "l, l, l, p"),
    ("slct.s32.s32", "r, r, r, r"),
    ("slct{,.ftz}.f32.f32", "f, f, f, f"),
    ("setp.{eq,ne,lt,le,gt,ge}.{s32,u32}", "p, r, r"),
    ("setp.{lt,ge}.{and,or,xor}.{s64,u64}", "p|p, l, l, p"),
    ("setp.{eq,ltu,num,nan,neu}{,.ftz}.f32", "p, f, f"),
    ("setp.{eq,ltu,num,nan,neu}.f64", "p, g, g"),
    ("set.{eq,lt,geu}.{u32,s32}.f32", "r, f, f"),
    ("set.{eq,lt,ge}.f32.s32", "f, r, r"),
    (
        "testp.{finite,infinite,number,notanumber,normal,subnormal}.f32",
        "p, f",
    ),
    (
        "{add,sub,mul}{,.rn,.rz,.rm,.rp}{,.ftz}{,.sat}.f32",
        "f, f, f",
    ),
    ("fma.{rn,rz,rm,rp}{,.ftz}{,.sat}.f32", "f, f, f, f"),
    ("{add,sub,mul,div.rn,div.rz}.f64", "g, g, g"),
    ("fma.{rn,rz,rm,rp}.f64", "g, g, g, g"),
    (
        "{div.rn,div.approx,div.full,min,max,min.NaN,max.ftz,copysign}.f32",
        "f, f, f",
    ),
    (
        "{rcp.rn,rcp.approx,sqrt.rn,sqrt.rp,sin.approx,cos.approx,ex2.approx,lg2.approx,rsqrt.approx,tanh.approx,abs,neg}.f32",
        "f, f",
    ),
    (
        "{rcp.rn,sqrt.rn,sqrt.rz,abs,neg,rcp.approx.ftz,rsqrt.approx}.f64",
        "g, g",
    ),
    ("cvt.{rni,rzi,rmi,rpi}{,.ftz}.{u32,s32}.f32", "r, f"),
    ("cvt.{rni,rzi}.{u64,s64}.f64", "l, g"),
    ("cvt.{rn,rz,rm,rp}.f32.{u32,s32}", "f, r"),
    ("cvt.{rn,rz,rm,rp}.f64.{u64,s64}", "g, l"),
    ("cvt.{rn,rz,rm,rp}{,.sat}.f32.f64", "f, g"),
    ("cvt.f64.f32", "g, f"),
    ("cvt{,.sat}.{u8,s8,u16,s16}.{u32,s32}", "r, r"),
    ("cvt{,.sat}.{u64,s64}.{u32,s32,u16,s8}", "l, r"),
    ("cvt.{u32,s32}.{u64,s64}", "r, l"),
    ("cvt.pack.sat.s8.s32.b32", "r, r, r, r"),
    ("mov.b32", "r, r"),
    ("mov.b64", "l, {r, r}"),
    ("mov.b64", "{r, r}, l"),
    ("mov.b32", "r, {h, h}"),
    ("ld.global{,.nc}.{u32,s32}", "r, [G]"),
    ("ld.global.{u8,s8,u16}", "r, [G]"),
    ("ld.global.v4.u32", "{r, r, r, r}, [G]"),
    ("ld.global.v2.u64", "{l, l}, [G]"),
    ("st.global.{u32,b8}", "[G], r"),
    ("st.global.v2.f32", "[G], {f, f}"),
    ("{ld.shared,ld.volatile.shared}.{u32,s16,u8}", "r, [S]"),
    ("ld.shared.v4.f32", "{f, f, f, f}, [S]"),
    ("st.shared.{u32,u16,u8}", "[S], r"),
    ("st.shared.v2.u64", "[S], {l, l}"),
    ("ld.local.{u32,s8}", "r, [K]"),
    ("st.local.{u32,u8}", "[K], r"),
    ("st.local.v2.f64", "[K], {g, g}"),
    ("ld.{u32,u8}", "r, [N]"),
    ("st.{u32,u8}", "[N], r"),
    ("ld.{u64,b64}", "l, [N]"),
    ("ld.param.{u32,u8}", "r, [big+i]"),
    ("atom.global.{add,min,max,exch,inc,dec}.u32", "r, [G], r"),
    ("atom.shared.{add,min,max,exch,and,or,xor}.b32", "r, [S], r"),
    ("atom.{add,exch}.u32", "r, [N], r"),
    ("atom.{global.cas.b32,shared.cas.b32}", "r, [N], r, r"),
    ("atom.global.cas.b64", "l, [G], l, l"),
    ("red.global.add.{u64,f64}", "[G], l"),
    ("red.shared.add.f32", "[S], f"),
    ("prefetch.global.{L1,L2}", "[G]"),
    ("createpolicy.fractional.L2::evict_last.b64", "l"),
    ("isspacep.{global,shared,local,const}", "p, l"),
    ("cvta.{shared,local,global}.u64", "l, l"),
    ("cvta.to.{shared,local,global}.u64", "l, l"),
    ("shfl.sync.{up,down,bfly,idx}.b32", "r|p, r, r, i, r"),
    ("shfl.{up,down,bfly,idx}.b32", "r, r, i, r"),
    ("vote.sync.{all,any,uni}.pred", "p, p, r"),
    ("vote.sync.ballot.b32", "r, p, -1"),
    ("match.any.sync.b32", "r, r, r"),
    ("match.all.sync.b64", "r|p, l, -1"),
    ("redux.sync.{add,min,max}.s32", "r, r, r"),
    ("redux.sync.{and,or,xor}.b32", "r, r, -1"),
    ("activemask.b32", "r"),
    ("elect.sync", "r|p, r"),
    ("bar.warp.sync", "r"),
    ("bar.sync", "0"),
    ("bar.sync", "r, r"),
    ("bar.arrive", "i, 32"),
    ("barrier.sync", "i, 64"),
    ("bar.red.popc.u32", "r, 0, p"),
    ("bar.red.{and,or}.pred", "p, i, p"),
    ("{membar.gl,fence.acq_rel.gpu}", ""),
    ("nanosleep.u32", "r"),
    ("mov.u32", "r, %laneid"),
    ("mov.u32", "r, %lanemask_lt"),
    ("cp.async.ca.shared.global", "[S], [G], 16"),
    ("cp.async.commit_group", ""),
    ("cp.async.wait_group", "0"),
    (
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        "{r, r, r, r}, [S]",
    ),
    (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "{f, f, f, f}, {r, r, r, r}, {r, r}, {f, f, f, f}",
    ),
    (
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        "{f, f, f, f}, {r, r, r, r}, {r, r}, {f, f, f, f}",
    ),
    ("{add,mul}.f16x2", "r, r, r"),
    ("{add,sub,mul}{,.rn}.{f16,bf16}", "h, h, h"),
    ("fma.rn{,.relu}.{f16x2,bf16x2}", "r, r, r, r"),
    ("{min,max}{,.NaN}.{f16x2,bf16x2}", "r, r, r"),
    ("{neg,abs,tanh.approx}.{f16,bf16}", "h, h"),
    ("setp.{eq,ltu}.f16x2", "p|p, r, r"),
    ("set.{gt,nan}.u32.f16x2", "r, r, r"),
    ("cvt.{rn,rz}.{f16x2,bf16x2}.f32", "r, f, f"),
    ("cvt.rna.tf32.f32", "r, f"),
    ("atom.global.add.noftz.f16x2", "r, [G], r"),
    ("red.shared.add.noftz.bf16x2", "[S], r"),
    ("cp.async.cg.shared.global", "[S], [G], 16, r"),
    ("cp.async.ca.shared.global", "[S], [G], 8, p"),
    (
        "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
        "{r, r}, [S]",
    ),
    ("stmatrix.sync.aligned.m8n8.x4.b16", "[N], {r, r, r, r}"),
    ("movmatrix.sync.aligned.m8n8.trans.b16", "r, r"),
    (
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
        "{g, g}, {g}, {g}, {g, g}",
    ),
    (
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32",
        "{r, r, r, r}, {r, r, r, r}, {r, r}, {r, r, r, r}",
    ),
    (
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc",
        "{r, r, r, r}, {r, r, r, r}, {r, r}, {r, r, r, r}",
    ),
    (
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "{f, f, f, f, f, f, f, f}, {r, r}, {r, r}, {f, f, f, f, f, f, f, f}",
    ),
    (
        "wmma.load.a.sync.aligned.{row,col}.m16n16k16.global.f16",
        "{r, r, r, r, r, r, r, r}, [G], r",
    ),
    (
        "wmma.load.c.sync.aligned.row.m8n32k16.shared.f32",
        "{f, f, f, f, f, f, f, f}, [S], 32",
    ),
    (
        "wmma.mma.sync.aligned.row.col.m32n8k16.f32.f32",
        "{f, f, f, f, f, f, f, f}, {r, r, r, r, r, r, r, r}, {r, r, r, r, r, r, r, r}, {f, f, f, f, f, f, f, f}",
    ),
    (
        "wmma.store.d.sync.aligned.{row,col}.m16n16k16.f32",
        "[N], {f, f, f, f, f, f, f, f}, r",
    ),
];

/// All instructions of generated kernels, each with the template of its operands.
pub(crate) fn instructions() -> Vec<(String, &'static str)> {
    FORMS
        .iter()
        .flat_map(|(p, o)| expand(p).into_iter().map(move |f| (f, *o)))
        // These filters remove the combinations of a pattern that do not exist.
        .filter(|(f, _)| !f.starts_with("bmsk") || f.ends_with("b32"))
        .filter(|(f, _)| !(f.starts_with("szext") && f.ends_with("b32")))
        .filter(|(f, _)| !f.starts_with("shl") || f.contains(".b"))
        .filter(|(f, _)| !f.starts_with("atom.shared") || atomic(f))
        .map(|(f, o)| (typed(f), o))
        .collect()
}

/// Whether the form is not `inc` or `dec`. `typed` gives `add`, `min` and `max` an integer type.
fn atomic(form: &str) -> bool {
    !["inc", "dec"].iter().any(|o| form.contains(o))
}

fn typed(form: String) -> String {
    let counts = [".add.b32", ".min.b32", ".max.b32"];
    match counts.iter().find(|c| form.ends_with(*c)) {
        Some(c) => form.replace(c, &c.replace("b32", "u32")),
        None => form,
    }
}

/// Choices that are read from bytes. After the last byte, all choices are zero.
struct Source<'a> {
    bytes: &'a [u8],
}

impl Source<'_> {
    fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        usize::from(*first)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.byte() << 8 | self.byte()) % n
    }
}

const IMMEDIATES: [&str; 10] = [
    "0",
    "1",
    "-1",
    "2",
    "31",
    "32",
    "64",
    "255",
    "0x7fffffff",
    "0x80000000",
];

/// Writes one operand, for a letter of a template.
fn operand(s: &mut Source<'_>, letter: char, source: bool, out: &mut String) {
    let wild = s.byte();
    let offset = (wild & 15) * 16;
    let _ = match letter {
        'r' | 'l' if source && wild > 200 => write!(out, "{}", IMMEDIATES[wild % IMMEDIATES.len()]),
        'h' | 'r' | 'l' | 'f' | 'g' | 'p' => write!(out, "%{letter}{}", wild % 6),
        'i' => write!(out, "{}", wild % 64),
        'G' if wild < 200 => write!(out, "%gp+{offset}"),
        'G' => write!(out, "%l{}+{}", wild % 6, wild % 7),
        'S' if wild < 150 => write!(out, "%sp+{offset}"),
        'S' if wild < 200 => write!(out, "buf+{offset}"),
        'S' => write!(out, "%r{}", wild % 6),
        'K' if wild < 200 => write!(out, "frame+{offset}"),
        'K' => write!(out, "%l{}", wild % 6),
        'N' => write!(out, "{}+{offset}", ["%gp", "%sg", "%kg", "%l1"][wild % 4]),
        other => write!(out, "{other}"),
    };
}

/// Replaces all letters of a template by operands.
fn fill(s: &mut Source<'_>, template: &str) -> String {
    if template.contains("[big+i]") {
        let at = s.below(70);
        return template
            .replace("[big+i]", &format!("[big+{}]", at * 4))
            .replace('r', "%r1");
    }
    let mut out = String::new();
    let mut source = template.starts_with('[');
    let mut chars = template.chars().peekable();
    let mut depth = 0;
    while let Some(c) = chars.next() {
        match c {
            '%' => {
                // The name of a special register is copied.
                out.push(c);
                while let Some(c) = chars.next_if(|c| *c != ',') {
                    out.push(c);
                }
            }
            'h' | 'r' | 'l' | 'f' | 'g' | 'p' | 'i' | 'G' | 'S' | 'K' | 'N' => {
                operand(s, c, source, &mut out);
            }
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                // All operands after the first are sources.
                source |= c == ',' && depth == 0;
                out.push(c);
            }
        }
    }
    // Braces and pairs may contain registers only.
    out
}

fn instruction(s: &mut Source<'_>, all: &[(String, &'static str)], out: &mut String) {
    let (form, template) = &all[s.below(all.len())];
    let guard = match s.byte() {
        0..40 => format!("@%p{} ", s.byte() % 6),
        40..80 => format!("@!%p{} ", s.byte() % 6),
        _ => String::new(),
    };
    let _ = writeln!(out, "{guard}{form} {};", fill(s, template));
}

/// A chain of multiply-adds of loaded values, which the interpreter may run as one operation.
fn chain(s: &mut Source<'_>, out: &mut String) {
    let terms = 1 + s.byte() % 20;
    let ftz = ["", ".ftz"][s.byte() % 2];
    out.push_str("{ .reg .f32 %x<20>, %y<20>, %z<20>;\n");
    for k in 0..terms {
        for name in ["x", "y"] {
            let (space, letter) = [("shared", 'S'), ("shared", 'S'), ("global", 'G')][s.byte() % 3];
            let _ = write!(out, "ld.{space}.f32 %{name}{k}, [");
            operand(s, letter, true, out);
            out.push_str("]; ");
        }
        let from = match k {
            0 => format!("%f{}", s.byte() % 6),
            k => format!("%z{}", k - 1),
        };
        let _ = writeln!(out, "fma.rn{ftz}.f32 %z{k}, %x{k}, %y{k}, {from};");
    }
    let _ = writeln!(out, "mov.f32 %f{}, %z{}; }}", s.byte() % 6, terms - 1);
}

/// Writes the branch or exit that ends a block.
fn end(s: &mut Source<'_>, blocks: usize, call: &str, out: &mut String) {
    let (p, to) = (s.byte() % 6, s.byte() % blocks);
    let _ = match s.byte() % 16 {
        0..5 => writeln!(out, "@%p{p} bra B{to};"),
        5 => writeln!(out, "@!%p{p} bra B{to};"),
        6 => writeln!(out, "bra B{to};"),
        7 => writeln!(out, "and.b32 %r5, %r5, 3; brx.idx %r5, TABLE;"),
        8 | 9 => writeln!(out, "@%p{p} call (%r{}), {call}, (%r{});", p, to % 6),
        10 => writeln!(out, "@%p{p} exit;"),
        11 => writeln!(out, "@%p{p} ret;"),
        12 => writeln!(out, "mov.u64 %l5, {call}; call (%r{p}), %l5, (%r1), PROTO;"),
        _ => Ok(()),
    };
}

/// Declarations of a body's registers, and their initial values.
const REGISTERS: &str = ".reg .b16 %h<6>; .reg .b32 %r<6>, %sp; .reg .b64 %l<6>, %gp, %sg, %kg; .reg .f32 %f<6>;\n\
    .reg .f64 %g<6>; .reg .pred %p<6>; .local .align 16 .b8 frame[512];\n\
    mov.u32 %r0, %tid.x; mov.u32 %r1, %laneid; mov.u32 %r2, -1; mov.u32 %r3, 3; mov.u32 %r4, %ctaid.x; mov.u32 %r5, 64;\n\
    mov.u64 %l0, 1; mov.u64 %l1, %gp; cvt.u64.u32 %l2, %r0; mov.u64 %l3, -1; mov.u64 %l4, 0x123456789abcdef; mov.u64 %l5, 0;\n\
    cvt.u16.u32 %h0, %r0; mov.u16 %h1, -1; mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f7F800000; cvt.rn.f32.u32 %f2, %r0;\n\
    mov.f64 %g0, 0d3FF0000000000000; cvt.rn.f64.u32 %g1, %r0; setp.lt.u32 %p0, %r0, 9; setp.eq.u32 %p1, %r1, 3;\n\
    shl.b32 %sp, %r0, 4; mov.u64 %sg, buf; cvta.shared.u64 %sg, %sg; mov.u64 %kg, frame; cvta.local.u64 %kg, %kg;\n";

fn body(s: &mut Source<'_>, all: &[(String, &'static str)], call: &str, out: &mut String) {
    let blocks = 2 + s.byte() % 6;
    out.push_str("PROTO: .callprototype (.reg .b32 _) _ (.reg .b32 _);\nTABLE: .branchtargets ");
    let targets: Vec<String> = (0..4).map(|_| format!("B{}", s.byte() % blocks)).collect();
    let _ = writeln!(out, "{};", targets.join(", "));
    for b in 0..blocks {
        let _ = writeln!(out, "B{b}:");
        for _ in 0..s.byte() % 7 {
            if s.byte() < 24 {
                chain(s, out);
            } else {
                instruction(s, all, out);
            }
        }
        end(s, blocks, call, out);
    }
}

/// A module with one kernel `k(.param .u64 data, .param .b8 big[256])` and two functions.
pub(crate) fn kernel(bytes: &[u8]) -> String {
    let all = instructions();
    let mut s = Source { bytes };
    let mut out = String::from(
        ".version 8.0\n.target sm_80\n.address_size 64\n.shared .align 16 .b8 buf[2048];\n\
         .global .align 16 .b8 other[4096];\n\
         .func (.reg .b32 %result) f1(.reg .b32 %argument);\n",
    );
    for (name, call) in [("f0", "f1"), ("f1", "f0")] {
        let _ = writeln!(
            out,
            ".func (.reg .b32 %result) {name}(.reg .b32 %argument) {{\n{}",
            REGISTERS.replacen("mov.u32 %r0", "mov.u64 %gp, other; mov.u32 %r0", 1)
        );
        // The body of a function uses its local memory in place of the kernel's parameters, so that
        // the same forms load.
        let mut text = String::new();
        body(&mut s, &all, call, &mut text);
        out.push_str(
            &text
                .replace("[big+", "[frame+")
                .replace("ld.param", "ld.local"),
        );
        out.push_str("add.u32 %result, %r0, %argument; ret; }\n");
    }
    out.push_str(".visible .entry k(.param .u64 data, .param .align 16 .b8 big[256]) {\n");
    out.push_str(&REGISTERS.replacen("mov.u32 %r0", "ld.param.u64 %gp, [data]; mov.u32 %r0", 1));
    body(&mut s, &all, "f0", &mut out);
    out.push_str("st.global.u32 [%gp], %r0; ret; }\n");
    out
}

/// A kernel with one instruction, to check that the instruction loads.
pub(crate) fn alone(form: &str, template: &str, bytes: &[u8]) -> String {
    let mut s = Source { bytes };
    let registers = REGISTERS.replacen("mov.u32 %r0", "ld.param.u64 %gp, [data]; mov.u32 %r0", 1);
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.shared .align 16 .b8 buf[2048];\n\
         .visible .entry k(.param .u64 data, .param .align 16 .b8 big[256]) {{\n{registers}{form} {};\nret; }}\n",
        fill(&mut s, template)
    )
}
