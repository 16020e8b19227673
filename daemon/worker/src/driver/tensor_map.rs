//! Tensor maps.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys;
use vgpu_proto::call::{Tensor, TensorMap, Window};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::MAX_TENSOR_RANK;

use super::{Context, Result, raw};

const MAX_RANK: usize = MAX_TENSOR_RANK as usize;

/// `cuTensorMapEncodeTiled` or `cuTensorMapEncodeIm2col` in a context. The map is only numbers: the
/// driver does not look at the address.
///
/// # Errors
/// The error of the driver; INVALID_VALUE if the lists do not have an entry for each dimension;
/// NOT_SUPPORTED if the driver lacks the function, as soft-gpu does.
pub fn encode_tensor_map(context: &Context, tensor: &Tensor) -> Result<TensorMap> {
    let rank = tensor.sizes.len();
    let (least, complete) = match &tensor.window {
        Window::Box { sizes } => (1, sizes.len() == rank),
        Window::Pixels { lower, upper, .. } => {
            (3, lower.len() + 2 == rank && upper.len() + 2 == rank)
        }
    };
    if !(least..=MAX_RANK).contains(&rank)
        || !complete
        || tensor.strides.len() + 1 != rank
        || tensor.element_strides.len() != rank
    {
        return Err(CuResult::INVALID_VALUE);
    }
    context.bind()?;
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let (at, dimensions) = (&raw mut map, rank as u32);
    let address = ptr::without_provenance_mut::<c_void>(tensor.address as usize);
    let (sizes, strides) = (whole(&tensor.sizes), whole(&tensor.strides));
    let element_strides = whole(&tensor.element_strides);
    let (sizes, strides) = (sizes.as_ptr(), strides.as_ptr());
    let element_strides = element_strides.as_ptr();
    // SAFETY: writes one map; each list has an entry for each dimension that a tensor may have; the
    // driver does not follow the address.
    unsafe {
        match &tensor.window {
            Window::Box { sizes: boxes } => raw::cuTensorMapEncodeTiled(
                at,
                tensor.data_type,
                dimensions,
                address,
                sizes,
                strides,
                whole(boxes).as_ptr(),
                element_strides,
                tensor.interleave,
                tensor.swizzle,
                tensor.l2_promotion,
                tensor.fill,
            ),
            Window::Pixels {
                lower,
                upper,
                channels,
                pixels,
            } => raw::cuTensorMapEncodeIm2col(
                at,
                tensor.data_type,
                dimensions,
                address,
                sizes,
                strides,
                whole(lower).as_ptr(),
                whole(upper).as_ptr(),
                *channels,
                *pixels,
                element_strides,
                tensor.interleave,
                tensor.swizzle,
                tensor.l2_promotion,
                tensor.fill,
            ),
        }
    }?;
    Ok(map.opaque)
}

/// The list with zeros up to the most dimensions.
fn whole<T: Copy + Default>(list: &[T]) -> [T; MAX_RANK] {
    std::array::from_fn(|index| list.get(index).copied().unwrap_or_default())
}

/// `cuTensorMapReplaceAddress` in a context.
///
/// # Errors
/// As [`encode_tensor_map`].
pub fn replace_tensor_address(
    context: &Context,
    map: TensorMap,
    address: u64,
) -> Result<TensorMap> {
    context.bind()?;
    let mut map = sys::CUtensorMap { opaque: map };
    let address = ptr::without_provenance_mut::<c_void>(address as usize);
    // SAFETY: changes one map; the driver does not follow the address.
    unsafe { raw::cuTensorMapReplaceAddress(&raw mut map, address) }?;
    Ok(map.opaque)
}
