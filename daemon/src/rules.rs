//! Checks of values, with a sentence for each value that is not allowed.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use vgpu_api::{
    FACTOR_PERCENT, Limit, MAX_VM_ID, PoolSettings, Problem, VmLimits, VmLimitsPatch, in_request,
};
pub use vgpu_api::{
    check_name as name, check_pool_settings as pool_settings, check_vm_limits as vm_limits,
    check_vm_name as vm_name, pool_problems, vm_problems,
};
use vgpu_proto::limits::SOCKET_PATH_LEN;

/// Longest reason of an administrator, in characters.
const REASON_LEN: usize = 200;
/// Longest origin of a VM, in characters.
const ORIGIN_LEN: usize = 128;
/// Placeholder for the VM's number in a socket path.
pub const VM_ID: &str = "{vm_id}";

/// Checks the number of a VM.
pub fn vm_id(vm_id: u32) -> Result<(), String> {
    within(("--vm-id", ""), "vm_ids", vm_id, 1..=MAX_VM_ID)
}

/// The lowest CID of a VM. 1 and 2 stand for programs of the host (vsock(7)).
pub const FIRST_CID: u32 = 3;

/// Checks the CID of a VM. 0 and the highest are the kernel's (vsock(7)).
pub fn cid(cid: u32) -> Result<(), String> {
    if (1..u32::MAX).contains(&cid) {
        return Ok(());
    }
    Err(format!(
        "No VM has the CID {cid}: --cid must be between {FIRST_CID} and {} (cid in JSON).",
        u32::MAX - 1
    ))
}

/// Checks a weight within a class, in percent.
pub fn factor(percent: u32) -> Result<(), String> {
    within(
        ("--factor", " percent"),
        "factor_percent",
        percent,
        FACTOR_PERCENT,
    )
}

/// Checks the path of a VM's own socket.
pub fn socket(path: &str) -> Result<(), String> {
    let good = path.starts_with('/')
        && !path.ends_with('/')
        && path.len() <= SOCKET_PATH_LEN
        && !path.chars().any(char::is_control)
        && !path.split('/').any(|part| part == "..");
    if good {
        return Ok(());
    }
    Err(format!(
        "The socket {path:?} is not allowed: give an absolute path without '..' of at most \
         {SOCKET_PATH_LEN} bytes."
    ))
}

/// Returns the socket of VM `vm_id` from the path of a registration.
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

/// Checks the longest turn of a VM in µs. The range is that of a pool.
pub fn slice(slice_us: u64) -> Result<(), String> {
    let settings = PoolSettings {
        slice_us,
        ..PoolSettings::default()
    };
    in_request(&settings.problems(), |_| true)
}

/// Checks the effective limits of a VM, but only those that `changes` concerns, because another
/// request may have changed the pool. `own`: the limits of the VM with the changes. `effective`:
/// `own`, with the values of configuration and pool in place of absent limits.
pub fn effective_limits(
    changes: &VmLimitsPatch,
    own: &VmLimits,
    effective: &VmLimits,
) -> Result<(), String> {
    // A burst of `[defaults.vm]` is allowed for VMs without a rate. Only a burst of the request is
    // checked.
    let burst = |change: Option<Limit>| change.unwrap_or_default();
    let whole = VmLimits {
        calls_burst: burst(changes.calls_burst),
        bytes_burst: burst(changes.bytes_burst),
        gpu_ms_burst: burst(changes.gpu_ms_burst),
        ..effective.clone()
    };
    let watchdog = changes.soft_limit_ms.is_some() || changes.hard_limit_ms.is_some();
    let mut problems = vm_problems(&whole);
    problems.retain(|problem| match problem {
        Problem::Order(..) => watchdog,
        Problem::NoRate(..) => true,
        Problem::Range(_) | Problem::Weights(_) => false,
    });
    let own = own.values();
    let is_own = |name: &str| {
        own.iter()
            .any(|(setting, value)| setting.name == name && *value != Limit::Default.into())
    };
    in_request(&problems, |(setting, _)| is_own(setting.name))
}

fn within(
    (option, unit): (&str, &str),
    field: &str,
    value: u32,
    range: RangeInclusive<u32>,
) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    Err(format!(
        "{option} must be between {least} and {most}{unit}, not {value} ({field} in JSON)."
    ))
}

#[cfg(test)]
mod tests {
    use vgpu_api::{Limit, VmLimits};

    use super::*;

    #[test]
    fn the_defaults_are_within_their_ranges() {
        assert_eq!(pool_settings(&PoolSettings::default()), Ok(()));
        assert_eq!(vm_limits(&VmLimits::default()), Ok(()));
        assert_eq!(vm_limits(&VmLimits::built_in()), Ok(()));
    }

    #[test]
    fn out_of_range_says_the_range() {
        let refused = slice(5).unwrap_err();
        assert!(
            refused.starts_with("--slice must be between 100us and 1s, not 5us"),
            "{refused}"
        );
        let refused = factor(0).unwrap_err();
        assert!(
            refused.starts_with("--factor must be between 1 and 10000 percent, not 0"),
            "{refused}"
        );
        let settings = PoolSettings {
            soft_limit_ms: Limit::Value(99_000),
            ..PoolSettings::default()
        };
        assert_eq!(
            pool_settings(&settings),
            Err(
                "--soft-limit (99s) must not be longer than --hard-limit (10s) (soft_limit_ms and \
                 hard_limit_ms in JSON)."
                    .into()
            )
        );
        let settings = PoolSettings {
            quarantine_s: Limit::Value(90_000),
            ..PoolSettings::default()
        };
        assert_eq!(
            pool_settings(&settings),
            Err(
                "--quarantine (25h) must not be longer than --quarantine-max (1d) (quarantine_s and \
                 quarantine_max_s in JSON)."
                    .into()
            )
        );
        assert!(cid(u32::MAX).is_err() && cid(3).is_ok());
        assert!(
            cid(0)
                .unwrap_err()
                .contains("--cid must be between 3 and 4294967294")
        );
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
