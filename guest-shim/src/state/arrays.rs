//! Arrays. The host creates them; the guest stores their shapes and checks copies against the
//! shapes.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Array, ArrayBlock, ArrayShape, Ctx};

use super::Shim;
use super::contexts::Context;
use crate::Cu;

/// An array, or one level of a mipmapped array.
#[derive(Debug)]
pub(crate) struct ArrayInfo {
    /// Handle of the array on the host. The program uses the same handle.
    pub(crate) handle: Array,
    /// Context of the array.
    pub(crate) ctx: Ctx,
    /// Shape with which the array was created.
    pub(crate) shape: ArrayShape,
    /// Handle with which the guest asks the host to destroy the array. `None` for a level of a
    /// mipmapped array, because the host destroys all levels with the mipmapped array.
    block: Option<ArrayBlock>,
}

/// A mipmapped array. The field `block` is the handle of the mipmapped array on the host, and the
/// program uses the same handle.
#[derive(Debug)]
pub(crate) struct Mipmap {
    /// Context of the array.
    pub(crate) ctx: Ctx,
    block: ArrayBlock,
    /// Handles of the levels.
    levels: Vec<u64>,
}

impl Shim {
    /// `cuArray3DCreate`.
    ///
    /// # Errors
    /// An invalid shape; the host's errors.
    pub(crate) fn create_array(&self, context: &Context, shape: ArrayShape) -> Cu<u64> {
        let (block, arrays) = self.ask_for_arrays(context, shape, 0)?;
        let handle = *arrays.first().ok_or(CuResult::UNKNOWN)?;
        let info = ArrayInfo {
            handle,
            ctx: context.handle,
            shape,
            block: Some(block),
        };
        self.arrays.insert(handle.0, Arc::new(info))?;
        Ok(handle.0)
    }

    /// `cuMipmappedArrayCreate`, with at most `levels` levels.
    ///
    /// # Errors
    /// As [`Shim::create_array`].
    pub(crate) fn create_mipmap(
        &self,
        context: &Context,
        mut shape: ArrayShape,
        levels: u32,
    ) -> Cu<u64> {
        if levels == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        shape.check()?;
        let (block, arrays) = self.ask_for_arrays(context, shape, shape.levels(levels))?;
        for handle in &arrays {
            let info = ArrayInfo {
                handle: *handle,
                ctx: context.handle,
                shape,
                block: None,
            };
            self.arrays.insert(handle.0, Arc::new(info))?;
            shape = shape.half();
        }
        let mipmap = Mipmap {
            ctx: context.handle,
            block,
            levels: arrays.iter().map(|a| a.0).collect(),
        };
        self.mipmaps.insert(block.0, Arc::new(mipmap))?;
        Ok(block.0)
    }

    fn ask_for_arrays(
        &self,
        context: &Context,
        shape: ArrayShape,
        levels: u32,
    ) -> Cu<(ArrayBlock, Vec<Array>)> {
        shape.check()?;
        let call = req::ArrayCreate {
            ctx: context.handle,
            shape,
            levels,
        };
        let made = self
            .session
            .call(&call)
            .inspect_err(super::memory::note_full)?;
        Ok((made.block, made.arrays))
    }

    /// `cuArrayDestroy`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE; CUDA_ERROR_INVALID_VALUE for a level of a mipmapped array.
    pub(crate) fn destroy_array(&self, handle: u64) -> Cu {
        let block = self.arrays.get(handle)?.block;
        let block = block.ok_or(CuResult::INVALID_VALUE)?;
        self.arrays.remove(handle)?;
        self.session.call(&req::ArrayDestroy { block })?;
        Ok(())
    }

    /// `cuMipmappedArrayDestroy`, including all levels.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE.
    pub(crate) fn destroy_mipmap(&self, handle: u64) -> Cu {
        let mipmap = self.mipmaps.remove(handle)?;
        for level in &mipmap.levels {
            // A level that is already removed is no error.
            let _ = self.arrays.remove(*level);
        }
        let block = mipmap.block;
        self.session.call(&req::ArrayDestroy { block })?;
        Ok(())
    }

    /// `cuMipmappedArrayGetLevel`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE; CUDA_ERROR_INVALID_VALUE beyond the last level.
    pub(crate) fn mipmap_level(&self, handle: u64, level: u32) -> Cu<u64> {
        let mipmap = self.mipmaps.get(handle)?;
        let found = mipmap.levels.get(level as usize).copied();
        found.ok_or(CuResult::INVALID_VALUE)
    }
}
