//! Variables, parameters and initialisers.

use super::ast::{Init, Param, Space, Type, Variable};
use super::lexer::Kind;
use super::number::Literal;
use super::stream::Stream;
use super::{MAX_VARIABLE, ParseError};

/// Largest accepted alignment, in bytes.
const MAX_ALIGN: u32 = 1 << 16;

/// Most array dimensions.
const MAX_DIMENSIONS: usize = 16;

/// Linkage words before a declaration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Linkage {
    pub(super) external: bool,
    pub(super) visible: bool,
    pub(super) weak: bool,
}

/// The state space that a word after a dot names (`global` of `.global`). A shared variable may
/// have the suffix `::cta`.
pub(super) fn space_of(word: &str) -> Option<Space> {
    Some(match word {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => return None,
    })
}

/// The part of a declaration before the variable's name: alignment, vector width, type.
struct Prefix {
    ty: Type,
    vector: u64,
    align: Option<u32>,
    managed: bool,
}

/// Reads `.align n`, `.attribute(…)`, `.ptr .space`, `.v4` and the type, in any order, up to the
/// name.
fn prefix(stream: &mut Stream<'_>) -> Result<Prefix, ParseError> {
    let (mut ty, mut vector, mut align) = (None, 1, None);
    let mut managed = false;
    while let Kind::Dot(word) = stream.peek() {
        let line = stream.line();
        stream.take()?;
        match word {
            "align" => {
                let value = stream.small()?;
                if !value.is_power_of_two() || value > MAX_ALIGN {
                    return Err(ParseError::new(
                        line,
                        format!("`.align {value}` is not a power of two up to {MAX_ALIGN}"),
                    ));
                }
                align = Some(value);
            }
            "attribute" => managed |= attribute(stream)?,
            "v2" => vector = 2,
            "v4" => vector = 4,
            "v8" => vector = 8,
            // `.ptr .global .align 16` describes the memory to which a pointer parameter points.
            // This `.align` is not the alignment of the parameter.
            "ptr" => {
                while let Kind::Dot(hint) = stream.peek() {
                    stream.take()?;
                    if hint == "align" {
                        stream.small()?;
                    }
                }
            }
            "texref" | "samplerref" | "surfref" => {
                return Err(ParseError::unsupported(
                    line,
                    format!("`.{word}` variables are not supported"),
                ));
            }
            _ => match Type::named(word) {
                Some(found) => ty = Some(found),
                None => {
                    return Err(ParseError::new(
                        line,
                        format!("`.{word}` does not belong in a declaration"),
                    ));
                }
            },
        }
    }
    match ty {
        Some(ty) => Ok(Prefix {
            ty,
            vector,
            align,
            managed,
        }),
        None => stream.expected("a type"),
    }
}

/// Skips `( … )`, with nested parentheses.
pub(super) fn skip_parentheses(stream: &mut Stream<'_>) -> Result<(), ParseError> {
    attribute(stream).map(|_| ())
}

/// As [`skip_parentheses`]. Returns true if `.managed` is among the skipped words.
fn attribute(stream: &mut Stream<'_>) -> Result<bool, ParseError> {
    stream.expect(b'(')?;
    let mut depth = 1usize;
    let mut managed = false;
    while depth > 0 {
        match stream.take()? {
            Kind::Dot("managed") => managed = true,
            Kind::Punct(b'(') => depth += 1,
            Kind::Punct(b')') => depth -= 1,
            Kind::End => return stream.expected("`)`"),
            _ => {}
        }
    }
    Ok(managed)
}

/// Reads the variables of a declaration after its state space, up to and including `;`. `padding`
/// is the module's remaining number of added zero elements; the function subtracts those that it
/// adds.
pub(super) fn variables(
    stream: &mut Stream<'_>,
    space: Space,
    linkage: Linkage,
    padding: &mut usize,
) -> Result<Vec<Variable>, ParseError> {
    let prefix = prefix(stream)?;
    if prefix.ty == Type::Pred {
        return stream.error("a `.pred` can only be a register");
    }
    let mut found = Vec::new();
    loop {
        let name = stream.ident("a variable's name")?;
        let (mut variable, dims) = shaped(stream, name, space, &prefix, linkage)?;
        if stream.eat(b'=')? {
            initialiser(stream, &mut variable, &dims, padding)?;
        } else if variable.count == 0 && !linkage.external {
            return stream.error(format!("`{name}` has no size"));
        }
        found.push(variable);
        if stream.eat(b';')? {
            return Ok(found);
        }
        stream.expect(b',')?;
    }
}

/// Reads the dimensions after a name, and makes the variable. The first dimension may be empty
/// (`[]`); its size is 0 here.
fn shaped(
    stream: &mut Stream<'_>,
    name: &str,
    space: Space,
    prefix: &Prefix,
    linkage: Linkage,
) -> Result<(Variable, Vec<u64>), ParseError> {
    let line = stream.line();
    let mut dims = Vec::new();
    while stream.eat(b'[')? {
        let open = stream.is(b']') && dims.is_empty();
        dims.push(if open { 0 } else { stream.integer()? });
        stream.expect(b']')?;
        if dims.len() > MAX_DIMENSIONS {
            return stream.error(format!("`{name}` has too many dimensions"));
        }
    }
    let array = !dims.is_empty();
    if prefix.vector > 1 {
        dims.push(prefix.vector);
    }
    let count = dims
        .iter()
        .try_fold(1u64, |total, &dim| total.checked_mul(dim));
    let element = prefix.ty.size() as u64;
    let Some(count) = count.filter(|&count| count <= MAX_VARIABLE / element) else {
        return Err(ParseError::new(line, format!("`{name}` is too large")));
    };
    let natural = prefix.ty.size() as u32 * prefix.vector as u32;
    let variable = Variable {
        name: name.to_owned(),
        space,
        ty: prefix.ty,
        count,
        array,
        align: prefix.align.unwrap_or(natural),
        external: linkage.external,
        visible: linkage.visible,
        weak: linkage.weak,
        managed: prefix.managed,
        init: Vec::new(),
        line,
    };
    Ok((variable, dims))
}

/// Reads the part after `=`: one element, or nested braces. Elements of nested braces are stored in
/// row order, and short inner rows are filled up with zeros. The function is a loop instead of a
/// recursion. Braces nest at most as deep as there are dimensions.
fn initialiser(
    stream: &mut Stream<'_>,
    variable: &mut Variable,
    dims: &[u64],
    padding: &mut usize,
) -> Result<(), ParseError> {
    if !stream.is(b'{') {
        variable.init.push(element(stream)?);
        return check_count(stream, variable, dims);
    }
    // For each open brace, the index of the first element of its row.
    let mut rows: Vec<usize> = Vec::new();
    loop {
        if stream.eat(b'{')? {
            if rows.len() >= dims.len().max(1) {
                return stream.error(format!(
                    "`{}` has fewer dimensions than its initialiser",
                    variable.name
                ));
            }
            rows.push(variable.init.len());
            if !stream.is(b'}') {
                continue;
            }
        } else {
            variable.init.push(element(stream)?);
        }
        while stream.eat(b'}')? {
            let start = rows.pop().unwrap_or(0);
            if rows.is_empty() {
                return check_count(stream, variable, dims);
            }
            pad_row(stream, variable, start, &dims[rows.len()..], padding)?;
        }
        stream.expect(b',')?;
        if stream.is(b'}') {
            return stream.expected("an element");
        }
    }
}

/// Appends zeros to the row that began at `start`, up to the full length of the row.
fn pad_row(
    stream: &Stream<'_>,
    variable: &mut Variable,
    start: usize,
    inner: &[u64],
    padding: &mut usize,
) -> Result<(), ParseError> {
    let row: u64 = inner
        .iter()
        .fold(1, |total, &dim| total.saturating_mul(dim));
    let filled = (variable.init.len() - start) as u64;
    let Some(gap) = row.checked_sub(filled) else {
        return stream.error(format!(
            "a row of `{}` has too many elements",
            variable.name
        ));
    };
    match usize::try_from(gap)
        .ok()
        .and_then(|gap| padding.checked_sub(gap))
    {
        Some(left) => *padding = left,
        None => return stream.error("the initialisers leave out too many elements"),
    }
    variable
        .init
        .resize(variable.init.len() + gap as usize, Init::Int(0));
    Ok(())
}

/// Refuses a variable with more initial values than elements. For `x[] = {…}`, first takes the
/// number of elements from the number of initial values.
fn check_count(
    stream: &Stream<'_>,
    variable: &mut Variable,
    dims: &[u64],
) -> Result<(), ParseError> {
    let given = variable.init.len() as u64;
    if variable.array && dims.first() == Some(&0) {
        let row = dims[1..]
            .iter()
            .fold(1u64, |total, &dim| total.saturating_mul(dim))
            .max(1);
        variable.count = given.div_ceil(row).saturating_mul(row);
        if variable.count > MAX_VARIABLE / variable.ty.size() as u64 {
            return stream.error(format!("`{}` is too large", variable.name));
        }
    }
    if given > variable.count {
        return stream.error(format!(
            "`{}` has more initial values than elements",
            variable.name
        ));
    }
    Ok(())
}

/// Reads an element: a number, `sym`, `sym+4`, `generic(sym)` or `generic(sym)+8`.
fn element(stream: &mut Stream<'_>) -> Result<Init, ParseError> {
    let mut negative = false;
    while stream.is(b'-') || stream.is(b'+') {
        negative ^= stream.take()? == Kind::Punct(b'-');
    }
    let Kind::Ident(first) = stream.peek() else {
        return number(stream, negative);
    };
    if negative {
        return stream.expected("a number");
    }
    stream.take()?;
    let generic = first == "generic" && stream.eat(b'(')?;
    let name = if generic {
        stream.ident("a symbol")?
    } else {
        first
    };
    if generic {
        stream.expect(b')')?;
    }
    let addend = if stream.is(b'+') || stream.is(b'-') {
        stream.signed()?
    } else {
        0
    };
    Ok(Init::Symbol {
        name: name.to_owned(),
        addend,
        generic,
    })
}

fn number(stream: &mut Stream<'_>, negative: bool) -> Result<Init, ParseError> {
    let line = stream.line();
    let literal = stream.literal()?;
    if stream.is(b'(') {
        // `0xff00(sym)` means one byte of the address of `sym`.
        return Err(ParseError::unsupported(
            line,
            "masked addresses in initialisers are not supported",
        ));
    }
    let float = |value: f64| Init::Float(if negative { -value } else { value });
    Ok(match literal {
        Literal::Int(value) if negative => Init::Int(-i128::from(value)),
        Literal::Int(value) => Init::Int(i128::from(value)),
        Literal::Single(bits) => float(f64::from(f32::from_bits(bits))),
        Literal::Double(bits) => float(f64::from_bits(bits)),
        Literal::Decimal(value) => float(value),
    })
}

/// Reads `(.param .b64 a, .reg .b32 b, …)` with its parentheses. Names may be `_` (prototypes).
pub(super) fn parameters(stream: &mut Stream<'_>) -> Result<Vec<Param>, ParseError> {
    stream.expect(b'(')?;
    let mut found = Vec::new();
    if stream.eat(b')')? {
        return Ok(found);
    }
    loop {
        found.push(parameter(stream)?);
        if stream.eat(b')')? {
            return Ok(found);
        }
        stream.expect(b',')?;
    }
}

fn parameter(stream: &mut Stream<'_>) -> Result<Param, ParseError> {
    let in_register = match stream.peek() {
        Kind::Dot("param") => false,
        Kind::Dot("reg") => true,
        _ => return stream.expected("`.param` or `.reg`"),
    };
    stream.take()?;
    let prefix = prefix(stream)?;
    if in_register && prefix.vector > 1 {
        return Err(ParseError::unsupported(
            stream.line(),
            "vector registers are not supported",
        ));
    }
    let name = stream.ident("a parameter's name")?;
    let (var, _) = shaped(stream, name, Space::Param, &prefix, Linkage::default())?;
    Ok(Param { var, in_register })
}

/// A name of a `.reg` declaration: `x`, or `x<n>` for `x0` … `x(n-1)`.
pub(super) struct Registers<'a> {
    pub(super) stem: &'a str,
    pub(super) range: Option<u32>,
    pub(super) line: u32,
}

/// Reads a `.reg` declaration after its first word, up to and including `;`.
pub(super) fn registers<'a>(
    stream: &mut Stream<'a>,
    mut each: impl FnMut(Registers<'a>, Type) -> Result<(), ParseError>,
) -> Result<(), ParseError> {
    let prefix = prefix(stream)?;
    if prefix.vector > 1 {
        return Err(ParseError::unsupported(
            stream.line(),
            "vector registers are not supported",
        ));
    }
    loop {
        let line = stream.line();
        let stem = stream.ident("a register's name")?;
        let mut range = None;
        if stream.eat(b'<')? {
            range = Some(stream.small()?);
            stream.expect(b'>')?;
        }
        each(Registers { stem, range, line }, prefix.ty)?;
        if stream.eat(b';')? {
            return Ok(());
        }
        stream.expect(b',')?;
    }
}
