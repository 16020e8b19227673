//! Strikes and the quarantines that follow. The scheduler counts the strikes; this module reports
//! strikes and quarantines to the store and to the events.

use std::time::Duration;

use vgpu_sched::{Event, VmId};

use super::actor::Actor;
use super::registry;
use crate::events::Report;
use crate::model::{VmIdentity, counted, now_unix_ms};

impl Actor {
    /// Counts a strike against a VM, for this reason.
    pub(super) fn strike(&mut self, identity: VmIdentity, reason: &str) {
        if self.registry.vm(identity).is_none() {
            return;
        }
        self.feed_strike(registry::vm_id(identity), reason.to_owned());
    }

    /// The scheduler has counted a strike.
    pub(super) fn struck(&mut self, vm: VmId, strikes: u32, reason: &str) {
        let Some(record) = self.registry.vms.get_mut(&vm.0) else {
            return;
        };
        (record.strikes, record.last_strike_unix_ms) = (strikes, now_unix_ms());
        let identity = record.identity();
        self.events.report(Report::Strike {
            vm_id: identity.vm_id,
            generation: identity.generation,
            strikes,
            reason: reason.to_owned(),
        });
    }

    /// The scheduler has quarantined a VM for its strikes. `last`: reason of the last strike.
    pub(super) fn quarantined(
        &mut self,
        vm: VmId,
        strikes: u32,
        for_ns: Option<u64>,
        last: Option<String>,
    ) {
        let quarantines = self.scheduler.past(vm).map_or(1, |past| past.quarantines);
        let last = last.map_or(String::new(), |reason| format!(", the last one: {reason}"));
        let reason = format!("{}{last}", counted(strikes as usize, "strike"));
        let now = now_unix_ms();
        let lasts = for_ns.map(Duration::from_nanos);
        let until_unix_ms =
            lasts.map(|t| now.saturating_add(u64::try_from(t.as_millis()).unwrap_or(u64::MAX)));
        let Some(record) = self.registry.vms.get_mut(&vm.0) else {
            return;
        };
        record.quarantine = Some(vgpu_api::Quarantine {
            reason: reason.clone(),
            since_unix_ms: now,
            automatic: true,
            until_unix_ms,
        });
        (record.quarantines, record.quarantines_unix_ms) =
            (quarantines, until_unix_ms.unwrap_or(now));
        let identity = record.identity();
        self.events.report(Report::Quarantined {
            vm_id: identity.vm_id,
            generation: identity.generation,
            reason,
            until_unix_ms,
            lasts,
            quarantines,
        });
    }

    /// The time of a quarantine by strikes is over.
    pub(super) fn quarantine_over(&mut self, vm: VmId) {
        let Some(record) = self.registry.vms.get_mut(&vm.0) else {
            return;
        };
        (record.quarantine, record.strikes) = (None, 0);
        let identity = record.identity();
        self.events.report(Report::QuarantineOver {
            vm_id: identity.vm_id,
            generation: identity.generation,
        });
    }

    /// An administrator quarantined or released a VM.
    pub(super) fn set_quarantine(
        &mut self,
        vm_id: u32,
        generation: u64,
        quarantine: Option<vgpu_api::Quarantine>,
    ) {
        let known = self.registry.vms.get_mut(&vm_id);
        let Some(record) = known.filter(|vm| vm.generation == generation) else {
            return;
        };
        let on = quarantine.is_some();
        if !on {
            record.strikes = 0;
        }
        record.quarantine = quarantine;
        let vm = registry::vm_id(record.identity());
        self.feed(Event::SetQuarantine { vm, on });
    }
}
