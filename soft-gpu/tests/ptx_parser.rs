//! The parser on the committed fixtures, whole and damaged.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use soft_gpu::ptx::ast::{Function, Operand, Statement};
use soft_gpu::ptx::{MAX_REGISTERS, parse};

/// Every `.ptx` of `fixtures/`.
fn fixtures() -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut found = Vec::new();
    for folder in [root.clone(), root.join("demo")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "ptx") {
                let text = std::fs::read(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found.sort();
    assert!(found.len() > 15, "fixtures are missing: {}", found.len());
    found
}

#[test]
fn every_fixture_parses_whole() {
    for (path, text) in fixtures() {
        let module = parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!((&module.target[0][..], module.address_size), ("sm_80", 64));
        let text = String::from_utf8(text).unwrap();
        let kernels = module
            .functions
            .iter()
            .filter(|f| f.kernel && !f.declaration)
            .count();
        assert_eq!(
            kernels,
            text.matches(".visible .entry").count(),
            "{}",
            path.display()
        );
        for function in &module.functions {
            every_label_resolves(function, &path);
        }
    }
}

/// A branch names a label of its own body, also out of flattened scopes.
fn every_label_resolves(function: &Function, path: &Path) {
    let labels: Vec<&str> = function
        .body
        .iter()
        .filter_map(|s| {
            if let Statement::Label(l) = s {
                Some(l.as_str())
            } else {
                None
            }
        })
        .collect();
    for statement in &function.body {
        if let Statement::Inst(inst) = statement
            && (inst.opcode == "bra" || inst.opcode == "bra.uni")
        {
            let [Operand::Name(target)] = &inst.operands[..] else {
                panic!("{inst:?}")
            };
            assert!(
                labels.contains(&target.as_str()),
                "{}: {inst:?}",
                path.display()
            );
        }
    }
    for (_, targets) in &function.targets {
        assert!(
            targets.iter().all(|t| labels.contains(&t.as_str())),
            "{}",
            path.display()
        );
    }
}

#[test]
fn every_prefix_of_a_fixture_is_refused_or_parsed() {
    let (_, text) = fixtures()
        .into_iter()
        .find(|(p, _)| p.ends_with("control.ptx"))
        .unwrap();
    for end in 0..text.len() {
        // The outcome depends on where the cut is; what counts is that there is one.
        if let Err(error) = parse(&text[..end]) {
            assert!(error.line >= 1 && !error.message.is_empty());
        }
    }
}

/// Pieces that reach every part of the grammar.
const PIECES: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ";",
    ",",
    ":",
    "=",
    "|",
    "!",
    "@",
    "@@",
    "-",
    "+",
    "\"",
    "/*",
    "*/",
    "//",
    "\n",
    "\0",
    "\u{ff}",
    "_",
    ".",
    "%r1",
    "%r<99999999>",
    "0x",
    "0f",
    "0d0",
    "1e+",
    "8.0",
    "18446744073709551616",
    ".reg .b32 ",
    ".reg .pred p;",
    ".global .align 8 .b8 x[",
    ".param .b64 p;",
    ".visible .entry k(",
    ".func (.reg .b32 r) f (",
    ".extern ",
    ".common ",
    ".section .debug { ",
    ".loc 1 2 3, ",
    ".file 1 ",
    ".pragma ",
    "l: .callprototype (",
    "t: .branchtargets ",
    "generic(",
    ".version 8.0\n.target sm_80\n",
    ".align 16 ",
    ".v4 ",
    "[%rd1+-4]",
    "{a,b,_}",
    "call (r), f, (p);",
];

#[derive(Debug, Clone)]
enum Damage {
    Flip(Index, u8),
    Cut(Index, Index),
    Copy(Index, Index, Index),
    Insert(Index, usize, u8),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(i, b)| Damage::Flip(i, b)),
        (at(), at()).prop_map(|(i, j)| Damage::Cut(i, j)),
        (at(), at(), at()).prop_map(|(i, j, k)| Damage::Copy(i, j, k)),
        (at(), 0..PIECES.len(), 1u8..4).prop_map(|(i, p, n)| Damage::Insert(i, p, n)),
    ]
}

fn apply(text: &mut Vec<u8>, damage: &Damage) {
    if text.is_empty() {
        return;
    }
    let (len, short) = (text.len(), 400);
    match damage {
        Damage::Flip(at, byte) => text[at.index(len)] = *byte,
        Damage::Cut(at, length) => {
            let at = at.index(len);
            text.drain(at..(at + length.index(short)).min(len));
        }
        Damage::Copy(from, length, to) => {
            let from = from.index(len);
            let piece = text[from..(from + length.index(short)).min(len)].to_vec();
            let to = to.index(len);
            text.splice(to..to, piece);
        }
        Damage::Insert(at, piece, times) => {
            let at = at.index(len);
            text.splice(
                at..at,
                PIECES[*piece].repeat(usize::from(*times)).into_bytes(),
            );
        }
    }
}

thread_local!(static ALL: Vec<(PathBuf, Vec<u8>)> = fixtures());

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Damaged text is parsed or refused, in bounded space.
    #[test]
    fn damaged_fixtures_never_panic(
        which in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..12),
    ) {
        let mut text = ALL.with(|all| which.get(all).1.clone());
        for damage in &damages {
            apply(&mut text, damage);
        }
        match parse(&text) {
            Ok(module) => {
                let registers: usize = module.functions.iter().map(|f| f.registers.len()).sum();
                prop_assert!(registers <= MAX_REGISTERS);
            }
            Err(error) => prop_assert!(error.line >= 1 && error.message.len() < 4096),
        }
    }

    /// Words of the grammar in any order.
    #[test]
    fn loose_words_never_panic(words in prop::collection::vec(0..PIECES.len(), 0..60)) {
        let mut text = String::from(".version 8.0 .target sm_80 .visible .entry k(.param .u64 p) {");
        for word in words {
            text.push_str(PIECES[word]);
            text.push(' ');
        }
        if let Err(error) = parse(text.as_bytes()) {
            prop_assert!(error.line >= 1);
        }
    }
}
