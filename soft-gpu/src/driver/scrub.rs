//! What a call leaves below its caller's frame, while a digest is written (`SOFT_GPU_DIGEST`): one byte over and over,
//! another in each process. Programs copy variables that they never set into parameters of kernels, so what lies in
//! them would be what this library's functions left there, the same in every run, where a guest's library leaves
//! something else. Overwritten so, such bytes differ from run to run, and `vgpu-digest` leaves them out. Addresses of
//! the device and handles, of which programs leave parts everywhere, are not the same in each process then either.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// Whether calls overwrite what they leave. They do until cuInit has read the settings: it leaves much itself.
static ON: AtomicBool = AtomicBool::new(true);

/// Bytes that are overwritten: more than a call of a guest's library uses.
const DEPTH: usize = 256 << 10;

/// Bytes at a stack's end that are let alone.
const MARGIN: usize = 16 << 10;

thread_local! {
    /// Where the thread's stack ends; 0 if that was not asked yet.
    static END: Cell<usize> = const { Cell::new(0) };
}

/// Whether calls overwrite what they leave from now on.
pub fn set(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// A number from 1 to 31 that tells processes apart; 0 if calls do not overwrite what they leave.
pub fn number() -> u64 {
    match ON.load(Ordering::Relaxed) {
        true => u64::from(std::process::id() % 31 + 1),
        false => 0,
    }
}

/// Bytes at the beginning of the devices' addresses without an allocation: up to 125 GiB, so that each byte above an
/// address's lowest 21 bits is another in each process, and no lower half is a small number.
pub fn skipped() -> u64 {
    number() * ((4 << 30) + (18 << 20))
}

/// Functions that programs call without a name: most that [`called`] takes.
#[cfg(target_arch = "x86_64")]
const SLOTS: usize = 32;
#[cfg(target_arch = "x86_64")]
static FUNCTIONS: [AtomicPtr<()>; SLOTS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SLOTS];
#[cfg(target_arch = "x86_64")]
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// What a program is to call for a function of a table: an entry point as those with names.
#[cfg(target_arch = "x86_64")]
pub fn called(function: *const ()) -> *const () {
    #[unsafe(naked)]
    extern "C" fn entry<const SLOT: usize>() {
        std::arch::naked_asm!(
            "mov rax, [rip + {functions} + {slot} * 8]",
            "jmp {pass}",
            functions = sym FUNCTIONS,
            slot = const SLOT,
            pass = sym pass,
        )
    }
    macro_rules! entries {
        ($($ten:literal)*) => {
            [$(
                entry::<{ $ten }> as *const (), entry::<{ $ten + 1 }> as *const (),
                entry::<{ $ten + 2 }> as *const (), entry::<{ $ten + 3 }> as *const (),
                entry::<{ $ten + 4 }> as *const (), entry::<{ $ten + 5 }> as *const (),
                entry::<{ $ten + 6 }> as *const (), entry::<{ $ten + 7 }> as *const (),
            )*]
        };
    }
    let entries: [*const (); SLOTS] = entries!(0 8 16 24);
    let slot = NEXT.fetch_add(1, Ordering::Relaxed);
    match FUNCTIONS.get(slot) {
        Some(place) => {
            place.store(function.cast_mut(), Ordering::Relaxed);
            entries[slot]
        }
        None => function,
    }
}

/// Goes on at the entry point in `rax`; if calls overwrite what they leave, calls it, with a copy of eight words of
/// arguments from the stack (no function has more), and overwrites what lies below its caller's frame.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) extern "C" fn pass() {
    std::arch::naked_asm!(
        "cmp byte ptr [rip + {on}], 0",
        "jne 2f",
        "jmp rax",
        "2:",
        "push rbp",
        "mov rbp, rsp",
        "push [rbp + 72]",
        "push [rbp + 64]",
        "push [rbp + 56]",
        "push [rbp + 48]",
        "push [rbp + 40]",
        "push [rbp + 32]",
        "push [rbp + 24]",
        "push [rbp + 16]",
        "call rax",
        "mov [rsp], rax",
        "mov rdi, rbp",
        "call {noise}",
        "mov r8, [rsp]",
        "mov r9, rax",
        "mov rdi, rbp",
        "sub rdi, rdx",
        "mov rcx, rdx",
        "shr rcx, 3",
        "rep stosq",
        "mov rax, r8",
        "mov rsp, rbp",
        "pop rbp",
        "mov [rsp - 8], r9",
        "ret",
        on = sym ON,
        noise = sym noise,
    )
}

/// The word to overwrite with, and how many bytes of the stack below an address: both come back in registers.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Noise {
    word: u64,
    bytes: usize,
}

#[cfg(target_arch = "x86_64")]
extern "C" fn noise(at: usize) -> Noise {
    // Of 251 processes one after the other, no two have the same.
    let byte = (std::process::id() % 251 + 1) as u8;
    let room = at.saturating_sub(end() + MARGIN);
    Noise {
        word: u64::from_ne_bytes([byte; 8]),
        bytes: room.min(DEPTH) & !7,
    }
}

/// The lowest address of the thread's stack.
#[cfg(target_arch = "x86_64")]
fn end() -> usize {
    if END.get() == 0 {
        // If nobody knows, nothing is overwritten.
        END.set(asked_end().unwrap_or(usize::MAX - MARGIN));
    }
    END.get()
}

#[cfg(target_arch = "x86_64")]
fn asked_end() -> Option<usize> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut end, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are those that the first call fills, and are given back once.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let asked = libc::pthread_attr_getstack(attributes.as_ptr(), &mut end, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (asked == 0).then_some(end as usize)
    }
}
