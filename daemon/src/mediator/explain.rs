//! The scheduler's decisions for administrators: the decision log and explanations.

use vgpu_sched::VmId;
use vgpu_sched::log::View;

use super::actor::Actor;
use crate::mediation::Explained;

impl Actor {
    /// The recorded decisions of the scheduler. The caller serializes the decisions in a thread of
    /// its own.
    pub(super) fn sched_log(&mut self) -> View {
        self.log.view(&self.scheduler)
    }

    /// Why a VM waits, as of now.
    pub(super) fn explain(&mut self, vm_id: u32) -> Option<Explained> {
        self.registry.vms.get(&vm_id)?;
        self.bring_up_to_date();
        let explanation = self.scheduler.explain(VmId(vm_id))?;
        let mut pools = self.registry.pools.iter();
        let pool = pools.find(|(_, pool)| pool.id == explanation.pool);
        Some(Explained {
            pool: pool.map(|(name, _)| name.clone()).unwrap_or_default(),
            explanation,
        })
    }
}
