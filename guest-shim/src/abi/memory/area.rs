//! Copies of rows and of boxes.

use vgpu_cuda_abi::args::{DefaultStream, In};
use vgpu_cuda_abi::structs::{Copy2D, Copy3D};

use crate::Cu;
use crate::ffi::exports;
use crate::ops::area::start;
use crate::state::current::live;
use crate::state::streams::resolve;

exports! {
    /// Copies rows.
    fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds [mode] (copy: In<Copy2D>) {
        rows(copy, 0, mode, true)
    }

    /// As cuMemcpy2D_v2.
    fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds [mode] (copy: In<Copy2D>) {
        rows(copy, 0, mode, true)
    }

    /// Copies rows, in a stream.
    fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz [mode] (copy: In<Copy2D>, stream: u64) {
        rows(copy, stream, mode, false)
    }

    /// Copies a box.
    fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds [mode] (copy: In<Copy3D>) {
        volume(copy, 0, mode, true)
    }

    /// Copies a box, in a stream.
    fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz [mode] (copy: In<Copy3D>, stream: u64) {
        volume(copy, stream, mode, false)
    }
}

fn rows(copy: In<Copy2D>, stream: u64, mode: DefaultStream, sync: bool) -> Cu {
    let shim = live()?;
    let target = resolve(shim, stream, mode)?;
    let copy = copy.get()?.into();
    start(shim, &target, &copy, sync)
}

fn volume(copy: In<Copy3D>, stream: u64, mode: DefaultStream, sync: bool) -> Cu {
    let shim = live()?;
    let target = resolve(shim, stream, mode)?;
    start(shim, &target, &copy.get()?, sync)
}
