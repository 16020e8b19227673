//! Bounds the rate of workers' messages. The limit holds for all workers of a VM together: a VM
//! whose programs all flood vgpud takes no more of the mediator's time than a VM with one program.

use std::collections::HashMap;

use crate::model::VmIdentity;

/// Messages that the workers of a VM may send within one window. An honest worker sends a few per
/// lease.
const PER_WINDOW: u32 = 4_000;
const WINDOW_NS: u64 = 100 * vgpu_sched::MILLIS;

/// Counts the messages of each VM's workers.
#[derive(Debug, Default)]
pub(super) struct MessageRates(HashMap<VmIdentity, Window>);

#[derive(Debug, Default)]
struct Window {
    begun_ns: u64,
    count: u32,
}

impl MessageRates {
    /// Counts one message. If the message exceeds the rate: returns the time in ns until which no
    /// more messages of its worker are read.
    pub(super) fn count(&mut self, vm: VmIdentity, now_ns: u64) -> Option<u64> {
        let window = self.0.entry(vm).or_default();
        if now_ns >= window.begun_ns + WINDOW_NS {
            window.begun_ns = now_ns;
            window.count = 0;
        }
        window.count += 1;
        (window.count > PER_WINDOW).then_some(window.begun_ns + WINDOW_NS)
    }

    /// The VM is no longer registered.
    pub(super) fn forget(&mut self, vm: VmIdentity) {
        self.0.remove(&vm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_of_a_vm_that_floods_are_not_read_until_the_window_ends() {
        let [vm, other] = [1, 2].map(|vm_id| VmIdentity {
            vm_id,
            generation: 1,
        });
        let mut rates = MessageRates::default();
        let start = 5 * WINDOW_NS;
        for _ in 0..PER_WINDOW {
            assert_eq!(rates.count(vm, start), None);
        }
        assert_eq!(rates.count(vm, start + 1), Some(start + WINDOW_NS));
        assert_eq!(rates.count(other, start + 1), None, "of another VM");
        assert_eq!(rates.count(vm, start + WINDOW_NS), None);
    }
}
