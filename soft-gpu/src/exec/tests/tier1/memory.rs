//! Loads and stores of every type, in every space, with every ordering and hint.

use super::integer::{cut, read};
use super::{Case, DATA, block, forms, whole, wrapped};

/// For a state space: declarations and code that must come first, and the address operand.
fn place(space: &str) -> (&'static str, &'static str) {
    match space {
        "shared" => ("", "buf"),
        "local" => (".local .align 16 .b8 frame[16];", "frame"),
        "param" => ("", "data"),
        "const" => (
            ".const .align 16 .u64 table[2] = {0xf1e2d3c4b5a69788, 0x0123456789abcdef};",
            "table",
        ),
        "global" => (".global .align 32 .b8 cell[32];", "cell"),
        _ => (
            ".global .align 16 .b8 cell[16]; cvta.global.u64 %d1, cell;",
            "%d1",
        ),
    }
}

fn space(p: &[String]) -> &str {
    ["global", "shared", "local", "const", "param"]
        .into_iter()
        .find(|s| p.iter().any(|m| m.split("::").next() == Some(s)))
        .unwrap_or("")
}

/// Number of elements, bytes per element, whether the type is signed, and the register type.
fn element(p: &[String]) -> (usize, usize, bool, &'static str) {
    let ty = p.last().unwrap();
    let bytes = ty[1..].parse::<usize>().unwrap() / 8;
    let count = match () {
        () if p.iter().any(|m| m == "v2") => 2,
        () if p.iter().any(|m| m == "v4") => 4,
        () if p.iter().any(|m| m == "v8") => 8,
        () => 1,
    };
    let reg = match (ty.as_str(), bytes) {
        ("f32", _) => "f32",
        ("f64", _) => "f64",
        (_, 1 | 2) => "b16",
        (_, 4) => "b32",
        _ => "b64",
    };
    (count, bytes, ty.starts_with('s'), reg)
}

/// Element `k` of `bytes` bytes in the repeated bytes of [`DATA`].
fn field(k: usize, bytes: usize) -> u64 {
    let at = k * bytes;
    let word = DATA[at / 8 % 2];
    cut(i128::from(word >> (at % 8 * 8)), bytes as u32 * 8)
}

/// The operand for `count` registers `%e`.
fn registers(count: usize) -> String {
    match count {
        1 => "%e0".into(),
        n => {
            let names: Vec<String> = (0..n).map(|k| format!("%e{k}")).collect();
            format!("{{{}}}", names.join(", "))
        }
    }
}

/// Code that sets `%r0` to the low word of `%d7` in even threads, and to the high word in odd
/// threads.
const SHOW: &str = "and.b32 %r1, %t, 1; setp.eq.u32 %p2, %r1, 0;\n\
    mov.b64 {%r2, %r3}, %d7; selp.b32 %r0, %r2, %r3, %p2;";

fn half(v: u64, t: u32) -> u32 {
    (if t & 1 == 0 { v } else { v >> 32 }) as u32
}

fn policy(p: &[String]) -> (&'static str, &'static str) {
    if p.iter().any(|m| m == "L2::cache_hint") {
        (
            "createpolicy.fractional.L2::evict_first.b64 %d6, 0.5;",
            ", %d6",
        )
    } else {
        ("", "")
    }
}

fn load(form: &str, p: &[String]) -> Case {
    let (count, bytes, signed, reg) = element(p);
    let space = space(p);
    let result = p.iter().any(|m| m == "param::func");
    let (setup, at) = if result { (SENT, "back") } else { place(space) };
    let mut body = format!("{setup} .reg .{reg} %e<8>;\n");
    if result {
        let [low, high] = DATA;
        body += &format!(
            "st.param.b64 [sent], {low}; st.param.b64 [sent+8], {high}; call (back), same, (sent);\n"
        );
    } else if !matches!(space, "const" | "param") {
        let s = if space.is_empty() { "" } else { "." };
        let words = (count * bytes).div_ceil(8).max(DATA.len());
        for (k, w) in DATA.iter().cycle().take(words).enumerate() {
            body += &format!("st{s}{space}.b64 [{at}+{}], {w};\n", 8 * k);
        }
    }
    let (create, hint) = policy(p);
    body += &format!("{create} {form} {}, [{at}]{hint};\n", registers(count));
    body += "shr.u32 %r4, %t, 1;\n";
    for k in 0..count {
        let widen = match reg {
            "b16" => format!("cvt.u64.u16 %d7, %e{k};"),
            "b32" | "f32" => format!("mov.b32 %r5, %e{k}; cvt.u64.u32 %d7, %r5;"),
            _ => format!("mov.b64 %d7, %e{k};"),
        };
        body += &format!("setp.ne.u32 %p1, %r4, {k}; @%p1 bra N{k}; {widen} N{k}:\n");
    }
    body += SHOW;
    let width = match reg {
        "b16" => 16,
        "b32" | "f32" => 32,
        _ => 64,
    };
    let bits = bytes as u32 * 8;
    let text = wrapped(SAME, ", .param .align 16 .b8 data[16]", &body);
    super::mentions(&text, form);
    whole(&[form], text, 2 * count as u32, move |t| {
        let v = field(t as usize / 2, bytes);
        half(cut(read(v, bits, signed), width), t)
    })
}

/// Declarations of the argument and the result of a call.
const SENT: &str = ".param .align 16 .b8 sent[16]; .param .align 16 .b8 back[16];";

/// A function that returns its argument, used to prove stores to parameters.
const SAME: &str = ".func (.param .align 16 .b8 r[16]) same(.param .align 16 .b8 v[16]) {\n\
    .reg .b64 %q<2>; ld.param.v2.b64 {%q0, %q1}, [v]; st.param.v2.b64 [r], {%q0, %q1}; ret; }";

fn store(form: &str, p: &[String]) -> Case {
    let (count, bytes, _, reg) = element(p);
    let space = space(p);
    let param = space == "param";
    let (setup, at) = if param { (SENT, "sent") } else { place(space) };
    let dot = if space.is_empty() { "" } else { "." };
    let mut body = format!("{setup} .reg .{reg} %e<8>;\n");
    body += &format!("st{dot}{space}.b64 [{at}], 0; st{dot}{space}.b64 [{at}+8], 0;\n");
    for k in 0..count {
        // All upper bits of the register are set, but only the bits of the type may be stored.
        let v = field(k, bytes) | !0 << (bytes * 8 - 1) << 1;
        body += &match reg {
            "b16" => format!("mov.b16 %e{k}, {};", v & 0xffff),
            "b32" => format!("mov.b32 %e{k}, {};", v & 0xffff_ffff),
            "f32" => format!("mov.f32 %e{k}, 0f{:08X};", v & 0xffff_ffff),
            "f64" => format!("mov.f64 %e{k}, 0d{v:016X};"),
            _ => format!("mov.b64 %e{k}, {v};"),
        };
    }
    let (create, hint) = policy(p);
    body += &format!("{create}\n{form} [{at}], {}{hint};\n", registers(count));
    let from = if param {
        body += "call (back), same, (sent);\n";
        "back"
    } else {
        at
    };
    let words = (count * bytes).div_ceil(8).max(DATA.len()) as u32;
    body += "shr.u32 %r4, %t, 1;\n";
    for k in 0..words {
        let at = 8 * k;
        body += &format!(
            "ld{dot}{space}.b64 %d2, [{from}+{at}]; setp.eq.u32 %p1, %r4, {k}; selp.b64 %d7, %d2, %d7, %p1;\n"
        );
    }
    body += SHOW;
    super::mentions(&body, form);
    whole(&[form], wrapped(SAME, "", &body), 2 * words, move |t| {
        let stored = (count * bytes) as u32 * 8;
        let keep = |word: u32| match stored.saturating_sub(64 * word).min(64) {
            0 => 0,
            bits => cut(i128::from(DATA[word as usize % 2]), bits),
        };
        half(keep(t / 2), t)
    })
}

/// Instructions without a visible effect. They must not change existing data.
fn hints() -> Vec<Case> {
    let mut out = Vec::new();
    let setup = ".global .align 128 .b8 cell[128]; .local .align 8 .b8 frame[16];\n\
        mov.u64 %d1, cell; st.u32 [%d1], 7; st.local.u32 [frame], 7;";
    let mut hint = |form: &str, operands: &str, check: &str| {
        let body = format!("{setup} {form} {operands};\n{check}");
        out.push(block(&[form], &body, 1, |_| 7));
    };
    let plain = "ld.global.u32 %r0, [cell];";
    for (form, p) in forms("prefetch.{global,local}.{L1,L2}") {
        let local = p[1] == "local";
        let check = if local {
            "ld.local.u32 %r0, [frame];"
        } else {
            plain
        };
        hint(&form, if local { "[frame]" } else { "[%d1]" }, check);
    }
    for (form, _) in forms(
        "{prefetch.L1,prefetch.L2,prefetchu.L1,prefetch.global.L2::evict_last,prefetch.global.L2::evict_normal}",
    ) {
        hint(&form, "[%d1]", plain);
    }
    for (form, _) in forms("applypriority{,.global}.L2::evict_normal") {
        hint(&form, "[%d1], 128", plain);
    }
    // After a discard, memory is undefined until it is written again.
    let again = "st.u32 [%d1], 7; ld.global.u32 %r0, [cell];";
    for (form, _) in forms("discard{,.global}.L2") {
        hint(&form, "[%d1], 128", again);
    }
    let use_it = "ld.global.L2::cache_hint.u32 %r0, [cell], %d6;";
    for form in super::listed() {
        if form.starts_with("createpolicy.fractional") {
            hint(&form, "%d6", use_it);
            hint(&form, "%d6, 0.25", use_it);
        } else if form.starts_with("createpolicy.range") {
            hint(&form, "%d6, [%d1], 16, 64", use_it);
        }
    }
    hint("createpolicy.cvt.L2.b64", "%d6, %d1", use_it);
    out
}

/// A structure of 4,000 bytes, passed by value. The kernel reads it through a register that is
/// incremented, and in vectors.
fn large_parameter() -> Case {
    let body = "mov.b64 %d1, data; mov.u32 %r0, 0; mov.u32 %r1, 0;\n\
        L: ld.param.u32 %r2, [%d1]; xor.b32 %r0, %r0, %r2; mad.lo.u32 %r0, %r0, 31, %r2;\n\
        add.s64 %d1, %d1, 4; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000; @%p1 bra L;\n\
        ld.param.v4.u32 {%r2, %r3, %r4, %r5}, [data+3984]; add.u32 %r0, %r0, %r5;\n\
        mov.b64 %d2, data; ld.param.v2.b64 {%d3, %d4}, [%d2+32]; cvt.u32.u64 %r6, %d4; xor.b32 %r0, %r0, %r6;";
    let text = wrapped("", ", .param .align 16 .b8 data[4000]", body);
    whole(
        &["ld.param.u32", "ld.param.v4.u32", "ld.param.v2.b64"],
        text,
        40,
        |_| {
            let word = |k: usize| (DATA[k / 2 % 2] >> (k % 2 * 32)) as u32;
            let mut v = (0..1000).fold(0u32, |v, k| {
                (v ^ word(k)).wrapping_mul(31).wrapping_add(word(k))
            });
            v = v.wrapping_add(word(999));
            v ^ DATA[1] as u32
        },
    )
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for form in super::listed() {
        let parts: Vec<String> = form.split('.').map(str::to_owned).collect();
        match parts[0].as_str() {
            "ld" | "ldu" => out.push(load(&form, &parts)),
            "st" => out.push(store(&form, &parts)),
            _ => {}
        }
    }
    out.extend(hints());
    out.push(large_parameter());
    out
}
