//! Every program but vgpu-admin with wrong input: exit code and message.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use vgpu_tests::guest::describe;
use vgpu_tests::paths::built;

/// Environment variables (`VGPU_…=…`), the program and its arguments, separated by spaces (`{dir}`:
/// a directory with a wrong configuration), exit code, part of the message.
type Case = (&'static str, i32, &'static str);

const CASES: &[Case] = &[
    ("vgpu-guest", 2, "Usage: vgpu-guest <COMMAND>"),
    ("vgpu-guest frob", 2, "unrecognized subcommand"),
    ("vgpu-guest status now", 2, "unexpected argument 'now'"),
    (
        "VGPU_ADDRESS=unix:/nonexistent vgpu-guest status",
        1,
        "no vgpud answers at unix:/nonexistent",
    ),
    (
        "VGPU_ADDRESS=unix:/nonexistent vgpu-guest explain",
        1,
        "the VM is not registered on the host",
    ),
    ("VGPU_ADDRESS=tcp:7 vgpu-guest status", 1, "VGPU_ADDRESS"),
    ("vgpu-worker", 1, "this program is started by vgpud"),
    ("vgpu-worker --help", 1, "this program is started by vgpud"),
    ("vgpu-probe", 2, "Usage: vgpu-probe <COMMAND>"),
    ("vgpu-probe frob", 2, "unrecognized subcommand"),
    ("vgpu-probe scan now", 2, "unexpected argument 'now'"),
    ("vgpud --frob", 2, "unexpected argument '--frob'"),
    ("vgpud --check --doctor", 2, "cannot be used with"),
    ("vgpud --check --config=/nonexistent", 2, "/nonexistent"),
    (
        "vgpud --check --config={dir}/wrong.toml",
        2,
        "log.level = \"warning\" is not a level",
    ),
    ("vgpud --state-dir", 2, "a value is required"),
    ("vgpu-sim --frob", 2, "unexpected argument '--frob'"),
    (
        "vgpu-sim --scenario=nosuch",
        2,
        "there is no proof \"nosuch\"",
    ),
    ("vgpu-sim --runs=0", 2, "invalid value '0'"),
    (
        "vgpu-sim replay sched.log --ci",
        2,
        "unexpected argument '--ci'",
    ),
    ("vgpu-sim replay", 2, "required arguments were not provided"),
    (
        "vgpu-sim replay /nonexistent",
        1,
        "the decision log /nonexistent",
    ),
];

#[test]
fn wrong_input_is_refused_with_its_exit_code_and_a_reason() -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::write(
        dir.path().join("wrong.toml"),
        "[log]\nlevel = \"warning\"\n",
    )?;
    let dir = dir.path().display().to_string();
    let mut wrong = Vec::new();
    for (line, code, part) in CASES {
        let line = line.replace("{dir}", &dir);
        let (variables, words): (Vec<&str>, Vec<&str>) =
            line.split(' ').partition(|word| word.starts_with("VGPU_"));
        let (program, words) = words.split_first().context("a program")?;
        let output = Command::new(built(program)?)
            .args(words)
            .env_remove("VGPU_ADDRESS")
            .envs(variables.iter().filter_map(|set| set.split_once('=')))
            .stdin(Stdio::null())
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let passed = output.status.code() == Some(*code) && said.contains(part);
        if !passed || said.contains("tip: to pass") {
            let text = describe(&output);
            wrong.push(format!("{line:?} is not {code} with {part:?}: {text}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
