//! Page-locked blocks for the data of copies between the guest's socket and the device.

use std::sync::Arc;

use vgpu_proto::call::Request;
use vgpu_proto::limits::{COPY_PIECE, PINNED_AT_START};

use crate::driver::{Block, BlockPool, Context, Result};

/// Size in bytes of a small block, for copies of up to this many bytes.
const SMALL: usize = 16 * 1024;
const SMALL_PER_SLAB: usize = 32;
const SMALL_SLABS: usize = 8;
/// A large block holds one piece of a copy.
const LARGE_PER_SLAB: usize = 16;
const LARGE_SLABS: usize = 6;
/// Number of blocks that arriving data may not use, so that the first operation of the queue always
/// finds a block.
const RESERVED: usize = 8;

const _: () = assert!(
    (SMALL * SMALL_PER_SLAB * SMALL_SLABS + COPY_PIECE * LARGE_PER_SLAB * LARGE_SLABS) as u64
        == PINNED_AT_START,
    "the blocks take what vgpud and the documents say"
);

/// Bulk bytes of a request.
#[derive(Debug, Default)]
pub(crate) enum Bulk {
    /// No bytes.
    #[default]
    None,
    /// In ordinary memory.
    Heap(Vec<u8>),
    /// In a page-locked block, from which the device can copy.
    Staged(Block),
}

impl Bulk {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Bulk::None => &[],
            Bulk::Heap(bytes) => bytes,
            Bulk::Staged(block) => block.bytes(),
        }
    }
}

impl AsRef<[u8]> for Bulk {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl AsMut<[u8]> for Bulk {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Bulk::None => &mut [],
            Bulk::Heap(bytes) => bytes,
            Bulk::Staged(block) => block.bytes_mut(),
        }
    }
}

/// The pools of page-locked blocks.
#[derive(Debug)]
pub(crate) struct Staging {
    small: BlockPool,
    large: BlockPool,
}

impl Staging {
    /// Allocates nothing yet. Page-locks memory in `context` when a block is requested.
    pub(crate) fn new(context: &Arc<Context>) -> Staging {
        Staging {
            small: BlockPool::new(context, SMALL, SMALL_PER_SLAB, SMALL_SLABS),
            large: BlockPool::new(context, COPY_PIECE, LARGE_PER_SLAB, LARGE_SLABS),
        }
    }

    /// Whether data of `len` bytes needs a large block, of which there are few.
    pub(crate) fn is_large(len: usize) -> bool {
        len > SMALL
    }

    fn pool(&mut self, len: usize) -> &mut BlockPool {
        if Staging::is_large(len) {
            &mut self.large
        } else {
            &mut self.small
        }
    }

    /// A block for `len` bytes (at most [`COPY_PIECE`]); `None` while all blocks are in use.
    ///
    /// # Errors
    /// The error of the driver.
    pub(crate) fn take(&mut self, len: usize) -> Result<Option<Block>> {
        self.pool(len).take(len)
    }

    /// Chooses the memory for the bulk part of an arriving request: a block for data to the device,
    /// if enough blocks are free; otherwise (also for requests that will be refused) ordinary
    /// memory.
    pub(crate) fn place(&mut self, request: &Request, len: usize) -> Bulk {
        let data = matches!(
            request,
            Request::MemcpyHtoD(_) | Request::Memcpy2DHtoD(_) | Request::MemcpyHtoA(_)
        );
        if data && len <= COPY_PIECE {
            let pool = self.pool(len);
            if pool.available() > RESERVED
                && let Ok(Some(block)) = pool.take(len)
            {
                return Bulk::Staged(block);
            }
        }
        Bulk::Heap(vec![0; len])
    }
}
