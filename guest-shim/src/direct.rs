//! Which kernels of a PTX text reach nothing but what their parameters name.
//!
//! A kernel may find an address in memory: a pointer that a copy or an earlier kernel left there. One that
//! dereferences nothing that it loaded cannot, and touches of the program's memory only blocks that its parameters
//! name. What is not plainly so counts as reaching everything.

use std::collections::{HashMap, HashSet};

/// What a register may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    /// At most 32 bits that were loaded: an index, no address.
    Index,
    /// Something loaded that may be an address.
    Loaded,
}

/// The widest immediate that an index is multiplied with to be an offset; with more it may be half an address.
const WIDEST_STRIDE: u64 = 1 << 20;

/// The largest such shift.
const WIDEST_SHIFT: u64 = 8;

/// The kernels of an image that reach nothing but what their parameters name. Of images other than PTX: none.
pub(crate) fn kernels(image: &[u8]) -> HashSet<String> {
    // Machine code and containers have bytes that no text has.
    if image.iter().take(16).any(|byte| *byte == 0) {
        return HashSet::new();
    }
    let text = image.strip_suffix(&[0]).unwrap_or(image);
    match std::str::from_utf8(text) {
        Ok(text) if !text.contains('\0') => entries(&without_comments(text)),
        _ => HashSet::new(),
    }
}

fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, comment) = rest.split_at(at);
        plain.push_str(before);
        let end = if comment.starts_with("//") {
            comment.find('\n')
        } else if comment.starts_with("/*") {
            comment.find("*/").map(|end| end + 2)
        } else {
            plain.push('/');
            Some(1)
        };
        rest = end.map_or("", |end| &comment[end..]);
    }
    plain + rest
}

fn entries(text: &str) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut rest = text;
    while let Some(at) = rest.find(".entry") {
        rest = &rest[at + ".entry".len()..];
        let Some(open) = rest.find('{') else { break };
        // A declaration without a body ends before it.
        let head = &rest[..open];
        if head.contains(';') {
            continue;
        }
        let name: String = head.trim_start().chars().take_while(is_word).collect();
        let body = block(&rest[open..]);
        if is_direct(body) {
            found.insert(name);
        }
        rest = &rest[open + body.len()..];
    }
    found
}

/// From a brace to the one that closes it, without both; or to the end.
fn block(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.get(1..at).unwrap_or("");
        }
    }
    text.get(1..).unwrap_or("")
}

fn is_word(c: &char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// Names in an operand: registers, and symbols, which hold nothing loaded.
fn names(operand: &str) -> impl Iterator<Item = &str> {
    let words = operand.split(|c| !is_word(&c));
    words.filter(|word| !word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit()))
}

/// An instruction without its guard and labels.
struct Instruction<'a> {
    parts: Vec<&'a str>,
    operands: Vec<&'a str>,
}

impl<'a> Instruction<'a> {
    fn of(statement: &'a str) -> Option<Instruction<'a>> {
        let mut text = statement.trim();
        loop {
            let word = text.find(|c| !is_word(&c)).unwrap_or(text.len());
            let after = &text[word..];
            text = if let Some(rest) = text.strip_prefix(['{', '}']) {
                rest.trim_start()
            } else if text.starts_with(".loc") || text.starts_with("@@") {
                // Said of the source; it ends with its line.
                text.find('\n').map_or("", |end| text[end..].trim_start())
            } else if word > 0 && after.starts_with(':') {
                after[1..].trim_start()
            } else if text.starts_with('@') {
                let end = text.find(char::is_whitespace).unwrap_or(text.len());
                text[end..].trim_start()
            } else {
                break;
            };
        }
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let (opcode, operands) = text.split_at(end);
        // A directive declares something.
        if opcode.is_empty() || opcode.starts_with('.') {
            return None;
        }
        Some(Instruction {
            parts: opcode.split('.').collect(),
            operands: split(operands),
        })
    }

    fn is(&self, name: &str) -> bool {
        self.parts[0] == name
    }

    fn has(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }

    /// Of a type that an address fits in?
    fn is_wide(&self) -> bool {
        const WIDE: [&str; 5] = ["u64", "s64", "b64", "f64", "b128"];
        WIDE.iter().any(|wide| self.has(wide))
    }

    /// The largest number among the operands that is written out.
    fn immediate(&self) -> u64 {
        let number = |text: &&str| {
            let text = text.trim().trim_start_matches('-').trim_end_matches('U');
            match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            }
        };
        self.operands.iter().filter_map(number).max().unwrap_or(0)
    }

    /// Is what it makes of an index an index, or an offset?
    fn keeps_index(&self) -> bool {
        let packs = self.operands.iter().skip(1).any(|o| o.contains('{'));
        if !self.is_wide() {
            return true;
        }
        match self.parts[0] {
            "add" | "sub" | "cvt" | "selp" | "min" | "max" | "and" | "neg" | "abs" | "rem"
            | "div" | "shr" => true,
            "mov" => !packs,
            "mul" | "mad" => !self.has("hi") && self.immediate() <= WIDEST_STRIDE,
            "shl" => self
                .operands
                .last()
                .is_some_and(|by| by.trim().parse().is_ok_and(|by: u64| by <= WIDEST_SHIFT)),
            _ => false,
        }
    }
}

/// At commas that are in no brackets.
fn split(operands: &str) -> Vec<&str> {
    let mut depth = 0;
    let at_top = move |c: char| {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    operands.split(at_top).map(str::trim).collect()
}

fn is_direct(body: &str) -> bool {
    let program: Vec<_> = body.split(';').filter_map(Instruction::of).collect();
    let mut registers = HashMap::new();
    loop {
        let mut changed = false;
        for instruction in &program {
            match step(instruction, &mut registers) {
                Some(more) => changed |= more,
                None => return false,
            }
        }
        if !changed {
            return true;
        }
    }
}

/// What an instruction leaves in its registers; true if that is new. `None`: it may reach anything.
fn step<'a>(instruction: &Instruction<'a>, registers: &mut HashMap<&'a str, Held>) -> Option<bool> {
    const ELSEWHERE: [&str; 8] = ["call", "tex", "tld4", "suld", "sust", "sured", "txq", "suq"];
    if ELSEWHERE.contains(&instruction.parts[0]) {
        return None;
    }
    let held = |operand: &str, registers: &HashMap<&'a str, Held>| {
        names(operand)
            .filter_map(|name| registers.get(name).copied())
            .max()
    };
    let near = ["param", "shared", "local", "const"]
        .iter()
        .any(|space| instruction.has(space));
    let plain = instruction.is("ld") || instruction.is("st");
    let memory = |operand: &&&str| operand.contains('[');
    for address in instruction.operands.iter().filter(memory) {
        // Its own memory cannot be the program's, wherever in it the address is.
        if held(address, registers) == Some(Held::Loaded) && !(near && plain) {
            return None;
        }
    }
    let (first, sources) = instruction.operands.split_first()?;
    let touches = instruction.operands.iter().any(|o| o.contains('['));
    let result = if instruction.is("ld") && instruction.has("param") {
        // What parameters name is known.
        None
    } else if touches {
        let wide = instruction.is_wide() || !(plain || instruction.is("atom"));
        Some(if wide { Held::Loaded } else { Held::Index })
    } else {
        let from = sources.iter().filter_map(|s| held(s, registers)).max();
        match from {
            Some(Held::Index) if !instruction.keeps_index() => Some(Held::Loaded),
            other => other,
        }
    };
    let mut changed = false;
    if let Some(result) = result.filter(|_| !first.contains('[')) {
        for name in names(first) {
            let before = registers.get(name).copied();
            changed |= before < Some(result);
            registers.insert(name, before.map_or(result, |before| before.max(result)));
        }
    }
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Is a kernel with these instructions direct?
    fn direct(body: &str) -> bool {
        let text = format!(
            ".version 7.0\n.target sm_70\n.address_size 64\n\
             .visible .entry kernel(.param .u64 a, .param .u32 n)\n.maxntid 128, 1, 1\n{{\n{body}\nret;\n}}\n"
        );
        kernels(text.as_bytes()).contains("kernel")
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
        // An element that another says.
        assert!(direct(
            "ld.param.u64 p, [a]; ld.global.u32 i, [p]; mul.wide.s32 o, i, 8; add.s64 q, p, o;
             cvt.s64.s32 k, i; shl.b64 k, k, 3; add.s64 r, p, k; st.global.u64 [q], p; ld.global.u64 v, [r];"
        ));
        // What it keeps to itself.
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
        // Known after the second look at the loop.
        assert!(!direct(
            "ld.param.u64 p, [a]; L: ld.global.u32 v, [p]; mov.b64 p, q; ld.u64 q, [p]; bra L;"
        ));
        // In halves.
        assert!(!direct(
            "ld.global.u32 l, [a]; ld.global.u32 h, [a+4]; mov.b64 p, {l, h}; st.u32 [p], 1;"
        ));
        assert!(!direct(
            "ld.global.u32 h, [a]; cvt.u64.u32 p, h; shl.b64 p, p, 32; or.b64 q, p, p; st.u32 [q], 1;"
        ));
        assert!(!direct(
            "ld.global.u32 h, [a]; cvt.u64.u32 p, h; mul.lo.s64 p, p, 4294967296; st.u32 [p], 1;"
        ));
        // By way of memory of its own, by an exchange, and after a line of the source.
        assert!(!direct("ld.shared.u64 q, [a]; st.global.u32 [q], 1;"));
        assert!(!direct(
            "atom.global.exch.b64 q, [a], 0; st.global.u32 [q], 1;"
        ));
        assert!(!direct(
            ".loc 1 2 3\nld.global.u64 q, [a];\n.loc 1 3 3\nst.global.u32 [q], 1;"
        ));
        // Who is called, and what textures are of, is not looked at.
        assert!(!direct("call.uni helper, ();"));
        assert!(!direct("tex.1d.v4.f32.s32 {a, b, c, d}, [t, {i}];"));
    }

    #[test]
    fn each_kernel_is_looked_at_by_itself_and_nothing_else_is_text() {
        let text = "// .entry no() { }\n/* .entry neither() {} */ .func helper() { ret; }
            .entry declared();
            .visible .entry one(.param .u64 a) { { .reg .b64 q; } ret; }
            .entry two(.param .u64 a) { ld.global.u64 q, [a]; st.global.u64 [q], q; }
            .entry three() { /* st */ ret; }";
        let mut found: Vec<_> = kernels(text.as_bytes()).into_iter().collect();
        found.sort();
        assert_eq!(found, ["one", "three"]);
        assert!(kernels(b"\x7fELF\0\xff").is_empty());
        assert!(kernels(b"").is_empty());
        for at in 0..text.len() {
            kernels(&text.as_bytes()[..at]);
            kernels(&text.as_bytes()[at..]);
        }
    }
}
