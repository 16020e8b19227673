//! The parsed form of a PTX module: statements as written, with unresolved names.
//!
//! The parser keeps an opcode as its dotted text (`"mad.lo.s32"`). A table in [`crate::exec`]
//! lowers opcodes. The parser flattens scopes (`{ }` with local `.reg` and labels): each local
//! register or label gets a unique name, so that a function body is one flat list.

/// A whole translation unit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Module {
    /// `.version major.minor`.
    pub version: (u32, u32),
    /// `.target` words, for instance `["sm_80"]`.
    pub target: Vec<String>,
    /// `.address_size`, 64 (32 is refused by the loader).
    pub address_size: u32,
    /// Module-scope variables in order of appearance.
    pub variables: Vec<Variable>,
    /// Kernels and device functions, bodies and bare declarations, in order of appearance.
    pub functions: Vec<Function>,
}

impl Module {
    /// The virtual architecture of the PTX module, as major * 10 + minor: 80 for `sm_80` and
    /// `sm_80a`; 0 without an architecture.
    #[must_use]
    pub fn virtual_arch(&self) -> u32 {
        let number = |word: &String| {
            let digits = word.strip_prefix("sm_")?.trim_end_matches(['a', 'f']);
            digits.parse().ok()
        };
        self.target.iter().find_map(number).unwrap_or(0)
    }

    /// Whether the PTX module targets the first generation of devices (`sm_1x`), whose PTX omits
    /// modifiers.
    #[must_use]
    pub fn first_generation(&self) -> bool {
        (10..20).contains(&self.virtual_arch())
    }
}

/// A state space of a variable or an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// `.global` (also `.common` linkage).
    Global,
    /// `.const`.
    Const,
    /// `.shared`.
    Shared,
    /// `.local`.
    Local,
    /// `.param`.
    Param,
}

/// A fundamental type. Names are PTX's.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F64,
    Pred,
}

impl Type {
    /// The type of a PTX name, without its dot: `"u32"`.
    pub fn named(name: &str) -> Option<Type> {
        use Type::*;
        Some(match name {
            "b8" => B8,
            "b16" => B16,
            "b32" => B32,
            "b64" => B64,
            "b128" => B128,
            "u8" => U8,
            "u16" => U16,
            "u32" => U32,
            "u64" => U64,
            "s8" => S8,
            "s16" => S16,
            "s32" => S32,
            "s64" => S64,
            "f16" => F16,
            "f16x2" => F16x2,
            "bf16" => BF16,
            "bf16x2" => BF16x2,
            "f32" => F32,
            "f64" => F64,
            "pred" => Pred,
            _ => return None,
        })
    }

    /// Size in bytes; 1 for a predicate.
    pub fn size(self) -> usize {
        use Type::*;
        match self {
            B8 | U8 | S8 | Pred => 1,
            B16 | U16 | S16 | F16 | BF16 => 2,
            B32 | U32 | S32 | F32 | F16x2 | BF16x2 => 4,
            B64 | U64 | S64 | F64 => 8,
            B128 => 16,
        }
    }
}

/// One element of an initialiser.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// Integer value, truncated to the element type.
    Int(i128),
    /// Value of a float literal (`0f3F800000`, `0d…`, decimal), not yet converted to the element
    /// type.
    Float(f64),
    /// Address of a symbol plus an addend: `sym+4`; `generic(sym)+8` has `generic` set.
    Symbol {
        /// The symbol's name (variable or function).
        name: String,
        /// Addend in bytes.
        addend: i64,
        /// `generic(sym)`: the generic address, not the address within the state space.
        generic: bool,
    },
}

/// A variable or a parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    /// Name, unique within its scope.
    pub name: String,
    /// State space.
    pub space: Space,
    /// Element type.
    pub ty: Type,
    /// Elements in total: the product of all dimensions and the vector width. 1 for a scalar, 0 for
    /// an unsized `.extern .shared x[]`.
    pub count: u64,
    /// Whether the variable is declared as an array (`[]`), even as `[1]`.
    pub array: bool,
    /// Alignment in bytes (natural, if `.align` is absent).
    pub align: u32,
    /// `.extern`: defined elsewhere (dynamic shared memory for `.shared`).
    pub external: bool,
    /// `.visible`, `.weak` or `.common`: other modules and the driver may find the variable by
    /// name.
    pub visible: bool,
    /// `.weak` or `.common`: another definition of the name replaces this definition.
    pub weak: bool,
    /// `.attribute(.managed)`.
    pub managed: bool,
    /// Flattened initialiser; missing elements are zero.
    pub init: Vec<Init>,
    /// Source line (1-based).
    pub line: u32,
}

impl Variable {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.count * self.ty.size() as u64
    }
}

/// A `.entry` or a `.func`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Function {
    /// Name as written (mangled for C++).
    pub name: String,
    /// `.entry`.
    pub kernel: bool,
    /// Declaration without a body (`.extern .func`, or a forward declaration).
    pub declaration: bool,
    /// `.visible` / `.weak`.
    pub visible: bool,
    /// `.weak`: another definition of the name replaces this definition.
    pub weak: bool,
    /// Return parameters of a `.func` (`.param` or `.reg` space variables).
    pub returns: Vec<Param>,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// `.maxntid x,y,z` (missing dimensions are 1).
    pub max_ntid: Option<[u32; 3]>,
    /// `.reqntid x,y,z`.
    pub req_ntid: Option<[u32; 3]>,
    /// `.minnctapersm`.
    pub min_cta_per_sm: Option<u32>,
    /// `.maxnreg`.
    pub max_registers: Option<u32>,
    /// Registers of the whole body, scopes flattened: name → type.
    pub registers: Vec<(String, Type)>,
    /// `.shared`/`.local`/`.param`/`.const`/`.global` variables declared in the body.
    pub variables: Vec<Variable>,
    /// `.callprototype` tables: label → (returns, params).
    pub prototypes: Vec<(String, Vec<Param>, Vec<Param>)>,
    /// `.branchtargets` (and `.calltargets`) tables: label → targets.
    pub targets: Vec<(String, Vec<String>)>,
    /// The body.
    pub body: Vec<Statement>,
    /// Source line of the header.
    pub line: u32,
}

/// A formal parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Variable of the parameter: in space `Param`, or a register if `in_register`.
    pub var: Variable,
    /// A `.reg` parameter of a `.func`: a register of the body that is not in
    /// [`Function::registers`].
    pub in_register: bool,
}

/// A statement of a body.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// A label.
    Label(String),
    /// An instruction.
    Inst(Instruction),
}

/// One instruction.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// Guard: predicate register, and whether the guard is negated (`@!p`).
    pub guard: Option<(String, bool)>,
    /// Full dotted opcode, such as `ld.global.v2.f32` or `bra.uni`.
    pub opcode: String,
    /// Operands in source order. `p|q` destinations are [`Operand::Pair`].
    pub operands: Vec<Operand>,
    /// Source line (1-based).
    pub line: u32,
}

/// An operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A name: register, special register (`%tid.x` with its suffix), variable, label, function.
    Name(String),
    /// `-x` or `!p` in operand position.
    Negated(Box<Operand>),
    /// Integer literal (also `WARP_SZ`).
    Int(i128),
    /// Float literal: the value as a double, and the exact bits of a hexadecimal literal.
    Float {
        /// The value.
        value: f64,
        /// Bits of a `0fXXXXXXXX` literal, which preserve a NaN payload.
        single_bits: Option<u32>,
        /// Bits of a `0dXXXXXXXXXXXXXXXX` literal.
        double_bits: Option<u64>,
    },
    /// `sym+4` outside brackets.
    Offset(String, i64),
    /// `[base+offset]`; without a base, the address is absolute.
    Memory {
        /// Register or variable.
        base: Option<String>,
        /// Bytes added to the base.
        offset: i64,
    },
    /// `{a, b, c, d}`.
    Vector(Vec<Operand>),
    /// `(a, b)` of a call.
    List(Vec<Operand>),
    /// `p|q`.
    Pair(Box<Operand>, Box<Operand>),
    /// `_`.
    Sink,
}

impl Operand {
    /// Calls `each` with the names in the operand, including those in addresses.
    pub fn names<'a>(&'a self, each: &mut impl FnMut(&'a str)) {
        let mut open = vec![self];
        while let Some(operand) = open.pop() {
            match operand {
                Operand::Name(n)
                | Operand::Offset(n, _)
                | Operand::Memory { base: Some(n), .. } => {
                    each(n);
                }
                Operand::Negated(inner) => open.push(inner),
                Operand::Vector(all) | Operand::List(all) => open.extend(all),
                Operand::Pair(a, b) => open.extend([&**a, &**b]),
                _ => {}
            }
        }
    }
}
