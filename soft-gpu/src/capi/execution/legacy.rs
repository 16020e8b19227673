//! Launches as before CUDA 4.0: the program first stores the block size, the shared memory and the
//! parameters of the next launch of a function, then launches the function.

use std::collections::BTreeMap;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, StreamArg};

use crate::capi::StreamOf as _;
use crate::driver::error::Result;
use crate::driver::launch::{Shape, submit};
use crate::driver::module;
use crate::driver::sync::lock;

/// Stored launch settings of a function.
#[derive(Clone, Default)]
struct Prepared {
    block: [u32; 3],
    shared: u32,
    params: Vec<u8>,
}

/// Launch settings by CUfunction.
static PREPARED: Mutex<BTreeMap<u64, Prepared>> = Mutex::new(BTreeMap::new());

/// Largest parameter block, in bytes.
const MOST: usize = 4096;

fn prepare(f: u64, change: impl FnOnce(&mut Prepared)) -> Result {
    module::function(f)?;
    let mut all = lock(&PREPARED);
    // Stored settings of unloaded functions are dropped here, so that the table stays bounded.
    if !all.contains_key(&f) {
        all.retain(|f, _| module::is_live(*f));
    }
    change(all.entry(f).or_default());
    Ok(())
}

fn put(f: u64, offset: i32, bytes: &[u8]) -> Result {
    let at = usize::try_from(offset).map_err(|_| CuResult::INVALID_VALUE)?;
    let end = at.checked_add(bytes.len()).filter(|end| *end <= MOST);
    let end = end.ok_or(CuResult::INVALID_VALUE)?;
    prepare(f, |p| {
        if p.params.len() < end {
            p.params.resize(end, 0);
        }
        p.params[at..end].copy_from_slice(bytes);
    })
}

fn launch(f: u64, width: i32, height: i32, stream: StreamArg) -> Result {
    let function = module::function(f)?;
    let prepared = lock(&PREPARED).get(&f).cloned().unwrap_or_default();
    let size = |n: i32| u32::try_from(n).map_err(|_| CuResult::INVALID_VALUE);
    let mut params = prepared.params;
    if params.len()
        < function
            .info
            .params
            .iter()
            .map(|(o, s)| o + s)
            .max()
            .unwrap_or(0)
    {
        return Err(CuResult::INVALID_VALUE);
    }
    params.resize(function.info.param_bytes, 0);
    let grid = [size(width)?, size(height)?, 1];
    let shape = Shape::new(grid, prepared.block, prepared.shared);
    submit(
        function,
        f,
        shape,
        params,
        &*stream.get(DefaultStream::Legacy)?,
    )
}

exports! {
    fn cuFuncSetBlockShape(f: u64, x: i32, y: i32, z: i32) {
        let block = [x, y, z].map(|n| u32::try_from(n).unwrap_or(0));
        if block.contains(&0) {
            return Err(CuResult::INVALID_VALUE);
        }
        prepare(f, |p| p.block = block)
    }

    fn cuFuncSetSharedSize(f: u64, bytes: u32) {
        prepare(f, |p| p.shared = bytes)
    }

    fn cuParamSetSize(f: u64, bytes: u32) {
        if bytes as usize > MOST {
            return Err(CuResult::INVALID_VALUE);
        }
        prepare(f, |p| p.params.resize(bytes as usize, 0))
    }

    fn cuParamSeti(f: u64, offset: i32, value: u32) {
        put(f, offset, &value.to_le_bytes())
    }

    fn cuParamSetf(f: u64, offset: i32, value: f32) {
        put(f, offset, &value.to_le_bytes())
    }

    fn cuParamSetv(f: u64, offset: i32, from: In<u8>, bytes: u32) {
        if from.is_null() || bytes as usize > MOST {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: CUDA's contract: `from` points to `bytes` bytes.
        let value = unsafe { std::slice::from_raw_parts(from.pointer(), bytes as usize) };
        put(f, offset, value)
    }

    fn cuLaunch(f: u64) {
        launch(f, 1, 1, StreamArg::DEFAULT)
    }

    fn cuLaunchGrid(f: u64, width: i32, height: i32) {
        launch(f, width, height, StreamArg::DEFAULT)
    }

    fn cuLaunchGridAsync(f: u64, width: i32, height: i32, stream: StreamArg) {
        launch(f, width, height, stream)
    }
}
