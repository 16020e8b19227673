//! An unsupported instruction must refuse its module at load, with opcode and line, and must never
//! compute wrong numbers.

use std::collections::BTreeSet;

use super::super::HEADER;
use super::{FAMILIES, listed};
use crate::exec::contract::{LoadError, LoadOptions};
use crate::exec::program::Program;

/// Modifiers that change results.
const MODIFIERS: [&str; 16] = [
    "sat", "ftz", "rn", "rz", "rni", "approx", "full", "NaN", "hi", "wide", "cc", "shiftamt",
    "clamp", "wrap", "relu", "xorsign",
];

fn load(text: &str) -> Result<Program, String> {
    let options = LoadOptions::of((8, 0));
    Program::load(text.as_bytes(), &options).map_err(|e| match e {
        LoadError::NoBinary(t) | LoadError::Syntax(t) | LoadError::Unsupported(t) => t,
    })
}

/// A key that ignores the order of modifiers: `add.sat.rn.f32` equals `add.rn.sat.f32`.
fn key(form: &str) -> Vec<String> {
    let mut parts: Vec<String> = form.split('.').map(str::to_owned).collect();
    parts[1..].sort_unstable();
    parts
}

#[test]
fn a_modifier_that_does_not_belong_refuses_the_module() {
    let known: BTreeSet<Vec<String>> = listed().iter().map(|f| key(f)).collect();
    let mut seen = BTreeSet::new();
    let (mut tried, mut accepted) = (0, Vec::new());
    for case in FAMILIES.iter().flat_map(|(_, cases)| cases()) {
        let form = &case.forms[0];
        if case.text.is_empty() || form.starts_with('%') {
            continue;
        }
        // One form of each combination of opcode and type is enough.
        let parts: Vec<&str> = form.split('.').collect();
        let kind = (parts[0].to_owned(), parts[parts.len() - 1].to_owned());
        if !seen.insert(kind) {
            continue;
        }
        for modifier in MODIFIERS {
            let (head, tail) = form.split_once('.').map_or((form.as_str(), ""), |p| p);
            let dot = if tail.is_empty() { "" } else { "." };
            let other = format!("{head}.{modifier}{dot}{tail}");
            if parts.contains(&modifier) || known.contains(&key(&other)) {
                continue;
            }
            tried += 1;
            match load(&case.text.replace(form.as_str(), &other)) {
                Ok(_) => accepted.push(other),
                Err(e) => assert!(e.contains("line "), "{other}: {e}"),
            }
        }
    }
    assert!(tried > 2000, "only {tried} forms were tried");
    assert!(accepted.is_empty(), "accepted: {accepted:#?}");
}

#[test]
fn unsupported_ptx_is_named_with_its_line() {
    for form in [
        "tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%d0, {%f4, %f5}]",
        "suld.b.1d.b32.trap %r0, [%d0, {%r1}]",
        "vadd4.u32.u32.u32 %r0, %r1, %r2, %r3",
        "wgmma.fence.sync.aligned",
        "tcgen05.wait::ld.sync.aligned",
        "barrier.cluster.arrive",
        "cp.async.bulk.wait_group 0",
        "mapa.shared::cluster.u32 %r0, %r1, 0",
        "getctarank.u32 %r0, %d0",
        "multimem.red.global.add.u32 [%d0], %r0",
        "alloca.u64 %d0, 16",
        "stacksave.u64 %d0",
        "atom.global.exch.b128 %d0, [%d1], %d2",
        "redux.sync.min.f32 %f0, %f1, -1",
        "isspacep.shared::cluster.x %p0, %d0",
        "ld.shared.v8.f32 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, [%d0]",
        "add.f32x2 %d0, %d1, %d2",
        "frobnicate.u32 %r0, %r1",
    ] {
        let text = format!(
            "{HEADER}.visible .entry k() {{\n.reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>; .reg .pred %p<4>;\n{form};\nret; }}"
        );
        let opcode = form.split(' ').next().unwrap();
        match load(&text) {
            Ok(_) => panic!("{form} was loaded"),
            Err(e) => {
                assert!(e.contains(opcode) && e.contains("line 6"), "{form}: {e}");
                let texture = ["tex.", "suld."].iter().any(|word| form.starts_with(word));
                assert_eq!(e.contains("no textures"), texture, "{form}: {e}");
            }
        }
    }
}
