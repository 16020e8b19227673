//! Finds the imports between the modules of a crate in Rust sources.
//!
//! Only paths are parsed: `crate::…`, `super::…` and their groups, at any place. That is enough,
//! because a name of another module of the same crate is always reached by such a path, except for
//! names that `lib.rs` re-exports, which are resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Imports by (importing module, imported module), with their places as `file:line`.
pub(crate) type Edges = BTreeMap<(String, String), BTreeSet<String>>;

/// The imports between the modules directly below module `at`, in the crate with sources in `src`;
/// an empty `at` means the root of the crate.
///
/// # Errors
/// If a source cannot be read.
pub(crate) fn edges(src: &Path, at: &[String]) -> io::Result<Edges> {
    let folder = at.iter().fold(src.to_owned(), |path, name| path.join(name));
    let modules = modules(&folder)?;
    let reexports = reexports(src, &folder, &modules)?;
    let mut edges = Edges::new();
    for file in sources(&folder)? {
        let text = fs::read_to_string(&file)?;
        let module = module_of(src, &file);
        let Some(from) = module.get(at.len()).filter(|name| modules.contains(*name)) else {
            continue;
        };
        for import in imports(&text, &module) {
            let Some(name) = import.path.strip_prefix(at).and_then(|path| path.first()) else {
                continue;
            };
            let to = match modules.contains(name) {
                true => name,
                false => match reexports.get(name) {
                    Some(module) => module,
                    None => continue,
                },
            };
            if to != from {
                let place = format!("{}:{}", file.display(), import.line);
                let places = edges.entry((from.clone(), to.clone())).or_default();
                places.insert(place);
            }
        }
    }
    Ok(edges)
}

/// The names of the modules in a folder.
fn modules(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let is_module = path.is_dir() || path.extension().is_some_and(|kind| kind == "rs");
        if is_module && !["lib", "main", "mod", "bin"].contains(&&*name) {
            names.insert(name.into_owned());
        }
    }
    Ok(names)
}

/// The origin of each name that `lib.rs`, or the `mod.rs` of a folder, re-exports.
fn reexports(
    src: &Path,
    folder: &Path,
    modules: &BTreeSet<String>,
) -> io::Result<BTreeMap<String, String>> {
    let root = match folder == src {
        true => src.join("lib.rs"),
        false => folder.join("mod.rs"),
    };
    let text = if root.exists() {
        fs::read_to_string(&root)?
    } else {
        String::new()
    };
    let tokens = tokens(&text);
    let mut names = BTreeMap::new();
    for (index, token) in tokens.iter().enumerate() {
        if token.text == "use" {
            let mut found = Vec::new();
            tree(&tokens, index + 1, &[], &mut found);
            let of_module = found
                .into_iter()
                .filter(|import| import.path.len() > 1 && modules.contains(&import.path[0]));
            names.extend(of_module.map(|import| {
                let name = import.path.last().cloned().unwrap_or_default();
                (name, import.path[0].clone())
            }));
        }
    }
    Ok(names)
}

/// All Rust sources below a folder, except what a build left there.
pub(super) fn sources(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.ends_with("target") {
            continue;
        }
        if path.is_dir() {
            all.extend(sources(&path)?);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// The path of the module in a file, from the root of its crate.
fn module_of(src: &Path, file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(src).unwrap_or(file).with_extension("");
    let parts = inside
        .iter()
        .map(|part| part.to_string_lossy().into_owned());
    let mut parts: Vec<String> = parts.collect();
    if matches!(
        parts.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        parts.pop();
    }
    parts
}

/// A path in a source, from the root of the crate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Import {
    path: Vec<String>,
    line: usize,
}

/// The paths with `crate::` and `super::` in a source.
fn imports(text: &str, module: &[String]) -> Vec<Import> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    // The module of each open brace; `None`: the brace begins no module.
    let mut braces: Vec<Option<String>> = Vec::new();
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        match token.text {
            "{" => {
                let begins = index >= 2 && tokens[index - 2].text == "mod";
                braces.push(begins.then(|| tokens[index - 1].text.to_owned()));
            }
            "}" => drop(braces.pop()),
            "crate" if is_path(&tokens, index) => {
                tree(&tokens, index + 2, &[], &mut found);
            }
            "super" if is_path(&tokens, index) => {
                let mut base = module.to_vec();
                base.extend(braces.iter().flatten().cloned());
                while is_path(&tokens, index) && tokens[index].text == "super" {
                    base.pop();
                    index += 2;
                }
                tree(&tokens, index, &base, &mut found);
                continue;
            }
            _ => {}
        }
        index += 1;
    }
    found
}

fn is_path(tokens: &[Token<'_>], index: usize) -> bool {
    tokens.get(index + 1).is_some_and(|next| next.text == "::")
}

/// Parses the rest of a path: names, and groups of names. Returns the index of its end.
fn tree(tokens: &[Token<'_>], mut index: usize, base: &[String], found: &mut Vec<Import>) -> usize {
    let mut path = base.to_vec();
    while let Some(token) = tokens.get(index) {
        match token.text {
            "{" => {
                index += 1;
                while let Some(token) = tokens.get(index).filter(|token| token.text != "}") {
                    index = match token.text {
                        "," => index + 1,
                        _ => tree(tokens, index, &path, found).max(index + 1),
                    };
                }
                return index + 1;
            }
            "super" if is_path(tokens, index) => {
                path.pop();
                index += 2;
            }
            name if name.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                path.push(name.to_owned());
                if !is_path(tokens, index) {
                    let line = token.line;
                    found.push(Import { path, line });
                    return index + 1;
                }
                index += 2;
            }
            _ => {
                let line = token.line;
                found.push(Import { path, line });
                return index;
            }
        }
    }
    index
}

#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// Names, braces, `::` and other tokens, without comments, strings, characters and lifetimes.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let end = match &bytes[at..] {
            [b'/', b'/', ..] => at + text[at..].find('\n').unwrap_or(text.len() - at),
            [b'/', b'*', ..] => end_of_comment(bytes, at),
            [b'"', ..] => end_of_string(bytes, at + 1),
            [b'r', b'"' | b'#', ..] if let Some(end) = end_of_raw(text, at) => end,
            [b'\'', ..] => end_of_quote(bytes, at),
            [first, ..] if first.is_ascii_alphabetic() || *first == b'_' => {
                let rest = bytes[at..].iter();
                let length = rest.take_while(|b| b.is_ascii_alphanumeric() || **b == b'_');
                let end = at + length.count();
                let text = &text[at..end];
                tokens.push(Token { text, line });
                end
            }
            [b':', b':', ..] => {
                tokens.push(Token { text: "::", line });
                at + 2
            }
            [first, ..] if first.is_ascii() && !first.is_ascii_whitespace() => {
                let text = &text[at..=at];
                tokens.push(Token { text, line });
                at + 1
            }
            _ => at + 1,
        };
        let end = end.min(bytes.len());
        line += bytes[at..end].iter().filter(|b| **b == b'\n').count();
        at = end;
    }
    tokens
}

fn end_of_comment(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

/// `None`: a name that begins with r, or a raw identifier.
fn end_of_raw(text: &str, at: usize) -> Option<usize> {
    let hashes = text[at + 1..].bytes().take_while(|b| *b == b'#').count();
    let begin = at + 1 + hashes;
    if text.as_bytes().get(begin) != Some(&b'"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let length = text[begin + 1..].find(&close)?;
    Some(begin + 1 + length + close.len())
}

/// The end of a character or of a lifetime.
fn end_of_quote(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at + 1) {
        Some(b'\\') => {
            let rest = bytes[at + 3..].iter().position(|b| *b == b'\'');
            rest.map_or(bytes.len(), |length| at + 4 + length)
        }
        Some(byte) if byte.is_ascii() && bytes.get(at + 2) != Some(&b'\'') => at + 1,
        _ => {
            let rest = bytes[at + 1..].iter().position(|b| *b == b'\'');
            rest.map_or(bytes.len(), |length| at + 2 + length)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_found_wherever_they_stand() {
        let source = r##"
            //! [`crate::comment`]
            use crate::{a::X, b::{self, c::Y}};
            use super::sibling::Z; /* crate::comment::/* */ */
            pub(in crate::own) fn f<'a>(x: &'a str) -> char { '"' }
            const TEXT: &str = r#"crate::"text""#;
            mod inner { use super::*; use super::super::outer::W; fn g() { $crate::d::h(); } }
            fn last() { let _ = (b'\'', "crate::text \" crate::text"); super::super::top::call() }
        "##;
        let module = ["own".to_owned(), "deep".to_owned()];
        let found = imports(source, &module);
        let paths: Vec<String> = found.iter().map(|import| import.path.join("::")).collect();
        assert_eq!(
            paths,
            [
                "a::X",
                "b::self",
                "b::c::Y",
                "own::sibling::Z",
                "own",
                "own::deep",
                "own::outer::W",
                "d::h",
                "top::call",
            ]
        );
        assert_eq!((found[0].line, found[8].line), (3, 8));
    }
}
