//! The log buffers of a load and of a link hold a terminated text after success and failure.

mod common;

use std::ffi::c_void;

use common::guest::{self, Cuda};
use common::host::Host;
use vgpu_proto::call::Request;
use vgpu_proto::cuda::CuResult;

/// `CU_JIT_INFO_LOG_BUFFER`, `_SIZE_BYTES`, `CU_JIT_ERROR_LOG_BUFFER`, `_SIZE_BYTES`.
const NAMES: [u32; 4] = [3, 4, 5, 6];

const BYTES: usize = 64;

/// Two log buffers with arbitrary content, and the values of the options.
struct Logs {
    info: Box<[u8; BYTES]>,
    error: Box<[u8; BYTES]>,
    values: Box<[*mut c_void; 4]>,
}

impl Logs {
    fn new() -> Logs {
        let (mut info, mut error) = (Box::new([b'x'; BYTES]), Box::new([b'x'; BYTES]));
        let (size, at) = (BYTES as *mut c_void, error.as_mut_ptr().cast());
        let values = Box::new([info.as_mut_ptr().cast(), size, at, size]);
        Logs {
            info,
            error,
            values,
        }
    }

    /// The texts; empty if a buffer begins with NUL.
    fn texts(&self) -> [String; 2] {
        [&self.info, &self.error].map(|log| {
            let end = log.iter().position(|byte| *byte == 0);
            let text = &log[..end.expect("a NUL in the buffer")];
            String::from_utf8_lossy(text).into_owned()
        })
    }
}

fn load(cuda: &Cuda, logs: &mut Logs) -> u32 {
    let mut module = 0;
    let image = c".version 8.0\n.target sm_80\n".as_ptr().cast::<c_void>();
    cu!(cuda, cuModuleLoadDataEx(
        &mut module => *mut u64,
        image => *const c_void,
        4 => u32,
        NAMES.as_ptr() => *const u32,
        logs.values.as_mut_ptr() => *mut *mut c_void,
    ))
}

#[test]
fn a_link_has_terminated_logs_from_its_creation_on() {
    let name = "a_link_has_terminated_logs_from_its_creation_on";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let (mut link, mut logs) = (0, Logs::new());
        let created = cu!(cuda, cuLinkCreate_v2(
            4 => u32,
            NAMES.as_ptr() => *const u32,
            logs.values.as_mut_ptr() => *mut *mut c_void,
            &mut link => *mut u64,
        ));
        assert_eq!(created, 0);
        assert_eq!(logs.texts(), ["", ""]);
        assert_eq!(cu!(cuda, cuLinkDestroy(link => u64)), 0);
        return;
    }
    guest::start(name, &Host::usual()).success();
}

#[test]
fn a_load_whose_image_the_host_does_not_take_has_terminated_logs() {
    let name = "a_load_whose_image_the_host_does_not_take_has_terminated_logs";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let mut logs = Logs::new();
        assert_eq!(load(&cuda, &mut logs), CuResult::INVALID_IMAGE.0);
        let [info, error] = logs.texts();
        assert_eq!(info, "");
        assert!(error.starts_with("the image is empty, damaged"), "{error}");
        return;
    }
    let host = Host::scripted(|frame, link| {
        let query = matches!(frame.request, Request::ImageQuery(_));
        if query {
            link.status(frame, CuResult::INVALID_IMAGE);
        }
        query
    });
    let said = guest::start(name, &host).success().stderr;
    assert!(
        said.contains("cuModuleLoadDataEx: the image is empty"),
        "{said}"
    );
}
