//! Opaque handles: typed, never reused, never pointers.
//!
//! A handle is `0x05 | kind | serial`, below 2^63, because clients read handles as signed numbers.
//! While a digest is written, offsets that differ between processes are added to the upper 16 bits
//! and to the serial number. A handle that was issued and whose object has ended is *stale*; any
//! other unknown number is *forged*.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::hash::HandleMap;

use super::error::Result;
use super::scrub;
use super::sync::{read, write};

/// The kind of object that a handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// CUcontext.
    Context = 1,
    /// CUstream.
    Stream,
    /// CUevent.
    Event,
    /// CUmodule.
    Module,
    /// CUfunction.
    Function,
    /// CUlibrary.
    Library,
    /// CUkernel.
    Kernel,
    /// CUmemoryPool.
    Pool,
    /// CUlinkState.
    Link,
    /// CUmemGenericAllocationHandle.
    Physical,
    /// CUgraph.
    Graph,
    /// CUgraphNode.
    GraphNode,
    /// CUgraphExec.
    GraphExec,
    /// CUuserObject.
    UserObject,
    /// CUarray.
    Array,
    /// CUmipmappedArray.
    Mipmap,
    /// CUgreenCtx.
    GreenContext,
    /// CUdevResourceDesc.
    ResourceDesc,
}

impl Kind {
    /// Whether `handle` may be of this kind.
    pub fn matches(self, handle: u64) -> bool {
        handle >> 48 == self.mark()
    }

    /// The upper 16 bits of handles of this kind.
    fn mark(self) -> u64 {
        (0x0500 | self as u64) + 0x0101 * scrub::number()
    }
}

type Map<T> = HandleMap<Arc<T>>;

/// The number just below the first serial number.
fn before_first() -> u64 {
    scrub::number() << 24
}

/// Live objects of one kind by handle.
pub struct Table<T> {
    kind: Kind,
    next: AtomicU64,
    live: RwLock<Option<Map<T>>>,
}

impl<T> Table<T> {
    /// An empty table.
    pub const fn new(kind: Kind) -> Self {
        Table {
            kind,
            next: AtomicU64::new(1),
            live: RwLock::new(None),
        }
    }

    /// A new handle, never issued before.
    pub fn mint(&self) -> u64 {
        let serial = self.next.fetch_add(1, Ordering::Relaxed);
        self.kind.mark() << 48 | (before_first() + serial) << 4
    }

    /// Makes `handle` the name of `object`. [`mint`](Self::mint) has issued the handle.
    pub fn put(&self, handle: u64, object: Arc<T>) {
        write(&self.live)
            .get_or_insert_default()
            .insert(handle, object);
    }

    /// Issues a handle for the object that `make` builds from the handle.
    pub fn insert(&self, make: impl FnOnce(u64) -> Arc<T>) -> Arc<T> {
        let handle = self.mint();
        let object = make(handle);
        self.put(handle, Arc::clone(&object));
        object
    }

    /// The object of a live handle.
    pub fn find(&self, handle: u64) -> Option<Arc<T>> {
        read(&self.live).as_ref()?.get(&handle).cloned()
    }

    /// The object of a live handle. Otherwise returns CUDA_ERROR_INVALID_HANDLE, or aborts in
    /// strict mode.
    pub fn get(&self, handle: u64) -> Result<Arc<T>> {
        self.find(handle).ok_or_else(|| self.bad(handle))
    }

    /// Removes a handle and returns its object. Errors as for [`get`](Self::get).
    pub fn remove(&self, handle: u64) -> Result<Arc<T>> {
        write(&self.live)
            .as_mut()
            .and_then(|m| m.remove(&handle))
            .ok_or_else(|| self.bad(handle))
    }

    /// Every live object.
    pub fn all(&self) -> Vec<Arc<T>> {
        read(&self.live)
            .as_ref()
            .map(|m| m.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Reports an invalid handle (strict mode aborts) and returns the error code of hardware.
    pub fn bad(&self, handle: u64) -> CuResult {
        if handle != 0 {
            let serial = ((handle & 0xffff_ffff_ffff) >> 4).checked_sub(before_first());
            let stale = self.kind.matches(handle)
                && handle & 0xf == 0
                && serial.is_some_and(|serial| serial < self.next.load(Ordering::Relaxed));
            let what = if stale { "stale" } else { "forged" };
            super::strict::violation(format_args!("{what} {:?} handle {handle:#x}", self.kind));
        }
        CuResult::INVALID_HANDLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_distinct_positive_and_end() {
        let table: Table<u32> = Table::new(Kind::Event);
        let mut handle = 0;
        let a = table.insert(|h| {
            handle = h;
            Arc::new(7)
        });
        assert_eq!(*a, 7);
        assert!(handle < 1 << 63);
        assert_eq!(table.get(handle).map(|v| *v), Ok(7));
        assert!(table.remove(handle).is_ok());
        assert_eq!(table.get(handle), Err(CuResult::INVALID_HANDLE));
        assert_ne!(table.mint(), handle);
    }
}
