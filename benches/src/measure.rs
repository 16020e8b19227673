//! The measurements of one pass of the client. The client prints them as one JSON object of name →
//! value.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use vgpu_cudart::fatbin::{PTX, entry, pack};

use crate::cuda::{Program, Shape};
use crate::quantile::quantile;

/// Synchronous calls per pass.
const CALLS: usize = 3_000;
/// Launches per pass.
const LAUNCHES: usize = 100_000;
/// Number of launches between two readings of the clock while the caller's cost is measured. The
/// number is below the depth limit, so that the caller never blocks.
const BURST: usize = 2_000;
/// Size of a bulk copy in bytes.
pub const BULK: usize = 64 << 20;
/// Size of a small copy in bytes.
pub const SMALL: usize = 4 << 10;

/// The measurements of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// Synchronous work: calls, launches with a synchronisation, small copies.
    Latency,
    /// Asynchronous work: streams of launches, large copies, the start of a session.
    Throughput,
    /// Large copies alone.
    Copies,
    /// Memory that program and kernels both reach, compared with copies.
    Shared,
    /// Work while page-locked memory exists that was once a kernel argument.
    Pinned,
}

impl Set {
    /// The name on the client's command line.
    pub fn name(self) -> &'static str {
        match self {
            Set::Latency => "latency",
            Set::Throughput => "throughput",
            Set::Copies => "copies",
            Set::Shared => "shared",
            Set::Pinned => "pinned",
        }
    }

    /// The set with this name.
    pub fn from_name(name: &str) -> Option<Set> {
        let all = [
            Set::Latency,
            Set::Throughput,
            Set::Copies,
            Set::Shared,
            Set::Pinned,
        ];
        all.into_iter().find(|set| set.name() == name)
    }
}

/// Runs one pass, in the process of the client.
///
/// # Errors
/// If a CUDA call fails or a copy returns wrong bytes.
pub fn pass(library: &Path, ptx: &Path, set: Set) -> Result<Map<String, Value>> {
    let mut out = Map::new();
    let text = CString::new(std::fs::read(ptx).context("reading the PTX")?)?;
    let start = Instant::now();
    let program = Program::start(library, &text)?;
    program.query()?;
    put(&mut out, "session_start", micros(start));

    match set {
        Set::Latency => {
            calls(&program, &mut out)?;
            small_copies(&program, &mut out)?;
        }
        Set::Throughput => {
            launches(&program, &mut out)?;
            bulk_copies(&program, &mut out)?;
        }
        Set::Copies => bulk_copies(&program, &mut out)?,
        Set::Shared => shared(&program, &mut out)?,
        Set::Pinned => pinned(&program, &mut out)?,
    }
    Ok(out)
}

fn put(out: &mut Map<String, Value>, name: &str, value: f64) {
    out.insert(name.to_owned(), json!(value));
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn calls(program: &Program, out: &mut Map<String, Value>) -> Result<()> {
    for _ in 0..100 {
        program.query()?;
    }
    let mut samples = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        program.query()?;
        samples.push(micros(start));
    }
    put(out, "sync_call_p50", quantile(&mut samples, 0.5));
    put(out, "sync_call_p99", quantile(&mut samples, 0.99));

    let mut samples = Vec::with_capacity(CALLS / 4);
    for _ in 0..CALLS / 4 {
        let start = Instant::now();
        program.launch()?;
        program.synchronize()?;
        samples.push(micros(start));
    }
    put(out, "launch_sync_p50", quantile(&mut samples, 0.5));
    put(out, "launch_sync_p99", quantile(&mut samples, 0.99));
    Ok(())
}

fn launches(program: &Program, out: &mut Map<String, Value>) -> Result<()> {
    let mut per_call = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        for _ in 0..BURST {
            program.launch()?;
        }
        per_call.push(start.elapsed().as_secs_f64() * 1e9 / BURST as f64);
        program.synchronize()?;
    }
    put(out, "async_launch_caller", quantile(&mut per_call, 0.5));

    let start = Instant::now();
    for _ in 0..LAUNCHES {
        program.launch()?;
    }
    program.synchronize()?;
    put(
        out,
        "async_launch_rate",
        LAUNCHES as f64 / start.elapsed().as_secs_f64(),
    );
    Ok(())
}

fn bulk_copies(program: &Program, out: &mut Map<String, Value>) -> Result<()> {
    let device = program.alloc(BULK)?;
    let sent = crate::baseline::random(BULK);
    let mut received = vec![0u8; BULK];
    program.upload(device, &sent)?;
    program.download(&mut received, device)?;
    ensure!(sent == received, "64 MiB came back changed");

    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let start = Instant::now();
        program.upload(device, &sent)?;
        up.push(BULK as f64 / start.elapsed().as_secs_f64() / 1e9);
        let start = Instant::now();
        program.download(&mut received, device)?;
        down.push(BULK as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    put(out, "copy_h2d_64mib", quantile(&mut up, 0.5));
    put(out, "copy_d2h_64mib", quantile(&mut down, 0.5));
    Ok(())
}

fn small_copies(program: &Program, out: &mut Map<String, Value>) -> Result<()> {
    let device = program.alloc(SMALL)?;
    let sent = crate::baseline::random(SMALL);
    let mut received = vec![0u8; SMALL];
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for _ in 0..CALLS / 4 {
        let start = Instant::now();
        program.upload(device, &sent)?;
        up.push(micros(start));
        let start = Instant::now();
        program.download(&mut received, device)?;
        down.push(micros(start));
    }
    ensure!(sent == received, "4 KiB came back changed");
    put(out, "copy_h2d_4kib", quantile(&mut up, 0.5));
    put(out, "copy_d2h_4kib", quantile(&mut down, 0.5));
    Ok(())
}

/// Turns in which program and device change the same bytes, by copies and in managed memory; and
/// the cost of managed memory for unrelated work.
fn shared(program: &Program, out: &mut Map<String, Value>) -> Result<()> {
    const TURN: usize = 1 << 20;
    const APART: usize = 16 << 20;
    const TURNS: u8 = 60;
    let plain = |_| {
        let start = Instant::now();
        program.launch()?;
        program.synchronize()?;
        Ok(micros(start))
    };
    let median = |samples: Result<Vec<f64>>| samples.map(|mut s| quantile(&mut s, 0.5));
    put(
        out,
        "shared_apart_16mib_base",
        median((0..200).map(plain).collect())?,
    );

    let device = program.alloc(TURN)?;
    let mut bytes = vec![0_u8; TURN];
    let copied = |value: u8| {
        let start = Instant::now();
        bytes.fill(value);
        program.upload(device, &bytes)?;
        program.fill(device, !value, TURN)?;
        program.synchronize()?;
        program.download(&mut bytes, device)?;
        ensure!(
            bytes[TURN - 1] == !value,
            "the copy does not have the device's bytes"
        );
        Ok(micros(start))
    };
    put(
        out,
        "shared_turn_1mib_base",
        median((1..TURNS).map(copied).collect())?,
    );

    let managed = program.managed(TURN)?;
    let turn = |value: u8| {
        let start = Instant::now();
        program.write(managed, value, TURN);
        program.fill(managed, !value, TURN)?;
        program.synchronize()?;
        let last = program.read(managed + TURN as u64 - 1);
        ensure!(
            last == !value,
            "the program does not see the device's bytes"
        );
        Ok(micros(start))
    };
    put(
        out,
        "shared_turn_1mib",
        median((1..TURNS).map(turn).collect())?,
    );

    let apart = program.managed(APART - TURN)?;
    program.fill(apart, 1, APART - TURN)?;
    program.synchronize()?;
    put(
        out,
        "shared_apart_16mib",
        median((0..200).map(plain).collect())?,
    );
    Ok(())
}

/// A kernel that may reach any memory: with another argument than 0, it would follow an address
/// that it loads. With argument 0 it returns at once.
const FOLLOW: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry follow(.param .u64 first)
{
  .reg .b64 %p;
  .reg .pred %none;
  ld.param.u64 %p, [first];
  setp.eq.u64 %none, %p, 0;
  @%none ret;
  ld.global.u64 %p, [%p];
  st.global.u64 [%p], %p;
  ret;
}
";

/// A kernel that reaches only the memory of its argument: with another argument than 0, it would
/// write there. With argument 0 it returns at once.
const WRITE: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry write(.param .u64 to)
{
  .reg .b64 %p;
  .reg .pred %none;
  ld.param.u64 %p, [to];
  setp.eq.u64 %none, %p, 0;
  @%none ret;
  st.global.u64 [%p], %p;
  ret;
}
";

/// A fatbin with PTX for sm_70 only, in the format that nvcc embeds.
fn fatbin(text: &CStr) -> Vec<u8> {
    pack(&[entry(PTX, 70, 0, text.to_bytes_with_nul(), 0)])
}

/// Rows of [`Set::Pinned`]. Each row has a baseline row with the suffix `_base`, measured without
/// page-locked memory.
pub const PINNED: [&str; 12] = [
    "pinned_launch_1mib",
    "pinned_launch_16mib",
    "pinned_launch_sync_1mib",
    "pinned_launch_sync_16mib",
    "pinned_any_launch_1mib",
    "pinned_any_launch_16mib",
    "pinned_any_launch_sync_1mib",
    "pinned_any_launch_sync_16mib",
    "pinned_fatbin_launch_1mib",
    "pinned_fatbin_launch_16mib",
    "pinned_fatbin_launch_sync_1mib",
    "pinned_fatbin_launch_sync_16mib",
];

/// Launches of kernels that do not touch page-locked memory: a kernel that cannot reach the memory,
/// one that might reach it, and one in a fatbin that cannot reach it. Each launch is also measured
/// before the memory exists.
fn pinned(program: &Program, out: &mut Map<String, Value>) -> Result<()> {
    const BURSTS: usize = 12;
    const WAITS: usize = 400;
    let follow = program.kernel(FOLLOW.to_bytes_with_nul(), c"follow")?;
    let write = program.kernel(&fatbin(WRITE), c"write")?;
    let shape = Shape {
        grid: [1; 3],
        block: [32, 1, 1],
        shared: 0,
    };
    let any = || program.launch_kernel(follow, &shape, &mut [0]);
    let in_fatbin = || program.launch_kernel(write, &shape, &mut [0]);
    let mut row = |kernel: &str, size: &str, launch: &dyn Fn() -> Result<()>| -> Result<()> {
        let mut at_caller = Vec::new();
        for _ in 0..BURSTS {
            let start = Instant::now();
            for _ in 0..BURST {
                launch()?;
            }
            at_caller.push(micros(start) / BURST as f64);
            program.synchronize()?;
        }
        let mut waited = Vec::new();
        for _ in 0..WAITS {
            let start = Instant::now();
            launch()?;
            program.synchronize()?;
            waited.push(micros(start));
        }
        let name = format!("pinned_{kernel}launch");
        put(
            out,
            &format!("{name}_{size}"),
            quantile(&mut at_caller, 0.5),
        );
        put(
            out,
            &format!("{name}_sync_{size}"),
            quantile(&mut waited, 0.5),
        );
        Ok(())
    };
    let plain = || program.launch();
    let kernels: [(&str, &dyn Fn() -> Result<()>); 3] =
        [("", &plain), ("any_", &any), ("fatbin_", &in_fatbin)];
    for (size, bytes) in [("1mib", 1_usize << 20), ("16mib", 16 << 20)] {
        for (kernel, launch) in kernels {
            row(kernel, &format!("{size}_base"), launch)?;
        }
        let block = program.page_locked(bytes)?;
        program.write(block, 1, bytes);
        program.fill(block, 2, bytes)?;
        program.synchronize()?;
        ensure!(
            program.read(block) == 2,
            "the program does not see the device's bytes"
        );
        for (kernel, launch) in kernels {
            row(kernel, size, launch)?;
        }
        program.free_page_locked(block)?;
    }
    Ok(())
}
