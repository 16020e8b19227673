use std::collections::BTreeSet;
use std::path::Path;

use vgpu_api::{
    Limit, Patch, PoolPatch, PoolPolicy, PoolSettings, Setting, Unit, Value, VmLimits,
    VmLimitsPatch, Weights,
};

use super::*;
use crate::model::VmRecord;

const SAMPLE: &str = include_str!("../../../systemd/vgpud.toml");

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("/etc/vgpu/vgpud.toml"))
}

/// The sample with every disabled key (`#key = …`) switched on.
fn sample_with_every_key() -> String {
    let enable = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => rest.to_owned(),
        _ => line.to_owned(),
    };
    SAMPLE.lines().map(enable).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_committed_sample_is_the_defaults() {
    assert_eq!(parse(SAMPLE).unwrap(), Config::default());
    assert_eq!(parse("").unwrap(), Config::default());
}

#[test]
fn the_committed_sample_names_every_key_and_no_other() {
    let full = parse(&sample_with_every_key()).unwrap();
    let in_sample: BTreeSet<String> = keys::flatten(&full).unwrap().into_keys().collect();
    // Serialisation leaves out `None`, so the known keys are taken from the parser's error.
    for table in [
        "daemon",
        "admin",
        "listen",
        "driver",
        "worker",
        "limits",
        "defaults.pool",
        "defaults.vm",
        "log",
    ] {
        let error = parse(&format!("[{table}]\nno_such_key = 1\n"))
            .unwrap_err()
            .to_string();
        let known = error
            .split_once("expected")
            .unwrap_or_else(|| panic!("{error}"))
            .1;
        let mut names = known.split('`').skip(1).step_by(2).peekable();
        assert!(names.peek().is_some(), "{error}");
        for name in names {
            let key = format!("{table}.{name}");
            let there = in_sample
                .iter()
                .any(|k| *k == key || k.starts_with(&format!("{key}.")));
            assert!(there, "{key} is missing in systemd/vgpud.toml");
        }
    }
}

#[test]
fn an_unknown_key_is_refused_with_place_and_known_keys() {
    let error = parse("[daemon]\n\n# x\nstate_dirr = \"/x\"\n")
        .unwrap_err()
        .to_string();
    assert!(error.contains("/etc/vgpu/vgpud.toml:4"), "{error}");
    assert!(
        error.contains("state_dirr") && error.contains("runtime_dir"),
        "{error}"
    );
    let error = parse("[limts]\n").unwrap_err().to_string();
    assert!(
        error.contains("limts") && error.contains("limits"),
        "{error}"
    );
}

#[test]
fn all_problems_are_reported_together() {
    let text = "[daemon]\nstate_dir = \"here\"\ndrain_s = 999999\n[admin]\ntcp_listen = \
                \"0.0.0.0:80\"\n[log]\nlevel = \"vgpud=loud\"\n";
    let error = parse(text).unwrap_err().to_string();
    let expected = [
        "daemon.state_dir",
        "daemon.drain_s",
        "tcp_token_file",
        "TLS",
        "log.level",
    ];
    for part in expected {
        assert!(error.contains(part), "{part} not in: {error}");
    }
}

#[test]
fn the_defaults_are_refused_by_their_keys_and_all_together() {
    let refusal = |text: &str| parse(text).unwrap_err().to_string();
    let said = refusal("[defaults.pool]\nsoft_limit_ms = 20000\n");
    let order = "defaults.pool.soft_limit_ms = 20000 must not be longer than hard_limit_ms = 10000";
    assert!(
        said.ends_with(&format!(": {order} (the default)")),
        "{said}"
    );
    let said = refusal("[defaults.pool]\nsoft_limit_ms = 20000\nhard_limit_ms = 10000\n");
    assert!(said.ends_with(order), "{said}");
    let said = refusal(
        "[defaults.pool]\nslice_us = 5\nweight = 0\nweights = { low = 0, medium = 1, high = 1, critical = 1 }\nquarantine_s = 90000\n\
         [defaults.vm]\nsessions = 1000000\ncalls_per_s = \"unlimited\"\ncalls_burst = 5\n\
         soft_limit_ms = 2\nhard_limit_ms = 1\n",
    );
    for part in [
        "defaults.pool.slice_us = 5 is out of its range 100 to 1000000; ",
        "defaults.pool.weight = 0 is out",
        "defaults.pool.weights: The weight of class low",
        "quarantine_s = 90000 must not be longer than quarantine_max_s = 86400 (the default); ",
        "defaults.vm.sessions = 1000000 is out of its range 1 to 100000, or unlimited; ",
        "defaults.vm.calls_burst = 5 means nothing while calls_per_s = \"unlimited\"",
        "defaults.vm.soft_limit_ms = 2 must not be longer than hard_limit_ms = 1",
    ] {
        assert!(said.contains(part), "{part} not in: {said}");
    }
    assert!(!said.contains("--") && !said.contains(".;"), "{said}");
}

#[test]
fn sockets_of_vms_are_for_neither_administrators_nor_everybody() {
    let refusal = |lines: &str| parse(lines).err().map(|error| error.to_string());
    for key in ["read_group", "write_group"] {
        let lines = format!("[admin]\n{key} = \"x\"\n[listen]\nvm_socket_group = \"x\"\n");
        let error = refusal(&lines).unwrap();
        assert!(error.contains("vm_socket_group"), "{error}");
        assert!(error.contains(&format!("admin.{key}")), "{error}");
    }
    for mode in ["0606", "0666", "0661", "0777", "0460", "1660"] {
        let error = refusal(&format!("[listen]\nvm_socket_mode = \"{mode}\"\n")).unwrap();
        assert!(error.contains("vm_socket_mode"), "{mode}: {error}");
    }
    let good = "[listen]\nvm_socket_group = \"kvm\"\nvm_socket_mode = \"0660\"\n";
    assert_eq!(refusal(good), None);
}

#[test]
fn a_reload_takes_live_keys_and_names_the_others() {
    let old = Config::default();
    let fresh = parse(
        "[limits]\nhandshake_deadline_ms = 500\n[listen]\nvsock_port = 7\n[defaults.vm]\n\
         sessions = 3\n",
    )
    .unwrap();
    let (merged, report) = old.reload(&fresh).unwrap();
    assert_eq!(
        report.applied,
        ["defaults.vm.sessions", "limits.handshake_deadline_ms"]
    );
    assert_eq!(report.restart_needed, ["listen.vsock_port"]);
    assert_eq!(merged.limits.handshake_deadline_ms, 500);
    assert_eq!(merged.listen, old.listen);
    let limits = merged.defaults.limits_of(&VmRecord::default(), None);
    assert_eq!(limits.sessions, Limit::Value(3));
    let built_in = VmLimits::built_in();
    assert_eq!(limits.queue_calls, built_in.queue_calls, "the others stay");
    // A key that was removed from the file has its default again.
    let (back, report) = merged.reload(&old).unwrap();
    assert_eq!(back, old);
    assert_eq!(report.applied.len(), 2);
}

#[test]
fn every_live_key_exists() {
    let full = parse(&sample_with_every_key()).unwrap();
    let keys: Vec<String> = keys::flatten(&full).unwrap().into_keys().collect();
    assert!(keys.iter().any(|key| Config::is_live(key)));
    assert!(Config::is_live("defaults.vm.sessions") && !Config::is_live("limitsx"));
    assert!(!Config::is_live("daemon.state_dir"));
}

#[test]
fn a_word_that_is_no_level_is_refused_instead_of_silencing_the_log() {
    let level = |level: &str| parse(&format!("[log]\nlevel = {level:?}\n"));
    for wrong in ["warning", "loud", "", "info,", " info", "vgpud::gateway"] {
        let error = level(wrong).unwrap_err().to_string();
        assert!(error.contains("is not a level"), "{wrong:?}: {error}");
    }
    for right in ["off", "warn", "DEBUG", "info,vgpud::gateway=debug"] {
        assert!(level(right).is_ok(), "{right}");
    }
}

/// The comment above each key of `[worker]` in the sample configuration.
#[test]
fn the_sample_marks_live_keys() {
    let sample = include_str!("../../../systemd/vgpud.toml");
    let (_, worker) = sample.split_once("\n[worker]\n").unwrap();
    let (worker, _) = worker.split_once("\n[").unwrap();
    let (mut comment, mut keys) = (String::new(), 0);
    for line in worker.lines() {
        match line.strip_prefix("# ") {
            Some(text) => comment.push_str(text),
            None if line.is_empty() => comment.clear(),
            None => {
                let key = line.trim_start_matches('#').split(' ').next().unwrap();
                let live = Config::is_live(&format!("worker.{key}"));
                assert_eq!(comment.contains("[live"), live, "{key}: {comment}");
                comment.clear();
                keys += 1;
            }
        }
    }
    assert!(keys > 10, "{keys}");
}

#[test]
fn a_missing_file_that_was_named_is_an_error() {
    let error = Config::load(Path::new("/nonexistent/vgpud.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/nonexistent/vgpud.toml") && error.contains("--config"),
        "{error}"
    );
}

#[test]
fn the_reference_names_every_key() {
    let reference = include_str!("../../../docs/configuration.md");
    let full = parse(&sample_with_every_key()).unwrap();
    for path in keys::flatten(&full).unwrap().into_keys() {
        let table = ["defaults.pool.", "defaults.vm."]
            .iter()
            .find(|table| path.starts_with(**table));
        let (table, key) = match table {
            Some(table) => path.split_at(table.len()),
            None => path.split_at(path.find('.').unwrap() + 1),
        };
        // `weights` is one key with a table as value.
        let key = key.split('.').next().unwrap();
        let section = format!("\n## [{}]\n", table.trim_end_matches('.'));
        let start = reference
            .find(&section)
            .unwrap_or_else(|| panic!("no section {section:?}"));
        let text = &reference[start + section.len()..];
        let text = &text[..text.find("\n## ").unwrap_or(text.len())];
        assert!(
            text.contains(&format!("`{key}`")),
            "{path} is not in docs/configuration.md"
        );
    }
}

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
const SAMPLE_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd/vgpud.toml");

/// `text` with `lines` in place of the lines of a section: from the first line for which `first` is
/// true until the next empty line.
fn with_section(text: &str, section: &str, first: fn(&str) -> bool, lines: &str) -> String {
    let start = text.find(&format!("\n{section}\n")).expect("the section");
    let (head, rest) = text.split_at(start + section.len() + 2);
    let before: usize = rest
        .split_inclusive('\n')
        .take_while(|line| !first(line))
        .map(str::len)
        .sum();
    let end = rest[before..].find("\n\n").expect("an empty line");
    format!(
        "{head}{}{lines}{}",
        &rest[..before],
        &rest[before + end + 1..]
    )
}

/// The rows of a table of the reference.
fn reference(rows: &[(&'static Setting, Value)]) -> String {
    let mut text = "| key | range and default | meaning |\n|---|---|---|\n".to_owned();
    for (setting, default) in rows {
        let mut meaning = setting.about().to_owned();
        if setting.unit == Unit::Policy {
            for policy in PoolPolicy::ALL {
                meaning += &format!(" `{}`: {}", policy.name(), policy.about());
            }
        }
        let (name, bounds) = (setting.name, setting.plain_bounds(default));
        text += &format!("| `{name}` | {bounds} | {meaning} |\n");
    }
    text
}

/// Comment lines of at most 100 columns.
fn comment(text: &str) -> String {
    let mut lines = vec!["#".to_owned()];
    for word in text.split(' ') {
        if lines[lines.len() - 1].len() + 1 + word.len() > 100 {
            lines.push("#".to_owned());
        }
        let last = lines.len() - 1;
        lines[last] += &format!(" {word}");
    }
    lines.join("\n") + "\n"
}

/// The lines of a table of the sample: each key with its default, or with an example.
fn sample(rows: &[(&'static Setting, Value)]) -> String {
    let mut text = String::new();
    for (setting, default) in rows {
        text += &comment(&format!(
            "{} ({})",
            setting.about(),
            setting.plain_bounds(default)
        ));
        let value = match setting.unit {
            Unit::Policy => {
                for policy in PoolPolicy::ALL {
                    text += &comment(&format!("\"{}\": {}", policy.name(), policy.about()));
                }
                format!("\"{}\"", setting.plain(default))
            }
            Unit::Weights => {
                let weights = Weights::default().each();
                let each = weights.map(|(class, weight)| format!("{} = {weight}", class.name()));
                format!("{{ {} }}", each.join(", "))
            }
            _ => match setting.example {
                Some(example) => example.to_string(),
                None => setting.plain(default),
            },
        };
        text += &format!("#{} = {value}\n", setting.name);
    }
    text
}

/// After a change of the table of settings: `UPDATE_GOLDEN=1 cargo nextest run -p vgpud config`.
#[test]
fn the_tables_of_defaults_are_made_from_the_settings() {
    let tables = [
        ("[defaults.pool]", PoolPatch::rows()),
        ("[defaults.vm]", VmLimitsPatch::rows()),
    ];
    let mut page = std::fs::read_to_string(REFERENCE).unwrap();
    let mut file = std::fs::read_to_string(SAMPLE_FILE).unwrap();
    for (table, rows) in tables {
        let row = |line: &str| line.starts_with('|');
        page = with_section(&page, &format!("## {table}"), row, &reference(&rows));
        file = with_section(&file, table, |_| true, &sample(&rows));
    }
    vgpu_golden::assert_golden(REFERENCE, &page);
    vgpu_golden::assert_golden(SAMPLE_FILE, &file);
}

#[test]
fn no_line_of_the_sample_lifts_a_limit() {
    let full = parse(&sample_with_every_key()).unwrap();
    let values = full.defaults.vm.values();
    let values = values
        .into_iter()
        .chain(full.defaults.pool_settings().values());
    for (setting, value) in values {
        let lifted = [Limit::Unlimited, Limit::Default].map(Value::from);
        assert!(!lifted.contains(&value), "{} = {value:?}", setting.name);
    }
    let pool = PoolSettings {
        weights: None,
        ..full.defaults.pool_settings()
    };
    assert_eq!(pool, PoolSettings::default(), "every key has its default");
}

#[test]
fn the_command_line_wins_also_at_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vgpud.toml");
    std::fs::write(&file, "[daemon]\nstate_dir = \"/elsewhere\"\n").unwrap();
    let source = Source {
        file: Some(file.clone()),
        state_dir: Some("/from/the/command/line".into()),
        runtime_dir: None,
    };
    let config = source.load().unwrap();
    assert_eq!(
        config.database(),
        Path::new("/from/the/command/line/state.db")
    );
    std::fs::write(&file, "[limits]\nconnections_total = 9\n").unwrap();
    let (_, report) = config.reload(&source.load().unwrap()).unwrap();
    assert_eq!(report.applied, ["limits.connections_total"]);
    assert!(report.restart_needed.is_empty(), "{report:?}");
}

#[test]
fn limits_come_from_the_vm_then_the_file_then_the_built_in_ones() {
    let defaults = parse(
        "[defaults.pool]\nhard_limit_ms = 7000\n[defaults.vm]\nsessions = 8\nqueue_calls = 100\n\
         bytes_burst = 5\nsoft_limit_ms = 20\nmemory_bytes = \"unlimited\"\n",
    )
    .unwrap()
    .defaults;
    let mut vm = VmRecord::default();
    vm.limits.calls_per_s = Limit::Value(50);
    vm.limits.sessions = Limit::Unlimited;
    let pool = PoolSettings {
        hard_limit_ms: Limit::Unlimited,
        ..PoolSettings::default()
    };
    let limits = defaults.limits_of(&vm, Some(&pool));
    assert_eq!(limits.calls_per_s, Limit::Value(50));
    assert_eq!(limits.calls_burst, Limit::Value(50), "one second's worth");
    assert_eq!(limits.bytes_burst, Limit::Unlimited, "a burst of no bucket");
    assert_eq!(limits.sessions, Limit::Unlimited, "lifts the default");
    assert_eq!(limits.queue_calls, Limit::Value(100));
    assert_eq!(limits.queue_bytes, Limit::Value(16 << 20));
    assert_eq!(limits.memory_bytes, Limit::Unlimited);
    assert_eq!(limits.pinned_bytes, Limit::Value(4 << 30));
    assert_eq!(
        limits.soft_limit_ms,
        Limit::Value(20),
        "the file's, not the pool's"
    );
    assert_eq!(limits.hard_limit_ms, Limit::Unlimited);
    let effective = limits.values();
    assert!(
        effective
            .iter()
            .all(|(_, value)| *value != Limit::Default.into())
    );
    let fresh = defaults.limits_of(&vm, None);
    assert_eq!(fresh.hard_limit_ms, Limit::Value(7_000), "as in a new pool");
}

#[test]
fn a_limit_of_the_file_is_a_number_or_unlimited() {
    let read = |line: &str| parse(&format!("[defaults.vm]\n{line}\n"));
    let limits = |line| read(line).unwrap().defaults.vm;
    assert_eq!(
        limits("sessions = \"unlimited\"").sessions,
        Limit::Unlimited
    );
    for (line, parts) in [
        ("sessions = 0", ["vgpud.toml:2", "from 1 or \"unlimited\""]),
        ("sessions = \"none\"", ["none", "unlimited"]),
        ("sessions = -1", ["vgpud.toml:2", "whole number"]),
        (
            "calls_burst = \"unlimited\"",
            ["defaults.vm.calls_burst must be", "leave it out"],
        ),
        (
            "hard_limit_ms = 90000000",
            [
                "defaults.vm.hard_limit_ms = 90000000 is out",
                "1 to 86400000",
            ],
        ),
    ] {
        let error = read(line)
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            parts.iter().all(|part| error.contains(part)),
            "{line}: {error}"
        );
    }
}

#[test]
fn a_read_error_names_its_cause_once() {
    let missing = Config::load(Path::new("/none/vgpud.toml")).unwrap_err();
    let said = format!("{:#}", anyhow::Error::from(missing));
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
    assert!(said.contains("Create it"), "{said}");
    let install = include_str!("../../../systemd/install.sh");
    assert!(super::example().ends_with("share/doc/vgpu/vgpud.toml"));
    assert!(install.contains("\"$prefix/share/doc/vgpu/vgpud.toml\""));
}

#[test]
fn a_configuration_that_exists_is_not_to_be_created() {
    let dir = tempfile::tempdir().unwrap();
    let said = Config::load(dir.path()).unwrap_err().to_string();
    assert!(said.contains("Make it a text file"), "{said}");
}

#[test]
fn vgpuds_own_paths_are_known_as_configured_and_without_links() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    std::fs::create_dir(base.join("real")).unwrap();
    std::os::unix::fs::symlink("real", base.join("link")).unwrap();
    let mut config = Config::default();
    config.listen.hybrid_dirs = vec![base.join("link")];
    let own = config.own_paths(&crate::system::patience::Patience::default());
    for path in [
        base.join("link"),
        base.join("real"),
        config.daemon.state_dir.clone(),
        config.daemon.runtime_dir.clone(),
        config.admin_socket(),
        config.soft_state_dir(),
    ] {
        assert!(own.contains(&path), "{}: {own:?}", path.display());
    }
}
