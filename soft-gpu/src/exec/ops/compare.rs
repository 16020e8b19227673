//! Comparisons of `setp` and `set`.

use super::family::Cmp;
use super::float::ftz;
use super::half::f32_of_half;
use crate::exec::col::Val;

macro_rules! compares {
    ($($m:ident $t:ty { $($n:ident = |$a:ident, $b:ident| $e:expr;)* })*) => {$(
        pub(crate) mod $m {
            use super::*;
            $(
                pub(crate) struct $n;
                impl Cmp for $n {
                    type A = $t;
                    #[inline(always)]
                    fn f($a: $t, $b: $t) -> bool { $e }
                }
            )*
        }
    )*};
}

macro_rules! int_compares {
    ($($m:ident $t:ty),*) => { compares! { $( $m $t {
        Eq = |a, b| a == b;
        Ne = |a, b| a != b;
        Lt = |a, b| a < b;
        Le = |a, b| a <= b;
        Gt = |a, b| a > b;
        Ge = |a, b| a >= b;
    } )* } };
}

macro_rules! float_compares {
    ($($m:ident $t:ty),*) => { compares! { $( $m $t {
        Eq = |a, b| a == b;
        Ne = |a, b| a != b && !a.is_nan() && !b.is_nan();
        Lt = |a, b| a < b;
        Le = |a, b| a <= b;
        Gt = |a, b| a > b;
        Ge = |a, b| a >= b;
        Equ = |a, b| a == b || a.is_nan() || b.is_nan();
        Neu = |a, b| a != b;
        Ltu = |a, b| !matches!(a.partial_cmp(&b), Some(std::cmp::Ordering::Greater | std::cmp::Ordering::Equal));
        Leu = |a, b| !matches!(a.partial_cmp(&b), Some(std::cmp::Ordering::Greater));
        Gtu = |a, b| !matches!(a.partial_cmp(&b), Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal));
        Geu = |a, b| !matches!(a.partial_cmp(&b), Some(std::cmp::Ordering::Less));
        Num = |a, b| !a.is_nan() && !b.is_nan();
        Nan = |a, b| a.is_nan() || b.is_nan();
    } )* } };
}

int_compares!(u16s u16, s16s i16, u32s u32, s32s i32, u64s u64, s64s i64);
float_compares!(f32s f32, f64s f64, f32zs Flushed, f16s Half, f16zs FlushedHalf, bf16s Brain);

/// A single for comparisons in which subnormals count as zero.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Flushed(f32);

impl Flushed {
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.0.is_nan()
    }
}

impl Val for Flushed {
    type R = u32;
    #[inline(always)]
    fn of(r: u32) -> Flushed {
        Flushed(ftz(f32::from_bits(r)))
    }
    #[inline(always)]
    fn raw(self) -> u32 {
        self.0.to_bits()
    }
}

/// A 16-bit value, which compares as the single of the same value.
macro_rules! small_values {
    ($($(#[$m:meta])* $n:ident = |$h:ident| $e:expr;)*) => {$(
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, PartialOrd)]
        pub(crate) struct $n(f32);

        impl $n {
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.0.is_nan()
            }
        }

        impl Val for $n {
            type R = u32;
            #[inline(always)]
            fn of(r: u32) -> $n {
                let $h = r as u16;
                $n($e)
            }
            #[inline(always)]
            fn raw(self) -> u32 {
                self.0.to_bits()
            }
        }
    )*};
}

small_values! {
    /// A half.
    Half = |h| f32_of_half(h);
    /// A half for comparisons in which subnormals count as zero.
    FlushedHalf = |h| f32_of_half(if h & 0x7c00 == 0 { 0 } else { h });
    /// A bfloat16.
    Brain = |h| f32::from_bits(u32::from(h) << 16);
}
