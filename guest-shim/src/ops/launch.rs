//! Kernel launches. A launch is checked against the device and the function, then sent without
//! waiting.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In};
use vgpu_cuda_abi::numbers::{device_attribute, function_attribute as attribute, launch_extra};
use vgpu_proto::call::{Cluster, OWN_CLUSTER, req};

use crate::state::contexts::Context;
use crate::state::current::live;
use crate::state::devices::Device;
use crate::state::graphs::{KernelNode, Kind};
use crate::state::libraries::function_in;
use crate::state::modules::FunctionInfo;
use crate::state::streams::{Target, resolve};
use crate::state::{Shim, capture};
use crate::{Cu, unserved};

/// Markers in the `extra` list of a launch.
const EXTRA_END: usize = launch_extra::END_AS_INT as usize;
const EXTRA_BUFFER: usize = launch_extra::BUFFER_POINTER_AS_INT as usize;
const EXTRA_SIZE: usize = launch_extra::BUFFER_SIZE_AS_INT as usize;

/// Size and shape of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) cooperative: bool,
    pub(crate) cluster: Cluster,
}

/// The parameters of a launch, in the two forms in which a program passes them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Params {
    pub(crate) pointers: In<In<u8>>,
    pub(crate) extra: In<In<c_void>>,
}

pub(crate) fn launch(
    handle: u64,
    shape: Shape,
    stream: u64,
    mode: DefaultStream,
    params: Params,
) -> Cu {
    let shim = live()?;
    let target = resolve(shim, stream, mode)?;
    let function = function_in(shim, handle, &target.ctx)?;
    if function.ctx != target.ctx() {
        return Err(CuResult::INVALID_HANDLE);
    }
    let device = shim.devices.get(function.device)?;
    shape.check(device, &function)?;
    let source = Source::of(&function, params)?;
    let named = shim.reach_named(source.words(function.params_len))?;
    if shape.cooperative {
        shape.check_fits_at_once(shim, device, &function)?;
    }
    if shim.captures.any() {
        let make = || {
            let node = node_of(handle, &function, shape, &source);
            Ok(Kind::Kernel(Arc::new(node)))
        };
        if capture::take(shim, &target, make)? {
            return Ok(());
        }
    }
    let _work = target.order(shim, named.reach(function.direct))?;
    let call = req::LaunchKernel {
        ctx: target.ctx(),
        stream: target.stream,
        func: function.handle,
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        cooperative: shape.cooperative,
        cluster: shape.cluster,
    };
    shim.session.post_with(&call, function.params_len, |block| {
        source.pack(block);
    })
}

fn node_of(
    handle: u64,
    function: &Arc<FunctionInfo>,
    shape: Shape,
    source: &Source<'_>,
) -> KernelNode {
    let mut params = vec![0; function.params_len];
    source.pack(&mut params);
    KernelNode {
        handle,
        function: function.clone(),
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        cooperative: shape.cooperative,
        cluster: shape.cluster,
        params,
        pointers: Vec::new(),
    }
    .point()
}

/// Checks the parameters of a launch and makes the work of a kernel node from the parameters.
pub(crate) fn node(
    shim: &Shim,
    context: &Context,
    handle: u64,
    (grid, block, shared): ([u32; 3], [u32; 3], u32),
    (pointers, extra): (In<In<u8>>, In<In<c_void>>),
) -> Cu<KernelNode> {
    let function = function_in(shim, handle, context)?;
    let shape = Shape {
        grid,
        block,
        shared,
        cooperative: false,
        cluster: OWN_CLUSTER,
    };
    shape.check(shim.devices.get(function.device)?, &function)?;
    let source = Source::of(&function, Params { pointers, extra })?;
    Ok(node_of(handle, &function, shape, &source))
}

/// Runs the launch of a graph node in a stream or a recording.
pub(crate) fn again(shim: &Shim, target: &Target, node: &KernelNode) -> Cu {
    if node.function.ctx != target.ctx() {
        return Err(CuResult::INVALID_HANDLE);
    }
    let words = node
        .params
        .chunks_exact(8)
        .filter_map(|word| word.first_chunk());
    shim.reach_named(words.map(|word| u64::from_ne_bytes(*word)))?;
    let call = req::LaunchKernel {
        ctx: target.ctx(),
        stream: target.stream,
        func: node.function.handle,
        grid: node.grid,
        block: node.block,
        shared: node.shared,
        cooperative: node.cooperative,
        cluster: node.cluster,
    };
    shim.session.post_with(&call, node.params.len(), |block| {
        block.copy_from_slice(&node.params);
    })
}

/// Checks clusters of a launch. `form` names the call in the message about devices without
/// clusters.
pub(crate) fn check_clusters(
    form: &'static str,
    function: &FunctionInfo,
    device: &Device,
    (grid, cluster): ([u32; 3], Cluster),
) -> Cu {
    match function.check_clusters(device, grid, cluster) {
        Err(CuResult::NOT_SUPPORTED) => Err(unserved::refuse(form, unserved::CLUSTERS)),
        checked => checked,
    }
}

impl Shape {
    fn check(&self, device: &Device, function: &FunctionInfo) -> Cu {
        let within = |size: &[u32; 3], limit: &[u32; 3]| {
            size.iter()
                .zip(limit)
                .all(|(n, max)| (1..=*max).contains(n))
        };
        if !within(&self.grid, &device.max_grid) || !within(&self.block, &device.max_block) {
            return Err(CuResult::INVALID_VALUE);
        }
        // At most 1024 * 1024 * 64 by the limits checked above, so the product does not overflow.
        let threads: u64 = self.block.iter().map(|n| u64::from(*n)).product();
        if threads > u64::from(device.max_threads) {
            return Err(CuResult::INVALID_VALUE);
        }
        let limit = |id| function.attribute(id).map_or(u64::MAX, |n| n.max(0) as u64);
        // A block with more threads than the kernel was compiled for fails like a block beyond the
        // device's limit.
        if threads > limit(attribute::MAX_THREADS_PER_BLOCK) {
            return Err(CuResult::INVALID_VALUE);
        }
        if u64::from(self.shared) > limit(attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES) {
            return Err(CuResult::INVALID_VALUE);
        }
        let form = "cuLaunchKernelEx with clusters of more than one block";
        check_clusters(form, function, device, (self.grid, self.cluster))
    }

    /// Checks that all blocks of a cooperative launch can run at once.
    fn check_fits_at_once(&self, shim: &Shim, device: &Device, function: &FunctionInfo) -> Cu {
        let threads = self.block.iter().product::<u32>() as i32;
        let blocks = function
            .blocks(shim, threads, self.shared.into(), 0)?
            .max(0) as u64;
        let processors = device
            .attribute(device_attribute::MULTIPROCESSOR_COUNT)?
            .max(0) as u64;
        let wanted = self
            .grid
            .iter()
            .fold(1_u64, |all, n| all.saturating_mul((*n).into()));
        if wanted > blocks * processors {
            return Err(CuResult::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(())
    }
}

/// Where the parameters come from.
enum Source<'a> {
    Nothing,
    /// Offset and size of each parameter in the parameter block, and the program's array of
    /// pointers to the parameters, none of which is null.
    Pointers(&'a [(u32, u32)], In<In<u8>>),
    /// A buffer with the whole parameter block.
    Buffer(In<u8>),
}

impl Source<'_> {
    fn of(function: &FunctionInfo, params: Params) -> Cu<Source<'_>> {
        if !params.pointers.is_null() && !params.extra.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        if function.params.is_empty() {
            return Ok(Source::Nothing);
        }
        if !params.pointers.is_null() {
            for i in 0..function.params.len() {
                params.pointers.at(i)?.check()?;
            }
            return Ok(Source::Pointers(&function.params, params.pointers));
        }
        let (buffer, size) = extra(params.extra)?;
        if size < function.params_len {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(Source::Buffer(buffer))
    }

    /// The address of each parameter, and the parameter's range in the parameter block of `len`
    /// bytes.
    fn pieces(&self, len: usize) -> impl Iterator<Item = (In<u8>, Range<usize>)> {
        let (layout, pointers, buffer) = match self {
            Source::Nothing => (&[][..], In::NULL, None),
            Source::Pointers(layout, pointers) => (*layout, *pointers, None),
            Source::Buffer(buffer) => (&[][..], In::NULL, Some(*buffer)),
        };
        let parameters = layout
            .iter()
            .enumerate()
            .filter_map(move |(i, (at, size))| {
                let at = *at as usize;
                Some((pointers.at(i).ok()?, at..at + *size as usize))
            });
        parameters.chain(buffer.map(|buffer| (buffer, 0..len)))
    }

    /// The aligned 8-byte words in the parameter block of `len` bytes, each of which may be an
    /// address.
    fn words(&self, len: usize) -> impl Iterator<Item = u64> {
        self.pieces(len).flat_map(|(from, place)| {
            let words = from.pointer().cast::<u64>();
            (0..place.len() / 8).map(move |word| {
                // SAFETY: a parameter of that size, by the contract of the CUDA function.
                unsafe { words.add(word).read_unaligned() }
            })
        })
    }

    /// Fills the parameter block; the gaps between parameters stay zero.
    fn pack(&self, block: &mut [u8]) {
        for (from, place) in self.pieces(block.len()) {
            let (to, len) = (block[place.clone()].as_mut_ptr(), place.len());
            // SAFETY: a parameter of that size, by the contract of the CUDA function.
            unsafe { to.copy_from(from.pointer(), len) };
        }
    }
}

/// (buffer, size) of an `extra` list, which ends with `CU_LAUNCH_PARAM_END`.
pub(crate) fn extra(list: In<In<c_void>>) -> Cu<(In<u8>, usize)> {
    const MOST: usize = 8;
    let (mut buffer, mut size) = (In::NULL, None);
    for i in 0..MOST {
        let marker = list.at(2 * i)?.pointer() as usize;
        if marker == EXTRA_END {
            break;
        }
        let value = list.at(2 * i + 1)?;
        match marker {
            EXTRA_BUFFER => buffer = value.of(),
            EXTRA_SIZE => size = Some(value.of::<usize>().get()?),
            _ => return Err(CuResult::INVALID_VALUE),
        }
    }
    match (buffer.is_null(), size) {
        (false, Some(size)) => Ok((buffer, size)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}
