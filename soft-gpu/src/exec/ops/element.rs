//! Elements in memory, state spaces, and the immediate of memory instructions.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::exec::col::Raw;

/// Immediate of a memory instruction: the offset in the low 32 bits, then these bits.
pub(crate) mod layout {
    /// Position of the number of vector elements in the immediate.
    pub(crate) const COUNT_SHIFT: u32 = 32;
    /// The address register is 32 bits wide.
    pub(crate) const NARROW: u64 = 1 << 40;
    /// Position of the number of the address register's memo.
    pub(crate) const MEMO_SHIFT: u32 = 48;
    /// The rule that is found for the address register is stored in the memo.
    pub(crate) const KEEP: u64 = 1 << 52;
    /// The address register has not changed since the memo was stored.
    pub(crate) const REUSE: u64 = 1 << 53;
    /// The load of a chain is from global memory instead of shared memory.
    pub(crate) const GLOBAL: u64 = 1 << 54;
    /// Position of the number of terms, in the first load of a chain.
    pub(crate) const CHAIN_SHIFT: u32 = 56;
}

/// State spaces of an access, as const parameters.
pub(crate) mod space {
    /// `.global` and `.const`.
    pub(crate) const GLOBAL: u8 = 0;
    /// `.shared`.
    pub(crate) const SHARED: u8 = 1;
    /// `.local` and parameters of device functions.
    pub(crate) const LOCAL: u8 = 2;
    /// Generic addresses, and `.param` through a register.
    pub(crate) const GENERIC: u8 = 3;
}

/// A memory element and its form in a register.
pub(crate) trait Mem {
    /// Element of the register.
    type R: Raw;
    /// Bytes in memory.
    const SIZE: usize;
    /// Whether the element in memory has all bits of the register.
    const WHOLE: bool;
    /// Reads one element.
    ///
    /// # Safety
    /// `p` must be valid for reads and aligned to [`Self::SIZE`].
    unsafe fn load(p: *mut u8) -> Self::R;
    /// Writes one element.
    ///
    /// # Safety
    /// `p` must be valid for writes and aligned to [`Self::SIZE`].
    unsafe fn store(p: *mut u8, v: Self::R);
}

macro_rules! mems {
    ($($n:ident: $r:ty, $t:ty, $u:ty, $a:ident, $whole:expr;)*) => {$(
        /// A type of element in memory, and its form in a register.
        pub(crate) struct $n;
        impl Mem for $n {
            type R = $r;
            const SIZE: usize = std::mem::size_of::<$t>();
            const WHOLE: bool = $whole;
            #[inline(always)]
            unsafe fn load(p: *mut u8) -> $r {
                // SAFETY: valid and aligned, by the caller's contract.
                unsafe { $a::from_ptr(p.cast()) }.load(Relaxed) as $t as $r
            }
            #[inline(always)]
            unsafe fn store(p: *mut u8, v: $r) {
                // SAFETY: valid and aligned, by the caller's contract.
                unsafe { $a::from_ptr(p.cast()) }.store(v as $u, Relaxed);
            }
        }
    )*};
}

mems! {
    U8In32: u32, u8, u8, AtomicU8, false;
    S8In32: u32, i8, u8, AtomicU8, false;
    U16In32: u32, u16, u16, AtomicU16, false;
    S16In32: u32, i16, u16, AtomicU16, false;
    B32In32: u32, u32, u32, AtomicU32, true;
    U8In64: u64, u8, u8, AtomicU8, false;
    S8In64: u64, i8, u8, AtomicU8, false;
    U16In64: u64, u16, u16, AtomicU16, false;
    S16In64: u64, i16, u16, AtomicU16, false;
    U32In64: u64, u32, u32, AtomicU32, false;
    S32In64: u64, i32, u32, AtomicU32, false;
    B64In64: u64, u64, u64, AtomicU64, true;
}
