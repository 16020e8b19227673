//! Tests that a program which cannot be served gets the reason: one line on standard error, with
//! the function and the way out.

mod common;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;

use common::guest::{self, Cuda};
use common::host::Host;
use vgpu_cuda_abi::args::{In, StreamArg};
use vgpu_cuda_abi::numbers::launch_attribute::CLUSTER_DIMENSION;
use vgpu_cuda_abi::structs::{LaunchAttribute, LaunchConfig};
use vgpu_proto::call::{MemoryLimit, Notice, Request, Shortage, rep, req};
use vgpu_proto::cuda::{CuResult, Module};

const PTX: &CStr = c".version 8.0\n.target sm_80\n.address_size 64\n";

/// The lines that the library has logged.
fn lines(said: &str) -> Vec<&str> {
    said.lines().filter(|l| l.starts_with("vgpu:")).collect()
}

/// A host that refuses every image with this code and text.
fn refusing(code: CuResult, why: &'static str) -> Host {
    Host::scripted(move |frame, link| {
        let load = matches!(frame.request, Request::ModuleLoad(_));
        if load {
            let reply = rep::ModuleLoad {
                module: Module(0),
                info_log: Vec::new(),
                error_log: why.as_bytes().to_vec(),
            };
            link.reply::<req::ModuleLoad>(frame, code, &reply);
        }
        load
    })
}

fn load(cuda: &Cuda, image: &CStr) -> u32 {
    let (mut module, image) = (0, image.as_ptr().cast::<c_void>());
    cu!(cuda, cuModuleLoadData(&mut module => *mut u64, image => *const c_void))
}

/// `cuLibraryLoadData` without options.
fn load_library(cuda: &Cuda, library: &mut u64) -> u32 {
    let (none, image) = (std::ptr::null::<u32>(), PTX.as_ptr().cast::<c_void>());
    let values = std::ptr::null_mut::<*mut c_void>();
    cu!(cuda, cuLibraryLoadData(
        library => *mut u64,
        image => *const c_void,
        none => *const u32,
        values => *mut *mut c_void,
        0 => u32,
        none => *const u32,
        values => *mut *mut c_void,
        0 => u32,
    ))
}

#[test]
fn a_refused_image_is_told_once_with_the_function_and_the_way_out() {
    let name = "a_refused_image_is_told_once_with_the_function_and_the_way_out";
    let code = CuResult::NO_BINARY_FOR_GPU;
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        for _ in 0..3 {
            assert_eq!(load(&cuda, PTX), code.0);
        }
        let mut library = 0;
        assert_eq!(load_library(&cuda, &mut library), code.0);
        return;
    }
    let why = "no PTX for \x1b[31mcompute_80\x1b[0m; compile with -arch=x. And more.\nsecond line";
    let said = guest::start(name, &refusing(code, why)).success().stderr;
    let expected = "vgpu: cuModuleLoadData: no PTX for \u{fffd}[31mcompute_80\u{fffd}[0m; compile with -arch=x [CUDA_ERROR_NO_BINARY_FOR_GPU]";
    let lines = lines(&said);
    assert!(lines == [expected], "{said}");
}

#[test]
fn a_refused_allocation_is_told_with_the_limit_and_its_values() {
    let name = "a_refused_allocation_is_told_with_the_limit_and_its_values";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        for size in [100 << 20, 101 << 20, 7] {
            let mut address = 0;
            let code = cu!(cuda, cuMemAlloc_v2(&mut address => *mut u64, size => usize));
            assert_eq!(code, CuResult::OUT_OF_MEMORY.0);
        }
        return;
    }
    let host = Host::scripted(|frame, link| {
        let Request::MemAlloc(call) = &frame.request else {
            return false;
        };
        // A host that knows no reason sends the code alone.
        if call.size == 7 {
            link.status(frame, CuResult::OUT_OF_MEMORY);
            return true;
        }
        let shortage = Shortage {
            limit: MemoryLimit::Quota,
            total: 128 << 20,
            left: 28 << 20,
            asked: call.size,
        };
        link.reply::<req::MemAlloc>(frame, CuResult::OUT_OF_MEMORY, &shortage);
        true
    });
    let said = guest::start(name, &host).success().stderr;
    let lines = lines(&said);
    let quota = "vgpu: cuMemAlloc_v2: memory quota 128 MiB, 100 MiB in use, 100 MiB asked; free";
    assert!(
        lines.len() == 2 && lines[0].starts_with(quota) && lines[1].contains("too little memory"),
        "{said}"
    );
}

#[test]
fn a_library_that_is_loaded_later_is_told_by_the_function_that_fails() {
    let name = "a_library_that_is_loaded_later_is_told_by_the_function_that_fails";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let mut context = 0;
        assert_eq!(cu!(cuda, cuCtxGetCurrent(&mut context => *mut u64)), 0);
        assert_eq!(cu!(cuda, cuCtxSetCurrent(0 => u64)), 0);
        let (mut library, mut kernel) = (0, 0);
        assert_eq!(load_library(&cuda, &mut library), 0);
        assert_eq!(cu!(cuda, cuCtxSetCurrent(context => u64)), 0);
        let code = cu!(cuda, cuLibraryGetKernel(
            &mut kernel => *mut u64,
            library => u64,
            c"k".as_ptr() => *const c_char,
        ));
        assert_eq!(code, CuResult::UNSUPPORTED_PTX_VERSION.0);
        return;
    }
    // A driver that returns only a code, without a log.
    let host = refusing(CuResult::UNSUPPORTED_PTX_VERSION, "");
    let said = guest::start(name, &host).success().stderr;
    let expected = "vgpu: cuLibraryGetKernel: the image's PTX is newer than the host's driver; compile it with";
    let lines = lines(&said);
    assert!(lines.len() == 1 && lines[0].starts_with(expected), "{said}");
}

#[test]
fn a_program_that_tries_many_images_does_not_flood() {
    let name = "a_program_that_tries_many_images_does_not_flood";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        for _ in 0..100 {
            assert_eq!(load(&cuda, PTX), CuResult::INVALID_PTX.0);
        }
        return;
    }
    let mut tried = 0;
    let host = Host::scripted(move |frame, link| {
        let load = matches!(frame.request, Request::ModuleLoad(_));
        if load {
            tried += 1;
            let reply = rep::ModuleLoad {
                module: Module(0),
                info_log: Vec::new(),
                error_log: format!("reason {tried}").into_bytes(),
            };
            link.reply::<req::ModuleLoad>(frame, CuResult::INVALID_PTX, &reply);
        }
        load
    });
    let said = guest::start(name, &host).success().stderr;
    let told = lines(&said).len();
    assert!((1..=16).contains(&told), "{said}");
}

#[test]
fn an_empty_image_is_told_in_the_log_and_on_standard_error() {
    let name = "an_empty_image_is_told_in_the_log_and_on_standard_error";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let (mut module, mut info, mut error) = (0_u64, [0x55_u8; 64], [0x55_u8; 64]);
        let names = [3_u32, 4, 5, 6];
        let mut values = [
            info.as_mut_ptr().cast::<c_void>(),
            64 as *mut c_void,
            error.as_mut_ptr().cast::<c_void>(),
            64 as *mut c_void,
        ];
        let code = cu!(cuda, cuModuleLoadDataEx(
            &mut module => *mut u64,
            c"".as_ptr().cast() => *const c_void,
            4 => u32,
            names.as_ptr() => *const u32,
            values.as_mut_ptr() => *mut *mut c_void,
        ));
        assert_eq!(code, CuResult::INVALID_IMAGE.0);
        assert_eq!(info[0], 0);
        assert!(error.starts_with(b"the image is empty"));
        assert!(error.contains(&0), "it ends");
        return;
    }
    let said = guest::start(name, &Host::usual()).success().stderr;
    let lines = lines(&said);
    let expected = "vgpu: cuModuleLoadDataEx: the image is empty, damaged, or neither PTX nor a cubin nor a fatbin \
                    [CUDA_ERROR_INVALID_IMAGE]";
    assert!(lines == [expected], "{said}");
}

#[test]
fn a_program_with_managed_variables_is_told_what_to_use() {
    let name = "a_program_with_managed_variables_is_told_what_to_use";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        // The CUDA runtime makes the same calls.
        let (mut library, mut at) = (0, 0);
        assert_eq!(load_library(&cuda, &mut library), 0);
        assert_eq!(cu!(cuda, cuCtxSetCurrent(0 => u64)), 0);
        for _ in 0..2 {
            let code = cu!(cuda, cuLibraryGetManaged(
                &mut at => *mut u64,
                std::ptr::null_mut() => *mut usize,
                library => u64,
                c"variable".as_ptr() => *const c_char,
            ));
            assert_eq!(code, CuResult::NOT_SUPPORTED.0);
        }
        return;
    }
    let said = guest::start(name, &Host::usual()).success().stderr;
    let lines = lines(&said);
    assert!(lines.len() == 1, "{said}");
    for word in ["cuLibraryGetManaged", "`__managed__`", "cudaMallocManaged"] {
        assert!(lines[0].contains(word), "{said}");
    }
}

#[test]
fn a_module_with_managed_variables_is_told_what_to_use() {
    let name = "a_module_with_managed_variables_is_told_what_to_use";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let image = c".version 8.0\n.target sm_80\n.global .attribute(.managed) .u32 m = 5;\n";
        for _ in 0..2 {
            assert_eq!(load(&cuda, image), 0);
        }
        return;
    }
    let said = guest::start(name, &Host::usual()).success().stderr;
    let lines = lines(&said);
    assert!(lines.len() == 1, "{said}");
    assert!(lines[0].contains("use cudaMallocManaged"), "{said}");
}

#[test]
fn forms_that_are_not_served_are_told_and_counted() {
    let name = "forms_that_are_not_served_are_told_and_counted";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let refused = CuResult::NOT_SUPPORTED.0;
        let mut out = 0;
        for _ in 0..2 {
            let event = cu!(cuda, cuEventCreate(&mut out => *mut u64, 6 => u32));
            assert_eq!(event, refused);
        }
        let mut cluster = LaunchAttribute {
            id: CLUSTER_DIMENSION,
            reserved: 0,
            value: [0; 16],
        };
        cluster.value[..3].copy_from_slice(&[2, 1, 1]);
        let config = LaunchConfig {
            grid: [2, 1, 1],
            block: [1, 1, 1],
            shared: 0,
            stream: StreamArg::DEFAULT,
            // SAFETY: the attribute lives until the launch has returned.
            attributes: unsafe { In::new(&raw const cluster) },
            count: 1,
        };
        let nothing = std::ptr::null::<*const c_void>();
        let launched = cu!(cuda, cuLaunchKernelEx(
            &raw const config => *const LaunchConfig,
            cuda.kernel() => u64,
            nothing => *const *const c_void,
            nothing => *const *const c_void,
        ));
        assert_eq!(launched, refused);
        // Device memory that is to be shared through file descriptors.
        let mut pool = [0_u32; 32];
        (pool[0], pool[1], pool[2]) = (1, 1, 1);
        let pool = cu!(cuda, cuMemPoolCreate(&mut out => *mut u64, pool.as_ptr() => *const u32));
        assert_eq!(pool, refused);
        let lock =
            cu!(cuda, cuCheckpointProcessLock(1 => c_int, std::ptr::null_mut() => *mut c_void));
        assert_eq!(lock, refused);
        let green =
            cu!(cuda, cuGreenCtxCreate(&mut out => *mut u64, 1 => u64, 0 => c_int, 1 => u32));
        assert_eq!(green, refused);
        let (place, external) = ([1_i32, 0], [8_u32; 64]);
        let place = place.as_ptr();
        let pool = cu!(cuda, cuMemSetMemPool(place => *const i32, 2 => u32, 0 => u64));
        assert_eq!(pool, refused);
        let set = cu!(cuda, cuGraphNodeSetParams(0 => u64, external.as_ptr() => *const u32));
        assert_eq!(set, refused);
        return;
    }
    let host = Host::usual();
    let address = host.address();
    let environment = [("VGPU_ADDRESS", address.as_str()), ("VGPU_STATS", "1")];
    let said = guest::start_with(name, &environment).success().stderr;
    for (form, calls) in [
        ("cuEventCreate with CU_EVENT_INTERPROCESS", 2),
        ("cuLaunchKernelEx with clusters of more than one block", 1),
        ("cuMemPoolCreate with shareable handles", 1),
        ("cuCheckpointProcessLock", 1),
        ("cuGreenCtxCreate", 1),
        ("cuMemSetMemPool of managed or host memory", 1),
        (
            "cuGraphNodeSetParams of external semaphores and batches of other engines",
            1,
        ),
    ] {
        let line = format!("vgpu: {form} is not served: ");
        assert_eq!(said.matches(&line).count(), 1, "{form}: {said}");
        assert!(
            said.contains(&format!(" {calls} {form}\n")),
            "{form}: {said}"
        );
    }
}

/// A host on which each kernel accesses an invalid address.
fn faulting() -> Host {
    Host::scripted(|frame, link| {
        if matches!(frame.request, Request::LaunchKernel(_)) {
            let code = CuResult::ILLEGAL_ADDRESS;
            link.notice(Notice::AsyncError, frame.id, code, &[], &[]);
        }
        false
    })
}

#[test]
fn a_fault_beside_page_locked_memory_is_told_with_the_way_out() {
    let name = "a_fault_beside_page_locked_memory_is_told_with_the_way_out";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        let mut block = std::ptr::null_mut();
        let alloc = cu!(cuda, cuMemAllocHost_v2(&mut block => *mut *mut c_void, 64 => usize));
        assert_eq!(alloc, 0);
        assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
        assert_eq!(cuda.synchronize(), CuResult::ILLEGAL_ADDRESS.0);
        return;
    }
    let said = guest::start(name, &faulting()).success().stderr;
    let way_out = "call cuMemHostGetDevicePointer (cudaHostGetDevicePointer) for it first";
    assert!(said.contains(way_out), "{said}");
}

#[test]
fn an_asynchronous_error_that_is_no_device_fault_is_told_too() {
    let name = "an_asynchronous_error_that_is_no_device_fault_is_told_too";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
        assert_eq!(cuda.synchronize(), CuResult::OPERATING_SYSTEM.0);
        assert_eq!(cuda.synchronize(), 0);
        return;
    }
    let host = Host::scripted(|frame, link| {
        if matches!(frame.request, Request::LaunchKernel(_)) {
            let code = CuResult::OPERATING_SYSTEM;
            let text = vgpu_proto::codec::encode(&"no thread for a stream".to_owned());
            let text = text.expect("a text encodes");
            link.notice(Notice::AsyncError, frame.id, code, &text, &[]);
        }
        false
    });
    let said = guest::start(name, &host).success().stderr;
    let lines = lines(&said);
    assert!(
        lines.len() == 1 && lines[0].contains("no thread for a stream"),
        "{said}"
    );
}

#[test]
fn a_device_fault_is_told_once() {
    let name = "a_device_fault_is_told_once";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
        for _ in 0..3 {
            assert_eq!(cuda.synchronize(), CuResult::ILLEGAL_ADDRESS.0);
        }
        return;
    }
    let said = guest::start(name, &faulting()).success().stderr;
    let lines = lines(&said);
    assert!(lines.len() == 1, "{said}");
    assert!(lines[0].contains("start the program again"), "{said}");
    assert!(!lines[0].contains("page-locked"), "there is none: {said}");
    assert!(lines[0].contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{said}");
}

#[test]
fn hidden_devices_are_told() {
    let name = "hidden_devices_are_told";
    if let Some(cuda) = guest::enter(name) {
        for _ in 0..2 {
            assert_eq!(cu!(cuda, cuInit(0 => u32)), CuResult::NO_DEVICE.0);
        }
        return;
    }
    let host = Host::usual();
    let address = host.address();
    for hidden in ["", "7", "\x1b[2J"] {
        let environment = [
            ("VGPU_ADDRESS", address.as_str()),
            ("CUDA_VISIBLE_DEVICES", hidden),
        ];
        let said = guest::start_with(name, &environment).success().stderr;
        let lines = lines(&said);
        let expected =
            format!("vgpu: cuInit finds no device: CUDA_VISIBLE_DEVICES={hidden:?} hides");
        assert!(
            lines.len() == 1 && lines[0].starts_with(&expected),
            "{said}"
        );
    }
}

#[test]
fn a_level_that_is_none_is_told() {
    let name = "a_level_that_is_none_is_told";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        return;
    }
    let host = Host::usual();
    let address = host.address();
    for (level, told) in [("verbose", 1), ("\x1b[31m", 1), ("error", 0), ("", 0)] {
        let environment = [("VGPU_ADDRESS", address.as_str()), ("VGPU_LOG", level)];
        let said = guest::start_with(name, &environment).success().stderr;
        let count = said.matches("vgpu: VGPU_LOG=").count();
        assert_eq!(count, told, "{level}: {said}");
        assert!(!said.contains('\x1b'), "{said:?}");
    }
}

#[test]
fn an_address_that_is_no_text_is_not_the_default() {
    let name = "an_address_that_is_no_text_is_not_the_default";
    if let Some(cuda) = guest::enter(name) {
        // SAFETY: no other thread reads the environment.
        unsafe { std::env::set_var("VGPU_ADDRESS", std::ffi::OsStr::from_bytes(b"unix:/\xff")) };
        assert_eq!(cu!(cuda, cuInit(0 => u32)), CuResult::INVALID_VALUE.0);
        return;
    }
    let said = guest::start_with(name, &[]).success().stderr;
    assert!(said.contains("vsock:CID:PORT"), "{said}");
}
