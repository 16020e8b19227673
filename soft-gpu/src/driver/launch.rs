//! Kernel launches: checks, queueing and execution.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vgpu_cuda_abi::CuResult;

use super::attributes::{MAX_BLOCK, MAX_GRID, MAX_THREADS_PER_BLOCK};
use super::config::FaultKind;
use super::context::Context;
use super::device::KernelDevice;
use super::digest::{self, Ticket};
use super::error::Result;
use super::graph::capture;
use super::graph::node::Action;
use super::module::Function;
use super::part::Part;
use super::stream::{Running, Stream};
use super::sync::{now_ns, sleep_until};
use super::turn::Turn;
use super::{Driver, fault, healthy, inject, occupancy};
use crate::exec::contract::{Fault, Launch};

/// The shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
    /// The multiprocessors on which the blocks run.
    pub part: Part,
}

impl Shape {
    /// A launch that is not cooperative, on the whole device.
    pub fn new(grid: [u32; 3], block: [u32; 3], shared: u32) -> Shape {
        Shape {
            grid,
            block,
            shared,
            cooperative: false,
            part: Part::ALL,
        }
    }

    /// Checks the shape against the device and the function, as the driver does at a launch.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE.
    pub fn check(&self, f: &Function) -> Result {
        let within = |v: [u32; 3], max: [u32; 3]| (0..3).all(|i| v[i] >= 1 && v[i] <= max[i]);
        if !within(self.grid, MAX_GRID) || !within(self.block, MAX_BLOCK) {
            return Err(CuResult::INVALID_VALUE);
        }
        let threads: u64 = self.block.iter().map(|d| u64::from(*d)).product();
        if threads > MAX_THREADS_PER_BLOCK.into() {
            return Err(CuResult::INVALID_VALUE);
        }
        if f.info.required_block.is_some_and(|b| b != self.block) {
            return Err(CuResult::INVALID_VALUE);
        }
        // The error for more threads than `.maxntid` is the same as for more than the device's
        // limit (numba-cuda's tests expect this).
        if threads > f.info.max_threads.into() {
            return Err(CuResult::INVALID_VALUE);
        }
        if self.shared > f.max_dynamic()
            || f.info.shared_bytes as u64 + u64::from(self.shared) > f.limits.shared_optin.into()
        {
            return Err(CuResult::INVALID_VALUE);
        }
        let blocks: u64 = self.grid.iter().map(|d| u64::from(*d)).product();
        let resident =
            || occupancy::resident_blocks(f, threads as u32, self.shared.into(), self.part);
        if self.cooperative && blocks > resident() {
            return Err(CuResult::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(())
    }
}

/// A checked launch.
pub struct Kernel {
    driver: &'static Driver,
    context: Arc<Context>,
    function: Arc<Function>,
    launch: Launch,
    part: Part,
}

impl Kernel {
    /// Checks a launch in `context`; `params` is the parameter block.
    ///
    /// # Errors
    /// As [`Shape::check`]; a function of another context; a poisoned process.
    pub fn new(
        function: Arc<Function>,
        shape: Shape,
        params: Vec<u8>,
        context: Arc<Context>,
    ) -> Result<Kernel> {
        let driver = healthy()?;
        shape.check(&function)?;
        if function.module.context != context.handle {
            return Err(CuResult::INVALID_HANDLE);
        }
        let launch = Launch {
            kernel: function.kernel,
            grid: shape.grid,
            block: shape.block,
            dynamic_shared: shape.shared,
            params,
            cooperative: shape.cooperative,
            threads: match shape.part {
                Part::ALL => driver.config.threads,
                part => driver.config.threads.min(part.count() as usize),
            },
        };
        Ok(Kernel {
            driver,
            context,
            function,
            launch,
            part: shape.part,
        })
    }

    /// Writes the launch to the digest.
    pub fn tell(&self, ticket: Option<&Ticket>) {
        if let Some(ticket) = ticket {
            ticket.kernel(self.driver, &self.function.info, &self.launch);
        }
    }

    /// Runs the kernel to its end on the calling thread, which is the thread of a stream.
    pub fn run(&self, running: &Running<'_>) {
        self.execute(inject::launch(&self.function.info.name), running);
    }
}

/// Queues a launch, or adds a node to the graph into which `stream` captures. `params` is the
/// parameter block, `named` the handle that the program launched.
///
/// # Errors
/// As [`Kernel::new`].
pub fn submit(
    f: Arc<Function>,
    named: u64,
    shape: Shape,
    params: Vec<u8>,
    stream: &Stream,
) -> Result {
    let shape = Shape {
        part: stream.part(),
        ..shape
    };
    if capture::recording(stream)? {
        return capture::add(stream, || Action::kernel(f, named, shape, params));
    }
    let context = stream.owner()?;
    let kernel = Kernel::new(f, shape, params, Arc::clone(&context))?;
    let injected = inject::launch(&kernel.function.info.name);
    kernel.tell(digest::ticket(stream).as_ref());
    let work = move |running: &Running<'_>| kernel.execute(injected, running);
    stream.submit_kernel(&context, Box::new(work));
    Ok(())
}

impl Kernel {
    fn execute(&self, injected: Option<FaultKind>, running: &Running<'_>) {
        let Kernel {
            driver, context, ..
        } = self;
        let name = &self.function.info.name;
        let latency = driver.config.launch_latency_ns;
        let modelled = driver.config.clock.ns(name);
        if let Some(ns) = modelled.filter(|_| injected.is_none()) {
            let ready = running
                .submitted_ns
                .max(running.core.time_ns.load(Ordering::Relaxed));
            let end = context.gpu.turn.consume(ns, ready + latency, running.more);
            running.core.time_ns.store(end, Ordering::Relaxed);
            return;
        }
        if latency > 0 {
            sleep_until(now_ns() + latency);
        }
        let _turn = Held::new(&context.gpu.turn, running.more);
        match injected {
            Some(FaultKind::Code(code)) => {
                return fault::poison(code, &format!("injected into kernel {name}"));
            }
            Some(FaultKind::Hang) => return hang(&context.gpu.turn),
            None => {}
        }
        let device = KernelDevice::new(driver, context, &self.function.module);
        if self.function.module.program.is_hollow() {
            return;
        }
        let start = running.core.lag.now();
        let outcome = super::program::run(&self.function.module.program, &self.launch, &device);
        device.ends();
        match outcome {
            Ok(stats) => {
                if let Some(ns) = stats.device_ns {
                    self.took(start, ns, running);
                }
            }
            Err(why) => report(&why, name),
        }
    }

    /// Adds the kernel to the device's timeline: `ns` of device time, from `start` on.
    fn took(&self, start: u64, ns: u64, running: &Running<'_>) {
        let blocks = self.launch.grid.iter().map(|d| u64::from(*d)).product();
        let end = (self.context.gpu.lanes).place(start, ns, blocks, self.part);
        running.core.lag.set(end);
    }
}

/// Runs until the process is poisoned, as a kernel that never ends. Meanwhile other processes get
/// their turns.
fn hang(turn: &Turn) {
    while fault::sticky().is_none() {
        std::thread::sleep(Duration::from_micros(100));
        turn.check();
    }
}

/// Holds the compute turn for the time of one kernel. The turn also ends if the kernel panics.
struct Held<'a> {
    turn: &'a Turn,
    more: bool,
}

impl<'a> Held<'a> {
    fn new(turn: &'a Turn, more: bool) -> Self {
        turn.begin();
        Held { turn, more }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.turn.end(self.more && fault::sticky().is_none());
    }
}

fn report(fault: &Fault, kernel: &str) {
    let (code, why) = match fault {
        Fault::IllegalAddress(why) => (CuResult::ILLEGAL_ADDRESS, why.as_str()),
        Fault::Misaligned(why) => (CuResult::MISALIGNED_ADDRESS, why.as_str()),
        Fault::Trap => (CuResult::LAUNCH_FAILED, "trap"),
        Fault::Assert(why) => (CuResult::ASSERT, why.as_str()),
        Fault::IllegalInstruction(why) => (CuResult::ILLEGAL_INSTRUCTION, why.as_str()),
        Fault::StackOverflow => (CuResult::LAUNCH_FAILED, "call stack exhausted"),
        Fault::Stopped => return,
    };
    fault::poison(code, &format!("kernel {kernel}: {why}"));
}
