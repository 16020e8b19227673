//! Function bodies: statements, nested scopes, tables.

use std::collections::HashSet;

use super::ast::{Function, Instruction, Operand, Statement};
use super::declare::{self, Linkage};
use super::lexer::Kind;
use super::operand;
use super::scope::{ScopeId, Scopes};
use super::stream::Stream;
use super::{MAX_REGISTERS, ParseError, REGISTER_TEXT};

/// The part of a module's limits that is still unused.
pub(super) struct Budget {
    /// Registers. A range such as `%r<100>` counts as 100 registers.
    pub(super) registers: usize,
    /// Zero elements that the parser may still add to short inner braces of initialisers.
    pub(super) padding: usize,
}

impl Budget {
    /// The limits for this text.
    pub(super) fn of(text: &[u8]) -> Self {
        Budget {
            registers: MAX_REGISTERS + text.len() / REGISTER_TEXT,
            padding: super::MAX_PADDING,
        }
    }
}

/// Reads a body with its braces into `function`.
pub(super) fn parse(
    stream: &mut Stream<'_>,
    function: &mut Function,
    budget: &mut Budget,
) -> Result<(), ParseError> {
    stream.expect(b'{')?;
    let mut scopes = Scopes::new();
    for param in function.returns.iter().chain(&function.params) {
        if param.var.name != "_" {
            scopes.declare(&param.var.name, param.var.line)?;
        }
    }
    let mut body = Body {
        stream,
        function,
        budget,
        scopes,
        written_in: Vec::new(),
        target_scopes: Vec::new(),
    };
    while !body.item()? {}
    body.resolve();
    Ok(())
}

struct Body<'s, 'a> {
    stream: &'s mut Stream<'a>,
    function: &'s mut Function,
    budget: &'s mut Budget,
    scopes: Scopes,
    /// The scope in which each statement of `function.body` was written.
    written_in: Vec<ScopeId>,
    /// The scope in which each table of `function.targets` was written.
    target_scopes: Vec<ScopeId>,
}

impl<'a> Body<'_, 'a> {
    /// Reads one item: a statement, a declaration, a label or a brace. Returns true at the closing
    /// brace of the body.
    fn item(&mut self) -> Result<bool, ParseError> {
        match self.stream.peek() {
            Kind::Punct(b'}') => {
                self.stream.take()?;
                if self.scopes.outermost() {
                    return Ok(true);
                }
                self.scopes.close();
            }
            Kind::Punct(b'{') => {
                self.scopes.open(self.stream.line())?;
                self.stream.take()?;
            }
            Kind::Punct(b';') => {
                self.stream.take()?;
            }
            Kind::Punct(b'@') if self.stream.peek_second()? == Kind::Punct(b'@') => {
                self.stream.drop_line()?;
            }
            Kind::Punct(b'@') => self.instruction()?,
            Kind::Dot(word) => self.directive(word)?,
            Kind::Ident(name) if self.stream.peek_second()? == Kind::Punct(b':') => {
                self.label(name)?;
            }
            Kind::Ident(_) => self.instruction()?,
            _ => return self.stream.expected("an instruction, a directive or `}`"),
        }
        Ok(false)
    }

    fn directive(&mut self, word: &'a str) -> Result<(), ParseError> {
        if skip_debug(self.stream)? {
            return Ok(());
        }
        let line = self.stream.line();
        self.stream.take()?;
        if word == "reg" {
            return self.registers();
        }
        let Some(space) = declare::space_of(word) else {
            return Err(ParseError::new(
                line,
                format!("`.{word}` does not belong in a function"),
            ));
        };
        let found = declare::variables(
            self.stream,
            space,
            Linkage::default(),
            &mut self.budget.padding,
        )?;
        for mut variable in found {
            variable.name = self.scopes.declare(&variable.name, variable.line)?;
            self.function.variables.push(variable);
        }
        Ok(())
    }

    fn registers(&mut self) -> Result<(), ParseError> {
        let Body {
            stream,
            function,
            budget,
            scopes,
            ..
        } = self;
        declare::registers(stream, |found, ty| {
            let count = found.range.unwrap_or(1) as usize;
            let Some(left) = budget.registers.checked_sub(count) else {
                let message = "more registers in one module than its text is long enough for";
                return Err(ParseError::new(found.line, message));
            };
            budget.registers = left;
            match found.range {
                None => function
                    .registers
                    .push((scopes.declare(found.stem, found.line)?, ty)),
                Some(range) => {
                    for index in 0..range {
                        let name = format!("{}{index}", found.stem);
                        function
                            .registers
                            .push((scopes.declare(&name, found.line)?, ty));
                    }
                }
            }
            Ok(())
        })
    }

    /// Reads a label, or a table that a label names.
    fn label(&mut self, name: &str) -> Result<(), ParseError> {
        let line = self.stream.line();
        self.stream.take()?;
        self.stream.expect(b':')?;
        let name = self.scopes.declare(name, line)?;
        match self.stream.peek() {
            Kind::Dot("callprototype") => {
                self.stream.take()?;
                self.prototype(name)
            }
            Kind::Dot("branchtargets" | "calltargets") => {
                self.stream.take()?;
                self.targets(name)
            }
            _ => {
                self.push(Statement::Label(name));
                Ok(())
            }
        }
    }

    /// Reads `.callprototype (ret) _ (params) .noreturn;`, in which only `_` is required.
    fn prototype(&mut self, name: String) -> Result<(), ParseError> {
        let returns = self.optional_parameters()?;
        self.stream.ident("`_`")?;
        let params = self.optional_parameters()?;
        while let Kind::Dot(_) = self.stream.peek() {
            self.stream.take()?;
            if let Kind::Number(_) = self.stream.peek() {
                self.stream.take()?;
            }
        }
        self.stream.expect(b';')?;
        self.function.prototypes.push((name, returns, params));
        Ok(())
    }

    fn optional_parameters(&mut self) -> Result<Vec<super::ast::Param>, ParseError> {
        if self.stream.is(b'(') {
            declare::parameters(self.stream)
        } else {
            Ok(Vec::new())
        }
    }

    fn targets(&mut self, name: String) -> Result<(), ParseError> {
        let mut targets = Vec::new();
        loop {
            targets.push(self.stream.ident("a label")?.to_owned());
            if self.stream.eat(b';')? {
                break;
            }
            self.stream.expect(b',')?;
        }
        self.function.targets.push((name, targets));
        self.target_scopes.push(self.scopes.current());
        Ok(())
    }

    fn instruction(&mut self) -> Result<(), ParseError> {
        let line = self.stream.line();
        let mut guard = None;
        if self.stream.eat(b'@')? {
            let negated = self.stream.eat(b'!')?;
            guard = Some((self.stream.ident("a predicate")?.to_owned(), negated));
        }
        let mut opcode = self.stream.ident("an instruction")?.to_owned();
        while let Kind::Dot(word) = self.stream.peek() {
            opcode.push('.');
            opcode.push_str(word);
            self.stream.take()?;
        }
        let operands = operand::list(self.stream)?;
        self.push(Statement::Inst(Instruction {
            guard,
            opcode,
            operands,
            line,
        }));
        Ok(())
    }

    fn push(&mut self, statement: Statement) {
        self.function.body.push(statement);
        self.written_in.push(self.scopes.current());
    }

    /// Rewrites every use of a local name, after all declarations are read.
    fn resolve(self) {
        let Body {
            function,
            scopes,
            written_in,
            target_scopes,
            ..
        } = self;
        for (statement, &scope) in function.body.iter_mut().zip(&written_in) {
            if scope == 0 {
                continue;
            }
            let Statement::Inst(inst) = statement else {
                continue;
            };
            if let Some((name, _)) = &mut inst.guard {
                scopes.resolve(name, scope);
            }
            for operand in &mut inst.operands {
                each_name(operand, &mut |name| scopes.resolve(name, scope));
            }
        }
        for ((_, targets), &scope) in function.targets.iter_mut().zip(&target_scopes) {
            for target in targets {
                scopes.resolve(target, scope);
            }
        }
    }
}

/// Visits the names in an operand. The operand reader limits the depth of operands.
fn each_name(operand: &mut Operand, visit: &mut impl FnMut(&mut String)) {
    match operand {
        Operand::Name(name) | Operand::Offset(name, _) => visit(name),
        Operand::Memory {
            base: Some(name), ..
        } => visit(name),
        Operand::Negated(inner) => each_name(inner, visit),
        Operand::Vector(items) | Operand::List(items) => {
            for item in items {
                each_name(item, visit);
            }
        }
        Operand::Pair(first, second) => {
            each_name(first, visit);
            each_name(second, visit);
        }
        Operand::Memory { base: None, .. }
        | Operand::Int(_)
        | Operand::Float { .. }
        | Operand::Sink => {}
    }
}

/// Returns the first name used in the body that `is_late` accepts and that the body does not
/// declare itself, with the line of the use.
pub(super) fn first_use(
    function: &Function,
    is_late: impl Fn(&str) -> bool,
) -> Option<(&str, u32)> {
    let mut own = None;
    for statement in &function.body {
        let Statement::Inst(inst) = statement else {
            continue;
        };
        let mut found = None;
        for operand in &inst.operands {
            operand.names(&mut |name| {
                if found.is_none() && is_late(name) {
                    let own = own.get_or_insert_with(|| own_names(function));
                    found = (!own.contains(name)).then_some(name);
                }
            });
        }
        if let Some(name) = found {
            return Some((name, inst.line));
        }
    }
    None
}

/// Names that the outermost scope of a body declares, and renamed names (`name#n`) of its inner
/// scopes.
fn own_names(function: &Function) -> HashSet<&str> {
    let labels = function
        .body
        .iter()
        .filter_map(|statement| match statement {
            Statement::Label(name) => Some(name),
            Statement::Inst(_) => None,
        });
    let params = function.returns.iter().chain(&function.params);
    params
        .map(|param| &param.var.name)
        .chain(function.registers.iter().map(|(name, _)| name))
        .chain(function.variables.iter().map(|variable| &variable.name))
        .chain(function.prototypes.iter().map(|(name, ..)| name))
        .chain(function.targets.iter().map(|(name, _)| name))
        .chain(labels)
        .map(String::as_str)
        .collect()
}

/// Skips a directive without effect on execution (`.loc`, `.file`, `.pragma`, `.section`), inside
/// or outside a function. Returns false if the current token is another directive or no directive.
pub(super) fn skip_debug(stream: &mut Stream<'_>) -> Result<bool, ParseError> {
    let Kind::Dot(word) = stream.peek() else {
        return Ok(false);
    };
    match word {
        "loc" => {
            stream.take()?;
            skip_location(stream)?;
        }
        "file" => {
            stream.take()?;
            stream.integer()?;
            string(stream)?;
            while stream.eat(b',')? {
                stream.integer()?;
            }
        }
        "pragma" => {
            stream.take()?;
            string(stream)?;
            while stream.eat(b',')? {
                string(stream)?;
            }
            stream.expect(b';')?;
        }
        "section" => {
            stream.take()?;
            skip_section(stream)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Skips `.loc file line column [, function_name label[+n]] [, inlined_at file line column]`, which
/// has no terminator.
fn skip_location(stream: &mut Stream<'_>) -> Result<(), ParseError> {
    for _ in 0..3 {
        stream.integer()?;
    }
    while stream.eat(b',')? {
        match stream.ident("`function_name` or `inlined_at`")? {
            "function_name" => {
                // The label may be the name of a section: `.debug_str+12`.
                match stream.take()? {
                    Kind::Ident(_) | Kind::Dot(_) => {}
                    _ => return stream.error("`function_name` names no label"),
                }
                if stream.eat(b'+')? {
                    stream.integer()?;
                }
            }
            "inlined_at" => {
                for _ in 0..3 {
                    stream.integer()?;
                }
            }
            _ => return stream.error("`.loc` has only `function_name` and `inlined_at`"),
        }
    }
    Ok(())
}

fn string(stream: &mut Stream<'_>) -> Result<(), ParseError> {
    match stream.peek() {
        Kind::Str => stream.take().map(|_| ()),
        _ => stream.expected("a string"),
    }
}

/// Skips `.section .debug_info { … }`: data for debuggers.
fn skip_section(stream: &mut Stream<'_>) -> Result<(), ParseError> {
    match stream.take()? {
        Kind::Dot(_) | Kind::Ident(_) | Kind::Str => {}
        _ => return stream.error("`.section` has no name"),
    }
    if let Kind::Str = stream.peek() {
        stream.take()?;
    }
    stream.expect(b'{')?;
    let mut depth = 1usize;
    while depth > 0 {
        match stream.take()? {
            Kind::Punct(b'{') => depth += 1,
            Kind::Punct(b'}') => depth -= 1,
            Kind::End => return stream.expected("`}` after a section"),
            _ => {}
        }
    }
    Ok(())
}

/// The first name that appears twice, with its line.
pub(super) fn duplicate<'n>(names: impl Iterator<Item = (&'n str, u32)>) -> Option<(String, u32)> {
    let mut seen = HashSet::new();
    for (name, line) in names {
        if !seen.insert(name) {
            return Some((name.to_owned(), line));
        }
    }
    None
}
