//! Checks of values, with a sentence for each value that is not allowed.

use std::path::{Path, PathBuf};

use vgpu_api::{PoolSettings, VmLimits, Weights};

/// Longest name of a pool or VM, in bytes.
const NAME_LEN: usize = 64;
/// Longest path of a Unix socket in bytes (`sun_path` less its NUL; unix(7)).
const SOCKET_LEN: usize = 107;
/// Longest reason of an administrator, in characters.
const REASON_LEN: usize = 200;
/// Longest origin of a VM, in characters.
const ORIGIN_LEN: usize = 128;
/// Placeholder for the VM's number in a socket path.
pub const VM_ID: &str = "{vm_id}";
/// Largest VM number. Leaves room below 2^31 for `worker.uid + vm_id`.
pub const MAX_VM_ID: u32 = 1_000_000;
/// Most VMs in one command.
pub const MAX_BATCH: usize = 4_096;

/// Checks the name of a pool or VM, which becomes part of paths and of metrics labels.
pub fn name(what: &str, name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = (1..=NAME_LEN).contains(&name.len())
        && name.chars().all(plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if good {
        return Ok(());
    }
    Err(format!(
        "The {what} name {name:?} is not allowed: use 1 to {NAME_LEN} letters, digits, '-', '_' \
         and '.', beginning with a letter or digit."
    ))
}

/// Checks the number of a VM.
pub fn vm_id(vm_id: u32) -> Result<(), String> {
    within("vm_id", vm_id.into(), 1, MAX_VM_ID.into())
}

/// Checks the CID of a VM. 0 and the highest are the kernel's (vsock(7)).
pub fn cid(cid: u32) -> Result<(), String> {
    within("cid", cid.into(), 1, u64::from(u32::MAX) - 1)
}

/// Checks a weight within a class, in percent.
pub fn factor(percent: u32) -> Result<(), String> {
    within("factor_percent", percent.into(), 1, 10_000)
}

/// Checks the path of a VM's own socket.
pub fn socket(path: &str) -> Result<(), String> {
    let good = path.starts_with('/')
        && !path.ends_with('/')
        && path.len() <= SOCKET_LEN
        && !path.chars().any(char::is_control)
        && !path.split('/').any(|part| part == "..");
    if good {
        return Ok(());
    }
    Err(format!(
        "The socket {path:?} is not allowed: give an absolute path without '..' of at most \
         {SOCKET_LEN} bytes."
    ))
}

/// The socket of one of the VMs that are registered with this path.
#[must_use]
pub fn socket_of(path: &str, vm_id: u32) -> String {
    path.replace(VM_ID, &vm_id.to_string())
}

/// Checks that a socket is outside `own`, vgpud's own directories and sockets. `own` contains
/// configured and resolved paths; symbolic links in `path` are resolved too. A VM's socket in place
/// of the admin socket would keep vgpud from starting. A VM's socket in the directory of another VM
/// would let that VM's guests act as the first VM.
pub fn socket_outside(path: &str, own: &[PathBuf]) -> Result<(), String> {
    match own.iter().find(|own| Path::new(path).starts_with(own)) {
        None => Ok(()),
        Some(own) => Err(format!(
            "The socket {path:?} is not allowed: {} is vgpud's own. Give a path elsewhere, or none: with \
             listen.vm_sockets every VM has a socket already.",
            own.display()
        )),
    }
}

/// Checks the text of a reason.
pub fn reason(reason: &str) -> Result<(), String> {
    if reason.chars().count() <= REASON_LEN && !reason.chars().any(char::is_control) {
        return Ok(());
    }
    Err(format!(
        "The reason must be one line of at most {REASON_LEN} characters."
    ))
}

/// Checks the origin of a VM.
pub fn origin(origin: &str) -> Result<(), String> {
    let length = origin.chars().count();
    if (1..=ORIGIN_LEN).contains(&length) && !origin.chars().any(char::is_control) {
        return Ok(());
    }
    Err(format!(
        "The origin must be one line of 1 to {ORIGIN_LEN} characters."
    ))
}

/// Checks the weights of the classes.
pub fn weights(weights: &Weights) -> Result<(), String> {
    let each = [
        ("low", weights.low),
        ("medium", weights.medium),
        ("high", weights.high),
        ("critical", weights.critical),
    ];
    for (class, weight) in each {
        within(
            &format!("weight of class {class}"),
            weight.into(),
            1,
            10_000,
        )?;
    }
    Ok(())
}

/// Checks the settings of a pool.
pub fn pool_settings(settings: &PoolSettings) -> Result<(), String> {
    const HOUR_MS: u64 = 3_600_000;
    within("weight", settings.weight.into(), 1, 10_000)?;
    within("slice_us", settings.slice_us, 100, 1_000_000)?;
    within("min_run_us", settings.min_run_us, 0, 1_000_000)?;
    within("aging_ms", settings.aging_ms, 0, HOUR_MS)?;
    within("soft_limit_ms", settings.soft_limit_ms, 0, 24 * HOUR_MS)?;
    within("hard_limit_ms", settings.hard_limit_ms, 0, 24 * HOUR_MS)?;
    within(
        "contended_limit_ms",
        settings.contended_limit_ms,
        1,
        HOUR_MS,
    )?;
    within("overrun_grace_ms", settings.overrun_grace_ms, 0, 60_000)?;
    within("idle_hold_us", settings.idle_hold_us, 0, 1_000_000)?;
    within("window_us", settings.window_us, 200, 500)?;
    within(
        "quarantine_strikes",
        settings.quarantine_strikes.into(),
        0,
        1_000,
    )?;
    within("strike_decay_s", settings.strike_decay_s, 0, 30 * 86_400)?;
    within("quarantine_s", settings.quarantine_s, 0, 365 * 86_400)?;
    within(
        "quarantine_max_s",
        settings.quarantine_max_s,
        1,
        365 * 86_400,
    )?;
    if settings.quarantine_s > settings.quarantine_max_s {
        return Err(format!(
            "quarantine_s ({}) must not be longer than quarantine_max_s ({}).",
            settings.quarantine_s, settings.quarantine_max_s
        ));
    }
    if let Some(own) = &settings.weights {
        weights(own)?;
    }
    limits_in_order(Some(settings.soft_limit_ms), Some(settings.hard_limit_ms))
}

/// Checks the longest turn of a VM in µs. The range is that of a pool.
pub fn slice(slice_us: u64) -> Result<(), String> {
    within("slice_us", slice_us, 100, 1_000_000)
}

/// Checks the limits of a VM; 0 stands for no limit.
pub fn vm_limits(limits: &VmLimits) -> Result<(), String> {
    const MILLION: u64 = 1_000_000;
    let ranges = [
        ("calls_per_s", limits.calls_per_s, 100 * MILLION),
        ("calls_burst", limits.calls_burst, 100 * MILLION),
        ("bytes_per_s", limits.bytes_per_s, 1 << 44),
        ("bytes_burst", limits.bytes_burst, 1 << 44),
        ("gpu_ms_per_s", limits.gpu_ms_per_s, 64_000),
        ("gpu_ms_burst", limits.gpu_ms_burst, 3_600_000),
        ("queue_calls", limits.queue_calls, MILLION),
        ("queue_bytes", limits.queue_bytes, 1 << 40),
        ("sessions", limits.sessions, 100_000),
        ("memory_bytes", limits.memory_bytes, 1 << 50),
        ("pinned_bytes", limits.pinned_bytes, 1 << 44),
        ("soft_limit_ms", limits.soft_limit_ms, 24 * 3_600_000),
        ("hard_limit_ms", limits.hard_limit_ms, 24 * 3_600_000),
    ];
    for (name, value, most) in ranges {
        within(name, value.unwrap_or(0), 0, most)?;
    }
    let bursts = [
        (
            "calls_burst",
            limits.calls_burst,
            "calls_per_s",
            limits.calls_per_s,
        ),
        (
            "bytes_burst",
            limits.bytes_burst,
            "bytes_per_s",
            limits.bytes_per_s,
        ),
        (
            "gpu_ms_burst",
            limits.gpu_ms_burst,
            "gpu_ms_per_s",
            limits.gpu_ms_per_s,
        ),
    ];
    for (burst, value, rate, per_second) in bursts {
        if value.is_some_and(|n| n > 0) && per_second == Some(0) {
            return Err(format!(
                "{burst} means nothing while {rate} is 0 (no limit): give {rate} too, or leave {burst} out."
            ));
        }
    }
    limits_in_order(limits.soft_limit_ms, limits.hard_limit_ms)
}

fn limits_in_order(soft: Option<u64>, hard: Option<u64>) -> Result<(), String> {
    match (soft.unwrap_or(0), hard.unwrap_or(0)) {
        (soft, hard) if soft > 0 && hard > 0 && soft > hard => Err(format!(
            "soft_limit_ms ({soft}) must not be longer than hard_limit_ms ({hard})."
        )),
        _ => Ok(()),
    }
}

fn within(what: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!(
        "{what} = {value} is out of its range {least} to {most}."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_paths_and_labels_safely() {
        for good in ["A", "vm1", "gpu-pool_2.x", "7"] {
            assert_eq!(name("pool", good), Ok(()), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "-x",
            "a/b",
            "a b",
            "ä",
            "a\n",
            &"x".repeat(65),
        ] {
            assert!(name("pool", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_defaults_are_within_their_ranges() {
        assert_eq!(pool_settings(&PoolSettings::default()), Ok(()));
        assert_eq!(vm_limits(&VmLimits::default()), Ok(()));
        assert_eq!(weights(&Weights::default()), Ok(()));
    }

    #[test]
    fn out_of_range_says_the_range() {
        let settings = PoolSettings {
            slice_us: 5,
            ..PoolSettings::default()
        };
        assert_eq!(
            pool_settings(&settings),
            Err("slice_us = 5 is out of its range 100 to 1000000.".into())
        );
        let settings = PoolSettings {
            soft_limit_ms: 99_000,
            ..PoolSettings::default()
        };
        assert!(
            pool_settings(&settings)
                .unwrap_err()
                .contains("must not be longer")
        );
        assert!(cid(0).is_err() && cid(u32::MAX).is_err() && cid(3).is_ok());
        assert!(socket("relative").is_err() && socket("/a/../b").is_err());
        assert_eq!(socket("/run/x.sock"), Ok(()));
        let own = ["/run/vgpu", "/srv/admin.sock", "/srv/vm"].map(PathBuf::from);
        for (inside, of) in [
            ("/run/vgpu/x.sock", "/run/vgpu "),
            ("/run//vgpu/./vm/3/vgpu.sock", "/run/vgpu "),
            ("/srv/admin.sock", "/srv/admin.sock "),
            ("/srv/vm/3/vgpu.sock", "/srv/vm "),
            ("/srv/vm", "/srv/vm "),
        ] {
            let refused = socket_outside(inside, &own).unwrap_err();
            assert!(refused.contains(of), "{refused}");
            assert_eq!(socket_outside(inside, &[]), Ok(()));
        }
        for outside in ["/run/vgpu2/x", "/srv/admin.sock2", "/srv/vm2/x", "/x"] {
            assert_eq!(socket_outside(outside, &own), Ok(()));
        }
    }
}
