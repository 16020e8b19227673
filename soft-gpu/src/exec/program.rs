//! A loaded program: code, constants and symbols of one PTX module.

use std::collections::HashMap;

use super::col::{Col32, Col64};
use super::contract::{GlobalVar, KernelId, KernelInfo, LoadError, LoadOptions};
use super::env::{FUNC_STRIDE, FUNC_WINDOW};
use super::inst::Inst;
use super::lower;
use super::warp::Place;
use crate::ptx::ast::Module;

/// Static properties of a function.
#[derive(Debug, Clone, Default)]
pub(crate) struct FuncInfo {
    /// Name.
    pub(crate) name: String,
    /// Index of the first instruction.
    pub(crate) entry: u32,
    /// Number of 32-bit columns of a frame.
    pub(crate) n32: u32,
    /// Number of 64-bit columns of a frame.
    pub(crate) n64: u32,
    /// Number of predicates of a frame.
    pub(crate) np: u32,
    /// Local bytes of a frame, a multiple of 16.
    pub(crate) local: u64,
    /// Places of the parameters.
    pub(crate) params: Vec<Place>,
    /// Places of the results.
    pub(crate) returns: Vec<Place>,
    /// Offsets of the kernel's 32-bit parameters that are columns of [`super::inst::bank::PARAM`].
    pub(crate) params32: Vec<u32>,
    /// Offsets of the kernel's 64-bit parameters that are columns of that bank.
    pub(crate) params64: Vec<u32>,
    /// Whether the function is a `.func` with a body, which can be called through its address.
    pub(crate) callable: bool,
    /// Whether the function may wait for writes of other blocks: it calls functions, has atomics or
    /// fences, or has loads that bypass the first-level cache.
    pub(crate) waits: bool,
}

/// Arguments and results of a call, in the frame of the caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallSite {
    /// Arguments.
    pub(crate) args: Vec<Place>,
    /// Results.
    pub(crate) rets: Vec<Place>,
}

/// The target of an address in an initialiser.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// Global variable by index.
    Global(u32),
    /// Function by index.
    Func(u32),
    /// Shared variable, by its address in the shared space or its generic address.
    Shared(u64),
}

/// Initial contents of a global.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    /// The first bytes. Further bytes are zero.
    pub(crate) bytes: Vec<u8>,
    /// Addresses among the bytes: (offset, size in bytes, target, addend).
    pub(crate) addresses: Vec<(usize, usize, Target, i64)>,
}

/// One loaded PTX module.
#[derive(Default)]
pub struct Program {
    pub(crate) code: Vec<Inst>,
    /// PTX line of each instruction, from 1.
    pub(crate) lines: Vec<u32>,
    pub(crate) pool32: Vec<Col32>,
    pub(crate) pool64: Vec<Col64>,
    /// Constants that are addresses of globals: (pool index, global, addend).
    pub(crate) relocations: Vec<(u32, u32, i64)>,
    pub(crate) funcs: Vec<FuncInfo>,
    pub(crate) calls: Vec<CallSite>,
    /// Branch tables of `brx.idx`: indices of instructions.
    pub(crate) tables: Vec<Vec<u32>>,
    /// Operand lists of matrix instructions, which have more operands than [`Inst`].
    pub(crate) operands: Vec<u32>,
    /// Address ranges of constant variables; empty before linking.
    pub(crate) const_ranges: Vec<(u64, u64)>,
    pub(crate) globals: Vec<GlobalVar>,
    pub(crate) contents: Vec<Contents>,
    pub(crate) kernels: Vec<(u32, KernelInfo)>,
    pub(crate) by_name: HashMap<String, KernelId>,
    /// Whether the kernels do nothing.
    pub(crate) hollow: bool,
}

/// If a global has more bytes, only the bytes of its initialiser are written.
const WHOLE_LIMIT: u64 = 64 << 20;

impl Program {
    /// Loads PTX text, which may end in NULs. Does not touch the device.
    ///
    /// # Errors
    /// See [`LoadError`]; the text names function, line and opcode.
    pub fn load(ptx: &[u8], opts: &LoadOptions) -> Result<Program, LoadError> {
        let end = ptx.iter().position(|&b| b == 0).unwrap_or(ptx.len());
        if ptx.starts_with(b"\x7fELF") || ptx.starts_with(&[0x50, 0xed, 0x55, 0xba]) {
            return Err(LoadError::NoBinary(
                "the image holds compiled GPU code; this software device runs PTX only: build \
                 with PTX included (-gencode arch=compute_80,code=compute_80)"
                    .into(),
            ));
        }
        if ptx[..end].iter().all(u8::is_ascii_whitespace) {
            return Err(LoadError::NoBinary("the image is empty".into()));
        }
        let module = crate::ptx::parse(&ptx[..end]).map_err(|e| {
            if e.unsupported {
                LoadError::Unsupported(e.to_string())
            } else {
                LoadError::Syntax(e.to_string())
            }
        })?;
        Program::from_module(&module, opts)
    }

    /// Loads a parsed module, for instance the result of a link. Does not touch the device.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn from_module(module: &Module, opts: &LoadOptions) -> Result<Program, LoadError> {
        lower::module(module, opts)
    }

    /// A program whose kernels do nothing, with variables and their initial bytes.
    pub fn hollow(kernels: Vec<KernelInfo>, globals: Vec<(GlobalVar, Vec<u8>)>) -> Program {
        let (globals, contents) = globals.into_iter().unzip();
        let whole = |bytes| Contents {
            bytes,
            addresses: Vec::new(),
        };
        let name = |(i, k): (usize, &KernelInfo)| (k.name.clone(), KernelId(i as u32));
        Program {
            globals,
            contents: Vec::<Vec<u8>>::into_iter(contents).map(whole).collect(),
            by_name: kernels.iter().enumerate().map(name).collect(),
            kernels: kernels.into_iter().map(|k| (0, k)).collect(),
            hollow: true,
            ..Program::default()
        }
    }

    /// Whether the kernels do nothing.
    pub fn is_hollow(&self) -> bool {
        self.hollow
    }

    /// The variables, in order. The driver allocates them in its arena, filled with zeros.
    pub fn globals(&self) -> &[GlobalVar] {
        &self.globals
    }

    /// Sets the addresses of the globals, in the order of [`Self::globals`]. Returns the initial
    /// contents that the driver must write. Bytes after the end of an entry, and globals without an
    /// entry, must be zero.
    pub fn link(&mut self, addresses: &[u64]) -> Vec<(u64, Vec<u8>)> {
        let address = |g: u32| addresses.get(g as usize).copied().unwrap_or(0);
        for &(at, global, addend) in &self.relocations {
            self.pool64[at as usize] =
                Col64([address(global).wrapping_add(addend as u64); super::inst::LANES]);
        }
        self.const_ranges = self
            .globals
            .iter()
            .zip(addresses)
            .filter(|(g, _)| g.constant)
            .map(|(g, &a)| (a, a.saturating_add(g.size)))
            .collect();
        let mut out = Vec::new();
        for (g, (var, c)) in self.globals.iter().zip(&self.contents).enumerate() {
            let mut bytes = c.bytes.clone();
            for &(at, size, target, addend) in &c.addresses {
                let value = match target {
                    Target::Global(g) => address(g),
                    Target::Func(f) => FUNC_WINDOW + u64::from(f) * FUNC_STRIDE,
                    Target::Shared(addr) => addr,
                };
                let value = value.wrapping_add(addend as u64).to_le_bytes();
                if let Some(slot) = bytes.get_mut(at..at + size) {
                    slot.copy_from_slice(&value[..size]);
                }
            }
            if var.size <= WHOLE_LIMIT {
                bytes.resize(var.size as usize, 0);
            }
            if !bytes.is_empty() {
                out.push((address(g as u32), bytes));
            }
        }
        out
    }

    /// Finds a kernel by name.
    pub fn kernel(&self, name: &str) -> Option<KernelId> {
        self.by_name.get(name).copied()
    }

    /// All kernels, in order of appearance.
    pub fn kernels(&self) -> impl Iterator<Item = (&str, KernelId)> {
        self.kernels
            .iter()
            .enumerate()
            .map(|(i, (_, k))| (k.name.as_str(), KernelId(i as u32)))
    }

    /// Static properties of a kernel. The id must come from this program.
    pub fn kernel_info(&self, id: KernelId) -> &KernelInfo {
        &self.kernels[id.0 as usize].1
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("instructions", &self.code.len())
            .field("kernels", &self.by_name.keys())
            .finish_non_exhaustive()
    }
}
