//! The whole configuration in memory, and how each command changes it.
//!
//! Pure code: no disk, and no clock except the given time. The writer applies a command to a copy,
//! saves the difference in one transaction, and only then publishes the copy. Readers (status,
//! metrics, validation) never touch the disk.

mod check;
mod gpus;
mod pools;
mod restore;
mod usage;
mod vms;
mod warnings;

use std::collections::BTreeMap;
use std::path::PathBuf;

use vgpu_api::{ErrorCode, ErrorDetail, Weights};

use super::command::{Command, Outcome, refuse};
use crate::config::Defaults;
use crate::mediation::Change;
use crate::model::{AssignmentRecord, GpuRecord, PoolRecord, UsageRecord, VmRecord};

/// The whole configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// By UUID.
    pub gpus: BTreeMap<String, GpuRecord>,
    /// By name.
    pub pools: BTreeMap<String, PoolRecord>,
    /// By (GPU UUID, pool).
    pub assignments: BTreeMap<(String, String), AssignmentRecord>,
    /// By number.
    pub vms: BTreeMap<u32, VmRecord>,
    /// The weights of pools that have none of their own.
    pub host_weights: Weights,
    /// The generation of the last registration on this host.
    pub last_generation: u64,
}

/// The input of commands besides the catalog.
#[derive(Debug, Clone)]
pub struct Context {
    /// Present time.
    pub now_unix_ms: u64,
    /// Settings and limits of pools and VMs that have none of their own.
    pub defaults: Defaults,
    /// As [`crate::store::StoreOptions::own_paths`].
    pub own_paths: Vec<PathBuf>,
    /// As [`crate::store::StoreOptions::local_cid`].
    pub local_cid: bool,
}

impl Catalog {
    /// Carries out a command on this catalog.
    ///
    /// # Errors
    /// A refusal that lists the existing objects and a way out. The catalog may then be half
    /// changed and must be dropped.
    pub fn apply(&mut self, command: &Command, context: &Context) -> Result<Outcome, ErrorDetail> {
        let mut outcome = match command {
            Command::CreatePool(request) => self.create_pool(request, context),
            Command::SetPool { name, patch } => self.set_pool(name, patch, context),
            Command::DeletePool { name } => self.delete_pool(name),
            Command::AssignGpu(request) => self.assign_gpu(request, context),
            Command::UnassignGpu(request) => self.unassign_gpu(request),
            Command::ScanGpus(scan) => Ok(self.take_scan(scan, context)),
            Command::DrainGpu { gpu } => self.drain_gpu(gpu),
            Command::ResumeGpu { gpu } => self.resume_gpu(gpu),
            Command::SuspectGpu { gpu, reason } => self.suspect_gpu(gpu, reason),
            Command::ForgetGpu { gpu } => self.forget_gpu(gpu),
            Command::RegisterVm(request) => self.register_vms(request, context),
            Command::UnregisterVm(request) => self.unregister_vms(&request.vm_ids),
            Command::SetVm(patch) => self.set_vms(patch, context),
            Command::MoveVm(request) => self.move_vms(&request.vm_ids, &request.pool),
            Command::Quarantine(request) => self.quarantine_vms(request, context),
            Command::Release(request) => self.release_vms(&request.vm_ids, context),
            Command::ResetUsage(request) => self.reset_usage(request, context),
            Command::SetWeights(patch) => self.set_weights(patch),
            Command::Note { target, action } => Ok(Outcome {
                changed: true,
                target: target.clone(),
                message: format!("{action} {target}"),
                ..Outcome::default()
            }),
        }?;
        outcome.changed |= !outcome.changes.is_empty();
        Ok(outcome)
    }

    /// The whole catalog as changes, for the mediation at start: GPUs, pools, assignments, VMs.
    #[must_use]
    pub fn start_changes(&self, usage: &BTreeMap<u32, UsageRecord>) -> Vec<Change> {
        let mut changes = vec![self.inventory()];
        changes.extend(self.pools.keys().filter_map(|name| self.pool_change(name)));
        changes.extend(self.assignments.values().cloned().map(Change::GpuAssigned));
        changes.extend(self.vms.values().map(|vm| {
            Change::VmUpserted {
                vm: vm.clone(),
                debt_ns: usage
                    .get(&vm.vm_id)
                    .filter(|usage| usage.generation == vm.generation)
                    .map(|usage| usage.debt_ns),
            }
        }));
        changes
    }

    /// The effective weights of a pool.
    #[must_use]
    pub fn weights_of(&self, pool: &PoolRecord) -> Weights {
        pool.settings.weights.unwrap_or(self.host_weights)
    }

    /// The GPUs that serve a pool, by number.
    #[must_use]
    pub fn gpus_of(&self, pool: &str) -> Vec<&GpuRecord> {
        let serving = self
            .assignments
            .values()
            .filter(|assignment| assignment.pool == pool);
        let mut gpus: Vec<_> = serving.filter_map(|a| self.gpus.get(&a.gpu_uuid)).collect();
        gpus.sort_by_key(|gpu| gpu.gpu_id);
        gpus
    }

    /// The pools that a GPU serves, by name.
    #[must_use]
    pub fn pools_of(&self, gpu_uuid: &str) -> Vec<String> {
        let serving = self.assignments.values().filter(|a| a.gpu_uuid == gpu_uuid);
        serving.map(|assignment| assignment.pool.clone()).collect()
    }

    /// The VMs of a pool, by number.
    pub fn vms_of<'a>(&'a self, pool: &'a str) -> impl Iterator<Item = &'a VmRecord> {
        self.vms.values().filter(move |vm| vm.pool == pool)
    }

    /// A GPU by number or UUID.
    ///
    /// # Errors
    /// If there is none; the refusal lists the existing GPUs.
    pub fn gpu(&self, name: &str) -> Result<&GpuRecord, ErrorDetail> {
        let found = match name.parse::<u32>() {
            Ok(gpu_id) => self.gpus.values().find(|gpu| gpu.gpu_id == gpu_id),
            Err(_) => self
                .gpus
                .values()
                .find(|gpu| gpu.seen.uuid.eq_ignore_ascii_case(name)),
        };
        found.ok_or_else(|| {
            let mut known: Vec<_> = self.gpus.values().collect();
            known.sort_by_key(|gpu| gpu.gpu_id);
            let names = known
                .iter()
                .map(|gpu| format!("{} ({})", gpu.gpu_id, gpu.seen.model));
            let hint = if self.gpus.is_empty() {
                "No GPU is known yet: run `vgpu-admin scan-gpus`.".into()
            } else {
                format!("Known GPUs: {}.", list(names))
            };
            refuse(
                ErrorCode::GpuNotFound,
                format!("There is no GPU {name:?}."),
                hint,
            )
        })
    }

    /// A pool by name.
    ///
    /// # Errors
    /// If there is none; the refusal lists the existing pools.
    pub fn pool(&self, name: &str) -> Result<&PoolRecord, ErrorDetail> {
        self.pools.get(name).ok_or_else(|| {
            let hint = if self.pools.is_empty() {
                format!("No pool exists yet: `vgpu-admin pool create {name}` creates it.")
            } else {
                format!("Pools: {}.", list(self.pools.keys().cloned()))
            };
            refuse(
                ErrorCode::PoolNotFound,
                format!("There is no pool {name:?}."),
                hint,
            )
        })
    }

    /// A VM by number.
    ///
    /// # Errors
    /// If there is none; the refusal lists the existing VMs.
    pub fn vm(&self, vm_id: u32) -> Result<&VmRecord, ErrorDetail> {
        self.vms.get(&vm_id).ok_or_else(|| {
            let hint = if self.vms.is_empty() {
                "No VM is registered yet: see `vgpu-admin register-vm --help`.".into()
            } else {
                format!("Registered VMs: {}.", ranges(self.vms.keys().copied()))
            };
            refuse(
                ErrorCode::VmNotFound,
                format!("VM {vm_id} is not registered."),
                hint,
            )
        })
    }

    fn inventory(&self) -> Change {
        Change::GpuInventory(self.gpus.values().cloned().collect())
    }

    fn pool_change(&self, name: &str) -> Option<Change> {
        let pool = self.pools.get(name)?;
        Some(Change::PoolUpserted {
            pool: pool.clone(),
            weights: self.weights_of(pool),
        })
    }
}

/// Formats names as `a, b, c`, cut after ten.
pub(crate) fn list(names: impl Iterator<Item = String>) -> String {
    const MOST: usize = 10;
    let names: Vec<String> = names.collect();
    let mut text = names
        .iter()
        .take(MOST)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MOST {
        text.push_str(&format!(" and {} more", names.len() - MOST));
    }
    text
}

/// Formats numbers as `1-7, 9, 11-12`, cut after ten.
pub(crate) fn ranges(ids: impl Iterator<Item = u32>) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for id in ids {
        match spans.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(id) => *last = id,
            _ => spans.push((id, id)),
        }
    }
    list(spans.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    }))
}

/// Names VMs: `VM 3`, or `VMs 3-5, 9`.
pub(crate) fn vms(ids: &[u32]) -> String {
    let plural = if ids.len() == 1 { "" } else { "s" };
    format!("VM{plural} {}", ranges(ids.iter().copied()))
}

#[cfg(test)]
pub(crate) mod tests;
