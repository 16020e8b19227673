//! Tests of the library from outside: symbols, `cuGetProcAddress`, calls before cuInit.

mod common;

use std::ffi::{CString, c_char, c_void};

use common::guest;
use common::host::Host;
use vgpu_cuda_abi::{CuResult, names, results::RESULTS};
use vgpu_proto::call::{FUNCTIONS, Served};

/// Calls any function with zeros for all arguments.
fn call_with_zeros(cuda: &guest::Cuda, symbol: &str) -> u32 {
    type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;
    let function: Any = cuda.symbol(symbol);
    // SAFETY: integers and pointers are passed alike, excess arguments are ignored, and every
    // pointer is null, which each function must accept.
    unsafe { function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) }
}

/// Served functions that work without a session.
const ALWAYS: [&str; 13] = [
    "cuInit",
    "cuProfilerInitialize",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetExportTable",
    "cuLogsRegisterCallback",
    "cuLogsUnregisterCallback",
    "cuLogsCurrent",
    "cuLogsDumpToFile",
    "cuLogsDumpToMemory",
];

#[test]
fn before_cuinit_nothing_works_and_nothing_crashes() {
    let name = "before_cuinit_nothing_works_and_nothing_crashes";
    if let Some(cuda) = guest::enter(name) {
        for symbol in names::symbols() {
            let checkpoint =
                FUNCTIONS.iter().any(|f| f.symbol == symbol) && symbol.starts_with("cuCheckpoint");
            if !ALWAYS.contains(&symbol) && !checkpoint {
                let code = CuResult(call_with_zeros(&cuda, symbol));
                assert_eq!(code, CuResult::NOT_INITIALIZED, "{symbol}");
            }
        }
        return;
    }
    let host = Host::usual();
    let outcome = guest::start(name, &host).success();
    assert!(
        !outcome.stderr.contains("vgpu:"),
        "quiet by default: {}",
        outcome.stderr
    );
}

#[test]
fn after_cuinit_null_arguments_crash_nothing() {
    let name = "after_cuinit_null_arguments_crash_nothing";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        for symbol in names::symbols() {
            let code = call_with_zeros(&cuda, symbol);
            assert_ne!(code, CuResult::UNKNOWN.0, "{symbol}");
            // Some of the calls end the context, so the test begins again with a new context.
            cuda.begin();
        }
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
}

#[test]
fn an_unserved_function_says_once_what_to_do_instead() {
    let name = "an_unserved_function_says_once_what_to_do_instead";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        for _ in 0..3 {
            assert_eq!(
                call_with_zeros(&cuda, "cuMulticastUnbind"),
                CuResult::NOT_SUPPORTED.0
            );
        }
        return;
    }
    let host = Host::usual();
    let said = guest::start(name, &host).success().stderr;
    let lines: Vec<&str> = said.lines().filter(|l| l.starts_with("vgpu:")).collect();
    let expected = "vgpu: cuMulticastUnbind is not served: GPUs of a VM have no links; send through the program's memory \
                    [CUDA_ERROR_NOT_SUPPORTED]";
    assert_eq!(lines, [expected], "{said}");
    let environment = [("VGPU_ADDRESS", &*host.address()), ("VGPU_LOG", "off")];
    let said = guest::start_with(name, &environment).success().stderr;
    assert!(!said.contains("vgpu:"), "{said}");
}

#[test]
fn what_is_refused_is_refused_always_and_said_once() {
    let name = "what_is_refused_is_refused_always_and_said_once";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let refused = FUNCTIONS.iter().filter(|f| f.served == Served::Refused);
        for symbol in refused.map(|f| f.symbol) {
            for _ in 0..2 {
                let code = call_with_zeros(&cuda, symbol);
                // The other functions check their arguments first.
                let expected = match symbol {
                    "cuCheckpointProcessLock" => CuResult::NOT_SUPPORTED,
                    _ => CuResult::INVALID_VALUE,
                };
                assert_eq!(code, expected.0, "{symbol}");
            }
        }
        return;
    }
    let host = Host::usual();
    let outcome = guest::start(name, &host).success();
    let line = "vgpu: cuCheckpointProcessLock is not served: ";
    assert_eq!(
        outcome.stderr.matches(line).count(),
        1,
        "{}",
        outcome.stderr
    );
}

#[test]
fn get_proc_address_answers_as_a_driver() {
    let name = "get_proc_address_answers_as_a_driver";
    let Some(cuda) = guest::enter(name) else {
        guest::start(name, &Host::usual()).success();
        return;
    };
    let junk = 0xdead as *const c_void;
    let v2 = |symbol: &str, version: i32, flags: u64| {
        let symbol = CString::new(symbol).expect("no NUL");
        let (mut pfn, mut status) = (junk, 77);
        let code = cu!(cuda, cuGetProcAddress_v2(
            symbol.as_ptr() => *const c_char,
            &mut pfn => *mut *const c_void,
            version => i32,
            flags => u64,
            &mut status => *mut u32,
        ));
        (code, pfn, status)
    };
    let address = |symbol: &str| cuda.symbol::<*const c_void>(symbol);
    let none = std::ptr::null();
    assert_eq!(
        v2("", 0, 0),
        (0, none, 1),
        "the first thing that cudart asks"
    );
    assert_eq!(v2("cuMemAlloc", 3020, 0), (0, address("cuMemAlloc_v2"), 0));
    assert_eq!(
        v2("cuMemAlloc_v2", 12_000, 0),
        (0, none, 1),
        "suffixed names are not found"
    );
    assert_eq!(
        v2("cuLaunchKernel", 12_000, 2),
        (0, address("cuLaunchKernel_ptsz"), 0)
    );
    assert_eq!(
        v2("cuLaunchKernel", 6050, 2),
        (0, none, 2),
        "no per-thread form is that old"
    );
    assert_eq!(
        v2("cuMemcpyHtoD", 12_000, 1),
        (0, address("cuMemcpyHtoD_v2"), 0)
    );
    assert_eq!(v2("cuStreamQuery", 1000, 0), (0, none, 2));
    assert_eq!(
        v2("cuIpcCloseMemHandle", 12_000, 0),
        (0, address("cuIpcCloseMemHandle"), 0),
        "older than lookups, and not served: it says so itself"
    );
    assert_eq!(
        v2("cuGreenCtxDestroy", 12_040, 0),
        (0, none, 1),
        "not served: not found"
    );
    for flags in [4, u64::MAX] {
        let unknown = v2("cuInit", 12_000, flags);
        assert_eq!(unknown, (1, junk, 77), "an unknown flag");
    }
    assert_eq!(
        v2("cuMemAlloc", -1, 0),
        (0, address("cuMemAlloc_v2"), 0),
        "-1 is newer than every version"
    );
    assert_eq!(
        v2("cuDevicePrimaryCtxRelease", 7000, 0),
        (0, address("cuDevicePrimaryCtxRelease"), 0),
        "cudart asks for old forms by version"
    );

    let v1 = |symbol: &str, version: i32, flags: u64| {
        let symbol = CString::new(symbol).expect("no NUL");
        let mut pfn = junk;
        let code = cu!(cuda, cuGetProcAddress(
            symbol.as_ptr() => *const c_char,
            &mut pfn => *mut *const c_void,
            version => i32,
            flags => u64,
        ));
        (code, pfn)
    };
    assert_eq!(v1("cuInit", 2000, 0), (0, address("cuInit")));
    assert_eq!(
        v1("cuMulticastUnbind", 12_040, 0),
        (CuResult::NOT_FOUND.0, junk),
        "untouched"
    );
    let (mut pfn, missing) = (junk, c"cuNoSuch");
    let code = cu!(cuda, cuGetProcAddress_v2(
        missing.as_ptr() => *const c_char,
        &mut pfn => *mut *const c_void,
        12_000 => i32,
        0 => u64,
        std::ptr::null_mut() => *mut u32,
    ));
    assert_eq!(
        (code, pfn),
        (0, none),
        "also without a place for the status"
    );
}

#[test]
fn error_names_and_texts() {
    let name = "error_names_and_texts";
    let Some(cuda) = guest::enter(name) else {
        guest::start(name, &Host::usual()).success();
        return;
    };
    for entry in RESULTS {
        let mut text = std::ptr::null();
        assert_eq!(
            cu!(cuda, cuGetErrorName(entry.code => u32, &mut text => *mut *const c_char)),
            0
        );
        // SAFETY: a static string of the library.
        let text = unsafe { std::ffi::CStr::from_ptr(text) };
        assert_eq!(text, entry.name);
    }
    let mut text = c"".as_ptr();
    assert_eq!(
        cu!(cuda, cuGetErrorString(12_345 => u32, &mut text => *mut *const c_char)),
        1
    );
    assert!(text.is_null());
}
