//! Page-locked host memory: the guest's own affair. The host never sees it; what it buys the
//! program is that copies to it are asynchronous.

use std::collections::BTreeMap;
use std::sync::Mutex;

use vgpu_proto::cuda::CuResult;

use crate::{Cu, lock};

/// One range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// First address.
    pub(crate) base: usize,
    /// Bytes.
    pub(crate) size: usize,
    /// `cuMemHostGetFlags`.
    pub(crate) flags: u32,
    /// The current context when it was made (`CU_POINTER_ATTRIBUTE_CONTEXT`).
    pub(crate) ctx: u64,
    /// Ordinal of that context's device.
    pub(crate) device: i32,
    /// Allocated by us, and not registered by the program.
    owned: bool,
}

/// All ranges.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    blocks: Mutex<BTreeMap<usize, Block>>,
}

impl Pinned {
    /// Allocates.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY.
    pub(crate) fn allocate(&self, size: usize, flags: u32, ctx: u64, device: i32) -> Cu<usize> {
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let base = at as usize;
        lock(&self.blocks).insert(
            base,
            Block {
                base,
                size,
                flags,
                ctx,
                device,
                owned: true,
            },
        );
        Ok(base)
    }

    /// Frees what [`Pinned::allocate`] gave.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if it did not give it.
    pub(crate) fn free(&self, base: usize) -> Cu {
        let mut blocks = lock(&self.blocks);
        let Some(block) = blocks.get(&base).filter(|b| b.owned).copied() else {
            return Err(CuResult::INVALID_VALUE);
        };
        blocks.remove(&base);
        // SAFETY: our own mapping, in the books until just now; freeing it is what the program
        // asked for, and copies into it have been waited for.
        unsafe { libc::munmap(base as *mut libc::c_void, block.size) };
        Ok(())
    }

    /// Enters memory of the program.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED if any of it is in the books.
    pub(crate) fn register(
        &self,
        base: usize,
        size: usize,
        flags: u32,
        ctx: u64,
        device: i32,
    ) -> Cu {
        let end = base.checked_add(size).ok_or(CuResult::INVALID_VALUE)?;
        let mut blocks = lock(&self.blocks);
        if blocks
            .range(..end)
            .next_back()
            .is_some_and(|(_, b)| b.base + b.size > base)
        {
            return Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED);
        }
        blocks.insert(
            base,
            Block {
                base,
                size,
                flags,
                ctx,
                device,
                owned: false,
            },
        );
        Ok(())
    }

    /// Undoes [`Pinned::register`].
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED; CUDA_ERROR_INVALID_VALUE within what is registered.
    pub(crate) fn unregister(&self, base: usize) -> Cu {
        let mut blocks = lock(&self.blocks);
        let before = blocks.range(..=base).next_back();
        match before.map(|(_, block)| *block) {
            Some(block) if block.base == base && !block.owned => {
                blocks.remove(&base);
                Ok(())
            }
            Some(block) if !block.owned && base - block.base < block.size => {
                Err(CuResult::INVALID_VALUE)
            }
            _ => Err(CuResult::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// The block that holds `address`.
    pub(crate) fn find(&self, address: usize) -> Option<Block> {
        let blocks = lock(&self.blocks);
        let (_, block) = blocks.range(..=address).next_back()?;
        (address - block.base < block.size).then_some(*block)
    }

    /// Whether all of a range is in one block.
    pub(crate) fn covers(&self, address: usize, len: usize) -> bool {
        self.find(address)
            .is_some_and(|b| len <= b.size - (address - b.base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_of_a_block() {
        let pinned = Pinned::default();
        let base = pinned.allocate(100, 3, 1, 0).expect("there is memory");
        assert!(pinned.covers(base, 100) && !pinned.covers(base + 1, 100));
        assert_eq!(
            pinned.register(base + 50, 10, 0, 1, 0),
            Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED)
        );
        assert_eq!(
            pinned.unregister(base),
            Err(CuResult::HOST_MEMORY_NOT_REGISTERED)
        );
        assert_eq!(pinned.free(base + 1), Err(CuResult::INVALID_VALUE));
        assert_eq!(pinned.free(base), Ok(()));
        assert_eq!(pinned.find(base), None);
        assert_eq!(pinned.register(16, 16, 0, 1, 0), Ok(()));
        assert_eq!(pinned.free(16), Err(CuResult::INVALID_VALUE));
        assert_eq!(pinned.unregister(16), Ok(()));
    }
}
