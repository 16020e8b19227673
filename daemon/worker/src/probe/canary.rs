//! A small kernel whose result is known: proof that a GPU still computes.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::Serialize;
use vgpu_proto::cuda::CuResult;

use crate::driver::{
    BlockPool, Context, Device, DeviceMemory, Function, Launch, MappedImage, Module, Stream,
    copy_dtoh, fill, load,
};

/// What `vgpu-probe canary` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CanaryAnswer {
    /// Whether the kernel ran and its result was right.
    pub ok: bool,
    /// What was done and seen, as a sentence.
    pub message: String,
}

/// `out[tid] = 3 * tid + 7` for one warp; PTX of the oldest version that every served driver takes.
const PTX: &[u8] = b".version 6.0
.target sm_50
.address_size 64
.visible .entry canary(.param .u64 out)
{
    .reg .u32 %r<4>;
    .reg .u64 %rd<4>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    mad.lo.u32 %r2, %r1, 3, 7;
    st.global.u32 [%rd3], %r2;
    ret;
}
";

const THREADS: u32 = 32;

/// Runs the kernel on the first visible device of the driver at `library`.
#[must_use]
pub fn canary(library: Option<&Path>) -> CanaryAnswer {
    match run(library) {
        Ok(message) => CanaryAnswer { ok: true, message },
        Err(message) => CanaryAnswer { ok: false, message },
    }
}

fn run(library: Option<&Path>) -> Result<String, String> {
    load(super::text(library).as_deref()).map_err(|e| e.to_string())?;
    let failed = |what: &str| {
        let what = what.to_owned();
        move |code: CuResult| format!("{what}: {code}")
    };
    let device = Device::all()
        .map_err(failed("listing the devices"))?
        .into_iter()
        .next()
        .ok_or("the driver shows no device; was the GPU taken away?")?;
    let name = device.name().map_err(failed("reading the device's name"))?;
    let context = Context::primary(device).map_err(failed("making a context"))?;
    let values = compute(&context)?;
    for (i, value) in (0..).zip(&values) {
        if *value != 3 * i + 7 {
            return Err(format!(
                "{name} computed {value} where {} is right",
                3 * i + 7
            ));
        }
    }
    Ok(format!(
        "A kernel ran on {name} and its {} results are right.",
        values.len()
    ))
}

/// The kernel's output.
fn compute(context: &Arc<Context>) -> Result<Vec<u32>, String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |code: CuResult| format!("{what}: {code}")
    };
    let bytes = 4 * THREADS as usize;
    let image = image().map_err(|e| format!("preparing the canary: {e}"))?;
    let (module, logs) = Module::load(context, &image, &[], (0, 4096));
    let module = module.map_err(|code| {
        format!(
            "loading the canary: {code} {}",
            String::from_utf8_lossy(&logs.error)
        )
    })?;
    let kernel =
        Function::find(&Arc::new(module), c"canary").map_err(failed("finding the kernel"))?;
    let stream = Stream::create(context, 1, 0).map_err(failed("making a stream"))?;
    let memory = DeviceMemory::alloc(context, bytes as u64).map_err(failed("allocating memory"))?;
    let block = BlockPool::new(context, bytes, 1, 1)
        .take(bytes)
        .map_err(failed("allocating pinned memory"))?
        .ok_or("no pinned memory")?;
    fill(&stream, memory.address(), 0, 1, bytes as u64).map_err(failed("clearing memory"))?;
    let launch = Launch {
        grid: [1, 1, 1],
        block: [THREADS, 1, 1],
        shared: 0,
        cooperative: false,
        params: &memory.address().to_le_bytes(),
    };
    kernel
        .launch(&stream, &launch)
        .map_err(failed("launching the kernel"))?;
    copy_dtoh(&stream, &block, memory.address()).map_err(failed("copying back"))?;
    stream
        .synchronize()
        .map_err(failed("waiting for the kernel"))?;
    Ok(block
        .bytes()
        .chunks_exact(4)
        .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        .collect())
}

/// The PTX where the driver module takes images from: a file.
fn image() -> std::io::Result<MappedImage> {
    let mut file = File::from(memfd_create(c"canary", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(PTX)?;
    MappedImage::map(&file, PTX.len())
}
