//! The configuration as a flat list of dotted keys: which keys changed, and which take effect at
//! once.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_api::ReloadReport;

use super::Config;

/// Keys (or tables) whose new value takes effect at once. All others need a restart.
const LIVE: &[&str] = &[
    "daemon.drain_s",
    "admin.requests_per_s",
    "admin.requests_burst",
    "limits",
    "defaults",
    "guests",
    "log.level",
    "worker.start_deadline_ms",
    "worker.probe_deadline_ms",
    "worker.max_files",
    "worker.max_tasks",
    "worker.memory_bytes",
];

/// Whether a new value of `key` takes effect at once.
pub(super) fn is_live(key: &str) -> bool {
    LIVE.iter().any(|live| {
        key.strip_prefix(live)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Returns `old` with the live keys of `fresh`, and the keys that differ.
pub(super) fn merge(old: &Config, fresh: &Config) -> Result<(Config, ReloadReport), String> {
    let mut flat = flatten(old)?;
    let fresh = flatten(fresh)?;
    let mut report = ReloadReport::default();
    let keys: BTreeSet<String> = flat.keys().chain(fresh.keys()).cloned().collect();
    for key in keys {
        if flat.get(&key) == fresh.get(&key) {
            continue;
        }
        if !is_live(&key) {
            report.restart_needed.push(key);
            continue;
        }
        match fresh.get(&key) {
            Some(value) => flat.insert(key.clone(), value.clone()),
            None => flat.remove(&key),
        };
        report.applied.push(key);
    }
    Ok((unflatten(flat)?, report))
}

/// Returns every key that has a value, with the value.
pub(super) fn flatten(config: &Config) -> Result<BTreeMap<String, toml::Value>, String> {
    let table = toml::Table::try_from(config).map_err(|error| error.to_string())?;
    let mut flat = BTreeMap::new();
    walk(String::new(), toml::Value::Table(table), &mut flat);
    Ok(flat)
}

fn walk(prefix: String, value: toml::Value, flat: &mut BTreeMap<String, toml::Value>) {
    match value {
        // vgpud does not know the settings of soft-gpu: their table is one value.
        toml::Value::Table(table) if prefix != "driver.soft_env" => {
            for (key, value) in table {
                let path = if prefix.is_empty() {
                    key
                } else {
                    format!("{prefix}.{key}")
                };
                walk(path, value, flat);
            }
        }
        value => {
            flat.insert(prefix, value);
        }
    }
}

fn unflatten(flat: BTreeMap<String, toml::Value>) -> Result<Config, String> {
    let mut root = toml::Table::new();
    for (path, value) in flat {
        let mut table = &mut root;
        let mut parts = path.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                table.insert(part.to_owned(), value);
                break;
            }
            let inner = table
                .entry(part)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()));
            table = inner
                .as_table_mut()
                .ok_or_else(|| format!("{path} is not a table"))?;
        }
    }
    root.try_into()
        .map_err(|error: toml::de::Error| error.to_string())
}
