//! Page-locked blocks between the socket and the device.

use std::sync::Arc;

use vgpu_proto::call::Request;
use vgpu_proto::limits::{COPY_PIECE, PINNED_AT_START};

use crate::driver::{Block, BlockPool, Context, Result};

/// Small blocks, for copies of up to this many bytes.
const SMALL: usize = 16 * 1024;
const SMALL_PER_SLAB: usize = 32;
const SMALL_SLABS: usize = 8;
/// Large blocks hold one piece of a copy.
const LARGE_PER_SLAB: usize = 16;
const LARGE_SLABS: usize = 6;
/// Blocks that arriving data may not take, so that the operation at the head of the queue always
/// finds one.
const RESERVED: usize = 8;

const _: () = assert!(
    (SMALL * SMALL_PER_SLAB * SMALL_SLABS + COPY_PIECE * LARGE_PER_SLAB * LARGE_SLABS) as u64
        == PINNED_AT_START,
    "the blocks take what vgpud and the documents say"
);

/// Bulk bytes of a request.
#[derive(Debug, Default)]
pub(crate) enum Bulk {
    /// None.
    #[default]
    None,
    /// In ordinary memory.
    Heap(Vec<u8>),
    /// Already where the device can fetch them.
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

/// Where the data of copies waits.
#[derive(Debug)]
pub(crate) struct Staging {
    small: BlockPool,
    large: BlockPool,
}

impl Staging {
    /// Allocates nothing yet; page-locks in `context` when blocks are asked for.
    pub(crate) fn new(context: &Arc<Context>) -> Staging {
        Staging {
            small: BlockPool::new(context, SMALL, SMALL_PER_SLAB, SMALL_SLABS),
            large: BlockPool::new(context, COPY_PIECE, LARGE_PER_SLAB, LARGE_SLABS),
        }
    }

    /// Is a block for `len` bytes one of the few large ones?
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

    /// A block for `len` bytes (at most [`COPY_PIECE`]); `None` while all are in use.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn take(&mut self, len: usize) -> Result<Option<Block>> {
        self.pool(len).take(len)
    }

    /// Where the bulk part of an arriving request goes: data for the device into a block if there
    /// is one to spare, anything else (what will be refused, too) into ordinary memory.
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
