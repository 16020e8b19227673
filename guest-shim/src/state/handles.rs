//! Tables of the live handles of one kind.

use std::sync::{Arc, PoisonError, RwLock};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::cuda::HandleMap;
use vgpu_proto::limits::MAX_OBJECTS;

use crate::Cu;

/// A table from handles to objects. Handles are never reused, so a stale handle is not found.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    map: RwLock<HandleMap<Arc<T>>>,
}

impl<T> Handles<T> {
    /// A table without handles.
    pub(crate) fn new() -> Handles<T> {
        Handles {
            map: RwLock::default(),
        }
    }

    /// The object with this handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for an unknown handle.
    #[inline]
    pub(crate) fn get(&self, handle: u64) -> Cu<Arc<T>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.get(&handle).cloned().ok_or(CuResult::INVALID_HANDLE)
    }

    /// Adds an object.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY at the session's limit of objects.
    pub(crate) fn insert(&self, handle: u64, object: Arc<T>) -> Cu {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.len() >= MAX_OBJECTS {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        map.insert(handle, object);
        Ok(())
    }

    /// Removes an object.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for an unknown handle.
    pub(crate) fn remove(&self, handle: u64) -> Cu<Arc<T>> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.remove(&handle).ok_or(CuResult::INVALID_HANDLE)
    }

    /// All objects at this moment.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.values().cloned().collect()
    }

    /// Keeps the objects for which `keep` returns true.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&T) -> bool) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.retain(|_, object| keep(object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_handles_are_invalid() {
        let handles = Handles::new();
        handles.insert(7, Arc::new("x")).expect("there is room");
        assert_eq!(handles.get(7).as_deref(), Ok(&"x"));
        assert!(handles.remove(7).is_ok());
        assert_eq!(handles.get(7), Err(CuResult::INVALID_HANDLE));
        assert_eq!(handles.remove(7), Err(CuResult::INVALID_HANDLE));
    }
}
