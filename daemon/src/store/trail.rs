//! Texts of the audit trail: the changes by a command, and refused commands.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};
use vgpu_proto::text::printable;

use super::catalog::{Catalog, ranges};
use super::command::Command;
use super::telling::word;

/// Most records whose changes one line lists.
const MOST: usize = 64;
/// Most characters of the target of a refused command, with the reason.
const TARGET: usize = 300;
/// Most bytes of a refused command, as JSON.
const REFUSED_DETAIL: usize = 2_048;

/// The detail of a line: the command as JSON without absent values, and under `changed` the
/// changed fields of VMs, pools and GPUs as `old -> new`.
pub(super) fn detail(command: &Command, before: &Catalog, after: &Catalog) -> String {
    let mut detail = plain(command);
    // A scan describes every GPU already.
    let changed = match command {
        Command::ScanGpus(_) => Vec::new(),
        _ => changed(before, after),
    };
    if let Value::Object(fields) = &mut detail
        && !changed.is_empty()
    {
        fields.insert("changed".into(), changed.into());
    }
    detail.to_string()
}

/// The detail of a refused command: valid JSON of bounded length.
pub(super) fn refused_detail(command: &Command) -> String {
    let text = plain(command).to_string();
    match text.len() <= REFUSED_DETAIL {
        true => text,
        false => json!({ command.action(): format!("too long: {} bytes", text.len()) }).to_string(),
    }
}

/// The target of a refused command, with the reason.
pub(super) fn refused_target(command: &Command, message: &str) -> String {
    let message = message.trim_end_matches('.');
    printable(&format!("{} (refused: {message})", target(command)), TARGET)
}

/// The target of a command that has no outcome.
fn target(command: &Command) -> String {
    let vms = |vm_ids: &[u32]| format!("vm {}", ranges(vm_ids.iter().copied()));
    match command {
        Command::CreatePool(request) => format!("pool {}", request.name),
        Command::SetPool { name, .. } | Command::DeletePool { name } => format!("pool {name}"),
        Command::AssignGpu(request) => format!("gpu {}", request.gpu),
        Command::UnassignGpu(request) => format!("gpu {}", request.gpu),
        Command::DrainGpu { gpu }
        | Command::ResumeGpu { gpu }
        | Command::SuspectGpu { gpu, .. }
        | Command::ForgetGpu { gpu } => format!("gpu {gpu}"),
        Command::RegisterVm(request) => vms(&request.vm_ids),
        Command::SetVm(request) => vms(&request.vm_ids),
        Command::MoveVm(request) => vms(&request.vm_ids),
        Command::Quarantine(request) => vms(&request.vm_ids),
        Command::UnregisterVm(request) | Command::Release(request) => vms(&request.vm_ids),
        Command::ResetUsage(request) => match &request.vm_ids {
            Some(vm_ids) => vms(vm_ids),
            None => "all VMs".into(),
        },
        Command::SetWeights(request) => match &request.pool {
            Some(pool) => format!("pool {pool}"),
            None => "host".into(),
        },
        Command::ScanGpus(_) => "host".into(),
        Command::Note { target, .. } => target.clone(),
    }
}

/// A command as JSON. Absent values are left out, except where they are values too: a patch of a VM
/// or of a pool names only what it changes, and `null` then lifts a setting.
fn plain(command: &Command) -> Value {
    let mut json = serde_json::to_value(command).unwrap_or_default();
    if !matches!(command, Command::SetVm(_) | Command::SetPool { .. }) {
        without_nulls(&mut json);
    }
    json
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(without_nulls);
            let empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
            fields.retain(|_, value| !value.is_null() && !empty(value));
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// The fields that differ, one sentence for each record that is in both catalogs.
fn changed(before: &Catalog, after: &Catalog) -> Vec<String> {
    let vm = |vm_id: &u32| format!("vm {vm_id}");
    let pool = |name: &String| format!("pool {name}");
    let number = |uuid: &String| match after.gpus.get(uuid) {
        Some(gpu) => format!("gpu {}", gpu.gpu_id),
        None => format!("gpu {uuid}"),
    };
    let mut all = both(&before.vms, &after.vms, &vm);
    all.extend(both(&before.pools, &after.pools, &pool));
    all.extend(both(&before.gpus, &after.gpus, &number));
    all.extend(both(&pools_of(before), &pools_of(after), &number));
    if before.host_weights != after.host_weights {
        let weights = differences(&before.host_weights, &after.host_weights);
        all.push(format!("host: {weights}"));
    }
    if all.len() > MOST {
        let more = all.len() - MOST;
        all.truncate(MOST);
        all.push(format!("and {more} more"));
    }
    all
}

/// The pools of each GPU.
fn pools_of(catalog: &Catalog) -> BTreeMap<String, Value> {
    let pools = |uuid: &String| {
        let of_gpu = catalog.assignments.keys().filter(|(gpu, _)| gpu == uuid);
        let pools: Vec<&str> = of_gpu.map(|(_, pool)| pool.as_str()).collect();
        json!({ "pools": pools })
    };
    let gpus = catalog.gpus.keys();
    gpus.map(|uuid| (uuid.clone(), pools(uuid))).collect()
}

fn both<K: Ord, V: PartialEq + Serialize>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
    name: &dyn Fn(&K) -> String,
) -> Vec<String> {
    let mut all = Vec::new();
    for (key, new) in after {
        let Some(old) = before.get(key).filter(|old| *old != new) else {
            continue;
        };
        let differences = differences(old, new);
        if !differences.is_empty() {
            all.push(format!("{}: {differences}", name(key)));
        }
    }
    all
}

fn differences(old: &impl Serialize, new: &impl Serialize) -> String {
    let (old, new) = (fields(old), fields(new));
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let absent = |name: &str| {
        let set = ["limits.", "settings."]
            .iter()
            .any(|outer| name.starts_with(outer));
        match set || name == "slice_us" {
            true => "default",
            false => "none",
        }
    };
    let shown = |all: &BTreeMap<String, String>, name: &String| {
        all.get(name)
            .cloned()
            .unwrap_or_else(|| absent(name).to_owned())
    };
    let parts = names.into_iter().filter_map(|name| {
        let (old, new) = (shown(&old, name), shown(&new, name));
        let name = name.trim_start_matches("limits.");
        let name = name.trim_start_matches("settings.");
        (old != new).then(|| format!("{name} {old} -> {new}"))
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// The values of a record under their names; those of an inner record under `outer.inner`. Times,
/// the number of the registration and facts about hardware are left out.
fn fields(record: &impl Serialize) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    if let Ok(Value::Object(fields)) = serde_json::to_value(record) {
        collect("", &fields, &mut all);
    }
    all
}

fn collect(outer: &str, fields: &Map<String, Value>, all: &mut BTreeMap<String, String>) {
    for (name, value) in fields {
        if name.ends_with("_unix_ms") || name == "generation" || name == "seen" {
            continue;
        }
        let text = match value {
            Value::Null => continue,
            Value::Object(inner) => {
                collect(&format!("{outer}{name}."), inner, all);
                continue;
            }
            other => word(other),
        };
        if !text.is_empty() {
            all.insert(format!("{outer}{name}"), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use vgpu_api::{GpuState, Limit, RegisterRequest};

    use super::*;
    use crate::model::{GpuRecord, VmRecord};

    #[test]
    fn the_old_values_stand_beside_the_new() {
        let mut before = Catalog::default();
        let vm = VmRecord {
            vm_id: 7,
            pool: "A".into(),
            ..VmRecord::default()
        };
        before.vms.insert(7, vm);
        let gpu = GpuRecord {
            gpu_id: 0,
            seen: crate::store::catalog::tests::gpu(0),
            state: GpuState::Ready,
            state_reason: None,
            first_seen_unix_ms: 1,
            last_seen_unix_ms: 2,
        };
        before.gpus.insert(gpu.seen.uuid.clone(), gpu.clone());
        let mut after = before.clone();
        let vm = after.vms.get_mut(&7).expect("the VM");
        vm.limits.calls_per_s = Limit::Value(1_000);
        vm.cid = Some(42);
        vm.registered_unix_ms = 9;
        let changed_gpu = after.gpus.get_mut(&gpu.seen.uuid).expect("the GPU");
        changed_gpu.state = GpuState::Draining;
        let drain = Command::DrainGpu { gpu: "0".into() };
        let detail = detail(&drain, &before, &after);
        assert!(
            detail.contains("vm 7: cid none -> 42, calls_per_s default -> 1000\""),
            "{detail}"
        );
        assert!(
            detail.contains("gpu 0: state ready -> draining"),
            "{detail}"
        );
    }

    #[test]
    fn absent_values_are_not_listed() {
        let request: RegisterRequest =
            serde_json::from_value(json!({"vm_ids": [1], "pool": "A"})).expect("a request");
        let command = Command::RegisterVm(request);
        let catalog = Catalog::default();
        let detail = detail(&command, &catalog, &catalog);
        assert!(!detail.contains("null"), "{detail}");
        assert!(detail.contains("\"pool\":\"A\""), "{detail}");
    }

    #[test]
    fn long_commands_are_cut() {
        let long = Command::DeletePool {
            name: "x".repeat(10_000),
        };
        let detail = refused_detail(&long);
        assert!(detail.len() < 100 && serde_json::from_str::<Value>(&detail).is_ok());
        assert!(refused_target(&long, "No.").chars().count() <= TARGET + 1);
    }
}
