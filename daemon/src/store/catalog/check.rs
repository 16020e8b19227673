//! The invariants of every catalog. A catalog from a file is checked, because files are not
//! trusted.

use std::collections::BTreeSet;

use super::super::number_file;
use super::Catalog;
use crate::model::VmRecord;
use crate::rules;

impl Catalog {
    /// Checks a catalog that was read from a file.
    ///
    /// # Errors
    /// The violated invariant, without a full stop.
    pub(crate) fn check(&self) -> Result<(), String> {
        let gpu_ids: BTreeSet<u32> = self.gpus.values().map(|gpu| gpu.gpu_id).collect();
        if gpu_ids.len() != self.gpus.len() {
            return Err("two GPUs have one number".into());
        }
        self.host_weights.check().map_err(|what| said(&what))?;
        for pool in self.pools.values() {
            let named = |what: String| format!("pool {:?}: {}", pool.name, said(&what));
            rules::name("pool", &pool.name).map_err(named)?;
            rules::pool_settings(&pool.settings).map_err(named)?;
        }
        for assignment in self.assignments.values() {
            let (gpu, pool) = (&assignment.gpu_uuid, &assignment.pool);
            if !self.gpus.contains_key(gpu) || !self.pools.contains_key(pool) {
                return Err(format!(
                    "{gpu:?} is assigned to {pool:?}, and one is not known"
                ));
            }
        }
        if self.last_generation > number_file::MOST {
            return Err(format!(
                "its count of registrations is {}",
                self.last_generation
            ));
        }
        for vm in self.vms.values() {
            self.check_vm(vm)
                .map_err(|what| format!("VM {}: {}", vm.vm_id, said(&what)))?;
        }
        Ok(())
    }

    fn check_vm(&self, vm: &VmRecord) -> Result<(), String> {
        rules::vm_id(vm.vm_id)?;
        rules::name("VM", &vm.name)?;
        rules::factor(vm.factor_percent)?;
        rules::vm_limits(&vm.limits)?;
        vm.cid.map_or(Ok(()), rules::cid)?;
        vm.socket.as_deref().map_or(Ok(()), rules::socket)?;
        vm.slice_us.map_or(Ok(()), rules::slice)?;
        if !self.pools.contains_key(&vm.pool) {
            return Err(format!("its pool {:?} is not known", vm.pool));
        }
        if vm.generation == 0 || vm.generation > self.last_generation {
            return Err(format!(
                "it is registration {} of {}",
                vm.generation, self.last_generation
            ));
        }
        Ok(())
    }
}

fn said(sentence: &str) -> String {
    sentence.trim_end_matches('.').to_owned()
}
