//! From process start to the first frame of the guest: confinement, driver, handshake with vgpud.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;

use nix::sys::prctl;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::PINNED_AT_START;
use vgpu_proto::worker::{FromWorker, Start, ToWorker};

use crate::control::{self, ControlError, Messages, Received, Vgpud, Waker};
use crate::driver::{Context, Device, LoadError, describe, exit_now, load};
use crate::pages;
use crate::session::{FoundDevice, Parts, Printf, serve};
use vgpu_cuda_abi::numbers::device_attribute::PAGEABLE_MEMORY_ACCESS;

/// Runs a worker. Returns only if the worker could not start; otherwise the process ends with its
/// session.
pub fn run() -> ExitCode {
    // vgpud adds the time, and reads the level at the begin of each line.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    if let Err(e) = confine() {
        eprintln!("vgpu-worker: cannot confine itself: {e}");
        return ExitCode::FAILURE;
    }
    match begin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("vgpu-worker: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Forbids other processes with this uid to inspect this process (ptrace, /proc). vgpud normally
/// starts the worker from a private copy of the program, which the kernel already protects. This
/// call protects the process where no copy was made. The protection holds until `cuInit` of a GPU's
/// driver ([`load`]). vgpud takes all other rights away before the process starts
/// (`vgpud::worker::confine`). The worker ends together with vgpud because the control thread sees
/// the socket close. A parent-death signal would come too early: it is bound to the thread that
/// started this process.
///
/// Also sets the timer slack to the minimum: timers may otherwise be 50 µs late. The window and the
/// end of the slice depend on timers, and so do the threads of soft-gpu in this process, which
/// complete kernels.
fn confine() -> nix::Result<()> {
    // The name for `ps` and `top`: vgpud starts the program through a descriptor.
    prctl::set_name(c"vgpu-worker")?;
    prctl::set_timerslack(1)?;
    prctl::set_dumpable(false)
}

fn begin() -> Result<(), String> {
    let by_hand =
        || "this program is started by vgpud, with a control socket on descriptor 3".to_owned();
    let socket = Arc::new(control::inherited().ok_or_else(by_hand)?);
    let vgpud = Vgpud::new(Arc::clone(&socket));
    let mut messages = Messages::new(Arc::clone(&socket));
    let (start, lease, hint) = match messages.wait() {
        Ok(Received {
            message: ToWorker::Start(start),
            fds,
        }) => match <[OwnedFd; 2]>::try_from(fds) {
            Ok([lease, hint]) => (start, lease, hint),
            Err(fds) => return Err(format!("Start came with {} descriptors, not 2", fds.len())),
        },
        Ok(other) => return Err(format!("vgpud began with {:?}", other.message)),
        Err(ControlError::Closed) => return Err(by_hand()),
        Err(e) => return Err(format!("{e}; this program is started by vgpud")),
    };
    let waker = Waker::new().map_err(|e| format!("no eventfd: {e}"))?;
    control::watch(Arc::clone(&socket)).map_err(|e| format!("no control thread: {e}"))?;
    let pages = pages::map(&lease, &hint)?;
    if pages.session() != start.session {
        return Err(format!("the lease page is session {}'s", pages.session()));
    }
    let printf = Printf::capture().map_err(|e| format!("cannot capture device printf: {e}"))?;

    let (driver_version, devices) = match bring_up(&start) {
        Ok(up) => up,
        Err(LoadError { code, text }) => {
            vgpud.send_last(FromWorker::Failed {
                code,
                text: text.clone(),
            });
            return Err(text);
        }
    };
    vgpud.send(FromWorker::Ready {
        driver_version,
        devices: devices.iter().map(|(_, info, _)| info.clone()).collect(),
        context_bytes: context_bytes(&start, &devices),
        pinned_bytes: PINNED_AT_START,
    });
    let mut depth = None;
    let data = loop {
        match messages.wait() {
            Ok(Received {
                message: ToWorker::Depth { calls, bytes },
                ..
            }) => depth = Some((calls, bytes)),
            Ok(Received {
                message: ToWorker::Data,
                mut fds,
            }) if fds.len() == 1 => break fds.remove(0),
            Ok(Received {
                message: ToWorker::Shutdown,
                ..
            })
            | Err(ControlError::Closed) => exit_now(0),
            Ok(other) => tracing::warn!("vgpud sent a message out of turn: {:?}", other.message),
            Err(e) => return Err(e.to_string()),
        }
    };
    let parts = Parts {
        start,
        depth,
        pages,
        devices,
        printf,
        vgpud: vgpud.clone(),
        control: messages,
        waker,
    };
    let ending = serve(parts, data);
    vgpud.send_last(FromWorker::Ended {
        protocol_error: ending.protocol_error,
        text: ending.text,
    });
    exit_now(0)
}

/// Loads the driver and finds the devices.
fn bring_up(start: &Start) -> Result<(u32, Vec<FoundDevice>), LoadError> {
    let version = load(start.driver.as_deref(), start.expect_soft)?;
    let failed = |what: &str, code: CuResult| LoadError {
        code,
        text: format!(
            "{what}: {code}; is the GPU healthy? see the kernel's log and `vgpu-admin doctor`"
        ),
    };
    let mut found: Vec<FoundDevice> = Vec::new();
    for device in Device::all().map_err(|code| failed("cannot list the devices", code))? {
        let name = device
            .name()
            .map_err(|code| failed("cannot read a device's name", code))?;
        if name.to_lowercase().contains("soft") != start.expect_soft {
            let other = if start.expect_soft {
                "a GPU"
            } else {
                "the software device"
            };
            return Err(LoadError {
                code: CuResult::SYSTEM_DRIVER_MISMATCH,
                text: format!(
                    "the driver library serves {other} ({name}), which was not asked for"
                ),
            });
        }
        if device.attribute(PAGEABLE_MEMORY_ACCESS).unwrap_or(0) != 0 {
            tracing::warn!(
                "{name}: kernels can reach all memory of this process (pageable access); load \
                 nvidia-uvm with uvm_enable_va_space_mm=0"
            );
        }
        let context =
            Context::primary(device).map_err(|code| failed("cannot make a context", code))?;
        let info =
            describe(device, &context).map_err(|code| failed("cannot describe a device", code))?;
        found.push((device, info, context));
    }
    if found.is_empty() {
        return Err(failed("the driver found no device", CuResult::NO_DEVICE));
    }
    Ok((version, found))
}

/// Device memory in bytes to book for this process's contexts. The driver does not report this
/// number, so it is an estimate until the probe has measured the process.
fn context_bytes(start: &Start, devices: &[FoundDevice]) -> u64 {
    const CONTEXT_OF_HARDWARE: u64 = 512 << 20;
    if start.expect_soft {
        0
    } else {
        CONTEXT_OF_HARDWARE * devices.len() as u64
    }
}
