//! Frames that are invalid, too many, or incomplete.

use std::io::Write;

use anyhow::{Result, ensure};
use vgpu_proto::call::{OPS, Op, req};
use vgpu_proto::codec::encode;
use vgpu_proto::cuda::{CuResult, Stream};
use vgpu_proto::frame::Header;
use vgpu_proto::limits::{COPY_PIECE, DEPTH_BYTES, DEPTH_CALLS, MAX_ARGS, MAX_BULK};
use vgpu_tests::wait::{SOON, until};

use super::{Adder, SPIN, Scene};

/// A header with these lengths, for the first request.
fn header(op: u16, args: u32, bulk: u32) -> Vec<u8> {
    let mut bytes = Header::request(op, 1, 0, 0).to_bytes().to_vec();
    bytes[8..12].copy_from_slice(&args.to_le_bytes());
    bytes[16..20].copy_from_slice(&bulk.to_le_bytes());
    bytes
}

fn with(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    bytes[at] = value;
    bytes
}

#[test]
fn frames_that_are_none_end_the_session_with_a_sentence() -> Result<()> {
    let scene = Scene::new()?;
    let query = Op::MemGetInfo as u16;
    let trailing = [header(query, 9, 0), vec![0; 9]].concat();
    let short = [header(query, 7, 0), vec![0; 7]].concat();
    let bulk = [header(query, 8, 4), vec![0; 12]].concat();
    let load = Op::ModuleLoad as u16;
    // Options that announce 2^64 - 1 elements.
    let lying = [header(load, 56, 0), vec![0; 48], vec![0xff; 8]].concat();
    let huge_args = header(query, MAX_ARGS as u32 + 1, 0);
    let huge_bulk = header(Op::MemcpyHtoD as u16, 24, MAX_BULK as u32 + 1);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![0; 64], "magic"),
        (vec![0xff; 100_000], "magic"),
        (huge_args, "at most"),
        (huge_bulk, "at most"),
        (header(query, u32::MAX, u32::MAX), "at most"),
        (with(header(query, 8, 0), 4, 2), "reserved"),
        (with(header(query, 8, 0), 5, 0x80), "reserved"),
        (with(header(query, 8, 0), 6, 1), "reserved"),
        (with(header(query, 8, 0), 20, 1), "reserved"),
        (with(header(query, 0, 0), 24, 0), "was due"),
        (with(header(query, 0, 0), 24, 2), "was due"),
        (with(header(query, 0, 0), 31, 0x80), "was due"),
        (header(query, 0, 0), "malformed"),
        (short, "malformed"),
        (trailing, "trailing"),
        (lying, "malformed"),
        (bulk, "bulk"),
        (header(0, 0, 0), "unknown operation"),
        (header(0x4001, 0, 0), "unknown operation"),
        (header(0x8001, 0, 0), "unknown operation"),
        (header(u16::MAX, 0, 0), "unknown operation"),
    ];
    for (wire, sentence) in cases {
        let mut session = scene.open()?;
        session.data.write_all(&wire)?;
        let (code, text) = session.ended()?;
        ensure!(code == CuResult::DEVICE_UNAVAILABLE, "{code}");
        ensure!(text.contains(sentence), "`{sentence}` was due: {text}");
    }
    scene.unharmed()
}

#[test]
fn bulk_data_is_refused_by_every_operation_that_takes_none() -> Result<()> {
    let scene = Scene::new()?;
    for row in OPS.iter().filter(|row| !row.bulk) {
        let mut session = scene.open()?;
        session
            .data
            .write_all(&[header(row.op as u16, 0, 1), vec![0]].concat())?;
        let (_, text) = session.ended()?;
        ensure!(text.contains("bulk"), "{}: {text}", row.name);
    }
    scene.unharmed()
}

#[test]
fn a_number_that_is_used_again_ends_the_session() -> Result<()> {
    let scene = Scene::new()?;
    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let args = encode(&req::MemGetInfo { ctx })?;
    let again = Header::request(Op::MemGetInfo as u16, 1, args.len(), 0);
    session
        .data
        .write_all(&[&again.to_bytes()[..], &args].concat())?;
    let (_, text) = session.ended()?;
    ensure!(text.contains("was due"), "{text}");
    scene.unharmed()
}

#[test]
fn more_than_the_credit_ends_the_session() -> Result<()> {
    let scene = Scene::new()?;
    // The worker takes nothing off the queue behind a kernel that never ends.
    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let dst = session.alloc(ctx, 1 << 20)?;
    let fill = req::Memset {
        ctx,
        stream: Stream::NULL,
        dst,
        value: 0,
        width: 1,
        count: 1,
    };
    hang(&mut session)?;
    for _ in 0..DEPTH_CALLS * 2 {
        session.post(&fill);
    }
    // The host may close the connection before it has read everything.
    let _ = session.flush();
    let (_, text) = session.ended()?;
    ensure!(text.contains("credit"), "{text}");

    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let dst = session.alloc(ctx, 1 << 20)?;
    hang(&mut session)?;
    let copy = req::MemcpyHtoD {
        ctx,
        stream: Stream::NULL,
        dst,
    };
    let piece = vec![7; COPY_PIECE];
    for _ in 0..=DEPTH_BYTES / COPY_PIECE as u64 * 4 {
        if session.send_bulk(&copy, &piece).is_err() {
            break;
        }
    }
    let (_, text) = session.ended()?;
    ensure!(text.contains("credit"), "{text}");
    scene.unharmed()
}

#[test]
fn a_vms_own_queue_limit_is_its_credit() -> Result<()> {
    let scene = Scene::new()?;
    scene
        .host
        .admin("vm set 1 --queue-calls=20 --queue-bytes=64KiB")?;
    let mut session = scene.open()?;
    let credit = (session.welcome.depth_calls, session.welcome.depth_bytes);
    ensure!(credit == (20, 64 << 10), "{credit:?}");
    let ctx = session.primary()?;
    let (stream, dst) = (Stream::NULL, session.alloc(ctx, 1 << 20)?);
    hang(&mut session)?;
    let (value, width, count) = (0, 1, 1);
    let fill = req::Memset {
        ctx,
        stream,
        dst,
        value,
        width,
        count,
    };
    for _ in 0..600 {
        session.post(&fill);
    }
    let _ = session.flush();
    let (_, text) = session.ended()?;
    ensure!(text.contains("credit"), "{text}");

    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let dst = session.alloc(ctx, 1 << 20)?;
    // A copy larger than the whole credit is accepted alone, but not two while none is taken.
    let copy = req::MemcpyHtoD { ctx, stream, dst };
    session.send_bulk(&copy, &vec![7; COPY_PIECE])?;
    while session.progress.bytes < COPY_PIECE as u64 {
        ensure!(session.read_frame()?, "the host closed the connection");
    }
    ensure!(session.errors.is_empty(), "{:?}", session.errors);
    hang(&mut session)?;
    for _ in 0..600 {
        if session.send_bulk(&copy, &[7; 32 << 10]).is_err() {
            break;
        }
    }
    let (_, text) = session.ended()?;
    ensure!(text.contains("credit"), "{text}");
    scene
        .host
        .admin("vm set 1 --queue-calls=default --queue-bytes=default")
        .ok();
    scene.unharmed()
}

/// Launches a kernel that never ends.
fn hang(session: &mut vgpu_tests::hostile::Session) -> Result<()> {
    let ctx = session.primary()?;
    let module = session.module(ctx, SPIN)?;
    let func = session.function(module, "hang")?;
    session.launch((ctx, Stream::NULL), func, (1, 1), &[]);
    session.flush()
}

#[test]
fn a_guest_that_vanishes_at_any_point_leaves_nothing() -> Result<()> {
    let scene = Scene::new()?;
    for point in 0..7usize {
        let mut session = scene.open()?;
        let adder = Adder::new(&mut session)?;
        adder.works(&mut session)?;
        let ctx = adder.ctx;
        let (stream, dst) = (Stream::NULL, adder.arrays[0]);
        match point {
            // The guest vanishes between two frames (0), in a header (1), in arguments (2), or in
            // bulk data (3).
            0 => {}
            1..=3 => {
                session.post_bulk(&req::MemcpyHtoD { ctx, stream, dst }, &[1; 1024]);
                session.out.truncate([17, 40, 500][point - 1]);
                session.flush()?;
            }
            // The guest vanishes while it sends an image.
            4 => {
                let (hash, len) = ([9; 32], 1 << 30);
                let offset = 0;
                session.send_bulk(&req::ImageData { hash, len, offset }, &[1; 4096])?;
            }
            // The guest vanishes while its kernel runs, and nothing will wait for this kernel.
            5 => {
                let charged = || scene.host.vm(1).ok()?["usage"]["gpu_ns"].as_u64();
                let before = charged();
                hang(&mut session)?;
                until("the kernel runs", SOON, || {
                    (charged() > before).then_some(())
                })?;
            }
            // The guest vanishes while the host sends a reply that is larger than any socket
            // buffer.
            _ => {
                let src = session.alloc(ctx, 64 << 20)?;
                let len = 64 << 20;
                session.send(&req::MemcpyDtoH {
                    ctx,
                    stream,
                    src,
                    len,
                })?;
            }
        }
        if point % 2 == 0 {
            // The guest's process dies: both connections end at once.
            drop(session);
            scene.vm_is_clean()?;
        } else {
            // The guest closes only the data connection; the session ends with it.
            session.hang_up();
            scene.vm_is_clean()?;
        }
    }
    scene.unharmed()
}
