//! Symbols of NVIDIA's library that are exported but not served. A call returns
//! CUDA_ERROR_NOT_SUPPORTED, is counted, and is logged once with an alternative. Because of these
//! exports, programs load that link against the functions for GL, EGL and VDPAU. Unserved forms of
//! served functions are refused in the same way ([`refuse`]).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::unserved::{Arguments, TEXTURES, wrong};

use crate::state::current;
use crate::{lock, log};

include!(concat!(env!("OUT_DIR"), "/refusing.rs"));

fn called(symbol: &'static str, arguments: &Arguments) -> u32 {
    // As in NVIDIA's library, calls before cuInit return CUDA_ERROR_NOT_INITIALIZED.
    let shim = match current::shim() {
        Ok(shim) => shim,
        Err(code) => return code.0,
    };
    if let Some(code) = wrong(symbol, arguments, shim.devices.count() as u32) {
        return code.0;
    }
    // A panic while formatting the message must not unwind into C, and must not end the program.
    let refused = std::panic::catch_unwind(|| refuse(symbol, way_out(symbol)));
    refused.unwrap_or(CuResult::NOT_SUPPORTED).0
}

/// Refuses a function or an unserved form of a served function: counts the call and logs it once.
/// `form` begins with the name of the function.
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

/// Handles a lookup of an unserved function: counts the lookup, and logs it once if `VGPU_LOG` is
/// `info`. The message is not an error, because most programs look up many functions that they do
/// not need.
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
    "cuLaunchKernel replaced this function in CUDA 4; build the program with a newer toolkit";

/// Alternatives for programs, by the first letters of a symbol. The first entry that matches
/// applies.
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
    way.map_or("docs/coverage.md lists the served functions", |(_, way)| {
        way
    })
}

#[cfg(test)]
mod tests {
    use super::{REFUSING, WAYS_OUT};

    #[test]
    fn every_way_out_is_that_of_a_function_that_is_not_served() {
        for (begin, _) in WAYS_OUT {
            let mut symbols = REFUSING.iter().map(|export| export.symbol);
            assert!(symbols.any(|symbol| symbol.starts_with(begin)), "{begin}");
        }
    }
}
