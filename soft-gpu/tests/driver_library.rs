//! The built library as clients load it: names, SONAME, and cudarc on top of it.

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DevicePtr, result};
use libloading::os::unix::{Library, RTLD_NOW};

/// The cdylib beside this test binary.
fn library_path() -> PathBuf {
    let exe = std::env::current_exe().expect("the test binary has a path");
    exe.with_file_name("libsoft_gpu.so")
}

/// Loads it by path, for good, as the worker does before its first cudarc call.
fn load() -> &'static Library {
    // SAFETY: the library's initialisers only touch its own state.
    let library = unsafe { Library::open(Some(library_path()), RTLD_NOW) };
    Box::leak(Box::new(library.expect("the library loads")))
}

#[test]
fn every_symbol_of_the_header_and_of_cudarc_resolves() {
    let library = load();
    let names = include_str!("../src/capi/symbols.txt");
    let missing: Vec<&str> = names
        .lines()
        // SAFETY: only looked up, never called.
        .filter(|n| unsafe { library.get::<unsafe extern "C" fn()>(n.as_bytes()) }.is_err())
        .collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
    assert!(names.lines().count() > 650);
}

#[test]
fn the_soname_satisfies_a_client_that_asks_for_libcuda() {
    load();
    // SAFETY: finds the library already loaded, by its SONAME.
    let by_name = unsafe { Library::open(Some("libcuda.so"), RTLD_NOW) };
    assert!(by_name.is_ok(), "{:?}", by_name.err());
    // SAFETY: cudarc's probe only looks for a library.
    assert!(unsafe { cudarc::driver::sys::is_culib_present() });
}

#[test]
fn unserved_functions_say_so() {
    let library = load();
    // SAFETY: a stub that ignores its arguments.
    let code = unsafe {
        library
            .get::<unsafe extern "C" fn() -> u32>(b"cuTexObjectCreate")
            .expect("exported")()
    };
    assert_eq!(code, 801);
}

/// Every entry point with every argument zero: null pointers, null handles, device 0.
#[test]
fn no_entry_point_crashes_on_zeroes() {
    type Any =
        unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u32;
    let library = load();
    for _ in 0..2 {
        for name in include_str!("../src/capi/symbols.txt").lines() {
            // SAFETY: integer arguments only; more than a function takes are ignored.
            let code = unsafe {
                let f = library.get::<Any>(name.as_bytes()).expect("exported");
                f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            };
            assert_ne!(code, 999, "{name} panicked");
        }
        // The second round is after cuInit and with a current context.
        let context = CudaContext::new(0).expect("a device");
        std::mem::forget(context);
    }
}

const VECTOR_ADD: &str = include_str!("../fixtures/demo/vecadd.ptx");

fn context() -> Arc<CudaContext> {
    load();
    CudaContext::new(0).expect("a device")
}

#[test]
fn cudarc_copies_and_queries() {
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
    let context = context();
    context.bind_to_thread().expect("current");
    let stream = context.default_stream();
    let text = CString::new(VECTOR_ADD).expect("no NUL inside");
    // SAFETY: NUL-terminated PTX.
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
        // SAFETY: the arguments are those of the kernel, and outlive the launch.
        unsafe { result::launch_kernel(f, grid, (256, 1, 1), 0, stream.cu_stream(), &mut params) }
            .expect("launched");
    }
    let c = stream.clone_dtoh(&dc).expect("copied back");
    assert!(c.iter().enumerate().all(|(i, v)| *v == (i * 4) as f32));
}
