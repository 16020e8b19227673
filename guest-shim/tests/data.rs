//! Tests that the requests for copies, memory, modules and launches match the program's calls.

mod common;

use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_int, c_void};

use common::guest;
use common::host::{FUNC, Host, MODULE};
use vgpu_proto::call::{Request, rep, req};
use vgpu_proto::cuda::{CuResult, Module};
use vgpu_proto::limits::{COPY_PIECE, MAX_BULK};

#[test]
fn copies_of_every_size_there_and_back() {
    let name = "copies_of_every_size_there_and_back";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let most = 5 * MAX_BULK + 7;
        let device = cuda.alloc(most);
        let source: Vec<u8> = (0..most).map(|i| (i * 7 % 253) as u8).collect();
        for len in [
            0,
            1,
            31,
            4096,
            8192,
            8193,
            16_384,
            COPY_PIECE,
            COPY_PIECE + 1,
            MAX_BULK,
            MAX_BULK + 1,
            most,
        ] {
            assert_eq!(cuda.to_device(device, &source[..len]), 0);
            let mut back = vec![0; len];
            assert_eq!(cuda.to_host(&mut back, device), 0);
            assert!(back == source[..len], "{len}");
        }
        // The direction follows from the addresses.
        let (to, from) = (device, source.as_ptr() as u64);
        assert_eq!(cu!(cuda, cuMemcpy(to => u64, from => u64, 5 => usize)), 0);
        let mut back = [0_u8; 5];
        let to = back.as_mut_ptr() as u64;
        assert_eq!(cu!(cuda, cuMemcpy(to => u64, device => u64, 5 => usize)), 0);
        assert_eq!(back, source[..5]);
        assert_eq!(
            cu!(cuda, cuMemcpy(to => u64, from + 5 => u64, 5 => usize)),
            0
        );
        assert_eq!(back, source[5..10], "host to host");
        return;
    }
    guest::start(name, &Host::usual()).success();
}

#[test]
fn unreadable_memory_is_an_error_and_the_session_goes_on() {
    let name = "unreadable_memory_is_an_error_and_the_session_goes_on";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let len = 1 << 20;
        let device = cuda.alloc(len);
        // SAFETY: a new mapping of the test, of which one half is not readable.
        let half = unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(
                libc::mprotect(at.byte_add(len / 2), len / 2, libc::PROT_NONE),
                0
            );
            at.cast_const()
        };
        let copy = cu!(cuda, cuMemcpyHtoD_v2(device => u64, half => *const c_void, len => usize));
        assert_eq!(copy, CuResult::INVALID_VALUE.0);
        assert_eq!(cuda.to_device(device, &[3; 64]), 0);
        let mut back = [0; 64];
        assert_eq!(cuda.to_host(&mut back, device), 0);
        assert_eq!(back, [3; 64]);
        return;
    }
    guest::start(name, &Host::usual()).success();
}

#[test]
fn an_image_travels_once() {
    let name = "an_image_travels_once";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let mut text = b".version 8.0\n".to_vec();
        text.resize(2 * MAX_BULK + 100, b' ');
        text.push(0);
        for _ in 0..2 {
            let (mut module, data) = (0, text.as_ptr().cast::<c_void>());
            let load = cu!(cuda, cuModuleLoadData(&mut module => *mut u64, data => *const c_void));
            assert_eq!((load, module), (0, MODULE));
        }
        // The same bytes from a file of the guest, without the NUL.
        let path = std::env::temp_dir().join(format!("vgpu-image-{}", std::process::id()));
        std::fs::write(&path, &text[..text.len() - 1]).expect("a file");
        let c_path = std::ffi::CString::new(path.to_str().expect("text")).expect("no NUL");
        let mut module = 0;
        let load =
            cu!(cuda, cuModuleLoad(&mut module => *mut u64, c_path.as_ptr() => *const c_char));
        std::fs::remove_file(&path).expect("the file");
        assert_eq!((load, module), (0, MODULE));
        let load =
            cu!(cuda, cuModuleLoad(&mut module => *mut u64, c_path.as_ptr() => *const c_char));
        assert_eq!(load, CuResult::FILE_NOT_FOUND.0);
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
    let frames = host.wait("loads", |_| true);
    let pieces: Vec<(u64, usize)> = frames
        .iter()
        .filter_map(|f| match &f.request {
            Request::ImageData(call) => Some((call.offset, f.bulk.len())),
            _ => None,
        })
        .collect();
    let piece = MAX_BULK as u64;
    assert_eq!(pieces, [(0, MAX_BULK), (piece, MAX_BULK), (2 * piece, 101)]);
    let mut image = Vec::new();
    for frame in &frames {
        if matches!(frame.request, Request::ImageData(_)) {
            image.extend_from_slice(&frame.bulk);
        }
    }
    let loads: Vec<_> = frames
        .iter()
        .filter_map(|f| match &f.request {
            Request::ModuleLoad(call) => Some((call.hash, call.len)),
            _ => None,
        })
        .collect();
    assert_eq!(loads.len(), 3);
    for (hash, len) in loads {
        assert_eq!(
            (&hash, len),
            (blake3::hash(&image).as_bytes(), image.len() as u64)
        );
    }
}

/// A host that drops images from its cache: each image after one load, and all images before the
/// first link.
fn forgetful() -> Host {
    let (mut images, mut whole, mut first_link) = (HashMap::new(), HashSet::new(), true);
    Host::scripted(move |frame, link| match &frame.request {
        Request::ImageData(call) => {
            let sent: &mut Vec<u8> = images.entry(call.hash).or_default();
            sent.truncate(call.offset as usize);
            sent.extend_from_slice(&frame.bulk);
            if blake3::hash(sent).as_bytes() == &call.hash {
                whole.insert(call.hash);
            }
            false
        }
        Request::ModuleLoad(call) if !whole.remove(&call.hash) => {
            link.status(frame, CuResult::FILE_NOT_FOUND);
            true
        }
        Request::Link(call) => {
            let had = call.inputs.iter().all(|input| whole.remove(&input.hash));
            let lost = std::mem::take(&mut first_link) || !had;
            let (lost_it, verdict) = (CuResult::FILE_NOT_FOUND, CuResult::INVALID_PTX);
            link.status(frame, if lost { lost_it } else { verdict });
            true
        }
        _ => false,
    })
}

#[test]
fn an_image_that_the_host_has_lost_is_sent_again() {
    let name = "an_image_that_the_host_has_lost_is_sent_again";
    if let Some(cuda) = guest::enter(name) {
        assert_eq!(cu!(cuda, cuInit(0 => u32)), 0);
        // A library needs no context, and its bytes may be freed after the load.
        let mut text = b".version 8.0 // a library\0".to_vec();
        let mut library = 0;
        let (none, no_values) = (std::ptr::null::<u32>(), std::ptr::null_mut::<*mut c_void>());
        let mut load = |bytes: &mut [u8]| {
            cu!(cuda, cuLibraryLoadData(
                &mut library => *mut u64,
                bytes.as_ptr().cast() => *const c_void,
                none => *const u32, no_values => *mut *mut c_void, 0 => u32,
                none => *const u32, no_values => *mut *mut c_void, 0 => u32,
            ))
        };
        assert_eq!(load(&mut text), 0);
        text.fill(b'x');
        cuda.begin();
        let data = c".version 8.0".as_ptr().cast::<c_void>();
        for _ in 0..3 {
            let mut module = 0;
            let load = cu!(cuda, cuModuleLoadData(&mut module => *mut u64, data => *const c_void));
            assert_eq!((load, module), (0, MODULE));
        }
        // This load uses up the image with which the library was loaded.
        let data = c".version 8.0 // a library".as_ptr().cast::<c_void>();
        let mut module = 0;
        let load = cu!(cuda, cuModuleLoadData(&mut module => *mut u64, data => *const c_void));
        assert_eq!(load, 0);
        let (mut kernel, kernel_name) = (0, c"kernel".as_ptr());
        let found = cu!(cuda, cuLibraryGetKernel(
            &mut kernel => *mut u64, library => u64, kernel_name => *const c_char
        ));
        assert_eq!(found, 0);
        // Inputs of a link may be freed too.
        let (mut state, mut text) = (0_u64, b".version 8.0 // an input".to_vec());
        let create = cu!(cuda, cuLinkCreate_v2(
            0 => u32, none => *const u32, no_values => *mut *mut c_void, &mut state => *mut u64
        ));
        assert_eq!(create, 0);
        for _ in 0..2 {
            let add = cu!(cuda, cuLinkAddData_v2(
                state => u64, 1 => u32, text.as_mut_ptr().cast() => *mut c_void, text.len() => usize,
                std::ptr::null() => *const c_char, 0 => u32, none => *const u32,
                no_values => *mut *mut c_void
            ));
            assert_eq!(add, 0);
            text.push(b'!');
        }
        text.fill(b'x');
        let (mut out, mut size) = (std::ptr::null_mut::<c_void>(), 0_usize);
        let complete = cu!(cuda, cuLinkComplete(
            state => u64, &mut out => *mut *mut c_void, &mut size => *mut usize
        ));
        assert_eq!(complete, CuResult::INVALID_PTX.0, "the linker's own word");
        return;
    }
    let host = forgetful();
    guest::start(name, &host).success();
}

#[test]
fn jit_logs_come_back_also_when_the_load_fails() {
    let name = "jit_logs_come_back_also_when_the_load_fails";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let (mut module, mut log) = (0_u64, [0_u8; 64]);
        let names = [5_u32, 6, 7];
        let mut values = [
            log.as_mut_ptr().cast::<c_void>(),
            64 as *mut c_void,
            2 as *mut c_void,
        ];
        let data = c".version 8.0\nnonsense".as_ptr().cast::<c_void>();
        let load = cu!(cuda, cuModuleLoadDataEx(
            &mut module => *mut u64,
            data => *const c_void,
            3 => u32,
            names.as_ptr() => *const u32,
            values.as_mut_ptr() => *mut *mut c_void,
        ));
        assert_eq!(load, CuResult::INVALID_PTX.0);
        assert!(log.starts_with(b"line 2: nonsense\0"));
        assert_eq!(values[1] as usize, 16);
        return;
    }
    let host = Host::scripted(|frame, link| match &frame.request {
        Request::ModuleLoad(call) => {
            assert_eq!(&call.options[..], &[(7, 2)][..]);
            // The library requests at least this many bytes for its own log line, whatever the size
            // of the program's buffer.
            assert!(call.error_log_len >= 1024);
            let reply = rep::ModuleLoad {
                module: Module(0),
                info_log: Vec::new(),
                error_log: b"line 2: nonsense".to_vec(),
            };
            link.reply::<req::ModuleLoad>(frame, CuResult::INVALID_PTX, &reply);
            true
        }
        _ => false,
    });
    let said = guest::start(name, &host).success().stderr;
    let line = "vgpu: cuModuleLoadDataEx: line 2: nonsense [CUDA_ERROR_INVALID_PTX";
    assert!(said.contains(line), "{said}");
}

#[test]
fn parameters_are_packed_by_the_driver_s_layout() {
    let name = "parameters_are_packed_by_the_driver_s_layout";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        assert_eq!(function, FUNC);
        assert_eq!(cuda.kernel(), FUNC);
        assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
        // The same parameters through `extra`, in a longer buffer than needed.
        let block: Vec<u8> = (1..=32).collect();
        let size = block.len();
        let extra: [*const c_void; 5] = [
            std::ptr::without_provenance(1),
            block.as_ptr().cast(),
            std::ptr::without_provenance(2),
            (&raw const size).cast(),
            std::ptr::null(),
        ];
        let launch: guest::Launch = cuda.symbol("cuLaunchKernel");
        let none = std::ptr::null();
        // SAFETY: the type is that of `cuda.h`; the arguments are live.
        let code = unsafe { launch(function, 1, 1, 1, 1, 1, 1, 0, 0, none, extra.as_ptr()) };
        assert_eq!(code, 0);
        // Neither form, both forms, or a short buffer: refused.
        let invalid = CuResult::INVALID_VALUE.0;
        // SAFETY: as above.
        let neither = unsafe { launch(function, 1, 1, 1, 1, 1, 1, 0, 0, none, none) };
        assert_eq!(neither, invalid);
        // SAFETY: as above.
        let both = unsafe {
            launch(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                0,
                extra.as_ptr(),
                extra.as_ptr(),
            )
        };
        assert_eq!(both, invalid);
        let (mut offset, mut len) = (0_usize, 0_usize);
        let third = cu!(cuda, cuFuncGetParamInfo(
            function => u64,
            2 => usize,
            &mut offset => *mut usize,
            &mut len => *mut usize,
        ));
        assert_eq!((third, offset, len), (0, 16, 8));
        let mut threads = 0;
        let get =
            cu!(cuda, cuFuncGetAttribute(&mut threads => *mut c_int, 0 => u32, function => u64));
        assert_eq!((get, threads), (0, 512));
        assert_eq!(cuda.synchronize(), 0);
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
    let frames = host.wait("frames", |_| true);
    let blocks: Vec<&[u8]> = frames
        .iter()
        .filter(|f| matches!(f.request, Request::LaunchKernel(_)))
        .map(|f| f.bulk.as_slice())
        .collect();
    let mut packed = [0_u8; 24];
    (packed[0], packed[8], packed[16]) = (1, 2, 3);
    let extra: Vec<u8> = (1..=24).collect();
    assert_eq!(blocks, [&packed[..], &extra]);
    let asked = frames
        .iter()
        .filter(|f| matches!(f.request, Request::ModuleGetFunction(_)));
    assert_eq!(
        asked.count(),
        2,
        "once a module; attributes and layout came with it"
    );
}

#[test]
fn what_an_address_is() {
    let name = "what_an_address_is";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let device = cuda.alloc(1000);
        let get = |attribute: u32, address: u64| {
            let mut value = 0_u64;
            let code = cu!(cuda, cuPointerGetAttribute(
                (&raw mut value).cast() => *mut c_void,
                attribute => u32,
                address => u64,
            ));
            (code, value)
        };
        assert_eq!(get(2, device + 999), (0, 2), "device memory");
        assert_eq!(get(11, device + 5), (0, device));
        assert_eq!(get(12, device + 5), (0, 1000));
        assert_eq!(get(2, device + 1000).0, CuResult::INVALID_VALUE.0);
        let mut pinned = std::ptr::null_mut::<c_void>();
        let alloc = cu!(cuda, cuMemAllocHost_v2(&mut pinned => *mut *mut c_void, 100 => usize));
        assert_eq!(alloc, 0);
        assert_eq!(get(2, pinned as u64 + 50), (0, 1), "host memory");
        let (mut base, mut size) = (0, 0);
        let range = cu!(cuda, cuMemGetAddressRange_v2(
            &mut base => *mut u64,
            &mut size => *mut usize,
            device + 7 => u64,
        ));
        assert_eq!((range, base, size), (0, device, 1000));
        let mut kind = 9_u32;
        let data = [(&raw mut kind).cast::<c_void>()];
        let mine = cu!(cuda, cuPointerGetAttributes(
            1 => u32,
            [2_u32].as_ptr() => *const u32,
            data.as_ptr() => *const *mut c_void,
            &raw const base as u64 => u64,
        ));
        assert_eq!((mine, kind), (0, 0), "memory that CUDA does not know");
        return;
    }
    guest::start(name, &Host::usual()).success();
}

#[test]
fn contexts_are_a_stack_of_each_thread() {
    let name = "contexts_are_a_stack_of_each_thread";
    if let Some(cuda) = guest::enter(name) {
        assert_eq!(cu!(cuda, cuInit(0 => u32)), 0);
        let current = || {
            let mut ctx = 0_u64;
            assert_eq!(cu!(cuda, cuCtxGetCurrent(&mut ctx => *mut u64)), 0);
            ctx
        };
        assert_eq!(current(), 0);
        assert_eq!(cuda.synchronize(), CuResult::INVALID_CONTEXT.0);
        let mut ctx = 0;
        let create = cu!(cuda, cuCtxCreate_v2(&mut ctx => *mut u64, 0 => u32, 0 => c_int));
        assert_eq!((create, current()), (0, ctx));
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(current(), 0, "another thread has its own"));
        });
        let mut popped = 0;
        assert_eq!(cu!(cuda, cuCtxPopCurrent_v2(&mut popped => *mut u64)), 0);
        assert_eq!((popped, current()), (ctx, 0));
        let empty = cu!(cuda, cuCtxPopCurrent_v2(&mut popped => *mut u64));
        assert_eq!(empty, CuResult::INVALID_CONTEXT.0);
        assert_eq!(cu!(cuda, cuCtxPushCurrent_v2(ctx => u64)), 0);
        let wrong = cu!(cuda, cuCtxPushCurrent_v2(ctx + 77 => u64));
        assert_eq!(wrong, CuResult::INVALID_CONTEXT.0);
        let other_stack = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    assert_eq!(cu!(cuda, cuCtxSetCurrent(ctx => u64)), 0);
                    // The other thread destroys the context meanwhile.
                    guest::wait_for_go();
                    cuda.synchronize()
                })
                .join()
        });
        assert_eq!(other_stack.expect("no panic"), 0);
        let stream = cuda.stream(0);
        assert_eq!(cu!(cuda, cuCtxDestroy_v2(ctx => u64)), 0);
        assert_eq!(current(), 0, "popped where it was current");
        let gone = cu!(cuda, cuStreamQuery(stream => u64));
        assert_eq!(gone, CuResult::INVALID_HANDLE.0, "its streams go with it");
        return;
    }
    let host = Host::usual();
    let mut guest = guest::start(name, &host);
    guest.go();
    guest.success();
}
