//! vgpud's last answer about the VM, and the handles of the VM's devices.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use vgpu_door::{Address, Failure, Level};
use vgpu_proto::handshake::Refusal;
use vgpu_proto::look::{Looked, LookedGpu};

use crate::ffi::{Code, Ml};

/// Time for which an answer of vgpud is used again: a tool that makes 50 calls asks vgpud once.
const FRESH: Duration = Duration::from_millis(250);

/// The object to which a handle points. Never freed, because a program may keep a handle for ever.
#[derive(Debug)]
struct Device {
    uuid: String,
}

/// An `nvmlDevice_t` of the caller, which is compared but never dereferenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(*const std::ffi::c_void);

#[derive(Debug)]
struct Seen {
    looked: Arc<Looked>,
    at: Instant,
}

/// A request to vgpud that may be in progress. The first thread that needs the answer asks vgpud;
/// the other threads wait for the same answer.
type Look = Arc<OnceLock<Ml<Arc<Looked>>>>;

#[derive(Debug)]
pub(crate) struct State {
    /// Number of calls of nvmlInit without a matching nvmlShutdown.
    users: u64,
    seen: Option<Seen>,
    /// The request to vgpud that is in progress, if any.
    looking: Option<Look>,
    devices: Vec<&'static Device>,
}

/// Never locked during a request to vgpud, because every call of the library and every fork waits
/// for this lock.
static STATE: Mutex<State> = Mutex::new(State {
    users: 0,
    seen: None,
    looking: None,
    devices: Vec::new(),
});

pub(crate) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `nvmlInit`.
///
/// # Errors
/// The reason for which the look failed.
pub(crate) fn init() -> Ml {
    let mut state = lock();
    if state.users == 0 {
        state.seen = None;
        state = look(state)?.1;
    }
    state.users += 1;
    Ok(())
}

/// `nvmlShutdown`.
///
/// # Errors
/// NVML_ERROR_UNINITIALIZED.
pub(crate) fn shutdown() -> Ml {
    let mut state = lock();
    state.users = state.users.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
    Ok(())
}

/// The present state of the VM.
///
/// # Errors
/// NVML_ERROR_UNINITIALIZED, or the reason for which the look failed.
pub(crate) fn looked() -> Ml<Arc<Looked>> {
    let state = lock();
    state.initialised()?;
    Ok(look(state)?.0)
}

/// The result of an unserved function.
///
/// # Errors
/// NVML_ERROR_UNINITIALIZED before nvmlInit, otherwise NVML_ERROR_NOT_SUPPORTED.
pub(crate) fn unserved() -> Ml {
    lock().initialised()?;
    Err(Code::NOT_SUPPORTED)
}

/// Finds the device of a handle. Returns the state of the VM, and the index of the device in it.
///
/// # Errors
/// As [`looked`]; NVML_ERROR_INVALID_ARGUMENT for an invalid handle or a device that the VM no
/// longer has.
pub(crate) fn device(handle: Handle) -> Ml<(Arc<Looked>, usize)> {
    let state = lock();
    state.initialised()?;
    let known = state.devices.iter();
    let known = known.copied().find(|&known| handle_of(known) == handle);
    let uuid = &known.ok_or(Code::INVALID_ARGUMENT)?.uuid;
    let looked = look(state)?.0;
    let index = looked.gpus.iter().position(|gpu| gpu.uuid == *uuid);
    Ok((looked, index.ok_or(Code::INVALID_ARGUMENT)?))
}

/// The device of a handle.
///
/// # Errors
/// As [`device`].
pub(crate) fn gpu(handle: Handle) -> Ml<LookedGpu> {
    let (looked, index) = device(handle)?;
    looked.gpus.get(index).cloned().ok_or(Code::UNKNOWN)
}

/// The handle of the first device that satisfies `is`.
///
/// # Errors
/// As [`looked`]; the code `none` if there is no such device.
pub(crate) fn find(none: Code, is: impl Fn(usize, &LookedGpu) -> bool) -> Ml<Handle> {
    let state = lock();
    state.initialised()?;
    let (looked, mut state) = look(state)?;
    let mut gpus = looked.gpus.iter().enumerate();
    let (_, gpu) = gpus.find(|(n, gpu)| is(*n, gpu)).ok_or(none)?;
    if let Some(&known) = state.devices.iter().find(|known| known.uuid == gpu.uuid) {
        return Ok(handle_of(known));
    }
    let uuid = gpu.uuid.clone();
    let device = Box::leak(Box::new(Device { uuid }));
    state.devices.push(device);
    Ok(handle_of(device))
}

fn handle_of(device: &'static Device) -> Handle {
    Handle(std::ptr::from_ref(device).cast())
}

impl State {
    fn initialised(&self) -> Ml {
        match self.users {
            0 => Err(Code::UNINITIALIZED),
            _ => Ok(()),
        }
    }

    /// Called in the child of a fork. A request in progress belongs to a thread of the parent, and
    /// gets no answer in the child.
    pub(crate) fn forked(&mut self) {
        // Leaked instead of dropped, because another thread may have held the allocator's lock.
        std::mem::forget(self.looking.take());
    }
}

/// The present state of the VM. The lock is released during a request to vgpud.
fn look(mut state: MutexGuard<'static, State>) -> Ml<(Arc<Looked>, MutexGuard<'static, State>)> {
    let seen = state.seen.as_ref();
    if let Some(seen) = seen.filter(|seen| seen.at.elapsed() < FRESH) {
        return Ok((seen.looked.clone(), state));
    }
    let last = seen.map(|seen| seen.looked.clone());
    let look = state.looking.get_or_insert_default().clone();
    drop(state);
    let answer = look.get_or_init(|| ask(last)).clone();
    let mut state = lock();
    // The first thread to return stores the answer for all.
    if state
        .looking
        .as_ref()
        .is_some_and(|l| Arc::ptr_eq(l, &look))
    {
        state.looking = None;
        if let Ok(looked) = &answer {
            state.seen = Some(Seen {
                looked: looked.clone(),
                at: Instant::now(),
            });
        }
    }
    Ok((answer?, state))
}

/// Asks vgpud. `last` is the previous answer; it is returned again if vgpud refuses because of too
/// many requests.
fn ask(last: Option<Arc<Looked>>) -> Ml<Arc<Looked>> {
    let address = Address::from_environment();
    let address = address.map_err(|text| said(&text, Code::INVALID_ARGUMENT))?;
    match (vgpu_door::look(&address, vgpu_door::LIMIT), last) {
        (Ok(looked), _) => Ok(Arc::new(looked)),
        // vgpud refuses because of too many requests, so the previous answer is recent enough.
        (Err(Failure::Refused(Some(Refusal::Busy), _)), Some(last)) => Ok(last),
        (Err(Failure::Refused(Some(Refusal::Busy), text)), None) => Err(said(&text, Code::IN_USE)),
        (Err(failure), _) => Err(said(&failure.to_string(), code(&failure))),
    }
}

fn code(failure: &Failure) -> Code {
    match failure {
        Failure::Nobody(_) | Failure::Lost(_) => Code::DRIVER_NOT_LOADED,
        Failure::Lacking(_) => Code::INSUFFICIENT_RESOURCES,
        Failure::Garbled(_) | Failure::Refused(Some(Refusal::Version | Refusal::Malformed), _) => {
            Code::VERSION_MISMATCH
        }
        Failure::Refused(..) => Code::NO_PERMISSION,
    }
}

fn said(text: &str, code: Code) -> Code {
    warn(text);
    code
}

/// Logs a warning to standard error if `VGPU_LOG` is `warn` or higher. Off by default, because many
/// programs only test for a GPU.
pub(crate) fn warn(text: &str) {
    if Level::from_environment().0 >= Level::Warn {
        let line = format!("vgpu: NVML: {text}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
}
