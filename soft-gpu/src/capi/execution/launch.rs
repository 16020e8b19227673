//! Launches.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, StreamArg};
use vgpu_cuda_abi::numbers::launch_extra;
use vgpu_cuda_abi::structs::LaunchConfig;

use crate::capi::StreamOf as _;
use crate::driver::error::Result;
use crate::driver::launch::{Shape, submit};
use crate::driver::module::{self, Function};

/// Keys of the `extra` array.
const PARAM_BUFFER: usize = launch_extra::BUFFER_POINTER_AS_INT as usize;
const PARAM_SIZE: usize = launch_extra::BUFFER_SIZE_AS_INT as usize;

/// Builds the parameter block from an array with one pointer per parameter.
fn gather(f: &Function, params: In<In<u8>>) -> Result<Vec<u8>> {
    let mut block = vec![0; f.info.param_bytes];
    for (i, (offset, size)) in f.info.params.iter().enumerate() {
        let from = params.at(i)?;
        from.check()?;
        // SAFETY: CUDA's contract: each pointer points to a value of the parameter's size.
        block[*offset..offset + size]
            .copy_from_slice(unsafe { std::slice::from_raw_parts(from.pointer(), *size) });
    }
    Ok(block)
}

/// Builds the parameter block from an `extra` array.
fn unpack(f: &Function, extra: In<In<c_void>>) -> Result<Vec<u8>> {
    let (mut buffer, mut size) = (In::NULL, In::NULL);
    let mut i = 0;
    loop {
        match extra.at(i)?.pointer() as usize {
            0 => break,
            PARAM_BUFFER => buffer = extra.at(i + 1)?,
            PARAM_SIZE => size = extra.at(i + 1)?,
            _ => return Err(CuResult::INVALID_VALUE),
        }
        i += 2;
    }
    let size = size.of::<usize>().get()?;
    let wanted = f.info.param_bytes;
    // The buffer may lack the padding behind the last parameter, but not a part of that parameter.
    let needed = f.info.params.iter().map(|(o, s)| o + s).max().unwrap_or(0);
    if size < needed || (buffer.is_null() && needed > 0) {
        return Err(CuResult::INVALID_VALUE);
    }
    let mut block = vec![0; wanted];
    let n = size.min(wanted);
    if n > 0 {
        // SAFETY: CUDA's contract: the buffer has the given size.
        block[..n]
            .copy_from_slice(unsafe { std::slice::from_raw_parts(buffer.pointer().cast(), n) });
    }
    Ok(block)
}

/// Builds the parameter block of a launch from either form of the arguments.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: parameters missing or given twice.
pub fn parameters(f: &Function, params: In<In<u8>>, extra: In<In<c_void>>) -> Result<Vec<u8>> {
    match (params.is_null(), extra.is_null()) {
        (_, true) if f.info.params.is_empty() => Ok(vec![0; f.info.param_bytes]),
        (false, true) => gather(f, params),
        (true, false) => unpack(f, extra),
        // The program gave neither form, or both.
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn launch(
    handle: u64,
    shape: Shape,
    stream: StreamArg,
    params: In<In<u8>>,
    extra: In<In<c_void>>,
    default: DefaultStream,
) -> Result {
    let stream = stream.get(default)?;
    let f = module::function(handle)?;
    let params = parameters(&f, params, extra)?;
    submit(f, handle, shape, params, &stream)
}

#[allow(clippy::too_many_arguments)]
fn plain(
    f: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: StreamArg,
    params: In<In<u8>>,
    extra: In<In<c_void>>,
    default: DefaultStream,
) -> Result {
    let shape = Shape::new([gx, gy, gz], [bx, by, bz], shared);
    launch(f, shape, stream, params, extra, default)
}

#[allow(clippy::too_many_arguments)]
fn cooperative(
    f: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: StreamArg,
    params: In<In<u8>>,
    default: DefaultStream,
) -> Result {
    let shape = Shape {
        cooperative: true,
        ..Shape::new([gx, gy, gz], [bx, by, bz], shared)
    };
    launch(f, shape, stream, params, In::NULL, default)
}

/// Whether the launch attributes make the launch cooperative.
///
/// # Errors
/// CUDA_ERROR_INVALID_CLUSTER_SIZE for clusters; CUDA_ERROR_NOT_SUPPORTED for events that are
/// recorded inside launches.
pub fn cooperative_attribute(config: &LaunchConfig) -> Result<bool> {
    let mut cooperative = false;
    for i in 0..config.count as usize {
        let a = config.attributes.at(i)?;
        match a.id {
            2 => cooperative = a.value[0] != 0,
            // Clusters exist since compute capability 9.0. One block per cluster means no clusters.
            4 if a.value[..3] != [1, 1, 1] => return Err(CuResult::INVALID_CLUSTER_SIZE),
            // Events that are recorded inside a launch (PROGRAMMATIC_EVENT and
            // LAUNCH_COMPLETION_EVENT).
            7 | 12 => return Err(CuResult::NOT_SUPPORTED),
            // Hints without effect on the results.
            0..=18 => {}
            _ => return Err(CuResult::INVALID_VALUE),
        }
    }
    Ok(cooperative)
}

fn extended(
    config: In<LaunchConfig>,
    f: u64,
    params: In<In<u8>>,
    extra: In<In<c_void>>,
    default: DefaultStream,
) -> Result {
    let c = config.get()?;
    let cooperative = cooperative_attribute(&c)?;
    let shape = Shape {
        cooperative,
        ..Shape::new(c.grid, c.block, c.shared)
    };
    launch(f, shape, c.stream, params, extra, default)
}

exports! {
    fn cuLaunchKernel / cuLaunchKernel_ptsz [default] (f: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: StreamArg, params: In<In<u8>>, extra: In<In<c_void>>) {
        plain(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra, default)
    }

    fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz [default] (f: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: StreamArg, params: In<In<u8>>) {
        cooperative(f, gx, gy, gz, bx, by, bz, shared, stream, params, default)
    }

    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz [default] (config: In<LaunchConfig>, f: u64, params: In<In<u8>>, extra: In<In<c_void>>) {
        extended(config, f, params, extra, default)
    }
}
