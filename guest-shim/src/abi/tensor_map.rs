//! Tensor maps: descriptions of tensors in device memory, from which kernels copy parts. Only the
//! host's driver knows their form.

use std::ffi::c_int;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_proto::call::{Tensor, TensorMap, Window, req};
use vgpu_proto::cuda::Ctx;
use vgpu_proto::limits::MAX_TENSOR_RANK;

use crate::ffi::exports;
use crate::state::Shim;
use crate::state::current::live;
use crate::{Cu, unserved};

/// A program must align a `CUtensorMap` to 64 bytes.
const ALIGNMENT: usize = 64;

exports! {
    /// Describes a tensor for copies of boxes.
    fn cuTensorMapEncodeTiled(
        map: Out<TensorMap>,
        data_type: u32,
        rank: u32,
        address: u64,
        sizes: In<u64>,
        strides: In<u64>,
        box_sizes: In<u32>,
        element_strides: In<u32>,
        interleave: u32,
        swizzle: u32,
        l2_promotion: u32,
        fill: u32
    ) {
        let (shim, ctx) = prepare("cuTensorMapEncodeTiled", map)?;
        let given = Given {
            data_type,
            rank,
            address,
            sizes,
            strides,
            element_strides,
            interleave,
            swizzle,
            l2_promotion,
            fill,
        };
        let window = |rank| Ok(Window::Box { sizes: box_sizes.list(rank)? });
        encode(shim, ctx, map, given.tensor(1, window)?)
    }

    /// Describes a tensor for copies of pixels, as convolutions make them.
    fn cuTensorMapEncodeIm2col(
        map: Out<TensorMap>,
        data_type: u32,
        rank: u32,
        address: u64,
        sizes: In<u64>,
        strides: In<u64>,
        lower: In<c_int>,
        upper: In<c_int>,
        channels: u32,
        pixels: u32,
        element_strides: In<u32>,
        interleave: u32,
        swizzle: u32,
        l2_promotion: u32,
        fill: u32
    ) {
        let (shim, ctx) = prepare("cuTensorMapEncodeIm2col", map)?;
        let given = Given {
            data_type,
            rank,
            address,
            sizes,
            strides,
            element_strides,
            interleave,
            swizzle,
            l2_promotion,
            fill,
        };
        let window = |rank: usize| {
            Ok(Window::Pixels {
                lower: lower.list(rank - 2)?,
                upper: upper.list(rank - 2)?,
                channels,
                pixels,
            })
        };
        encode(shim, ctx, map, given.tensor(3, window)?)
    }

    /// Changes the address of the tensor that a map describes.
    fn cuTensorMapReplaceAddress(map: Out<TensorMap>, address: u64) {
        let (shim, ctx) = prepare("cuTensorMapReplaceAddress", map)?;
        let call = req::TensorMapReplaceAddress { ctx, map: map.input().get()?, address };
        map.set(shim.session.call(&call)?.map)
    }
}

/// The arguments of both functions that describe a tensor.
struct Given {
    data_type: u32,
    rank: u32,
    address: u64,
    sizes: In<u64>,
    strides: In<u64>,
    element_strides: In<u32>,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    fill: u32,
}

impl Given {
    /// The tensor. `least` is the smallest rank; `window` makes the window for the rank.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for another rank, or for a list that is null.
    fn tensor(self, least: u32, window: impl FnOnce(usize) -> Cu<Window>) -> Cu<Tensor> {
        if !(least..=MAX_TENSOR_RANK).contains(&self.rank) {
            return Err(CuResult::INVALID_VALUE);
        }
        let rank = self.rank as usize;
        Ok(Tensor {
            data_type: self.data_type,
            address: self.address,
            sizes: self.sizes.list(rank)?,
            strides: self.strides.list(rank - 1)?,
            element_strides: self.element_strides.list(rank)?,
            window: window(rank)?,
            interleave: self.interleave,
            swizzle: self.swizzle,
            l2_promotion: self.l2_promotion,
            fill: self.fill,
        })
    }
}

/// The library and the current context, if the place of the map is usable and a device of the
/// program has tensor maps.
fn prepare(function: &'static str, map: Out<TensorMap>) -> Cu<(&'static Shim, Ctx)> {
    let shim = live()?;
    map.check()?;
    if !map.input().pointer().addr().is_multiple_of(ALIGNMENT) {
        return Err(CuResult::INVALID_VALUE);
    }
    if !shim.devices.all().any(|device| device.has_tensor_maps()) {
        return Err(unserved::refuse(function, unserved::TENSOR_MAPS));
    }
    Ok((shim, shim.contexts.current()?.handle))
}

fn encode(shim: &Shim, ctx: Ctx, map: Out<TensorMap>, tensor: Tensor) -> Cu {
    map.set(shim.tensor_maps.of(tensor, |tensor| {
        let call = req::TensorMapEncode { ctx, tensor };
        Ok(shim.session.call(&call)?.map)
    })?)
}
