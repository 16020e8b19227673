//! Rules that several settings share: ranges are in the table, orders are here.

use super::{Limit, PoolSettings, UNLIMITED, Unit, VmLimits};

/// Checks the settings of a pool, also against each other.
///
/// # Errors
/// A sentence with the options, their values and what is allowed.
pub fn check_pool_settings(settings: &PoolSettings) -> Result<(), String> {
    settings.check()?;
    settings.weights.map_or(Ok(()), |own| own.check())?;
    let longest = Limit::Value(settings.quarantine_max_s);
    in_order(
        Unit::S,
        [
            ("quarantine", settings.quarantine_s),
            ("quarantine-max", longest),
        ],
    )?;
    watchdog_in_order(settings.soft_limit_ms, settings.hard_limit_ms)
}

/// Checks the limits of a VM, also against each other.
///
/// # Errors
/// A sentence with the options, their values and what is allowed.
pub fn check_vm_limits(limits: &VmLimits) -> Result<(), String> {
    limits.check()?;
    let buckets = [
        ("calls", limits.calls_burst, limits.calls_per_s),
        ("bytes", limits.bytes_burst, limits.bytes_per_s),
        ("gpu-ms", limits.gpu_ms_burst, limits.gpu_ms_per_s),
    ];
    for (what, burst, per_s) in buckets {
        if burst != Limit::Default && per_s == Limit::Unlimited {
            return Err(format!(
                "--{what}-burst means nothing while --{what}-per-s is {UNLIMITED}: give \
                 --{what}-per-s too, or leave --{what}-burst out."
            ));
        }
    }
    watchdog_in_order(limits.soft_limit_ms, limits.hard_limit_ms)
}

fn watchdog_in_order(soft: Limit, hard: Limit) -> Result<(), String> {
    in_order(Unit::Ms, [("soft-limit", soft), ("hard-limit", hard)])
}

/// Checks that the first limit is not above the second, by their options.
fn in_order(unit: Unit, limits: [(&str, Limit); 2]) -> Result<(), String> {
    let [(first, low), (second, high)] = limits;
    match (low.value(), high.value()) {
        (Some(low), Some(high)) if low > high => Err(format!(
            "--{first} ({}) must not be longer than --{second} ({}).",
            unit.text(low),
            unit.text(high)
        )),
        _ => Ok(()),
    }
}
