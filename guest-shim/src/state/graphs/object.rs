//! User objects: what a program wants to keep for as long as a graph may use it.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::HostFn;

use crate::{Cu, lock, process};

/// Something of the program; it is destroyed when nobody holds it any more.
#[derive(Debug)]
pub(crate) struct UserObject {
    handle: u64,
    destroy: HostFn,
    data: usize,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        if let Ok(shim) = process::live() {
            let _ = shim.objects.remove(self.handle);
        }
        // SAFETY: the program gave function and argument for exactly this call.
        unsafe { (self.destroy)(self.data as *mut c_void) };
    }
}

/// What its handle stands for as long as anybody holds it.
#[derive(Debug)]
pub(crate) struct NamedObject {
    object: Weak<UserObject>,
    own: Mutex<Own>,
}

/// References of the program itself, which keep the object together.
#[derive(Debug)]
struct Own {
    count: u32,
    object: Option<Arc<UserObject>>,
}

impl NamedObject {
    /// With so many references of the program.
    pub(crate) fn new(handle: u64, destroy: HostFn, data: usize, count: u32) -> NamedObject {
        let object = Arc::new(UserObject {
            handle,
            destroy,
            data,
        });
        NamedObject {
            object: Arc::downgrade(&object),
            own: Mutex::new(Own {
                count,
                object: Some(object),
            }),
        }
    }

    /// The object.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if it is being destroyed.
    pub(crate) fn object(&self) -> Cu<Arc<UserObject>> {
        self.object.upgrade().ok_or(CuResult::INVALID_VALUE)
    }

    /// The program has more.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for none and for too many.
    pub(crate) fn retain(&self, count: u32) -> Cu {
        let object = self.object()?;
        let mut own = lock(&self.own);
        let more = own.count.checked_add(count).filter(|_| count > 0);
        own.count = more.ok_or(CuResult::INVALID_VALUE)?;
        own.object = Some(object);
        Ok(())
    }

    /// It has fewer.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for none and for more than there are.
    pub(crate) fn release(&self, count: u32) -> Cu {
        let mut own = lock(&self.own);
        let fewer = own.count.checked_sub(count).filter(|_| count > 0);
        own.count = fewer.ok_or(CuResult::INVALID_VALUE)?;
        let gone = match own.count {
            0 => own.object.take(),
            _ => None,
        };
        // The program's function may make calls about the object.
        drop(own);
        drop(gone);
        Ok(())
    }
}
