//! Compares the device's own accounts with vgpud's: a process that uses a GPU without a lease
//! cheats.
//!
//! Leases bind honest workers only. A worker that its guest controls may report that it has
//! drained, and continue. Where the device counts GPU time per process (soft-gpu), leases held at
//! that time must explain the use (`held`). A card does not count GPU time per process. The memory
//! of each process is compared with the scheduler's account on both (`unrequested`).

use std::collections::BTreeMap;

use super::actor::Actor;
use super::reactor::now_ns;
use super::session::Phase;
use super::unrequested::Found;
use crate::model::DeviceProcess;

/// Use without a lease between two audits that is tolerated, in ns. Honest workers have none
/// (`held`); the margin is for devices that round times.
const TOLERANCE_NS: u64 = 20 * vgpu_sched::MILLIS;

impl Actor {
    /// Called before the devices are asked: leases held from now on may be part of the answers.
    pub(super) fn begin_audit(&mut self) {
        let now = now_ns();
        for session in self.sessions.values_mut() {
            session.held.mark(now);
        }
        self.mark_memory();
    }

    /// Compares the device's account of each process with the leases.
    pub(super) fn audit(&mut self, gpu_uuid: &str, processes: &[DeviceProcess]) {
        let now = now_ns();
        let by_pid: BTreeMap<u32, &DeviceProcess> = processes
            .iter()
            .map(|process| (process.pid, process))
            .collect();
        let (mut cheats, mut held) = (Vec::new(), Vec::new());
        for session in self.sessions.values_mut() {
            if session.is_ending() {
                continue;
            }
            let pid = session.worker.as_ref().map(|worker| worker.process.pid());
            let Some(process) = pid.and_then(|pid| by_pid.get(&pid)) else {
                continue;
            };
            let alone = session.gpus.len() == 1 && session.phase == Phase::Live;
            let on_it = session.gpus.iter_mut().find(|gpu| gpu.uuid == gpu_uuid);
            let Some(gpu) = on_it else { continue };
            // Memory is compared only for sessions on one device, because the devices of a gang are
            // not read at the same moment.
            if alone {
                held.push((session.id, Found::of(process)));
            }
            let Some(busy_ns) = process.busy_ns else {
                continue;
            };
            let said = (busy_ns, process.open_ns);
            let beyond = gpu.explained.take(&session.held, said, now);
            if beyond > TOLERANCE_NS {
                cheats.push((session.id, beyond));
            }
        }
        for (id, beyond) in cheats {
            let what = format!(
                "its worker used the GPU for {} ms without holding the lease",
                beyond / vgpu_sched::MILLIS
            );
            self.breach(id, &what);
        }
        for (id, found) in held {
            self.reconcile(id, found);
        }
    }
}
