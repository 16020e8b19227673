//! Whole command lines.

use clap::{CommandFactory, Parser};
use serde_json::Value as Json;
use vgpu_api::{PoolPatch, PoolPolicy, Priority, Setting, Unit, VmLimitsPatch};

use super::{Cli, Command as Words, PoolCommand, VmCommand};
use crate::settings::{plain_option, rows};
use crate::times::Since;

#[test]
fn definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_owners_lines_parse() {
    for line in [
        "vgpu-admin scan-gpus",
        "vgpu-admin assign-gpu --gpu-id=0 --pool=A",
        "vgpu-admin register-vm --vm-id=1 --pool=A --priority=high",
        "vgpu-admin register-vm --vm-id=1-7 --pool=A --cid=100",
        "vgpu-admin status --watch -o wide",
        "vgpu-admin explain 3 -o json",
        "vgpu-admin sched log --file=/tmp/log",
        "vgpu-admin usage --vm=3 -o csv",
        "vgpu-admin usage reset --all",
        "vgpu-admin vm import libvirt web --pool=A --memory=8GiB --dry-run",
        "vgpu-admin vm import incus --all-projects -o csv",
        "vgpu-admin vm import proxmox 105 106 --adopt",
        "vgpu-admin vm detach proxmox:105",
        "vgpu-admin release 1-3",
        "vgpu-admin release --vm-id=1-3",
        "vgpu-admin quarantine 1 --reason=x",
        "vgpu-admin unregister-vm 1",
        "vgpu-admin move-vm 1 --pool=B",
        "vgpu-admin status web --pool=A --all",
    ] {
        Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

/// Every command with its words, without those that only group others.
fn every_command(command: &clap::Command, words: &str, found: &mut Vec<(String, clap::Command)>) {
    found.push((words.to_owned(), command.clone()));
    let inner = command.get_subcommands();
    for inner in inner.filter(|inner| inner.get_name() != "help") {
        every_command(inner, &format!("{words} {}", inner.get_name()), found);
    }
}

#[test]
fn every_help_has_examples_that_parse() {
    let mut commands = Vec::new();
    every_command(&Cli::command(), "vgpu-admin", &mut commands);
    assert!(commands.len() > 40, "{}", commands.len());
    for (words, command) in commands {
        let help = command.clone().render_long_help().to_string();
        let examples = help.split_once("Example").map_or("", |(_, after)| after);
        let lines = examples.lines().filter_map(|line| {
            let at = line.find("vgpu-admin ")?;
            let line = line[at..].split(" < ").next().unwrap_or_default();
            // Words after two spaces explain the example.
            line.split("  ").next().map(str::to_owned)
        });
        let lines: Vec<String> = lines.collect();
        assert!(!lines.is_empty(), "{words} has no example: {help}");
        for line in lines {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{words}: {line}: {}", parsed.unwrap_err());
            assert!(line.starts_with(&words), "{words}: {line}");
        }
    }
}

#[test]
fn lists_begin_at_a_time_or_after_a_number() {
    let since = |value: &str| match parsed(&format!("vgpu-admin audit --since={value}")) {
        Ok(Words::Audit { period, .. }) => Ok(period.since),
        Ok(other) => panic!("{other:?}"),
        Err(said) => Err(said),
    };
    assert_eq!(since("17"), Ok(Some(Since::Number(17))));
    let at = Since::Time(1_763_631_085_000);
    assert_eq!(since("2025-11-20T09:31:25Z"), Ok(Some(at)));
    assert!(matches!(since("10min"), Ok(Some(Since::Time(_)))));
    assert!(since("-1").unwrap_err().contains("is not a time"));
    assert!(
        parsed("vgpu-admin events --until=17")
            .unwrap_err()
            .contains("is not a time")
    );
    assert!(parsed("vgpu-admin events --severity=loud").is_err());
    assert!(parsed("vgpu-admin session list --vm=web --since=1d").is_ok());
}

#[test]
fn a_timeout_is_that_of_a_wait() {
    for wrong in [
        "--timeout=5s",
        "--wait --dry-run",
        "--wait --timeout=0s",
        "--wait --timeout=5",
    ] {
        let words = wrong.split(' ');
        let line = ["vgpu-admin", "drain"].into_iter().chain(words);
        assert!(Cli::try_parse_from(line).is_err(), "{wrong}");
    }
    assert!(parsed("vgpu-admin gpu drain --gpu-id=0 --wait --timeout=5s").is_ok());
}

fn parsed(line: &str) -> Result<Words, String> {
    let cli = clap::Parser::try_parse_from(line.split(' '));
    cli.map(|cli: Cli| cli.command).map_err(|e| e.to_string())
}

fn pool(options: &str) -> Result<PoolPatch, String> {
    match parsed(&format!("vgpu-admin pool set A{options}"))? {
        Words::Pool(PoolCommand::Set { settings, .. }) => Ok(settings.patch),
        other => panic!("{other:?}"),
    }
}

fn vm(options: &str) -> Result<VmLimitsPatch, String> {
    match parsed(&format!("vgpu-admin vm set 4{options}"))? {
        Words::Vm(VmCommand::Set { limits, .. }) => Ok(limits.patch),
        other => panic!("{other:?}"),
    }
}

/// A value that is not the default, as text, with its JSON.
fn sample(setting: &Setting) -> (String, Json) {
    match setting.unit {
        Unit::Policy => ("sjf".into(), "sjf".into()),
        unit => (
            unit.text(*setting.range.end()),
            (*setting.range.end()).into(),
        ),
    }
}

#[test]
fn every_setting_has_an_option_that_sets_this_setting_only() {
    let patch = |json: Json| serde_json::from_value::<PoolPatch>(json).unwrap();
    for (setting, _) in rows::<PoolPatch>() {
        let (text, json) = sample(setting);
        let set = pool(&format!(" --{}={text}", setting.option)).unwrap();
        assert_eq!(
            set,
            patch(serde_json::json!({ setting.name: json })),
            "{text}"
        );
    }
    let patch = |json: Json| serde_json::from_value::<VmLimitsPatch>(json).unwrap();
    for (setting, _) in rows::<VmLimitsPatch>() {
        let (text, json) = sample(setting);
        let words = [(text.as_str(), json.clone()), ("default", Json::Null)];
        for (text, json) in words {
            let set = vm(&format!(" --{}={text}", setting.option)).unwrap();
            assert_eq!(
                set,
                patch(serde_json::json!({ setting.name: json })),
                "{text}"
            );
        }
        // The name of the API is accepted too, with a plain number.
        let plain = vm(&format!(" --{}={json}", plain_option(setting))).unwrap();
        assert_eq!(plain, patch(serde_json::json!({ setting.name: json })));
    }
}

#[test]
fn only_what_can_be_unlimited_takes_the_word() {
    for (setting, _) in rows::<PoolPatch>() {
        let set = pool(&format!(" --{}=unlimited", setting.option));
        assert_eq!(set.is_ok(), setting.unlimited, "{set:?}");
        let line = format!("vgpu-admin pool set A --{}=default", setting.option);
        match parsed(&line) {
            Ok(Words::Pool(PoolCommand::Set { settings, .. })) => {
                let expected = serde_json::json!({ setting.name: null });
                assert_eq!(settings.json().unwrap(), expected, "{line}");
            }
            other => panic!("{line}: {other:?}"),
        }
    }
    for (setting, _) in rows::<VmLimitsPatch>() {
        let set = vm(&format!(" --{}=unlimited", setting.option));
        assert_eq!(set.is_ok(), setting.unlimited, "{set:?}");
    }
    assert!(vm(" --calls-burst=unlimited").is_err());
    assert_eq!(vm(" --sessions=none"), vm(" --sessions=unlimited"));
}

#[test]
fn a_number_without_its_unit_is_refused_with_the_way_out() {
    let said = pool(" --slice=5").unwrap_err();
    assert!(
        said.contains("has no unit") && said.contains("2ms"),
        "{said}"
    );
    let said = vm(" --memory=8").unwrap_err();
    assert!(
        said.contains("8GiB") && said.contains("`unlimited`"),
        "{said}"
    );
    assert_eq!(vm(" --hard-limit-ms=2000"), vm(" --hard-limit=2s"));
    assert_eq!(vm(" --gpu-ms-per-s=50"), vm(" --gpu-ms-per-s=50ms"));
    assert!(vm(" --hard-limit-ms=2000 --hard-limit=2s").is_err());
    let said = pool(" --weight=5000000000").unwrap_err();
    assert!(said.contains("5000000000"), "{said}");
}

#[test]
fn no_limit_is_a_word_and_not_a_zero() {
    for zero in [
        "--memory=0GiB",
        "--memory=0",
        "--hard-limit=0ms",
        "--hard-limit-ms=0",
        "--sessions=0",
    ] {
        let said = vm(&format!(" {zero}")).unwrap_err();
        assert!(said.contains("is not a limit; write `unlimited`"), "{said}");
    }
    let said = pool(" --strikes=0").unwrap_err();
    assert!(
        said.contains("`0` is not a limit; write `unlimited`"),
        "{said}"
    );
    assert!(pool(" --min-run=0ms").is_ok(), "a number and no limit");
    let said = vm(" --calls-burst=0").unwrap_err();
    assert!(
        said.contains("`0` is not a limit; leave --calls-burst out"),
        "{said}"
    );
    let said = pool(" --quarantine=1500ms").unwrap_err();
    let expected = "whole number of seconds; write for instance 2s, or `unlimited`";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_word_in_place_of_a_number_is_refused_in_words() {
    for line in [
        "register-vm --vm-id=1 --pool=A --cid=x",
        "register-vm --vm-id=1 --pool=A --peer-uid=x",
        "register-vm --vm-id=1 --pool=A --factor=x",
        "vm set 1 --factor=1.5",
        "events --limit=0",
        "vm set 1 --cid=0",
        "register-vm --vm-id=1 --pool=A --cid=0",
        "session kill x",
        "weights set --low=-1",
        "status --interval=x",
        "vm import proxmox 1 --vm-id=x",
        "vm import proxmox x --pool=A",
    ] {
        let said = parsed(&format!("vgpu-admin {line}")).unwrap_err();
        assert!(
            said.contains("is not a whole number from"),
            "{line}: {said}"
        );
    }
}

#[test]
fn a_factor_is_a_number_of_percent_with_or_without_the_sign() {
    for (text, percent) in [("200", 200), ("200%", 200), ("50 %", 50)] {
        assert_eq!(crate::settings::factor(text), Ok(percent), "{text}");
    }
    for text in ["2.0", "1.5%", "%", "", "-1", "x"] {
        let said = crate::settings::factor(text).unwrap_err();
        assert!(
            said.contains("is not a whole number from 1 to 10000, in percent"),
            "{said}"
        );
        assert!(said.contains("200%"), "{said}");
    }
}

/// The commands that name VMs, up to where the VM stands.
const NAME_VMS: [&str; 16] = [
    "vm show",
    "vm set --cid=7",
    "vm detach",
    "explain",
    "quarantine",
    "release",
    "unregister-vm",
    "move-vm --pool=B",
    "session list",
    "usage",
    "usage reset",
    "status",
    "events",
    "audit",
    "events --follow",
    "audit --since=1h",
];

#[test]
fn every_command_takes_a_vm_as_an_argument_or_an_option_by_number_or_name() {
    for command in NAME_VMS {
        for vm in ["3", "web-1", "--vm-id=3", "--vm-id=web-1", "--vm=web-1"] {
            let line = format!("vgpu-admin {command} {vm}");
            if let Err(said) = parsed(&line) {
                panic!("{line}: {said}");
            }
        }
        let twice = format!("vgpu-admin {command} 1 --vm-id=2");
        assert!(parsed(&twice).is_err(), "{twice}");
        let several = parsed(&format!("vgpu-admin {command} 1-3,web"));
        let single = command.starts_with("events") || command.starts_with("audit");
        assert_eq!(several.is_err(), single, "{command}: {several:?}");
    }
    let ids = |words: &str| match parsed(&format!("vgpu-admin {words}")) {
        Ok(Words::Release { vms }) => Ok(crate::vm_ids::Vms::from(vms).ids),
        Ok(Words::RegisterVm(args)) => Ok(crate::vm_ids::Vms::from(args.vms).ids),
        Ok(other) => panic!("{other:?}"),
        Err(said) => Err(said),
    };
    assert_eq!(ids("release 1-3"), Ok(vec![1, 2, 3]));
    assert_eq!(ids("release --vm-id=1-3"), Ok(vec![1, 2, 3]));
    assert!(ids("release").is_err());
    assert_eq!(ids("register-vm 1-3 --pool=A"), Ok(vec![1, 2, 3]));
    let said = ids("register-vm web --pool=A").unwrap_err();
    assert!(said.contains("`web` is not a VM number"), "{said}");
    assert!(ids("register-vm --pool=A").is_err());
}

#[test]
fn usage_lines_and_errors_name_the_argument_only() {
    let mut commands = Vec::new();
    every_command(&Cli::command(), "vgpu-admin", &mut commands);
    for (words, mut command) in commands {
        let usage = command.render_usage().to_string();
        assert!(!usage.contains("--gpu-id"), "{words}: {usage}");
        let new = words.ends_with("register-vm") && !words.ends_with("unregister-vm");
        assert_eq!(usage.contains("--vm-id"), new, "{words}: {usage}");
    }
    for (line, named) in [
        ("explain", "<VM>"),
        ("vm set --cid=7", "<VM>"),
        ("usage reset", "<VM>"),
        ("gpu check", "<GPU>"),
        ("assign-gpu --pool=A", "<GPU>"),
    ] {
        let said = parsed(&format!("vgpu-admin {line}")).unwrap_err();
        assert!(said.contains(named), "{line}: {said}");
        assert!(!said.contains("-id"), "{line}: {said}");
    }
    let said = parsed("vgpu-admin register-vm --pool=A").unwrap_err();
    assert!(!said.contains("|VM"), "{said}");
}

#[test]
fn every_command_takes_a_gpu_as_an_argument_or_an_option() {
    for command in [
        "assign-gpu --pool=A",
        "unassign-gpu",
        "gpu check",
        "gpu drain",
        "gpu forget",
        "gpu resume",
    ] {
        for gpu in ["0", "GPU-x", "--gpu-id=0", "--gpu-id 0"] {
            let line = format!("vgpu-admin {command} {gpu}");
            if let Err(said) = parsed(&line) {
                panic!("{line}: {said}");
            }
        }
        for wrong in ["", " 0 --gpu-id=1", " --gpu-id="] {
            let line = format!("vgpu-admin {command}{wrong}");
            assert!(parsed(&line).is_err(), "{line}");
        }
    }
}

#[test]
fn a_negative_number_is_a_wrong_vm_and_no_option() {
    for command in NAME_VMS.iter().filter(|command| **command != "vm detach") {
        let said = parsed(&format!("vgpu-admin {command} -3")).unwrap_err();
        assert!(said.contains("`-3` is not a VM number or name"), "{said}");
        assert!(!said.contains("tip:"), "{said}");
    }
}

#[test]
fn a_refused_cid_names_the_range_of_vms() {
    for line in ["vm set 1 --cid=0", "register-vm --vm-id=1 --pool=A --cid=0"] {
        let said = parsed(&format!("vgpu-admin {line}")).unwrap_err();
        let range = "from 3 to 4294967294, or 1 or 2 for programs of this host";
        assert!(said.contains(range), "{said}");
    }
    for local in [1, 2] {
        let line = format!("vgpu-admin vm set 1 --cid={local}");
        assert!(parsed(&line).is_ok(), "with allow_local_cid");
    }
}

#[test]
fn the_uid_of_a_registered_vm_is_refused_with_the_way_out() {
    for option in ["--peer-uid=5", "--peer-uid 5", "--peer-uid"] {
        let said = parsed(&format!("vgpu-admin vm set 1 {option}")).unwrap_err();
        assert!(said.contains("a registration keeps its uid"), "{said}");
    }
}

#[test]
fn a_class_has_a_name_and_a_number() {
    for (number, class) in Priority::ALL.iter().enumerate() {
        for word in [number.to_string(), class.name().to_owned()] {
            let line = format!("vgpu-admin register-vm --vm-id=1 --pool=A --priority={word}");
            match parsed(&line) {
                Ok(Words::RegisterVm(args)) => assert_eq!(args.priority, *class, "{line}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }
    assert_eq!(Priority::ALL[2], Priority::High);
    assert!(parsed("vgpu-admin vm set 1 --priority=4").is_err());
    assert!(parsed("vgpu-admin vm set 1 --priority=-1").is_err());
}

#[test]
fn help_has_ranges_defaults_and_the_policies() {
    let mut cli = Cli::command();
    let set = cli
        .find_subcommand_mut("pool")
        .and_then(|pool| pool.find_subcommand_mut("set"))
        .unwrap();
    let help = set.render_long_help().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for policy in PoolPolicy::ALL {
        assert!(
            help.contains(&format!("{}: {}", policy.name(), policy.about())),
            "{help}"
        );
    }
    assert!(help.contains("[100us to 1s; default: 2ms]"), "{help}");
    assert!(!help.contains("--slice-us"), "the plain option is hidden");
}

#[test]
fn an_import_takes_the_numbers_that_vgpud_allows() {
    let import = |vm_id: u32| {
        let line = format!("vgpu-admin vm import proxmox 1 --vm-id={vm_id}");
        Cli::try_parse_from(line.split(' ')).map_err(|e| e.to_string())
    };
    assert!(import(1).is_ok() && import(vgpu_api::MAX_VM_ID).is_ok());
    for bad in [0, vgpu_api::MAX_VM_ID + 1] {
        let why = import(bad).unwrap_err();
        assert!(why.contains("from 1 to 1000000"), "{why}");
    }
}
