//! Checks whether a GPU still computes, and whether its memory is freed.

use std::fs::File;
use std::io::Write;

use nix::sys::memfd::{MFdFlags, memfd_create};
use vgpu_proto::call::OWN_CLUSTER;
use vgpu_proto::cuda::CuResult;

use crate::driver::{
    BlockPool, Context, Device, DeviceMemory, Function, Launch, MappedImage, Module, Stream,
    copy_dtoh, load,
};

/// Number of threads of the kernel.
const N: u32 = 4096;
const BLOCK: u32 = 128;

/// Writes 3 i² + 7 to element i.
const KERNEL: &str = include_str!("canary.ptx");

/// Why the check of the GPU failed.
pub(super) struct Failed {
    /// Whether the device memory was full.
    pub(super) full: bool,
    pub(super) message: String,
}

impl From<String> for Failed {
    fn from(message: String) -> Failed {
        let full = false;
        Failed { full, message }
    }
}

/// Runs the kernel on the first visible device. Returns a description, or the error.
pub(super) fn run(library: Option<&str>, soft: bool) -> Result<String, Failed> {
    load(library, soft).map_err(|e| e.to_string())?;
    let failed = |what: &str, code: CuResult| Failed {
        full: code == CuResult::OUT_OF_MEMORY,
        message: format!("{what}: {code}"),
    };
    let devices = Device::all().map_err(|code| failed("cannot list the devices", code))?;
    let device = *devices
        .first()
        .ok_or_else(|| "the GPU is not visible to the driver".to_owned())?;
    let name = device
        .name()
        .map_err(|code| failed("cannot read the device's name", code))?;
    if name.to_lowercase().contains("soft") != soft {
        return Err(format!("the driver serves {name}, which was not asked for").into());
    }
    let context = Context::primary(device).map_err(|code| failed("cannot make a context", code))?;
    let image = image().map_err(|e| format!("cannot map the kernel: {e}"))?;
    let (module, logs) = Module::load(&context, &image, &[], (0, 4096));
    let module = module.map_err(|code| {
        let why = String::from_utf8_lossy(&logs.error);
        let mut failed = failed("the kernel does not load", code);
        failed.message += &format!(": {why}");
        failed
    })?;
    let free = |what: &str| context.memory_info().map_err(|code| failed(what, code));
    let (before, _) = free("cannot read the memory")?;
    compute(&context, module).map_err(|code| failed("the kernel failed", code))?;
    let (after, _) = free("cannot read the memory afterwards")?;
    Ok(format!(
        "a kernel of {N} threads gave right results on {name}; {} MiB are free, {} MiB were before",
        after >> 20,
        before >> 20
    ))
}

fn image() -> std::io::Result<MappedImage> {
    let mut file = File::from(memfd_create(c"canary", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(KERNEL.as_bytes())?;
    MappedImage::map(&file, KERNEL.len())
}

fn compute(context: &std::sync::Arc<Context>, module: Module) -> Result<(), CuResult> {
    let function = Function::find(&std::sync::Arc::new(module), c"canary")?;
    let bytes = N as usize * 4;
    let memory = DeviceMemory::alloc(context, bytes as u64)?;
    let stream = Stream::null(context);
    let mut pool = BlockPool::new(context, bytes, 1, 1);
    let block = pool.take(bytes)?.ok_or(CuResult::OUT_OF_MEMORY)?;
    let params = memory.address().to_le_bytes();
    function.launch(
        &stream,
        &Launch {
            grid: [N / BLOCK, 1, 1],
            block: [BLOCK, 1, 1],
            shared: 0,
            cooperative: false,
            cluster: OWN_CLUSTER,
            params: &params,
        },
    )?;
    copy_dtoh(&stream, &block, memory.address())?;
    stream.synchronize()?;
    let right = block.bytes().chunks_exact(4).zip(0u32..).all(|(word, i)| {
        let expected = i.wrapping_mul(i).wrapping_mul(3).wrapping_add(7);
        word == expected.to_le_bytes()
    });
    // Wrong numbers without an error are the worst fault of a GPU.
    if right {
        Ok(())
    } else {
        Err(CuResult::ECC_UNCORRECTABLE)
    }
}
