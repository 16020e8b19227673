//! Tensor maps that the host has made. Libraries make the same map before each launch.

use std::collections::HashMap;
use std::sync::Mutex;

use vgpu_proto::call::{Tensor, TensorMap};

use crate::{Cu, lock};

/// Most maps that are kept. When there are more, all are forgotten.
const MOST: usize = 4096;

/// The maps by their tensors. A map depends on nothing else.
#[derive(Debug, Default)]
pub(crate) struct TensorMaps(Mutex<HashMap<Tensor, TensorMap>>);

impl TensorMaps {
    /// The map of a tensor, kept or made by `ask`.
    ///
    /// # Errors
    /// Those of `ask`.
    pub(crate) fn of(
        &self,
        tensor: Tensor,
        ask: impl FnOnce(Tensor) -> Cu<TensorMap>,
    ) -> Cu<TensorMap> {
        if let Some(map) = lock(&self.0).get(&tensor) {
            return Ok(*map);
        }
        let map = ask(tensor.clone())?;
        let mut kept = lock(&self.0);
        if kept.len() >= MOST {
            kept.clear();
        }
        kept.insert(tensor, map);
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_cuda_abi::CuResult;
    use vgpu_proto::call::Window;

    fn tensor(address: u64) -> Tensor {
        Tensor {
            data_type: 6,
            address,
            sizes: vec![64],
            strides: Vec::new(),
            element_strides: vec![1],
            window: Window::Box { sizes: vec![32] },
            interleave: 0,
            swizzle: 0,
            l2_promotion: 0,
            fill: 0,
        }
    }

    #[test]
    fn a_map_is_asked_for_once_and_an_error_is_not_kept() {
        let maps = TensorMaps::default();
        let refused = maps.of(tensor(16), |_| Err(CuResult::INVALID_VALUE));
        assert_eq!(refused, Err(CuResult::INVALID_VALUE));
        assert_eq!(maps.of(tensor(16), |_| Ok([7; 16])), Ok([7; 16]));
        assert_eq!(maps.of(tensor(16), |_| Ok([8; 16])), Ok([7; 16]));
        assert_eq!(maps.of(tensor(32), |_| Ok([9; 16])), Ok([9; 16]));
    }

    #[test]
    fn the_number_of_kept_maps_is_bounded() {
        let maps = TensorMaps::default();
        for address in 0..=MOST as u64 {
            maps.of(tensor(address), |_| Ok([0; 16])).unwrap();
        }
        assert_eq!(lock(&maps.0).len(), 1);
    }
}
