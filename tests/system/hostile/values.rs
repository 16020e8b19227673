//! Invalid sizes, dimensions, parameters and options, with valid names.

use anyhow::{Result, ensure};
use vgpu_proto::call::{Op, Tensor, Window, req};
use vgpu_proto::cuda::{CuResult, DevPtr, Stream};
use vgpu_proto::limits::MAX_KERNEL_PARAMS;
use vgpu_tests::guest::{self, Guest, expect_right};
use vgpu_wire::load_call;

use super::calls::tensor;
use super::{Adder, Scene, VECADD, is_refusal};

#[test]
fn sizes_that_no_device_has_are_refused() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let adder = Adder::new(&mut session)?;
    let ctx = adder.ctx;
    let alloc = |size| req::MemAlloc {
        ctx,
        size,
        collided: None,
    };
    let none = session.status(&alloc(0))?;
    ensure!(none == CuResult::INVALID_VALUE, "no bytes: {none}");
    for size in [1 << 40, 1 << 63, u64::MAX - 511, u64::MAX] {
        let status = session.status(&alloc(size))?;
        ensure!(status == CuResult::OUT_OF_MEMORY, "{size:#x}: {status}");
    }
    let dst = adder.arrays[0];
    let stream = Stream::NULL;
    for (width, count) in [
        (0, 1),
        (3, 1),
        (8, 1),
        (255, 1),
        (4, 1 << 62),
        (4, (1 << 62) + 1),
        (2, 1 << 63),
        (1, u64::MAX),
    ] {
        let fill = req::Memset {
            ctx,
            stream,
            dst,
            value: 0,
            width,
            count,
        };
        let status = session.status(&fill)?;
        ensure!(is_refusal(status), "{count:#x} of {width} bytes: {status}");
    }
    for (dst, width) in [(dst.0 + 1, 2), (dst.0 + 2, 4)] {
        let dst = DevPtr(dst);
        let fill = req::Memset {
            ctx,
            stream,
            dst,
            value: 0,
            width,
            count: 1,
        };
        ensure!(is_refusal(session.status(&fill)?), "not aligned");
    }
    for (pitch, width, columns, rows) in [
        (8, 1, 16, 2),
        (0, 1, 1, 2),
        (u64::MAX, 1, 1, 2),
        (u64::MAX, 1, 1, u64::MAX),
        (1 << 40, 1, 1, 1 << 40),
        (1 << 32, 1, 1, (1 << 32) + 1),
        (16, 1, 16, u64::MAX),
        (1022, 2, 1, 3),
        (513, 2, 1, 2),
        (512, 4, 1 << 62, 1),
    ] {
        let fill = req::Memset2D {
            ctx,
            stream,
            dst,
            pitch,
            value: 0,
            width,
            columns,
            rows,
        };
        let status = session.status(&fill)?;
        ensure!(
            is_refusal(status),
            "{rows:#x} rows of {columns:#x}: {status}"
        );
    }
    // An empty fill is accepted.
    for fill in [(0, 5), (5, 0), (0, 0)] {
        let (columns, rows) = fill;
        let fill = req::Memset2D {
            ctx,
            stream,
            dst,
            pitch: 64,
            value: 0,
            width: 1,
            columns,
            rows,
        };
        ensure!(session.status(&fill)?.is_ok(), "an empty rectangle");
    }
    adder.works(&mut session)?;
    drop(session);
    scene.unharmed()
}

#[test]
fn launches_that_fit_no_device_are_refused() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let adder = Adder::new(&mut session)?;
    let params = adder.params();
    let one = [1; 3];
    for (grid, block, shared) in [
        ([0, 1, 1], one, 0),
        ([1, 0, 1], one, 0),
        ([1, 1, 0], one, 0),
        (one, [0, 1, 1], 0),
        (one, [1, 0, 1], 0),
        (one, [1, 1, 0], 0),
        ([1, 65_536, 1], one, 0),
        ([1, 1, 65_536], one, 0),
        ([1 << 31, 1, 1], one, 0),
        ([u32::MAX; 3], one, 0),
        (one, [1025, 1, 1], 0),
        (one, [1024, 2, 1], 0),
        (one, [1, 1, 65], 0),
        (one, [65_536, 65_536, 1], 0),
        (one, [u32::MAX; 3], 0),
        (one, one, 48 * 1024 + 1),
        (one, one, u32::MAX),
    ] {
        let status = session.status_bulk(&adder.launch(grid, block, shared), &params)?;
        ensure!(is_refusal(status), "{grid:?} {block:?} {shared}: {status}");
    }
    let launch = adder.launch(one, one, 0);
    for len in [0, 1, 8, params.len() - 1, MAX_KERNEL_PARAMS + 1, 1 << 20] {
        let status = session.status_bulk(&launch, &vec![0; len])?;
        ensure!(is_refusal(status), "{len} bytes of parameters: {status}");
    }
    let cooperative = req::LaunchKernel {
        cooperative: true,
        ..adder.launch([65_535, 1, 1], [1024, 1, 1], 0)
    };
    // The driver decides at submission whether all blocks fit at the same time.
    session.send_bulk(&cooperative, &params)?;
    let ctx = adder.ctx;
    let status = session.status(&req::CtxSynchronize { ctx })?;
    let errors: Vec<CuResult> = session.errors.drain(..).map(|(_, code)| code).collect();
    ensure!(
        status.is_ok() && errors.last() == Some(&CuResult::COOPERATIVE_LAUNCH_TOO_LARGE),
        "{status}, {errors:?}"
    );
    adder.works(&mut session)?;
    drop(session);
    scene.unharmed()
}

#[test]
fn data_without_end_after_a_device_fault_ends_the_session_without_a_strike() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let adder = Adder::new(&mut session)?;
    adder.faults(&mut session)?;
    let piece = vec![0; 1 << 20];
    // The bound is the VM's queue and 256 MiB.
    let mut send = || {
        session.post_args(Op::HostPush as u16, &[], &piece);
        session.flush().is_ok()
    };
    let sent = (0..1_024).take_while(|_| send()).count();
    ensure!((256..512).contains(&sent), "{sent} MiB");
    session.ended()?;
    let vm = scene.host.vm(1)?;
    ensure!(vm["strikes"] == 0, "{vm:#}");
    scene.unharmed()
}

#[test]
fn a_program_that_copies_behind_a_fault_gets_the_fault_and_no_strike() -> Result<()> {
    let scene = Scene::new()?;
    expect_right(&Guest::new(guest::FAULT, scene.host.target(1))?)?;
    let vm = scene.host.vm(1)?;
    ensure!(vm["strikes"] == 0, "{vm:#}");
    scene.unharmed()
}

#[test]
fn a_kernel_with_wild_pointers_harms_only_its_own_session() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let adder = Adder::new(&mut session)?;
    adder.faults(&mut session)?;
    let ctx = adder.ctx;
    // The fault is permanent, and the session stays consistent about it.
    let status = session.status(&req::MemGetInfo { ctx })?;
    ensure!(status == CuResult::ILLEGAL_ADDRESS, "{status}");
    drop(session);
    scene.unharmed()
}

#[test]
fn options_and_attributes_outside_the_lists_are_refused() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let adder = Adder::new(&mut session)?;
    let (ctx, func) = (adder.ctx, adder.func);
    let image = session.send_image(VECADD)?;
    let load = |options: Vec<(u32, u32)>| req::ModuleLoad {
        options,
        ..load_call(ctx, image)
    };
    // The value of some options would be an address in the worker, and that of unknown options
    // could be.
    for option in [2, 3, 4, 5, 6, 17, 18, 25, 27, 99, u32::MAX] {
        let status = session.status(&load(vec![(option, 1)]))?;
        ensure!(is_refusal(status), "JIT option {option}: {status}");
    }
    let many = session.status(&load(vec![(7, 2); 5000]))?;
    ensure!(is_refusal(many), "5000 options: {many}");
    for attribute in [18, 99, 1 << 31, u32::MAX] {
        let set = req::FuncSetAttribute {
            func,
            attribute,
            value: 1,
        };
        ensure!(is_refusal(session.status(&set)?), "attribute {attribute}");
        let get = req::FuncGetAttribute { func, attribute };
        ensure!(is_refusal(session.status(&get)?), "attribute {attribute}");
    }
    for value in [-1, i32::MIN, i32::MAX] {
        let set = req::FuncSetAttribute {
            func,
            attribute: 8,
            value,
        };
        let status = session.status(&set)?;
        ensure!(
            !status.is_ok() && !status.is_sticky(),
            "{value} bytes: {status}"
        );
    }
    for (limit, value) in [
        (0, u64::MAX),
        (1, u64::MAX),
        (2, u64::MAX),
        (7, 1),
        (u32::MAX, 1),
    ] {
        let set = req::CtxSetLimit { ctx, limit, value };
        let status = session.status(&set)?;
        ensure!(
            !status.is_ok() && !status.is_sticky(),
            "limit {limit}: {status}"
        );
    }
    let (limit, value) = (99, 1);
    let status = session.status(&req::CtxSetLimit { ctx, limit, value })?;
    ensure!(status == CuResult::UNSUPPORTED_LIMIT, "limit 99: {status}");
    let config = 77;
    let status = session.status(&req::FuncSetCacheConfig { func, config })?;
    ensure!(is_refusal(status), "a function's cache: {status}");
    let status = session.status(&req::CtxSetCacheConfig { ctx, config })?;
    ensure!(is_refusal(status), "a context's cache: {status}");
    let create = req::StreamCreate {
        ctx,
        stream: Stream(session.fresh()),
        flags: 0xff,
        priority: 0,
    };
    let status = session.status(&create)?;
    ensure!(is_refusal(status), "flags of a stream: {status}");
    for block_size in [0, -1, i32::MIN] {
        let ask = req::OccupancyBlocks {
            func,
            block_size,
            dynamic_shared: u64::MAX,
            flags: 0,
        };
        ensure!(is_refusal(session.status(&ask)?), "blocks of {block_size}");
    }
    // The lists of a tensor have an entry for each dimension; the driver would read beyond others.
    let lists = [
        Tensor {
            strides: vec![64],
            ..tensor()
        },
        Tensor {
            element_strides: Vec::new(),
            ..tensor()
        },
        Tensor {
            window: Window::Box { sizes: Vec::new() },
            ..tensor()
        },
        Tensor {
            sizes: Vec::new(),
            ..tensor()
        },
        Tensor {
            sizes: vec![1; 6],
            strides: vec![16; 5],
            element_strides: vec![1; 6],
            window: Window::Box { sizes: vec![1; 6] },
            ..tensor()
        },
        Tensor {
            window: Window::Pixels {
                lower: Vec::new(),
                upper: Vec::new(),
                channels: 1,
                pixels: 1,
            },
            ..tensor()
        },
    ];
    for tensor in lists {
        let status = session.status(&req::TensorMapEncode { ctx, tensor })?;
        ensure!(status == CuResult::INVALID_VALUE, "{status}");
    }
    // The control: this device refuses a valid tensor for another reason.
    let tensor = tensor();
    let status = session.status(&req::TensorMapEncode { ctx, tensor })?;
    ensure!(status == CuResult::NOT_SUPPORTED, "{status}");
    for flags in [0x100, u32::MAX] {
        let device = 0;
        let set = req::PrimaryCtxSetFlags { device, flags };
        ensure!(is_refusal(session.status(&set)?), "flags {flags:#x}");
        let create = req::CtxCreate { device, flags };
        ensure!(is_refusal(session.status(&create)?), "flags {flags:#x}");
    }
    adder.works(&mut session)?;
    drop(session);
    scene.unharmed()
}
