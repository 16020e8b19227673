//! Memsets.

use vgpu_cuda_abi::args::{DefaultStream, StreamArg};
use vgpu_cuda_abi::structs::MemsetNodeParams;

use crate::capi::StreamOf as _;
use crate::driver::copy::{Mode, set};
use crate::driver::error::Result;

/// Sets `(width, height)` elements of `size` bytes from `addr`, with rows `pitch` bytes apart.
fn rows(
    (addr, pitch): (u64, usize),
    (value, size): (u32, u32),
    (width, height): (usize, usize),
    mode: Mode,
    (stream, default): (StreamArg, DefaultStream),
) -> Result {
    let what = MemsetNodeParams {
        dst: addr,
        pitch,
        value,
        element: size,
        width,
        height,
    };
    set(&what, mode, &stream.get(default)?)
}

macro_rules! memsets {
    ($($size:literal $ty:ty: $one:ident $one_async:ident $two:ident $two_async:ident;)*) => {
        $(
            fn $one(addr: u64, value: $ty, n: usize, default: DefaultStream) -> Result {
                rows((addr, 0), (value.into(), $size), (n, 1), Mode::Sync, (StreamArg::DEFAULT, default))
            }

            fn $one_async(addr: u64, value: $ty, n: usize, stream: StreamArg, default: DefaultStream) -> Result {
                rows((addr, 0), (value.into(), $size), (n, 1), Mode::Async, (stream, default))
            }

            fn $two(addr: u64, pitch: usize, value: $ty, w: usize, h: usize, default: DefaultStream) -> Result {
                rows((addr, pitch), (value.into(), $size), (w, h), Mode::Sync, (StreamArg::DEFAULT, default))
            }

            fn $two_async(
                addr: u64,
                pitch: usize,
                value: $ty,
                w: usize,
                h: usize,
                stream: StreamArg,
                default: DefaultStream,
            ) -> Result {
                rows((addr, pitch), (value.into(), $size), (w, h), Mode::Async, (stream, default))
            }
        )*
    };
}

memsets! {
    1 u8: d8 d8_async d2d8 d2d8_async;
    2 u16: d16 d16_async d2d16 d2d16_async;
    4 u32: d32 d32_async d2d32 d2d32_async;
}

exports! {
    fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds [default] (addr: u64, value: u8, n: usize) {
        d8(addr, value, n, default)
    }

    fn cuMemsetD8Async / cuMemsetD8Async_ptsz [default] (addr: u64, value: u8, n: usize, stream: StreamArg) {
        d8_async(addr, value, n, stream, default)
    }

    fn cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds [default] (addr: u64, pitch: usize, value: u8, w: usize, h: usize) {
        d2d8(addr, pitch, value, w, h, default)
    }

    fn cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz [default] (addr: u64, pitch: usize, value: u8, w: usize, h: usize, stream: StreamArg) {
        d2d8_async(addr, pitch, value, w, h, stream, default)
    }

    fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds [default] (addr: u64, value: u16, n: usize) {
        d16(addr, value, n, default)
    }

    fn cuMemsetD16Async / cuMemsetD16Async_ptsz [default] (addr: u64, value: u16, n: usize, stream: StreamArg) {
        d16_async(addr, value, n, stream, default)
    }

    fn cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds [default] (addr: u64, pitch: usize, value: u16, w: usize, h: usize) {
        d2d16(addr, pitch, value, w, h, default)
    }

    fn cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz [default] (addr: u64, pitch: usize, value: u16, w: usize, h: usize, stream: StreamArg) {
        d2d16_async(addr, pitch, value, w, h, stream, default)
    }

    fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds [default] (addr: u64, value: u32, n: usize) {
        d32(addr, value, n, default)
    }

    fn cuMemsetD32Async / cuMemsetD32Async_ptsz [default] (addr: u64, value: u32, n: usize, stream: StreamArg) {
        d32_async(addr, value, n, stream, default)
    }

    fn cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds [default] (addr: u64, pitch: usize, value: u32, w: usize, h: usize) {
        d2d32(addr, pitch, value, w, h, default)
    }

    fn cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz [default] (addr: u64, pitch: usize, value: u32, w: usize, h: usize, stream: StreamArg) {
        d2d32_async(addr, pitch, value, w, h, stream, default)
    }
}
