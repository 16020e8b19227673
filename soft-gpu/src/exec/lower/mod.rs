//! Lowering: turns a parsed module into code, constants and a layout.

mod arith;
mod control;
mod convert;
mod economy;
mod float;
mod func;
mod fuse;
mod grammar;
mod half;
mod layout;
mod lent;
mod matrix;
mod mbarrier;
mod memory;
mod mods;
mod operand;
mod pressure;
mod transfer;
mod warp;

use std::collections::{HashMap, HashSet};

use super::col::{Col32, Col64};
use super::contract::{GlobalVar, KernelId, KernelInfo, LoadError, LoadOptions};
use super::env::SHARED_WINDOW;
use super::inst::{Baseline, Inst, LANES, bank};
use super::program::{CallSite, Contents, FuncInfo, Program, Target};
use crate::ptx::ast::{self, Init, Space, Type, Variable};

/// Reason why an instruction or a declaration cannot be lowered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    /// Invalid PTX.
    Invalid(String),
    /// Valid PTX with an unsupported feature.
    Unsupported(String),
}

impl Why {
    /// An error for invalid PTX.
    pub(crate) fn invalid(text: impl Into<String>) -> Why {
        Why::Invalid(text.into())
    }

    /// An error for an unsupported feature.
    pub(crate) fn unsupported(text: impl Into<String>) -> Why {
        Why::Unsupported(text.into())
    }

    /// Adds the place in the text to the error.
    pub(crate) fn at(self, place: &str) -> LoadError {
        match self {
            Why::Invalid(t) => LoadError::Syntax(format!("{place}: {t}")),
            Why::Unsupported(t) => LoadError::Unsupported(format!("{place}: {t}")),
        }
    }
}

/// Result of a function of the lowering.
pub(crate) type R<T> = Result<T, Why>;

/// Most constants of a program, for each width.
const MAX_POOL: usize = 1 << 20;
/// Most bytes of static shared memory of one kernel.
pub(crate) const MAX_SHARED: u64 = 1 << 20;

/// The object that a module-scope name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sym {
    /// Global or constant variable.
    Global(u32),
    /// Static shared variable at an offset.
    Shared(u64),
    /// Dynamic shared memory.
    Dynamic,
    /// Function by index.
    Func(u32),
}

/// The state of a module's lowering.
pub(crate) struct Module<'m> {
    pub(crate) ast: &'m ast::Module,
    pub(crate) code: Vec<Inst>,
    pub(crate) lines: Vec<u32>,
    pool32: Vec<Col32>,
    pool64: Vec<Col64>,
    seen32: HashMap<u32, u32>,
    seen64: HashMap<u64, u32>,
    seen_address: HashMap<(u32, i64), u32>,
    relocations: Vec<(u32, u32, i64)>,
    pub(crate) globals: Vec<GlobalVar>,
    contents: Vec<Contents>,
    pub(crate) symbols: HashMap<&'m str, Sym>,
    /// Symbols of a function's own `.shared`, `.global` and `.const` variables.
    pub(crate) scoped: HashMap<(usize, &'m str), Sym>,
    /// Device functions with a body: index in the parsed module by name.
    pub(crate) bodies: HashMap<&'m str, usize>,
    pub(crate) funcs: Vec<FuncInfo>,
    pub(crate) calls: Vec<CallSite>,
    pub(crate) tables: Vec<Vec<u32>>,
    operands: Vec<u32>,
    /// Opcodes whose modifiers were already checked.
    known: HashSet<&'m str>,
}

/// Lowers a whole module.
pub(crate) fn module(ast: &ast::Module, opts: &LoadOptions) -> Result<Program, LoadError> {
    check_target(ast, opts)?;
    let _level = opts.baseline.then(Baseline::new);
    let mut m = Module {
        ast,
        code: Vec::new(),
        lines: Vec::new(),
        pool32: Vec::new(),
        pool64: Vec::new(),
        seen32: HashMap::new(),
        seen64: HashMap::new(),
        seen_address: HashMap::new(),
        relocations: Vec::new(),
        globals: Vec::new(),
        contents: Vec::new(),
        symbols: HashMap::new(),
        scoped: HashMap::new(),
        bodies: HashMap::new(),
        funcs: Vec::new(),
        calls: Vec::new(),
        tables: Vec::new(),
        operands: Vec::new(),
        known: HashSet::new(),
    };
    m.declare_functions();
    let shared = layout::shared(ast).map_err(|w| w.at("shared memory"))?;
    m.declare_variables(&shared)?;
    m.fill_contents()?;
    let mut bodies: Vec<(u32, usize)> = Vec::new();
    for (i, f) in ast.functions.iter().enumerate() {
        if !f.declaration
            && let Some(Sym::Func(id)) = m.symbols.get(f.name.as_str())
        {
            bodies.push((*id, i));
        }
    }
    for &(id, i) in &bodies {
        func::signature(&mut m, id, &ast.functions[i])?;
    }
    for &(id, i) in &bodies {
        func::lower(&mut m, id, i)?;
    }
    finish(m, &shared, &bodies)
}

fn check_target(ast: &ast::Module, opts: &LoadOptions) -> Result<(), LoadError> {
    if ast.address_size != 64 {
        return Err(LoadError::Unsupported(
            ".address_size 32 is not served".into(),
        ));
    }
    let (major, minor) = opts.compute_capability;
    for t in &ast.target {
        let Some(sm) = t.strip_prefix("sm_") else {
            continue;
        };
        let digits = sm.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let wanted: u32 = digits.parse().unwrap_or(0);
        if wanted > major * 10 + minor {
            return Err(LoadError::Syntax(format!(
                ".target {t} is newer than this device, sm_{major}{minor}: compile for \
                 compute_{major}{minor} or older"
            )));
        }
    }
    Ok(())
}

fn finish(
    m: Module<'_>,
    shared: &layout::Shared,
    bodies: &[(u32, usize)],
) -> Result<Program, LoadError> {
    let mut kernels = Vec::new();
    let mut by_name = HashMap::new();
    let constant: u64 = m
        .globals
        .iter()
        .filter(|g| g.constant)
        .map(|g| g.size)
        .sum();
    for &(id, i) in bodies {
        let f = &m.ast.functions[i];
        if !f.kernel {
            continue;
        }
        let info = kernel_info(&m, f, id, shared.kernel_bytes(i), constant);
        by_name.insert(info.name.clone(), KernelId(kernels.len() as u32));
        kernels.push((id, info));
    }
    Ok(Program {
        code: m.code,
        lines: m.lines,
        pool32: m.pool32,
        pool64: m.pool64,
        relocations: m.relocations,
        funcs: m.funcs,
        calls: m.calls,
        tables: m.tables,
        operands: m.operands,
        const_ranges: Vec::new(),
        globals: m.globals,
        contents: m.contents,
        kernels,
        by_name,
        hollow: false,
    })
}

fn kernel_info(
    m: &Module<'_>,
    f: &ast::Function,
    id: u32,
    shared: u64,
    constant: u64,
) -> KernelInfo {
    let func = &m.funcs[id as usize];
    let params = func::param_offsets(&f.params);
    let param_bytes = params.last().map_or(0, |(o, s)| o + s);
    let product = |d: [u32; 3]| {
        d.iter()
            .fold(1u32, |a, b| a.saturating_mul(*b))
            .clamp(1, 1024)
    };
    let max_threads = f.req_ntid.or(f.max_ntid).map_or(1024, product);
    KernelInfo {
        name: f.name.clone(),
        params,
        param_bytes,
        shared_bytes: shared as usize,
        local_bytes: func.local as usize,
        const_bytes: constant as usize,
        registers: pressure::registers(m.ast, f, max_threads),
        max_threads,
        required_block: f.req_ntid,
        virtual_arch: m.ast.virtual_arch(),
    }
}

impl<'m> Module<'m> {
    /// Numbers the functions. If a name has a declaration and a definition, the definition counts.
    fn declare_functions(&mut self) {
        for (i, f) in self.ast.functions.iter().enumerate() {
            if !f.declaration && !f.kernel {
                self.bodies.entry(&f.name).or_insert(i);
            }
            let known = self.symbols.get(f.name.as_str()).copied();
            if let Some(Sym::Func(_)) = known {
                continue;
            }
            let id = self.funcs.len() as u32;
            self.funcs.push(FuncInfo {
                name: f.name.clone(),
                ..FuncInfo::default()
            });
            self.symbols.insert(&f.name, Sym::Func(id));
        }
    }

    fn declare_variables(&mut self, shared: &layout::Shared) -> Result<(), LoadError> {
        let ast = self.ast;
        for v in &ast.variables {
            if let Some(sym) = self.declare(v, &v.name, shared.offset(None, &v.name))? {
                self.symbols.insert(&v.name, sym);
            }
        }
        if let Some(at) = shared.offset(None, layout::RESERVED) {
            self.symbols.insert(layout::RESERVED, Sym::Shared(at));
        }
        for (i, f) in ast.functions.iter().enumerate() {
            for v in &f.variables {
                if matches!(v.space, Space::Local | Space::Param) {
                    continue;
                }
                let unique = format!("{}${}", f.name, v.name);
                if let Some(sym) = self.declare(v, &unique, shared.offset(Some(i), &v.name))? {
                    self.scoped.insert((i, &v.name), sym);
                }
            }
        }
        Ok(())
    }

    fn declare(
        &mut self,
        v: &Variable,
        name: &str,
        shared: Option<u64>,
    ) -> Result<Option<Sym>, LoadError> {
        let place = format!("line {}: {}", v.line, v.name);
        match v.space {
            Space::Shared if v.external || v.count == 0 => Ok(Some(Sym::Dynamic)),
            Space::Shared => Ok(Some(Sym::Shared(shared.unwrap_or(0)))),
            Space::Global | Space::Const if v.external => Ok(None),
            Space::Global | Space::Const => {
                let id = self.globals.len() as u32;
                let size = v
                    .count
                    .checked_mul(v.ty.size() as u64)
                    .filter(|s| *s < 1 << 46);
                let size = size.ok_or_else(|| Why::invalid("variable too large").at(&place))?;
                self.globals.push(GlobalVar {
                    name: name.to_string(),
                    size: size.max(1),
                    align: v.align.max(v.ty.size() as u32),
                    constant: v.space == Space::Const,
                    visible: v.visible,
                    managed: v.managed,
                });
                Ok(Some(Sym::Global(id)))
            }
            Space::Local | Space::Param => {
                Err(Why::unsupported("module-scope .local and .param variables").at(&place))
            }
        }
    }

    /// Converts initialisers to bytes. The order is that of `declare_variables`.
    fn fill_contents(&mut self) -> Result<(), LoadError> {
        let ast = self.ast;
        let outer = ast.variables.iter().map(|v| (None, v));
        let inner = ast
            .functions
            .iter()
            .enumerate()
            .flat_map(|(i, f)| f.variables.iter().map(move |v| (Some(i), v)));
        for (scope, v) in outer.chain(inner) {
            if v.external || !matches!(v.space, Space::Global | Space::Const) {
                continue;
            }
            let place = format!("line {}: initialiser of {}", v.line, v.name);
            let c = self.contents_of(scope, v).map_err(|w| w.at(&place))?;
            self.contents.push(c);
        }
        Ok(())
    }

    fn contents_of(&self, scope: Option<usize>, v: &Variable) -> R<Contents> {
        let size = v.ty.size();
        let mut c = Contents::default();
        for (k, init) in v.init.iter().enumerate() {
            if k as u64 >= v.count {
                return Err(Why::invalid("more values than elements"));
            }
            let value: u64 = match init {
                Init::Int(n) => match v.ty {
                    Type::F32 => u64::from((*n as f32).to_bits()),
                    Type::F64 => (*n as f64).to_bits(),
                    _ => *n as u64,
                },
                Init::Float(x) => match v.ty {
                    Type::F32 | Type::B32 | Type::U32 | Type::S32 => {
                        u64::from((*x as f32).to_bits())
                    }
                    Type::F16 => super::ops::convert::to_float(
                        *x,
                        super::ops::convert::Num::F16,
                        super::round::Mode::Nearest,
                    ),
                    _ => x.to_bits(),
                },
                Init::Symbol {
                    name,
                    addend,
                    generic,
                } => {
                    let sym = self.lookup(scope, name);
                    let target = match sym {
                        Some(Sym::Global(g)) => Target::Global(g),
                        Some(Sym::Func(f)) => Target::Func(f),
                        Some(Sym::Shared(o)) if *generic => Target::Shared(SHARED_WINDOW + o),
                        Some(Sym::Shared(o)) => Target::Shared(o),
                        Some(Sym::Dynamic) | None => {
                            return Err(Why::unsupported(format!("address of {name}")));
                        }
                    };
                    c.addresses.push((k * size, size.min(8), target, *addend));
                    0
                }
            };
            let le = value.to_le_bytes();
            c.bytes.extend_from_slice(&le[..size.min(8)]);
            if size > 8 {
                let fill = if matches!(init, Init::Int(n) if *n < 0) {
                    0xff
                } else {
                    0
                };
                c.bytes.resize((k + 1) * size, fill);
            }
        }
        Ok(c)
    }

    /// Finds the object of a name. The function's own variables hide those of the module.
    pub(crate) fn lookup(&self, scope: Option<usize>, name: &str) -> Option<Sym> {
        let own = scope.and_then(|i| self.scoped.get(&(i, name)).copied());
        own.or_else(|| self.symbols.get(name).copied())
    }

    /// The operand of a 32-bit constant.
    pub(crate) fn const32(&mut self, v: u32) -> R<u32> {
        if let Some(&i) = self.seen32.get(&v) {
            return Ok(bank::CONST | i);
        }
        let i = self.pool32.len();
        if i >= MAX_POOL {
            return Err(Why::unsupported("too many constants"));
        }
        self.pool32.push(Col32([v; LANES]));
        self.seen32.insert(v, i as u32);
        Ok(bank::CONST | i as u32)
    }

    /// The operand of a 64-bit constant.
    pub(crate) fn const64(&mut self, v: u64) -> R<u32> {
        if let Some(&i) = self.seen64.get(&v) {
            return Ok(bank::CONST | i);
        }
        let i = self.push64(v)?;
        self.seen64.insert(v, i);
        Ok(bank::CONST | i)
    }

    /// The operand for the address of a global plus an addend.
    pub(crate) fn address64(&mut self, global: u32, addend: i64) -> R<u32> {
        if let Some(&i) = self.seen_address.get(&(global, addend)) {
            return Ok(bank::CONST | i);
        }
        let i = self.push64(0)?;
        self.relocations.push((i, global, addend));
        self.seen_address.insert((global, addend), i);
        Ok(bank::CONST | i)
    }

    /// Stores the list of columns of an instruction that has more operands than [`Inst`]. Returns
    /// the index of the list.
    pub(crate) fn operand_list(&mut self, columns: &[u32]) -> R<u32> {
        let at = self.operands.len();
        if at + columns.len() > MAX_POOL {
            return Err(Why::unsupported("too many operands"));
        }
        self.operands.extend_from_slice(columns);
        Ok(at as u32)
    }

    fn push64(&mut self, v: u64) -> R<u32> {
        let i = self.pool64.len();
        if i >= MAX_POOL {
            return Err(Why::unsupported("too many constants"));
        }
        self.pool64.push(Col64([v; LANES]));
        Ok(i as u32)
    }
}
