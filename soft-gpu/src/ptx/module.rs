//! Module scope: directives, linkage, variables, function headers.

use std::collections::HashMap;

use super::ast::{Function, Init, Module, Variable};
use super::body::{self, Budget, skip_debug};
use super::declare::{self, Linkage};
use super::lexer::Kind;
use super::stream::Stream;
use super::{NEWEST_MAJOR, ParseError};

/// Parses a whole text.
pub(super) fn parse(text: &[u8]) -> Result<Module, ParseError> {
    let mut parser = Parser {
        stream: Stream::new(text)?,
        module: Module {
            address_size: 64,
            ..Module::default()
        },
        budget: Budget::of(text),
        declared: HashMap::new(),
        items: 0,
        began: Vec::new(),
    };
    parser.header()?;
    while parser.stream.peek() != Kind::End {
        parser.item()?;
    }
    parser.check()?;
    Ok(parser.module)
}

/// Returns the PTX version if the parser can read it.
///
/// # Errors
/// If there is no such version, or if the version is newer than the parser.
fn known_version(major: u32, minor: u32, line: u32) -> Result<(u32, u32), ParseError> {
    match major {
        0 => {
            let message = format!("there is no PTX version {major}.{minor}: the first is 1.0");
            Err(ParseError::new(line, message))
        }
        1..=NEWEST_MAJOR => Ok((major, minor)),
        _ => {
            let message = format!(
                "PTX version {major}.{minor} is newer than {NEWEST_MAJOR}.x, the newest that soft-gpu reads"
            );
            Err(ParseError::unsupported(line, message))
        }
    }
}

fn undeclared(name: &str, line: u32) -> ParseError {
    ParseError::new(line, format!("`{name}` is used before it is declared"))
}

struct Parser<'a> {
    stream: Stream<'a>,
    module: Module,
    budget: Budget,
    /// Name at module scope → number of the item that declared it first.
    declared: HashMap<String, usize>,
    /// Number of items (variables and functions) so far.
    items: usize,
    /// For each function of the module, its item number.
    began: Vec<usize>,
}

impl Parser<'_> {
    /// Reads `.version` and `.target`. The grammar requires `.version` first and `.target` second.
    fn header(&mut self) -> Result<(), ParseError> {
        if self.stream.peek() != Kind::Dot("version") {
            return self
                .stream
                .expected("`.version` at the start of a PTX module");
        }
        self.stream.take()?;
        self.module.version = self.version()?;
        if self.stream.peek() != Kind::Dot("target") {
            return self.stream.expected("`.target` after `.version`");
        }
        self.stream.take()?;
        loop {
            let word = self.stream.ident("a target")?.to_owned();
            self.module.target.push(word);
            if !self.stream.eat(b',')? {
                return Ok(());
            }
        }
    }

    fn version(&mut self) -> Result<(u32, u32), ParseError> {
        if let Kind::Number(text) = self.stream.peek()
            && let Some((major, minor)) = text.split_once('.')
            && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
        {
            let line = self.stream.line();
            self.stream.take()?;
            return known_version(major, minor, line);
        }
        self.stream.expected("a version such as 8.0")
    }

    fn item(&mut self) -> Result<(), ParseError> {
        match self.stream.peek() {
            Kind::Punct(b';') => {
                self.stream.take()?;
            }
            Kind::Punct(b'@') if self.stream.peek_second()? == Kind::Punct(b'@') => {
                self.stream.drop_line()?;
            }
            Kind::Dot(_) => {
                if !skip_debug(&mut self.stream)? {
                    self.directive()?;
                }
            }
            _ => return self.stream.expected("a directive"),
        }
        Ok(())
    }

    fn directive(&mut self) -> Result<(), ParseError> {
        let mut linkage = Linkage::default();
        let mut common = false;
        loop {
            let line = self.stream.line();
            let Kind::Dot(word) = self.stream.peek() else {
                return self.stream.expected("a directive");
            };
            self.stream.take()?;
            match word {
                "extern" => linkage.external = true,
                "visible" => linkage.visible = true,
                "weak" => (linkage.visible, linkage.weak) = (true, true),
                "common" => {
                    common = true;
                    (linkage.visible, linkage.weak) = (true, true);
                }
                "entry" => return self.function(true, linkage, line),
                "func" => return self.function(false, linkage, line),
                "address_size" => return self.address_size(line),
                "alias" | "tex" => {
                    return Err(ParseError::unsupported(
                        line,
                        format!("`.{word}` is not supported"),
                    ));
                }
                _ => return self.variables(word, linkage, common, line),
            }
        }
    }

    fn address_size(&mut self, line: u32) -> Result<(), ParseError> {
        match self.stream.small()? {
            64 => Ok(()),
            32 => Err(ParseError::unsupported(
                line,
                "`.address_size 32` is not supported; compile for 64 bits",
            )),
            other => Err(ParseError::new(
                line,
                format!("`.address_size {other}` is neither 32 nor 64"),
            )),
        }
    }

    fn variables(
        &mut self,
        word: &str,
        linkage: Linkage,
        common: bool,
        line: u32,
    ) -> Result<(), ParseError> {
        use super::ast::Space;
        let space = match declare::space_of(word) {
            Some(space) if !common || space == Space::Global => space,
            _ => {
                return Err(ParseError::new(
                    line,
                    format!("`.{word}` does not belong at module scope"),
                ));
            }
        };
        if matches!(space, Space::Local | Space::Param) {
            let message = format!("`.{word}` variables at module scope are not supported");
            return Err(ParseError::unsupported(line, message));
        }
        let found = declare::variables(&mut self.stream, space, linkage, &mut self.budget.padding)?;
        for variable in &found {
            self.declare(&variable.name);
            self.check_initialiser(variable)?;
        }
        self.module.variables.extend(found);
        Ok(())
    }

    /// Gives the next item of the module its number, and returns the number.
    fn declare(&mut self, name: &str) -> usize {
        let item = self.items;
        self.items += 1;
        if !self.declared.contains_key(name) {
            self.declared.insert(name.to_owned(), item);
        }
        item
    }

    /// Checks that each name in the initialiser is declared before.
    fn check_initialiser(&self, variable: &Variable) -> Result<(), ParseError> {
        for init in &variable.init {
            if let Init::Symbol { name, .. } = init
                && !self.declared.contains_key(name)
            {
                return Err(undeclared(name, variable.line));
            }
        }
        Ok(())
    }

    fn function(&mut self, kernel: bool, linkage: Linkage, line: u32) -> Result<(), ParseError> {
        let mut function = Function {
            kernel,
            line,
            visible: linkage.visible,
            weak: linkage.weak,
            ..Function::default()
        };
        self.attributes()?;
        if !kernel && self.stream.is(b'(') {
            function.returns = declare::parameters(&mut self.stream)?;
        }
        function.name = self.stream.ident("a function's name")?.to_owned();
        if self.stream.is(b'(') {
            function.params = declare::parameters(&mut self.stream)?;
        }
        let item = self.declare(&function.name);
        self.began.push(item);
        self.performance(&mut function)?;
        if self.stream.eat(b';')? {
            function.declaration = true;
        } else if linkage.external {
            return self.stream.expected("`;` after an `.extern` function");
        } else {
            body::parse(&mut self.stream, &mut function, &mut self.budget)?;
        }
        self.module.functions.push(function);
        Ok(())
    }

    /// Skips `.attribute(.unified(…))` between `.func` and its name.
    fn attributes(&mut self) -> Result<(), ParseError> {
        while self.stream.peek() == Kind::Dot("attribute") {
            self.stream.take()?;
            declare::skip_parentheses(&mut self.stream)?;
        }
        Ok(())
    }

    /// Reads the directives between a function's header and its body.
    fn performance(&mut self, function: &mut Function) -> Result<(), ParseError> {
        loop {
            if skip_debug(&mut self.stream)? {
                continue;
            }
            let Kind::Dot(word) = self.stream.peek() else {
                return Ok(());
            };
            let line = self.stream.line();
            self.stream.take()?;
            match word {
                "maxntid" => function.max_ntid = Some(self.extents()?),
                "reqntid" => function.req_ntid = Some(self.extents()?),
                "minnctapersm" => function.min_cta_per_sm = Some(self.stream.small()?),
                "maxnreg" => function.max_registers = Some(self.stream.small()?),
                // Hints to a register allocator, which does not exist here.
                "maxnctapersm" | "abi_preserve" | "abi_preserve_control" => {
                    self.stream.small()?;
                }
                "noreturn" => {}
                "reqnctapercluster" | "explicitcluster" | "maxclusterrank"
                | "blocksareclusters" => {
                    let message = format!("clusters (`.{word}`) are not supported");
                    return Err(ParseError::unsupported(line, message));
                }
                _ => {
                    return Err(ParseError::new(
                        line,
                        format!("`.{word}` is not a function's directive"),
                    ));
                }
            }
        }
    }

    fn extents(&mut self) -> Result<[u32; 3], ParseError> {
        let mut extents = [1; 3];
        extents[0] = self.stream.small()?;
        for extent in &mut extents[1..] {
            if !self.stream.eat(b',')? {
                break;
            }
            *extent = self.stream.small()?;
        }
        Ok(extents)
    }

    /// Checks the names at module scope: a name may be declared several times but defined only
    /// once, and a body may use only names that the module has declared before the body. The loader
    /// checks names that the module never declares.
    fn check(&self) -> Result<(), ParseError> {
        let first = self.began.first().copied().unwrap_or(usize::MAX);
        let late: HashMap<&str, usize> = self
            .declared
            .iter()
            .filter(|(_, item)| **item > first)
            .map(|(name, item)| (name.as_str(), *item))
            .collect();
        for (function, began) in self.module.functions.iter().zip(&self.began) {
            let later = |name: &str| late.get(name).is_some_and(|item| item > began);
            if let Some((name, line)) = body::first_use(function, later) {
                return Err(undeclared(name, line));
            }
        }
        let functions = self.module.functions.iter().filter(|f| !f.declaration);
        let variables = self.module.variables.iter().filter(|v| !v.external);
        let names = functions
            .map(|f| (f.name.as_str(), f.line))
            .chain(variables.map(|v| (v.name.as_str(), v.line)));
        match body::duplicate(names) {
            Some((name, line)) => Err(ParseError::new(line, format!("`{name}` is defined twice"))),
            None => Ok(()),
        }
    }
}
