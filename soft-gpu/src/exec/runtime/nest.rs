//! The grids of a launch: the grid that the host launched, and all that grids launch.
//!
//! The launches of a grid begin when the grid's blocks have ended, one after the other in the order
//! of the calls, each followed by its own nested launches. This order keeps the order of every
//! stream, and every event has happened when another stream waits for the event. Work in
//! `cudaStreamTailLaunch` comes after all other work of the grid. The launch of the host is
//! complete when nothing is left, and the first fault ends all of it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::DEEPEST;
use super::error;
use crate::exec::contract::{Child, Device, Fault, Launch, RunStats, Runtime};
use crate::exec::grid;
use crate::exec::program::Program;

/// Most bytes of a copy or memset between two turns.
const PIECE: u64 = 1 << 20;

/// Most rows of a copy or memset between two turns.
const ROWS: u64 = 1024;

/// The first stream or event. The numbers lie above all addresses that kernels can use.
const FIRST_HANDLE: u64 = 1 << 56;

/// A rectangle of device memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    /// First address.
    pub(super) addr: u64,
    /// Bytes from a row to the next row.
    pub(super) pitch: u64,
    /// Bytes from a slice to the next slice.
    pub(super) slice: u64,
}

/// Work that a grid launched.
#[derive(Debug)]
pub(super) enum Work {
    /// A kernel, and the address of its parameters.
    Kernel(Child, u64),
    /// A copy of bytes, rows and slices from the second area to the first.
    Copy(Area, Area, [u64; 3]),
    /// A memset of bytes, rows and slices.
    Fill(Area, u8, [u64; 3]),
}

/// Where work goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// After the earlier work of the grid. All streams but one have this order.
    Stream,
    /// After all other work of the grid: `cudaStreamTailLaunch`.
    Tail,
}

/// Whether a handle is a stream or an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handle {
    Stream = 0,
    Event = 8,
}

#[derive(Default)]
struct State {
    /// Parameters that are not launched yet: the address, and the launch if it is known.
    parameters: HashMap<u64, Option<Child>>,
    /// Streams and events so far.
    handles: u64,
    /// Work of the running grid.
    now: VecDeque<Work>,
    /// Work of the running grid for `cudaStreamTailLaunch`.
    tail: VecDeque<Work>,
    /// Work that is left of the grids above the running grid, from the host's grid down.
    above: Vec<VecDeque<Work>>,
}

/// State that the grids of one launch share.
#[derive(Default)]
pub(crate) struct Nest {
    /// `None` until a kernel calls the device runtime, which most kernels never do.
    state: Mutex<Option<Box<State>>>,
    /// Level of the running grid.
    level: AtomicUsize,
}

impl Nest {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        f(state.get_or_insert_default())
    }

    /// A new stream or event.
    pub(super) fn create(&self, kind: Handle) -> u64 {
        let number = self.with(|state| {
            state.handles += 1;
            state.handles
        });
        FIRST_HANDLE + number * 16 + kind as u64
    }

    /// Whether the number is a stream or event that this launch created.
    pub(super) fn created(&self, handle: u64, kind: Handle) -> bool {
        let number = handle.wrapping_sub(FIRST_HANDLE + kind as u64);
        let last = self.with(|state| state.handles);
        number.is_multiple_of(16) && (1..=last).contains(&(number / 16))
    }

    /// Memory for the parameters of a launch; `child` if the launch is known.
    pub(super) fn prepare(
        &self,
        runtime: &dyn Runtime,
        bytes: u64,
        child: Option<Child>,
    ) -> Result<u64, u32> {
        let addr = runtime.parameters(bytes.max(1));
        if addr == 0 {
            return Err(error::LAUNCH_OUT_OF_RESOURCES);
        }
        self.with(|state| state.parameters.insert(addr, child));
        Ok(addr)
    }

    /// Launches a kernel with prepared parameters; `child` if the preparation did not know it.
    pub(super) fn launch(
        &self,
        runtime: &dyn Runtime,
        parameters: u64,
        child: Option<Child>,
        order: Order,
    ) -> Result<(), u32> {
        let prepared = self.with(|state| state.parameters.remove(&parameters));
        let prepared = prepared.ok_or(error::INVALID_VALUE)?;
        let child = child.or(prepared).ok_or(error::INVALID_VALUE);
        child
            .and_then(|child| {
                runtime.check(&child)?;
                self.add(runtime, Work::Kernel(child, parameters), order)
            })
            .inspect_err(|_| runtime.release(parameters))
    }

    /// Adds work to the running grid's, and counts it as pending.
    pub(super) fn add(&self, runtime: &dyn Runtime, work: Work, order: Order) -> Result<(), u32> {
        if self.level.load(Ordering::Relaxed) >= DEEPEST {
            return Err(error::LAUNCH_MAX_DEPTH_EXCEEDED);
        }
        if !runtime.pend() {
            return Err(error::LAUNCH_PENDING_COUNT_EXCEEDED);
        }
        self.with(|state| match order {
            Order::Stream => state.now.push_back(work),
            Order::Tail => state.tail.push_back(work),
        });
        Ok(())
    }

    /// The next work: the first of the grid that has just ended, else of the grids above.
    fn next(&self) -> Option<Work> {
        self.with(|state| {
            let mut launched = std::mem::take(&mut state.now);
            launched.append(&mut state.tail);
            if !launched.is_empty() {
                state.above.push(launched);
            }
            while let Some(left) = state.above.last_mut() {
                if let Some(work) = left.pop_front() {
                    self.level.store(state.above.len(), Ordering::Relaxed);
                    return Some(work);
                }
                state.above.pop();
            }
            None
        })
    }

    /// Whether no kernel has called the device runtime.
    fn is_unused(&mut self) -> bool {
        let state = self.state.get_mut();
        state.unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Gives back what is left after the launch, or after a fault.
    fn end(self, runtime: &dyn Runtime) {
        let state = self.state.into_inner();
        let Some(state) = state.unwrap_or_else(PoisonError::into_inner) else {
            return;
        };
        state.parameters.keys().for_each(|p| runtime.release(*p));
        let lists = state.above.into_iter().chain([state.now, state.tail]);
        for work in lists.flatten() {
            runtime.begun();
            if let Work::Kernel(_, parameters) = work {
                runtime.release(parameters);
            }
        }
    }
}

/// Runs a kernel, and all that it launches, to the end. Uses this thread and up to
/// `launch.threads - 1` others.
///
/// # Errors
/// The first device fault, after which all other blocks and grids stop.
pub fn run(program: &Program, launch: &Launch, device: &dyn Device) -> Result<RunStats, Fault> {
    let mut nest = Nest::default();
    let ran = grid::run(program, launch, device, &nest);
    let runtime = device.runtime().filter(|_| !nest.is_unused());
    let Some(runtime) = runtime else {
        return ran;
    };
    let done = ran.and_then(|stats| descend(program, launch, device, (runtime, &nest), stats));
    nest.end(runtime);
    done
}

/// Runs what the host's grid launched.
fn descend(
    program: &Program,
    launch: &Launch,
    device: &dyn Device,
    (runtime, nest): (&dyn Runtime, &Nest),
    mut stats: RunStats,
) -> Result<RunStats, Fault> {
    while let Some(work) = nest.next() {
        runtime.begun();
        // The wall clock gives the device time of launches with several grids.
        stats.device_ns = None;
        match work {
            Work::Kernel(child, parameters) => {
                let params = read_parameters(program, device, &child, parameters);
                runtime.release(parameters);
                let launch = Launch {
                    kernel: child.kernel,
                    grid: child.grid,
                    block: child.block,
                    dynamic_shared: child.shared,
                    params: params?,
                    cooperative: false,
                    threads: launch.threads,
                };
                let ran = grid::run(program, &launch, device, nest)?;
                stats.warp_instructions += ran.warp_instructions;
            }
            Work::Copy(to, from, extent) => copy(device, to, from, extent)?,
            Work::Fill(to, value, extent) => fill(device, to, value, extent)?,
        }
    }
    Ok(stats)
}

fn read_parameters(
    program: &Program,
    device: &dyn Device,
    child: &Child,
    addr: u64,
) -> Result<Vec<u8>, Fault> {
    let bytes = program.kernel_info(child.kernel).param_bytes;
    let mut params = vec![0u8; bytes];
    if bytes > 0 {
        live(device, addr, bytes as u64)?;
        // SAFETY: the range is live device memory, as checked.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, params.as_mut_ptr(), bytes) };
    }
    Ok(params)
}

fn live(device: &dyn Device, addr: u64, len: u64) -> Result<(), Fault> {
    if device.arena().live(addr, len) {
        return Ok(());
    }
    Err(Fault::IllegalAddress(format!(
        "{len} bytes at {addr:#x}, of a copy or memset that a kernel started, are not mapped"
    )))
}

fn copy(device: &dyn Device, to: Area, from: Area, extent: [u64; 3]) -> Result<(), Fault> {
    pieces(device, extent, |row, slice, at, len| {
        let [to, from] = [to, from].map(|a| place(a, row, slice, at));
        live(device, to, len)?;
        live(device, from, len)?;
        // SAFETY: both ranges are live device memory, as checked. They may overlap.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len as usize) };
        Ok(())
    })
}

fn fill(device: &dyn Device, to: Area, value: u8, extent: [u64; 3]) -> Result<(), Fault> {
    pieces(device, extent, |row, slice, at, len| {
        let to = place(to, row, slice, at);
        live(device, to, len)?;
        // SAFETY: the range is live device memory, as checked.
        unsafe { std::ptr::write_bytes(to as *mut u8, value, len as usize) };
        Ok(())
    })
}

fn place(area: Area, row: u64, slice: u64, at: u64) -> u64 {
    area.addr
        .wrapping_add(slice.wrapping_mul(area.slice))
        .wrapping_add(row.wrapping_mul(area.pitch))
        .wrapping_add(at)
}

/// Calls `each` with row, slice, offset in the row and bytes. The driver gets its turns, so that it
/// can stop a large copy.
fn pieces(
    device: &dyn Device,
    [width, rows, slices]: [u64; 3],
    mut each: impl FnMut(u64, u64, u64, u64) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if width == 0 || rows == 0 {
        return Ok(());
    }
    // Also once for each piece of work: a kernel may queue very many small ones.
    device.turn()?;
    let (mut bytes, mut count) = (0, 0);
    for slice in 0..slices {
        for row in 0..rows {
            let mut at = 0;
            while at < width {
                let len = PIECE.min(width - at);
                each(row, slice, at, len)?;
                at += len;
                bytes += len;
                count += 1;
                if bytes >= PIECE || count >= ROWS {
                    (bytes, count) = (0, 0);
                    device.turn()?;
                }
            }
        }
    }
    Ok(())
}
