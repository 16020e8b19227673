//! User objects: objects of the program that exist as long as a graph may use them.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::HostFn;

use crate::state::current;
use crate::{Cu, lock};

/// An object of the program. When the last reference is released, the program's destructor is
/// called.
#[derive(Debug)]
pub(crate) struct UserObject {
    handle: u64,
    destroy: HostFn,
    data: usize,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        if let Ok(shim) = current::live() {
            let _ = shim.objects.remove(self.handle);
        }
        // SAFETY: the program passed function and argument for exactly this call.
        unsafe { (self.destroy)(self.data as *mut c_void) };
    }
}

/// A user object by its handle, while any reference to the object exists.
#[derive(Debug)]
pub(crate) struct NamedObject {
    object: Weak<UserObject>,
    own: Mutex<Own>,
}

/// The references that the program itself holds. They keep the object alive.
#[derive(Debug)]
struct Own {
    count: u32,
    object: Option<Arc<UserObject>>,
}

impl NamedObject {
    /// An object with `count` references that the program holds.
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

    /// Returns the user object of this handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the object is being destroyed.
    pub(crate) fn object(&self) -> Cu<Arc<UserObject>> {
        self.object.upgrade().ok_or(CuResult::INVALID_VALUE)
    }

    /// Adds references that the program holds.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for 0 references and on overflow.
    pub(crate) fn retain(&self, count: u32) -> Cu {
        let object = self.object()?;
        let mut own = lock(&self.own);
        let more = own.count.checked_add(count).filter(|_| count > 0);
        own.count = more.ok_or(CuResult::INVALID_VALUE)?;
        own.object = Some(object);
        Ok(())
    }

    /// Releases references that the program holds.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for 0 references, and for more references than the program holds.
    pub(crate) fn release(&self, count: u32) -> Cu {
        let mut own = lock(&self.own);
        let fewer = own.count.checked_sub(count).filter(|_| count > 0);
        own.count = fewer.ok_or(CuResult::INVALID_VALUE)?;
        let gone = match own.count {
            0 => own.object.take(),
            _ => None,
        };
        // The destructor may make calls about the object, and these calls take this lock.
        drop(own);
        drop(gone);
        Ok(())
    }
}
