//! Warnings: what a command allows, and what then keeps programs of VMs from running.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_api::{GpuState, Limit, Unit};
use vgpu_proto::limits::PINNED_AT_START;

use super::{Catalog, Context, vms};
use crate::model::{GpuRecord, VmRecord, counted, refuse_pinned};
use crate::rules;

impl Catalog {
    /// Warnings about a pool that takes VMs and whose GPUs cannot serve them.
    pub(super) fn pool_warnings(&self, pool: &str) -> Vec<String> {
        let gpus = self.gpus_of(pool);
        if gpus.is_empty() {
            return vec![format!(
                "Pool {pool} has no GPU yet: its VMs are refused until `vgpu-admin assign-gpu \
                 --pool={pool}`."
            )];
        }
        let unserved = gpus.into_iter();
        let unserved = unserved.filter(|gpu| gpu.state == GpuState::NoDriver);
        unserved.map(GpuRecord::without_driver).collect()
    }

    /// Warnings about pools that just lost a GPU, have no other GPU, and have VMs.
    pub(super) fn emptied_warnings<'a>(&self, pools: impl Iterator<Item = &'a str>) -> Vec<String> {
        let emptied = pools.filter(|pool| self.gpus_of(pool).is_empty());
        let with_vms = emptied.map(|pool| (pool, self.vms_of(pool).count()));
        let with_vms = with_vms.filter(|(_, vms)| *vms > 0);
        let warning = |(pool, vms)| {
            format!(
                "Pool {pool} has no GPU any more and has {}, whose programs are refused until \
                 `vgpu-admin assign-gpu GPU --pool={pool}`.",
                counted(vms, "VM")
            )
        };
        with_vms.map(warning).collect()
    }

    /// Warnings about the allowlists and memory limits of these VMs: each sentence once, behind the
    /// numbers of the VMs to which it applies.
    pub(super) fn vm_warnings(&self, vm_ids: &[u32]) -> Vec<String> {
        let mut told: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for vm in vm_ids.iter().filter_map(|vm_id| self.vms.get(vm_id)) {
            let pinned = refuse_pinned(&vm.limits, 0, PINNED_AT_START)
                .map(|why| format!("every program is refused: {why}; raise the limit: `vgpu-admin vm set --pinned`."));
            let warnings = [self.allowlist_warning(vm), self.quota_warning(vm), pinned];
            for warning in warnings.into_iter().flatten() {
                told.entry(warning).or_default().push(vm.vm_id);
            }
        }
        let named = |(warning, of): (String, Vec<u32>)| format!("{}: {warning}", vms(&of));
        told.into_iter().map(named).collect()
    }

    /// A warning about the GPUs that a VM may use and that do not serve its pool.
    fn allowlist_warning(&self, vm: &VmRecord) -> Option<String> {
        let (pool, allowed) = (&vm.pool, vm.gpus.as_ref()?);
        let serving: Vec<_> = self.gpus_of(pool);
        let serves = |uuid: &String| serving.iter().any(|gpu| gpu.seen.uuid == *uuid);
        let idle: Vec<&String> = allowed.iter().filter(|uuid| !serves(uuid)).collect();
        if idle.len() == allowed.len() {
            return Some(format!(
                "none of the GPUs that the VM may use serves pool {pool}: its programs are refused \
                 until `vgpu-admin assign-gpu GPU --pool={pool}`."
            ));
        }
        let known = idle.iter().filter_map(|uuid| self.gpus.get(*uuid));
        let known: BTreeSet<u32> = known.map(|gpu| gpu.gpu_id).collect();
        let unknown = idle.iter().filter(|uuid| !self.gpus.contains_key(**uuid));
        let names = known.iter().map(u32::to_string);
        let names: Vec<String> = names.chain(unknown.map(ToString::to_string)).collect();
        let (gpus, them) = match names.len() {
            0 => return None,
            1 => ("GPU", "it"),
            _ => ("GPUs", "them"),
        };
        Some(format!(
            "--gpus names {gpus} {}, and pool {pool} does not have {them}: programs run on the others \
             only, until `vgpu-admin assign-gpu GPU --pool={pool}`.",
            names.join(", ")
        ))
    }

    /// A warning about a memory quota that refuses every program, or limits nothing.
    fn quota_warning(&self, vm: &VmRecord) -> Option<String> {
        let pool = &vm.pool;
        let mut gpus = self.gpus_of(pool);
        gpus.retain(|gpu| vm.may_use(&gpu.seen.uuid));
        if gpus.is_empty() {
            return None;
        }
        let Limit::Value(quota) = vm.limits.memory_bytes else {
            return None;
        };
        // A gang uses all GPUs at once, and its quota counts the memory of all.
        let sizes = gpus.iter().map(|gpu| gpu.seen.memory_bytes);
        let contexts = gpus.iter().map(|gpu| gpu.context_bytes());
        let (most, least) = match vm.gang {
            true => (sizes.sum::<u64>(), contexts.sum::<u64>()),
            false => (sizes.max()?, contexts.min()?),
        };
        let text = |bytes| Unit::Bytes.text(bytes);
        let least = least.max(SMALLEST_QUOTA);
        if quota < least {
            return Some(format!(
                "a memory quota of {} is less than the {} that a program takes in pool {pool} before it \
                 computes: its programs are refused, or fail at their first allocation.",
                text(quota),
                text(least)
            ));
        }
        (quota > most).then(|| {
            let whose = match vm.gang {
                true => "all GPUs",
                false => "the largest GPU",
            };
            format!(
                "a memory quota of {} is more than {whose} of pool {pool} ({}): it limits nothing.",
                text(quota),
                text(most)
            )
        })
    }
}

/// The smallest quota that allows an allocation: drivers take memory in pieces of 512 bytes.
const SMALLEST_QUOTA: u64 = 512;

/// A warning about the CIDs of the host's own programs, if vgpud does not serve them.
pub(super) fn local_cid(
    cids: impl Iterator<Item = u32>,
    context: &Context,
) -> impl Iterator<Item = String> {
    let unserved = !context.local_cid;
    cids.filter(move |cid| unserved && *cid < rules::FIRST_CID).map(|cid| {
        format!(
            "CID {cid} stands for programs of this host and not for a VM; vgpud serves it only with \
             listen.allow_local_cid = true."
        )
    })
}
