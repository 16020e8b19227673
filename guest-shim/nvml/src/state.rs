//! The last look at the VM, and the handles of its devices.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use vgpu_door::{Address, Failure, Level};
use vgpu_proto::handshake::Refusal;
use vgpu_proto::look::{Looked, LookedGpu};

use crate::ffi::{Code, Ml};

/// A look is good for so long: a tool that asks for fifty things asks vgpud once.
const FRESH: Duration = Duration::from_millis(250);

/// What a handle points to. Never freed: a program may keep a handle as long as it likes.
#[derive(Debug)]
struct Device {
    uuid: String,
}

/// An `nvmlDevice_t` of the caller: only compared, never followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(*const std::ffi::c_void);

#[derive(Debug)]
struct Seen {
    looked: Arc<Looked>,
    at: Instant,
}

/// One look: the first thread that wants it asks, the others wait for the answer, and all have the same.
type Look = Arc<OnceLock<Ml<Arc<Looked>>>>;

#[derive(Debug)]
pub(crate) struct State {
    /// How often nvmlInit was called and not taken back.
    users: u64,
    seen: Option<Seen>,
    /// A look that may not be answered yet.
    looking: Option<Look>,
    devices: Vec<&'static Device>,
}

/// Never locked while vgpud is asked: every call of the library and every fork waits for it.
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
/// Why the VM cannot be looked at.
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

/// The VM as it is now.
///
/// # Errors
/// NVML_ERROR_UNINITIALIZED, or why it cannot be looked at.
pub(crate) fn looked() -> Ml<Arc<Looked>> {
    let state = lock();
    state.initialised()?;
    Ok(look(state)?.0)
}

/// What a function that is not served answers.
///
/// # Errors
/// Always.
pub(crate) fn unserved() -> Ml {
    lock().initialised()?;
    Err(Code::NOT_SUPPORTED)
}

/// The VM, and which of its devices a handle means.
///
/// # Errors
/// As [`looked`]; NVML_ERROR_INVALID_ARGUMENT for what is no handle or a device that the VM has no more.
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

/// The handle of the first device of which this is true.
///
/// # Errors
/// As [`looked`]; `none` if there is none.
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

    /// In the child of a fork: who was looking is a thread of the parent's.
    pub(crate) fn forked(&mut self) {
        // Not dropped: another thread may have held the allocator's lock.
        std::mem::forget(self.looking.take());
    }
}

/// The VM as it is now. The lock is given up while vgpud is asked.
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
    // The first that is back keeps the answer for all.
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

/// Asks vgpud. `last` is what was seen last.
fn ask(last: Option<Arc<Looked>>) -> Ml<Arc<Looked>> {
    let address = Address::from_environment();
    let address = address.map_err(|text| said(&text, Code::INVALID_ARGUMENT))?;
    match (vgpu_door::look(&address, vgpu_door::LIMIT), last) {
        (Ok(looked), _) => Ok(Arc::new(looked)),
        // Too often: what was seen last is not old.
        (Err(Failure::Refused(Some(Refusal::Busy), _)), Some(last)) => Ok(last),
        (Err(Failure::Refused(Some(Refusal::Busy), text)), None) => Err(said(&text, Code::IN_USE)),
        (Err(failure), _) => Err(said(&failure.to_string(), code(&failure))),
    }
}

fn code(failure: &Failure) -> Code {
    match failure {
        Failure::Nobody(_) | Failure::Lost(_) => Code::DRIVER_NOT_LOADED,
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

/// Says something on standard error where `VGPU_LOG` asks for it: many programs only try whether there is a GPU.
pub(crate) fn warn(text: &str) {
    if Level::from_environment().0 >= Level::Warn {
        let line = format!("vgpu: NVML: {text}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    }
}
