//! The kinds of answers to the calls of a training step and of a generated token: waits for the
//! host make a program slow.

use anyhow::{Context, Result, ensure};
use vgpu_tests::guest::{self, Guest, Target, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::SOON;

/// Kinds of answers, as in `VGPU_STATS`.
const CLASSES: [&str; 4] = ["local", "cached", "async", "sync"];

fn counts(host: &Host, part: &str, steps: u64) -> Result<[u64; 4]> {
    let output = Guest::new(guest::STEPS, host.target(1))?
        .arg(part)
        .arg(steps.to_string())
        .env("VGPU_STATS", "1")
        .run(4 * SOON)?;
    let said = guest::describe(&output);
    ensure!(output.status.success(), "{said}");
    let text = String::from_utf8_lossy(&output.stderr);
    let mut found = [0; 4];
    for (class, count) in CLASSES.iter().zip(&mut found) {
        let words = || text.lines().map(str::split_whitespace);
        let mut of_class = words().filter_map(|mut line| match (line.next(), line.next()) {
            (Some("vgpu:"), Some(word)) if word == *class => line.next(),
            _ => None,
        });
        *count = of_class.next().with_context(|| said.clone())?.parse()?;
    }
    Ok(found)
}

/// The calls of one step in the steady state: a hundredth of the calls that a hundred more steps
/// need.
fn of_a_step(part: &str) -> Result<[u64; 4]> {
    let host = one_vm(&Options::default())?;
    let (few, many) = (counts(&host, part, 10)?, counts(&host, part, 110)?);
    let mut step = [0; 4];
    for i in 0..4 {
        ensure!((many[i] - few[i]).is_multiple_of(100), "{few:?}, {many:?}");
        step[i] = (many[i] - few[i]) / 100;
    }
    Ok(step)
}

#[test]
fn both_are_right_on_soft_gpu_directly() -> Result<()> {
    for part in ["train", "tokens"] {
        expect_right(
            &Guest::new(guest::STEPS, Target::SoftGpu)?
                .arg(part)
                .arg("20"),
        )?;
    }
    Ok(())
}

#[test]
fn a_training_step_waits_for_nothing() -> Result<()> {
    assert_eq!(of_a_step("train")?, [49, 16, 12, 0]);
    Ok(())
}

#[test]
fn a_generated_token_waits_for_the_token_alone() -> Result<()> {
    assert_eq!(of_a_step("tokens")?, [7, 4, 4, 1]);
    Ok(())
}
