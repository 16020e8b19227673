//! The driver as NVIDIA's runtime sees it beyond `cuda.h` (see `vgpu_cudart`).

use std::ffi::c_void;

use vgpu_cudart::{Device, Driver, Error, Gate};

use super::error::Result;
use super::gpu::Gpu;
use super::{context, driver, module, version};

/// What the runtime keeps with contexts.
pub static GATE: Gate = Gate::new();

/// This driver.
pub struct SoftDriver;

fn coded<T>(result: Result<T>) -> std::result::Result<T, Error> {
    result.map_err(|error| error.0)
}

impl Driver for SoftDriver {
    fn gate() -> &'static Gate {
        &GATE
    }

    #[cfg(target_arch = "x86_64")]
    fn called(function: *const ()) -> *const () {
        super::scrub::called(function)
    }

    fn primary_context(device: i32) -> std::result::Result<u64, Error> {
        coded(context::primary_handle(device))
    }

    fn current_context() -> std::result::Result<u64, Error> {
        coded(context::current_handle())
    }

    fn driver_version() -> u32 {
        version() as u32
    }

    fn devices() -> std::result::Result<Vec<Device>, Error> {
        let facts = |gpu: &Gpu| Device {
            uuid: gpu.uuid,
            pci: [0, gpu.pci_bus() as i32, 0],
        };
        let driver = coded(driver())?;
        Ok(driver.gpus.iter().map(|gpu| facts(gpu)).collect())
    }

    unsafe fn load(image: *const c_void) -> std::result::Result<u64, Error> {
        // SAFETY: by this function's contract.
        coded(unsafe { module::load_image(image.cast()) })
    }

    fn functions(module: u64) -> std::result::Result<Vec<u64>, Error> {
        coded(module::get(module).and_then(|module| module.functions()))
    }

    fn say(text: &str) {
        eprintln!("soft-gpu: {text}");
    }
}
