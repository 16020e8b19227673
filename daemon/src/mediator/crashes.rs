//! Crashes of workers. An honest program may crash its worker, because the driver has a bug, so a
//! crash is no strike. But each crash costs the host the start of a worker and a report by the
//! kernel. A VM whose workers crash again and again waits before its next program.

use std::collections::{HashMap, VecDeque};

use vgpu_sched::SECONDS;

use crate::model::VmIdentity;

/// Number of crashes within [`WINDOW_NS`] after which programs are refused.
const MOST: usize = 20;
/// Time in ns for which a crash counts.
const WINDOW_NS: u64 = 60 * SECONDS;

/// Times of the latest crashes of each VM, in ns, oldest first.
#[derive(Debug, Default)]
pub(super) struct Crashes(HashMap<VmIdentity, VecDeque<u64>>);

impl Crashes {
    /// A worker of the VM crashed.
    pub(super) fn add(&mut self, vm: VmIdentity, now_ns: u64) {
        let times = self.0.entry(vm).or_default();
        if times.len() == MOST {
            times.pop_front();
        }
        times.push_back(now_ns);
    }

    /// Why no program of the VM may start now, if so.
    pub(super) fn refusal(&self, vm: VmIdentity, now_ns: u64) -> Option<String> {
        let times = self.0.get(&vm).filter(|times| times.len() == MOST)?;
        let end = times.front()?.saturating_add(WINDOW_NS);
        let left = end.checked_sub(now_ns).filter(|left| *left > 0)?;
        Some(format!(
            "{MOST} workers of VM {} crashed within {} s: its next program may start in {} s; the \
             host's administrator finds the crashes in the events",
            vm.vm_id,
            WINDOW_NS / SECONDS,
            left.div_ceil(SECONDS)
        ))
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
    fn a_vm_whose_workers_crash_again_and_again_waits_and_others_do_not() {
        let [vm, other] = [1, 2].map(|vm_id| VmIdentity {
            vm_id,
            generation: 1,
        });
        let mut crashes = Crashes::default();
        let at = |n: u64| n * SECONDS;
        for n in 0..MOST as u64 {
            assert_eq!(crashes.refusal(vm, at(n)), None, "after {n}");
            crashes.add(vm, at(n));
        }
        let text = crashes.refusal(vm, at(19)).expect("a refusal");
        assert!(
            text.starts_with("20 workers of VM 1 crashed within 60 s"),
            "{text}"
        );
        assert!(text.contains("may start in 41 s"), "{text}");
        assert_eq!(crashes.refusal(other, at(19)), None);
        assert!(crashes.refusal(vm, at(60) - 1).is_some());
        // One crash is forgotten, so one more program may start.
        assert_eq!(crashes.refusal(vm, at(60)), None);
        crashes.add(vm, at(60));
        assert!(crashes.refusal(vm, at(60)).is_some());
        crashes.forget(vm);
        assert_eq!(crashes.refusal(vm, at(60)), None);
    }
}
