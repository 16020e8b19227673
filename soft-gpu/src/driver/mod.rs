//! The driver: memory, contexts, streams, events, modules, and devices shared by processes.
//!
//! cuInit makes one [`Driver`] per process. Programs name all other objects by handles ([`handle`])
//! and addresses ([`memory`]). Work is queued on streams ([`stream`]). A device fault is sticky for
//! the process ([`fault`]).

pub mod advice;
pub mod arena;
pub mod array;
pub mod attributes;
mod base_name;
pub mod callback;
pub mod config;
pub mod contents;
pub mod context;
pub mod copy;
pub mod cubin;
pub mod cudart;
pub mod device;
pub mod digest;
pub mod error;
pub mod event;
pub mod fault;
pub mod gpu;
pub mod graph;
pub mod green;
pub mod handle;
pub mod image;
pub mod inject;
pub mod launch;
pub mod library;
pub mod link;
pub mod linker;
pub mod memfile;
pub mod memop;
pub mod memory;
pub mod module;
pub mod occupancy;
pub mod open;
pub mod parameters;
pub mod part;
pub mod pool;
pub mod printed;
pub mod program;
pub mod range;
mod registered;
mod runtime_errors;
pub mod scrub;
pub mod share;
pub mod stderr;
pub mod stream;
mod stream_attribute;
pub mod stream_table;
pub mod streaming;
pub mod strict;
pub mod sync;
mod timeline;
pub mod transfer;
pub mod turn;
pub mod vmm;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arena::Arena;
use config::Config;
use error::Result;
use gpu::Gpu;
use stderr::say;
use vgpu_cuda_abi::CuResult;

/// The driver of the process.
pub struct Driver {
    /// Settings.
    pub config: Config,
    /// Visible devices.
    pub gpus: Vec<Arc<Gpu>>,
    /// Address space of device memory.
    pub arena: Arena,
    /// Allocations, charged to the account of each device.
    pub memory: memory::Memory,
}

static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn after_fork_in_child() {
    FORKED.store(true, Ordering::Relaxed);
    printed::PRINTED.forget();
}

/// cuInit.
///
/// # Errors
/// No device; an invalid setting or state directory (described on stderr). In a child that was
/// forked after cuInit: CUDA_ERROR_NOT_INITIALIZED, or CUDA_ERROR_OPERATING_SYSTEM if cuInit had
/// failed.
pub fn init() -> Result {
    if FORKED.load(Ordering::Relaxed) {
        return Err(match DRIVER.get() {
            Some(Err(_)) => CuResult::OPERATING_SYSTEM,
            _ => CuResult::NOT_INITIALIZED,
        });
    }
    DRIVER
        .get_or_init(start)
        .as_ref()
        .map(|_| ())
        .map_err(|e| *e)
}

/// cuDriverGetVersion: the same number before and after cuInit, and in a forked child.
pub fn version() -> i32 {
    static VERSION: OnceLock<i32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let knob = std::env::var("SOFT_GPU_DRIVER_VERSION").ok();
        // An invalid setting counts as unset here; cuInit refuses it.
        let version = knob.and_then(|v| config::driver_version(&v).ok());
        version.unwrap_or(config::DRIVER_VERSION)
    })
}

/// The driver, after cuInit.
///
/// # Errors
/// CUDA_ERROR_NOT_INITIALIZED before cuInit or in a forked child.
pub fn driver() -> Result<&'static Driver> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CuResult::NOT_INITIALIZED);
    }
    match DRIVER.get() {
        Some(Ok(driver)) => Ok(driver),
        _ => Err(CuResult::NOT_INITIALIZED),
    }
}

/// The driver, unless a device fault has poisoned the process.
///
/// # Errors
/// As [`driver`] and [`callback::check`], or the sticky fault.
pub fn healthy() -> Result<&'static Driver> {
    let driver = driver()?;
    callback::check()?;
    fault::check()?;
    Ok(driver)
}

/// The device with index `ordinal` among the visible devices.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE, or as [`driver`].
pub fn gpu(ordinal: i32) -> Result<&'static Arc<Gpu>> {
    let index = usize::try_from(ordinal).map_err(|_| CuResult::INVALID_DEVICE)?;
    driver()?.gpus.get(index).ok_or(CuResult::INVALID_DEVICE)
}

fn start() -> Result<Driver> {
    let vars = std::env::vars_os()
        .filter_map(|(n, v)| Some((n.into_string().ok()?, v.to_string_lossy().into_owned())));
    let (config, unknown) = Config::parse(vars).map_err(|bad| {
        say!("{bad}");
        CuResult::INVALID_VALUE
    })?;
    for name in unknown {
        say!("unknown setting {name} is ignored: see docs/soft-gpu.md");
    }
    // SAFETY: registers a handler that only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    strict::set(config.strict);
    inject::install(&config);
    digest::begin(config.digest.as_deref());
    if config.skip_machine_code {
        say!(
            "SOFT_GPU_SASS=skip: kernels of machine code DO NOTHING here, and what they should have \
             computed is missing"
        );
    }
    if let Some(code) = inject::call("cuInit") {
        return Err(code);
    }

    let uuids: Vec<_> = (0..config.devices)
        .map(|i| gpu::uuid(config.seed, i))
        .collect();
    if !config.order_known {
        return Err(CuResult::INVALID_DEVICE);
    }
    let visible = gpu::visible(config.visible.as_deref(), &uuids)?;
    if visible.is_empty() {
        return Err(CuResult::NO_DEVICE);
    }
    let gpus: Vec<_> = visible
        .iter()
        .enumerate()
        .map(|(ordinal, physical)| Gpu::open(&config, ordinal, *physical).map(Arc::new))
        .collect::<std::io::Result<_>>()
        .map_err(|e| {
            let dir = config.state.clone().unwrap_or_default();
            say!("cannot open the device state in {}: {e}", dir.display());
            CuResult::OPERATING_SYSTEM
        })?;
    let arena = Arena::reserve(gpus.len(), config.memory, scrub::skipped()).map_err(|e| {
        say!("cannot reserve address space at {:#x}: {e}", arena::BASE);
        CuResult::OPERATING_SYSTEM
    })?;
    if config.banner {
        say!("{} x {:?}: kernels run on the CPU", gpus.len(), config.name);
    }
    Ok(Driver {
        config,
        gpus,
        arena,
        memory: memory::Memory::default(),
    })
}
