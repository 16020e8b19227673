//! Parses the parts of PTX that [`super::flow`] needs: kernels, their parameters, statements and
//! operands. Functions return `None` for any other form.

use std::collections::HashMap;

/// A kernel that has a body.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    pub(super) name: &'a str,
    /// Size in bytes of each parameter that consists of whole 8-byte words.
    pub(super) params: HashMap<&'a str, u64>,
    /// The PTX text between the outer braces of the kernel.
    pub(super) body: &'a str,
}

/// A statement, as parsed from the PTX text before a semicolon.
#[derive(Debug)]
pub(super) enum Statement<'a> {
    /// A statement without effect.
    Nothing,
    /// Names of declared registers.
    Registers(Vec<&'a str>),
    /// An instruction without guard and labels.
    Instruction(Instruction<'a>),
}

/// An instruction.
#[derive(Debug)]
pub(super) struct Instruction<'a> {
    /// The opcode, split at its dots.
    pub(super) parts: Vec<&'a str>,
    pub(super) operands: Vec<Operand<'a>>,
}

/// An operand.
#[derive(Debug)]
pub(super) enum Operand<'a> {
    /// A register or a symbol.
    Name(&'a str),
    /// A register that the hardware sets, of at most 32 bits.
    Special,
    /// A number. `None`: the number is not a plain decimal number of at most 31 bits.
    Number(Option<i64>),
    /// `{a, b}` and `a|b`.
    List(Vec<Operand<'a>>),
    /// `[name+offset]`. The name may be missing. The offset is `None` if it is not a plain decimal
    /// number of at most 31 bits.
    Memory(Option<&'a str>, Option<i64>),
}

/// Replaces each comment by a space, and each string by an empty string. `None`: the PTX text
/// contains something that the parser does not know.
pub(super) fn plain(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"', '#', '\\']) {
        let (before, special) = rest.split_at(at);
        plain.push_str(before);
        rest = if special.starts_with("//") {
            let end = special.find('\n').unwrap_or(special.len());
            // PTX does not specify whether the comment continues on the next line.
            if special[..end].trim_end().ends_with('\\') {
                return None;
            }
            &special[end..]
        } else if let Some(comment) = special.strip_prefix("/*") {
            plain.push(' ');
            &comment[comment.find("*/")? + 2..]
        } else {
            let string = special.strip_prefix('"')?;
            let end = string.find(['"', '\\', '\n'])?;
            plain.push_str("\"\"");
            string[end..].strip_prefix('"')?
        };
    }
    plain.push_str(rest);
    plain.is_ascii().then_some(plain)
}

/// The kernels that have a body. `text` has no comments.
pub(super) fn entries(text: &str) -> Option<Vec<Entry<'_>>> {
    const WORD: &str = ".entry";
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(WORD) {
        rest = &rest[at + WORD.len()..];
        // A declaration ends with a semicolon and has no body. A pragma before the body makes the
        // PTX text unknown.
        let open = rest.find(['{', ';'])?;
        let (head, tail) = rest.split_at(open);
        rest = tail;
        if tail.starts_with('{') {
            let body = block(tail)?;
            let (name, params) = head.trim_start().split_at(word(head.trim_start()));
            rest = &tail[body.len() + 2..];
            found.push(Entry {
                name,
                params: parameters(params),
                body,
            });
        }
    }
    Some(found)
}

/// The text between the opening brace at the beginning and its closing brace.
fn block(text: &str) -> Option<&str> {
    let mut depth = 0_usize;
    for (at, c) in text.bytes().enumerate() {
        match c {
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return text.get(1..at);
        }
    }
    None
}

fn parameters(head: &str) -> HashMap<&str, u64> {
    let of = |declaration| whole(declaration).into_iter();
    head.split([',', '(', ')']).flat_map(of).collect()
}

/// Name and size in bytes of a 64-bit parameter, or of a structure with an alignment of at least 8
/// bytes.
fn whole(declaration: &str) -> Option<(&str, u64)> {
    let mut tokens = declaration.split_whitespace();
    if tokens.next()? != ".param" {
        return None;
    }
    let mut token = tokens.next()?;
    let mut aligned = 0;
    if token == ".align" {
        aligned = tokens.next()?.parse().ok()?;
        token = tokens.next()?;
    }
    let last = tokens.last()?;
    let (name, size) = last.split_at(word(last));
    match (token, size) {
        (".u64" | ".s64" | ".b64", "") => Some((name, 8)),
        (".b8", _) if aligned >= 8_u64 => {
            let size = size.strip_prefix('[')?.strip_suffix(']')?;
            Some((name, size.parse().ok()?))
        }
        _ => None,
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// The length in bytes of the word at the beginning of a text.
fn word(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

/// The name at the beginning of a text, and the rest of the text.
fn name(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.split_at(word(text));
    let begins = name.chars().next()?;
    (!begins.is_ascii_digit()).then_some((name, rest.trim_start()))
}

/// Skips the number at the beginning of a text and returns the rest.
fn number(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest.trim_start())
}

impl<'a> Statement<'a> {
    /// Parses the PTX text before a semicolon.
    pub(super) fn of(text: &'a str) -> Option<Statement<'a>> {
        let mut text = text.trim();
        loop {
            text = if let Some(rest) = text.strip_prefix(['{', '}']) {
                rest.trim_start()
            } else if let Some(rest) = text.strip_prefix(".loc")
                && rest.starts_with(char::is_whitespace)
            {
                location(rest)?
            } else if let Some(rest) = text.strip_prefix('@') {
                let rest = rest.trim_start();
                name(rest.strip_prefix('!').unwrap_or(rest).trim_start())?.1
            } else if let Some((_, rest)) = name(text)
                && rest.starts_with(':')
            {
                rest[1..].trim_start()
            } else {
                break;
            };
        }
        match text.chars().next() {
            None => Some(Statement::Nothing),
            Some('.') => directive(text),
            Some(_) => Instruction::of(text).map(Statement::Instruction),
        }
    }
}

/// Parses a `.loc` directive, which ends without a semicolon, and returns the rest.
fn location(text: &str) -> Option<&str> {
    let place = |text| number(number(number(text)?)?);
    let rest = place(text.trim_start())?;
    let Some(inlined) = rest.strip_prefix(',') else {
        return Some(rest);
    };
    let rest = inlined.trim_start().strip_prefix("function_name")?;
    let (_, mut rest) = name(rest.trim_start())?;
    if let Some(offset) = rest.strip_prefix('+') {
        rest = number(offset.trim_start())?;
    }
    let rest = rest.strip_prefix(',')?.trim_start();
    place(rest.strip_prefix("inlined_at")?.trim_start())
}

fn directive(text: &str) -> Option<Statement<'_>> {
    let end = text[1..]
        .find(|c| !is_word(c))
        .map_or(text.len(), |n| n + 1);
    let (directive, rest) = text.split_at(end);
    let only = |more: &str| {
        rest.chars()
            .all(|c| is_word(c) || c.is_whitespace() || more.contains(c))
    };
    match directive {
        ".reg" if only(".,<>") => {
            let words = rest.split(|c| !is_word(c)).filter(|word| !word.is_empty());
            Some(Statement::Registers(words.collect()))
        }
        ".shared" | ".local" if only(".,[]") => Some(Statement::Nothing),
        ".pragma"
            if rest
                .replace("\"\"", "")
                .chars()
                .all(|c| c == ',' || c.is_whitespace()) =>
        {
            Some(Statement::Nothing)
        }
        ".branchtargets" if only(",") => Some(Statement::Nothing),
        _ => None,
    }
}

impl<'a> Instruction<'a> {
    fn of(text: &'a str) -> Option<Instruction<'a>> {
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':');
        let end = text.find(|c| !part(c)).unwrap_or(text.len());
        let (opcode, operands) = text.split_at(end);
        Some(Instruction {
            parts: opcode.split('.').collect(),
            operands: list(operands.trim())?,
        })
    }

    /// Whether the opcode has `part` after one of its dots.
    pub(super) fn has(&self, part: &str) -> bool {
        self.parts[1..].contains(&part)
    }
}

/// Splits operands at commas outside brackets.
fn list(text: &str) -> Option<Vec<Operand<'_>>> {
    let mut depth = 0_i32;
    let at_top = |c: char| {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    match text {
        "" => Some(Vec::new()),
        _ => text
            .split(at_top)
            .map(|text| Operand::of(text.trim()))
            .collect(),
    }
}

impl<'a> Operand<'a> {
    fn of(text: &'a str) -> Option<Operand<'a>> {
        let within = |open, close| text.strip_prefix(open)?.strip_suffix(close).map(str::trim);
        if let Some(text) = within('[', ']') {
            return Operand::memory(text);
        }
        let parts = match within('{', '}') {
            Some(text) => text.split(','),
            None if text.contains('|') => text.split('|'),
            None => return Operand::single(text),
        };
        let parts = parts.map(|part| Operand::single(part.trim()));
        parts.collect::<Option<_>>().map(Operand::List)
    }

    /// Parses a name or a number.
    fn single(text: &'a str) -> Option<Operand<'a>> {
        let text = text.strip_prefix('!').unwrap_or(text);
        if let Some((name, rest)) = name(text) {
            return match rest {
                ".x" | ".y" | ".z" if SPECIAL_VECTORS.contains(&name) => Some(Operand::Special),
                "" if SPECIAL.contains(&name) => Some(Operand::Special),
                "" => Some(Operand::Name(name)),
                _ => None,
            };
        }
        let digits = text.strip_prefix('-').unwrap_or(text);
        let written = |c: char| c.is_ascii_alphanumeric() || c == '.';
        let number =
            digits.starts_with(|c: char| c.is_ascii_digit()) && digits.chars().all(written);
        number.then(|| Operand::Number(decimal(text)))
    }

    fn memory(text: &'a str) -> Option<Operand<'a>> {
        let Some((name, rest)) = name(text) else {
            return match Operand::single(text)? {
                Operand::Number(offset) => Some(Operand::Memory(None, offset)),
                _ => None,
            };
        };
        let offset = match rest.strip_prefix('+') {
            Some(offset) => Operand::single(offset.trim())?,
            None if rest.is_empty() => Operand::Number(Some(0)),
            None => return None,
        };
        match offset {
            Operand::Number(offset) => Some(Operand::Memory(Some(name), offset)),
            _ => None,
        }
    }
}

const SPECIAL_VECTORS: [&str; 8] = [
    "%tid",
    "%ntid",
    "%ctaid",
    "%nctaid",
    "%clusterid",
    "%nclusterid",
    "%cluster_ctaid",
    "%cluster_nctaid",
];

const SPECIAL: [&str; 11] = [
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%clock",
];

/// The value of a plain decimal number of at most 31 bits (a leading 0 means octal). Larger numbers
/// could be parts of addresses.
fn decimal(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits.bytes().all(|c| c.is_ascii_digit());
    let octal = digits.len() > 1 && digits.starts_with('0');
    let value: i32 = text.parse().ok()?;
    (plain && !octal).then_some(value.into())
}
