//! Page-locked host memory for staging copies, in blocks that return to their pool.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vgpu_cuda_abi::numbers::host_alloc::PORTABLE;

use super::{Context, Result, raw};

/// An allocation that is divided into blocks.
#[derive(Debug)]
struct Slab {
    base: *mut u8,
    context: Arc<Context>,
}

// SAFETY: the memory is accessed only through blocks, each of which one thread owns at a time.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Drop for Slab {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: no block of the slab is left, because each keeps the slab alive.
            let _ = unsafe { raw::cuMemFreeHost(self.base.cast()) };
        }
    }
}

#[derive(Debug)]
struct Piece {
    slab: Arc<Slab>,
    offset: usize,
}

/// A pool of blocks of one size. Allocates one slab at a time, up to a limit.
#[derive(Debug)]
pub struct BlockPool {
    free: Arc<Mutex<Vec<Piece>>>,
    context: Arc<Context>,
    block: usize,
    blocks_per_slab: usize,
    slabs_left: usize,
}

impl BlockPool {
    /// A pool that allocates nothing yet.
    pub fn new(
        context: &Arc<Context>,
        block: usize,
        blocks_per_slab: usize,
        slabs: usize,
    ) -> BlockPool {
        BlockPool {
            free: Arc::default(),
            context: Arc::clone(context),
            block,
            blocks_per_slab,
            slabs_left: slabs,
        }
    }

    /// Number of blocks that could be taken now.
    pub fn available(&self) -> usize {
        lock(&self.free).len() + self.slabs_left * self.blocks_per_slab
    }

    /// Takes a block of which `len` bytes will be used; `None` while all blocks are in use.
    ///
    /// # Errors
    /// The error of the driver, if it cannot page-lock more memory.
    pub fn take(&mut self, len: usize) -> Result<Option<Block>> {
        debug_assert!(len <= self.block);
        let mut piece = lock(&self.free).pop();
        if piece.is_none() && self.slabs_left > 0 {
            piece = Some(self.grow()?);
        }
        Ok(piece.map(|piece| Block {
            piece: Some(piece),
            len: len.min(self.block),
            home: Arc::clone(&self.free),
        }))
    }

    fn grow(&mut self) -> Result<Piece> {
        self.context.bind()?;
        let mut base: *mut c_void = ptr::null_mut();
        let bytes = self.block * self.blocks_per_slab;
        // SAFETY: writes one pointer; the context is current.
        unsafe { raw::cuMemHostAlloc(&mut base, bytes, PORTABLE) }?;
        // SAFETY: `bytes` fresh bytes. Zeroed so that no reply can carry the earlier content.
        unsafe { ptr::write_bytes(base.cast::<u8>(), 0, bytes) };
        self.slabs_left -= 1;
        let slab = Arc::new(Slab {
            base: base.cast(),
            context: Arc::clone(&self.context),
        });
        let mut free = lock(&self.free);
        free.extend((1..self.blocks_per_slab).map(|i| Piece {
            slab: Arc::clone(&slab),
            offset: i * self.block,
        }));
        Ok(Piece { slab, offset: 0 })
    }
}

/// A staging block: page-locked host memory of a pool. Returns to the pool when dropped.
///
/// While a copy to or from the block is in flight, the bytes must not be accessed. The session
/// keeps the block in the stream's list of completion actions until then.
#[derive(Debug)]
pub struct Block {
    piece: Option<Piece>,
    len: usize,
    home: Arc<Mutex<Vec<Piece>>>,
}

impl Block {
    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes are in use.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        match &self.piece {
            // SAFETY: the offset lies within the slab.
            Some(piece) => unsafe { piece.slab.base.add(piece.offset) },
            None => ptr::NonNull::dangling().as_ptr(),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes of a live slab that only this block covers; no copy is in
        // flight (see the type).
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len) }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.len) }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            lock(&self.home).push(piece);
        }
    }
}

fn lock(free: &Mutex<Vec<Piece>>) -> MutexGuard<'_, Vec<Piece>> {
    // The list is consistent after every step, so poisoning is ignored.
    free.lock().unwrap_or_else(PoisonError::into_inner)
}
