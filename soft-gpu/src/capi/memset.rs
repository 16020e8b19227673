//! Memsets.

use super::types::{ASYNC, Default, SYNC, StreamArg};
use crate::driver::copy::{Memset, Mode, set};
use crate::driver::error::Result;

/// `size` bytes an element, `(width, height)` elements from `addr`, rows `pitch` bytes apart.
fn rows(
    (addr, pitch): (u64, usize),
    (value, size): (u32, u32),
    (width, height): (usize, usize),
    mode: Mode,
    (stream, default): (StreamArg, Default),
) -> Result {
    let what = Memset {
        addr,
        pitch,
        value,
        size,
        width,
        height,
    };
    set(&what, mode, &stream.get(default)?)
}

macro_rules! memsets {
    ($($size:literal $ty:ty: $one:ident $one_async:ident $two:ident $two_async:ident;)*) => {
        $(
            fn $one(addr: u64, value: $ty, n: usize, default: Default) -> Result {
                rows((addr, 0), (value.into(), $size), (n, 1), SYNC, (StreamArg(0), default))
            }

            fn $one_async(addr: u64, value: $ty, n: usize, stream: StreamArg, default: Default) -> Result {
                rows((addr, 0), (value.into(), $size), (n, 1), ASYNC, (stream, default))
            }

            fn $two(addr: u64, pitch: usize, value: $ty, w: usize, h: usize, default: Default) -> Result {
                rows((addr, pitch), (value.into(), $size), (w, h), SYNC, (StreamArg(0), default))
            }

            fn $two_async(
                addr: u64,
                pitch: usize,
                value: $ty,
                w: usize,
                h: usize,
                stream: StreamArg,
                default: Default,
            ) -> Result {
                rows((addr, pitch), (value.into(), $size), (w, h), ASYNC, (stream, default))
            }
        )*
    };
}

memsets! {
    1 u8: d8 d8_async d2d8 d2d8_async;
    2 u16: d16 d16_async d2d16 d2d16_async;
    4 u32: d32 d32_async d2d32 d2d32_async;
}

stream_exports! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(addr: u64, value: u8, n: usize) => d8;
    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(addr: u64, value: u8, n: usize, stream: StreamArg) => d8_async;
    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(addr: u64, pitch: usize, value: u8, w: usize, h: usize) => d2d8;
    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(addr: u64, pitch: usize, value: u8, w: usize, h: usize, stream: StreamArg) => d2d8_async;
    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(addr: u64, value: u16, n: usize) => d16;
    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(addr: u64, value: u16, n: usize, stream: StreamArg) => d16_async;
    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(addr: u64, pitch: usize, value: u16, w: usize, h: usize) => d2d16;
    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(addr: u64, pitch: usize, value: u16, w: usize, h: usize, stream: StreamArg) => d2d16_async;
    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(addr: u64, value: u32, n: usize) => d32;
    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(addr: u64, value: u32, n: usize, stream: StreamArg) => d32_async;
    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(addr: u64, pitch: usize, value: u32, w: usize, h: usize) => d2d32;
    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(addr: u64, pitch: usize, value: u32, w: usize, h: usize, stream: StreamArg) => d2d32_async;
}
