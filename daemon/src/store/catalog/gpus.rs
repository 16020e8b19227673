//! GPUs: results of scans, and the pools that GPUs serve.

use std::collections::BTreeSet;

use vgpu_api::{
    AssignRequest, ErrorCode, ErrorDetail, GpuSource, GpuState, PoolCreate, UnassignRequest,
};

use super::super::command::{Command, Outcome, ScanDiff, refuse};
use super::{Catalog, Context, list};
use crate::mediation::Change;
use crate::model::{AssignmentRecord, GpuRecord, ScanResult, ScannedGpu, counted};

/// Prefix of the UUIDs that scans assign to boards that only the PCI bus shows.
const OF_THE_BUS: &str = "PCI-";

impl Catalog {
    pub(super) fn assign_gpu(
        &mut self,
        request: &AssignRequest,
        context: &Context,
    ) -> Result<Outcome, ErrorDetail> {
        let gpu = self.gpu(&request.gpu)?.clone();
        let (gpu_id, uuid) = (gpu.gpu_id, gpu.seen.uuid.clone());
        let mut outcome = Outcome {
            target: format!("gpu {gpu_id} pool {}", request.pool),
            ..Outcome::default()
        };
        if request.create_pool && !self.pools.contains_key(&request.pool) {
            let create = PoolCreate {
                name: request.pool.clone(),
                ..PoolCreate::default()
            };
            outcome.changes = self.create_pool(&create, context)?.changes;
        }
        self.pool(&request.pool)?;
        let key = (uuid.clone(), request.pool.clone());
        if self.assignments.contains_key(&key) {
            outcome.message = format!("GPU {gpu_id} already serves pool {}.", request.pool);
            return Ok(outcome);
        }
        let serving = self.pools_of(&uuid);
        if !serving.is_empty() && !request.shared {
            return Err(refuse(
                ErrorCode::GpuAssignedElsewhere,
                format!("GPU {gpu_id} serves pool {}.", list(serving.into_iter())),
                format!(
                    "Take it out first (`vgpu-admin unassign-gpu --gpu-id={gpu_id}`), or let the \
                     pools share it (`--shared`)."
                ),
            ));
        }
        self.reachable_gpu(&request.gpu)?;
        outcome.warnings = assignment_warnings(&gpu);
        let assignment = AssignmentRecord {
            gpu_uuid: uuid,
            pool: request.pool.clone(),
            since_unix_ms: context.now_unix_ms,
        };
        self.assignments.insert(key, assignment.clone());
        outcome.changes.push(Change::GpuAssigned(assignment));
        outcome.message = format!(
            "GPU {gpu_id} ({}) serves pool {}.",
            gpu.seen.model, request.pool
        );
        Ok(outcome)
    }

    pub(super) fn unassign_gpu(
        &mut self,
        request: &UnassignRequest,
    ) -> Result<Outcome, ErrorDetail> {
        let gpu = self.gpu(&request.gpu)?;
        let (gpu_id, uuid) = (gpu.gpu_id, gpu.seen.uuid.clone());
        if let Some(pool) = &request.pool {
            self.pool(pool)?;
        }
        let wanted = |a: &&AssignmentRecord| {
            a.gpu_uuid == uuid && request.pool.as_ref().is_none_or(|pool| *pool == a.pool)
        };
        let gone: Vec<_> = self.assignments.values().filter(wanted).cloned().collect();
        for assignment in &gone {
            self.assignments
                .remove(&(uuid.clone(), assignment.pool.clone()));
        }
        let pools = list(gone.iter().map(|assignment| assignment.pool.clone()));
        Ok(Outcome {
            target: format!("gpu {gpu_id}"),
            message: match gone.len() {
                0 => match &request.pool {
                    Some(pool) => {
                        format!("Nothing to do: GPU {gpu_id} does not serve pool {pool}.")
                    }
                    None => format!("Nothing to do: GPU {gpu_id} serves no pool."),
                },
                _ => format!("GPU {gpu_id} serves pool {pools} no longer."),
            },
            warnings: self.emptied_warnings(gone.iter().map(|a| a.pool.as_str())),
            changes: gone.into_iter().map(Change::GpuUnassigned).collect(),
            ..Outcome::default()
        })
    }

    /// Updates the known GPUs to the result of a scan.
    pub(super) fn take_scan(&mut self, scan: &ScanResult, context: &Context) -> Outcome {
        let before = self.gpus.clone();
        self.drop_software(scan);
        let mut diff = ScanDiff::default();
        let mut present = BTreeSet::new();
        for seen in &scan.gpus {
            present.insert(self.take_seen(seen, context, &mut diff));
        }
        for gpu in self.gpus.values_mut() {
            if !present.contains(&gpu.seen.uuid) && gpu.state != GpuState::Vanished {
                gpu.state = GpuState::Vanished;
                gpu.state_reason = Some("not seen by the last scan".into());
                diff.vanished.push(gpu.gpu_id);
            }
        }
        let vanished = diff.vanished.iter();
        let mut warnings: Vec<String> = vanished
            .filter_map(|id| self.vanished_warning(*id))
            .collect();
        let no_driver = |gpu: &&GpuRecord| gpu.state == GpuState::NoDriver;
        let mut unserved: Vec<&GpuRecord> = self.gpus.values().filter(no_driver).collect();
        unserved.sort_by_key(|gpu| gpu.gpu_id);
        warnings.extend(unserved.into_iter().map(GpuRecord::without_driver));
        Outcome {
            // Even if only temperatures differ, the mediation gets the new values.
            changes: if before == self.gpus {
                Vec::new()
            } else {
                vec![self.inventory()]
            },
            target: "host".into(),
            message: format!(
                "{} found: {} new, {} back, {} moved, {} vanished.",
                counted(present.len(), "GPU"),
                diff.added.len(),
                diff.returned.len(),
                diff.moved.len(),
                diff.vanished.len()
            ),
            scan: Some(diff),
            warnings,
            ..Outcome::default()
        }
    }

    /// Where a scan finds a card, forgets the software devices that the scan does not show and that
    /// nothing uses: they served before the card had a driver, and would keep the low numbers.
    fn drop_software(&mut self, scan: &ScanResult) {
        if scan.gpus.iter().all(|gpu| gpu.source == GpuSource::Soft) {
            return;
        }
        let assigned = self.assignments.keys().map(|(uuid, _)| uuid);
        let allowed = self.vms.values().filter_map(|vm| vm.gpus.as_ref());
        let shown = scan.gpus.iter().map(|gpu| &gpu.uuid);
        let kept: BTreeSet<String> = assigned
            .chain(allowed.flatten())
            .chain(shown)
            .cloned()
            .collect();
        self.gpus
            .retain(|uuid, gpu| gpu.seen.source != GpuSource::Soft || kept.contains(uuid));
    }

    /// Records one GPU of a scan and returns the UUID under which the GPU is known.
    fn take_seen(&mut self, seen: &ScannedGpu, context: &Context, diff: &mut ScanDiff) -> String {
        let mut seen = seen.clone();
        self.reconcile_identity(&mut seen);
        let uuid = seen.uuid.clone();
        let now = context.now_unix_ms;
        let taken: BTreeSet<u32> = self.gpus.values().map(|gpu| gpu.gpu_id).collect();
        let next_id = (0..).find(|id| !taken.contains(id)).unwrap_or(u32::MAX);
        let Some(gpu) = self.gpus.get_mut(&uuid) else {
            diff.added.push(next_id);
            let (state, state_reason) = state_of(&seen);
            let gpu = GpuRecord {
                gpu_id: next_id,
                seen,
                state,
                state_reason,
                first_seen_unix_ms: now,
                last_seen_unix_ms: now,
            };
            self.gpus.insert(uuid.clone(), gpu);
            return uuid;
        };
        match gpu.state {
            GpuState::Ready | GpuState::Vanished | GpuState::NoDriver => {
                let before = gpu.state;
                (gpu.state, gpu.state_reason) = state_of(&seen);
                let came = before != GpuState::Ready && gpu.state == GpuState::Ready;
                if before == GpuState::Vanished || came {
                    diff.returned.push(gpu.gpu_id);
                }
            }
            // The state that an administrator or a failed check set stays.
            GpuState::Draining | GpuState::Suspect => {}
        }
        if gpu.seen.pci_address != seen.pci_address {
            diff.moved.push(gpu.gpu_id);
        }
        gpu.seen = seen;
        gpu.last_seen_unix_ms = now;
        uuid
    }

    /// The PCI bus shows no UUIDs. A board that is found there is the board that was last seen at
    /// that address, with or without driver. A board that NVML shows is the board that only the bus
    /// showed at that address before.
    fn reconcile_identity(&mut self, seen: &mut ScannedGpu) {
        // The address of a software device is no address on the bus.
        let placed = seen.pci_address.is_some() && seen.source != GpuSource::Soft;
        if self.gpus.contains_key(&seen.uuid) || !placed {
            return;
        }
        let same_place = |gpu: &&GpuRecord| {
            gpu.seen.pci_address == seen.pci_address && gpu.seen.source != GpuSource::Soft
        };
        let there = self.gpus.values().filter(same_place);
        let Some(known) = there.max_by_key(|gpu| gpu.last_seen_unix_ms) else {
            return;
        };
        match seen.source {
            GpuSource::Sysfs => {
                seen.uuid = known.seen.uuid.clone();
                seen.model = known.seen.model.clone();
                seen.memory_bytes = known.seen.memory_bytes;
                seen.health.ok = false;
                seen.health
                    .problems
                    .push("NVML, which showed it before, does not".into());
            }
            GpuSource::Nvml if known.seen.uuid.starts_with(OF_THE_BUS) => {
                let old = known.seen.uuid.clone();
                self.rename_gpu(&old, &seen.uuid);
            }
            // Another board is at this address now.
            GpuSource::Nvml | GpuSource::Soft => {}
        }
    }

    fn rename_gpu(&mut self, old: &str, new: &str) {
        if let Some(mut gpu) = self.gpus.remove(old) {
            gpu.seen.uuid = new.to_owned();
            self.gpus.insert(new.to_owned(), gpu);
        }
        for gpus in self.vms.values_mut().filter_map(|vm| vm.gpus.as_mut()) {
            if gpus.remove(old) {
                gpus.insert(new.to_owned());
            }
        }
        let moved: Vec<_> = self
            .assignments
            .keys()
            .filter(|(uuid, _)| uuid == old)
            .cloned()
            .collect();
        for key in moved {
            if let Some(mut assignment) = self.assignments.remove(&key) {
                assignment.gpu_uuid = new.to_owned();
                self.assignments.insert((new.to_owned(), key.1), assignment);
            }
        }
    }

    fn vanished_warning(&self, gpu_id: u32) -> Option<String> {
        let gpu = self.gpus.values().find(|gpu| gpu.gpu_id == gpu_id)?;
        let pools = self.pools_of(&gpu.seen.uuid);
        if pools.is_empty() {
            return None;
        }
        let pools = list(pools.into_iter());
        Some(format!(
            "GPU {gpu_id} ({}) vanished and serves pool {pools}.",
            gpu.seen.model
        ))
    }

    pub(super) fn drain_gpu(&mut self, gpu: &str) -> Result<Outcome, ErrorDetail> {
        if gpu == Command::ALL_GPUS {
            return Ok(self.drain_gpus());
        }
        let known = self.gpu(gpu)?;
        match known.state {
            GpuState::Ready => {
                let uuid = known.seen.uuid.clone();
                Ok(self.set_state(
                    &uuid,
                    GpuState::Draining,
                    Some("by an administrator".into()),
                ))
            }
            GpuState::Draining | GpuState::Suspect | GpuState::NoDriver => Ok(Outcome {
                target: format!("gpu {}", known.gpu_id),
                message: format!("GPU {} already takes nothing new.", known.gpu_id),
                ..Outcome::default()
            }),
            GpuState::Vanished => Err(vanished(known)),
        }
    }

    fn drain_gpus(&mut self) -> Outcome {
        let ready = self.gpus.values();
        let ready = ready.filter(|gpu| gpu.state == GpuState::Ready);
        let mut ready: Vec<_> = ready
            .map(|gpu| (gpu.gpu_id, gpu.seen.uuid.clone()))
            .collect();
        ready.sort();
        for (_, uuid) in &ready {
            self.set_state(uuid, GpuState::Draining, Some("by an administrator".into()));
        }
        let ids = super::ranges(ready.iter().map(|(id, _)| *id));
        Outcome {
            changes: if ready.is_empty() {
                Vec::new()
            } else {
                vec![self.inventory()]
            },
            target: "host".into(),
            message: match ready.len() {
                0 => "Nothing to do: no GPU takes new work.".into(),
                1 => format!("GPU {ids} finishes what runs and takes nothing new."),
                _ => format!("GPUs {ids} finish what runs and take nothing new."),
            },
            ..Outcome::default()
        }
    }

    pub(super) fn resume_gpu(&mut self, gpu: &str) -> Result<Outcome, ErrorDetail> {
        let known = self.gpu(gpu)?;
        match known.state {
            GpuState::Suspect | GpuState::Draining => {
                let (uuid, (state, reason)) = (known.seen.uuid.clone(), state_of(&known.seen));
                Ok(self.set_state(&uuid, state, reason))
            }
            GpuState::NoDriver => Err(no_driver(known)),
            GpuState::Ready => Ok(Outcome {
                target: format!("gpu {}", known.gpu_id),
                message: format!("GPU {} takes work already.", known.gpu_id),
                ..Outcome::default()
            }),
            GpuState::Vanished => Err(vanished(known)),
        }
    }

    pub(super) fn suspect_gpu(&mut self, gpu: &str, reason: &str) -> Result<Outcome, ErrorDetail> {
        let uuid = self.gpu(gpu)?.seen.uuid.clone();
        Ok(self.set_state(&uuid, GpuState::Suspect, Some(reason.to_owned())))
    }

    /// Returns a present GPU with a driver, whether or not the GPU takes work.
    ///
    /// # Errors
    /// If the GPU is unknown, vanished, or without a driver.
    pub(crate) fn reachable_gpu(&self, gpu: &str) -> Result<&GpuRecord, ErrorDetail> {
        let known = self.gpu(gpu)?;
        match known.state {
            GpuState::Vanished => Err(vanished(known)),
            _ if known.seen.source == GpuSource::Sysfs => Err(no_driver(known)),
            _ => Ok(known),
        }
    }

    pub(super) fn forget_gpu(&mut self, gpu: &str) -> Result<Outcome, ErrorDetail> {
        let known = self.gpu(gpu)?;
        let (gpu_id, uuid) = (known.gpu_id, known.seen.uuid.clone());
        if known.state != GpuState::Vanished {
            return Err(refuse(
                ErrorCode::GpuUnusable,
                format!("GPU {gpu_id} is present; only a vanished one can be forgotten."),
                "",
            ));
        }
        let names = |gpus: &BTreeSet<String>| gpus.contains(&uuid);
        let named = self
            .vms
            .values()
            .filter(|vm| vm.gpus.as_ref().is_some_and(names));
        let vms = super::ranges(named.map(|vm| vm.vm_id));
        if !vms.is_empty() {
            return Err(refuse(
                ErrorCode::GpuUnusable,
                format!("GPU {gpu_id} is on the list of GPUs that VM {vms} may use."),
                "Take it off first: `vgpu-admin vm set <vm> --gpus=...`.",
            ));
        }
        let gone: Vec<_> = self
            .assignments
            .values()
            .filter(|a| a.gpu_uuid == uuid)
            .cloned()
            .collect();
        self.assignments
            .retain(|(gpu_uuid, _), _| *gpu_uuid != uuid);
        self.gpus.remove(&uuid);
        let warnings = self.emptied_warnings(gone.iter().map(|a| a.pool.as_str()));
        let mut changes: Vec<_> = gone.into_iter().map(Change::GpuUnassigned).collect();
        changes.push(self.inventory());
        Ok(Outcome {
            changes,
            target: format!("gpu {gpu_id}"),
            message: format!("GPU {gpu_id} forgotten."),
            warnings,
            ..Outcome::default()
        })
    }

    pub(crate) fn set_state(
        &mut self,
        uuid: &str,
        state: GpuState,
        reason: Option<String>,
    ) -> Outcome {
        let Some(gpu) = self.gpus.get_mut(uuid) else {
            return Outcome::default();
        };
        let gpu_id = gpu.gpu_id;
        // Without a driver every check fails, which is no evidence against the board.
        let (state, reason) = match (gpu.state, state) {
            (GpuState::NoDriver, GpuState::Suspect) => (gpu.state, gpu.state_reason.clone()),
            _ => (state, reason),
        };
        let changed = gpu.state != state || gpu.state_reason != reason;
        gpu.state = state;
        gpu.state_reason = reason;
        let does = match state {
            GpuState::Ready => "takes work",
            GpuState::Draining => "finishes what runs and takes nothing new",
            GpuState::Suspect => "is suspect and takes nothing new",
            GpuState::Vanished => "is gone",
            GpuState::NoDriver => "has no driver and takes nothing",
        };
        Outcome {
            changes: if changed {
                vec![self.inventory()]
            } else {
                Vec::new()
            },
            target: format!("gpu {gpu_id}"),
            message: format!("GPU {gpu_id} {does}."),
            ..Outcome::default()
        }
    }
}

/// The state of a GPU and the reason, from the scan alone.
fn state_of(seen: &ScannedGpu) -> (GpuState, Option<String>) {
    match seen.source {
        GpuSource::Nvml | GpuSource::Soft => (GpuState::Ready, None),
        GpuSource::Sysfs if seen.health.problems.is_empty() => {
            (GpuState::NoDriver, Some("no driver serves it".into()))
        }
        GpuSource::Sysfs => (GpuState::NoDriver, Some(seen.health.problems.join("; "))),
    }
}

fn no_driver(gpu: &GpuRecord) -> ErrorDetail {
    refuse(
        ErrorCode::GpuUnusable,
        gpu.without_driver(),
        "When its driver is loaded: `vgpu-admin scan-gpus`.",
    )
}

fn vanished(gpu: &GpuRecord) -> ErrorDetail {
    refuse(
        ErrorCode::GpuUnusable,
        format!(
            "GPU {} ({}) was not seen by the last scan.",
            gpu.gpu_id, gpu.seen.model
        ),
        "Look with `vgpu-admin scan-gpus`.",
    )
}

fn assignment_warnings(gpu: &GpuRecord) -> Vec<String> {
    let mut warnings = Vec::new();
    if gpu.state == GpuState::Suspect {
        warnings.push(format!(
            "GPU {} is suspect; it serves after `vgpu-admin gpu resume --gpu-id={}`.",
            gpu.gpu_id, gpu.gpu_id
        ));
    }
    if !gpu.seen.mig.is_empty() {
        warnings.push(format!(
            "GPU {} is in MIG mode with {}; it is used as the driver shows it.",
            gpu.gpu_id,
            counted(gpu.seen.mig.len(), "instance")
        ));
    }
    warnings
}
