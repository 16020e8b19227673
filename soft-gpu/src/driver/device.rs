//! The driver as a running kernel sees it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vgpu_cuda_abi::numbers::limit::{
    DEV_RUNTIME_PENDING_LAUNCH_COUNT, MALLOC_HEAP_SIZE, PRINTF_FIFO_SIZE,
};

use super::context::Context;
use super::launch::Shape;
use super::memory::Use;
use super::module::{Function, Module};
use super::printed::Fifo;
use super::sync::{lock, now_ns};
use super::{Driver, fault, occupancy};
use crate::exec::contract::{ArenaView, Child, Device, Fault, KernelId, Runtime};
use crate::exec::runtime::error;

/// The parts of the driver that a launch and its nested launches use.
pub struct KernelDevice<'a> {
    driver: &'static Driver,
    context: &'a Context,
    module: &'a Arc<Module>,
    printed: Mutex<Fifo>,
    /// Whether kernels asked for memory for parameters.
    launches: AtomicBool,
}

impl<'a> KernelDevice<'a> {
    /// For a launch of a kernel of `module` in `context`.
    pub fn new(driver: &'static Driver, context: &'a Context, module: &'a Arc<Module>) -> Self {
        KernelDevice {
            driver,
            context,
            module,
            printed: Mutex::new(Fifo::new(limit(context, PRINTF_FIFO_SIZE))),
            launches: AtomicBool::new(false),
        }
    }

    /// The launch has ended.
    pub fn ends(self) {
        let printed = self.printed.into_inner();
        printed.unwrap_or_else(PoisonError::into_inner).ends();
        if !self.launches.into_inner() {
            return;
        }
        let idle = lock(&self.context.parameters).idle();
        for chunk in idle {
            let memory = &self.driver.memory;
            let _ = memory.free(self.driver, chunk, |u| u == Use::Parameters);
        }
    }

    fn function(&self, kernel: KernelId) -> Result<Arc<Function>, u32> {
        let name = &self.module.program.kernel_info(kernel).name;
        let found = self.module.function(name);
        found.map_err(|_| error::INVALID_DEVICE_FUNCTION)
    }
}

fn limit(context: &Context, limit: u32) -> u64 {
    let cell = context.limit(limit);
    cell.map_or(0, |most| most.load(Ordering::Relaxed))
}

impl Device for KernelDevice<'_> {
    fn arena(&self) -> ArenaView {
        self.driver.arena.view(self.context.gpu.ordinal)
    }

    fn turn(&self) -> Result<u64, Fault> {
        if fault::sticky().is_some() {
            return Err(Fault::Stopped);
        }
        Ok(self.context.gpu.turn.check())
    }

    fn print(&self, text: &[u8]) {
        lock(&self.printed).add(text);
    }

    fn malloc(&self, bytes: u64) -> u64 {
        let heap = (self.context.handle, limit(self.context, MALLOC_HEAP_SIZE));
        let (memory, gpu) = (&self.driver.memory, &self.context.gpu);
        memory
            .alloc_heap(self.driver, gpu, bytes, heap)
            .unwrap_or(0)
    }

    fn free(&self, addr: u64) -> bool {
        let memory = &self.driver.memory;
        // A kernel's wrong address is no violation of the program that strict mode reports.
        let found = memory.find(addr);
        found.is_some_and(|a| a.addr == addr && a.usage == Use::Heap)
            && memory.free(self.driver, addr, |u| u == Use::Heap).is_ok()
    }

    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn runtime(&self) -> Option<&dyn Runtime> {
        Some(self)
    }
}

impl Runtime for KernelDevice<'_> {
    fn parameters(&self, bytes: u64) -> u64 {
        let (driver, context) = (self.driver, self.context);
        let chunk = |bytes| {
            let memory = &driver.memory;
            let made = memory.alloc(driver, &context.gpu, Use::Parameters, bytes, context.handle);
            made.ok()
        };
        self.launches.store(true, Ordering::Relaxed);
        lock(&context.parameters).take(bytes, chunk).unwrap_or(0)
    }

    fn release(&self, addr: u64) {
        lock(&self.context.parameters).give(addr);
    }

    fn check(&self, child: &Child) -> Result<(), u32> {
        let function = self.function(child.kernel)?;
        let with = |shared| Shape::new(child.grid, child.block, shared).check(&function);
        with(0).map_err(|_| error::INVALID_CONFIGURATION)?;
        with(child.shared).map_err(|_| error::INVALID_VALUE)
    }

    fn pend(&self) -> bool {
        let most = limit(self.context, DEV_RUNTIME_PENDING_LAUNCH_COUNT);
        let one_more = |n| (n < most).then_some(n + 1);
        let pending = &self.context.pending;
        let counted = pending.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted.is_ok()
    }

    fn begun(&self) {
        self.context.pending.fetch_sub(1, Ordering::Relaxed);
    }

    fn devices(&self) -> (u32, u32) {
        let count = self.driver.gpus.len();
        (self.context.gpu.ordinal as u32, count as u32)
    }

    fn attribute(&self, attribute: i32, device: i32) -> Result<i32, u32> {
        let gpu = usize::try_from(device).ok();
        let gpu = gpu.and_then(|ordinal| self.driver.gpus.get(ordinal));
        let value = gpu.ok_or(error::INVALID_DEVICE)?.attribute(attribute);
        value.map_err(|_| error::INVALID_VALUE)
    }

    fn limit(&self, limit: u32) -> Result<u64, u32> {
        let cell = self.context.limit(limit);
        let cell = cell.map_err(|_| error::UNSUPPORTED_LIMIT)?;
        Ok(cell.load(Ordering::Relaxed))
    }

    fn function_attributes(&self, kernel: KernelId) -> Result<Vec<u8>, u32> {
        // The CUfunction_attribute of each member of cudaFuncAttributes: first three of type
        // size_t, then of type int; reserved members follow.
        const SIZES: [i32; 3] = [1, 2, 3];
        const NUMBERS: [i32; 13] = [0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 14];
        const RESERVED: usize = 16 * 4;
        let function = self.function(kernel)?;
        let value = |attribute: &i32| function.attribute(*attribute).unwrap_or(0);
        let mut bytes = Vec::new();
        for size in &SIZES {
            bytes.extend((value(size) as u64).to_le_bytes());
        }
        for number in &NUMBERS {
            bytes.extend(value(number).to_le_bytes());
        }
        bytes.resize(bytes.len() + RESERVED, 0);
        Ok(bytes)
    }

    fn occupancy(&self, kernel: KernelId, threads: u32, dynamic: u64) -> Result<u32, u32> {
        let function = self.function(kernel)?;
        Ok(occupancy::blocks_per_sm(&function, threads, dynamic))
    }
}
