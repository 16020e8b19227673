//! The layout of static shared variables.
//!
//! A variable has the same offset in all kernels, because device functions use it too. Two
//! variables may overlap unless one kernel can reach both. A kernel therefore does not need the
//! shared memory of all other kernels of its module.

use std::collections::{HashMap, HashSet};

use super::{MAX_SHARED, R, Why};
use crate::ptx::ast::{Function, Init, Module, Space, Statement, Type, Variable};

/// Most static shared variables of a module, because the layout takes quadratic time.
const MAX_VARIABLES: usize = 4096;

/// Prefix of the special registers that give the position of reserved shared memory. Cooperative
/// groups of several warps use 288 bytes there, from the second part on.
pub(crate) const RESERVED: &str = "%reserved_smem_offset_";
/// Size of the reserved shared memory in bytes. `SECOND_PART` is the offset of its second part.
const RESERVED_BYTES: u64 = 512;
const SECOND_PART: u64 = 128;

/// The value of one of these registers, if the reserved memory is at `at`; `None` for any other
/// register.
pub(crate) fn reserved(register: &str, at: u64) -> Option<u64> {
    match register.strip_prefix(RESERVED)? {
        "begin" | "0" => Some(at),
        "1" => Some(at + SECOND_PART),
        "end" => Some(at + RESERVED_BYTES),
        "cap" => Some(RESERVED_BYTES),
        _ => None,
    }
}

/// The reserved memory, as a variable of the kernels that read one of these registers.
fn reserved_memory() -> Variable {
    Variable {
        name: RESERVED.into(),
        space: Space::Shared,
        ty: Type::B8,
        count: RESERVED_BYTES,
        array: true,
        align: 16,
        external: false,
        visible: false,
        weak: false,
        managed: false,
        init: Vec::new(),
        line: 0,
    }
}

fn asks_for_reserved(f: &Function) -> bool {
    f.body.iter().any(|s| {
        let mut asks = false;
        if let Statement::Inst(i) = s
            && (i.opcode.starts_with("mov") || i.opcode.starts_with("cvt"))
        {
            for operand in &i.operands {
                operand.names(&mut |name| asks |= name.starts_with(RESERVED));
            }
        }
        asks
    })
}

/// Key of a shared variable: index of the function whose body declares it, if any, and its name.
type Key<'m> = (Option<usize>, &'m str);

/// Offsets of all shared variables, and the size that each kernel needs.
pub(crate) struct Shared {
    offsets: HashMap<(Option<usize>, String), u64>,
    bytes: HashMap<usize, u64>,
}

impl Shared {
    /// Offset of a variable in bytes.
    pub(crate) fn offset(&self, scope: Option<usize>, name: &str) -> Option<u64> {
        self.offsets.get(&(scope, name.to_string())).copied()
    }

    /// Bytes of static shared memory of the kernel that is function `index` of the module.
    pub(crate) fn kernel_bytes(&self, index: usize) -> u64 {
        self.bytes.get(&index).copied().unwrap_or(0)
    }
}

fn mentioned(f: &Function) -> HashSet<&str> {
    let mut out = HashSet::new();
    for s in &f.body {
        if let Statement::Inst(i) = s {
            for operand in &i.operands {
                operand.names(&mut |name| {
                    out.insert(name);
                });
            }
        }
    }
    for (_, targets) in &f.targets {
        out.extend(targets.iter().map(String::as_str));
    }
    out
}

fn is_static(v: &Variable) -> bool {
    v.space == Space::Shared && !v.external && v.count > 0
}

/// Assigns an offset to each static shared variable of a module.
pub(crate) fn shared(m: &Module) -> R<Shared> {
    let mut out = Shared {
        offsets: HashMap::new(),
        bytes: HashMap::new(),
    };
    let any = m.variables.iter().any(is_static)
        || m.functions
            .iter()
            .any(|f| f.variables.iter().any(is_static) || asks_for_reserved(f));
    if !any {
        return Ok(out);
    }
    let users = users(m);
    let mut placed: Vec<(u64, u64, &HashSet<usize>)> = Vec::new();
    let none = HashSet::new();
    let outer = m.variables.iter().map(|v| (None, v));
    let inner = m
        .functions
        .iter()
        .enumerate()
        .flat_map(|(i, f)| f.variables.iter().map(move |v| (Some(i), v)));
    let reserved = reserved_memory();
    let all = outer.chain(inner).chain([(None, &reserved)]);
    for (scope, v) in all.filter(|(_, v)| is_static(v)) {
        if placed.len() >= MAX_VARIABLES {
            return Err(Why::unsupported(format!(
                "more than {MAX_VARIABLES} shared variables"
            )));
        }
        let mine = users.get(&(scope, v.name.as_str())).unwrap_or(&none);
        let align = u64::from(v.align.max(1))
            .max(v.ty.size() as u64)
            .next_power_of_two();
        let size = v.count.saturating_mul(v.ty.size() as u64);
        let mut others: Vec<_> = placed
            .iter()
            .filter(|(.., u)| !u.is_disjoint(mine))
            .map(|p| (p.0, p.1))
            .collect();
        others.sort_unstable();
        let mut at = 0u64;
        for (start, end) in others {
            if at.saturating_add(size) <= start {
                break;
            }
            at = at.max(end).next_multiple_of(align);
        }
        let end = at.saturating_add(size);
        if end > MAX_SHARED {
            return Err(Why::invalid(format!(
                "{} and others need {end} bytes",
                v.name
            )));
        }
        placed.push((at, end, mine));
        out.offsets.insert((scope, v.name.clone()), at);
        for k in mine {
            let b = out.bytes.entry(*k).or_insert(0);
            *b = (*b).max(end);
        }
    }
    Ok(out)
}

/// For each shared variable, the kernels whose code can reach the variable.
fn users(m: &Module) -> HashMap<Key<'_>, HashSet<usize>> {
    let ids: HashMap<&str, usize> = m
        .functions
        .iter()
        .enumerate()
        .filter(|(_, f)| !f.declaration)
        .map(|(i, f)| (f.name.as_str(), i))
        .collect();
    let said: Vec<HashSet<&str>> = m.functions.iter().map(mentioned).collect();
    // An indirect call may call any function whose address is stored in a variable.
    let stored: Vec<usize> = m
        .variables
        .iter()
        .flat_map(|v| &v.init)
        .filter_map(|i| match i {
            Init::Symbol { name, .. } => ids.get(name.as_str()).copied(),
            _ => None,
        })
        .collect();
    let shared: HashSet<&str> = m
        .variables
        .iter()
        .filter(|v| is_static(v))
        .map(|v| v.name.as_str())
        .collect();
    let mut out: HashMap<Key<'_>, HashSet<usize>> = HashMap::new();
    for (k, _) in m
        .functions
        .iter()
        .enumerate()
        .filter(|(_, f)| f.kernel && !f.declaration)
    {
        let mut seen = HashSet::from([k]);
        let mut todo = vec![k];
        todo.extend(stored.iter().filter(|s| seen.insert(**s)));
        while let Some(f) = todo.pop() {
            let func = &m.functions[f];
            for v in func.variables.iter().filter(|v| is_static(v)) {
                out.entry((Some(f), &v.name)).or_default().insert(k);
            }
            for n in &said[f] {
                let own = func.variables.iter().any(|v| v.name == *n);
                if !own && shared.contains(n) {
                    out.entry((None, n)).or_default().insert(k);
                }
                if n.starts_with(RESERVED) {
                    out.entry((None, RESERVED)).or_default().insert(k);
                }
                if let Some(&g) = ids.get(n)
                    && seen.insert(g)
                {
                    todo.push(g);
                }
            }
        }
    }
    out
}
