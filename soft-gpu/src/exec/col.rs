//! Columns: the 32 lanes of one virtual register, and typed views of their bits.

use super::inst::{LANES, bank};
use super::warp::Warp;

/// The lanes of a register of up to 32 bits.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Col32(pub(crate) [u32; LANES]);

/// The lanes of a 64-bit register.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Col64(pub(crate) [u64; LANES]);

impl Default for Col32 {
    fn default() -> Self {
        Col32([0; LANES])
    }
}

impl Default for Col64 {
    fn default() -> Self {
        Col64([0; LANES])
    }
}

/// An element of a column. The functions below do not check bounds. Column indices come only from
/// the lowering, which keeps them within the size of the frame. The warp grows its register files
/// to that size before it enters the frame.
pub(crate) trait Raw: Copy + Default + PartialEq {
    /// Bytes per lane.
    const BYTES: usize;
    /// The column of an operand. Only the column of a destination may be written through the
    /// pointer.
    fn column(w: &Warp, op: u32) -> *mut [Self; LANES];
    /// The lanes of a source operand.
    fn src(w: &Warp, op: u32) -> &[Self; LANES];
    /// The lanes of a destination register.
    fn dst(w: &mut Warp, op: u32) -> &mut [Self; LANES];
    /// The low 64 bits.
    fn to_u64(self) -> u64;
    /// The low bits of `v`.
    fn from_u64(v: u64) -> Self;
}

impl Raw for u32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn column(w: &Warp, op: u32) -> *mut [u32; LANES] {
        debug_assert!(w.holds32(op), "32-bit operand {op:#x}");
        let bank = w.bank32[(op >> 30) as usize].cast_mut();
        // SAFETY: see the trait: the index is within the bank, and the bank pointer is valid.
        unsafe { &raw mut (*bank.add((op & bank::INDEX) as usize)).0 }
    }
    #[inline(always)]
    fn src(w: &Warp, op: u32) -> &[u32; LANES] {
        debug_assert!(w.holds32(op), "32-bit operand {op:#x}");
        // SAFETY: see the trait: the index is within the bank, and the bank pointer is valid.
        unsafe { &(*w.bank32[(op >> 30) as usize].add((op & bank::INDEX) as usize)).0 }
    }
    #[inline(always)]
    fn dst(w: &mut Warp, op: u32) -> &mut [u32; LANES] {
        debug_assert!(w.holds32(op) && op >> 30 == 0, "32-bit result {op:#x}");
        // SAFETY: as above; a destination is in the register bank, which the warp owns.
        unsafe { &mut (*w.bank32[0].cast_mut().add((op & bank::INDEX) as usize)).0 }
    }
    #[inline(always)]
    fn to_u64(self) -> u64 {
        u64::from(self)
    }
    #[inline(always)]
    fn from_u64(v: u64) -> u32 {
        v as u32
    }
}

impl Raw for u64 {
    const BYTES: usize = 8;
    #[inline(always)]
    fn column(w: &Warp, op: u32) -> *mut [u64; LANES] {
        debug_assert!(w.holds64(op), "64-bit operand {op:#x}");
        let bank = w.bank64[(op >> 30) as usize].cast_mut();
        // SAFETY: see the trait: the index is within the bank, and the bank pointer is valid.
        unsafe { &raw mut (*bank.add((op & bank::INDEX) as usize)).0 }
    }
    #[inline(always)]
    fn src(w: &Warp, op: u32) -> &[u64; LANES] {
        debug_assert!(w.holds64(op), "64-bit operand {op:#x}");
        // SAFETY: see the trait.
        unsafe { &(*w.bank64[(op >> 30) as usize].add((op & bank::INDEX) as usize)).0 }
    }
    #[inline(always)]
    fn dst(w: &mut Warp, op: u32) -> &mut [u64; LANES] {
        debug_assert!(w.holds64(op) && op >> 30 == 0, "64-bit result {op:#x}");
        // SAFETY: as above; a destination is in the register bank, which the warp owns.
        unsafe { &mut (*w.bank64[0].cast_mut().add((op & bank::INDEX) as usize)).0 }
    }
    #[inline(always)]
    fn to_u64(self) -> u64 {
        self
    }
    #[inline(always)]
    fn from_u64(v: u64) -> u64 {
        v
    }
}

/// Writes the lanes in `mask`.
#[inline(always)]
pub(crate) fn put<R: Raw>(w: &mut Warp, op: u32, v: &[R; LANES], mask: u32) {
    let d = R::dst(w, op);
    if mask == u32::MAX {
        *d = *v;
    } else {
        for l in 0..LANES {
            d[l] = if (mask >> l) & 1 != 0 { v[l] } else { d[l] };
        }
    }
}

/// Prefetches an operand's column into the first-level cache of the CPU.
#[inline(always)]
pub(crate) fn soon<R: Raw>(w: &Warp, op: u32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let column = R::column(w, op).cast_const().cast::<i8>();
        for line in 0..LANES * R::BYTES / 64 {
            // SAFETY: the line belongs to the column. A prefetch is a hint and reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(column.add(64 * line)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (w, op);
}

/// A typed view of a lane's bits. A type narrower than the column uses the low bits and ignores the
/// others.
pub(crate) trait Val: Copy {
    /// Element of the column.
    type R: Raw;
    /// Reads the value from a lane.
    fn of(r: Self::R) -> Self;
    /// The lane that holds the value.
    fn raw(self) -> Self::R;
}

macro_rules! val_int {
    ($($t:ty => $r:ty),*) => {$(
        impl Val for $t {
            type R = $r;
            #[inline(always)]
            fn of(r: $r) -> $t { r as $t }
            #[inline(always)]
            fn raw(self) -> $r { self as $r }
        }
    )*};
}
val_int!(u8 => u32, i8 => u32, u16 => u32, i16 => u32, u32 => u32, i32 => u32, u64 => u64, i64 => u64);

impl Val for f32 {
    type R = u32;
    #[inline(always)]
    fn of(r: u32) -> f32 {
        f32::from_bits(r)
    }
    #[inline(always)]
    fn raw(self) -> u32 {
        self.to_bits()
    }
}

impl Val for f64 {
    type R = u64;
    #[inline(always)]
    fn of(r: u64) -> f64 {
        f64::from_bits(r)
    }
    #[inline(always)]
    fn raw(self) -> u64 {
        self.to_bits()
    }
}
