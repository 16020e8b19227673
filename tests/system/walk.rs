//! Every command with wrong input: exit code and message. Nothing of it changes anything.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use vgpu_tests::guest::describe;
use vgpu_tests::host::{Options, one_vm};

/// Words after `vgpu-admin` (separated by spaces; `·`: a space within a word; `{dir}`: the host's
/// directory), exit code, part of the message.
type Case = (&'static str, i32, &'static str);

const HOST: &[Case] = &[
    ("frobnicate", 2, "unrecognized subcommand"),
    ("--frobnicate", 2, "unexpected argument"),
    (
        "--socket=/nonexistent status",
        5,
        "Cannot reach vgpud at /nonexistent",
    ),
    ("--socket status", 2, "Usage:"),
    (
        "--socket=/a123456789/b123456789/c123456789/d123456789/e123456789/f123456789/g123456789/\
         h123456789/i123456789/j123456789 status",
        2,
        "the path of a socket has at most 107",
    ),
    (
        "status -o xml",
        2,
        "possible values: table, wide, json, csv",
    ),
    (
        "status --interval=0",
        2,
        "`0` is not a whole number from 1 to 3600",
    ),
    ("status --interval=3601", 2, "from 1 to 3600"),
    (
        "status --interval=often",
        2,
        "`often` is not a whole number",
    ),
    ("status extra", 3, "No VM has the name `extra`"),
    ("status 99", 3, "VM 99 is not registered"),
    ("status --pool=Z", 3, "There is no pool \"Z\""),
    ("scan-gpus --cache", 2, "unexpected argument"),
    ("doctor extra", 2, "unexpected argument"),
    ("doctor --config", 2, "a value is required"),
    ("reload now", 2, "unexpected argument"),
    ("backup", 2, "<FILE>"),
    (
        "backup /nonexistent/dir/file",
        1,
        "cannot write /nonexistent/dir/file",
    ),
    ("backup {dir}/vgpud.toml", 1, "vgpud.toml"),
    ("restore", 2, "<FILE>"),
    ("restore /nonexistent", 1, "cannot read /nonexistent"),
    ("restore /", 1, "not a file with a backup"),
    ("restore {dir}/vgpud.toml", 2, "cannot be restored"),
    (
        "restore {dir}/vgpud.toml --dry-run",
        2,
        "cannot be restored",
    ),
    ("cloudstack discover --shares=/", 1, "/"),
    ("cloudstack discover extra", 2, "unexpected argument"),
    ("cloudstack transform extra", 2, "unexpected argument"),
    ("cloudstack", 2, "Usage:"),
];

const GPUS: &[Case] = &[
    ("assign-gpu --pool=A", 2, "<GPU>"),
    ("assign-gpu --gpu-id=0", 2, "--pool"),
    (
        "assign-gpu --gpu-id=9 --pool=A",
        3,
        "There is no GPU \"9\". Known GPUs: 0",
    ),
    (
        "assign-gpu --gpu-id=-1 --pool=A",
        3,
        "There is no GPU \"-1\"",
    ),
    ("assign-gpu --gpu-id= --pool=A", 2, "a value is required"),
    (
        "assign-gpu --gpu-id=GPU-x --pool=A",
        3,
        "There is no GPU \"GPU-x\"",
    ),
    (
        "assign-gpu --gpu-id=0\n --pool=A",
        3,
        "There is no GPU \"0\\n\"",
    ),
    (
        "assign-gpu --gpu-id=1 --pool=Z --existing-pool",
        3,
        "There is no pool \"Z\"",
    ),
    (
        "assign-gpu --gpu-id=1 --pool=a/b",
        2,
        "\"a/b\" is not allowed",
    ),
    (
        "assign-gpu --gpu-id=1 --pool=a\u{1b}[2J",
        2,
        "\"a\\u{1b}[2J\" is not allowed",
    ),
    ("assign-gpu --gpu-id=1 --pool=", 2, "\"\" is not allowed"),
    ("assign-gpu --gpu-id=0 --pool=B", 6, "GPU 0 serves pool A."),
    ("unassign-gpu", 2, "<GPU>"),
    ("unassign-gpu --gpu-id=9", 3, "There is no GPU \"9\""),
    (
        "unassign-gpu --gpu-id=9 --dry-run",
        3,
        "There is no GPU \"9\"",
    ),
    (
        "unassign-gpu --gpu-id=0 --pool=Z",
        3,
        "There is no pool \"Z\"",
    ),
    ("drain now", 2, "unexpected argument"),
    ("drain --timeout=5s", 2, "--wait"),
    ("drain --wait --timeout=5", 2, "`5` has no unit"),
    ("drain --wait --timeout=0s", 2, "leave --wait out"),
    ("drain --wait --timeout=soon", 2, "`soon` is not a duration"),
    ("drain --wait --dry-run", 2, "cannot be used with"),
    ("resume 0", 2, "unexpected argument"),
    ("gpu", 2, "Usage:"),
    ("gpu check", 2, "<GPU>"),
    ("gpu check --gpu-id=9", 3, "There is no GPU \"9\""),
    ("gpu drain --gpu-id=9", 3, "There is no GPU \"9\""),
    ("gpu drain --gpu-id=9 --dry-run", 3, "There is no GPU \"9\""),
    ("gpu drain --gpu-id=0 --timeout=1s", 2, "--wait"),
    (
        "gpu drain --gpu-id=0 --wait --timeout=-1s",
        2,
        "is not a duration",
    ),
    ("gpu forget --gpu-id=9", 3, "There is no GPU \"9\""),
    ("gpu forget --gpu-id=0", 6, "GPU 0 is present"),
    ("gpu forget --gpu-id=0 --dry-run", 6, "GPU 0 is present"),
    ("gpu resume", 2, "<GPU>"),
    ("gpu resume --gpu-id=9", 3, "There is no GPU \"9\""),
];

const POOLS: &[Case] = &[
    ("pool", 2, "Usage:"),
    ("pool create", 2, "<NAME>"),
    ("pool create a/b", 2, "\"a/b\" is not allowed"),
    ("pool create a·b", 2, "\"a b\" is not allowed"),
    ("pool create a\nb", 2, "\"a\\nb\" is not allowed"),
    ("pool create .", 2, "\".\" is not allowed"),
    (
        "pool create xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        2,
        "1 to 64",
    ),
    ("pool create A --policy=strict", 6, "with other settings"),
    ("pool create C --slice=5", 2, "`5` has no unit"),
    (
        "pool create C --slice=1us",
        2,
        "--slice must be between 100us and 1s",
    ),
    ("pool create C --slice=2h", 2, "--slice must be between"),
    ("pool create C --policy=lottery", 2, "possible values"),
    ("pool create C --weight=0", 2, "--weight must be between"),
    (
        "pool create C --weight=1GiB",
        2,
        "`1GiB` is not a whole number",
    ),
    ("pool create C --weight=-1", 2, "`-1` is not a whole number"),
    (
        "pool create C --quarantine=1500ms",
        2,
        "whole number of seconds",
    ),
    ("pool list extra", 2, "unexpected argument"),
    ("pool show", 2, "<NAME>"),
    ("pool show Z", 3, "There is no pool \"Z\""),
    ("pool show ../vms", 3, "There is no pool \"../vms\""),
    ("pool set A", 2, "Name a setting"),
    ("pool set Z --slice=2ms", 3, "There is no pool \"Z\""),
    ("pool set Z --slice=default", 3, "There is no pool \"Z\""),
    ("pool set A --slice=", 2, "`` is not a duration"),
    ("pool set A --slice=-2ms", 2, "`-2ms` is not a duration"),
    ("pool set A --slice=2GiB", 2, "`2GiB` is not a duration"),
    (
        "pool set A --slice=2ms --slice-us=2000",
        2,
        "cannot be used with",
    ),
    ("pool set A --window=1s", 2, "--window must be between"),
    ("pool set A --aging=unlimitedd", 2, "or `unlimited`"),
    (
        "pool set A --soft-limit=5s --hard-limit=1s",
        2,
        "--soft-limit",
    ),
    ("pool delete", 2, "<NAME>"),
    ("pool delete Z", 3, "There is no pool \"Z\""),
    ("pool delete A", 6, "Pool A still has 2 VMs"),
    ("pool delete A --dry-run", 6, "Pool A still has 2 VMs"),
    ("weights", 2, "Usage:"),
    ("weights get host", 2, "unexpected argument"),
    ("weights set", 2, "Name a weight"),
    ("weights set --low=0", 2, "low"),
    ("weights set --low=10001", 2, "low"),
    (
        "weights set --low=heavy",
        2,
        "`heavy` is not a whole number",
    ),
    ("weights set --reset --low=1", 2, "cannot be used with"),
    ("weights set --pool=Z --low=1", 3, "There is no pool \"Z\""),
];

const REGISTRATION: &[Case] = &[
    ("register-vm --pool=A", 2, "--vm-id"),
    ("register-vm --vm-id=3", 2, "--pool"),
    ("register-vm --vm-id= --pool=A", 2, "`` is not a VM number"),
    (
        "register-vm --vm-id=0 --pool=A",
        2,
        "`0` is not a VM number",
    ),
    (
        "register-vm --vm-id=-3 --pool=A",
        2,
        "`-3` is not a VM number",
    ),
    (
        "register-vm --vm-id=1000001 --pool=A",
        2,
        "from 1 to 1000000",
    ),
    (
        "register-vm --vm-id=7-3 --pool=A",
        2,
        "runs backwards; write 3-7",
    ),
    (
        "register-vm --vm-id=1-70000 --pool=A",
        2,
        "more than 4096 VMs",
    ),
    (
        "register-vm --vm-id=3 --pool=Z",
        3,
        "There is no pool \"Z\"",
    ),
    (
        "register-vm --vm-id=1 --pool=A --priority=low",
        6,
        "registered already",
    ),
    (
        "register-vm --vm-id=3 --pool=A --priority=urgent",
        2,
        "low, medium, high, critical",
    ),
    (
        "register-vm --vm-id=3 --pool=A --cid=0",
        2,
        "from 3 to 4294967294, or 1 or 2 for programs of this host",
    ),
    (
        "register-vm --vm-id=3 --pool=A --cid=4294967295",
        2,
        "from 3 to 4294967294",
    ),
    (
        "register-vm --vm-id=3 --pool=A --cid=x",
        2,
        "`x` is not a whole number",
    ),
    (
        "register-vm --vm-id=3 --pool=A --cid=50",
        6,
        "CID 50 belongs to VM 2 (web)",
    ),
    (
        "register-vm --vm-id=3 --pool=A --name=web",
        6,
        "\"web\" belongs to VM 2",
    ),
    (
        "register-vm --vm-id=3 --pool=A --name=a\tb",
        2,
        "\"a\\tb\" is not allowed",
    ),
    (
        "register-vm --vm-id=3 --pool=A --name=",
        2,
        "\"\" is not allowed",
    ),
    (
        "register-vm --vm-id=3 --pool=A --memory=8",
        2,
        "`8` has no unit; write for instance 8GiB",
    ),
    (
        "register-vm --vm-id=3 --pool=A --memory=8XB",
        2,
        "`8XB` is not a size",
    ),
    (
        "register-vm --vm-id=3 --pool=A --memory=-1GiB",
        2,
        "is not a size",
    ),
    (
        "register-vm --vm-id=3 --pool=A --memory=0GiB",
        2,
        "is not a limit; write `unlimited`",
    ),
    (
        "register-vm --vm-id=3 --pool=A --memory=2000000TiB",
        2,
        "--memory must be between",
    ),
    (
        "register-vm --vm-id=3 --pool=A --memory=99999999999TiB",
        2,
        "is not a size",
    ),
    (
        "register-vm --vm-id=3 --pool=A --sessions=1.5",
        2,
        "`1.5` is not a whole number",
    ),
    (
        "register-vm --vm-id=3 --pool=A --calls-burst=10",
        2,
        "--calls-burst",
    ),
    (
        "register-vm --vm-id=3 --pool=A --gpus=9",
        3,
        "There is no GPU \"9\"",
    ),
    (
        "register-vm --vm-id=3 --pool=A --gpus=",
        3,
        "There is no GPU \"\"",
    ),
    (
        "register-vm --vm-id=3 --pool=A --unix-socket=here",
        2,
        "absolute path",
    ),
    (
        "register-vm --vm-id=3-4 --pool=A --unix-socket=/s/s",
        2,
        "{vm_id}",
    ),
    (
        "register-vm --vm-id=3 --pool=A --unix-socket={dir}/run/x",
        2,
        "is vgpud's own",
    ),
    (
        "register-vm --vm-id=3 --pool=A --peer-uid=-1",
        2,
        "is not a whole number",
    ),
    (
        "register-vm --vm-id=3 --pool=A --factor=0",
        2,
        "--factor must be between 1 and 10000",
    ),
    (
        "register-vm --vm-id=3 --pool=A --slice=2s",
        2,
        "--slice must be between",
    ),
    ("vm import", 2, "Usage:"),
    ("vm import libvirt web --xml=-", 2, "cannot be used with"),
    ("vm import libvirt --xml=/nonexistent", 1, "/nonexistent"),
    (
        "vm import libvirt --xml={dir}/vgpud.toml --pool=A",
        2,
        "XML",
    ),
    (
        "vm import incus --project=a --all-projects",
        2,
        "cannot be used with",
    ),
    ("vm import incus --json=/nonexistent", 1, "/nonexistent"),
    (
        "vm import incus --json={dir}/vgpud.toml --pool=A",
        2,
        "not a list of `incus list",
    ),
    (
        "vm import proxmox x",
        2,
        "`x` is not a whole number from 1 to 999999999",
    ),
    ("vm import proxmox 1 --vm-id=0", 2, "from 1 to 1000000"),
    (
        "vm import proxmox --dir=/nonexistent --pool=A",
        1,
        "/nonexistent",
    ),
    ("vm detach", 2, "Usage:"),
    ("vm detach nobody", 3, "No VM has the number or name nobody"),
    ("vm detach 99", 3, "No VM has the number or name 99"),
    (
        "vm detach proxmox:999",
        3,
        "No VM has the origin proxmox:999",
    ),
    (
        "vm detach proxmox:999 --dry-run",
        3,
        "No VM has the origin proxmox:999",
    ),
    ("vm detach --xml=/nonexistent", 1, "/nonexistent"),
];

const VMS: &[Case] = &[
    ("unregister-vm", 2, "Usage:"),
    (
        "unregister-vm 99",
        3,
        "VM 99 is not registered. Registered VMs: 1-2",
    ),
    ("unregister-vm 1,99 --dry-run", 3, "VM 99 is not registered"),
    ("unregister-vm 1 --vm-id=1", 2, "cannot be used with"),
    ("unregister-vm 1;2", 2, "`1;2` is not a VM number"),
    ("move-vm 1", 2, "--pool"),
    ("move-vm 1 --pool=Z", 3, "There is no pool \"Z\""),
    ("move-vm 99 --pool=A", 3, "VM 99 is not registered"),
    (
        "move-vm 99 --pool=A --dry-run",
        3,
        "VM 99 is not registered",
    ),
    ("vm", 2, "Usage:"),
    ("vm list --pool=Z", 3, "There is no pool \"Z\""),
    ("vm list --pool=", 2, "a value is required"),
    ("pool show ", 2, "a value is required"),
    ("gpu check --gpu-id=", 2, "a value is required"),
    ("vm show", 2, "<VM"),
    ("vm show x", 3, "No VM has the name `x`"),
    ("vm show -3", 2, "`-3` is not a VM number or name"),
    ("vm show 99", 3, "VM 99 is not registered"),
    ("vm set 1", 2, "Name a setting"),
    ("vm set 99 --priority=low", 3, "VM 99 is not registered"),
    ("vm set 1 --name=web", 6, "\"web\" belongs to VM 2"),
    ("vm set 1-2 --name=x", 2, "one VM at a time"),
    ("vm set 1 --cid=0", 2, "or `none`"),
    ("vm set 1 --cid=many", 2, "or `none`"),
    ("vm set 1 --cid=50", 6, "CID 50 belongs to VM 2 (web)"),
    ("vm set 1 --factor=10001", 2, "--factor must be between"),
    (
        "vm set 1 --factor=10001%",
        2,
        "1 and 10000 percent, not 10001",
    ),
    ("vm set 1 --factor=2.0", 2, "write for instance 200 or 200%"),
    ("vm set 1 --gang=perhaps", 2, "invalid value 'perhaps'"),
    ("vm set 1 --gpus=7", 3, "There is no GPU \"7\""),
    (
        "vm set 1 --soft-limit=5s --hard-limit=1s",
        2,
        "--soft-limit",
    ),
    ("vm set 1 --calls-burst=unlimited", 2, "calls-burst"),
    ("vm set 1 --peer-uid=5", 2, "a registration keeps its uid"),
    ("quarantine", 2, "Usage:"),
    ("quarantine 99", 3, "VM 99 is not registered"),
    ("quarantine 99 --dry-run", 3, "VM 99 is not registered"),
    (
        "quarantine 1 --reason=a\nb",
        2,
        "one line of at most 200 characters",
    ),
    ("release", 2, "Usage:"),
    ("release 1,nobody", 3, "No VM has the name `nobody`"),
    ("release 99", 3, "VM 99 is not registered"),
    ("explain", 2, "<VM>"),
    ("explain --vm-id=nobody", 3, "No VM has the name `nobody`"),
    ("explain 99", 3, "VM 99 is not registered"),
    ("usage --vm-id=99", 3, "VM 99 is not registered"),
    ("usage --vm-id=x", 3, "No VM has the name `x`"),
    ("usage reset nobody", 3, "No VM has the name `nobody`"),
    ("usage reset", 2, "<VM"),
    ("usage reset --vm-id=99", 3, "VM 99 is not registered"),
    (
        "usage reset --vm-id=99 --dry-run",
        3,
        "VM 99 is not registered",
    ),
    ("usage reset --all --vm-id=1", 2, "cannot be used with"),
];

const LISTS: &[Case] = &[
    ("session", 2, "Usage:"),
    ("session list --vm=99", 3, "VM 99 is not registered"),
    ("session list --vm=nobody", 3, "No VM has the name `nobody`"),
    ("session list --vm=", 2, "`` is not a VM number or name"),
    ("session list --since=5", 2, "`5` is not a time"),
    (
        "session list --until=yesterday",
        2,
        "`yesterday` is not a time",
    ),
    ("session kill", 2, "<SESSION_ID>"),
    ("session kill x", 2, "`x` is not a whole number"),
    ("session kill -1", 2, "unexpected argument"),
    ("session kill 12345", 3, "No session 12345 is open"),
    (
        "session kill 12345 --dry-run",
        3,
        "No session 12345 is open",
    ),
    (
        "session kill 12345 --reason=a\u{7}",
        2,
        "one line of at most 200 characters",
    ),
    ("sched", 2, "Usage:"),
    (
        "sched log --file=/nonexistent/log",
        1,
        "cannot write /nonexistent/log",
    ),
    ("sched log extra", 2, "unexpected argument"),
    ("events --since=tomorrow", 2, "`tomorrow` is not a time"),
    (
        "events --since=2026-02-30T00:00:00Z",
        2,
        "is not a time; write for instance 10min",
    ),
    ("events --until=17", 2, "`17` is not a time"),
    ("events --severity=loud", 2, "info, warning, error"),
    ("events --vm=1-2", 2, "are several VMs; name one VM"),
    ("events --vm=nobody", 3, "No VM has the name `nobody`"),
    ("events --limit=0", 2, "from 1 to 1000"),
    ("events -n 1001", 2, "from 1 to 1000"),
    ("events --follow --until=1h", 2, "--follow"),
    ("audit --since=-1", 2, "`-1` is not a time"),
    ("audit --until=", 2, "`` is not a time"),
    ("audit --vm=0", 2, "`0` is not a VM number"),
    ("audit --vm=nobody", 3, "No VM has the name `nobody`"),
    ("audit --severity=error", 2, "unexpected argument"),
    ("audit --action=banana", 2, "use pool-create, pool-set"),
    ("audit --who=uid:abc", 2, "is no caller: write uid:1000"),
    ("audit --who=token:", 2, "is no caller: write uid:1000"),
    (
        "audit --since=1h --until=2h",
        2,
        "--since (from_unix_ms) must be",
    ),
    (
        "events --since=1h --until=2h",
        2,
        "--since (from_unix_ms) must be",
    ),
    (
        "session list --since=1h --until=2h",
        2,
        "--since (from_unix_ms) must be",
    ),
];

const ALL: [&[Case]; 6] = [HOST, GPUS, POOLS, REGISTRATION, VMS, LISTS];

fn cases() -> impl Iterator<Item = &'static Case> {
    ALL.into_iter().flatten()
}

/// The commands that do something, by their words.
fn commands(command: &clap::Command, words: &str, found: &mut Vec<String>) {
    let inner = command.get_subcommands();
    let inner: Vec<_> = inner.filter(|inner| inner.get_name() != "help").collect();
    if inner.is_empty() || !command.is_subcommand_required_set() && !words.is_empty() {
        found.push(words.to_owned());
    }
    for inner in inner {
        let words = format!("{words} {}", inner.get_name());
        commands(inner, words.trim_start(), found);
    }
}

#[test]
fn every_command_is_in_the_table() {
    let mut found = Vec::new();
    commands(&vgpu_admin::command_line(), "", &mut found);
    assert!(found.len() > 35, "{found:?}");
    for words in found {
        let own = |case: &&Case| case.0 == words || case.0.starts_with(&format!("{words} "));
        assert!(cases().any(|case| own(&case)), "no case for `{words}`");
    }
    let different: BTreeSet<&str> = cases().map(|case| case.0).collect();
    assert!(different.len() >= 110 && different.len() == cases().count());
}

#[test]
fn wrong_input_is_refused_with_its_exit_code_and_a_reason() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A --name=web --cid=50")?;
    host.admin("pool create B")?;
    // Every change is in the audit trail, and so are refused commands.
    let trail = || -> Result<Vec<String>> {
        let most = cases().count() + 100;
        let lines = host.admin(&format!("audit -n {most} -o csv"))?;
        let refused = |line: &&str| line.contains("(refused: ") || line.contains(",refused,");
        Ok(lines
            .lines()
            .filter(|line| !refused(line))
            .map(str::to_owned)
            .collect())
    };
    let before = trail()?;
    let dir = host.dir().display().to_string();
    let mut wrong = Vec::new();
    for (line, code, part) in cases() {
        let words = line
            .split(' ')
            .map(|word| word.replace('·', " ").replace("{dir}", &dir));
        let output = host.admin_words(words)?;
        let text = describe(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(*code) || !said.contains(part) {
            wrong.push(format!("{line:?} is not {code} with {part:?}: {text}"));
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert_eq!(trail()?, before, "a refused command changes nothing");
    Ok(())
}
