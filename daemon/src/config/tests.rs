use std::collections::BTreeSet;
use std::path::Path;

use vgpu_api::PoolSettings;

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
    let error = parse("[daemon]\ndrain_s = \"long\"\n")
        .unwrap_err()
        .to_string();
    assert!(error.contains(":2") && error.contains("drain_s") || error.contains("invalid type"));
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
    assert_eq!(limits.sessions, Some(3));
    assert_eq!(limits.queue_calls, Some(8_192), "the other defaults stay");
    // The other way round: a key that was removed from the file has its default again.
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
fn limits_come_from_the_vm_then_the_file_then_the_built_in_ones_and_zero_is_none() {
    let defaults = parse(
        "[defaults.pool]\nhard_limit_ms = 7000\n[defaults.vm]\nsessions = 8\nqueue_calls = 100\n\
         bytes_burst = 5\nsoft_limit_ms = 20\n",
    )
    .unwrap()
    .defaults;
    let mut vm = VmRecord::default();
    vm.limits.calls_per_s = Some(50);
    vm.limits.sessions = Some(0);
    let pool = PoolSettings {
        hard_limit_ms: 0,
        ..PoolSettings::default()
    };
    let limits = defaults.limits_of(&vm, Some(&pool));
    assert_eq!(limits.calls_per_s, Some(50));
    assert_eq!(limits.calls_burst, Some(50), "one second's worth");
    assert_eq!(limits.bytes_burst, None, "a burst of no bucket");
    assert_eq!(limits.sessions, None, "0 lifts the default");
    assert_eq!(limits.queue_calls, Some(100));
    assert_eq!(limits.queue_bytes, Some(16 << 20));
    assert_eq!(limits.pinned_bytes, Some(4 << 30));
    assert_eq!(limits.soft_limit_ms, Some(20), "the file's, not the pool's");
    assert_eq!(limits.hard_limit_ms, None);
    assert_eq!(limits.to_api().sessions, Some(0));
    let fresh = defaults.limits_of(&vm, None);
    assert_eq!(fresh.hard_limit_ms, Some(7_000), "as in a new pool");
}

#[test]
fn a_read_error_names_its_cause_once() {
    let missing = Config::load(Path::new("/none/vgpud.toml")).unwrap_err();
    let said = format!("{:#}", anyhow::Error::from(missing));
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
    let example = "/usr/share/doc/vgpu/vgpud.toml";
    let install = include_str!("../../../systemd/install.sh");
    assert!(said.contains(example), "{said}");
    assert!(install.contains("\"$prefix/share/doc/vgpu/vgpud.toml\""));
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
