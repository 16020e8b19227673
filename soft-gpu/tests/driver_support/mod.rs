//! Helpers for the tests of the driver: calls that must succeed, and child processes with a role.
//!
//! A role is an ignored test of the same binary, which a test runs in a separate process.

#![allow(dead_code)]

pub(crate) mod arguments;
pub(crate) mod graph;

use std::ffi::{CString, c_void};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

pub(crate) use arguments::*;
use soft_gpu::capi::{
    context::contexts::*, device::query::*, execution::launch::*, init::entry::*, memory::alloc::*,
    memory::copy::*, module::load::*, stream::streams::*,
};

/// The legacy NULL stream.
pub(crate) const NULL: StreamArg = StreamArg(0);

/// A deadline that is long enough for every machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A command that runs the role `name` of this test binary, with only these settings of soft-gpu.
pub(crate) fn role(name: &str, env: &[(&str, &str)]) -> Command {
    let mut c = Command::new(std::env::current_exe().expect("the test binary has a path"));
    c.args([
        "--exact",
        name,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    for (k, _) in std::env::vars().filter(|(k, _)| k.starts_with("SOFT_GPU_")) {
        c.env_remove(k);
    }
    c.env_remove("CUDA_VISIBLE_DEVICES")
        .envs(env.iter().copied());
    c
}

/// Runs a role until it ends.
pub(crate) fn run(name: &str, env: &[(&str, &str)]) -> Output {
    role(name, env).output().expect("the role starts")
}

/// Runs a role that must pass. Returns its stdout and stderr.
#[track_caller]
pub(crate) fn passes(name: &str, env: &[(&str, &str)]) -> (String, String) {
    let o = run(name, env);
    let err = String::from_utf8_lossy(&o.stderr).into_owned();
    let out = String::from_utf8_lossy(&o.stdout).into_owned();
    assert!(o.status.success(), "{name} failed:\n{out}\n{err}");
    assert!(out.contains("1 passed"), "{name} is no role:\n{out}");
    (out, err)
}

/// Checks that a call returned CUDA_SUCCESS.
#[track_caller]
pub(crate) fn ok(code: u32) {
    assert_eq!(code, 0, "a call failed");
}

/// Waits until a condition holds, at most [`SOON`].
#[track_caller]
pub(crate) fn within(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "not within {SOON:?}: {what}");
        std::thread::yield_now();
    }
}

/// Calls cuInit and makes the primary context of device 0 current.
pub(crate) fn start() -> u64 {
    ok(cuInit(0));
    let mut context = 0;
    ok(cuDevicePrimaryCtxRetain(Out(&mut context), 0));
    ok(cuCtxSetCurrent(context));
    context
}

/// Allocates device memory, or returns the error.
pub(crate) fn alloc(bytes: usize) -> Result<u64, u32> {
    let mut p = 0;
    match cuMemAlloc_v2(Out(&mut p), bytes) {
        0 => Ok(p),
        code => Err(code),
    }
}

/// Allocates device memory with these contents.
pub(crate) fn upload<T: Copy>(values: &[T]) -> u64 {
    let bytes = size_of_val(values);
    let p = alloc(bytes).expect("memory");
    ok(cuMemcpyHtoD_v2(p, values.as_ptr() as u64, bytes));
    p
}

/// Reads `n` values from device memory.
pub(crate) fn download<T: Copy + Default>(p: u64, n: usize) -> Vec<T> {
    let mut v = vec![T::default(); n];
    ok(cuMemcpyDtoH_v2(
        v.as_mut_ptr() as u64,
        p,
        n * size_of::<T>(),
    ));
    v
}

/// Creates a stream.
pub(crate) fn stream(flags: u32) -> StreamArg {
    let mut s = 0;
    ok(cuStreamCreate(Out(&mut s), flags));
    StreamArg(s)
}

/// Loads PTX text.
pub(crate) fn module(ptx: &str) -> u64 {
    let text = CString::new(ptx).expect("no NUL inside");
    let mut m = 0;
    ok(cuModuleLoadData(Out(&mut m), In(text.as_ptr().cast())));
    m
}

/// A kernel of a module.
pub(crate) fn function(module: u64, name: &str) -> u64 {
    let name = CString::new(name).expect("no NUL inside");
    let mut f = 0;
    ok(cuModuleGetFunction(
        Out(&mut f),
        module,
        Text(name.as_ptr()),
    ));
    f
}

/// Launches a kernel. Each parameter is passed as the bytes of its value.
pub(crate) fn launch(
    f: u64,
    grid: u32,
    block: u32,
    stream: StreamArg,
    params: &[&dyn AsBytes],
) -> u32 {
    let pointers: Vec<*const u8> = params.iter().map(|p| p.pointer()).collect();
    cuLaunchKernel(
        f,
        grid,
        1,
        1,
        block,
        1,
        1,
        0,
        stream,
        In(pointers.as_ptr().cast()),
        In::NULL,
    )
}

/// A kernel argument.
pub(crate) trait AsBytes {
    /// Pointer to the bytes of the argument.
    fn pointer(&self) -> *const u8;
}

macro_rules! arguments {
    ($($t:ty)*) => { $(impl AsBytes for $t {
        fn pointer(&self) -> *const u8 {
            std::ptr::from_ref(self).cast()
        }
    })* };
}

arguments! { u8 u32 i32 u64 f32 [u64;3] }

/// A pointer argument to which the call writes.
pub(crate) fn out<T>(value: &mut T) -> Out<T> {
    Out(value)
}

/// An argument that points to a value. The value has the layout of the entry point's structure.
pub(crate) fn at<T, U>(value: &T) -> In<U> {
    assert_eq!(size_of::<T>(), size_of::<U>(), "a structure of cuda.h");
    In(std::ptr::from_ref(value).cast())
}

/// As [`at`], for an argument that the function also writes.
pub(crate) fn inout<T, U>(value: &mut T) -> Out<U> {
    assert_eq!(size_of::<T>(), size_of::<U>(), "a structure of cuda.h");
    Out(std::ptr::from_mut(value).cast())
}

/// A null array.
pub(crate) fn none<T>() -> In<T> {
    In(std::ptr::null())
}

/// A null output pointer.
pub(crate) fn nowhere<T>() -> Out<T> {
    Out(std::ptr::null_mut())
}

/// Kernels for one block: `inc(p, n)` adds n to p[tid]; `mul(p, n)` multiplies p[tid] by n;
/// `spin(flag)` ends when the flag is not zero; `bad()` writes to unmapped memory.
pub(crate) const KERNELS: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry inc(.param .u64 p, .param .u32 n) {
  .reg .b64 %p, %o; .reg .b32 %n, %t, %v;
  ld.param.u64 %p, [p]; ld.param.u32 %n, [n];
  mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.u64 %p, %p, %o;
  ld.global.u32 %v, [%p]; add.u32 %v, %v, %n; st.global.u32 [%p], %v; ret;
}
.visible .entry mul(.param .u64 p, .param .u32 n) {
  .reg .b64 %p, %o; .reg .b32 %n, %t, %v;
  ld.param.u64 %p, [p]; ld.param.u32 %n, [n];
  mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.u64 %p, %p, %o;
  ld.global.u32 %v, [%p]; mul.lo.u32 %v, %v, %n; st.global.u32 [%p], %v; ret;
}
.visible .entry spin(.param .u64 flag) {
  .reg .b64 %p; .reg .b32 %v; .reg .pred %z;
  ld.param.u64 %p, [flag];
L: ld.volatile.global.u32 %v, [%p]; setp.eq.u32 %z, %v, 0; @%z bra L; ret;
}
.visible .entry bad() {
  .reg .b64 %p; mov.u64 %p, 64; st.global.u32 [%p], 1; ret;
}
";

/// CUDA_ERROR_INVALID_VALUE.
pub(crate) const INVALID: u32 = 1;
/// CUDA_ERROR_INVALID_HANDLE.
pub(crate) const BAD_HANDLE: u32 = 400;
/// CUDA_ERROR_NOT_SUPPORTED.
pub(crate) const UNSUPPORTED: u32 = 801;

/// Blocks a stream until the gate is opened or dropped.
pub(crate) struct Gate(std::sync::mpsc::Sender<()>);

impl Gate {
    /// Blocks a stream.
    pub(crate) fn close(stream: StreamArg) -> Gate {
        extern "C" fn wait(data: *mut c_void) {
            // SAFETY: `data` is the receiver that was leaked below, and the function runs once.
            let receiver = unsafe { Box::from_raw(data.cast::<std::sync::mpsc::Receiver<()>>()) };
            let _ = receiver.recv_timeout(SOON);
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let data = Box::into_raw(Box::new(receiver)).cast();
        ok(cuLaunchHostFunc(stream, Some(wait), data));
        Gate(sender)
    }

    /// Lets the stream continue.
    pub(crate) fn open(self) {
        let _ = self.0.send(());
    }
}

/// Creates an event.
pub(crate) fn event(flags: u32) -> u64 {
    let mut e = 0;
    ok(soft_gpu::capi::event::cuEventCreate(Out(&mut e), flags));
    e
}
