//! Fills of device memory.

use crate::ffi::exports;
use crate::ops::fill::{Area, line, line_now};
use crate::state::current::live;
use crate::state::streams::resolve;

exports! {
    /// Fills 8-bit elements.
    fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds [mode] (dst: u64, value: u8, count: usize) {
        let shim = live()?;
        line_now(shim, &resolve(shim, 0, mode)?, dst, value.into(), 1, count)
    }

    /// Fills 8-bit elements, in a stream.
    fn cuMemsetD8Async / cuMemsetD8Async_ptsz [mode] (
        dst: u64,
        value: u8,
        count: usize,
        stream: u64
    ) {
        let shim = live()?;
        line(shim, &resolve(shim, stream, mode)?, dst, value.into(), 1, count)
    }

    /// Fills 16-bit elements.
    fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds [mode] (dst: u64, value: u16, count: usize) {
        let shim = live()?;
        line_now(shim, &resolve(shim, 0, mode)?, dst, value.into(), 2, count)
    }

    /// Fills 16-bit elements, in a stream.
    fn cuMemsetD16Async / cuMemsetD16Async_ptsz [mode] (
        dst: u64,
        value: u16,
        count: usize,
        stream: u64
    ) {
        let shim = live()?;
        line(shim, &resolve(shim, stream, mode)?, dst, value.into(), 2, count)
    }

    /// Fills 32-bit elements.
    fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds [mode] (dst: u64, value: u32, count: usize) {
        let shim = live()?;
        line_now(shim, &resolve(shim, 0, mode)?, dst, value, 4, count)
    }

    /// Fills 32-bit elements, in a stream.
    fn cuMemsetD32Async / cuMemsetD32Async_ptsz [mode] (
        dst: u64,
        value: u32,
        count: usize,
        stream: u64
    ) {
        let shim = live()?;
        line(shim, &resolve(shim, stream, mode)?, dst, value, 4, count)
    }

    /// Fills rows of 8-bit elements.
    fn cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds [mode] (
        dst: u64,
        pitch: usize,
        value: u8,
        columns: usize,
        rows: usize
    ) {
        let shim = live()?;
        let area = Area { dst, pitch, columns, rows };
        area.fill_now(shim, &resolve(shim, 0, mode)?, value.into(), 1)
    }

    /// Fills rows of 8-bit elements, in a stream.
    fn cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz [mode] (
        dst: u64,
        pitch: usize,
        value: u8,
        columns: usize,
        rows: usize,
        stream: u64
    ) {
        let shim = live()?;
        let area = Area { dst, pitch, columns, rows };
        area.fill(shim, &resolve(shim, stream, mode)?, value.into(), 1)
    }

    /// Fills rows of 16-bit elements.
    fn cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds [mode] (
        dst: u64,
        pitch: usize,
        value: u16,
        columns: usize,
        rows: usize
    ) {
        let shim = live()?;
        let area = Area { dst, pitch, columns, rows };
        area.fill_now(shim, &resolve(shim, 0, mode)?, value.into(), 2)
    }

    /// Fills rows of 16-bit elements, in a stream.
    fn cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz [mode] (
        dst: u64,
        pitch: usize,
        value: u16,
        columns: usize,
        rows: usize,
        stream: u64
    ) {
        let shim = live()?;
        let area = Area { dst, pitch, columns, rows };
        area.fill(shim, &resolve(shim, stream, mode)?, value.into(), 2)
    }

    /// Fills rows of 32-bit elements.
    fn cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds [mode] (
        dst: u64,
        pitch: usize,
        value: u32,
        columns: usize,
        rows: usize
    ) {
        let shim = live()?;
        let area = Area { dst, pitch, columns, rows };
        area.fill_now(shim, &resolve(shim, 0, mode)?, value, 4)
    }

    /// Fills rows of 32-bit elements, in a stream.
    fn cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz [mode] (
        dst: u64,
        pitch: usize,
        value: u32,
        columns: usize,
        rows: usize,
        stream: u64
    ) {
        let shim = live()?;
        let area = Area { dst, pitch, columns, rows };
        area.fill(shim, &resolve(shim, stream, mode)?, value, 4)
    }
}
