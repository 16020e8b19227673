//! Fixtures, and changes that damage them, for tests with hostile text.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;

/// All `.ptx` files of `fixtures/` and its subfolders.
pub(crate) fn fixtures() -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut found = Vec::new();
    for folder in [root.clone(), root.join("demo"), root.join("triton")] {
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

/// Words for every part of the grammar.
pub(crate) const PIECES: &[&str] = &[
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

/// A change of a text: flips bits, cuts, copies or inserts a part.
#[derive(Debug, Clone)]
pub(crate) enum Damage {
    Flip(Index, u8),
    Cut(Index, Index),
    Copy(Index, Index, Index),
    Insert(Index, usize, u8),
}

/// Generates any change at any position.
pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(i, b)| Damage::Flip(i, b)),
        (at(), at()).prop_map(|(i, j)| Damage::Cut(i, j)),
        (at(), at(), at()).prop_map(|(i, j, k)| Damage::Copy(i, j, k)),
        (at(), 0..PIECES.len(), 1u8..4).prop_map(|(i, p, n)| Damage::Insert(i, p, n)),
    ]
}

/// Applies a change to `text`.
pub(crate) fn apply(text: &mut Vec<u8>, damage: &Damage) {
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
