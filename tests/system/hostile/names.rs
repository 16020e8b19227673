//! Forged and stale handles of every kind, and addresses outside live memory, in every operation
//! that takes them.

use anyhow::{Result, ensure};
use vgpu_proto::call::{OPS, Op, req};
use vgpu_proto::cuda::{
    Array, ArrayBlock, Ctx, DevPtr, Event, Func, Linked, Module, Physical, Stream,
};
use vgpu_tests::hostile::Session;

use super::calls::{LEN, Names, RECORDED, SHAPE, UNIT, call, graph, link_call};
use super::{Adder, Scene, VECADD, is_refusal};

/// Live names, and stale names of each kind.
struct Objects {
    live: Names,
    stale: Names,
}

fn names(session: &mut Session, ctx: Ctx, ptr: DevPtr) -> Result<Names> {
    let home = Stream(session.fresh());
    let (default, flags) = (0, 0);
    let condition = req::GraphCondition {
        ctx,
        home,
        default,
        flags,
    };
    let module = session.module(ctx, VECADD)?;
    let (shape, levels, device) = (SHAPE, 0, 0);
    let made = session.ask(&req::ArrayCreate { ctx, shape, levels })?;
    let reserve = req::AddressReserve {
        size: UNIT,
        alignment: 0,
        wanted: 0,
        collided: None,
    };
    let size = UNIT;
    Ok(Names {
        device: 0,
        ctx,
        stream: session.stream(ctx, 0),
        event: session.event(ctx, 0),
        end: session.event(ctx, 0),
        module,
        func: session.function(module, "vecadd")?,
        link: session.ask(&link_call(ctx))?.link,
        graph: graph(session, ctx)?,
        body: graph(session, ctx)?,
        home,
        condition: session.ask(&condition)?.handle,
        done: 7,
        new_stream: Stream(session.fresh()),
        new_event: Event(session.fresh()),
        array: made.arrays[0],
        block: made.block,
        memory: session.ask(&req::PhysicalCreate { device, size })?.memory,
        space: session.ask(&reserve)?.ptr,
        dst: ptr,
        src: ptr,
        freed: ptr,
        collided: ptr,
        len: 8,
    })
}

fn objects(session: &mut Session) -> Result<Objects> {
    let ctx = session.primary()?;
    let ptr = session.alloc(ctx, LEN)?;
    let live = names(session, ctx, ptr)?;
    let (device, flags) = (0, 0);
    let old = session.ask(&req::CtxCreate { device, flags })?.ctx;
    let freed = session.alloc(old, LEN)?;
    let stale = names(session, old, freed)?;
    session.ask(&req::CtxDestroy { ctx: old })?;
    // These do not belong to a context.
    let (ptr, memory) = (stale.space, stale.memory);
    session.ask(&req::AddressFree { ptr })?;
    session.ask(&req::PhysicalRelease { memory })?;
    // Results of links belong to no context, and are dropped when they are fetched.
    session.ask(&req::LinkData { link: stale.link })?;
    Ok(Objects { live, stale })
}

/// Sets a number in a call.
type Setter = fn(&mut Names, u64);

/// A kind of handle: its name, the setter in a call, and the getter.
type Kind = (&'static str, Setter, fn(&Names) -> u64);

/// A context is checked if the stream is its NULL stream; other streams have their own context.
const KINDS: [Kind; 16] = [
    (
        "context",
        |n, v| (n.ctx, n.stream) = (Ctx(v), Stream::NULL),
        |n| n.ctx.0,
    ),
    ("stream", |n, v| n.stream = Stream(v), |n| n.stream.0),
    ("event", |n, v| n.event = Event(v), |n| n.event.0),
    ("second event", |n, v| n.end = Event(v), |n| n.end.0),
    ("module", |n, v| n.module = Module(v), |n| n.module.0),
    ("function", |n, v| n.func = Func(v), |n| n.func.0),
    ("link", |n, v| n.link = Linked(v), |n| n.link.0),
    ("graph", |n, v| n.graph = Stream(v), |n| n.graph.0),
    ("body", |n, v| n.body = Stream(v), |n| n.body.0),
    ("home", |n, v| n.home = Stream(v), |n| n.home.0),
    ("condition", |n, v| n.condition = v, |n| n.condition),
    ("host function", |n, v| n.done = v, |n| n.done),
    ("array", |n, v| n.array = Array(v), |n| n.array.0),
    ("block", |n, v| n.block = ArrayBlock(v), |n| n.block.0),
    ("memory", |n, v| n.memory = Physical(v), |n| n.memory.0),
    ("addresses", |n, v| n.space = DevPtr(v), |n| n.space.0),
];

/// Numbers that are not live handles of the kind.
fn forged(o: &Objects, foreign: &Names, get: fn(&Names) -> u64) -> Vec<u64> {
    let live = get(&o.live);
    let mut all = vec![
        1,
        2,
        u64::MAX,
        i64::MAX as u64,
        1 << 63,
        live ^ 1,
        live ^ (1 << 20),
    ];
    all.extend([live ^ (1 << 24), live + (1 << 40), live.wrapping_neg()]);
    all.push(get(&o.stale));
    // Live handles of every other kind, and live handles of another program of the same VM.
    for names in [&o.live, foreign] {
        all.extend(KINDS.iter().map(|(_, _, get)| get(names)));
        all.push(names.dst.0);
    }
    let is_live: Vec<u64> = match get(&o.live) {
        // `event` and `end` are both events, so either is a live event.
        n if n == o.live.event.0 || n == o.live.end.0 => vec![o.live.event.0, o.live.end.0],
        // All recordings are alike, and a home is destroyed like a recording.
        n if n == o.live.graph.0 || n == o.live.body.0 => {
            vec![o.live.graph.0, o.live.body.0, o.live.home.0]
        }
        n => vec![n],
    };
    all.retain(|n| !is_live.contains(n));
    all
}

#[track_caller]
fn refused(session: &mut Session, op: Op, n: &Names, what: &str) -> Result<()> {
    let (args, bulk) = call(op, n)?;
    let status = session.status_args(op, &args, &bulk)?;
    ensure!(is_refusal(status), "{} with {what}: {status}", op.name());
    Ok(())
}

/// A second program of the VM, whose objects the first program must not reach. The second program
/// has more objects of each kind, so that its handles do not happen to be live in the first
/// program.
fn foreigner(scene: &Scene) -> Result<(Session, Names)> {
    let mut other = scene.open()?;
    let ctx = other.primary()?;
    for _ in 0..20 {
        let (device, flags) = (0, 0);
        other.ask(&req::CtxCreate { device, flags })?;
        names(&mut other, ctx, DevPtr(0))?;
    }
    let mut last = other.alloc(ctx, 1 << 20)?;
    for _ in 0..20 {
        last = last.max(other.alloc(ctx, 1 << 20)?);
    }
    let (device, flags) = (0, 0);
    let ctx = other.ask(&req::CtxCreate { device, flags })?.ctx;
    let names = names(&mut other, ctx, last)?;
    Ok((other, names))
}

#[test]
fn forged_handles_are_refused_by_every_operation() -> Result<()> {
    let scene = Scene::new()?;
    let (other, foreign) = foreigner(&scene)?;
    let mut session = scene.open()?;
    let o = objects(&mut session)?;
    let adder = Adder::new(&mut session)?;
    let mut tried = std::collections::BTreeSet::new();
    for row in OPS {
        for (kind, set, get) in KINDS {
            let with = |value| {
                let mut names = o.live.clone();
                set(&mut names, value);
                names
            };
            let right = call(row.op, &with(get(&o.live)))?;
            for value in forged(&o, &foreign, get) {
                let names = with(value);
                let recordings = [o.live.graph.0, o.live.body.0];
                let recorded = RECORDED.contains(&row.op) && recordings.contains(&value);
                // A missing home is created.
                let made = row.op == Op::GraphCondition;
                if (recorded && kind == "stream") || (made && kind == "home") {
                    continue;
                }
                if call(row.op, &names)? != right {
                    tried.insert(row.op as u16);
                    refused(&mut session, row.op, &names, &format!("{kind} {value:#x}"))?;
                }
            }
        }
        for device in [1, 2, 64, i32::MAX as u32, u32::MAX] {
            let names = Names {
                device,
                ..o.live.clone()
            };
            if call(row.op, &names)? != call(row.op, &o.live)? {
                tried.insert(row.op as u16);
                refused(&mut session, row.op, &names, &format!("device {device}"))?;
            }
        }
    }
    // All operations except the two about images and those that take an address: the free of
    // memory, and the four about memory of the program.
    ensure!(
        tried.len() == OPS.len() - 7,
        "tried {} of {}",
        tried.len(),
        OPS.len()
    );
    adder.works(&mut session)?;
    drop((session, other));
    scene.unharmed()
}

#[test]
fn names_that_the_guest_may_not_give_are_refused() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let o = objects(&mut session)?;
    let n = &o.live;
    for name in [
        0,
        1,
        n.stream.0,
        n.event.0,
        n.ctx.0,
        n.dst.0,
        0x0fff_ffff_ffff_ffff,
        0x2000_0000_0000_0000,
        u64::MAX,
    ] {
        let (new_stream, new_event) = (Stream(name), Event(name));
        let names = Names {
            new_stream,
            new_event,
            home: new_stream,
            ..n.clone()
        };
        if name != n.event.0 {
            refused(
                &mut session,
                Op::GraphCondition,
                &names,
                &format!("name {name:#x}"),
            )?;
            refused(
                &mut session,
                Op::StreamCreate,
                &names,
                &format!("name {name:#x}"),
            )?;
            refused(
                &mut session,
                Op::GraphCreate,
                &names,
                &format!("name {name:#x}"),
            )?;
        }
        if name != n.stream.0 {
            refused(
                &mut session,
                Op::EventCreate,
                &names,
                &format!("name {name:#x}"),
            )?;
        }
    }
    // A function and an event of one context, with a stream of another context.
    let (device, flags) = (0, 0);
    let other = session.ask(&req::CtxCreate { device, flags })?.ctx;
    let stream = Names {
        stream: session.stream(other, 0),
        ..n.clone()
    };
    let event = Names {
        event: session.event(other, 0),
        ..n.clone()
    };
    for (op, names, what) in [
        (Op::LaunchKernel, &stream, "a stream of another context"),
        (Op::EventRecord, &stream, "a stream of another context"),
        (Op::EventRecord, &event, "an event of another context"),
    ] {
        refused(&mut session, op, names, what)?;
    }
    Adder::new(&mut session)?.works(&mut session)?;
    drop(session);
    scene.unharmed()
}

/// The calls of [`call`] fill single bytes. The ranges are aligned, so that only the check of the
/// range can refuse them.
fn wide_fills_outside_live_memory_are_refused(
    session: &mut Session,
    o: &Objects,
    foreign: &Names,
) -> Result<()> {
    let (ctx, stream) = (o.live.ctx, o.live.stream);
    let base = o.live.dst.0;
    for (address, len) in [
        (0, 8),
        (base - 4, 8),
        (base + LEN, 8),
        (base + LEN - 4, 8),
        (base, LEN + 4),
        (o.stale.dst.0, 8),
        (foreign.dst.0, 8),
        (1 << 63, 8),
    ] {
        let dst = DevPtr(address);
        for width in [2_u8, 4] {
            let count = len.div_ceil(u64::from(width));
            let fill = req::Memset {
                ctx,
                stream,
                dst,
                value: 0,
                width,
                count,
            };
            let status = session.status(&fill)?;
            let what = format!("{count:#x} of {width} bytes at {address:#x}");
            ensure!(is_refusal(status), "{what}: {status}");
            let fill = req::Memset2D {
                ctx,
                stream,
                dst,
                pitch: 1 << 20,
                value: 0,
                width,
                columns: count,
                rows: 1,
            };
            let status = session.status(&fill)?;
            ensure!(is_refusal(status), "a row of {what}: {status}");
        }
    }
    Ok(())
}

#[test]
fn addresses_outside_live_memory_are_refused_by_every_operation() -> Result<()> {
    let scene = Scene::new()?;
    let (other, foreign) = foreigner(&scene)?;
    let mut session = scene.open()?;
    let o = objects(&mut session)?;
    let base = o.live.dst.0;
    let here = std::ptr::from_ref(&o) as u64;
    let bad = [
        (0, 1),
        (1, 8),
        (u64::MAX, 1),
        (u64::MAX - 3, 8),
        (base - 1, 1),
        (base - 1, 8),
        (base + LEN, 1),
        (base + LEN - 1, 2),
        (base + LEN - 7, 8),
        (base, LEN + 1),
        (base, u64::MAX),
        (base, u64::MAX - base + 1),
        (base + 8, u64::MAX - 4),
        (base, 1 << 63),
        (o.stale.dst.0, 8),
        (foreign.dst.0, 8),
        (here, 8),
        (0x40_0000, 8),
        (1 << 63, 8),
        (base | 1 << 63, 8),
    ];
    let sets: [(&str, Setter); 2] = [
        ("destination", |n, v| n.dst = DevPtr(v)),
        ("source", |n, v| n.src = DevPtr(v)),
    ];
    for row in OPS {
        for (kind, set) in sets {
            for (address, len) in bad {
                let mut right = o.live.clone();
                right.len = len;
                let mut names = right.clone();
                set(&mut names, address);
                // A long range ends outside live memory even at a valid address. The operations
                // listed here take their length from their data instead.
                let data = matches!(
                    row.op,
                    Op::MemcpyHtoD | Op::Memcpy2DHtoD | Op::StreamWriteValue | Op::StreamWaitValue
                );
                let bounded = data && len > 8;
                let matters = call(row.op, &names)? != call(row.op, &right)?
                    || (len > 8 && call(row.op, &right)? != call(row.op, &o.live)?);
                let matters = matters && !bounded;
                if matters {
                    let what = format!("{kind} {address:#x} + {len:#x}");
                    refused(&mut session, row.op, &names, &what)?;
                }
            }
        }
    }
    wide_fills_outside_live_memory_are_refused(&mut session, &o, &foreign)?;
    // An address to free, or reported as collided, must be the beginning of the guest's own block.
    for address in [
        1,
        u64::MAX,
        base - 1,
        base + 1,
        base + 8,
        base + 512,
        base + LEN,
        o.stale.freed.0,
        foreign.freed.0,
        here,
        1 << 63,
    ] {
        let ptr = DevPtr(address);
        let names = Names {
            freed: ptr,
            collided: ptr,
            ..o.live.clone()
        };
        refused(&mut session, Op::MemFree, &names, &format!("{address:#x}"))?;
        refused(&mut session, Op::MemAlloc, &names, &format!("{address:#x}"))?;
        for op in [Op::MemFreeAsync, Op::MemAllocAsync] {
            refused(&mut session, op, &names, &format!("{address:#x}"))?;
        }
    }
    // Unlike the free of address 0, which succeeds as in the driver.
    let null = Names {
        collided: DevPtr(0),
        ..o.live.clone()
    };
    refused(&mut session, Op::MemAlloc, &null, "address 0")?;
    // Freed twice; used after the free; reported as collided, then used.
    ensure!(
        session.status(&req::MemFree { ptr: o.live.dst })?.is_ok(),
        "freed"
    );
    refused(&mut session, Op::MemFree, &o.live, "a block that is free")?;
    for op in [
        Op::MemFreeAsync,
        Op::Memcpy2DHtoD,
        Op::Memcpy2DDtoH,
        Op::Memcpy2DDtoD,
        Op::StreamWriteValue,
        Op::StreamWaitValue,
        Op::MemcpyHtoD,
        Op::MemcpyDtoH,
        Op::MemcpyDtoD,
        Op::Memset,
        Op::Memset2D,
    ] {
        refused(&mut session, op, &o.live, "a block that is free")?;
    }
    let parked = session.alloc(o.live.ctx, LEN)?;
    let names = Names {
        dst: parked,
        src: parked,
        freed: parked,
        ..o.live.clone()
    };
    let collided = Some(parked);
    let ctx = o.live.ctx;
    session.ask(&req::MemAlloc {
        ctx,
        size: LEN,
        collided,
    })?;
    for op in [
        Op::MemcpyHtoD,
        Op::MemcpyDtoH,
        Op::Memset,
        Op::MemFree,
        Op::MemFreeAsync,
        Op::Memcpy2DDtoD,
    ] {
        refused(&mut session, op, &names, "a block that collided")?;
    }
    Adder::new(&mut session)?.works(&mut session)?;
    drop((session, other));
    scene.unharmed()
}
