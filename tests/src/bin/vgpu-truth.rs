//! Suite `truth` of `make clients`: the rows of `tests/truth/card-facts.tsv` as tests, with the
//! interface of Rust's test harness. Arguments are names of tests; the environment selects the
//! driver.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use vgpu_tests::clients::events::Outcome;
use vgpu_tests::clients::truth::{self, OtherDevices};
use vgpu_tests::guest::Target;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("truth: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let names: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--exact")
        .collect();
    let rows = truth::table()?;
    let outcomes = match truth::ask(&Target::Environment) {
        Ok(answers) => truth::outcomes(&rows, &answers),
        Err(e) => {
            let why = e.downcast::<OtherDevices>()?.to_string();
            let skipped = |name: &String| (name.clone(), Outcome::Skipped(why.clone()));
            names.iter().map(skipped).collect::<BTreeMap<_, _>>()
        }
    };
    println!("running {} tests", names.len());
    let mut failures = String::new();
    for name in &names {
        match outcomes.get(name) {
            Some(Outcome::Passed) => println!("test {name} ... ok"),
            Some(Outcome::Skipped(why)) => println!("test {name} ... ignored, {why}"),
            Some(Outcome::Failed(said) | Outcome::Raced(said)) => {
                println!("test {name} ... FAILED");
                failures += &format!("---- {name} stdout ----\nError: {said}\n");
            }
            None => anyhow::bail!("no row is called {name}"),
        }
    }
    print!("\nfailures:\n\n{failures}");
    Ok(())
}
