//! Strikes: misbehaviour is counted per VM, forgotten with time, and enough of it is a quarantine.

use vgpu_sched::Event;

use super::VmIdentity;
use super::actor::Actor;
use super::books;
use crate::events::Report;
use crate::model::now_unix_ms;

impl Actor {
    /// Gives a VM a strike. The number that quarantines, and how soon one is forgotten, are its pool's.
    pub(super) fn strike(&mut self, identity: VmIdentity, reason: &str) {
        let Some(vm) = self.books.vm(identity) else {
            return;
        };
        let Some(pool) = self.books.pools.get(&vm.pool) else {
            return;
        };
        let settings = &pool.record.settings;
        let now = now_unix_ms();
        let strikes = vm
            .strikes_at(now, settings.strike_decay_s)
            .saturating_add(1);
        let enough = settings.quarantine_strikes > 0 && strikes >= settings.quarantine_strikes;
        let already = vm.quarantine.is_some();
        if let Some(vm) = self.books.vms.get_mut(&identity.vm_id) {
            (vm.strikes, vm.last_strike_unix_ms) = (strikes, now);
        }
        self.events.report(Report::Strike {
            vm_id: identity.vm_id,
            generation: identity.generation,
            strikes,
            reason: reason.to_owned(),
        });
        if !enough || already {
            return;
        }
        let reason = format!("{strikes} strikes, the last one: {reason}");
        if let Some(vm) = self.books.vms.get_mut(&identity.vm_id) {
            vm.quarantine = Some(vgpu_proto::api::Quarantine {
                reason: reason.clone(),
                since_unix_ms: now,
                automatic: true,
            });
        }
        self.events.report(Report::Quarantined {
            vm_id: identity.vm_id,
            generation: identity.generation,
            reason,
        });
        self.feed(Event::SetQuarantine {
            vm: books::vm_id(identity),
            on: true,
        });
    }
}
