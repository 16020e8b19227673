//! Tensor maps: descriptions of tensors in device memory, from which kernels copy parts. Only the
//! host's driver knows their form.

use std::ffi::c_int;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_proto::call::{Tensor, Window, req};
use vgpu_proto::cuda::Ctx;

use crate::ffi::exports;
use crate::state::Shim;
use crate::state::current::live;
use crate::{Cu, unserved};

/// `CUtensorMap`. A program must align the structure to 64 bytes.
type Map = [u64; 16];
const ALIGNMENT: usize = 64;

/// Most dimensions of a tensor.
const RANK_MOST: u32 = 5;

exports! {
    /// Describes a tensor of which copies take boxes.
    fn cuTensorMapEncodeTiled(
        map: Out<Map>,
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
        let (shim, ctx) = able("cuTensorMapEncodeTiled", map)?;
        let rank = among(rank, 1)?;
        let tensor = Tensor {
            data_type,
            address,
            sizes: list(sizes, rank)?,
            strides: list(strides, rank - 1)?,
            element_strides: list(element_strides, rank)?,
            window: Window::Box { sizes: list(box_sizes, rank)? },
            interleave,
            swizzle,
            l2_promotion,
            fill,
        };
        encode(shim, ctx, map, tensor)
    }

    /// Describes a tensor of which copies take pixels, as convolutions do.
    fn cuTensorMapEncodeIm2col(
        map: Out<Map>,
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
        let (shim, ctx) = able("cuTensorMapEncodeIm2col", map)?;
        let rank = among(rank, 3)?;
        let tensor = Tensor {
            data_type,
            address,
            sizes: list(sizes, rank)?,
            strides: list(strides, rank - 1)?,
            element_strides: list(element_strides, rank)?,
            window: Window::Pixels {
                lower: list(lower, rank - 2)?,
                upper: list(upper, rank - 2)?,
                channels,
                pixels,
            },
            interleave,
            swizzle,
            l2_promotion,
            fill,
        };
        encode(shim, ctx, map, tensor)
    }

    /// Changes the address of the tensor that a map describes.
    fn cuTensorMapReplaceAddress(map: Out<Map>, address: u64) {
        let (shim, ctx) = able("cuTensorMapReplaceAddress", map)?;
        let call = req::TensorMapReplaceAddress { ctx, map: map.input().get()?, address };
        map.set(shim.session.call(&call)?.map)
    }
}

/// The library and the current context, if the place of the map is usable and a device of the
/// program has tensor maps.
fn able(function: &'static str, map: Out<Map>) -> Cu<(&'static Shim, Ctx)> {
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

fn among(rank: u32, least: u32) -> Cu<usize> {
    match (least..=RANK_MOST).contains(&rank) {
        true => Ok(rank as usize),
        false => Err(CuResult::INVALID_VALUE),
    }
}

fn list<T: Copy>(from: In<T>, len: usize) -> Cu<Vec<T>> {
    (0..len).map(|index| from.at(index)).collect()
}

fn encode(shim: &Shim, ctx: Ctx, map: Out<Map>, tensor: Tensor) -> Cu {
    map.set(shim.tensor_maps.of(tensor, |tensor| {
        let call = req::TensorMapEncode { ctx, tensor };
        Ok(shim.session.call(&call)?.map)
    })?)
}
