//! A limit on the memory mappings that a guest can make its worker create. The kernel allows a
//! process 65,530 mappings (`vm.max_map_count`). If no mapping is left, the next large allocation
//! aborts the process.

use std::sync::Arc;

use vgpu_proto::cuda::CuResult;

use super::Result;

/// Maximum number of slots: blocks of page-locked memory, address reservations, and mappings in
/// reservations, together. The driver may use three mappings of the process per slot; the rest of
/// the kernel's limit is left for the process.
const MOST_SLOTS: usize = 16 * 1024;

/// Counter of the slots in use, shared by all objects that use mappings.
#[derive(Debug, Default)]
pub struct Slots(Arc<()>);

/// A slot in use. An object holds the slot until the driver object is dropped, which may be long
/// after the guest freed the object.
#[derive(Debug)]
pub struct Slot {
    _slots: Arc<()>,
}

impl Slots {
    /// Takes a slot.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY if all slots are in use.
    pub fn take(&self) -> Result<Slot> {
        // Only the session's thread takes slots, so the count cannot rise after the check.
        if Arc::strong_count(&self.0) > MOST_SLOTS {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let slots = Arc::clone(&self.0);
        Ok(Slot { _slots: slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_given_and_what_is_dropped_is_given_again() {
        let slots = Slots::default();
        let mut taken: Vec<Slot> = (0..MOST_SLOTS)
            .map(|_| slots.take().expect("there is one"))
            .collect();
        assert_eq!(slots.take().err(), Some(CuResult::OUT_OF_MEMORY));
        taken.pop();
        taken.push(slots.take().expect("one was given back"));
        assert_eq!(slots.take().err(), Some(CuResult::OUT_OF_MEMORY));
    }
}
