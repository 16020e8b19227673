//! Symbols of NVIDIA's library that are exported but not served: CUDA_ERROR_NOT_SUPPORTED, counted, and
//! named once on standard error with what to do instead. Programs that link against the entry points of GL, EGL and
//! VDPAU load so. Forms of served functions that are not served are refused the same way ([`refuse`]).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::names::{Address, Export};
use vgpu_cudart::unserved::{Arguments, TEXTURES, wrong};

use crate::{lock, log, process};

macro_rules! refusing {
    ($($symbol:ident;)*) => {
        /// Every symbol that only refuses, sorted.
        pub(crate) static REFUSING: &[Export] = &[$(Export {
            symbol: stringify!($symbol),
            address: Address(refusing::$symbol as *const ()),
        },)*];

        /// The exported functions, with what the first registers hold: a call with fewer arguments leaves
        /// anything in the others, which the table does not look at.
        #[allow(non_snake_case)]
        mod refusing {
            $(
                #[unsafe(no_mangle)]
                pub(crate) extern "C" fn $symbol(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u32 {
                    super::called(stringify!($symbol), &[a, b, c, d, e, f])
                }
            )*
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/refusing.rs"));

/// The first eight bytes of a structure of the program.
fn peek(at: u64) -> u64 {
    // SAFETY: by the contract of the function, an argument that is not null points to such a structure; the
    // table asks for those only.
    unsafe { std::ptr::with_exposed_provenance::<u64>(at as usize).read_unaligned() }
}

fn called(symbol: &'static str, arguments: &Arguments) -> u32 {
    // As NVIDIA's: nothing is known about what is supported before cuInit.
    let shim = match process::shim() {
        Ok(shim) => shim,
        Err(code) => return code.0,
    };
    if let Some(code) = wrong(symbol, arguments, shim.devices.count() as u32, peek) {
        return code.0;
    }
    // Formatting must not unwind into C; a failing log is not worth a crash.
    let refused = std::panic::catch_unwind(|| refuse(symbol, way_out(symbol)));
    refused.unwrap_or(CuResult::NOT_SUPPORTED).0
}

/// Refuses a function, or a form of one that is served in others: counted, and told once. `form` begins with the function.
#[cold]
pub(crate) fn refuse(form: impl Into<Cow<'static, str>>, way_out: &str) -> CuResult {
    static TOLD: Mutex<BTreeSet<Cow<'static, str>>> = Mutex::new(BTreeSet::new());
    let form = form.into();
    crate::observe::not_served(form.clone());
    if lock(&TOLD).insert(form.clone()) {
        let name = CuResult::NOT_SUPPORTED;
        let text = format!("{form} is not served: {way_out} [{name}]");
        log::line(log::Level::Error, &text);
    }
    CuResult::NOT_SUPPORTED
}

/// A lookup does not find a function because the function is not served: counted, and told once with `VGPU_LOG=info`.
/// Programs look up many functions that they can do without, so that less than that would be noise.
#[cold]
pub(crate) fn not_found(symbol: &'static str) {
    static TOLD: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    crate::observe::not_found(symbol);
    if log::says(log::Level::Info) && lock(&TOLD).insert(symbol) {
        let way_out = way_out(symbol);
        let text =
            format!("cuGetProcAddress: {symbol} is not found, since it is not served: {way_out}");
        log::line(log::Level::Info, &text);
    }
}

pub(crate) const APART: &str = "processes share no GPU memory and events; use one process, or copy through the program's memory";
pub(crate) const GREEN: &str =
    "the scheduler shares out the multiprocessors; use the whole device (an ordinary context)";
pub(crate) const CLUSTERS: &str = "choose kernels that need no clusters";
const OTHER_APIS: &str = "this GPU shares no memory and no semaphores with graphics APIs (Vulkan, OpenGL) and other processes; copy \
    through the program's memory";
const DISPLAY: &str = "this GPU has no display and no graphics; copy through the program's memory";
const OLD: &str =
    "launches are cuLaunchKernel's since CUDA 4; build the program with a newer toolkit";

/// What a program can do instead, by the beginning of a symbol: the first that fits.
const WAYS_OUT: &[(&str, &str)] = &[
    (
        "cuTensorMap",
        "there are no tensor maps; choose kernels that copy without them",
    ),
    ("cuTex", TEXTURES),
    ("cuSurf", TEXTURES),
    ("cuModuleGetTexRef", TEXTURES),
    ("cuModuleGetSurfRef", TEXTURES),
    ("cuParamSetTexRef", TEXTURES),
    ("cuIpc", APART),
    ("cuMemExport", APART),
    ("cuMemImport", APART),
    ("cuMemGetHandleForAddressRange", APART),
    ("cuMemPoolExport", APART),
    ("cuMemPoolImport", APART),
    ("cuGL", DISPLAY),
    ("cuEGL", DISPLAY),
    ("cuVDPAU", DISPLAY),
    ("cuGraphics", DISPLAY),
    ("cuImportExternal", OTHER_APIS),
    ("cuExternalMemory", OTHER_APIS),
    (
        "cuMulticast",
        "GPUs of a VM have no links; send through the program's memory",
    ),
    ("cuGreenCtx", GREEN),
    ("cuCtxFromGreenCtx", GREEN),
    ("cuFunc", OLD),
    (
        "cuLaunchCooperative",
        "launch on one device at a time (cuLaunchCooperativeKernel)",
    ),
    ("cuLaunch", OLD),
    ("cuParam", OLD),
];

fn way_out(symbol: &str) -> &'static str {
    let way = WAYS_OUT.iter().find(|(begin, _)| symbol.starts_with(begin));
    way.map_or("docs/coverage.md lists what is", |(_, way)| way)
}

#[cfg(test)]
mod tests {
    use super::{REFUSING, WAYS_OUT};
    use crate::proc_address::EXPORTS;

    #[test]
    fn every_way_out_is_that_of_a_function_that_is_not_served() {
        for (begin, _) in WAYS_OUT {
            let mut symbols = REFUSING.iter().map(|export| export.symbol);
            assert!(symbols.any(|symbol| symbol.starts_with(begin)), "{begin}");
        }
    }

    #[test]
    fn every_symbol_of_nvidia_s_library_is_exported_once() {
        let exports = EXPORTS.served.iter().chain(REFUSING);
        let mut exported: Vec<&str> = exports.map(|export| export.symbol).collect();
        exported.sort_unstable();
        assert_eq!(exported, vgpu_cuda_abi::names::symbols());
    }
}
