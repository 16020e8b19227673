//! The gist of an argument, for a trace.

use std::any::TypeId;
use std::ffi::{CStr, c_char};
use std::fmt::Write as _;

/// Most of a text that is shown.
const MOST: usize = 60;

/// An argument of a CUDA function.
pub(crate) trait Gist {
    /// Appends it.
    fn write(&self, out: &mut String);
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Gist for $ty {
            fn write(&self, out: &mut String) {
                let _ = write!(out, "{self}");
            }
        }
    )*};
}
numbers!(u8, u16, u32, i32, usize);

impl Gist for u64 {
    /// Handles and addresses; small numbers are neither.
    fn write(&self, out: &mut String) {
        let _ = match *self {
            n if n < 0x10000 => write!(out, "{n}"),
            n => write!(out, "{n:#x}"),
        };
    }
}

impl<T: 'static> Gist for *const T {
    fn write(&self, out: &mut String) {
        // Only names of the caller are passed so; results have other types.
        if TypeId::of::<T>() == TypeId::of::<c_char>() && !self.is_null() {
            // SAFETY: a NUL-terminated text, by the contract of every function that takes one.
            let text = unsafe { CStr::from_ptr(self.cast()) }.to_string_lossy();
            let short: String = text.chars().take(MOST).collect();
            let more = if short.len() < text.len() { "…" } else { "" };
            let _ = write!(out, "{short:?}{more}");
        } else {
            let _ = write!(out, "{:p}", *self);
        }
    }
}

impl<T: 'static> Gist for *mut T {
    fn write(&self, out: &mut String) {
        let _ = write!(out, "{:p}", *self);
    }
}

impl<F> Gist for Option<F> {
    fn write(&self, out: &mut String) {
        out.push_str(if self.is_some() { "function" } else { "null" });
    }
}

/// All arguments, `name=value`.
pub(super) fn of_all(arguments: &[(&str, &dyn Gist)]) -> String {
    let mut out = String::new();
    for (i, (name, value)) in arguments.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        out.push_str(name.trim_start_matches('_'));
        out.push('=');
        value.write(&mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_hexadecimal_and_names_are_text() {
        let long = std::ffi::CString::new("x".repeat(100)).expect("no NUL");
        let text = of_all(&[
            ("stream", &0_u64),
            ("dst", &0x7e00_0000_0000_u64),
            ("name", &c"vecadd".as_ptr()),
            ("long", &long.as_ptr()),
            ("_size", &4096_usize),
        ]);
        let cut = format!("{:?}…", "x".repeat(60));
        assert_eq!(
            text,
            format!("stream=0, dst=0x7e0000000000, name=\"vecadd\", long={cut}, size=4096")
        );
    }
}
