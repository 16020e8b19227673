//! The mediation's own decisions about VMs and GPUs, in the catalog.

use std::sync::Arc;

use vgpu_api::{GpuState, Quarantine};

use super::super::catalog::Catalog;
use super::Writer;
use crate::events::{GpuNote, QuarantineNote, VmNote};

impl Writer {
    /// Adds the mediation's own decisions to the catalog. They take effect at once, and are saved
    /// with the next successful transaction.
    pub(super) fn with_notes(&mut self) -> Arc<Catalog> {
        let (vms, gpus) = self.journal.take_notes();
        let catalog = self.shared.catalog();
        if vms.is_empty() && gpus.is_empty() {
            return catalog;
        }
        let mut catalog = Catalog::clone(&catalog);
        for (vm_id, note) in &vms {
            note_vm(&mut catalog, *vm_id, note);
        }
        for (uuid, note) in gpus {
            let (state, reason) = match note {
                GpuNote::Suspect(reason) => (GpuState::Suspect, reason),
                GpuNote::Vanished(reason) => (GpuState::Vanished, reason),
            };
            catalog.set_state(&uuid, state, Some(reason));
        }
        self.shared.publish(catalog)
    }
}

fn note_vm(catalog: &mut Catalog, vm_id: u32, note: &VmNote) {
    let Some(vm) = catalog.vms.get_mut(&vm_id) else {
        return;
    };
    if vm.generation != note.generation {
        return;
    }
    if let Some(strikes) = note.strikes {
        vm.strikes = strikes;
        vm.last_strike_unix_ms = note.at_unix_ms;
    }
    match &note.quarantine {
        None => {}
        Some(QuarantineNote::Begun {
            reason,
            until_unix_ms,
            quarantines,
        }) => {
            vm.quarantines = *quarantines;
            // Quarantines age only while the VM is not in quarantine.
            vm.quarantines_unix_ms = until_unix_ms.unwrap_or(note.at_unix_ms);
            vm.quarantine.get_or_insert_with(|| Quarantine {
                reason: reason.clone(),
                since_unix_ms: note.at_unix_ms,
                automatic: true,
                until_unix_ms: *until_unix_ms,
            });
        }
        // A quarantine that an administrator set in between stays.
        Some(QuarantineNote::Over) => {
            vm.quarantine.take_if(|quarantine| quarantine.automatic);
        }
    }
}
