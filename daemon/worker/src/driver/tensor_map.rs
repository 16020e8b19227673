//! Tensor maps.

use std::ffi::{c_int, c_void};
use std::ptr;

use vgpu_proto::call::{Tensor, Window};
use vgpu_proto::cuda::CuResult;

use super::{Result, raw};

/// `CUtensorMap`.
#[repr(C, align(64))]
pub(super) struct Map([u64; 16]);

/// Most dimensions of a tensor.
const RANK_MOST: usize = 5;

/// `cuTensorMapEncodeTiled` or `cuTensorMapEncodeIm2col`. The map is only numbers: the driver does
/// not look at the address.
///
/// # Errors
/// The error of the driver; INVALID_VALUE if the lists do not have an entry for each dimension;
/// NOT_SUPPORTED if the driver lacks the function, as soft-gpu does.
pub fn encode_tensor_map(tensor: &Tensor) -> Result<[u64; 16]> {
    let rank = tensor.sizes.len();
    let (least, whole) = match &tensor.window {
        Window::Box { sizes } => (1, sizes.len() == rank),
        Window::Pixels { lower, upper, .. } => {
            (3, lower.len() + 2 == rank && upper.len() + 2 == rank)
        }
    };
    if !(least..=RANK_MOST).contains(&rank)
        || !whole
        || tensor.strides.len() + 1 != rank
        || tensor.element_strides.len() != rank
    {
        return Err(CuResult::INVALID_VALUE);
    }
    let mut map = Map([0; 16]);
    let (at, dimensions) = (&raw mut map, rank as u32);
    let address = ptr::without_provenance_mut::<c_void>(tensor.address as usize);
    let (sizes, strides) = (tensor.sizes.as_ptr(), tensor.strides.as_ptr());
    let element_strides = tensor.element_strides.as_ptr();
    // SAFETY: writes one map; the driver reads as many entries of each list as checked above, and
    // does not follow the address.
    unsafe {
        match &tensor.window {
            Window::Box { sizes: boxes } => raw::cuTensorMapEncodeTiled(
                at,
                tensor.data_type,
                dimensions,
                address,
                sizes,
                strides,
                boxes.as_ptr(),
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
                lower.as_ptr().cast::<c_int>(),
                upper.as_ptr().cast::<c_int>(),
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
    Ok(map.0)
}

/// `cuTensorMapReplaceAddress`.
///
/// # Errors
/// As [`encode_tensor_map`].
pub fn replace_tensor_address(map: [u64; 16], address: u64) -> Result<[u64; 16]> {
    let mut map = Map(map);
    let address = ptr::without_provenance_mut::<c_void>(address as usize);
    // SAFETY: changes one map; the driver does not follow the address.
    unsafe { raw::cuTensorMapReplaceAddress(&raw mut map, address) }?;
    Ok(map.0)
}
