//! The device's own account, held against ours: who uses a GPU without a lease cheats.
//!
//! Leases bind honest workers; one that its guest has taken over may say that it has drained and go
//! on. Where the device keeps a clock per process (soft-gpu), its use must be explained by leases
//! held at the time (`held`). What each process holds of its memory is reconciled with the
//! scheduler's accounts by the way (`unrequested`).

use std::collections::BTreeMap;

use super::actor::Actor;
use super::reactor::now_ns;
use super::session::Phase;
use crate::model::DeviceProcess;

/// Use without a lease between two looks that is not yet cheating. Honest workers have none
/// (`held`); it is a margin for a device that rounds its times.
const TOLERANCE_NS: u64 = 20 * vgpu_sched::MILLIS;

impl Actor {
    /// The devices are going to be asked: what is held from now on may be part of their answers.
    pub(super) fn begin_audit(&mut self) {
        let now = now_ns();
        for session in self.sessions.values_mut() {
            session.held.mark(now);
        }
        self.mark_memory();
    }

    /// What the device says of each process on it.
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
            let process = pid.and_then(|pid| by_pid.get(&pid));
            let said = process.and_then(|p| Some(((p.busy_ns?, p.open_ns), p.memory_bytes)));
            let Some((said, memory)) = said else {
                continue;
            };
            // A gang's devices are not looked at in the same moment.
            if session.gpus.len() == 1 && session.phase == Phase::Live {
                held.push((session.id, memory));
            }
            let on_it = session.gpus.iter_mut().find(|gpu| gpu.uuid == gpu_uuid);
            let Some(gpu) = on_it else { continue };
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
        for (id, memory) in held {
            self.reconcile(id, memory);
        }
    }
}
