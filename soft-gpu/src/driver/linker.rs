//! Linking: joins several PTX modules into one and resolves the references between them.
//!
//! A name that a module does not export (neither `.visible` nor `.weak`) is renamed if another
//! module uses the same name. The "cubin" of the linker consists of a mark and the texts of the
//! inputs: loading the image links the texts again.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vgpu_cuda_abi::CuResult;

use super::module::Refusal;
use super::program::serves;
use super::runtime_errors;
use crate::ptx::ast::{Function, Init, Module, Operand, Space, Statement, Variable};

/// First line of an image with several inputs.
const MAGIC: &[u8] = b"// soft-gpu: linked inputs follow\n";
/// Start of the line before each input. The length in bytes and the name follow in the line.
const INPUT: &str = "// soft-gpu input ";
/// Start of the line with the register limit of the kernels.
const REGISTERS: &str = "// soft-gpu registers ";

/// A PTX text to link.
#[derive(Debug, Clone)]
pub struct Input {
    /// Name in the log.
    pub name: String,
    /// PTX text without a terminating NUL.
    pub text: Vec<u8>,
}

/// The parts of a linked image.
#[derive(Debug, Clone, Default)]
pub struct Image {
    /// Inputs of the link.
    pub inputs: Vec<Input>,
    /// CU_JIT_MAX_REGISTERS of the link.
    pub registers: Option<u32>,
}

/// Parses a text.
///
/// # Errors
/// CUDA_ERROR_INVALID_PTX, or CUDA_ERROR_UNSUPPORTED_PTX_VERSION for unsupported PTX.
pub fn parse(input: &Input) -> Result<Module, Refusal> {
    crate::ptx::parse(&input.text).map_err(|e| {
        let code = if e.unsupported {
            CuResult::UNSUPPORTED_PTX_VERSION
        } else {
            CuResult::INVALID_PTX
        };
        (code, format!("{}: {e}", input.name))
    })
}

/// Returns the NUL-terminated image of linked inputs. The image of a single text that needs neither
/// the device runtime nor a register limit is the text itself.
pub fn pack(inputs: &[Input], linked: &Linked, registers: Option<u32>) -> Vec<u8> {
    let mut image = Vec::new();
    if let ([only], false, None) = (inputs, linked.runtime, registers) {
        image.extend_from_slice(&only.text);
    } else {
        image.extend_from_slice(MAGIC);
        if let Some(n) = registers {
            image.extend_from_slice(format!("{REGISTERS}{n}\n").as_bytes());
        }
        for i in inputs {
            let name = i.name.replace(['\n', '\0'], " ");
            image.extend_from_slice(format!("{INPUT}{} {name}\n", i.text.len()).as_bytes());
            image.extend_from_slice(&i.text);
            image.push(b'\n');
        }
    }
    image.push(0);
    image
}

/// Returns the inputs of a linked image; `None` for any other text.
pub fn unpack(image: &[u8]) -> Option<Image> {
    let mut rest = image.strip_prefix(MAGIC)?;
    let mut inputs = Vec::new();
    let mut registers = None;
    if let Some(after) = rest.strip_prefix(REGISTERS.as_bytes()) {
        let end = after.iter().position(|b| *b == b'\n')?;
        registers = std::str::from_utf8(&after[..end]).ok()?.parse().ok();
        rest = &after[end + 1..];
    }
    while let Some(after) = rest.strip_prefix(INPUT.as_bytes()) {
        let end = after.iter().position(|b| *b == b'\n')?;
        let line = std::str::from_utf8(&after[..end]).ok()?;
        let (len, name) = line.split_once(' ')?;
        let body = &after[end + 1..];
        let text = body.get(..len.parse().ok()?)?;
        inputs.push(Input {
            name: name.to_owned(),
            text: text.to_vec(),
        });
        rest = body.get(text.len() + 1..)?;
    }
    Some(Image { inputs, registers })
}

/// Result of a link.
pub struct Linked {
    /// The joined module.
    pub module: Module,
    /// Whether functions of the device runtime library are in the module.
    runtime: bool,
}

type Text = fn() -> &'static str;

/// Our own PTX of functions of the device runtime library, and the names of these functions. The
/// interpreter has most other functions of that library ([`crate::exec::runtime`]).
const RUNTIME: [(Text, &[&str]); 2] = [
    (
        || include_str!("runtime.ptx"),
        &[
            "cudaCGGetIntrinsicHandle",
            "cudaCGSynchronize",
            "cudaGraphSetConditional",
        ],
    ),
    (
        || &runtime_errors::PTX,
        &["__cudaCDP2GetErrorName", "__cudaCDP2GetErrorString"],
    ),
];

/// Whether this text may need functions of the device runtime library.
pub fn needs_runtime(text: &[u8]) -> bool {
    let mut names = RUNTIME.iter().flat_map(|(_, names)| *names);
    std::str::from_utf8(text).is_ok_and(|t| names.any(|n| t.contains(n)))
}

/// Whether this text is NVIDIA's device runtime library, as PTX.
pub fn is_runtime(text: &[u8]) -> bool {
    const ITS_OWN: &[u8] = b"__cuda_syscall_";
    text.windows(ITS_OWN.len()).any(|part| part == ITS_OWN)
}

/// Functions with which kernels of CUDA before 12 waited for the kernels that they had launched.
const WAITS: [&str; 2] = [
    "cudaDeviceSynchronize",
    "__cudaDeviceSynchronizeDeprecationAvoidance",
];

/// Links parsed modules, each with its name for the log.
///
/// # Errors
/// CUDA_ERROR_UNKNOWN, as from the driver's linker, for undefined and for doubly defined symbols.
/// The text names the symbols.
pub fn link(mut modules: Vec<(String, Module)>) -> Result<Linked, Refusal> {
    let mut owners = definitions(&modules)?;
    let mut runtime = false;
    for (text, names) in RUNTIME {
        let wanted = |m: &(String, Module)| {
            let missing = undefined(&m.1, &owners);
            names.iter().any(|n| missing.contains(*n))
        };
        if modules.iter().any(wanted) {
            let input = Input {
                name: "the device runtime".to_owned(),
                text: text().as_bytes().to_vec(),
            };
            let parsed = parse(&input)?;
            modules.push((input.name, parsed));
            owners = definitions(&modules)?;
            runtime = true;
        }
    }
    rename_locals(&mut modules, &owners);
    let mut errors = Vec::new();
    for (name, module) in &modules {
        for missing in undefined(module, &owners) {
            let way_out = match WAITS.contains(&missing.as_str()) {
                true => {
                    " (kernels do not wait for kernels: remove the call, or launch the work behind the wait in \
                     cudaStreamTailLaunch)"
                }
                false => "",
            };
            errors.push(format!(
                "error   : Undefined reference to '{missing}' in '{name}'{way_out}"
            ));
        }
    }
    if !errors.is_empty() {
        return Err((CuResult::UNKNOWN, errors.join("\n")));
    }
    Ok(Linked {
        module: merge(modules, &owners),
        runtime,
    })
}

/// The index of the module that defines each exported symbol.
type Owners = BTreeMap<String, usize>;

struct Definition {
    module: usize,
    weak: bool,
}

fn definitions(modules: &[(String, Module)]) -> Result<Owners, Refusal> {
    let mut found: BTreeMap<&str, Definition> = BTreeMap::new();
    let mut twice = Vec::new();
    for (i, (_, module)) in modules.iter().enumerate() {
        for (name, weak) in exported(module) {
            let new = Definition { module: i, weak };
            match found.get(name) {
                Some(old) if old.module == i => {}
                Some(old) if !old.weak && !weak => {
                    let (first, second) = (&modules[old.module].0, &modules[i].0);
                    twice.push(format!(
                        "error   : Multiple definition of '{name}' in '{second}', first defined in \
                         '{first}'"
                    ));
                }
                Some(old) if old.weak && !weak => {
                    found.insert(name, new);
                }
                Some(_) => {}
                None => {
                    found.insert(name, new);
                }
            }
        }
    }
    if !twice.is_empty() {
        return Err((CuResult::UNKNOWN, twice.join("\n")));
    }
    Ok(found
        .into_iter()
        .map(|(name, d)| (name.to_owned(), d.module))
        .collect())
}

/// Names that other modules can refer to, and whether a definition is weak.
fn exported(module: &Module) -> impl Iterator<Item = (&str, bool)> {
    let functions = module
        .functions
        .iter()
        .filter(|f| !f.declaration && (f.visible || f.kernel))
        .map(|f| (f.name.as_str(), f.weak));
    let variables = module
        .variables
        .iter()
        .filter(|v| !v.external && v.visible)
        .map(|v| (v.name.as_str(), v.weak));
    functions.chain(variables)
}

/// Names that a module defines and does not export.
fn locals(module: &Module) -> BTreeSet<String> {
    let functions = module
        .functions
        .iter()
        .filter(|f| !f.declaration && !f.visible && !f.kernel)
        .map(|f| f.name.clone());
    let variables = module
        .variables
        .iter()
        .filter(|v| !v.external && !v.visible)
        .map(|v| v.name.clone());
    functions.chain(variables).collect()
}

fn rename_locals(modules: &mut [(String, Module)], owners: &Owners) {
    let mut taken: BTreeSet<String> = owners.keys().cloned().collect();
    for (i, (_, module)) in modules.iter_mut().enumerate() {
        let mut renames = HashMap::new();
        for name in locals(module) {
            if taken.contains(&name) {
                // Compilers make no names of this form.
                let new = format!("{name}$input{i}");
                taken.insert(new.clone());
                renames.insert(name, new);
            } else {
                taken.insert(name);
            }
        }
        if !renames.is_empty() {
            rename(module, &renames);
        }
    }
}

fn rename(module: &mut Module, names: &HashMap<String, String>) {
    let change = |name: &mut String| {
        if let Some(new) = names.get(name.as_str()) {
            name.clone_from(new);
        }
    };
    for v in &mut module.variables {
        change(&mut v.name);
        visit_initialiser(v, &mut |name| change(name));
    }
    for f in &mut module.functions {
        change(&mut f.name);
        let own = own_names(f);
        let mut change_free = |name: &mut String| {
            if !own.contains(name.as_str()) {
                change(name);
            }
        };
        visit_names(f, &mut change_free);
    }
}

/// Names that a function declares: registers, variables, parameters, labels and tables.
fn own_names(f: &Function) -> BTreeSet<String> {
    let mut own: BTreeSet<String> = f.registers.iter().map(|r| r.0.clone()).collect();
    own.extend(f.variables.iter().map(|v| v.name.clone()));
    let params = f.params.iter().chain(&f.returns);
    own.extend(params.map(|p| p.var.name.clone()));
    own.extend(f.prototypes.iter().map(|p| p.0.clone()));
    own.extend(f.targets.iter().map(|t| t.0.clone()));
    own.extend(f.body.iter().filter_map(|s| match s {
        Statement::Label(name) => Some(name.clone()),
        Statement::Inst(_) => None,
    }));
    own
}

fn visit_initialiser(v: &mut Variable, visit: &mut dyn FnMut(&mut String)) {
    for init in &mut v.init {
        if let Init::Symbol { name, .. } = init {
            visit(name);
        }
    }
}

/// Visits every name that the body and the tables of a function use.
fn visit_names(f: &mut Function, visit: &mut dyn FnMut(&mut String)) {
    for v in &mut f.variables {
        visit_initialiser(v, visit);
    }
    for (_, targets) in &mut f.targets {
        targets.iter_mut().for_each(&mut *visit);
    }
    for statement in &mut f.body {
        if let Statement::Inst(instruction) = statement {
            let mut open: Vec<&mut Operand> = instruction.operands.iter_mut().collect();
            while let Some(operand) = open.pop() {
                match operand {
                    Operand::Name(name) | Operand::Offset(name, _) => visit(name),
                    Operand::Memory {
                        base: Some(name), ..
                    } => visit(name),
                    Operand::Negated(inner) => open.push(inner),
                    Operand::Vector(all) | Operand::List(all) => open.extend(all),
                    Operand::Pair(a, b) => open.extend([&mut **a, &mut **b]),
                    _ => {}
                }
            }
        }
    }
}

/// Symbols that a module declares and uses, but no module defines.
fn undefined(module: &Module, owners: &Owners) -> BTreeSet<String> {
    let own = locals(module);
    let functions = module.functions.iter().filter(|f| f.declaration);
    let variables = module
        .variables
        .iter()
        .filter(|v| v.external && matches!(v.space, Space::Global | Space::Const));
    let declared: BTreeSet<&str> = functions
        .map(|f| f.name.as_str())
        .chain(variables.map(|v| v.name.as_str()))
        .filter(|n| !own.contains(*n) && !owners.contains_key(*n))
        .filter(|n| !serves(n))
        .collect();
    if declared.is_empty() {
        return BTreeSet::new();
    }
    let mut used = BTreeSet::new();
    // `visit_names` needs mutable access, so the names are read from a copy.
    let mut copy = module.clone();
    let mut note = |name: &mut String| {
        if declared.contains(name.as_str()) {
            used.insert(name.clone());
        }
    };
    for v in &mut copy.variables {
        visit_initialiser(v, &mut note);
    }
    for f in &mut copy.functions {
        let shadowed = own_names(f);
        visit_names(f, &mut |name| {
            if !shadowed.contains(name.as_str()) {
                note(name);
            }
        });
    }
    used
}

fn merge(modules: Vec<(String, Module)>, owners: &Owners) -> Module {
    let mut out = Module {
        address_size: 64,
        ..Module::default()
    };
    let mut dynamic = BTreeSet::new();
    for (i, (_, m)) in modules.into_iter().enumerate() {
        out.version = out.version.max(m.version);
        out.target.extend(m.target);
        out.address_size = out.address_size.min(m.address_size);
        let owned = |name: &str| owners.get(name).is_none_or(|owner| *owner == i);
        for v in m.variables {
            let keep = match (v.external, v.space) {
                // All modules share one dynamic shared memory.
                (true, Space::Shared) => dynamic.insert(v.name.clone()),
                (true, _) => false,
                (false, _) => owned(&v.name),
            };
            if keep {
                out.variables.push(v);
            }
        }
        let functions = m.functions.into_iter();
        out.functions
            .extend(functions.filter(|f| f.declaration || owned(&f.name)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

    fn input(name: &str, text: &str) -> Input {
        Input {
            name: name.to_owned(),
            text: format!("{HEAD}{text}").into_bytes(),
        }
    }

    fn linked(texts: &[&str]) -> Result<Module, Refusal> {
        link_all(texts).map(|l| l.module)
    }

    fn link_all(texts: &[&str]) -> Result<Linked, Refusal> {
        let inputs: Vec<Input> = texts
            .iter()
            .enumerate()
            .map(|(i, t)| input(&format!("in{i}"), t))
            .collect();
        link(
            inputs
                .iter()
                .map(|i| Ok((i.name.clone(), parse(i)?)))
                .collect::<Result<_, Refusal>>()?,
        )
    }

    #[test]
    fn a_linked_image_unpacks_to_its_inputs() {
        let inputs = [input("a b", ".global .u32 x;"), input("c", "")];
        let plain = link_all(&[""]).expect("links");
        let image = pack(&inputs, &plain, Some(38));
        assert_eq!(image.last(), Some(&0));
        let again = unpack(&image[..image.len() - 1]).expect("a linked image");
        assert_eq!(again.registers, Some(38));
        let again = again.inputs;
        assert_eq!(again.len(), 2);
        assert_eq!(
            (&again[0].name, &again[0].text),
            (&inputs[0].name, &inputs[0].text)
        );
        assert_eq!(again[1].text, inputs[1].text);
        assert!(unpack(&pack(&inputs[..1], &plain, None)).is_none());
        for cut in 0..image.len() {
            let _ = unpack(&image[..cut]);
        }
    }

    #[test]
    fn local_names_are_renamed_and_visible_names_resolve() {
        let m = linked(&[
            ".global .u32 n = 1;\n.extern .func (.param .b32 r) f();\n.extern .global .u32 shared_n;\n\
             .visible .entry k() { .reg .b32 %r<2>; ld.global.u32 %r0, [n]; ld.global.u32 %r1, [shared_n]; ret; }",
            ".global .u32 n = 2;\n.visible .global .u32 shared_n = 3;\n\
             .visible .func (.param .b32 r) f() { .reg .b32 %r<2>; ld.global.u32 %r0, [n]; st.param.b32 [r], %r0; ret; }",
        ])
        .expect("links");
        let names: Vec<&str> = m.variables.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["n", "n$input1", "shared_n"]);
        let text = format!("{:?}", m.functions);
        assert!(text.contains("n$input1"));
    }

    #[test]
    fn missing_and_duplicate_symbols_are_named() {
        let user = ".extern .func g();\n.visible .entry k() { call g, (); ret; }";
        let (code, why) = linked(&[user]).expect_err("g is missing");
        assert_eq!(code, CuResult::UNKNOWN);
        assert!(why.contains("Undefined reference to 'g' in 'in0'"), "{why}");
        let waits = user.replace(" g", " cudaDeviceSynchronize");
        let (_, why) = linked(&[&waits]).expect_err("kernels do not wait");
        assert!(why.contains("cudaStreamTailLaunch"), "{why}");
        let other = user.replace(" g", " __cudaCDP2Other");
        assert!(linked(&[&other]).is_err());
        let unused = ".extern .func g();\n.visible .entry k() { ret; }";
        assert!(linked(&[unused]).is_ok());
        let body = ".visible .func g() { ret; }";
        let (_, why) = linked(&[body, body]).expect_err("g is defined twice");
        assert!(why.contains("Multiple definition of 'g'"), "{why}");
        let weak = ".weak .func g() { ret; }";
        for pair in [[body, weak], [weak, body], [weak, weak]] {
            let m = linked(&pair).expect("a weak definition is replaced");
            assert_eq!(m.functions.len(), 1);
        }
    }

    #[test]
    fn the_devices_own_functions_need_no_definition() {
        let user = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n\
             .visible .entry k() { .reg .b32 %r<2>; .param .b64 a; .param .b64 b; .param .b32 c;\n\
             call.uni (c), vprintf, (a, b); ret; }";
        assert!(linked(&[user]).is_ok());
    }

    #[test]
    fn the_grids_barrier_is_linked_in_where_it_is_used() {
        let user = ".extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 s);\n\
             .visible .entry k() { .param .b32 s; .param .b64 r; call (r), cudaCGGetIntrinsicHandle, (s); ret; }";
        let l = link_all(&[user]).expect("links");
        assert!(l.runtime);
        assert!(unpack(&pack(&[input("in0", user)], &l, None)).is_some());
    }
}
