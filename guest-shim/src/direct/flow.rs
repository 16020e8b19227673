//! Decides whether a kernel dereferences only addresses from its parameters.
//!
//! An address counts as an address from the parameters if the address is the sum of a base and
//! numbers. The base is a word of the parameters or the address of a variable. At most one of the
//! numbers was loaded from memory, and this number is too small to be a program address by itself.
//! The analysis ignores the order of instructions: a register may hold every value that any
//! instruction assigns.

use std::collections::{HashMap, HashSet, VecDeque};

use super::text::{Entry, Instruction, Operand, Statement};

/// The sources from which a number was computed, from known to unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// Parameters, special registers, small literals.
    Given,
    /// A loaded value of at most 32 bits.
    Index,
    /// An index, multiplied once by a stride of at most [`WIDEST_STRIDE`].
    Offset,
    /// Any value.
    Any,
}

/// The possible values of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    made: Origin,
    /// Whether every value is a base (a word of the parameters or the address of a variable) plus a
    /// number of the origin `made`.
    is_pointer: bool,
}

/// The largest stride. A 32-bit index times this stride is below [`HOST_SPACE`], so the product
/// alone is not the address of a block.
///
/// [`HOST_SPACE`]: vgpu_proto::limits::HOST_SPACE
const WIDEST_STRIDE: i64 = 1 << WIDEST_SHIFT;
const WIDEST_SHIFT: i64 = 13;

/// Types of at most 32 bits.
const NARROW: &str = "pred b1 u4 s4 u8 s8 b8 u16 s16 b16 f16 bf16 u32 s32 b32 f32 tf32 f16x2 bf16x2 u16x2 s16x2 \
    e4m3x2 e5m2x2";

/// Types that can hold an address.
const WIDE: &str = "u64 s64 b64 f64 b128";

/// Opcodes that write a register and access no memory. `bar` and `barrier` are in both lists,
/// because their `.red` forms write a register.
const COMPUTES: &str = "abs activemask add addc and bar barrier bfe bfi bfind bmsk brev clz cnot copysign cos \
    createpolicy cvt cvta div dp2a dp4a elect ex2 fma fns isspacep lg2 lop3 mad mad24 madc match max min mma mov mul \
    mul24 neg not or popc prmt rcp redux rem rsqrt sad selp set setp shf shfl shl shr sin slct sqrt sub subc szext tanh \
    testp vote xor";

/// Opcodes that write no register and access no memory.
const CONTROL: &str = "bar barrier bra brkpt brx exit fence griddepcontrol membar nanosleep pmevent ret setmaxnreg trap";

fn is_among(words: &str, word: &str) -> bool {
    words.split(' ').any(|one| one == word)
}

impl Held {
    const GIVEN: Held = Held::of(Origin::Given);
    const INDEX: Held = Held::of(Origin::Index);
    const ANY: Held = Held::of(Origin::Any);
    const BASE: Held = Held {
        made: Origin::Given,
        is_pointer: true,
    };

    const fn of(made: Origin) -> Held {
        Held {
            made,
            is_pointer: false,
        }
    }

    /// The knowledge about a value that equals either `self` or `other`.
    fn or(self, other: Held) -> Held {
        Held {
            made: self.made.max(other.made),
            is_pointer: self.is_pointer && other.is_pointer,
        }
    }

    /// The sum of `self` and `other`. The sum of two loaded numbers is unknown: repeated additions
    /// could multiply a number by any factor. The sum of two possible bases is not a pointer.
    fn plus(self, other: Held) -> Held {
        let alone = self.made == Origin::Given || other.made == Origin::Given;
        Held {
            made: if alone {
                self.made.max(other.made)
            } else {
                Origin::Any
            },
            is_pointer: self.is_pointer != other.is_pointer,
        }
    }

    fn minus(self, other: Held) -> Held {
        Held {
            is_pointer: self.is_pointer && !other.is_pointer,
            ..self.plus(other)
        }
    }

    /// The value as a number without a base.
    fn number(self) -> Held {
        Held::of(self.made)
    }

    /// The lower 32 bits of the value.
    fn narrow(self) -> Held {
        Held::of(self.made.min(Origin::Index))
    }

    fn times(self, stride: Option<i64>) -> Held {
        match (self.made, stride) {
            (Origin::Given, Some(_)) => Held::GIVEN,
            (Origin::Index, Some(stride)) if stride.abs() <= WIDEST_STRIDE => {
                Held::of(Origin::Offset)
            }
            _ => Held::ANY,
        }
    }
}

/// Whether a kernel dereferences only addresses from its parameters, and addresses of variables.
pub(super) fn is_direct(entry: &Entry<'_>) -> bool {
    Flow::of(entry).is_some_and(|flow| flow.fixpoint().is_some())
}

struct Flow<'a, 'b> {
    params: &'b HashMap<&'a str, u64>,
    program: Vec<Step<'a>>,
    registers: HashSet<&'a str>,
    /// Registers that an instruction writes.
    given: HashSet<&'a str>,
    held: HashMap<&'a str, Held>,
}

/// An instruction and its class.
struct Step<'a> {
    form: Form,
    /// Whether the result has at most 32 bits.
    narrow: bool,
    instruction: Instruction<'a>,
}

/// The class of an instruction.
#[derive(Clone, Copy)]
enum Form {
    /// Writes the first operand and reads all others.
    Computes,
    /// Writes no operand.
    Control,
    /// Accesses memory through the second operand, like a load.
    Loads,
    /// Accesses memory through the first operand, like a store.
    Stores,
    /// Copies to shared memory.
    Fetches,
}

impl Form {
    fn of(instruction: &Instruction<'_>) -> Option<Form> {
        let form = match instruction.parts[..] {
            ["ld" | "ldu" | "atom" | "ldmatrix", ..] | ["wmma", "load", ..] => Form::Loads,
            ["st" | "red" | "stmatrix" | "prefetch", ..] | ["wmma", "store", ..] => Form::Stores,
            [
                "cp",
                "async",
                "ca" | "cg",
                "shared" | "shared::cta",
                "global",
                ..,
            ] => Form::Fetches,
            ["cp", "async", "commit_group" | "wait_group" | "wait_all"] => Form::Control,
            ["cp", ..] => return None,
            ["wmma", "mma", ..] => Form::Computes,
            [name, ..] if is_among(CONTROL, name) && !instruction.has("red") => Form::Control,
            [name, ..] if is_among(COMPUTES, name) => Form::Computes,
            _ => return None,
        };
        let memory: &[usize] = match form {
            Form::Computes | Form::Control => &[],
            Form::Loads => &[1],
            Form::Stores => &[0],
            Form::Fetches => &[0, 1],
        };
        // Memory operands are allowed only at the positions of the form.
        let expected = |(i, operand): (usize, &Operand<'_>)| {
            matches!(operand, Operand::Memory(..)) == memory.contains(&i)
        };
        let enough = instruction.operands.len() > memory.last().map_or(0, |last| *last);
        let enough = enough || matches!(form, Form::Control);
        (enough && instruction.operands.iter().enumerate().all(expected)).then_some(form)
    }

    fn defines(self) -> bool {
        matches!(self, Form::Computes | Form::Loads)
    }
}

/// The names of a destination operand; `None` if the operand contains anything but names.
fn names<'a>(operand: &Operand<'a>) -> Option<Vec<&'a str>> {
    match operand {
        Operand::Name(name) => Some(vec![name]),
        Operand::List(list) => {
            let name = |operand: &Operand<'a>| match operand {
                Operand::Name(name) => Some(*name),
                _ => None,
            };
            list.iter().map(name).collect()
        }
        _ => None,
    }
}

/// The names that an operand reads, except the names in addresses.
fn read<'a>(operand: &Operand<'a>) -> Vec<&'a str> {
    match operand {
        Operand::Name(name) => vec![name],
        Operand::List(list) => list.iter().flat_map(read).collect(),
        Operand::Special | Operand::Number(_) | Operand::Memory(..) => Vec::new(),
    }
}

/// The memory that an instruction accesses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// Memory that may belong to the program.
    Global,
    /// Shared, local or constant memory.
    OnChip,
    Param,
}

impl Space {
    fn of(instruction: &Instruction<'_>) -> Option<Space> {
        let mut space = None;
        for part in &instruction.parts[1..] {
            let named = match *part {
                "global" => Space::Global,
                "shared" | "shared::cta" | "shared::cluster" | "local" | "const" => Space::OnChip,
                "param" | "param::entry" => Space::Param,
                other if other.starts_with("param") => return None,
                _ => continue,
            };
            if space.replace(named).is_some() {
                return None;
            }
        }
        let space = space.unwrap_or(Space::Global);
        (space != Space::Param || instruction.parts[0] == "ld").then_some(space)
    }
}

impl<'a, 'b> Flow<'a, 'b> {
    fn of(entry: &'b Entry<'a>) -> Option<Flow<'a, 'b>> {
        let mut flow = Flow {
            params: &entry.params,
            program: Vec::new(),
            registers: HashSet::new(),
            given: HashSet::new(),
            held: HashMap::new(),
        };
        for text in entry.body.split(';') {
            match Statement::of(text)? {
                Statement::Nothing => {}
                Statement::Registers(names) => flow.registers.extend(names),
                Statement::Instruction(instruction) => {
                    let form = Form::of(&instruction)?;
                    if form.defines() {
                        flow.given.extend(names(&instruction.operands[0])?);
                    }
                    flow.program.push(Step {
                        form,
                        narrow: form.defines() && is_narrow(&instruction),
                        instruction,
                    });
                }
            }
        }
        Some(flow)
    }

    /// Runs the analysis. `None`: the kernel may dereference an address that is not from its
    /// parameters.
    fn fixpoint(mut self) -> Option<()> {
        let program = std::mem::take(&mut self.program);
        self.spread(&program)?;
        let direct = |step| self.is_direct(step) == Some(true);
        program.iter().all(direct).then_some(())
    }

    /// Computes what is known about all registers. An instruction is evaluated again when less is
    /// known about one of its inputs than before, which happens a few times at most. Returns the
    /// number of evaluations; `None` if an instruction cannot be analysed.
    fn spread(&mut self, program: &[Step<'a>]) -> Option<usize> {
        let defines = |i: &usize| program[*i].form.defines();
        let mut due: VecDeque<usize> = (0..program.len()).filter(defines).collect();
        let mut is_due = vec![true; program.len()];
        let mut readers: HashMap<&str, Vec<usize>> = HashMap::new();
        for i in &due {
            for operand in &program[*i].instruction.operands[1..] {
                for name in read(operand) {
                    readers.entry(name).or_default().push(*i);
                }
            }
        }
        let mut looks = 0;
        while let Some(i) = due.pop_front() {
            is_due[i] = false;
            looks += 1;
            let to = &program[i].instruction.operands[0];
            let Some(result) = self.result(&program[i]) else {
                continue;
            };
            if !self.define(to, result)? {
                continue;
            }
            for reader in names(to)?
                .iter()
                .filter_map(|name| readers.get(name))
                .flatten()
            {
                if !std::mem::replace(&mut is_due[*reader], true) {
                    due.push_back(*reader);
                }
            }
        }
        Some(looks)
    }

    fn define(&mut self, to: &Operand<'a>, result: Held) -> Option<bool> {
        let mut changed = false;
        for name in names(to)? {
            let before = self.held.get(name).copied();
            let now = before.map_or(result, |before| before.or(result));
            changed |= before != Some(now);
            self.held.insert(name, now);
        }
        Some(changed)
    }

    /// Whether all addresses that the instruction dereferences are from the parameters.
    fn is_direct(&self, step: &Step<'a>) -> Option<bool> {
        let instruction = &step.instruction;
        let address = match step.form {
            Form::Computes | Form::Control => return Some(true),
            // The destination of a fetch is shared memory, so only the source counts.
            Form::Fetches => &instruction.operands[1],
            Form::Loads if Space::of(instruction)? != Space::Global => return Some(true),
            Form::Stores if Space::of(instruction)? != Space::Global => return Some(true),
            Form::Loads => &instruction.operands[1],
            Form::Stores => &instruction.operands[0],
        };
        let Operand::Memory(Some(name), Some(_)) = address else {
            return Some(false);
        };
        let held = self.name(name)?;
        Some(held.is_pointer && held.made < Origin::Any)
    }

    /// The possible values of a register, or of a variable's address, by name. `None`: no
    /// instruction has assigned a value yet.
    fn name(&self, name: &str) -> Option<Held> {
        if self.given.contains(name) {
            return self.held.get(name).copied();
        }
        let unknown = name.starts_with('%') || name == "WARP_SZ" || self.registers.contains(name);
        Some(if unknown { Held::ANY } else { Held::BASE })
    }

    fn source(&self, operand: &Operand<'a>) -> Option<Held> {
        match operand {
            Operand::Name(name) => self.name(name),
            Operand::Special => Some(Held::GIVEN),
            Operand::Number(Some(_)) => Some(Held::GIVEN),
            Operand::Number(None) => Some(Held::ANY),
            Operand::List(list) => list
                .iter()
                .try_fold(Held::GIVEN, |all, one| Some(all.or(self.source(one)?))),
            Operand::Memory(..) => Some(Held::ANY),
        }
    }

    /// The possible results of an instruction. `None`: an input has no value yet.
    fn result(&self, step: &Step<'a>) -> Option<Held> {
        let instruction = &step.instruction;
        let operands = &instruction.operands[1..];
        if let Some(Operand::Memory(name, offset)) = operands.first() {
            return Some(self.loaded(step, *name, *offset));
        }
        let sources: Vec<_> = operands
            .iter()
            .map(|operand| self.source(operand))
            .collect::<Option<_>>()?;
        let computed = Computed {
            operands,
            sources: &sources,
        };
        Some(if step.narrow {
            computed.narrow()
        } else {
            computed.wide(instruction)
        })
    }

    fn loaded(&self, step: &Step<'a>, name: Option<&str>, offset: Option<i64>) -> Held {
        let Step {
            narrow,
            instruction,
            ..
        } = step;
        if Space::of(instruction) != Some(Space::Param) {
            return if *narrow { Held::INDEX } else { Held::ANY };
        }
        let count = match &instruction.operands[0] {
            Operand::List(list) => list.len() as i64,
            _ => 1,
        };
        // The name means a parameter only if no register has the same name.
        let own = |name: &&str| !self.given.contains(name) && !self.registers.contains(name);
        let size = name.filter(own).and_then(|name| self.params.get(name));
        match (size, offset) {
            _ if *narrow => Held::GIVEN,
            (Some(size), Some(offset))
                if offset >= 0 && offset % 8 == 0 && offset + 8 * count <= *size as i64 =>
            {
                Held::BASE
            }
            _ => Held::ANY,
        }
    }
}

/// Whether the result of an instruction has at most 32 bits.
fn is_narrow(instruction: &Instruction<'_>) -> bool {
    let parts = &instruction.parts[..];
    match parts {
        ["setp" | "isspacep" | "testp", ..] => return true,
        ["cvt", .., to, _] => return is_among(NARROW, to),
        ["mov", "b64"] => {
            return matches!(&instruction.operands[0], Operand::List(halves) if halves.len() > 1);
        }
        ["mul" | "mad", "wide", "u16" | "s16"] => return true,
        _ => {}
    }
    let of = |types| parts[1..].iter().any(|part| is_among(types, part));
    of(NARROW) && !of(WIDE) && !instruction.has("wide")
}

/// The inputs of an instruction.
struct Computed<'a, 'b> {
    operands: &'b [Operand<'a>],
    sources: &'b [Held],
}

impl Computed<'_, '_> {
    fn made(&self) -> Origin {
        let made = self.sources.iter().map(|source| source.made);
        made.max().unwrap_or(Origin::Given)
    }

    fn narrow(&self) -> Held {
        // A literal counts as at most 32 bits here, in any notation.
        let read = self.operands.iter().zip(self.sources);
        let read = read.filter(|(operand, _)| !matches!(operand, Operand::Number(_)));
        let made = read.map(|(_, source)| source.made).max();
        Held::of(made.unwrap_or(Origin::Given)).narrow()
    }

    /// The possible values of a 64-bit result. Only the forms in which compilers compute addresses
    /// are known; any other result may be any value.
    fn wide(&self, instruction: &Instruction<'_>) -> Held {
        const TYPES: [&str; 3] = ["u64", "s64", "b64"];
        let [name, middle @ .., last] = &instruction.parts[..] else {
            return Held::ANY;
        };
        let is_address = TYPES.contains(last);
        match (*name, middle, self.sources) {
            ("mov", [], [source]) if is_address && self.is_one() => *source,
            ("cvta", [_] | ["to", _], [source]) if *last == "u64" => *source,
            ("selp", [], [one, other, _]) if is_address => one.or(*other),
            ("add", [], [one, other]) if is_address => one.plus(*other),
            ("sub", [], [one, other]) if is_address => one.minus(*other),
            ("mul", ["lo" | "wide"], [_, _]) => self.product(),
            ("mad", ["lo" | "wide"], [_, _, more]) => self.product().plus(*more),
            ("shl", [], [source, _]) => self.shifted(*source),
            ("shr", [], [source, Held::GIVEN]) => source.number(),
            ("and", [], [source, mask]) => self.masked(*source, *mask),
            ("cvt", [.., "u64" | "s64"], [source]) if !last.contains('f') => source.number(),
            ("cvt" | "min" | "max" | "neg" | "abs" | "div" | "rem" | "mul", _, _)
                if self.made() == Origin::Given =>
            {
                Held::GIVEN
            }
            _ => Held::ANY,
        }
    }

    fn is_one(&self) -> bool {
        !matches!(self.operands[0], Operand::List(_))
    }

    fn product(&self) -> Held {
        match (self.operands, self.sources) {
            ([_, Operand::Number(stride), ..], [source, ..])
            | ([Operand::Number(stride), ..], [_, source, ..]) => source.times(*stride),
            (_, [one, other, ..]) if one.made.max(other.made) == Origin::Given => Held::GIVEN,
            _ => Held::ANY,
        }
    }

    fn shifted(&self, source: Held) -> Held {
        match self.operands[1] {
            Operand::Number(Some(by @ 0..=WIDEST_SHIFT)) => source.times(Some(1 << by)),
            _ => Held::ANY,
        }
    }

    fn masked(&self, source: Held, mask: Held) -> Held {
        match self.operands[1] {
            Operand::Number(Some(0..)) => source.number(),
            _ if source.made.max(mask.made) == Origin::Given => Held::GIVEN,
            _ => Held::ANY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct::text;

    /// The number of evaluations for a kernel with these instructions, and the number of its
    /// instructions.
    fn looks(body: &str) -> (usize, usize) {
        let text = format!(".entry kernel(.param .u64 a) {{ {body} }}");
        let entries = text::entries(&text).expect("it is plain");
        let mut flow = Flow::of(&entries[0]).expect("it has a form that we know");
        let program = std::mem::take(&mut flow.program);
        let looks = flow.spread(&program).expect("it settles");
        (looks, program.len())
    }

    #[test]
    fn each_instruction_is_looked_at_a_few_times_in_whatever_order_they_stand() {
        let moves: Vec<_> = (0..1000)
            .map(|i| format!("mov.u64 r{}, r{i};", i + 1))
            .collect();
        let backwards: Vec<_> = moves.iter().rev().cloned().collect();
        let first = "ld.param.u64 r0, [a];";
        for body in [
            format!("{first} {}", moves.concat()),
            format!("{} {first}", backwards.concat()),
            // Each register may hold several values.
            format!(
                "{} {first} mov.u64 r0, 4; ld.global.u64 r0, [r1];",
                backwards.concat()
            ),
        ] {
            let (looks, all) = looks(&body);
            assert!(looks <= 6 * all, "{looks} looks at {all} instructions");
        }
    }
}
