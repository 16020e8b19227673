//! Too many requests, too much data, too many objects.

use anyhow::{Result, ensure};
use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::codec::{decode, encode};
use vgpu_proto::cuda::{CuResult, Stream};
use vgpu_proto::limits::DEPTH_CALLS;
use vgpu_tests::hostile::Session;
use vgpu_tests::wait::{SOON, until};

use super::{Adder, SPIN, Scene, resident};

/// Additional host memory that a worker may use, in bytes, whatever its guest does not read.
const SLACK: u64 = 96 << 20;

#[test]
fn a_guest_that_never_reads_holds_up_nobody_and_takes_no_memory() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let (stream, len) = (Stream::NULL, 64 << 20);
    let src = session.alloc(ctx, len)?;
    let fill = req::Memset {
        ctx,
        stream,
        dst: src,
        value: 7,
        width: 1,
        count: len,
    };
    session.send(&fill)?;
    session.ask(&req::StreamSynchronize { ctx, stream })?;
    let worker = scene.worker()?;
    let before = resident(worker);
    for _ in 0..256 {
        session.send(&req::MemcpyDtoH {
            ctx,
            stream,
            src,
            len,
        })?;
    }
    for _ in 0..3 {
        scene.neighbour_computes()?;
        let now = resident(worker);
        ensure!(now < before + SLACK, "{before} bytes, then {now}");
    }
    // A guest that starts to read gets the whole first reply.
    let first = session.send(&req::StreamQuery { ctx, stream })? - 256;
    let reply = session.wait(first)?;
    ensure!(
        reply.status.is_ok() && reply.bulk.len() as u64 == len,
        "{}",
        reply.status
    );
    ensure!(reply.bulk.iter().all(|b| *b == 7), "other bytes");
    // A guest that vanishes leaves nothing, whatever was in flight.
    drop(session);
    scene.unharmed()
}

#[test]
fn replies_that_nobody_reads_take_no_memory() -> Result<()> {
    let scene = Scene::new()?;
    for op in [
        Op::CtxSetLimit,
        Op::MemGetInfo,
        Op::StreamSynchronize,
        Op::MemFree,
    ] {
        let mut session = scene.open()?;
        let ctx = session.primary()?;
        let args = match op {
            // A helper thread of the worker, which may wait, carries out each of these operations.
            Op::CtxSetLimit => encode(&req::CtxSetLimit {
                ctx,
                limit: 0,
                value: 2048,
            })?,
            Op::MemGetInfo => encode(&req::MemGetInfo { ctx })?,
            Op::StreamSynchronize => {
                let stream = Stream::NULL;
                encode(&req::StreamSynchronize { ctx, stream })?
            }
            _ => encode(&req::MemFree {
                ptr: vgpu_proto::cuda::DevPtr(12345),
            })?,
        };
        let worker = scene.worker()?;
        let before = resident(worker);
        let timeout = std::time::Duration::from_millis(300);
        session.data.set_write_timeout(Some(timeout))?;
        for _ in 0..400 {
            for _ in 0..1000 {
                session.post_args(op as u16, &args, &[]);
            }
            // A write fails when the host stops reading or has closed the connection.
            let ended = session.flush().is_err();
            let now = resident(worker);
            ensure!(
                now < before + SLACK,
                "{}: {before} bytes, then {now}",
                op.name()
            );
            if ended {
                break;
            }
        }
        drop(session);
        scene.vm_is_clean()?;
    }
    scene.unharmed()
}

#[test]
fn many_objects_are_made_and_gone() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let adder = Adder::new(&mut session)?;
    let ctx = adder.ctx;
    let many = 10_000;
    for _ in 0..many {
        let (stream, event) = (session.stream(ctx, 0), session.event(ctx, 0));
        let sent = session.send(&req::EventRecord {
            ctx,
            event,
            stream,
            flags: 0,
        })?;
        keep_within_credit(&mut session, sent)?;
    }
    ensure!(
        session.status(&req::CtxSynchronize { ctx })?.is_ok(),
        "synchronised"
    );
    ensure!(session.errors.is_empty(), "{:?}", session.errors.first());
    adder.works(&mut session)?;
    // One reset of the primary context destroys all of these streams and events. The host replies
    // before the read of the reply times out.
    let status = session.status(&req::PrimaryCtxReset { device: 0 })?;
    ensure!(status.is_ok(), "{status}");
    drop(session);
    scene.unharmed()
}

/// Reads depth credit like an honest guest: before it sends more than its credit.
fn keep_within_credit(session: &mut Session, sent: u64) -> Result<()> {
    while sent - session.progress.calls.min(sent) > u64::from(DEPTH_CALLS) / 2 {
        ensure!(session.read_frame()?, "the host closed the connection");
    }
    Ok(())
}

#[test]
fn a_program_may_free_all_it_has_behind_a_long_kernel() -> Result<()> {
    let scene = Scene::new()?;
    let limits = "--soft-limit=60s --hard-limit=120s --contended-limit=120s";
    scene.host.admin(&format!("pool set A {limits}"))?;
    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let module = session.module(ctx, SPIN)?;
    let func = session.function(module, "spin_ns")?;
    // More frees than the limit of waiting synchronous calls; a free is answered at once.
    let many = DEPTH_CALLS as usize + 1000;
    let alloc = req::MemAlloc {
        ctx,
        size: 512,
        collided: None,
    };
    let mut blocks = Vec::new();
    for _ in 0..many {
        blocks.push(session.send(&alloc)?);
    }
    let mut ptrs = Vec::new();
    for id in blocks {
        let reply = session.wait(id)?;
        ptrs.push(decode::<rep::MemAlloc>(&reply.args)?.ptr);
    }
    let ns = 1_500_000_000u64.to_le_bytes();
    session.launch((ctx, Stream::NULL), func, (1, 1), &ns);
    let mut freed = Vec::new();
    for ptr in ptrs {
        freed.push(session.send(&req::MemFree { ptr })?);
    }
    for id in freed {
        let status = session.wait(id)?.status;
        ensure!(status.is_ok(), "{status}");
    }
    let status = session.status(&req::CtxSynchronize { ctx })?;
    ensure!(status.is_ok(), "{status}");
    // The memory is free again.
    let most = session.alloc(ctx, 900 << 20)?;
    ensure!(
        session.status(&req::MemFree { ptr: most })?.is_ok(),
        "freed"
    );
    drop(session);
    scene.unharmed()
}

#[test]
fn denied_allocations_again_and_again_hold_up_nobody() -> Result<()> {
    let scene = Scene::new()?;
    scene.host.admin("vm set 1 --memory=64MiB")?;
    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let adder = Adder::new(&mut session)?;
    // vgpud is asked for each allocation, and grants none.
    let alloc = req::MemAlloc {
        ctx,
        size: 1 << 30,
        collided: None,
    };
    let mut ids = Vec::new();
    for _ in 0..4000 {
        ids.push(session.send(&alloc)?);
    }
    scene.neighbour_computes()?;
    for id in ids {
        let status = session.wait(id)?.status;
        ensure!(status == CuResult::OUT_OF_MEMORY, "{status}");
    }
    adder.works(&mut session)?;
    until("the ledger says so", SOON, || {
        (scene.host.vm(1).ok()?["memory_bytes"].as_u64()? <= 64 << 20).then_some(())
    })?;
    drop(session);
    scene.host.admin("vm set 1 --memory=none").ok();
    scene.unharmed()
}
