//! While a digest is written (`SOFT_GPU_DIGEST`), overwrites the stack below the caller's frame
//! after each call, with a byte that differs between processes. Reason: programs pass uninitialised
//! variables in kernel parameters. Such variables hold leftovers of earlier calls. Leftovers of
//! this library would be equal in every run on soft-gpu, but differ from the leftovers of a guest's
//! library. Overwritten, these bytes differ from run to run, and `vgpu-digest` skips them. For the
//! same reason, device addresses and handles differ between processes: programs leave parts of them
//! in such variables.
//!
//! Only the thread's own stack is overwritten. Programs also make calls on other stacks
//! (`makecontext`, fibers, signal handlers), below which other data lies. A coroutine's stack
//! inside the thread's own stack cannot be recognised, and its data would be overwritten: do not
//! record such programs.

#[cfg(target_arch = "x86_64")]
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// Whether calls overwrite the stack. Set from `SOFT_GPU_DIGEST` when the library is loaded,
/// because the leftovers of cuInit count too; cuInit sets the value again.
static ON: AtomicBool = AtomicBool::new(false);

/// Reads `SOFT_GPU_DIGEST` when the library is loaded, before cuInit reads all settings.
extern "C" fn on_load() {
    set(std::env::var_os("SOFT_GPU_DIGEST").is_some_and(|prefix| !prefix.is_empty()));
}

// SAFETY: the loader calls the functions in this array with C's calling convention when it maps the
// library, after the C library is initialised. This function reads a variable and stores to an
// atomic.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// Number of bytes that are overwritten: more than any call of a guest's library uses.
#[cfg(target_arch = "x86_64")]
const DEPTH: usize = 256 << 10;

/// Bytes at the lower end of a stack that are not overwritten.
#[cfg(target_arch = "x86_64")]
const MARGIN: usize = 16 << 10;

/// Most words of arguments on the stack, which are copied. No function has more.
#[cfg(target_arch = "x86_64")]
const WORDS: usize = 8;

#[cfg(target_arch = "x86_64")]
thread_local! {
    /// The thread's own stack; `None` before the first query.
    static OWN: Cell<Option<Stack>> = const { Cell::new(None) };
}

/// Sets whether calls overwrite the stack.
pub fn set(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// A number from 1 to 31 that differs between processes; 0 if calls do not overwrite the stack.
pub fn number() -> u64 {
    match ON.load(Ordering::Relaxed) {
        true => u64::from(std::process::id() % 31 + 1),
        false => 0,
    }
}

/// Bytes at the start of each device's addresses that get no allocations, at most 125 GiB. All
/// address bits from bit 21 on therefore differ between processes, and neither 32-bit half of an
/// address is a small number.
pub fn skipped() -> u64 {
    number() * ((4 << 30) + (18 << 20))
}

/// Most functions for which [`called`] makes an entry point.
#[cfg(target_arch = "x86_64")]
const SLOTS: usize = 32;
#[cfg(target_arch = "x86_64")]
static FUNCTIONS: [AtomicPtr<()>; SLOTS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; SLOTS];
#[cfg(target_arch = "x86_64")]
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Returns an entry point that jumps to `function` and overwrites the stack after the call, for
/// functions that programs call through a table.
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

/// Jumps to the entry point in `rax`. If the setting is on and the call runs on the thread's own
/// stack, calls the entry point with a copy of the stack arguments, and then overwrites the stack
/// below the caller's frame.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) extern "C" fn pass() {
    std::arch::naked_asm!(
        "cmp byte ptr [rip + {on}], 0",
        "jne 2f",
        "jmp rax",
        // Saves the entry point, and the arguments in registers (at most one is a floating-point
        // number).
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
        // Copies r10 words, the last word first.
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

/// Number of words above the frame that may be arguments; 0 if the frame is not on the thread's own
/// stack. The frame starts with the caller's `rbp` and the return address.
#[cfg(target_arch = "x86_64")]
extern "C" fn arguments(frame: usize) -> usize {
    let Stack { low, top } = own();
    if !(low..top).contains(&frame) {
        return 0;
    }
    (top.saturating_sub(frame + 16) / 8).min(WORDS)
}

/// The word that overwrites the stack, and the number of bytes to overwrite. A caller in assembly
/// gets both in registers.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Noise {
    word: u64,
    bytes: usize,
}

/// The word, and the number of bytes to overwrite below the address `at` of the thread's own stack.
#[cfg(target_arch = "x86_64")]
extern "C" fn noise(at: usize) -> Noise {
    // The bytes of any 251 processes with consecutive process ids differ.
    let byte = (std::process::id() % 251 + 1) as u8;
    let room = at.saturating_sub(own().low.saturating_add(MARGIN));
    Noise {
        word: u64::from_ne_bytes([byte; 8]),
        bytes: room.min(DEPTH) & !7,
    }
}

/// Address range of a stack: the lowest address, and the first address above.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Stack {
    low: usize,
    top: usize,
}

/// The thread's own stack; an empty range if the C library cannot tell.
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
    // SAFETY: the first call initialises the attributes, and the last call destroys them once.
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
