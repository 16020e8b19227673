//! The states of the library in a process: before cuInit, in a session, in the child of a fork, at
//! exit.
//!
//! A session is never freed. Calls find the session through a pointer. The pointer is cleared in
//! the child of a fork and at the end of the process; later calls then fail with the reason.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use vgpu_cuda_abi::CuResult;
use vgpu_cudart::last_thread;
use vgpu_door::{Address, look};
use vgpu_proto::cuda::{OFFERED_CUDA_VERSION, version_text};

use crate::session::{self, NoSession, PRINTED, Session};
use crate::state::Shim;
use crate::state::current::{BEFORE, EXITING, FORKED, PHASE, READY, SHIM, no_shim, shim};
use crate::{Cu, log, observe, sys};

/// Descriptors of the session. The child of a fork closes these descriptors without taking a lock.
static DESCRIPTORS: [AtomicI32; 6] = [const { AtomicI32::new(-1) }; 6];

/// Set during cuInit and during a fork, so that no child starts with a half-finished cuInit. A flag
/// instead of a mutex, because the fork handlers set and clear the flag in different processes.
static INITIALISING: AtomicBool = AtomicBool::new(false);

/// The version that cuDriverGetVersion returns in this process and its children; 0 until the host
/// has reported its version.
static CUDA_VERSION: AtomicU32 = AtomicU32::new(0);

/// Time limit of the request for the host's version while there is no session.
const VERSION_LIMIT: Duration = Duration::from_secs(2);

/// The version that cuDriverGetVersion returns. Once the host has answered, the number stays the
/// same in this process and its children, also before cuInit. If the host does not answer, the
/// result is the version that the library offers, and the next call asks the host again.
pub(crate) fn cuda_version() -> u32 {
    match CUDA_VERSION.load(Ordering::Acquire) {
        0 => {
            let address = Address::from_environment().ok();
            let looked = address.and_then(|address| look(&address, VERSION_LIMIT).ok());
            let told = looked.and_then(|looked| looked.cuda_version);
            told.map_or(OFFERED_CUDA_VERSION, keep_version)
        }
        told => told,
    }
}

/// Whether [`cuda_version_asked_once`] has asked the host. Not a `OnceLock`: if another thread
/// forks while the `OnceLock` is being filled, no thread of the child ever fills it.
static ASKED: AtomicU8 = AtomicU8::new(NOT_ASKED);

const NOT_ASKED: u8 = 0;
/// A thread has asked the host and waits for the answer.
const ASKING: u8 = 1;
const WAS_ASKED: u8 = 2;

/// As [`cuda_version`], for lookups, which programs make hundreds of times in a row: a host that
/// did not answer is not asked again before cuInit. Other threads wait for the same answer.
pub(crate) fn cuda_version_asked_once() -> u32 {
    loop {
        // Loaded before the version, because the asking thread stores the version before WAS_ASKED.
        let asked = ASKED.load(Ordering::Acquire);
        match (CUDA_VERSION.load(Ordering::Acquire), asked) {
            (0, WAS_ASKED) => return OFFERED_CUDA_VERSION,
            (0, ASKING) => std::thread::sleep(Duration::from_micros(200)),
            (0, _) => {
                let begun =
                    ASKED.compare_exchange(asked, ASKING, Ordering::AcqRel, Ordering::Acquire);
                if begun.is_ok() {
                    let version = cuda_version();
                    ASKED.store(WAS_ASKED, Ordering::Release);
                    return version;
                }
            }
            (told, _) => return told,
        }
    }
}

/// Stores the host's version, unless a version was already returned to the program. Returns the
/// version to use from now on.
fn keep_version(host: u32) -> u32 {
    let version = host.min(OFFERED_CUDA_VERSION);
    let kept = CUDA_VERSION.compare_exchange(0, version, Ordering::AcqRel, Ordering::Acquire);
    kept.map_or_else(|told| told, |_| version)
}

/// `cuInit`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for flags, CUDA_ERROR_NO_DEVICE if CUDA_VISIBLE_DEVICES selects no
/// device, or the reason for which there is no session.
pub(crate) fn init(flags: u32) -> Cu {
    if flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    lock_initialising();
    let result = match PHASE.load(Ordering::Acquire) {
        BEFORE => begin(),
        READY => shim().map(|_| ()),
        _ => Err(no_shim()),
    };
    INITIALISING.store(false, Ordering::Release);
    result
}

fn begin() -> Cu {
    log::settle();
    if let Some(unknown) = observe::unknown() {
        log::line(log::Level::Error, &unknown);
    }
    let refused = |none: NoSession| {
        observe::refused();
        log::line(
            log::Level::Error,
            &format!("{} [{:#}]", none.text, none.code),
        );
        none.code
    };
    let address = Address::from_environment().map_err(|text| {
        refused(NoSession {
            code: CuResult::INVALID_VALUE,
            text,
        })
    })?;
    // CUDA ranks all devices of a session as equal, so both orders are the host's order.
    match std::env::var("CUDA_DEVICE_ORDER").as_deref() {
        Err(_) | Ok("FASTEST_FIRST" | "PCI_BUS_ID") => {}
        Ok(other) => {
            return Err(refused(NoSession {
                code: CuResult::INVALID_DEVICE,
                text: format!(
                    "CUDA_DEVICE_ORDER={other} is unknown: say FASTEST_FIRST or PCI_BUS_ID, or leave it unset"
                ),
            }));
        }
    }
    let mut opened = session::open(&address).map_err(refused)?;
    // The handshake was a round trip: `VGPU_STATS` counts cuInit as *sync*.
    observe::awaited(0, true);
    opened.welcome.cuda_version = keep_version(opened.welcome.cuda_version);
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let devices = crate::state::devices::Devices::new(&opened.welcome, visible.as_deref());
    let devices = devices.map_err(|code| {
        let list = visible.as_deref().unwrap_or_default();
        let text = format!("CUDA_VISIBLE_DEVICES={list} names a device twice: name each once");
        refused(NoSession { code, text })
    })?;
    let session = Session::start(&opened, way_out_of).map_err(refused)?;
    last_thread::watch_from_here();
    for (place, fd) in DESCRIPTORS.iter().zip(session.descriptors()) {
        place.store(fd, Ordering::Release);
    }
    log::line(
        log::Level::Info,
        &format!(
            "session {} with vgpud {} at {address}, CUDA {}",
            opened.welcome.session,
            opened.welcome.daemon_version,
            version_text(devices.cuda_version)
        ),
    );
    let empty = devices.count() == 0;
    let shim = Box::leak(Box::new(Shim::new(session, devices)));
    if empty {
        // As NVIDIA's library with an empty CUDA_VISIBLE_DEVICES. The session stays open but unused
        // until the process ends; a later cuInit cannot find more devices.
        return Err(CuResult::NO_DEVICE);
    }
    SHIM.store(shim, Ordering::Release);
    PHASE.store(READY, Ordering::Release);
    Ok(())
}

/// Advice for the user after a device fault; empty if nothing is known.
fn way_out_of(fault: CuResult) -> &'static str {
    let page_locked = || shim().is_ok_and(|shim| shim.pinned.any());
    if fault == CuResult::ILLEGAL_ADDRESS && page_locked() {
        "; if a kernel found the address of page-locked memory in memory, call cuMemHostGetDevicePointer \
         (cudaHostGetDevicePointer) for it first"
    } else {
        ""
    }
}

fn lock_initialising() {
    while INITIALISING.swap(true, Ordering::AcqRel) {
        std::thread::sleep(Duration::from_micros(200));
    }
}

extern "C" fn before_fork() {
    lock_initialising();
}

extern "C" fn after_fork_in_parent() {
    INITIALISING.store(false, Ordering::Release);
}

/// Uses only atomics and close, which need no lock: a lock that another thread of the parent held
/// stays locked for ever in the child.
extern "C" fn after_fork_in_child() {
    INITIALISING.store(false, Ordering::Release);
    // The thread that asks the host exists only in the parent.
    let _ = ASKED.compare_exchange(ASKING, NOT_ASKED, Ordering::AcqRel, Ordering::Acquire);
    if PHASE.load(Ordering::Acquire) == BEFORE {
        return;
    }
    SHIM.store(std::ptr::null_mut(), Ordering::Release);
    PHASE.store(FORKED, Ordering::Release);
    PRINTED.forget();
    for place in &DESCRIPTORS {
        let fd = place.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            // Close without shutdown: the parent still uses these connections.
            sys::close(fd);
        }
    }
}

extern "C" fn on_load() {
    observe::begin();
    // SAFETY: the handlers are functions of this library, which is never unmapped (-z nodelete).
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        );
    }
}

/// Runs after the exit handlers of the program, which may still make calls. Other threads of the
/// program may still run; their calls return CUDA_ERROR_DEINITIALIZED and use no freed memory.
extern "C" fn on_exit() {
    if PHASE.load(Ordering::Acquire) != FORKED {
        observe::end();
    }
    if PHASE
        .compare_exchange(READY, EXITING, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        return;
    }
    let shim = SHIM.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: the pointer is null or comes from a leaked box, which is never freed.
    if let Some(shim) = unsafe { shim.as_ref() } {
        shim.session.goodbye();
    }
}

// SAFETY: the loader calls the functions in these arrays with C's calling convention when it maps
// and unmaps the library. The loader calls each function once, `on_load` first.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

// SAFETY: as above.
#[used]
#[unsafe(link_section = ".fini_array")]
static ON_EXIT: extern "C" fn() = on_exit;
