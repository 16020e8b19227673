//! The answer to a command with `dry_run=true`.

use vgpu_api::{ApplyReport, Session};

use crate::mediation::Change;
use crate::model::counted;
use crate::store::Outcome;
use crate::store::catalog::{list, vms};

/// The report of an outcome that did not happen.
pub(super) fn report(outcome: Outcome) -> ApplyReport {
    let ends = match outcome.ends.len() {
        0 => "No session would end.".to_owned(),
        n => format!(
            "{} would end: {}.",
            counted(n, "session"),
            named(&outcome.ends)
        ),
    };
    let gone = outcome.changes.iter().filter_map(|change| match change {
        Change::VmRemoved { vm_id, .. } => Some(*vm_id),
        _ => None,
    });
    let gone: Vec<u32> = gone.collect();
    let lost = match gone.is_empty() {
        true => String::new(),
        false => format!(
            " The settings and the usage of {} would be lost.",
            vms(&gone)
        ),
    };
    ApplyReport {
        changed: outcome.changed,
        message: format!(
            "Nothing was changed (dry run). The command would answer: {} {ends}{lost}",
            outcome.message
        ),
        warnings: outcome.warnings,
        dry_run: true,
        ends: outcome.ends,
    }
}

/// Sessions by number, VM and program.
pub(super) fn named(sessions: &[Session]) -> String {
    list(sessions.iter().map(|s| match s.program.is_empty() {
        true => format!("{} of VM {}", s.session_id, s.vm_id),
        false => format!("{} of VM {} ({})", s.session_id, s.vm_id, s.program),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_lost_is_in_the_singular_or_plural() {
        let said = |vm_ids: &[u32]| {
            let removed = |&vm_id: &u32| Change::VmRemoved {
                vm_id,
                generation: 1,
            };
            let changes = vm_ids.iter().map(removed).collect();
            report(Outcome {
                changes,
                ..Outcome::default()
            })
            .message
        };
        assert!(said(&[2]).ends_with("usage of VM 2 would be lost."));
        assert!(said(&[2, 8]).ends_with("usage of VMs 2, 8 would be lost."));
    }
}
