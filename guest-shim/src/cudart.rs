//! The functions beyond `cuda.h` that NVIDIA's runtime calls (see `vgpu_cudart`).

use std::ffi::c_void;

use vgpu_cuda_abi::numbers::device_attribute as attribute;
use vgpu_cudart::{Device, Driver, Gate};

use crate::jit::Options;
use crate::process;
use crate::state::current::{live, shim};
use crate::state::{contexts, links, modules};
use crate::{Cu, log};

/// The tables for NVIDIA's runtime, and the values that the runtime stores with contexts.
pub(crate) static GATE: Gate = Gate::new();

/// The guest library, as the driver of NVIDIA's runtime.
#[derive(Debug)]
pub(crate) struct Library;

impl Driver for Library {
    fn gate() -> &'static Gate {
        &GATE
    }

    fn primary_context(device: i32) -> Cu<u64> {
        let shim = shim()?;
        shim.contexts.primary_name(device, || shim.mint())
    }

    fn current_context() -> Cu<u64> {
        shim().map(|_| contexts::top())
    }

    fn driver_version() -> u32 {
        process::cuda_version()
    }

    fn devices() -> Cu<Vec<Device>> {
        let devices = &shim()?.devices;
        let facts = |device: &crate::state::devices::Device| {
            let number = |id| device.attribute(id);
            Ok(Device {
                uuid: device.info.uuid,
                pci: [
                    number(attribute::PCI_DOMAIN_ID)?,
                    number(attribute::PCI_BUS_ID)?,
                    number(attribute::PCI_DEVICE_ID)?,
                ],
            })
        };
        devices.all().map(facts).collect()
    }

    unsafe fn load(image: *const c_void) -> Cu<u64> {
        let load = || {
            let shim = live()?;
            let context = shim.contexts.current()?;
            // SAFETY: by this function's contract.
            unsafe { links::load(shim, &context, image, &Options::scalar(Vec::new())) }
        };
        load().inspect_err(|code| log::refusal::say("cuModuleLoadFatBinary", *code))
    }

    fn functions(module: u64) -> Cu<Vec<u64>> {
        let shim = live()?;
        let module = shim.modules.get(module)?;
        let names = modules::function_names(shim, &module)?;
        let function = |name: &String| modules::function(shim, &module, name);
        names.iter().map(function).collect()
    }

    fn say(text: &str) {
        log::line(log::Level::Error, text);
    }
}
