//! Registered memory: kernels access it at its host address while it is registered.

mod driver_support;

use driver_support::*;
use soft_gpu::capi::context::contexts::*;
use soft_gpu::capi::memory::alloc::*;
use soft_gpu::capi::memory::fill::*;

const DOUBLE: &str = ".version 7.8
.target sm_80
.address_size 64
.visible .entry double(.param .u64 p, .param .u64 stride) {
  .reg .u64 %p, %t, %s; .reg .u32 %i, %v;
  ld.param.u64 %p, [p]; ld.param.u64 %s, [stride]; mov.u32 %i, %tid.x; cvt.u64.u32 %t, %i;
  mad.lo.u64 %p, %t, %s, %p; ld.global.u32 %v, [%p]; add.u32 %v, %v, %v; st.global.u32 [%p], %v;
  ret;
}";

const DEVICEMAP: u32 = 2;
const READ_ONLY: u32 = 8;

#[test]
fn kernels_and_copies_reach_registered_memory() {
    start();
    let f = function(module(DOUBLE), "double");
    for flags in [0, DEVICEMAP] {
        let mut host: Vec<u32> = (0..3000).collect();
        let at = host.as_mut_ptr() as u64;
        ok(cuMemHostRegister_v2(at, 12000, flags));
        let mut p = 0;
        ok(cuMemHostGetDevicePointer_v2(Out(&mut p), at, 0));
        assert_eq!(p, at);
        let mut inner = 0;
        ok(cuMemHostGetDevicePointer_v2(Out(&mut inner), at + 40, 0));
        assert_eq!(inner, at + 40);
        // An access by whole warps to adjacent words, and by lanes that are far from each other.
        ok(launch(f, 1, 100, NULL, &[&p, &4u64]));
        ok(launch(f, 1, 32, NULL, &[&(p + 4000), &200u64]));
        ok(cuCtxSynchronize());
        let copied = download::<u32>(p, 3000);
        assert_eq!((copied[0], copied[99], copied[100]), (0, 198, 100));
        assert_eq!((copied[1050], copied[1051]), (2100, 1051));
        ok(cuMemsetD32_v2(p + 8, 5, 3));
        ok(cuCtxSynchronize());
        ok(cuMemHostUnregister(at));
        assert_eq!(host[..6], [0, 2, 5, 5, 5, 10]);
        assert_eq!(cuMemHostGetDevicePointer_v2(Out(&mut p), at, 0), 1);
        assert_eq!(cuMemsetD32_v2(p + 8, 5, 3), 1);
    }
}

#[test]
fn read_only_memory_is_not_mapped_for_kernels() {
    start();
    let page = vec![1u8; 8192];
    let at = page.as_ptr() as u64;
    let mut p = 0;
    ok(cuMemHostRegister_v2(at, 8192, DEVICEMAP | READ_ONLY));
    assert_eq!(cuMemHostGetDevicePointer_v2(Out(&mut p), at, 0), 801);
    ok(cuMemHostUnregister(at));
    // Nothing is mapped at this address.
    assert_eq!(cuMemHostRegister_v2(64 << 40, 4096, DEVICEMAP), 1);
    assert_eq!(cuMemHostUnregister(64 << 40), 713);
}

#[test]
fn kernels_cannot_access_unregistered_memory() {
    let (out, _) = passes("role_unregistered", &[]);
    assert!(out.contains("fault 700"), "{out}");
}

#[test]
#[ignore = "a role"]
fn role_unregistered() {
    start();
    let f = function(module(DOUBLE), "double");
    let mut host = vec![1u32; 1024];
    let p = host.as_mut_ptr() as u64;
    ok(cuMemHostRegister_v2(p, 4096, DEVICEMAP));
    ok(launch(f, 1, 32, NULL, &[&p, &4u64]));
    ok(cuCtxSynchronize());
    ok(cuMemHostUnregister(p));
    ok(launch(f, 1, 32, NULL, &[&p, &4u64]));
    println!("fault {}", cuCtxSynchronize());
}
