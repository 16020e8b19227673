//! The admin API's JSON types, shared by `vgpud` (which serves them) and `vgpu-admin` (which reads
//! them).
//!
//! Rules of these types:
//! - A number carries its unit in its name: `slice_us`, `aging_ms`, `memory_bytes`, `gpu_ns`.
//! - A time is `*_unix_ms`: milliseconds since 1970-01-01 UTC by the host's clock.
//! - In answers, an unknown value is `null`; readers ignore unknown fields.
//! - In requests, unknown fields are refused, so that a misspelt name is never ignored. In a patch,
//!   an absent field means "unchanged" and `null` means "the default", where there is one.
//! - Every failure is an [`ErrorBody`] with a stable [`ErrorCode`].
//!
//! [`Setting`] describes the settings of pools and VMs; their types are made from one table. The
//! routes are listed in `docs/openapi.json`.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod command;
mod doctor;
mod error;
mod event;
pub mod exit;
mod explain;
mod gpu;
mod pool;
mod session;
mod settings;
mod status;
mod usage;
mod vm;
mod words;

pub use command::{ApplyReport, KillRequest, QuarantineRequest, ReloadReport};
pub use doctor::{CheckStatus, DoctorCheck, DoctorReport};
pub use error::{ErrorBody, ErrorCode, ErrorDetail};
pub use event::{AuditEntry, AuditPage, Event, EventKind, EventPage, Severity};
pub use explain::{Cap, Explain, ExplainHolder, ExplainReason};
pub use gpu::{
    AssignRequest, Assignment, Gpu, GpuAccount, GpuCheckReport, GpuHealth, GpuSource, GpuState,
    MigInstance, ScanReport, ScanResult, ScannedGpu, UnassignRequest,
};
pub use pool::{Pool, PoolCreate, PoolPolicy, Weights, WeightsPatch, WeightsReport};
pub use session::{Session, SessionState, WaitReason};
pub use settings::{
    Limit, POOL_SETTINGS, Patch, PoolPatch, PoolSettings, Problem, Row, Setting, UNLIMITED, Unit,
    VM_LIMITS, Value, VmLimits, VmLimitsPatch, check_pool_settings, check_vm_limits, in_request,
    pool_problems, vm_problems,
};
pub use status::{DaemonStatus, HostState, LatencySummary, PoolStatus, Status};
pub use usage::{LatencyBucket, LatencyHistogram, UsageReport, UsageReset};
pub use vm::{
    MoveRequest, Priority, Quarantine, RegisterRequest, Vm, VmIds, VmPatch, VmState, VmUsage,
};

use serde::{Deserialize, Deserializer};
use vgpu_proto::limits::SOCKET_PATH_LEN;

/// The version of this API, the first part of every route.
pub const API_VERSION: &str = "v1";

/// Default address of the daemon's admin listener.
pub const DEFAULT_ADMIN_SOCKET: &str = "/run/vgpu/admin.sock";

/// The request header that makes a command safe to repeat: a command whose key was already used is
/// not carried out again, and gets the first answer.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";

/// Marks the state database and its backups as files of vgpud (`PRAGMA application_id` of SQLite):
/// "vgpu".
pub const APPLICATION_ID: i32 = 0x7667_7075;

/// Longest name of a pool or VM, in bytes.
pub const NAME_LEN: usize = 64;

/// Checks a name, for instance of a pool or VM (`what`): names become parts of paths and of labels
/// of metrics.
///
/// # Errors
/// A sentence with the name and the allowed characters.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = (1..=NAME_LEN).contains(&name.len())
        && name.chars().all(plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if good {
        return Ok(());
    }
    Err(format!(
        "The {what} name {name:?} is not allowed: use 1 to {NAME_LEN} letters (a-z, A-Z), digits, \
         '-', '_' and '.', beginning with a letter or digit."
    ))
}

/// Checks the length of a Unix socket's path.
///
/// # Errors
/// `InvalidInput`, with a sentence without a full stop: the length, the limit and the way out.
pub fn check_socket_path(path: &std::path::Path) -> std::io::Result<()> {
    let length = path.as_os_str().len();
    if length <= SOCKET_PATH_LEN {
        return Ok(());
    }
    let text = format!(
        "the path has {length} bytes, and the path of a socket has at most {SOCKET_PATH_LEN}: use a \
         directory with a shorter path"
    );
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text))
}

/// Checks the name of a VM in a command. A name that reads as VM numbers (`7`, `1-3`) is refused,
/// because names and numbers name VMs in the same places.
///
/// # Errors
/// A sentence with the name and the reason.
pub fn check_vm_name(name: &str) -> Result<(), String> {
    check_name("VM", name)?;
    if name.chars().all(|c| c.is_ascii_digit() || c == '-') {
        return Err(format!(
            "The VM name {name:?} is not allowed: it would read as a number of VMs. Put a letter into \
             it, for instance vm{name}."
        ));
    }
    Ok(())
}

/// Largest number of a VM. Leaves room below 2^31 for the users of workers (`worker.uid` + number).
pub const MAX_VM_ID: u32 = 1_000_000;

/// Allowed weights of a VM within its class, in percent.
pub const FACTOR_PERCENT: std::ops::RangeInclusive<u32> = 1..=10_000;

/// Largest number of VMs in one command.
pub const MAX_BATCH: usize = 4_096;

/// Reads a field of a patch that is present. `null` is a value if `T` has `null`. serde does not
/// call this function for an absent field, which `#[serde(default)]` sets to `None`.
fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema;

    use super::settings::WEIGHTS;
    use super::*;

    #[test]
    fn in_a_patch_absent_null_and_a_value_are_three_things() {
        let read = |text: &str| serde_json::from_str::<VmLimitsPatch>(text).unwrap();
        let mut limits = VmLimits {
            sessions: Limit::Value(7),
            ..VmLimits::default()
        };
        read("{}").apply_to(&mut limits);
        assert_eq!(limits.sessions, Limit::Value(7));
        read(r#"{"sessions": "unlimited"}"#).apply_to(&mut limits);
        assert_eq!(limits.sessions, Limit::Unlimited);
        read(r#"{"sessions": null}"#).apply_to(&mut limits);
        assert_eq!(limits.sessions, Limit::Default);
        let zero = serde_json::from_str::<VmLimitsPatch>(r#"{"sessions": 0}"#);
        let said = zero.unwrap_err().to_string();
        assert!(said.contains("from 1 or \"unlimited\", not 0"), "{said}");
        // A parsed patch is written in the same way.
        for text in [
            "",
            r#""sessions":null"#,
            r#""sessions":3"#,
            r#""sessions":"unlimited""#,
        ] {
            let text = format!("{{{text}}}");
            assert_eq!(serde_json::to_string(&read(&text)).unwrap(), text);
        }
    }

    #[test]
    fn names_become_paths_and_labels_safely() {
        for good in ["A", "vm1", "gpu-pool_2.x", "7"] {
            assert_eq!(check_name("pool", good), Ok(()), "{good}");
        }
        let long = "x".repeat(NAME_LEN + 1);
        for bad in ["", ".", "..", "-x", "a/b", "a b", "ä", "a\n", &long] {
            assert!(check_name("pool", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_word_is_named_as_json_writes_it() {
        for priority in Priority::ALL {
            let json = serde_json::to_string(priority).unwrap();
            assert_eq!(json, format!("{:?}", priority.name()));
        }
        let words: Vec<&str> = PoolPolicy::ALL.iter().map(|policy| policy.name()).collect();
        assert_eq!(words, ["weighted", "strict", "fifo", "sjf"]);
        assert!(
            PoolPolicy::Sjf
                .about()
                .starts_with("The shortest predicted")
        );
    }

    #[test]
    fn a_typing_error_in_a_request_is_refused() {
        let text = r#"{"vm_ids": [1], "pool": "A", "priorty": "high"}"#;
        let error = serde_json::from_str::<RegisterRequest>(text).unwrap_err();
        assert!(error.to_string().contains("priorty"), "{error}");
    }

    #[test]
    fn a_socket_path_that_is_too_long_is_told_with_its_limit() {
        let path = |length| std::path::PathBuf::from("/".repeat(length));
        assert!(check_socket_path(&path(SOCKET_PATH_LEN)).is_ok());
        let told = check_socket_path(&path(108)).unwrap_err().to_string();
        assert!(told.starts_with("the path has 108 bytes"), "{told}");
        assert!(told.contains("at most 107") && !told.contains("SUN_LEN"));
    }

    #[test]
    fn descriptions_have_the_ranges_of_the_checks() {
        let weight = format!(", {} to {}.", WEIGHTS.start(), WEIGHTS.end());
        let slice = POOL_SETTINGS.iter().find(|row| row.name == "slice_us");
        let slice = &slice.unwrap().range;
        let slice = format!("ongest turn, {} to {}", slice.start(), slice.end());
        let name = format!("1 to {NAME_LEN} letters");
        let described = |schema, range: &str| {
            let text = serde_json::to_string(&schema).unwrap();
            text.matches(range).count()
        };
        assert_eq!(described(Weights::schema(), &weight), 4);
        assert_eq!(described(WeightsPatch::schema(), &weight), 4);
        assert_eq!(described(PoolCreate::schema(), &name), 1);
        assert_eq!(described(RegisterRequest::schema(), &slice), 1);
        assert_eq!(described(VmPatch::schema(), &slice), 1);
    }
}
