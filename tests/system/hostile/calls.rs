//! A call of every operation, and the names in it.

use anyhow::Result;
use vgpu_proto::call::ops::{BoxSide, Call};
use vgpu_proto::call::{LinkInput, Op, Tensor, Window, req};
use vgpu_proto::codec::encode;
use vgpu_proto::cuda::{
    Array, ArrayBlock, ArrayShape, Ctx, DevPtr, Event, Func, Linked, Module, Physical, Stream,
};
use vgpu_proto::limits::HOST_SPACE;
use vgpu_tests::hostile::Session;
use vgpu_wire::load_call;

use super::VECADD;

/// Size, in bytes, of the allocation around which addresses are tried.
pub(super) const LEN: u64 = 4096;
/// A multiple of the granularity of physical memory on every device, in bytes.
pub(super) const UNIT: u64 = 2 << 20;

/// An address at which no memory of the program is mapped.
pub(super) const SHADOW: DevPtr = DevPtr(HOST_SPACE.start + 0x10_0000);

/// Eight bytes in a row.
pub(super) const SHAPE: ArrayShape = ArrayShape {
    width: 8,
    height: 1,
    depth: 0,
    format: 1,
    channels: 1,
    flags: 0,
};

/// The names in a call. All are live, until a test changes one of them.
#[derive(Clone)]
pub(super) struct Names {
    pub(super) device: u32,
    pub(super) ctx: Ctx,
    pub(super) stream: Stream,
    pub(super) event: Event,
    pub(super) end: Event,
    pub(super) module: Module,
    pub(super) func: Func,
    pub(super) link: Linked,
    pub(super) graph: Stream,
    /// A recording that may become the body of a conditional node.
    pub(super) body: Stream,
    /// The home of a condition, and its handle.
    pub(super) home: Stream,
    pub(super) condition: u64,
    /// A host function that the guest reports as done.
    pub(super) done: u64,
    pub(super) new_stream: Stream,
    pub(super) new_event: Event,
    pub(super) array: Array,
    pub(super) block: ArrayBlock,
    pub(super) memory: Physical,
    /// Reserved addresses.
    pub(super) space: DevPtr,
    pub(super) dst: DevPtr,
    pub(super) src: DevPtr,
    pub(super) freed: DevPtr,
    pub(super) collided: DevPtr,
    pub(super) len: u64,
}

pub(super) fn row<C: Call>(call: &C) -> Result<Vec<u8>> {
    Ok(encode(call)?)
}

/// A call of every operation, with bulk data. Exhaustive, so that a new operation must be tried
/// too.
pub(super) fn call(op: Op, n: &Names) -> Result<(Vec<u8>, Vec<u8>)> {
    let (ctx, stream, event, module, func) = (n.ctx, n.stream, n.event, n.module, n.func);
    let (device, name) = (n.device, "vecadd".to_owned());
    let (dst, src, len, flags, value) = (n.dst, n.src, n.len, 0, 0);
    let (hash, image) = (*blake3::hash(VECADD).as_bytes(), VECADD.len() as u64);
    let mut bulk = Vec::new();
    let args = match op {
        Op::ImageQuery => row(&req::ImageQuery { hash, len: image }),
        Op::ImageData => {
            bulk = VECADD.to_vec();
            let (len, offset) = (image, 0);
            row(&req::ImageData { hash, len, offset })
        }
        Op::ModuleLoad => row(&load_call(ctx, (hash, image))),
        Op::ModuleUnload => row(&req::ModuleUnload { module }),
        Op::ModuleGetFunction => row(&req::ModuleGetFunction { module, name }),
        Op::ModuleGetGlobal => row(&req::ModuleGetGlobal { module, name }),
        Op::FuncSetAttribute => row(&req::FuncSetAttribute {
            func,
            attribute: 8,
            value,
        }),
        Op::FuncGetAttribute => row(&req::FuncGetAttribute { func, attribute: 8 }),
        Op::FuncSetCacheConfig => row(&req::FuncSetCacheConfig { func, config: 0 }),
        Op::OccupancyBlocks => row(&req::OccupancyBlocks {
            func,
            block_size: 32,
            dynamic_shared: 0,
            flags,
        }),
        Op::OccupancyClusters => row(&req::OccupancyClusters {
            func,
            grid: [4, 1, 1],
            block: [32, 1, 1],
            shared: 0,
            cluster: [2, 1, 1],
            largest: false,
        }),
        Op::TensorMapEncode => row(&req::TensorMapEncode {
            ctx,
            tensor: tensor(),
        }),
        Op::TensorMapReplaceAddress => row(&req::TensorMapReplaceAddress {
            ctx,
            map: [0; 16],
            address: 0,
        }),
        Op::ModuleFunctions => row(&req::ModuleFunctions { module, start: 0 }),
        Op::OccupancyShared => row(&req::OccupancyShared {
            func,
            blocks: 1,
            block_size: 32,
        }),
        Op::Link => row(&link_call(ctx)),
        Op::LinkData => row(&req::LinkData { link: n.link }),
        Op::PrimaryCtxRetain => row(&req::PrimaryCtxRetain { device }),
        Op::PrimaryCtxRelease => row(&req::PrimaryCtxRelease { device }),
        Op::PrimaryCtxReset => row(&req::PrimaryCtxReset { device }),
        Op::PrimaryCtxSetFlags => row(&req::PrimaryCtxSetFlags { device, flags }),
        Op::CtxCreate => row(&req::CtxCreate { device, flags }),
        Op::CtxDestroy => row(&req::CtxDestroy { ctx }),
        Op::CtxSynchronize => row(&req::CtxSynchronize { ctx }),
        Op::CtxSetLimit => row(&req::CtxSetLimit {
            ctx,
            limit: 0,
            value: 1024,
        }),
        Op::CtxGetLimit => row(&req::CtxGetLimit { ctx, limit: 0 }),
        Op::CtxSetCacheConfig => row(&req::CtxSetCacheConfig { ctx, config: 0 }),
        Op::MemAlloc => row(&req::MemAlloc {
            ctx,
            size: 64,
            collided: Some(n.collided),
        }),
        Op::MemFree => row(&req::MemFree { ptr: n.freed }),
        Op::MemGetInfo => row(&req::MemGetInfo { ctx }),
        Op::MemAllocAsync => row(&req::MemAllocAsync {
            ctx,
            stream,
            size: 64,
            collided: Some(n.collided),
        }),
        Op::MemFreeAsync => row(&req::MemFreeAsync {
            ctx,
            stream,
            ptr: n.freed,
        }),
        Op::MemcpyHtoD => {
            bulk = vec![1; len.min(8) as usize];
            row(&req::MemcpyHtoD { ctx, stream, dst })
        }
        Op::MemcpyDtoH => row(&req::MemcpyDtoH {
            ctx,
            stream,
            src,
            len,
        }),
        Op::MemcpyDtoD => row(&req::MemcpyDtoD {
            ctx,
            stream,
            dst,
            src,
            len,
        }),
        Op::Memset => row(&req::Memset {
            ctx,
            stream,
            dst,
            value: 0,
            width: 1,
            count: len,
        }),
        Op::Memset2D => row(&req::Memset2D {
            ctx,
            stream,
            dst,
            pitch: len,
            value: 0,
            width: 1,
            columns: len,
            rows: 1,
        }),
        Op::Memcpy2DHtoD => {
            bulk = vec![1; len.min(8) as usize];
            row(&req::Memcpy2DHtoD {
                ctx,
                stream,
                dst,
                pitch: 1,
                width: 1,
            })
        }
        Op::Memcpy2DDtoH => row(&req::Memcpy2DDtoH {
            ctx,
            stream,
            src,
            pitch: 1,
            width: 1,
            rows: len,
        }),
        Op::Memcpy2DDtoD => row(&req::Memcpy2DDtoD {
            ctx,
            stream,
            dst,
            dst_pitch: len,
            src,
            src_pitch: len,
            width: len,
            rows: 1,
        }),
        Op::StreamWriteValue => row(&req::StreamWriteValue {
            ctx,
            stream,
            ptr: dst,
            value: 1,
            wide: len > 4,
            flags,
        }),
        Op::StreamWaitValue => row(&req::StreamWaitValue {
            ctx,
            stream,
            ptr: src,
            value: 0,
            wide: len > 4,
            flags,
        }),
        Op::HostFunc => row(&req::HostFunc {
            ctx,
            stream,
            number: 1,
        }),
        Op::HostFuncDone => row(&req::HostFuncDone { number: n.done }),
        Op::StreamCreate => row(&req::StreamCreate {
            ctx,
            stream: n.new_stream,
            flags,
            priority: 0,
        }),
        Op::StreamDestroy => row(&req::StreamDestroy { stream }),
        Op::StreamSynchronize => row(&req::StreamSynchronize { ctx, stream }),
        Op::StreamQuery => row(&req::StreamQuery { ctx, stream }),
        Op::StreamWaitEvent => row(&req::StreamWaitEvent {
            ctx,
            stream,
            event,
            flags,
        }),
        Op::EventCreate => row(&req::EventCreate {
            ctx,
            event: n.new_event,
            flags,
        }),
        Op::EventDestroy => row(&req::EventDestroy { event }),
        Op::EventRecord => row(&req::EventRecord {
            ctx,
            event,
            stream,
            flags,
        }),
        Op::EventQuery => row(&req::EventQuery { event }),
        Op::EventSynchronize => row(&req::EventSynchronize { event }),
        Op::EventElapsedTime => row(&req::EventElapsedTime {
            start: event,
            end: n.end,
        }),
        Op::GraphCreate => row(&req::GraphCreate {
            ctx,
            graph: n.new_stream,
        }),
        Op::GraphLaunch => row(&req::GraphLaunch {
            ctx,
            stream,
            graph: n.graph,
        }),
        Op::GraphDestroy => row(&req::GraphDestroy { graph: n.graph }),
        Op::GraphCondition => row(&req::GraphCondition {
            ctx,
            home: n.home,
            default: 0,
            flags,
        }),
        Op::GraphConditional => row(&req::GraphConditional {
            graph: n.graph,
            home: n.home,
            handle: n.condition,
            kind: 0,
            bodies: vec![n.body],
        }),
        Op::GraphBuild => row(&req::GraphBuild { graph: n.graph }),
        Op::ArrayCreate => row(&req::ArrayCreate {
            ctx,
            shape: SHAPE,
            levels: 0,
        }),
        Op::ArrayDestroy => row(&req::ArrayDestroy { block: n.block }),
        Op::MemcpyHtoA => {
            bulk = vec![1; 8];
            row(&req::MemcpyHtoA {
                ctx,
                stream,
                dst: n.array,
                at: [0; 3],
                width: 8,
            })
        }
        Op::MemcpyAtoH => row(&req::MemcpyAtoH {
            ctx,
            stream,
            src: n.array,
            at: [0; 3],
            width: 8,
            rows: 1,
        }),
        Op::MemcpyBox => row(&req::MemcpyBox {
            ctx,
            stream,
            dst: BoxSide::Memory {
                at: dst,
                pitch: len,
                rows: 1,
            },
            src: BoxSide::Array {
                array: n.array,
                at: [0; 3],
            },
            size: [len, 1, 1],
        }),
        Op::AddressReserve => row(&req::AddressReserve {
            size: UNIT,
            alignment: 0,
            wanted: 0,
            collided: Some(n.space),
        }),
        Op::AddressFree => row(&req::AddressFree { ptr: n.space }),
        Op::PhysicalCreate => row(&req::PhysicalCreate { device, size: UNIT }),
        Op::PhysicalRelease => row(&req::PhysicalRelease { memory: n.memory }),
        Op::MemMap => row(&req::MemMap {
            ptr: n.space,
            memory: n.memory,
        }),
        Op::MemUnmap => row(&req::MemUnmap {
            ptr: n.space,
            size: UNIT,
        }),
        Op::MemSetAccess => row(&req::MemSetAccess {
            ptr: n.space,
            size: UNIT,
            flags: 3,
        }),
        Op::MemGranularity => row(&req::MemGranularity { device, option: 0 }),
        Op::HostMap => row(&req::HostMap {
            ptr: SHADOW,
            size: 64,
        }),
        Op::HostUnmap => row(&req::HostUnmap { ptr: SHADOW }),
        Op::HostPush => {
            bulk = push(SHADOW);
            row(&req::HostPush {})
        }
        Op::HostPull => row(&req::HostPull {
            from: SHADOW,
            of: vec![SHADOW],
        }),
        Op::LaunchKernel => {
            bulk = vec![0; 28];
            row(&req::LaunchKernel {
                ctx,
                stream,
                func,
                grid: [1; 3],
                block: [1; 3],
                shared: 0,
                cooperative: false,
                cluster: [0; 3],
            })
        }
    }?;
    Ok((args, bulk))
}

/// A change of one byte of a block.
pub(super) fn push(at: DevPtr) -> Vec<u8> {
    [&at.0.to_le_bytes()[..], &1_u64.to_le_bytes(), &[7]].concat()
}

/// A graph that clears no bytes.
pub(super) fn graph(session: &mut Session, ctx: Ctx) -> Result<Stream> {
    let graph = Stream(session.fresh());
    session.send(&req::GraphCreate { ctx, graph })?;
    Ok(graph)
}

/// Operations that may name a graph instead of a stream.
pub(super) const RECORDED: [Op; 5] = [
    Op::LaunchKernel,
    Op::Memset,
    Op::Memset2D,
    Op::MemcpyDtoD,
    Op::Memcpy2DDtoD,
];

/// A link of one image that the host has.
pub(super) fn link_call(ctx: Ctx) -> req::Link {
    req::Link {
        ctx,
        inputs: vec![LinkInput {
            kind: 1,
            hash: *blake3::hash(VECADD).as_bytes(),
            len: VECADD.len() as u64,
            name: "vecadd".to_owned(),
        }],
        options: Vec::new(),
        info_log_len: 0,
        error_log_len: 0,
    }
}

/// A vector of 64 floats, of which copies take 32.
pub(super) fn tensor() -> Tensor {
    Tensor {
        data_type: 7,
        address: 0x1_0000,
        sizes: vec![64],
        strides: Vec::new(),
        element_strides: vec![1],
        window: Window::Box { sizes: vec![32] },
        interleave: 0,
        swizzle: 0,
        l2_promotion: 0,
        fill: 0,
    }
}
