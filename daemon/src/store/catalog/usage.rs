//! Resets usage. The catalog does not hold the totals: the outcome names the VMs to reset.

use vgpu_api::{ErrorDetail, UsageReset};

use super::super::command::Outcome;
use super::{Catalog, Context, ranges, vms};
use crate::mediation::Change;

impl Catalog {
    pub(super) fn reset_usage(
        &self,
        request: &UsageReset,
        context: &Context,
    ) -> Result<Outcome, ErrorDetail> {
        let vm_ids = match &request.vm_ids {
            Some(vm_ids) => vm_ids.clone(),
            None => self.vms.keys().copied().collect(),
        };
        let mut changes = Vec::with_capacity(vm_ids.len());
        for vm_id in &vm_ids {
            changes.push(Change::UsageReset {
                vm_id: *vm_id,
                generation: self.vm(*vm_id)?.generation,
                at_unix_ms: context.now_unix_ms,
            });
        }
        let who = ranges(vm_ids.iter().copied());
        Ok(Outcome {
            changed: !changes.is_empty(),
            message: match vm_ids.len() {
                0 => "No VM is registered.".into(),
                _ => format!("The usage counters of {} are set to zero.", vms(&vm_ids)),
            },
            target: format!("vm {who}"),
            changes,
            ..Outcome::default()
        })
    }
}
