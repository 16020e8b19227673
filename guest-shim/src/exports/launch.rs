//! Kernel launches: checked here, forgotten once sent.

use std::ffi::c_void;
use std::sync::Arc;

use vgpu_proto::call::req;
use vgpu_proto::cuda::CuResult;

use crate::ffi::{DefaultStream, exports};
use crate::process::live;
use crate::state::contexts::Context;
use crate::state::devices::{Device, attribute as device_attribute};
use crate::state::graphs::{KernelNode, Kind};
use crate::state::libraries::function_in;
use crate::state::modules::{FunctionInfo, attribute};
use crate::state::streams::{Target, resolve};
use crate::state::{Shim, capture};
use crate::{Cu, unserved};

/// Markers in the `extra` list.
const EXTRA_END: usize = 0;
const EXTRA_BUFFER: usize = 1;
const EXTRA_SIZE: usize = 2;

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct Config {
    grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    stream: u64,
    pub(super) attributes: *const Attribute,
    pub(super) count: u32,
}

/// `CUlaunchAttribute`: its value is a union of 64 bytes.
#[repr(C)]
pub(crate) struct Attribute {
    pub(super) id: u32,
    pad: u32,
    pub(super) value: [u32; 16],
}

/// Size and shape of a launch.
#[derive(Debug, Clone, Copy)]
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    cooperative: bool,
}

/// The caller's two ways to pass parameters.
#[derive(Debug, Clone, Copy)]
struct Params {
    pointers: *const *const c_void,
    extra: *const *const c_void,
}

exports! {
    /// Launches.
    fn cuLaunchKernel / cuLaunchKernel_ptsz [mode] (
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: u64,
        params: *const *const c_void,
        extra: *const *const c_void
    ) {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared,
            cooperative: false,
        };
        // SAFETY: by the contract of the function.
        unsafe { launch(function, shape, stream, mode, Params { pointers: params, extra }) }
    }

    /// Launches with attributes.
    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz [mode] (
        config: *const Config,
        function: u64,
        params: *const *const c_void,
        extra: *const *const c_void
    ) {
        live()?;
        // SAFETY: by the contract of the function.
        let config = unsafe { config.as_ref() }.ok_or(CuResult::INVALID_VALUE)?;
        // SAFETY: by the contract of the function.
        let cooperative = unsafe { attributes(config) }?;
        let shape = Shape {
            grid: config.grid,
            block: config.block,
            shared: config.shared,
            cooperative,
        };
        // SAFETY: by the contract of the function.
        unsafe { launch(function, shape, config.stream, mode, Params { pointers: params, extra }) }
    }

    /// Launches blocks that may wait for each other.
    fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz [mode] (
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: u64,
        params: *const *const c_void
    ) {
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared,
            cooperative: true,
        };
        let params = Params { pointers: params, extra: std::ptr::null() };
        // SAFETY: by the contract of the function.
        unsafe { launch(function, shape, stream, mode, params) }
    }
}

/// Whether the launch is cooperative. Attributes that only advise are accepted and dropped; those
/// that change what a kernel computes or when events fire are refused.
///
/// # Safety
/// The list is as long as it says.
unsafe fn attributes(config: &Config) -> Cu<bool> {
    const COOPERATIVE: u32 = 2;
    const CLUSTER_DIMENSION: u32 = 4;
    const PREFERRED_CLUSTER_DIMENSION: u32 = 11;
    let mut cooperative = false;
    for i in 0..config.count as usize {
        if config.attributes.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by this function's contract.
        let attribute = unsafe { &*config.attributes.add(i) };
        match attribute.id {
            COOPERATIVE => cooperative = attribute.value[0] != 0,
            CLUSTER_DIMENSION | PREFERRED_CLUSTER_DIMENSION => {
                // A cluster of one block is what a launch without clusters has.
                if attribute.value[..3].iter().any(|n| *n > 1) {
                    let form = "cuLaunchKernelEx with clusters of more than one block";
                    return Err(unserved::refuse(form, unserved::CLUSTERS));
                }
            }
            // Ignore; access policy; synchronisation policy; cluster scheduling; programmatic
            // serialisation (a permission to overlap, which need not be used); priority; memory
            // domains; shared-memory carve-out; NVLink scheduling.
            0 | 1 | 3 | 5 | 6 | 8 | 9 | 10 | 14 | 16 => {}
            // Events within a launch, device-updatable nodes, and what is newer.
            _ => {
                let form = "cuLaunchKernelEx with launch events, device-updatable nodes or newer attributes";
                return Err(unserved::refuse(
                    form,
                    "record events behind the launch; leave the attribute out",
                ));
            }
        }
    }
    Ok(cooperative)
}

/// # Safety
/// The parameters are what the function's layout asks for.
unsafe fn launch(
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
    // SAFETY: by this function's contract.
    let source = unsafe { Source::of(&function, params) }?;
    // SAFETY: by this function's contract, checked for null above.
    let named = shim.reach_named(unsafe { source.words(function.params_len) })?;
    if shape.cooperative {
        shape.check_fits_at_once(shim, device, &function)?;
    }
    if shim.captures.any() {
        let make = || {
            // SAFETY: by this function's contract, checked for null above.
            let node = unsafe { node_of(handle, &function, shape, &source) };
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
    };
    // SAFETY: by this function's contract, checked for null above.
    shim.session
        .post_with(&call, function.params_len, |block| unsafe {
            source.pack(block);
        })
}

/// # Safety
/// As [`Source::pack`].
unsafe fn node_of(
    handle: u64,
    function: &Arc<FunctionInfo>,
    shape: Shape,
    source: &Source<'_>,
) -> KernelNode {
    let mut params = vec![0; function.params_len];
    // SAFETY: by this function's contract.
    unsafe { source.pack(&mut params) };
    KernelNode {
        handle,
        function: function.clone(),
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        cooperative: shape.cooperative,
        params,
        pointers: Vec::new(),
    }
    .point()
}

/// A launch as a node of a graph, checked.
///
/// # Safety
/// The parameters are what the function's layout asks for.
pub(super) unsafe fn node(
    shim: &Shim,
    context: &Context,
    handle: u64,
    (grid, block, shared): ([u32; 3], [u32; 3], u32),
    (pointers, extra): (*const *const c_void, *const *const c_void),
) -> Cu<KernelNode> {
    let function = function_in(shim, handle, context)?;
    let shape = Shape {
        grid,
        block,
        shared,
        cooperative: false,
    };
    shape.check(shim.devices.get(function.device)?, &function)?;
    // SAFETY: by this function's contract.
    let source = unsafe { Source::of(&function, Params { pointers, extra }) }?;
    // SAFETY: by this function's contract, checked just now.
    Ok(unsafe { node_of(handle, &function, shape, &source) })
}

/// The launch of a graph's node, in a stream or a recording.
pub(super) fn again(shim: &Shim, target: &Target, node: &KernelNode) -> Cu {
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
    };
    shim.session.post_with(&call, node.params.len(), |block| {
        block.copy_from_slice(&node.params);
    })
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
        // At most 1024 * 1024 * 64 by the limits above: no overflow of 64 bits.
        let threads: u64 = self.block.iter().map(|n| u64::from(*n)).product();
        if threads > u64::from(device.max_threads) {
            return Err(CuResult::INVALID_VALUE);
        }
        let limit = |id| function.attribute(id).map_or(u64::MAX, |n| n.max(0) as u64);
        // More than the kernel was compiled for is the same error as more than the device takes.
        if threads > limit(attribute::MAX_THREADS_PER_BLOCK) {
            return Err(CuResult::INVALID_VALUE);
        }
        if u64::from(self.shared) > limit(attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES) {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(())
    }

    /// All blocks of a cooperative launch must run at once.
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

/// Where the parameter block comes from.
enum Source<'a> {
    Nothing,
    Pointers(&'a [(u32, u32)], *const *const c_void),
    Buffer(*const u8),
}

impl Source<'_> {
    /// # Safety
    /// The caller's lists are as the function's layout asks.
    unsafe fn of(function: &FunctionInfo, params: Params) -> Cu<Source<'_>> {
        if !params.pointers.is_null() && !params.extra.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        if function.params.is_empty() {
            return Ok(Source::Nothing);
        }
        if !params.pointers.is_null() {
            for i in 0..function.params.len() {
                // SAFETY: one pointer a parameter, by this function's contract.
                if unsafe { *params.pointers.add(i) }.is_null() {
                    return Err(CuResult::INVALID_VALUE);
                }
            }
            return Ok(Source::Pointers(&function.params, params.pointers));
        }
        // SAFETY: by this function's contract.
        let (buffer, size) = unsafe { extra(params.extra) }?;
        if size < function.params_len {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(Source::Buffer(buffer))
    }

    /// The aligned words of the parameter block: what may be addresses.
    ///
    /// # Safety
    /// As [`Source::pack`], for a block of `len` bytes.
    unsafe fn words(&self, len: usize) -> impl Iterator<Item = u64> {
        let (layout, pointers, buffer) = match self {
            Source::Nothing => (&[][..], std::ptr::null(), std::ptr::null()),
            Source::Pointers(layout, pointers) => (*layout, *pointers, std::ptr::null()),
            Source::Buffer(buffer) => (&[][..], std::ptr::null(), *buffer),
        };
        let parameters = layout.iter().enumerate().flat_map(move |(i, (_, size))| {
            // SAFETY: one readable value of the layout's size a parameter.
            let value: *const u8 = unsafe { (*pointers.add(i)).cast() };
            // SAFETY: as above.
            (0..*size as usize / 8)
                .map(move |word| unsafe { value.add(8 * word).cast::<u64>().read_unaligned() })
        });
        let whole = if buffer.is_null() { 0 } else { len / 8 };
        // SAFETY: the buffer is at least as long as the block.
        let block = (0..whole)
            .map(move |word| unsafe { buffer.add(8 * word).cast::<u64>().read_unaligned() });
        parameters.chain(block)
    }

    /// Fills the parameter block; its gaps stay zero.
    ///
    /// # Safety
    /// As [`Source::of`], whose checks have passed; the block has the function's length.
    unsafe fn pack(&self, block: &mut [u8]) {
        match self {
            Source::Nothing => {}
            Source::Pointers(layout, pointers) => {
                for (i, (offset, size)) in layout.iter().enumerate() {
                    let (from, to) = (*offset as usize, *offset as usize + *size as usize);
                    // SAFETY: one readable value of the layout's size a parameter.
                    unsafe {
                        let value: *const u8 = (*pointers.add(i)).cast();
                        block[from..to]
                            .as_mut_ptr()
                            .copy_from(value, *size as usize);
                    }
                }
            }
            // SAFETY: the buffer is at least as long as the block.
            Source::Buffer(buffer) => unsafe { block.as_mut_ptr().copy_from(*buffer, block.len()) },
        }
    }
}

/// (buffer, size) of an `extra` list.
///
/// # Safety
/// The list is null or ends with `CU_LAUNCH_PARAM_END`; the size is a readable `size_t`.
unsafe fn extra(list: *const *const c_void) -> Cu<(*const u8, usize)> {
    const MOST: usize = 8;
    if list.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), None);
    for i in 0..MOST {
        // SAFETY: by this function's contract; no end so far.
        let (marker, value) = unsafe {
            let marker = *list.add(2 * i) as usize;
            (
                marker,
                if marker == EXTRA_END {
                    std::ptr::null()
                } else {
                    *list.add(2 * i + 1)
                },
            )
        };
        match marker {
            EXTRA_END => break,
            EXTRA_BUFFER => buffer = value.cast(),
            // SAFETY: by this function's contract.
            EXTRA_SIZE if !value.is_null() => size = Some(unsafe { *value.cast::<usize>() }),
            _ => return Err(CuResult::INVALID_VALUE),
        }
    }
    match (buffer.is_null(), size) {
        (false, Some(size)) => Ok((buffer, size)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}
