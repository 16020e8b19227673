//! Tests that repeated queries of a program go to the host once, and again after a change.

mod common;

use std::ffi::c_int;

use common::guest::{self, Cuda};
use common::host::{Frame, Host};
use vgpu_proto::call::{Request, rep, req};
use vgpu_proto::cuda::CuResult;

/// Number of blocks of 64 threads that fit on a multiprocessor.
fn blocks(cuda: &Cuda, function: u64, shared: usize) -> c_int {
    let mut blocks = 0;
    let code = cu!(cuda, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        &mut blocks => *mut c_int,
        function => u64,
        64 => c_int,
        shared => usize,
        0 => u32,
    ));
    assert_eq!(code, 0);
    blocks
}

fn asked(frames: &[Frame]) -> usize {
    let of_blocks = |f: &&Frame| matches!(f.request, Request::OccupancyBlocks(_));
    frames.iter().filter(of_blocks).count()
}

/// A fake host that answers each query of occupancy with the next number.
fn counting() -> Host {
    let mut answers = 0;
    Host::scripted(move |frame, link| {
        if let Request::OccupancyBlocks(_) = frame.request {
            answers += 1;
            let reply = rep::OccupancyBlocks { blocks: answers };
            link.reply::<req::OccupancyBlocks>(frame, CuResult::SUCCESS, &reply);
            return true;
        }
        false
    })
}

#[test]
fn occupancy_is_asked_once_until_a_setting_changes() {
    let name = "occupancy_is_asked_once_until_a_setting_changes";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        for _ in 0..20 {
            assert_eq!(blocks(&cuda, function, 0), 1);
            assert_eq!(blocks(&cuda, function, 512), 2);
        }
        let set =
            |value| cu!(cuda, cuFuncSetAttribute(function => u64, 8 => c_int, value => c_int));
        assert_eq!(set(2048), 0);
        assert_eq!(blocks(&cuda, function, 0), 3);
        // Setting the same value again is no change.
        assert_eq!(set(2048), 0);
        assert_eq!(blocks(&cuda, function, 0), 3);
        assert_eq!(
            cu!(cuda, cuFuncSetCacheConfig(function => u64, 1 => u32)),
            0
        );
        assert_eq!(blocks(&cuda, function, 0), 4);
        assert_eq!(cu!(cuda, cuCtxSetCacheConfig(2 => u32)), 0);
        assert_eq!(blocks(&cuda, function, 0), 5);
        assert_eq!(blocks(&cuda, function, 0), 5);
        return;
    }
    let host = counting();
    guest::start(name, &host).success();
    let frames = host.wait("frames", |_| true);
    assert_eq!(asked(&frames), 5);
    let sets = |f: &&Frame| matches!(f.request, Request::FuncSetAttribute(_));
    assert_eq!(frames.iter().filter(sets).count(), 1);
}

#[test]
fn a_function_of_a_module_loaded_anew_is_asked_about_anew() {
    let name = "a_function_of_a_module_loaded_anew_is_asked_about_anew";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let first = cuda.kernel();
        assert_eq!(blocks(&cuda, first, 0), 1);
        let mut module = 0;
        assert_eq!(
            cu!(cuda, cuFuncGetModule(&mut module => *mut u64, first => u64)),
            0
        );
        assert_eq!(cu!(cuda, cuModuleUnload(module => u64)), 0);
        // The fake host's modules and functions all have the same handles.
        let second = cuda.kernel();
        assert_eq!(second, first);
        assert_eq!(blocks(&cuda, second, 0), 2);
        return;
    }
    guest::start(name, &counting()).success();
}

#[test]
fn an_attribute_that_the_driver_does_not_know_is_asked_for_once() {
    let name = "an_attribute_that_the_driver_does_not_know_is_asked_for_once";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        let mut value = 0;
        for _ in 0..20 {
            let newer =
                cu!(cuda, cuFuncGetAttribute(&mut value => *mut c_int, 16 => u32, function => u64));
            assert_eq!(newer, CuResult::INVALID_VALUE.0);
        }
        return;
    }
    let host = Host::scripted(|frame, link| {
        let asks = matches!(frame.request, Request::FuncGetAttribute(_));
        if asks {
            link.status(frame, CuResult::INVALID_VALUE);
        }
        asks
    });
    guest::start(name, &host).success();
    let frames = host.wait("frames", |_| true);
    let asks = |f: &&Frame| matches!(f.request, Request::FuncGetAttribute(_));
    assert_eq!(frames.iter().filter(asks).count(), 1);
}
