//! The parts of the driver that NVIDIA's runtime uses beyond `cuda.h` (see `vgpu_cudart`).

use std::ffi::c_void;

use vgpu_cudart::{Device, Driver, Gate};

use super::error::Result;
use super::gpu::Gpu;
use super::{context, driver, module, version};

/// The values that NVIDIA's runtime attaches to contexts.
pub static GATE: Gate = Gate::new();

/// This driver, as `vgpu_cudart` calls it.
pub struct SoftDriver;

impl Driver for SoftDriver {
    fn gate() -> &'static Gate {
        &GATE
    }

    #[cfg(target_arch = "x86_64")]
    fn called(function: *const ()) -> *const () {
        super::scrub::called(function)
    }

    fn primary_context(device: i32) -> Result<u64> {
        context::primary_handle(device)
    }

    fn current_context() -> Result<u64> {
        context::current_handle()
    }

    fn driver_version() -> u32 {
        version() as u32
    }

    fn devices() -> Result<Vec<Device>> {
        let facts = |gpu: &Gpu| Device {
            uuid: gpu.uuid,
            pci: [0, gpu.pci_bus() as i32, 0],
        };
        let driver = driver()?;
        Ok(driver.gpus.iter().map(|gpu| facts(gpu)).collect())
    }

    unsafe fn load(image: *const c_void) -> Result<u64> {
        // SAFETY: the contract of this function.
        unsafe { module::load_image(image.cast()) }
    }

    fn functions(module: u64) -> Result<Vec<u64>> {
        module::get(module).and_then(|module| module.functions())
    }

    fn say(text: &str) {
        super::stderr::line(text);
    }
}
