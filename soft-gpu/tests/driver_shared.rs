//! Physical memory that two processes share through a file descriptor.

mod driver_support;

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;

use driver_support::*;
use soft_gpu::capi::{device::query::*, memory::alloc::*, memory::copy::*, vmm::*};

const SIZE: usize = 2 << 20;
const FILE_DESCRIPTOR: u32 = 1;
/// CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED.
const SUPPORTED: i32 = 103;

/// CUmemAllocationProp: pinned memory of device 0, which can be shared by these handle types.
fn properties(types: u32) -> [u32; 8] {
    [1, types, 1, 0, 0, 0, 0, 0]
}

fn create(types: u32) -> Result<u64, u32> {
    let (mut handle, wanted) = (0, properties(types));
    match cuMemCreate(out(&mut handle), SIZE, at(&wanted), 0) {
        0 => Ok(handle),
        code => Err(code),
    }
}

/// Maps the memory, and allows the device to read and write it.
fn mapped(handle: u64) -> u64 {
    let mut p = 0;
    ok(cuMemAddressReserve(out(&mut p), SIZE, 0, 0, 0));
    ok(cuMemMap(p, SIZE, 0, handle, 0));
    // CUmemAccessDesc: read and write access for device 0.
    let access = [1u32, 0, 3];
    ok(cuMemSetAccess(p, SIZE, at(&access), 1));
    p
}

fn import(descriptor: i32) -> Result<u64, u32> {
    let mut handle = 0;
    let pointer = descriptor as usize as *mut c_void;
    match cuMemImportFromShareableHandle(out(&mut handle), pointer, FILE_DESCRIPTOR) {
        0 => Ok(handle),
        code => Err(code),
    }
}

#[test]
#[ignore = "a role"]
fn role_importer() {
    start();
    let path = std::env::var("SHARED").expect("a path");
    let file = File::options().read(true).write(true).open(path);
    let file = file.expect("a descriptor of the other process");
    let (mut before, mut after, mut total) = (0, 0, 0);
    ok(cuMemGetInfo_v2(out(&mut before), out(&mut total)));
    let p = mapped(import(file.as_raw_fd()).expect("it is memory"));
    ok(cuMemGetInfo_v2(out(&mut after), out(&mut total)));
    assert_eq!(before, after, "only the creator is charged");
    let f = function(module(KERNELS), "inc");
    ok(launch(f, 1, 4, NULL, &[&p, &5u32]));
    assert_eq!(download::<u32>(p, 4), [12; 4]);
}

#[test]
fn another_process_maps_and_changes_it() {
    start();
    let mut supported = 0;
    ok(cuDeviceGetAttribute(out(&mut supported), SUPPORTED, 0));
    assert_eq!(supported, 1);
    let handle = create(FILE_DESCRIPTOR).expect("memory");
    let p = mapped(handle);
    let seven = [7u32; 4];
    ok(cuMemcpyHtoD_v2(p, seven.as_ptr() as u64, 16));
    let mut descriptor = -1;
    let to = |descriptor| cuMemExportToShareableHandle(descriptor, handle, FILE_DESCRIPTOR, 0);
    ok(to(out(&mut descriptor)));
    let path = format!("/proc/{}/fd/{descriptor}", std::process::id());
    passes("role_importer", &[("SHARED", &path)]);
    assert_eq!(download::<u32>(p, 4), [12; 4]);
    // The process may also import its own memory. The memory exists until its last mapping is
    // removed.
    let again = mapped(import(descriptor).expect("it is memory"));
    ok(cuMemUnmap(p, SIZE));
    ok(cuMemRelease(handle));
    assert_eq!(download::<u32>(again, 4), [12; 4]);
}

#[test]
fn memory_that_is_not_exportable_cannot_be_exported() {
    start();
    let (private, mut descriptor) = (create(0).expect("memory"), -1);
    let mut export = |handle, kind, flags| {
        cuMemExportToShareableHandle(out(&mut descriptor), handle, kind, flags)
    };
    assert_eq!(export(private, FILE_DESCRIPTOR, 0), INVALID);
    assert_eq!(export(private, 2, 0), UNSUPPORTED);
    assert_eq!(export(private, 3, 0), INVALID);
    assert_eq!(export(77, FILE_DESCRIPTOR, 0), INVALID);
    let shared = create(FILE_DESCRIPTOR).expect("memory");
    assert_eq!(export(shared, FILE_DESCRIPTOR, 1), INVALID);
    assert_eq!(create(2), Err(UNSUPPORTED));
    let mut told = [0u32; 8];
    for (handle, types) in [(private, 0), (shared, FILE_DESCRIPTOR)] {
        ok(cuMemGetAllocationPropertiesFromHandle(
            inout(&mut told),
            handle,
        ));
        assert_eq!(told[..4], [1, types, 1, 0]);
    }
    // A descriptor of another file is not device memory.
    let other = File::open("/proc/self/exe").expect("there is one");
    assert_eq!(import(other.as_raw_fd()), Err(INVALID));
    assert_eq!(import(-1), Err(INVALID));
    let none = In(std::ptr::null());
    assert_eq!(
        cuMemCreate(Out(std::ptr::null_mut()), SIZE, none, 0),
        INVALID
    );
}
