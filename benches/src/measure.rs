//! What one pass of the client measures; printed as one JSON object of name → value.

use std::ffi::CString;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::cuda::Program;

/// Synchronous calls of a pass.
const CALLS: usize = 3_000;
/// Launches of a pass.
const LAUNCHES: usize = 100_000;
/// Launches between two looks at the clock while measuring what the caller pays: fewer than the
/// depth window, so that the caller is never held back.
const BURST: usize = 2_000;
/// Bytes of a bulk copy.
pub const BULK: usize = 64 << 20;
/// Bytes of a small copy.
pub const SMALL: usize = 4 << 10;

/// What a client measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// What waits for an answer: calls, launches with a synchronisation, small copies.
    Latency,
    /// What does not: streams of launches, large copies, the start of a session.
    Throughput,
    /// Large copies alone.
    Copies,
    /// Memory that program and kernels both reach, beside copies.
    Shared,
}

impl Set {
    /// The name on the client's command line.
    pub fn name(self) -> &'static str {
        match self {
            Set::Latency => "latency",
            Set::Throughput => "throughput",
            Set::Copies => "copies",
            Set::Shared => "shared",
        }
    }

    /// The set of a name.
    pub fn from_name(name: &str) -> Option<Set> {
        [Set::Latency, Set::Throughput, Set::Copies, Set::Shared]
            .into_iter()
            .find(|set| set.name() == name)
    }
}

/// One pass, in the process of the client.
///
/// # Errors
/// If a CUDA call fails or a copy comes back wrong.
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
    }
    Ok(out)
}

fn put(out: &mut Map<String, Value>, name: &str, value: f64) {
    out.insert(name.to_owned(), json!(value));
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// The value at `q` (0 to 1) of `samples`.
pub fn quantile(samples: &mut [f64], q: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = ((samples.len() as f64 * q) as usize).min(samples.len().saturating_sub(1));
    samples.get(index).copied().unwrap_or(f64::NAN)
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

/// Turns of program and device at the same bytes, by copies and in managed memory; and what managed memory
/// costs work that has nothing to do with it.
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
        ensure!(bytes[TURN - 1] == !value, "the device's bytes came back");
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
        ensure!(last == !value, "the device's bytes are the program's");
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
