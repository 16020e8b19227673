//! Symbols of NVIDIA's library that are exported but not served. A call returns
//! CUDA_ERROR_NOT_SUPPORTED, is counted, and is logged once with an alternative. Because of these
//! exports, programs load that link against the functions for GL, EGL and VDPAU. Unserved forms of
//! served functions are refused in the same way ([`refuse`]).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::names::{Form, LADDER};
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
    let refused = std::panic::catch_unwind(|| refuse(symbol, &way_out(symbol).unwrap_or_default()));
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
        let text = format!("{form} is not served: {way_out} [{name:#}]");
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
        let way_out = way_out(symbol).unwrap_or_default();
        let text =
            format!("cuGetProcAddress: {symbol} is not found, since it is not served: {way_out}");
        log::line(log::Level::Info, &text);
    }
}

pub(crate) const APART: &str = "processes share no GPU memory and events; use one process, or copy through the program's memory";
pub(crate) const GREEN: &str =
    "the scheduler shares out the multiprocessors; use the whole device (an ordinary context)";
pub(crate) const CLUSTERS: &str = "choose kernels that need no clusters";
pub(crate) const TENSOR_MAPS: &str = "choose kernels that copy without tensor maps";
pub(crate) const CHECKPOINTS: &str =
    "processes with GPU work are not checkpointed; have the program save what it needs itself";
const OTHER_APIS: &str = "this GPU shares no memory and no semaphores with other APIs (Vulkan, OpenGL, NvSci) and other \
    processes; copy through the program's memory";
const DISPLAY: &str = "this GPU has no display and no graphics; copy through the program's memory";
const OLD: &str =
    "cuLaunchKernel replaced this function in CUDA 4; build the program with a newer toolkit";
const LINKS: &str = "GPUs of a VM have no links; send through the program's memory";

/// Alternatives for programs, by parts of a symbol. The first row with a part that the symbol
/// contains applies. Older forms of served functions have no row ([`way_out`]).
const WAYS_OUT: &[(&[&str], &str)] = &[
    (
        &["cuTensorMap"],
        "make the map with cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col",
    ),
    (
        &["cuTex", "cuSurf", "GetTexRef", "GetSurfRef", "SetTexRef"],
        TEXTURES,
    ),
    (&["External", "NvSci"], OTHER_APIS),
    (&["Multicast", "Fabric", "Clique", "LogicalEndpoint"], LINKS),
    (&["cuIpc", "cuMemExport", "cuMemImport"], APART),
    (
        &[
            "cuMemPoolExport",
            "cuMemPoolImport",
            "HandleForAddressRange",
        ],
        APART,
    ),
    (&["cuGL", "EGL", "VDPAU", "cuGraphics"], DISPLAY),
    (&["GreenCtx", "cuCtxGetExecAffinity"], GREEN),
    (
        &["cuDevSmResourceSplit"],
        "cuDevSmResourceSplitByCount returns the possible splits",
    ),
    (
        &["ToCig"],
        "no graphics API uses this GPU; capture a graph for CUDA alone (cuStreamBeginCapture)",
    ),
    (
        &["cuStreamBeginRecapture"],
        "capture a new graph (cuStreamBeginCapture) and update the instance with it (cuGraphExecUpdate)",
    ),
    (&["cuCheckpoint"], CHECKPOINTS),
    (
        &["cuCtxAttach", "cuCtxDetach"],
        "only primary contexts count their users (cuDevicePrimaryCtxRetain); end other contexts with cuCtxDestroy",
    ),
    (
        &["cuCtxRecordEvent"],
        "record an event in each stream of the context (cuEventRecord)",
    ),
    (
        &["cuCtxWaitEvent"],
        "let each stream of the context wait for the event (cuStreamWaitEvent)",
    ),
    (
        &["cuDeviceGetLuid"],
        "only devices on Windows have LUIDs; use cuDeviceGetUuid",
    ),
    (
        &["cuFlushGPUDirectRDMAWrites"],
        "no other device writes to the memory of this GPU; leave the call out",
    ),
    (
        &["cuMemBatchDecompress"],
        "programs of VMs cannot use the decompression engine; decompress with a kernel",
    ),
    (
        &["cuMemGetAttribute"],
        "NVIDIA does not document this function; use cuPointerGetAttribute",
    ),
    (
        &["cuMemGetLocationInfo"],
        "cuMemRangeGetAttribute returns where a range was last prefetched to",
    ),
    (
        &["cuMemMapArray"],
        "there are no sparse arrays; create an array with all its memory (cuArray3DCreate)",
    ),
    (
        &["cuLaunchCooperative"],
        "launch on one device at a time (cuLaunchCooperativeKernel)",
    ),
    (&["cuFunc", "cuLaunch", "cuParam"], OLD),
];

/// The alternative to an unserved function. The alternative to an older form of a served function
/// is the next form that is served. A test ensures that every unserved function has an alternative.
fn way_out(symbol: &str) -> Option<Cow<'static, str>> {
    if let Some(newer) = newer_form(symbol) {
        let newer = format!("{newer} replaced this form; build the program with a newer toolkit");
        return Some(newer.into());
    }
    let has = |part: &&str| symbol.contains(*part);
    let row = WAYS_OUT.iter().find(|(parts, _)| parts.iter().any(has));
    row.map(|(_, way)| Cow::Borrowed(*way))
}

/// The next newer form of the same function that is served.
fn newer_form(symbol: &str) -> Option<&'static str> {
    let form = LADDER.iter().find(|form| form.symbol == symbol)?;
    let newer =
        |other: &&Form| other.name == form.name && other.since > form.since && !other.per_thread;
    let mut newer = LADDER.iter().filter(newer);
    newer
        .find(|other| !refuses(other.symbol))
        .map(|other| other.symbol)
}

/// Whether the symbol is exported without being served.
fn refuses(symbol: &str) -> bool {
    let found = REFUSING.binary_search_by(|export| export.symbol.cmp(symbol));
    found.is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use vgpu_cuda_abi::names::LADDER;

    use super::{REFUSING, WAYS_OUT, refuses, way_out};

    #[test]
    fn every_function_that_is_not_served_has_a_way_out() {
        let symbols = REFUSING.iter().map(|export| export.symbol);
        let without: Vec<_> = symbols.filter(|symbol| way_out(symbol).is_none()).collect();
        assert_eq!(without, Vec::<&str>::new());
    }

    #[test]
    fn every_way_out_is_that_of_a_function_that_is_not_served() {
        let mut unused: BTreeMap<&str, _> = WAYS_OUT
            .iter()
            .flat_map(|(parts, way)| parts.iter().map(move |part| (*part, way)))
            .collect();
        for export in REFUSING {
            unused.retain(|part, _| !export.symbol.contains(*part));
        }
        assert_eq!(unused, BTreeMap::new());
    }

    #[test]
    fn a_way_out_names_functions_that_are_served() {
        let served = |word: &str| {
            let mut forms = LADDER
                .iter()
                .filter(|form| form.name == word || form.symbol == word);
            forms.any(|form| !refuses(form.symbol))
        };
        for export in REFUSING {
            let way = way_out(export.symbol).unwrap_or_default();
            let words = way.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words.filter(|word| word.starts_with("cu")) {
                assert!(served(word), "{}: {way}", export.symbol);
            }
        }
    }

    #[test]
    fn alternatives_fit_the_function() {
        for (symbol, part) in [
            ("cuMemAlloc", "cuMemAlloc_v2 replaced this form"),
            ("cuCtxCreate", "cuCtxCreate_v2 replaced this form"),
            ("cuGLCtxCreate", "no display"),
            ("cuCtxWaitEvent", "cuStreamWaitEvent"),
            ("cuGreenCtxWaitEvent", "whole device"),
            ("cuWaitExternalSemaphoresAsync_ptsz", "Vulkan"),
            ("cuGraphAddExternalSemaphoresWaitNode", "Vulkan"),
            ("cuStreamEndCaptureToCig", "cuStreamBeginCapture"),
            ("cuMemMapArrayAsync", "sparse arrays"),
            ("cuFabricCpyBatchAsync", "no links"),
            ("cuParamSetTexRef", "textures"),
            ("cuParamSetf", "cuLaunchKernel"),
        ] {
            let way = way_out(symbol).unwrap_or_default();
            assert!(way.contains(part), "{symbol}: {way}");
        }
    }
}
