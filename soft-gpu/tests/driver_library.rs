//! The built library as clients load it: its exported names, its SONAME, and its use by cudarc.

use std::ffi::{CString, c_void};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DevicePtr, result};
use libloading::os::unix::{Library, RTLD_NOW};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};
use vgpu_cuda_abi::names::symbols;

/// Environment variable that is set in processes started by [`alone`].
const ALONE: &str = "SOFT_GPU_TEST_ALONE";

/// The type of any function with integer and pointer arguments. A function ignores surplus
/// arguments.
type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;

/// Path of the cdylib, which lies next to this test binary.
fn library_path() -> PathBuf {
    let exe = std::env::current_exe().expect("the test binary has a path");
    exe.with_file_name("libsoft_gpu.so")
}

/// Loads the library by its path and never unloads it, as the worker does.
fn load() -> &'static Library {
    // SAFETY: the library's initialisers change only the library's own state.
    let library = unsafe { Library::open(Some(library_path()), RTLD_NOW) };
    Box::leak(Box::new(library.expect("the library loads")))
}

/// Returns true in a separate process for this test, whose library path has the library as
/// `libcuda.so` and `libcuda.so.1`. In any other process, runs the test in such a process and
/// returns false.
fn alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let names = tempfile::tempdir().expect("a directory");
    for name in ["libcuda.so", "libcuda.so.1"] {
        symlink(library_path(), names.path().join(name)).expect("linked");
    }
    let mut child = Command::new(std::env::current_exe().expect("the test binary has a path"));
    child.args(["--exact", test, "--nocapture"]);
    child.env(ALONE, "1").env("LD_LIBRARY_PATH", names.path());
    assert!(child.status().expect("started").success(), "{test}");
    false
}

#[test]
fn exactly_the_symbols_of_nvidia_s_library_are_exported() {
    let file = std::fs::read(library_path()).expect("the library was built");
    let file = ElfFile64::<Endianness>::parse(&*file).expect("an ELF file");
    let defined = file.dynamic_symbols().filter(ObjectSymbol::is_definition);
    let mut exported: Vec<&str> = defined.map(|s| s.name().expect("a name")).collect();
    exported.sort_unstable();
    assert_eq!(exported, symbols());
}

#[test]
fn programs_find_it_by_the_driver_s_name() {
    load();
    // SAFETY: the call only checks whether a library with this SONAME is loaded.
    let by_name = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(by_name.is_ok(), "{:?}", by_name.err());
}

/// Before cuInit, calls must fail, change nothing and not dereference their handles.
#[test]
fn nothing_works_before_cuinit() {
    const ALWAYS: [&str; 8] = [
        "cuInit",
        "cuDriverGetVersion",
        "cuGetErrorName",
        "cuGetErrorString",
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
        "cuGetExportTable",
        "cuProfilerInitialize",
    ];
    if !alone("nothing_works_before_cuinit") {
        return;
    }
    let library = load();
    let zeroes = vec![0_u64; 1 << 16];
    for name in symbols().into_iter().filter(|name| !ALWAYS.contains(name)) {
        // SAFETY: the arguments of all functions fit the declared type.
        let function = unsafe { library.get::<Any>(name.as_bytes()) }.expect("exported");
        for a in [0, zeroes.as_ptr() as u64] {
            // SAFETY: the arguments are null, or point to more zeros than any structure has.
            let code = unsafe { function(a, a, a, a, a, a, a, a, a, a, a, a) };
            assert_eq!(code, 3, "{name}({a:#x}, …)");
        }
    }
}

#[test]
fn unserved_functions_check_their_arguments_and_say_so() {
    if !alone("unserved_functions_check_their_arguments_and_say_so") {
        return;
    }
    let library = load();
    context();
    let call = |argument: u64| {
        // SAFETY: the function is not served and only compares its arguments with null.
        unsafe {
            library
                .get::<unsafe extern "C" fn(u64, u64, u64, u64) -> u32>(b"cuTexObjectCreate")
                .expect("exported")(argument, argument, argument, 0)
        }
    };
    assert_eq!(call(8), 801);
    assert_eq!(call(0), 1);
}

/// Calls every entry point with zero arguments: null pointers, null handles, device 0.
#[test]
fn no_entry_point_crashes_on_zeroes() {
    if !alone("no_entry_point_crashes_on_zeroes") {
        return;
    }
    let library = load();
    for _ in 0..2 {
        for name in symbols().into_iter() {
            // SAFETY: all arguments are integers, and a function ignores surplus arguments.
            let code = unsafe {
                let f = library.get::<Any>(name.as_bytes()).expect("exported");
                f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            };
            assert_ne!(code, 999, "{name} panicked");
        }
        // The second round runs after cuInit and with a current context.
        let context = CudaContext::new(0).expect("a device");
        std::mem::forget(context);
    }
}

const VECTOR_ADD: &str = include_str!("../fixtures/demo/vecadd.ptx");

fn context() -> Arc<CudaContext> {
    CudaContext::new(0).expect("a device")
}

#[test]
fn cudarc_copies_and_queries() {
    if !alone("cudarc_copies_and_queries") {
        return;
    }
    let context = context();
    assert!(context.name().expect("a name").contains("soft"));
    assert_eq!(context.compute_capability().expect("known"), (8, 0));
    let stream = context.new_stream().expect("a stream");
    let host: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let device = stream.clone_htod(&host).expect("copied");
    let back = stream.clone_dtoh(&device).expect("copied back");
    assert_eq!(back, host);
}

#[test]
fn cudarc_adds_vectors() {
    if !alone("cudarc_adds_vectors") {
        return;
    }
    let context = context();
    context.bind_to_thread().expect("current");
    let stream = context.default_stream();
    let text = CString::new(VECTOR_ADD).expect("no NUL inside");
    // SAFETY: the text is NUL-terminated PTX.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }.expect("loads");
    let name = CString::new("vecadd").expect("no NUL inside");
    // SAFETY: the module was just loaded.
    let f = unsafe { result::module::get_function(module, name) }.expect("found");
    let n = 10_000usize;
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let b: Vec<f32> = (0..n).map(|i| (i * 3) as f32).collect();
    let (da, db) = (
        stream.clone_htod(&a).expect("copied"),
        stream.clone_htod(&b).expect("copied"),
    );
    let dc = stream.alloc_zeros::<f32>(n).expect("allocated");
    {
        let (mut pa, _a) = da.device_ptr(&stream);
        let (mut pb, _b) = db.device_ptr(&stream);
        let (mut pc, _c) = dc.device_ptr(&stream);
        let mut count = n as u32;
        let mut params: [*mut c_void; 4] = [
            (&raw mut pa).cast(),
            (&raw mut pb).cast(),
            (&raw mut pc).cast(),
            (&raw mut count).cast(),
        ];
        let grid = ((n as u32).div_ceil(256), 1, 1);
        // SAFETY: the arguments match the parameters of the kernel, and exist until the launch
        // returns.
        unsafe { result::launch_kernel(f, grid, (256, 1, 1), 0, stream.cu_stream(), &mut params) }
            .expect("launched");
    }
    let c = stream.clone_dtoh(&dc).expect("copied back");
    assert!(c.iter().enumerate().all(|(i, v)| *v == (i * 4) as f32));
}
