//! Checks of settings against each other. The range of each setting is in the table.

use super::{Limit, PoolSettings, Problem, Row, Value, VmLimits};

/// Checks the settings of a pool, also against each other.
///
/// # Errors
/// A sentence for each problem.
pub fn check_pool_settings(settings: &PoolSettings) -> Result<(), String> {
    in_request(&pool_problems(settings), |_| true)
}

/// Returns every problem of the settings of a pool.
#[must_use]
pub fn pool_problems(settings: &PoolSettings) -> Vec<Problem> {
    let mut problems = settings.problems();
    let weights = settings.weights.and_then(|own| own.check().err());
    problems.extend(weights.map(Problem::Weights));
    let rows = settings.values();
    problems.extend(order(&rows, "quarantine_s", "quarantine_max_s"));
    problems.extend(order(&rows, "soft_limit_ms", "hard_limit_ms"));
    problems
}

/// The settings of bursts, each with the setting of its rate.
const BUCKETS: [[&str; 2]; 3] = [
    ["calls_burst", "calls_per_s"],
    ["bytes_burst", "bytes_per_s"],
    ["gpu_ms_burst", "gpu_ms_per_s"],
];

/// Returns every problem of the limits of a VM. A limit that is the default causes no problem.
#[must_use]
pub fn vm_problems(limits: &VmLimits) -> Vec<Problem> {
    let mut problems = limits.problems();
    let rows = limits.values();
    problems.extend(BUCKETS.iter().filter_map(|[burst, rate]| {
        let (burst, rate) = (row(&rows, burst)?, row(&rows, rate)?);
        let wrong = burst.1 != Limit::Default.into() && rate.1 == Value::Limit(Limit::Unlimited);
        wrong.then(|| Problem::NoRate(burst.clone(), rate.clone()))
    }));
    problems.extend(order(&rows, "soft_limit_ms", "hard_limit_ms"));
    problems
}

/// Checks the limits of a VM, also against each other.
///
/// # Errors
/// A sentence for each problem.
pub fn check_vm_limits(limits: &VmLimits) -> Result<(), String> {
    in_request(&vm_problems(limits), |_| true)
}

/// Joins all problems to sentences for the sender of a request, as [`Problem::in_request`].
///
/// # Errors
/// The sentences, if there are problems.
pub fn in_request(problems: &[Problem], given: impl Fn(&Row) -> bool) -> Result<(), String> {
    let sentences: Vec<String> = problems.iter().map(|p| p.in_request(&given)).collect();
    match sentences.is_empty() {
        true => Ok(()),
        false => Err(sentences.join(" ")),
    }
}

fn row<'a>(rows: &'a [Row], name: &str) -> Option<&'a Row> {
    rows.iter().find(|(setting, _)| setting.name == name)
}

/// Returns a problem if the value of the setting `first` is larger than that of `second`.
fn order(rows: &[Row], first: &str, second: &str) -> Option<Problem> {
    let (first, second) = (row(rows, first)?, row(rows, second)?);
    let number = |(_, value): &Row| match value {
        Value::Number(n) | Value::Limit(Limit::Value(n)) => Some(*n),
        _ => None,
    };
    let wrong = number(first)? > number(second)?;
    wrong.then(|| Problem::Order(first.clone(), second.clone()))
}
