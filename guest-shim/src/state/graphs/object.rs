//! User objects: what a program wants to keep for as long as a graph may use it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use vgpu_proto::cuda::CuResult;

use crate::Cu;
use crate::session::host::HostFn;

/// Something of the program; it is destroyed when nobody holds it any more.
#[derive(Debug)]
pub(crate) struct UserObject {
    destroy: HostFn,
    data: usize,
    /// Of the program.
    references: AtomicU32,
}

impl UserObject {
    /// With so many references of the program.
    pub(crate) fn new(destroy: HostFn, data: usize, references: u32) -> UserObject {
        UserObject {
            destroy,
            data,
            references: AtomicU32::new(references),
        }
    }

    /// The program has more.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for too many.
    pub(crate) fn retain(&self, count: u32) -> Cu {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let more = |n: u32| n.checked_add(count);
        let changed = self.references.fetch_update(order.0, order.1, more);
        changed.map(|_| ()).map_err(|_| CuResult::INVALID_VALUE)
    }

    /// It has fewer. True: none.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for more than there are.
    pub(crate) fn release(&self, count: u32) -> Cu<bool> {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let fewer = |n: u32| n.checked_sub(count);
        let changed = self.references.fetch_update(order.0, order.1, fewer);
        let before = changed.map_err(|_| CuResult::INVALID_VALUE)?;
        Ok(before == count)
    }
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // SAFETY: the program gave function and argument for exactly this call.
        unsafe { (self.destroy)(self.data as *mut c_void) };
    }
}
