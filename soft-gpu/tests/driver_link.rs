//! The linker, libraries and kernels.

mod driver_support;

use std::ffi::{CStr, c_void};

use driver_support::*;
use soft_gpu::capi::{
    context::contexts::*, execution::launch::*, library::*, memory::alloc::*, module::link::*,
    module::load::*,
};

const HEAD: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";
const PTX: u32 = 1;
const ERROR_LOG: u32 = 5;
const ERROR_LOG_SIZE: u32 = 6;

const USER: &str = ".extern .func (.param .b32 r) twice(.param .b32 x);
.extern .global .u32 offset;
.global .u32 own = 100;
.visible .entry k(.param .u64 p) {
  .reg .b64 %p; .reg .b32 %x, %o, %w; .param .b32 a; .param .b32 b;
  ld.param.u64 %p, [p]; ld.global.u32 %x, [%p];
  st.param.b32 [a], %x; call (b), twice, (a); ld.param.b32 %x, [b];
  ld.global.u32 %o, [offset]; add.u32 %x, %x, %o;
  ld.global.u32 %w, [own]; add.u32 %x, %x, %w;
  st.global.u32 [%p], %x; ret;
}";
const PROVIDER: &str = ".visible .global .u32 offset = 7;
.global .u32 own = 1000;
.visible .func (.param .b32 r) twice(.param .b32 x) {
  .reg .b32 %x, %w; ld.param.b32 %x, [x]; add.u32 %x, %x, %x;
  ld.global.u32 %w, [own]; add.u32 %x, %x, %w; st.param.b32 [r], %x; ret;
}";

fn text(body: &str) -> Vec<u8> {
    format!("{HEAD}{body}\0").into_bytes()
}

fn link() -> u64 {
    let mut l = 0;
    ok(cuLinkCreate_v2(0, none(), nowhere(), out(&mut l)));
    l
}

fn add(l: u64, body: &str, name: &CStr) -> u32 {
    let t = text(body);
    cuLinkAddData_v2(
        l,
        PTX,
        In(t.as_ptr()),
        t.len(),
        Text(name.as_ptr()),
        0,
        none(),
        nowhere(),
    )
}

fn complete(l: u64) -> Result<(*const u8, usize), u32> {
    let (mut image, mut size) = (std::ptr::null(), 0);
    match cuLinkComplete(l, out(&mut image), out(&mut size)) {
        0 => Ok((image, size)),
        code => Err(code),
    }
}

fn load(image: *const u8) -> u64 {
    let mut m = 0;
    ok(cuModuleLoadData(out(&mut m), In(image)));
    m
}

#[test]
fn several_inputs_become_one_module() {
    start();
    let l = link();
    ok(add(l, USER, c"user"));
    ok(add(l, PROVIDER, c"provider"));
    let (image, size) = complete(l).expect("links");
    assert!(size > USER.len() + PROVIDER.len());
    assert_eq!(complete(l), Ok((image, size)), "the same again");
    assert_eq!(add(l, PROVIDER, c"late"), INVALID);
    let m = load(image);
    // The module does not use the link any longer.
    ok(cuLinkDestroy(l));
    let p = upload(&[20u32]);
    ok(driver_support::launch(function(m, "k"), 1, 1, NULL, &[&p]));
    // The value is 2 * 20 + 1000 + 7 + 100: the provider adds 1000, the user 100.
    assert_eq!(download::<u32>(p, 1), [1147]);
    let (mut addr, mut bytes) = (0, 0);
    ok(cuModuleGetGlobal_v2(
        out(&mut addr),
        out(&mut bytes),
        m,
        Text(c"offset".as_ptr()),
    ));
    assert_eq!((download::<u32>(addr, 1), bytes), (vec![7], 4));
}

#[test]
fn a_linked_image_is_an_input_and_a_library_too() {
    start();
    let first = link();
    ok(add(first, USER, c"user"));
    // The user's input alone lacks a symbol, so its completion fails. A link with all inputs
    // succeeds.
    assert_eq!(complete(first), Err(999));
    let l = link();
    ok(add(l, USER, c"user"));
    ok(add(l, PROVIDER, c"provider"));
    let (image, size) = complete(l).expect("links");
    let second = link();
    ok(cuLinkAddData(
        second,
        0,
        In(image),
        size,
        Text(std::ptr::null()),
        0,
        none(),
        nowhere(),
    ));
    let (image, _) = complete(second).expect("links again");
    let mut library = 0;
    ok(cuLibraryLoadData(
        out(&mut library),
        In(image),
        none(),
        nowhere(),
        0,
        none(),
        none(),
        0,
    ));
    let (mut kernel, mut count) = (0, 0);
    ok(cuLibraryGetKernelCount(out(&mut count), library));
    assert_eq!(count, 1);
    ok(cuLibraryGetKernel(
        out(&mut kernel),
        library,
        Text(c"k".as_ptr()),
    ));
    let p = upload(&[1u32]);
    // A launch accepts a CUkernel in place of a CUfunction.
    ok(driver_support::launch(kernel, 1, 1, NULL, &[&p]));
    assert_eq!(download::<u32>(p, 1), [1109]);
    assert_eq!(
        cuLibraryGetKernel(out(&mut kernel), library, Text(c"none".as_ptr())),
        500
    );
    ok(cuLibraryUnload(library));
    assert_eq!(cuLibraryUnload(library), BAD_HANDLE);
    assert_eq!(
        driver_support::launch(kernel, 1, 1, NULL, &[&p]),
        BAD_HANDLE
    );
}

#[test]
fn the_log_says_what_is_missing() {
    start();
    let mut log = vec![1u8; 256];
    let keys = [ERROR_LOG, ERROR_LOG_SIZE];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), 256 as *mut c_void];
    let mut l = 0;
    ok(cuLinkCreate_v2(
        2,
        In(keys.as_ptr()),
        Out(values.as_mut_ptr().cast()),
        out(&mut l),
    ));
    assert_eq!((log[0], values[1] as usize), (0, 0), "the log is empty");
    ok(add(l, USER, c"the user"));
    assert_eq!(complete(l), Err(999));
    let said = CStr::from_bytes_until_nul(&log).expect("a text");
    let said = said.to_str().expect("UTF-8");
    assert!(
        said.contains("Undefined reference to 'twice' in 'the user'"),
        "{said}"
    );
    assert!(said.contains("'offset'"), "{said}");
    assert_eq!(values[1] as usize, said.len());
    // Invalid PTX is refused as soon as it is added.
    assert_eq!(add(l, ".visible .entry {", c"broken"), 218);
    assert_eq!(add(l, "", c"empty but PTX"), 0);
}

#[test]
fn inputs_without_ptx_are_refused_or_skipped() {
    start();
    let l = link();
    assert_eq!(complete(l), Err(INVALID), "nothing to link");
    let elf = b"\x7fELF\x02\x01\x01\x33\0\0\0\0\0\0\0\0";
    let give = |kind| {
        cuLinkAddData_v2(
            l,
            kind,
            In(elf.as_ptr()),
            elf.len(),
            Text(c"machine code".as_ptr()),
            0,
            none(),
            nowhere(),
        )
    };
    assert_eq!(give(0), 209);
    assert_eq!(give(5), UNSUPPORTED);
    assert_eq!(give(9), INVALID);
    // The program does not need the device runtime library, or uses functions of it that are built
    // in.
    ok(give(4));
    let sync = ".extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 s);
.extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 h, .param .b32 f);
.visible .entry grid(.param .u64 p) {
  .reg .b64 %p, %h, %o; .reg .b32 %i, %n, %v; .param .b32 s; .param .b64 h; .param .b32 f; .param .b32 r;
  ld.param.u64 %p, [p]; mov.u32 %i, %ctaid.x; mov.u32 %n, %nctaid.x;
  mul.wide.u32 %o, %i, 4; add.u64 %o, %p, %o; st.global.u32 [%o], %i;
  st.param.b32 [s], 1; call (h), cudaCGGetIntrinsicHandle, (s); ld.param.b64 %h, [h];
  st.param.b64 [h], %h; st.param.b32 [f], 0; call (r), cudaCGSynchronize, (h, f);
  sub.u32 %i, %n, %i; sub.u32 %i, %i, 1; mul.wide.u32 %o, %i, 4; add.u64 %o, %p, %o;
  ld.volatile.global.u32 %v, [%o];
  sub.u32 %i, %n, %i; sub.u32 %i, %i, 1; add.u32 %i, %i, %n; mul.wide.u32 %o, %i, 4; add.u64 %o, %p, %o;
  st.global.u32 [%o], %v; ret;
}";
    ok(add(l, sync, c"grid"));
    let m = load(complete(l).expect("links").0);
    let p = upload(&[99u32; 16]);
    let params = [std::ptr::from_ref(&p).cast::<u8>()];
    ok(cuLaunchCooperativeKernel(
        function(m, "grid"),
        8,
        1,
        1,
        32,
        1,
        1,
        0,
        NULL,
        In(params.as_ptr().cast()),
    ));
    let values = download::<u32>(p, 16);
    assert_eq!(values[8..], [7, 6, 5, 4, 3, 2, 1, 0]);
}

#[test]
fn a_register_limit_is_reported() {
    start();
    let keys = [0u32];
    let mut values = [24 as *mut c_void];
    let mut l = 0;
    ok(cuLinkCreate(
        1,
        In(keys.as_ptr()),
        Out(values.as_mut_ptr().cast()),
        out(&mut l),
    ));
    ok(add(l, &many_registers(), c"wide"));
    let m = load(complete(l).expect("links").0);
    let mut registers = 0;
    ok(cuFuncGetAttribute(
        out(&mut registers),
        4,
        function(m, "wide"),
    ));
    assert_eq!(registers, 24);
    let t = text(&many_registers());
    let mut m = 0;
    ok(cuModuleLoadData(out(&mut m), In(t.as_ptr())));
    ok(cuFuncGetAttribute(
        out(&mut registers),
        4,
        function(m, "wide"),
    ));
    assert!(registers > 24);
    ok(cuModuleLoadDataEx(
        out(&mut m),
        In(t.as_ptr()),
        1,
        In(keys.as_ptr()),
        Out(values.as_mut_ptr().cast()),
    ));
    ok(cuFuncGetAttribute(
        out(&mut registers),
        4,
        function(m, "wide"),
    ));
    assert_eq!(registers, 24);
}

fn many_registers() -> String {
    // All registers are live at once.
    let made: String = (0..20).map(|i| format!("mov.u64 %r{i}, {i};\n")).collect();
    let used: String = (0..20)
        .map(|i| format!("add.u64 %r99, %r99, %r{i};\n"))
        .collect();
    format!(".visible .entry wide() {{ .reg .b64 %r<100>; {made}{used} ret; }}")
}

fn load_library(body: &str) -> u64 {
    let (t, mut library) = (text(body), 0);
    ok(cuLibraryLoadData(
        out(&mut library),
        In(t.as_ptr()),
        none(),
        nowhere(),
        0,
        none(),
        none(),
        0,
    ));
    library
}

#[test]
fn an_empty_image_is_refused() {
    start();
    let (mut module, empty) = (0, c"");
    let load = cuModuleLoadData(out(&mut module), In(empty.as_ptr().cast()));
    assert_eq!(load, 200);
}

#[test]
fn managed_variables_need_a_context() {
    let (_, said) = passes("role_managed_variables_without_a_context", &[]);
    let told = said.matches("use cudaMallocManaged").count();
    assert_eq!(told, 1, "the hint, once per process: {said}");
}

#[test]
#[ignore = "a role"]
fn role_managed_variables_without_a_context() {
    start();
    let library = load_library(
        ".visible .global .attribute(.managed) .align 4 .u32 first;
.visible .global .attribute(.managed) .align 4 .u32 second;",
    );
    // The CUDA runtime makes this call for each variable when it starts.
    ok(cuCtxSetCurrent(0));
    for name in [c"first", c"second"] {
        let (mut addr, mut bytes) = (0, 0);
        let code = cuLibraryGetManaged(
            out(&mut addr),
            out(&mut bytes),
            library,
            Text(name.as_ptr()),
        );
        assert_eq!(code, 801, "{name:?}");
    }
}

#[test]
fn kernels_of_libraries_report_their_properties() {
    let context = start();
    let library = load_library(
        ".visible .global .attribute(.managed) .align 4 .u32 shared_with_host = 5;
.visible .global .u32 plain = 6;
.visible .entry a(.param .u64 x, .param .u32 y) { ret; }
.visible .entry b() .maxntid 64 { ret; }",
    );
    let mut all = [0; 2];
    ok(cuLibraryEnumerateKernels(Out(all.as_mut_ptr()), 2, library));
    let (mut name, mut of, mut count, mut offset, mut size) = (std::ptr::null(), 0, 0, 9, 9);
    ok(cuKernelGetName(out(&mut name), all[0]));
    // SAFETY: the driver returned the name.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"a");
    ok(cuKernelGetLibrary(out(&mut of), all[0]));
    assert_eq!(of, library);
    ok(cuKernelGetParamCount(all[0], out(&mut count)));
    ok(cuKernelGetParamInfo(
        all[0],
        1,
        out(&mut offset),
        out(&mut size),
    ));
    assert_eq!((count, offset, size), (2, 8, 4));
    assert_eq!(
        cuKernelGetParamInfo(all[0], 2, out(&mut offset), out(&mut size)),
        INVALID
    );
    let mut threads = 0;
    ok(cuKernelGetAttribute(out(&mut threads), 0, all[1], 0));
    assert_eq!(threads, 64);
    assert_eq!(
        cuKernelGetAttribute(out(&mut threads), 99, all[1], 0),
        INVALID
    );
    assert_eq!(cuKernelGetAttribute(out(&mut threads), 0, all[1], 7), 101);
    ok(cuKernelSetAttribute(8, 1024, all[1], 0));
    ok(cuKernelSetCacheConfig(all[1], 1, 0));
    assert_eq!(cuKernelGetName(out(&mut name), 0), INVALID);
    let (mut addr, mut bytes) = (0, 0);
    let managed = |addr: &mut u64, bytes: &mut usize, name: &CStr| {
        cuLibraryGetManaged(out(addr), out(bytes), library, Text(name.as_ptr()))
    };
    ok(managed(&mut addr, &mut bytes, c"shared_with_host"));
    // SAFETY: the host can access managed memory.
    assert_eq!((unsafe { *(addr as *const u32) }, bytes), (5, 4));
    let mut is_managed = 0u32;
    ok(cuPointerGetAttribute(
        Out((&raw mut is_managed).cast()),
        8,
        addr,
    ));
    assert_eq!(is_managed, 1);
    assert_eq!(managed(&mut addr, &mut bytes, c"plain"), 500);
    // Each context has its own module of the library.
    let (mut here, mut there, mut second) = (0, 0, 0);
    ok(cuLibraryGetModule(out(&mut here), library));
    ok(cuCtxCreate_v2(out(&mut second), 0, 0));
    ok(cuLibraryGetModule(out(&mut there), library));
    assert_ne!(here, there);
    ok(cuCtxDestroy_v2(second));
    ok(cuCtxSetCurrent(context));
    let mut unified = std::ptr::null_mut();
    assert_eq!(
        cuLibraryGetUnifiedFunction(out(&mut unified), library, Text(c"a".as_ptr())),
        INVALID
    );
}

#[test]
fn a_declared_result_that_the_definition_lacks_is_left_as_it_is() {
    start();
    let user = ".extern .func (.param .b32 r) consume(.param .b64 p);
.visible .entry k(.param .u64 p) {
  .reg .b64 %p; .reg .b32 %x; .param .b64 a; .param .b32 b;
  ld.param.u64 %p, [p]; st.param.b64 [a], %p;
  call (b), consume, (a); ld.param.b32 %x, [b]; ret;
}";
    let provider = ".visible .func consume(.param .b64 p) {
  .reg .b64 %p; ld.param.b64 %p, [p]; st.global.u32 [%p], 41; ret;
}";
    let l = link();
    ok(add(l, user, c"user"));
    ok(add(l, provider, c"provider"));
    let m = load(complete(l).expect("links").0);
    let p = upload(&[0u32; 4]);
    ok(launch(function(m, "k"), 1, 1, NULL, &[&p]));
    ok(cuCtxSynchronize());
    assert_eq!(download::<u32>(p, 1), [41]);
    // Within one text, the same difference is an error.
    let wrong =
        text(&(user.replace("consume(.param .b64 p);", "other(.param .b64 p);") + provider));
    let mut m = 0;
    assert_eq!(
        cuModuleLoadData(out(&mut m), In(wrong.as_ptr().cast())),
        218
    );
}
