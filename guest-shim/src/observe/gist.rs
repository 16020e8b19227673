//! The short form of an argument in a trace.

use std::fmt::Write as _;

use vgpu_cuda_abi::args::{In, Out, Text};

/// Largest number of characters that are shown of a text.
const MOST: usize = 60;

/// An argument of a CUDA function.
pub(crate) trait Gist {
    /// Appends the short form.
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
    /// Shows large numbers, which are handles or addresses, in hexadecimal.
    fn write(&self, out: &mut String) {
        let _ = match *self {
            n if n < 0x10000 => write!(out, "{n}"),
            n => write!(out, "{n:#x}"),
        };
    }
}

impl Gist for Text {
    fn write(&self, out: &mut String) {
        let Ok(text) = self.lossy() else {
            out.push_str("0x0");
            return;
        };
        let short: String = text.chars().take(MOST).collect();
        let more = if short.len() < text.len() { "…" } else { "" };
        let _ = write!(out, "{short:?}{more}");
    }
}

impl<T> Gist for In<T> {
    fn write(&self, out: &mut String) {
        let _ = write!(out, "{self:?}");
    }
}

impl<T> Gist for Out<T> {
    fn write(&self, out: &mut String) {
        let _ = write!(out, "{self:?}");
    }
}

impl<T> Gist for *const T {
    fn write(&self, out: &mut String) {
        let _ = write!(out, "{:p}", *self);
    }
}

impl<T> Gist for *mut T {
    fn write(&self, out: &mut String) {
        let _ = write!(out, "{:p}", *self);
    }
}

impl<F> Gist for Option<F> {
    fn write(&self, out: &mut String) {
        out.push_str(if self.is_some() { "function" } else { "null" });
    }
}

/// Formats all arguments as `name=value`.
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
        // SAFETY: texts that end with a NUL and live as long as the test.
        let [name, long] = [c"vecadd", &long].map(|text| unsafe { Text::new(text.as_ptr()) });
        let text = of_all(&[
            ("stream", &0_u64),
            ("dst", &0x7e00_0000_0000_u64),
            ("name", &name),
            ("long", &long),
            ("_size", &4096_usize),
        ]);
        let cut = format!("{:?}…", "x".repeat(60));
        assert_eq!(
            text,
            format!("stream=0, dst=0x7e0000000000, name=\"vecadd\", long={cut}, size=4096")
        );
    }
}
