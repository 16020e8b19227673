//! Events about commands that were carried out.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use vgpu_api::{EventKind, POOL_SETTINGS, Setting, Severity, VM_LIMITS};

use super::catalog::Catalog;
use super::command::{AuditActor, Command, Outcome};
use crate::events::Draft;
use crate::mediation::Change;
use crate::model::VmRecord;

/// Most VMs of a command that get an event each. Beyond that one event has them all, because the
/// events of one command must not displace the others from memory.
const MOST: usize = 64;

/// The events of a command. `catalog` has the command's changes.
pub(super) fn drafts(
    command: &Command,
    outcome: &Outcome,
    actor: &AuditActor,
    catalog: &Catalog,
) -> Vec<Draft> {
    let (kind, severity) = match command {
        Command::Note { .. } => return Vec::new(),
        Command::ScanGpus(_) => return of_scan(outcome, catalog),
        Command::Quarantine(_) => (EventKind::Quarantined, Severity::Warning),
        Command::Release(_) => (EventKind::Released, Severity::Info),
        Command::DrainGpu { .. } => (EventKind::GpuDraining, Severity::Info),
        Command::ResumeGpu { .. } => (EventKind::GpuResumed, Severity::Info),
        Command::SuspectGpu { .. } => (EventKind::GpuSuspect, Severity::Error),
        _ => (EventKind::ConfigChanged, Severity::Info),
    };
    let given = told(&details(command, None));
    let who = &actor.name;
    let vms = changed_vms(outcome);
    if let Some(what) = of_vms(command)
        && vms.len() <= MOST
    {
        let draft = |vm_id: u32| {
            let (subject, verb) = what;
            let given = match (command, catalog.vms.get(&vm_id)) {
                (Command::RegisterVm(_), Some(vm)) => told(&details(command, Some(vm))),
                _ => given.clone(),
            };
            let message = format!("{subject} {vm_id} {verb} by {who}{given}.");
            Draft::vm(kind, severity, vm_id, message)
        };
        return vms.into_iter().map(draft).collect();
    }
    let (message, target) = (&outcome.message, &outcome.target);
    let message = format!("{message} ({} {target} by {who}{given})", command.action());
    let pool = match command {
        Command::SetPool { name, .. } | Command::DeletePool { name } => Some(name.clone()),
        Command::CreatePool(request) => Some(request.name.clone()),
        Command::AssignGpu(request) => Some(request.pool.clone()),
        _ => None,
    };
    vec![Draft {
        pool,
        ..Draft::daemon(kind, severity, message)
    }]
}

/// One event for each GPU whose state a scan changed.
fn of_scan(outcome: &Outcome, catalog: &Catalog) -> Vec<Draft> {
    let Some(scan) = &outcome.scan else {
        return Vec::new();
    };
    let (appeared, vanished) = (EventKind::GpuAppeared, EventKind::GpuVanished);
    let lists = [
        (appeared, Severity::Info, &scan.added, "was found"),
        (appeared, Severity::Info, &scan.returned, "is back"),
        (appeared, Severity::Info, &scan.moved, "is in another slot"),
        (vanished, Severity::Error, &scan.vanished, "vanished"),
    ];
    let mut drafts = Vec::new();
    for (kind, severity, gpu_ids, what) in lists {
        let named = |gpu_id: &u32| catalog.gpus.values().find(|gpu| gpu.gpu_id == *gpu_id);
        for gpu in gpu_ids.iter().filter_map(named) {
            let message = format!("GPU {} ({}) {what}.", gpu.gpu_id, gpu.seen.model);
            drafts.push(Draft {
                gpu_uuid: Some(gpu.seen.uuid.clone()),
                ..Draft::daemon(kind, severity, message)
            });
        }
    }
    drafts
}

/// The sentence about each VM that a command changes: the words before and after the number.
fn of_vms(command: &Command) -> Option<(&'static str, &'static str)> {
    let verb = match command {
        Command::RegisterVm(_) => "was registered",
        Command::UnregisterVm(_) => "was unregistered",
        Command::SetVm(_) => "was changed",
        Command::MoveVm(_) => "was moved",
        Command::Quarantine(_) => "was quarantined",
        Command::Release(_) => "was released",
        Command::ResetUsage(_) => return Some(("The usage counters of VM", "were set to zero")),
        _ => return None,
    };
    Some(("VM", verb))
}

fn changed_vms(outcome: &Outcome) -> BTreeSet<u32> {
    let of = |change: &Change| match change {
        Change::VmUpserted { vm, .. } => Some(vm.vm_id),
        Change::VmRemoved { vm_id, .. } | Change::UsageReset { vm_id, .. } => Some(*vm_id),
        _ => None,
    };
    outcome.changes.iter().filter_map(of).collect()
}

fn told(parts: &[String]) -> String {
    match parts.is_empty() {
        true => String::new(),
        false => format!(": {}", parts.join(", ")),
    }
}

/// The values of a command, except its targets, as `vgpu-admin` names and writes them: `priority
/// high`, `memory 8GiB`. `vm`: the VM that the text is about.
fn details(command: &Command, vm: Option<&VmRecord>) -> Vec<String> {
    let targets: &[&str] = match command {
        Command::SetVm(_) => &["vm_ids"],
        _ => &["vm_ids", "name", "gpu"],
    };
    let mut parts = Vec::new();
    let json = serde_json::to_value(command).unwrap_or_default();
    // The outer object has one field, which names the command.
    let Value::Object(named) = json else {
        return parts;
    };
    if let Some(Value::Object(mut fields)) = named.into_iter().next().map(|(_, values)| values) {
        fields.retain(|name, _| !targets.contains(&name.as_str()));
        // A command for several VMs has the CID of the first only.
        if let Some(first) = fields.get_mut("first_cid").filter(|cid| !cid.is_null())
            && let Some(cid) = vm.and_then(|vm| vm.cid)
        {
            *first = Value::Null;
            fields.insert("cid".into(), cid.into());
        }
        let changes = matches!(command, Command::SetVm(_) | Command::SetPool { .. });
        collect(&fields, changes, &mut parts);
    }
    parts
}

/// `changes`: an absent value is a value too.
fn collect(fields: &Map<String, Value>, changes: bool, parts: &mut Vec<String>) {
    for (name, value) in fields {
        let text = match value {
            Value::Object(inner) => {
                collect(inner, changes, parts);
                continue;
            }
            Value::Null if changes && (name == "cid" || name == "origin") => "none".to_owned(),
            Value::Null if changes && name == "gpus" => "all".to_owned(),
            Value::Null if changes => "default".to_owned(),
            Value::Null | Value::Bool(false) => continue,
            other => valued(name, other),
        };
        parts.push(format!("{} {text}", option(name)));
    }
}

/// The setting of pools or VMs with this field.
fn setting(field: &str) -> Option<&'static Setting> {
    let mut settings = POOL_SETTINGS.iter().chain(VM_LIMITS);
    settings.find(|setting| setting.name == field)
}

/// The option of `vgpu-admin` for a field.
fn option(field: &str) -> String {
    match (field, setting(field)) {
        (_, Some(setting)) => setting.option.into(),
        ("factor_percent", None) => "factor".into(),
        ("first_cid", None) => "cid".into(),
        ("socket", None) => "unix-socket".into(),
        (field, None) => field.replace('_', "-"),
    }
}

/// The value of a field, with the unit of its setting.
fn valued(field: &str, value: &Value) -> String {
    match (setting(field), value.as_u64()) {
        (Some(setting), Some(n)) => setting.unit.text(n),
        (None, Some(percent)) if field == "factor_percent" => format!("{percent}%"),
        _ => word(value),
    }
}

/// A value as words.
pub(super) fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(word).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use vgpu_api::{Limit, PoolPatch, Priority, QuarantineRequest, VmLimitsPatch, VmPatch};

    use super::*;

    fn events_of(command: &Command, vm_ids: &[u32]) -> Vec<Draft> {
        let changed = vm_ids.iter().map(|&vm_id| Change::VmUpserted {
            vm: VmRecord {
                vm_id,
                ..VmRecord::default()
            },
            debt_ns: None,
        });
        let outcome = Outcome {
            changes: changed.collect(),
            message: "Done.".into(),
            target: "vm 1".into(),
            ..Outcome::default()
        };
        let actor = AuditActor {
            name: "uid:7".into(),
            pid: None,
        };
        drafts(command, &outcome, &actor, &Catalog::default())
    }

    #[test]
    fn an_event_about_a_vm_has_its_number_and_says_who_changed_what() {
        let command = Command::SetVm(VmPatch {
            vm_ids: vec![1, 2],
            priority: Some(Priority::High),
            cid: Some(None),
            gpus: Some(None),
            factor_percent: Some(200),
            limits: VmLimitsPatch {
                memory_bytes: Some(Limit::Value(8 << 30)),
                queue_bytes: Some(Limit::Default),
                sessions: Some(Limit::Value(3)),
                ..VmLimitsPatch::default()
            },
            ..VmPatch::default()
        });
        let events = events_of(&command, &[1, 2]);
        assert_eq!(events[1].vm_id, Some(2));
        assert_eq!(
            events[0].message,
            "VM 1 was changed by uid:7: cid none, factor 200%, gpus all, memory 8GiB, queue-bytes default, \
             sessions 3, priority high."
        );
        let command = Command::Quarantine(QuarantineRequest {
            vm_ids: vec![1],
            reason: Some("it hangs".into()),
        });
        let said = &events_of(&command, &[1])[0].message;
        assert_eq!(said, "VM 1 was quarantined by uid:7: reason it hangs.");
        let all: Vec<u32> = (1..=65).collect();
        assert!(all.len() > MOST);
        let many = events_of(&command, &all);
        assert_eq!((many.len(), many[0].vm_id), (1, None));
    }

    #[test]
    fn drains_and_resumes_of_gpus_have_their_own_kinds() {
        let gpu = || "0".to_owned();
        for (command, kind) in [
            (Command::DrainGpu { gpu: gpu() }, EventKind::GpuDraining),
            (Command::ResumeGpu { gpu: gpu() }, EventKind::GpuResumed),
        ] {
            assert_eq!(events_of(&command, &[])[0].kind, kind);
        }
    }

    #[test]
    fn an_event_about_a_pool_says_who_changed_what() {
        let command = Command::SetPool {
            name: "A".into(),
            patch: PoolPatch {
                slice_us: Some(500),
                ..PoolPatch::default()
            },
        };
        let event = &events_of(&command, &[])[0];
        assert_eq!(event.pool.as_deref(), Some("A"));
        let said = &event.message;
        assert!(said.contains("by uid:7: slice 500us)"), "{said}");
    }

    #[test]
    fn each_registered_vm_is_told_with_its_own_cid() {
        let mut catalog = Catalog::default();
        let mut changes = Vec::new();
        for vm_id in [1, 2] {
            let vm = VmRecord {
                vm_id,
                cid: Some(41 + vm_id),
                ..VmRecord::default()
            };
            catalog.vms.insert(vm_id, vm.clone());
            changes.push(Change::VmUpserted { vm, debt_ns: None });
        }
        let request = serde_json::json!({"vm_ids": [1, 2], "pool": "A", "first_cid": 42});
        let command = Command::RegisterVm(serde_json::from_value(request).expect("a request"));
        let outcome = Outcome {
            changes,
            changed: true,
            ..Outcome::default()
        };
        let events = drafts(&command, &outcome, &AuditActor::daemon(), &catalog);
        assert!(
            events[0].message.contains("cid 42"),
            "{}",
            events[0].message
        );
        assert!(
            events[1].message.contains("cid 43"),
            "{}",
            events[1].message
        );
        assert!(
            !events[1].message.contains("first"),
            "{}",
            events[1].message
        );
    }
}
