//! A bound on the mappings of this process that its guest asks for. The kernel gives a process
//! 65,530 (`vm.max_map_count`); behind the last, the next large allocation aborts the process.

use std::sync::Arc;

use vgpu_proto::cuda::CuResult;

use super::Result;

/// Blocks of page-locked memory, reservations of addresses, and mappings in them, all together.
/// That leaves the driver three mappings of the process for each, and the rest to the process
/// itself.
const MOST_SLOTS: usize = 16 * 1024;

/// What the things that take mappings share.
#[derive(Debug, Default)]
pub struct Slots(Arc<()>);

/// One of them is taken until this is dropped: with the thing itself, which may be long after its
/// guest has freed it.
#[derive(Debug)]
pub struct Slot {
    _slots: Arc<()>,
}

impl Slots {
    /// Takes one.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when all are taken.
    pub fn take(&self) -> Result<Slot> {
        // Only the session's thread takes them: no other adds one meanwhile.
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
