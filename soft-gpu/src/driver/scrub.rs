//! What a call leaves below its caller's frame, while a digest is written (`SOFT_GPU_DIGEST`): one byte over and over,
//! another in each process. Programs copy variables that they never set into parameters of kernels, so what lies in
//! them would be what this library's functions left there, the same in every run, where a guest's library leaves
//! something else. Overwritten so, such bytes differ from run to run, and `vgpu-digest` leaves them out. Addresses of
//! the device and handles, of which programs leave parts everywhere, are not the same in each process then either.
//!
//! Only a thread's own stack is overwritten. Programs call on others too (`makecontext`, fibers, signal handlers), below
//! which other data lies. A stack that a program puts into its thread's own cannot be told apart from it, so its data
//! would be overwritten: do not record such programs.

#[cfg(target_arch = "x86_64")]
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// Whether calls overwrite what they leave. Set on load from `SOFT_GPU_DIGEST`, since cuInit's own frames count too, and
/// again by cuInit.
static ON: AtomicBool = AtomicBool::new(false);

/// The setting, before cuInit reads it with the others.
extern "C" fn on_load() {
    set(std::env::var_os("SOFT_GPU_DIGEST").is_some_and(|prefix| !prefix.is_empty()));
}

// SAFETY: the loader calls the functions in this array with C's calling convention when it maps the library, after
// the C library is set up; this one reads a variable and stores to an atomic.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// Bytes that are overwritten: more than a call of a guest's library uses.
#[cfg(target_arch = "x86_64")]
const DEPTH: usize = 256 << 10;

/// Bytes at a stack's lower end that are let alone.
#[cfg(target_arch = "x86_64")]
const MARGIN: usize = 16 << 10;

/// Words of arguments on the stack: no function has more.
#[cfg(target_arch = "x86_64")]
const WORDS: usize = 8;

#[cfg(target_arch = "x86_64")]
thread_local! {
    /// The thread's own stack; `None` if that was not asked yet.
    static OWN: Cell<Option<Stack>> = const { Cell::new(None) };
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

/// Goes on at the entry point in `rax`. If calls overwrite what they leave and this one is made on the thread's own
/// stack, calls it, with a copy of its arguments on the stack, and overwrites what lies below its caller's frame.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) extern "C" fn pass() {
    std::arch::naked_asm!(
        "cmp byte ptr [rip + {on}], 0",
        "jne 2f",
        "jmp rax",
        // Keeps the arguments in registers (at most one is a floating-point number) and the entry point.
        "2:",
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "sub rsp, 24",
        "movups [rsp], xmm0",
        "mov rdi, rbp",
        "call {arguments}",
        "mov r10, rax",
        "movups xmm0, [rsp]",
        "add rsp, 24",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test r10, r10",
        "jne 3f",
        "pop rbp",
        "jmp rax",
        // Copies that many words, the last one first.
        "3:",
        "sub rsp, {words} * 8",
        "4:",
        "mov r11, [rbp + r10 * 8 + 8]",
        "mov [rsp + r10 * 8 - 8], r11",
        "dec r10",
        "jne 4b",
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
        arguments = sym arguments,
        words = const WORDS,
        noise = sym noise,
    )
}

/// Words of arguments that may lie above a frame which begins with the caller's `rbp` and the return address; 0 if it
/// is not on the thread's own stack.
#[cfg(target_arch = "x86_64")]
extern "C" fn arguments(frame: usize) -> usize {
    let Stack { low, top } = own();
    if !(low..top).contains(&frame) {
        return 0;
    }
    (top.saturating_sub(frame + 16) / 8).min(WORDS)
}

/// The word to overwrite with, and how many bytes of the stack below an address: both come back in registers.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Noise {
    word: u64,
    bytes: usize,
}

/// For a frame on the thread's own stack.
#[cfg(target_arch = "x86_64")]
extern "C" fn noise(at: usize) -> Noise {
    // Of 251 processes one after the other, no two have the same.
    let byte = (std::process::id() % 251 + 1) as u8;
    let room = at.saturating_sub(own().low.saturating_add(MARGIN));
    Noise {
        word: u64::from_ne_bytes([byte; 8]),
        bytes: room.min(DEPTH) & !7,
    }
}

/// Addresses of a stack: the lowest, and the first above it.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Stack {
    low: usize,
    top: usize,
}

/// The thread's own stack; an empty one if nobody knows.
#[cfg(target_arch = "x86_64")]
fn own() -> Stack {
    OWN.get().unwrap_or_else(|| {
        let stack = asked().unwrap_or(Stack { low: 0, top: 0 });
        OWN.set(Some(stack));
        stack
    })
}

#[cfg(target_arch = "x86_64")]
fn asked() -> Option<Stack> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are those that the first call fills, and are given back once.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let asked = libc::pthread_attr_getstack(attributes.as_ptr(), &mut low, &mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        let low = low as usize;
        (asked == 0).then(|| Stack {
            low,
            top: low.saturating_add(size),
        })
    }
}
