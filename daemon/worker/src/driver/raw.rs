//! Functions whose parameters are Rust enums in cudarc: a number from a guest, or one that a newer
//! driver defines, would be an invalid value there. They are taken from cudarc's library with
//! integers in the enums' place (the C ABI is the same).

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys;
use vgpu_proto::cuda::{ArrayShape, CuResult};

use super::vmm::{Access, Properties};
use super::{Result, number};

macro_rules! raw {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the CUDA function: pointers must be writable, handles live, and the context current.
        #[allow(non_snake_case, clippy::too_many_arguments)] // The driver's names and arguments.
        pub(super) unsafe fn $name($($arg: $ty),*) -> Result<()> {
            type F = unsafe extern "C" fn($($ty),*) -> c_uint;
            static F: OnceLock<Option<F>> = OnceLock::new();
            let f = F.get_or_init(|| {
                // SAFETY: the library is present (`load` ran first), and the type is the function's
                // with 32-bit enums as integers.
                unsafe { sys::culib().get::<F>(concat!(stringify!($name), "\0").as_bytes()) }
                    .ok()
                    .map(|symbol| *symbol)
            });
            match f {
                // SAFETY: the caller's promise.
                Some(f) => number(unsafe { f($($arg),*) }),
                None => Err(CuResult::NOT_SUPPORTED),
            }
        }
    )*};
}

raw! {
    /// Value of an attribute of a device.
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: sys::CUdevice);
    /// Value of an attribute of a function.
    cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: sys::CUfunction);
    /// Sets an attribute of a function.
    cuFuncSetAttribute(function: sys::CUfunction, attribute: c_uint, value: c_int);
    /// Prefers shared memory or L1 for a function.
    cuFuncSetCacheConfig(function: sys::CUfunction, config: c_uint);
    /// Sets a limit of the current context.
    cuCtxSetLimit(limit: c_uint, value: usize);
    /// A limit of the current context.
    cuCtxGetLimit(value: *mut usize, limit: c_uint);
    /// Prefers shared memory or L1 for the current context.
    cuCtxSetCacheConfig(config: c_uint);
    /// Begins a link.
    cuLinkCreate_v2(
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void,
        state: *mut sys::CUlinkState
    );
    /// Adds an input to a link.
    cuLinkAddData_v2(
        state: sys::CUlinkState,
        kind: c_uint,
        data: *mut c_void,
        size: usize,
        name: *const c_char,
        count: c_uint,
        options: *mut c_uint,
        values: *mut *mut c_void
    );
    /// Writes a word in a stream.
    cuStreamWriteValue32_v2(stream: sys::CUstream, at: sys::CUdeviceptr, value: u32, flags: c_uint);
    /// Writes a double word in a stream.
    cuStreamWriteValue64_v2(stream: sys::CUstream, at: sys::CUdeviceptr, value: u64, flags: c_uint);
    /// Has a stream wait for a word.
    cuStreamWaitValue32_v2(stream: sys::CUstream, at: sys::CUdeviceptr, value: u32, flags: c_uint);
    /// Has a stream wait for a double word.
    cuStreamWaitValue64_v2(stream: sys::CUstream, at: sys::CUdeviceptr, value: u64, flags: c_uint);
    /// Copies a box.
    cuMemcpy3DAsync_v2(copy: *const sys::CUDA_MEMCPY3D, stream: sys::CUstream);
    /// Makes an array.
    cuArray3DCreate_v2(array: *mut sys::CUarray, shape: *const ArrayShape);
    /// Destroys one.
    cuArrayDestroy(array: sys::CUarray);
    /// Makes a mipmapped array.
    cuMipmappedArrayCreate(
        array: *mut sys::CUmipmappedArray,
        shape: *const ArrayShape,
        levels: c_uint
    );
    /// A level of it.
    cuMipmappedArrayGetLevel(
        level: *mut sys::CUarray,
        array: sys::CUmipmappedArray,
        number: c_uint
    );
    /// Destroys it.
    cuMipmappedArrayDestroy(array: sys::CUmipmappedArray);
    /// What sizes and addresses are multiples of.
    cuMemGetAllocationGranularity(
        bytes: *mut usize,
        properties: *const Properties,
        option: c_uint
    );
    /// Reserves addresses.
    cuMemAddressReserve(
        at: *mut sys::CUdeviceptr,
        size: usize,
        alignment: usize,
        wanted: sys::CUdeviceptr,
        flags: u64
    );
    /// Gives them back.
    cuMemAddressFree(at: sys::CUdeviceptr, size: usize);
    /// Makes memory without an address.
    cuMemCreate(handle: *mut u64, size: usize, properties: *const Properties, flags: u64);
    /// Gives it back.
    cuMemRelease(handle: u64);
    /// Gives memory an address.
    cuMemMap(at: sys::CUdeviceptr, size: usize, offset: usize, handle: u64, flags: u64);
    /// Takes it away.
    cuMemUnmap(at: sys::CUdeviceptr, size: usize);
    /// Says who may use it.
    cuMemSetAccess(
        at: sys::CUdeviceptr,
        size: usize,
        access: *const Access,
        count: usize
    );
    /// An empty graph.
    cuGraphCreate(graph: *mut sys::CUgraph, flags: c_uint);
    /// Destroys a graph.
    cuGraphDestroy(graph: sys::CUgraph);
    /// The nodes of a graph.
    cuGraphGetNodes(graph: sys::CUgraph, nodes: *mut sys::CUgraphNode, count: *mut usize);
    /// Destroys a node.
    cuGraphDestroyNode(node: sys::CUgraphNode);
    /// A value that decides about conditional nodes.
    cuGraphConditionalHandleCreate(
        handle: *mut u64,
        graph: sys::CUgraph,
        context: sys::CUcontext,
        default: c_uint,
        flags: c_uint
    );
    /// Adds a node of any kind.
    cuGraphAddNode(
        node: *mut sys::CUgraphNode,
        graph: sys::CUgraph,
        behind: *const sys::CUgraphNode,
        count: usize,
        params: *mut c_void
    );
    /// Instantiates a graph.
    cuGraphInstantiateWithFlags(exec: *mut sys::CUgraphExec, graph: sys::CUgraph, flags: u64);
    /// Launches an instantiated graph.
    cuGraphLaunch(exec: sys::CUgraphExec, stream: sys::CUstream);
    /// Destroys an instantiated graph.
    cuGraphExecDestroy(exec: sys::CUgraphExec);
    /// Has what is given to a stream become nodes of a graph.
    cuStreamBeginCaptureToGraph(
        stream: sys::CUstream,
        graph: sys::CUgraph,
        behind: *const sys::CUgraphNode,
        data: *const c_void,
        count: usize,
        mode: c_uint
    );
    /// Ends that.
    cuStreamEndCapture(stream: sys::CUstream, graph: *mut sys::CUgraph);
    /// Where a capture stands.
    cuStreamGetCaptureInfo_v2(
        stream: sys::CUstream,
        status: *mut c_uint,
        id: *mut u64,
        graph: *mut sys::CUgraph,
        tips: *mut *const sys::CUgraphNode,
        count: *mut usize
    );
    /// Sets what the next node of a capture comes behind.
    cuStreamUpdateCaptureDependencies(
        stream: sys::CUstream,
        nodes: *mut sys::CUgraphNode,
        count: usize,
        flags: c_uint
    );
}
