//! Operands of an instruction.

use super::ParseError;
use super::ast::Operand;
use super::lexer::Kind;
use super::number::Literal;
use super::stream::Stream;

/// Most operands of one instruction, nested operands included. The widest real instruction, a
/// wgmma, has about 140; calls can have a few hundred arguments.
const MAX_OPERANDS: usize = 4096;

/// Deepest recursion: a list may hold vectors, and a vector holds single operands only.
const MAX_DEPTH: u32 = 3;

/// Reads operands up to and including `;`.
pub(super) fn list(stream: &mut Stream<'_>) -> Result<Vec<Operand>, ParseError> {
    let mut reader = Reader {
        stream,
        left: MAX_OPERANDS,
    };
    let mut operands = Vec::new();
    if !reader.stream.eat(b';')? {
        loop {
            operands.push(reader.operand(0)?);
            if reader.stream.eat(b';')? {
                break;
            }
            reader.stream.expect(b',')?;
        }
    }
    Ok(operands)
}

struct Reader<'s, 'a> {
    stream: &'s mut Stream<'a>,
    left: usize,
}

impl Reader<'_, '_> {
    fn operand(&mut self, depth: u32) -> Result<Operand, ParseError> {
        let Some(left) = self.left.checked_sub(1) else {
            return self.stream.error("this instruction has too many operands");
        };
        self.left = left;
        if depth > MAX_DEPTH {
            return self.stream.error("operands are nested too deeply");
        }
        let operand = match self.stream.peek() {
            Kind::Punct(b'{') => Operand::Vector(self.group(b'{', b'}', depth)?),
            Kind::Punct(b'(') => Operand::List(self.group(b'(', b')', depth)?),
            Kind::Punct(b'[') => self.memory(depth)?,
            Kind::Punct(b'!') => {
                self.stream.take()?;
                Operand::Negated(Box::new(self.name()?))
            }
            Kind::Punct(b'-' | b'+') | Kind::Number(_) => self.number()?,
            Kind::Ident(_) => self.name()?,
            _ => return self.stream.expected("an operand"),
        };
        if !self.stream.eat(b'|')? {
            return Ok(operand);
        }
        let second = if self.stream.eat(b'!')? {
            Operand::Negated(Box::new(self.name()?))
        } else {
            self.name()?
        };
        Ok(Operand::Pair(Box::new(operand), Box::new(second)))
    }

    fn group(&mut self, open: u8, close: u8, depth: u32) -> Result<Vec<Operand>, ParseError> {
        self.stream.expect(open)?;
        let mut items = Vec::new();
        if self.stream.eat(close)? {
            return Ok(items);
        }
        loop {
            items.push(self.operand(depth + 1)?);
            if self.stream.eat(close)? {
                return Ok(items);
            }
            self.stream.expect(b',')?;
        }
    }

    /// Reads a name with its suffixes (`%tid.x`), `WARP_SZ`, `_`, or `name+imm`.
    fn name(&mut self) -> Result<Operand, ParseError> {
        let first = self.stream.ident("a name")?;
        match first {
            "_" => return Ok(Operand::Sink),
            "WARP_SZ" => return Ok(Operand::Int(32)),
            _ => {}
        }
        let mut name = first.to_owned();
        while let Kind::Dot(suffix) = self.stream.peek() {
            name.push('.');
            name.push_str(suffix);
            self.stream.take()?;
        }
        if self.stream.is(b'+') || self.stream.is(b'-') {
            return Ok(Operand::Offset(name, self.stream.signed()?));
        }
        Ok(Operand::Name(name))
    }

    /// Reads a literal, a negated literal, or a negated register.
    fn number(&mut self) -> Result<Operand, ParseError> {
        let mut negative = false;
        while self.stream.is(b'-') || self.stream.is(b'+') {
            negative ^= self.stream.take()? == Kind::Punct(b'-');
        }
        if matches!(self.stream.peek(), Kind::Ident(_)) {
            let name = self.name()?;
            return Ok(if negative {
                Operand::Negated(Box::new(name))
            } else {
                name
            });
        }
        Ok(float_or_int(self.stream.literal()?, negative))
    }

    /// Reads `[base+offset]`. An operand `[map, {x, y}]` of a texture or tensor map becomes a list,
    /// so that the opcode table can refuse the instruction by name.
    fn memory(&mut self, depth: u32) -> Result<Operand, ParseError> {
        self.stream.expect(b'[')?;
        let base = match self.stream.peek() {
            Kind::Ident(name) => {
                self.stream.take()?;
                Some(name.to_owned())
            }
            _ => None,
        };
        let offset = if base.is_none() || self.stream.is(b'+') || self.stream.is(b'-') {
            self.stream.signed()?
        } else {
            0
        };
        let memory = Operand::Memory { base, offset };
        if self.stream.eat(b']')? {
            return Ok(memory);
        }
        let mut items = vec![memory];
        while self.stream.eat(b',')? {
            items.push(self.operand(depth + 1)?);
        }
        self.stream.expect(b']')?;
        Ok(Operand::List(items))
    }
}

fn float_or_int(literal: Literal, negative: bool) -> Operand {
    let sign = |value: f64| if negative { -value } else { value };
    match literal {
        Literal::Int(value) => {
            let value = i128::from(value);
            Operand::Int(if negative { -value } else { value })
        }
        Literal::Single(bits) => {
            let bits = bits ^ (u32::from(negative) << 31);
            let value = f64::from(f32::from_bits(bits));
            Operand::Float {
                value,
                single_bits: Some(bits),
                double_bits: None,
            }
        }
        Literal::Double(bits) => {
            let bits = bits ^ (u64::from(negative) << 63);
            let value = f64::from_bits(bits);
            Operand::Float {
                value,
                single_bits: None,
                double_bits: Some(bits),
            }
        }
        Literal::Decimal(value) => Operand::Float {
            value: sign(value),
            single_bits: None,
            double_bits: None,
        },
    }
}
