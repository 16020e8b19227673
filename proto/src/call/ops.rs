//! The operations of the data connection.

use super::{Class, Cluster, Need, OpInfo, RequestError};
use crate::codec::{Decode, Encode, decode};
use crate::cuda::{
    Array, ArrayBlock, ArrayShape, Ctx, DevPtr, Event, Func, Linked, Module, Physical, Stream,
};

/// BLAKE3 hash of a module image: its name in the host's cache.
pub type ImageHash = [u8; 32];

macro_rules! ops {
    ($(
        $(#[$doc:meta])*
        $name:ident = $num:literal, $class:ident, $need:ident, $bulk:literal,
        { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? }
        => { $($(#[$rdoc:meta])* $rfield:ident: $rty:ty),* $(,)? };
    )*) => {
        /// The number of an operation on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Op {
            $($(#[$doc])* $name = $num,)*
        }

        /// The table, sorted by number.
        pub static OPS: &[OpInfo] = &[$(OpInfo {
            op: Op::$name,
            name: stringify!($name),
            class: Class::$class,
            need: Need::$need,
            bulk: $bulk,
        },)*];

        /// The table as text, for the fingerprint.
        pub(super) const CANONICAL: &str = concat!($(
            stringify!($name = $num $class $need $bulk { $($field: $ty),* } => { $($rfield: $rty),* };),
        )*);

        impl Op {
            /// The operation with a wire number; `None` if there is none.
            pub fn from_wire(op: u16) -> Option<Op> {
                match op {
                    $($num => Some(Op::$name),)*
                    _ => None,
                }
            }

            /// The row of the operation.
            pub fn info(self) -> &'static OpInfo {
                // The table is short and sorted: the search takes a few comparisons.
                match OPS.binary_search_by_key(&(self as u16), |row| row.op as u16) {
                    Ok(i) => &OPS[i],
                    Err(_) => unreachable!("every Op has a row: both come from one list"),
                }
            }

            /// Name in traces and errors.
            pub fn name(self) -> &'static str {
                match self { $(Op::$name => stringify!($name),)* }
            }

            /// The operation's need for the GPU.
            pub fn need(self) -> Need {
                match self { $(Op::$name => Need::$need,)* }
            }

            /// Whether the guest waits for a reply.
            pub fn class(self) -> Class {
                match self { $(Op::$name => Class::$class,)* }
            }
        }

        /// Arguments, one structure per operation.
        pub mod req {
            use super::*;
            $(
                $(#[$doc])*
                #[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
                #[allow(missing_docs)] // Fields are CUDA's parameter names.
                pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

                impl Call for $name {
                    const OP: Op = Op::$name;
                    type Reply = super::rep::$name;
                }
            )*
        }

        /// Results, one structure per operation.
        pub mod rep {
            use super::*;
            $(
                #[doc = concat!("Results of [`super::req::", stringify!($name), "`].")]
                #[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
                #[allow(missing_docs)] // Fields are CUDA's parameter names.
                pub struct $name { $($(#[$rdoc])* pub $rfield: $rty,)* }
            )*
        }

        /// A decoded request.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Request {
            $($(#[$doc])* $name(req::$name),)*
        }

        impl Request {
            /// Decodes the arguments of operation `op`; `bulk_len` is checked against the table.
            ///
            /// # Errors
            /// [`RequestError`]; the sentence goes to the log and to the guest.
            pub fn decode(op: u16, args: &[u8], bulk_len: usize) -> Result<Request, RequestError> {
                match op {
                    $($num => {
                        if !$bulk && bulk_len != 0 {
                            return Err(RequestError::Bulk(stringify!($name)));
                        }
                        decode::<req::$name>(args)
                            .map(Request::$name)
                            .map_err(|e| RequestError::Args(stringify!($name), e))
                    })*
                    _ => Err(RequestError::UnknownOp(op)),
                }
            }

            /// The operation of the request.
            pub fn op(&self) -> Op {
                match self { $(Request::$name(_) => Op::$name,)* }
            }
        }
    };
}

/// An input of a link: an image that was sent as [`req::ImageData`].
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct LinkInput {
    /// `CUjitInputType`.
    pub kind: u32,
    /// Hash of the image.
    pub hash: ImageHash,
    /// Size of the image in bytes.
    pub len: u64,
    /// Name in logs; empty: none.
    pub name: String,
}

/// The tensor in device memory that a tensor map describes. Each list has an entry for each
/// dimension, unless said otherwise. The numbers are those of `cuTensorMapEncodeTiled` and
/// `cuTensorMapEncodeIm2col`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Tensor {
    /// `CUtensorMapDataType`.
    pub data_type: u32,
    /// Address of the first element.
    pub address: u64,
    /// Number of elements.
    pub sizes: Vec<u64>,
    /// Bytes from one element to the next, for all dimensions but the first.
    pub strides: Vec<u64>,
    /// Elements from one element that is copied to the next.
    pub element_strides: Vec<u32>,
    /// The part of the tensor that one copy transfers.
    pub window: Window,
    /// `CUtensorMapInterleave`.
    pub interleave: u32,
    /// `CUtensorMapSwizzle`.
    pub swizzle: u32,
    /// `CUtensorMapL2promotion`.
    pub l2_promotion: u32,
    /// `CUtensorMapFloatOOBfill`.
    pub fill: u32,
}

/// The numbers of a `CUtensorMap`, whose meaning only the host's driver knows.
pub type TensorMap = [u64; 16];

/// The part of a tensor that one copy transfers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Encode, Decode)]
pub enum Window {
    /// Tiled.
    Box {
        /// Number of elements.
        sizes: Vec<u32>,
    },
    /// Im2col.
    Pixels {
        /// Lower corner, in all dimensions but the first and the last.
        lower: Vec<i32>,
        /// Upper corner, in the same dimensions.
        upper: Vec<i32>,
        /// Channels of each pixel.
        channels: u32,
        /// Pixels of each column.
        pixels: u32,
    },
}

/// One side of a box copy within a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub enum BoxSide {
    /// Rows in device memory.
    Memory {
        /// Address of the first byte of the box.
        at: DevPtr,
        /// Distance between rows in bytes.
        pitch: u64,
        /// Distance between slices in rows.
        rows: u64,
    },
    /// A part of an array.
    Array {
        /// The array.
        array: Array,
        /// Offset of the box: byte in the row, row, slice.
        at: [u64; 3],
    },
}

/// Arguments of an operation, with the type of its results.
pub trait Call: Encode {
    /// Number of the operation on the wire.
    const OP: Op;
    /// Content of the reply.
    type Reply: Decode<()>;
}

ops! {
    /// Queries whether the host's cache for this VM has a complete image with this hash.
    ImageQuery = 0x0001, Sync, None, false, { hash: ImageHash, len: u64 } => { present: bool };
    /// A piece of an image, in ascending order of offset without gaps.
    ImageData = 0x0002, Async, None, true, { hash: ImageHash, len: u64, offset: u64 } => {};
    /// `cuModuleLoadDataEx` of a complete image. The reply of a failed load has the logs too.
    ModuleLoad = 0x0003, Sync, None, false,
        {
            ctx: Ctx,
            hash: ImageHash,
            len: u64,
            /// Scalar JIT options: (CUjit_option, value).
            options: Vec<(u32, u32)>,
            /// Size of the caller's CU_JIT_INFO_LOG_BUFFER in bytes, 0 if none.
            info_log_len: u32,
            /// Size of the caller's CU_JIT_ERROR_LOG_BUFFER in bytes, 0 if none.
            error_log_len: u32,
        }
        => { module: Module, info_log: Vec<u8>, error_log: Vec<u8> };
    /// `cuModuleUnload`.
    ModuleUnload = 0x0004, Sync, Drain, false, { module: Module } => {};
    /// `cuModuleGetFunction`, with all immutable properties of the function.
    ModuleGetFunction = 0x0005, Sync, None, false, { module: Module, name: String }
        => {
            func: Func,
            /// (offset, size) of each parameter in the parameter block, from the driver.
            params: Vec<(u32, u32)>,
            /// (CUfunction_attribute, value) of all attributes that the driver answered.
            attributes: Vec<(u32, i32)>,
        };
    /// `cuModuleGetGlobal_v2`.
    ModuleGetGlobal = 0x0006, Sync, None, false, { module: Module, name: String }
        => { ptr: DevPtr, size: u64 };
    /// `cuFuncSetAttribute`.
    FuncSetAttribute = 0x0007, Sync, None, false, { func: Func, attribute: u32, value: i32 } => {};
    /// `cuFuncGetAttribute` of an attribute that may change.
    FuncGetAttribute = 0x0008, Sync, None, false, { func: Func, attribute: u32 } => { value: i32 };
    /// `cuFuncSetCacheConfig`.
    FuncSetCacheConfig = 0x0009, Async, None, false, { func: Func, config: u32 } => {};
    /// `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`.
    OccupancyBlocks = 0x000a, Sync, None, false,
        { func: Func, block_size: i32, dynamic_shared: u64, flags: u32 } => { blocks: i32 };

    /// Names of a module's functions, from index `start` on; `total` is the number of all
    /// functions.
    ModuleFunctions = 0x000b, Sync, None, false, { module: Module, start: u32 }
        => { total: u32, names: Vec<String> };
    /// `cuOccupancyAvailableDynamicSMemPerBlock`.
    OccupancyShared = 0x000c, Sync, None, false, { func: Func, blocks: i32, block_size: i32 }
        => { bytes: u64 };
    /// `cuLinkCreate_v2`, `cuLinkAddData_v2` of each input and `cuLinkComplete`. The reply of a
    /// failed link has the logs too. The `len` bytes of the result are fetched with LinkData.
    Link = 0x000d, Sync, None, false,
        {
            ctx: Ctx,
            inputs: Vec<LinkInput>,
            /// Scalar JIT options: (CUjit_option, value).
            options: Vec<(u32, u32)>,
            info_log_len: u32,
            error_log_len: u32,
        }
        => { link: Linked, len: u64, info_log: Vec<u8>, error_log: Vec<u8> };
    /// The result of a link, as bulk parts of one or several frames. The worker then drops the
    /// result.
    LinkData = 0x000e, Sync, None, false, { link: Linked } => {};
    /// `cuOccupancyMaxActiveClusters`, or with `largest` `cuOccupancyMaxPotentialClusterSize`.
    OccupancyClusters = 0x000f, Sync, None, false,
        {
            func: Func,
            grid: [u32; 3],
            block: [u32; 3],
            shared: u32,
            cluster: Cluster,
            largest: bool,
        } => { clusters: i32 };

    /// `cuDevicePrimaryCtxRetain`.
    PrimaryCtxRetain = 0x0010, Sync, None, false, { device: u32 } => { ctx: Ctx };
    /// `cuDevicePrimaryCtxRelease_v2`.
    PrimaryCtxRelease = 0x0011, Sync, Drain, false, { device: u32 } => {};
    /// `cuDevicePrimaryCtxReset_v2`.
    PrimaryCtxReset = 0x0012, Sync, Drain, false, { device: u32 } => {};
    /// `cuDevicePrimaryCtxSetFlags_v2`.
    PrimaryCtxSetFlags = 0x0013, Sync, None, false, { device: u32, flags: u32 } => {};
    // 0x0014 was cuDevicePrimaryCtxGetState, which the guest answers itself.
    /// `cuCtxCreate_v2`, and later forms without additional parameters.
    CtxCreate = 0x0015, Sync, None, false, { device: u32, flags: u32 } => { ctx: Ctx };
    /// `cuCtxDestroy_v2`.
    CtxDestroy = 0x0016, Sync, Drain, false, { ctx: Ctx } => {};
    /// `cuCtxSynchronize`.
    CtxSynchronize = 0x0017, Sync, Drain, false, { ctx: Ctx } => {};
    /// `cuCtxSetLimit`.
    CtxSetLimit = 0x0018, Sync, None, false, { ctx: Ctx, limit: u32, value: u64 } => {};
    /// `cuCtxGetLimit`.
    CtxGetLimit = 0x0019, Sync, None, false, { ctx: Ctx, limit: u32 } => { value: u64 };
    /// `cuCtxSetCacheConfig`.
    CtxSetCacheConfig = 0x001a, Async, None, false, { ctx: Ctx, config: u32 } => {};

    /// `cuMemAlloc_v2`. `collided`: an earlier allocation whose addresses this guest could not
    /// reserve. The worker keeps the earlier allocation until the session ends, and makes a new
    /// allocation.
    MemAlloc = 0x0020, Sync, None, false, { ctx: Ctx, size: u64, collided: Option<DevPtr> }
        => { ptr: DevPtr };
    /// `cuMemFree_v2`.
    MemFree = 0x0021, Sync, Drain, false, { ptr: DevPtr } => {};
    /// `cuMemGetInfo_v2`, within the VM's quota.
    MemGetInfo = 0x0022, Sync, None, false, { ctx: Ctx } => { free: u64, total: u64 };

    /// `cuMemAllocAsync`: usable at once by work in the stream. `collided` as for MemAlloc.
    MemAllocAsync = 0x0023, Sync, None, false,
        { ctx: Ctx, stream: Stream, size: u64, collided: Option<DevPtr> } => { ptr: DevPtr };
    /// `cuMemFreeAsync`: the address is invalid at once; the memory is freed in stream order.
    MemFreeAsync = 0x0024, Async, Order, false, { ctx: Ctx, stream: Stream, ptr: DevPtr } => {};

    /// Host to device: one piece, with its bytes in bulk.
    MemcpyHtoD = 0x0028, Async, Submit, true, { ctx: Ctx, stream: Stream, dst: DevPtr } => {};
    /// Device to host. The reply has one frame per piece, in order, each but the last with
    /// FLAG_MORE. The bulk parts together have `len` bytes. A failing frame ends the reply.
    MemcpyDtoH = 0x0029, Sync, Submit, false,
        { ctx: Ctx, stream: Stream, src: DevPtr, len: u64 } => {};
    /// Device to device.
    MemcpyDtoD = 0x002a, Async, Submit, false,
        { ctx: Ctx, stream: Stream, dst: DevPtr, src: DevPtr, len: u64 } => {};
    /// `cuMemsetD8/16/32`: `count` elements of `width` bytes (1, 2 or 4).
    Memset = 0x002b, Async, Submit, false,
        { ctx: Ctx, stream: Stream, dst: DevPtr, value: u32, width: u8, count: u64 } => {};
    /// `cuMemsetD2D8/16/32`.
    Memset2D = 0x002c, Async, Submit, false,
        {
            ctx: Ctx,
            stream: Stream,
            dst: DevPtr,
            pitch: u64,
            value: u32,
            width: u8,
            columns: u64,
            rows: u64,
        } => {};

    /// Host to device: whole rows of `width` bytes in bulk; on the device, the rows are `pitch`
    /// bytes apart.
    Memcpy2DHtoD = 0x002d, Async, Submit, true,
        { ctx: Ctx, stream: Stream, dst: DevPtr, pitch: u64, width: u32 } => {};
    /// Device to host: rows of `width` bytes that are `pitch` bytes apart on the device. The reply
    /// is as for MemcpyDtoH, with the rows next to each other.
    Memcpy2DDtoH = 0x002e, Sync, Submit, false,
        { ctx: Ctx, stream: Stream, src: DevPtr, pitch: u64, width: u32, rows: u64 } => {};
    /// Device to device, rows of `width` bytes.
    Memcpy2DDtoD = 0x002f, Async, Submit, false,
        {
            ctx: Ctx,
            stream: Stream,
            dst: DevPtr,
            dst_pitch: u64,
            src: DevPtr,
            src_pitch: u64,
            width: u64,
            rows: u64,
        } => {};

    /// `cuStreamCreateWithPriority`; the guest chose the handle.
    StreamCreate = 0x0030, Async, None, false,
        { ctx: Ctx, stream: Stream, flags: u32, priority: i32 } => {};
    /// `cuStreamDestroy_v2`: work already in the stream still completes.
    StreamDestroy = 0x0031, Async, Order, false, { stream: Stream } => {};
    /// `cuStreamSynchronize`.
    StreamSynchronize = 0x0032, Sync, Drain, false, { ctx: Ctx, stream: Stream } => {};
    /// `cuStreamQuery`: status SUCCESS or NOT_READY.
    StreamQuery = 0x0033, Sync, None, false, { ctx: Ctx, stream: Stream } => {};
    /// `cuStreamWaitEvent`.
    StreamWaitEvent = 0x0034, Async, Order, false,
        { ctx: Ctx, stream: Stream, event: Event, flags: u32 } => {};

    /// `cuStreamWriteValue32/64`.
    StreamWriteValue = 0x0035, Async, Submit, false,
        { ctx: Ctx, stream: Stream, ptr: DevPtr, value: u64, wide: bool, flags: u32 } => {};
    /// `cuStreamWaitValue32/64`.
    StreamWaitValue = 0x0036, Async, Submit, false,
        { ctx: Ctx, stream: Stream, ptr: DevPtr, value: u64, wide: bool, flags: u32 } => {};
    /// `cuLaunchHostFunc`. When the stream reaches the function, the worker sends the notice
    /// HostFunc with this number. The stream continues after HostFuncDone.
    HostFunc = 0x0037, Async, Order, false, { ctx: Ctx, stream: Stream, number: u64 } => {};

    /// `cuEventCreate`; the guest chose the handle.
    EventCreate = 0x0038, Async, None, false, { ctx: Ctx, event: Event, flags: u32 } => {};
    /// `cuEventDestroy_v2`.
    EventDestroy = 0x0039, Async, Order, false, { event: Event } => {};
    /// `cuEventRecordWithFlags`.
    EventRecord = 0x003a, Async, Order, false,
        { ctx: Ctx, event: Event, stream: Stream, flags: u32 } => {};
    /// `cuEventQuery`: status SUCCESS or NOT_READY.
    EventQuery = 0x003b, Sync, None, false, { event: Event } => {};
    /// `cuEventSynchronize`.
    EventSynchronize = 0x003c, Sync, Drain, false, { event: Event } => {};
    /// `cuEventElapsedTime`. `milliseconds_bits`: the bits of a float.
    EventElapsedTime = 0x003d, Sync, None, false, { start: Event, end: Event }
        => { milliseconds_bits: u32 };

    /// The guest has run a host function.
    HostFuncDone = 0x003e, Async, None, false, { number: u64 } => {};

    /// `cuLaunchKernel`; the parameter block is the bulk part.
    LaunchKernel = 0x0040, Async, Submit, true,
        {
            ctx: Ctx,
            stream: Stream,
            func: Func,
            grid: [u32; 3],
            block: [u32; 3],
            shared: u32,
            cooperative: bool,
            cluster: Cluster,
        } => {};
    /// `cuTensorMapEncodeTiled` or `cuTensorMapEncodeIm2col`.
    TensorMapEncode = 0x0041, Sync, None, false, { ctx: Ctx, tensor: Tensor }
        => { map: TensorMap };
    /// `cuTensorMapReplaceAddress`.
    TensorMapReplaceAddress = 0x0042, Sync, None, false,
        { ctx: Ctx, map: TensorMap, address: u64 } => { map: TensorMap };

    /// Creates a graph, whose handle the guest chose. Launches, fills and copies within the device
    /// that name the graph instead of a stream are recorded in the graph.
    GraphCreate = 0x0044, Async, None, false, { ctx: Ctx, graph: Stream } => {};
    /// Launches everything that was recorded, in order, as one unit.
    GraphLaunch = 0x0045, Async, Submit, false,
        { ctx: Ctx, stream: Stream, graph: Stream } => {};
    /// Destroys a graph, or the graph `home` of [`req::GraphCondition`]. Launches of the graph that
    /// wait in the queue still run.
    GraphDestroy = 0x0046, Async, None, false, { graph: Stream } => {};
    /// `cuGraphConditionalHandleCreate`, in the host's graph `home`. The guest chooses the handle
    /// `home`; the first call with this handle creates the graph.
    GraphCondition = 0x0047, Sync, None, false,
        { ctx: Ctx, home: Stream, default: u32, flags: u32 } => { handle: u64 };
    /// Adds a conditional node after everything that was recorded in `graph`. `handle` was created
    /// in `home`, and `kind` is a `CUgraphConditionalNodeType`. `bodies` are recordings, which
    /// become part of the node.
    GraphConditional = 0x0048, Sync, None, false,
        { graph: Stream, home: Stream, handle: u64, kind: u32, bodies: Vec<Stream> } => {};
    /// Turns a recording with conditional nodes into a graph of the host and instantiates that
    /// graph. The recording can be launched only afterwards, and accepts no further records.
    GraphBuild = 0x0049, Sync, None, false, { graph: Stream } => {};

    /// `cuArray3DCreate_v2` or, with `levels` above 0, `cuMipmappedArrayCreate`. Each level has
    /// half the sides of the previous level.
    ArrayCreate = 0x0080, Sync, None, false, { ctx: Ctx, shape: ArrayShape, levels: u32 }
        => { block: ArrayBlock, arrays: Vec<Array> };
    /// `cuArrayDestroy`, `cuMipmappedArrayDestroy`. `block`: the handle from the reply to
    /// ArrayCreate. All arrays of that reply are invalid at once.
    ArrayDestroy = 0x0081, Sync, Drain, false, { block: ArrayBlock } => {};
    /// Host to array: whole rows of `width` bytes in bulk, into one slice. `at`: byte in the row,
    /// row, slice.
    MemcpyHtoA = 0x0082, Async, Submit, true,
        { ctx: Ctx, stream: Stream, dst: Array, at: [u64; 3], width: u32 } => {};
    /// Array to host: rows of `width` bytes of one slice; the reply is as for MemcpyDtoH.
    MemcpyAtoH = 0x0083, Sync, Submit, false,
        { ctx: Ctx, stream: Stream, src: Array, at: [u64; 3], width: u32, rows: u64 } => {};
    /// Copies a box between device memory and arrays; `size`: bytes in a row, rows, slices.
    MemcpyBox = 0x0084, Async, Submit, false,
        { ctx: Ctx, stream: Stream, dst: BoxSide, src: BoxSide, size: [u64; 3] } => {};

    /// `cuMemAddressReserve`. `collided` as for MemAlloc.
    AddressReserve = 0x0088, Sync, None, false,
        { size: u64, alignment: u64, wanted: u64, collided: Option<DevPtr> } => { ptr: DevPtr };
    /// `cuMemAddressFree` of a whole reservation.
    AddressFree = 0x0089, Sync, Drain, false, { ptr: DevPtr } => {};
    /// `cuMemCreate` on a device.
    PhysicalCreate = 0x008a, Sync, None, false, { device: u32, size: u64 } => { memory: Physical };
    /// `cuMemRelease`: mapped memory stays until it is unmapped.
    PhysicalRelease = 0x008b, Sync, Drain, false, { memory: Physical } => {};
    /// `cuMemMap` of a whole memory.
    MemMap = 0x008c, Sync, None, false, { ptr: DevPtr, memory: Physical } => {};
    /// `cuMemUnmap` of whole mappings: the addresses are invalid at once.
    MemUnmap = 0x008d, Sync, Drain, false, { ptr: DevPtr, size: u64 } => {};
    /// `cuMemSetAccess` of whole mappings, for their device: no access (0), read (1), read and
    /// write (3).
    MemSetAccess = 0x008e, Sync, None, false, { ptr: DevPtr, size: u64, flags: u32 } => {};
    /// `cuMemGetAllocationGranularity`.
    MemGranularity = 0x008f, Sync, None, false, { device: u32, option: u32 } => { bytes: u64 };

    /// Makes memory of the program reachable by kernels: the worker creates a copy, zeroed at
    /// first, at this address of [`crate::limits::HOST_SPACE`], which is page-aligned like the
    /// program's.
    HostMap = 0x0090, Sync, None, false, { ptr: DevPtr, size: u64 } => {};
    /// Removes the copy that `HostMap` created, after the work that may use the copy.
    HostUnmap = 0x0091, Sync, Drain, false, { ptr: DevPtr } => {};
    /// The program's changes since the last push, as [`crate::changes`] in bulk. The changes take
    /// effect at once, like a processor's writes. The request id is 0 instead of a number of the
    /// sequence, because the guest collects changes when it writes requests that already have their
    /// numbers.
    HostPush = 0x0092, Async, None, true, {} => {};
    /// The device's changes from address `from` on, as [`crate::changes`] in bulk (at most
    /// [`crate::limits::MAX_BULK`] bytes). `next`: `from` of the next pull; 0: no more changes.
    /// `lost`: whether the guest has since pushed bytes that the device had changed too, so that
    /// the device's writes are lost. `of`: the first addresses of the blocks that may have changed,
    /// at most [`crate::limits::MAX_PULLED`]; empty: all blocks.
    HostPull = 0x0093, Sync, None, false, { from: DevPtr, of: Vec<DevPtr> } => { next: DevPtr, lost: bool };
}

/// Frames from worker to guest that answer no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Notice {
    /// Depth credit: an encoded [`Progress`].
    Progress = 0x8001,
    /// An asynchronous call failed: the header has the id of the request and the error. Device
    /// faults are permanent, and come with an encoded text that describes them; the next
    /// synchronising call reports other errors once.
    AsyncError = 0x8002,
    /// Output of device `printf` in bulk, for the guest program's standard output. Without bulk
    /// bytes: the id in the header is the number of bytes that were dropped after the output sent
    /// before.
    Stdout = 0x8003,
    /// A stream has reached a host function: the id in the header is its number.
    HostFunc = 0x8004,
    /// A new depth credit (an encoded [`Progress`]), which replaces the credit of the Welcome.
    /// Requests that the guest sent before it read this notice stay valid.
    Depth = 0x8005,
}

impl Notice {
    /// The notice with a wire number; `None` if there is none.
    pub fn from_wire(op: u16) -> Option<Notice> {
        [
            Notice::Progress,
            Notice::AsyncError,
            Notice::Stdout,
            Notice::HostFunc,
            Notice::Depth,
        ]
        .into_iter()
        .find(|n| *n as u16 == op)
    }
}

/// In [`Notice::Progress`]: the number of requests and bytes that the worker has taken off its
/// queue since the session began. In [`Notice::Depth`]: the new limits of requests and bytes that
/// were sent and not yet taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Progress {
    /// Number of requests.
    pub calls: u64,
    /// Number of the requests' bulk bytes.
    pub bytes: u64,
}
