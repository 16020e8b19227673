//! The table of settings. The documentation of the parent module lists what is made from the rows.
//!
//! The text of a row must be true in JSON, in files and on the command line: the text names no
//! other setting by its name, and no number that another column has.

use serde::{Deserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use vgpu_proto::limits::{DEPTH_BYTES, DEPTH_CALLS};

use super::{Limit, Patch, Problem, Row, Setting, Unit, Value, schema};
use crate::{PoolPolicy, Weights};

/// Makes the types of a table.
///
/// The head names the type of all settings, the type of changes and the rows. It says whether
/// `null` (the default) is a value, and names the function that turns a built-in default into the
/// initial value. A row:
///
/// ```text
/// /// Description.
/// name: Type = built-in default, Unit in range, or unlimited, "option", like example,
///     otherwise "the default in words";
/// ```
macro_rules! settings {
    (
        $(#[doc = $about:tt])* $settings:ident;
        $(#[doc = $patch_about:tt])* $patch:ident;
        $(#[doc = $rows_about:tt])* $rows:ident, defaulted: $defaulted:literal, initial: $initial:path;
        $(
            $(#[doc = $doc:tt])*
            $name:ident: $type:ty = $default:expr, $unit:ident in $range:expr,
            $(or $unlimited:ident,)? $option:literal
            $(, like $example:expr)? $(, otherwise $otherwise:literal)?;
        )*
    ) => {
        $(#[doc = $rows_about])*
        pub const $rows: &[Setting] = &[$(Setting {
            name: stringify!($name),
            option: $option,
            unit: Unit::$unit,
            range: $range,
            unlimited: settings!(@given $($unlimited)?),
            defaulted: $defaulted,
            example: settings!(@example $($example)?),
            otherwise: concat!("" $(, $otherwise)?),
            about: concat!($($doc),*),
        }),*];

        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $settings {
            $($(#[doc = $doc])* pub $name: $type,)*
        }

        impl $settings {
            /// The built-in defaults.
            #[must_use]
            pub fn built_in() -> Self {
                Self { $($name: $default,)* }
            }

            /// The settings that differ from the initial settings.
            #[must_use]
            pub fn changes(&self) -> $patch {
                let initial = Self::default();
                $patch { $($name: Some(self.$name).filter(|value| *value != initial.$name),)* }
            }

            /// Every row with the value of the setting, in the order of the table.
            #[must_use]
            pub fn values(&self) -> Vec<(&'static Setting, Value)> {
                $rows.iter().zip([$(Value::from(self.$name),)*]).collect()
            }

            /// The settings whose value is out of range.
            #[must_use]
            pub fn problems(&self) -> Vec<Problem> {
                let refused = |(setting, value): &Row| !setting.allows(value);
                self.values().into_iter().filter(refused).map(Problem::Range).collect()
            }
        }

        impl Default for $settings {
            fn default() -> Self {
                Self { $($name: $initial($default),)* }
            }
        }

        $(#[doc = $patch_about])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $patch {
            $(
                #[doc = concat!("See [`", stringify!($settings), "::", stringify!($name), "`].")]
                #[serde(
                    deserialize_with = "crate::present",
                    skip_serializing_if = "Option::is_none"
                )]
                pub $name: Option<$type>,
            )*
        }

        impl $patch {
            /// Writes the changes into `settings`.
            pub fn apply_to(&self, settings: &mut $settings) {
                $(settings.$name = self.$name.unwrap_or(settings.$name);)*
            }
        }

        impl Patch for $patch {
            fn rows() -> Vec<(&'static Setting, Value)> {
                $settings::built_in().values()
            }
        }

        settings!(@schema $settings, $patch, concat!($($about),*), true);
        settings!(@schema $patch, $patch, concat!($($patch_about),*), false);
    };
    (@given) => { false };
    (@given unlimited) => { true };
    (@example) => { None };
    (@example $example:expr) => { Some($example) };
    (@schema $type:ident, $patch:ident, $about:expr, $all:literal) => {
        impl utoipa::PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                schema::object($about, $all, $patch::rows())
            }
        }

        impl utoipa::ToSchema for $type {}
    };
}

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const DAY_S: u64 = 86_400;
const MILLION: u64 = 1_000_000;

/// Allowed weights of classes and of pools.
pub(crate) const WEIGHTS: std::ops::RangeInclusive<u64> = 1..=10_000;

settings! {
    /// All settings of a pool.
    PoolSettings;
    /// `PATCH /v1/pools/{name}`: change settings. Absent fields are unchanged.
    PoolPatch;
    /// The settings of a pool. New pools start with the built-in defaults, or with those of the
    /// configuration (`[defaults.pool]`).
    POOL_SETTINGS, defaulted: false, initial: std::convert::identity;

    /// How the next VM is chosen.
    policy: PoolPolicy = PoolPolicy::Weighted, Policy in 0..=0, "policy";
    /// The pool's share of a GPU that serves several pools.
    weight: u32 = 100, Count in WEIGHTS, "weight";
    /// Longest turn while others wait.
    slice_us: u64 = 2_000, Us in 100..=MILLION, "slice";
    /// `weighted`: shortest turn before a VM that is due earlier interrupts the turn.
    min_run_us: u64 = 500, Us in 0..=MILLION, "min-run";
    /// `strict`: a waiting VM rises one class after each wait of this length. `sjf`: a waiting VM
    /// is overtaken only by VMs that came less than this time later.
    aging_ms: Limit = Limit::Value(500), Ms in 1..=HOUR_MS, or unlimited, "aging";
    /// Weights of the classes in this pool, in place of the host's.
    weights: Option<Weights> = None, Weights in 0..=0, "weights";
    /// Time without progress after which a turn is logged, counted and costs a strike.
    soft_limit_ms: Limit = Limit::Value(2_000), Ms in 1..=DAY_MS, or unlimited, "soft-limit";
    /// Time without progress after which the session of a turn is killed. Unlimited: never while no
    /// other VM waits.
    hard_limit_ms: Limit = Limit::Value(10_000), Ms in 1..=DAY_MS, or unlimited, "hard-limit";
    /// The hard limit while other VMs wait, if the hard limit is longer or unlimited.
    contended_limit_ms: u64 = 10_000, Ms in 1..=HOUR_MS, "contended-limit";
    /// Grace for a turn that does not end when its lease is revoked. After the grace, the next VM
    /// runs beside the turn.
    overrun_grace_ms: Limit = Limit::Value(20), Ms in 1..=60_000, or unlimited, "overrun-grace";
    /// Longest time for which the holder keeps the GPU without work, in case more work arrives. The
    /// actual time, at least 50 µs, is learned from the holder's own pauses.
    idle_hold_us: u64 = 200, Us in 0..=MILLION, "idle-hold";
    /// Longest unfinished work of the holder on the GPU, by predicted duration. A shorter window
    /// releases the GPU sooner. With a longer window, the GPU is idle less often.
    window_us: u64 = 500, Us in 200..=500, "window";
    /// Number of strikes (exceeded limits of time, and breaches) that quarantines a VM.
    quarantine_strikes: Limit = Limit::Value(5), Count in 1..=1_000, or unlimited, "strikes";
    /// Time without a new strike after which one strike is forgotten. Outside quarantine, one
    /// doubling of the quarantine is forgotten in the same way.
    strike_decay_s: Limit = Limit::Value(600), S in 1..=30 * DAY_S, or unlimited, "strike-decay";
    /// Length of the first quarantine by strikes; each further quarantine lasts twice as long as
    /// the one before. Unlimited: until an administrator releases the VM.
    quarantine_s: Limit = Limit::Value(60), S in 1..=365 * DAY_S, or unlimited, "quarantine";
    /// Length of the longest quarantine by strikes.
    quarantine_max_s: u64 = DAY_S, S in 1..=365 * DAY_S, "quarantine-max";
}

settings! {
    /// The limits of a VM, over all its programs. `null` uses the daemon's default (`[defaults.vm]`
    /// of its configuration, or the built-in default).
    VmLimits;
    /// Changes to limits of a VM: an absent field is unchanged, `null` returns to the default.
    VmLimitsPatch;
    /// The limits of a VM.
    VM_LIMITS, defaulted: true, initial: initial;

    /// Calls per second: launches, copies and memsets.
    calls_per_s: Limit = Limit::Unlimited, Count in 1..=100 * MILLION, or unlimited, "calls-per-s",
        like 100_000;
    /// Largest burst of calls after a pause; only with a rate.
    calls_burst: Limit = Limit::Default, Count in 1..=100 * MILLION, "calls-burst", like 10_000,
        otherwise "the amount of one second";
    /// Payload bytes per second in both directions: copies, page-locked and managed memory that
    /// kernels access, device printf, images of modules, results of links. All calls of a program
    /// wait while the program owes bytes for anything but copies.
    bytes_per_s: Limit = Limit::Unlimited, Bytes in 1..=1 << 44, or unlimited, "bytes-per-s",
        like 1 << 30;
    /// Largest burst of payload bytes after a pause; only with a rate.
    bytes_burst: Limit = Limit::Default, Bytes in 1..=1 << 44, "bytes-burst", like 64 << 20,
        otherwise "the amount of one second";
    /// GPU time per second of wall time, in ms; values above 1000 need several GPUs.
    gpu_ms_per_s: Limit = Limit::Unlimited, Ms in 1..=64_000, or unlimited, "gpu-ms-per-s",
        like 250;
    /// Largest burst of GPU time after a pause, in ms; only with a rate.
    gpu_ms_burst: Limit = Limit::Default, Ms in 1..=HOUR_MS, "gpu-ms-burst", like 50,
        otherwise "the amount of one second";
    /// Calls that may wait in the queue.
    queue_calls: Limit = Limit::Value(DEPTH_CALLS.into()), Count in 1..=MILLION, or unlimited,
        "queue-calls";
    /// Bytes that may wait in the queue.
    queue_bytes: Limit = Limit::Value(DEPTH_BYTES), Bytes in 1..=1 << 40, or unlimited,
        "queue-bytes";
    /// Guest programs at the same time.
    sessions: Limit = Limit::Value(64), Count in 1..=100_000, or unlimited, "sessions";
    /// Device memory, contexts included.
    memory_bytes: Limit = Limit::Unlimited, Bytes in 1..=1 << 50, or unlimited, "memory",
        like 8 << 30;
    /// Host memory: the buffers for copies of each program, from its start, and twice the size of
    /// page-locked or managed memory that kernels can access.
    pinned_bytes: Limit = Limit::Value(4 << 30), Bytes in 1..=1 << 44, or unlimited, "pinned";
    /// Soft limit of a kernel, in place of the pool's.
    soft_limit_ms: Limit = Limit::Default, Ms in 1..=DAY_MS, or unlimited, "soft-limit",
        like 2_000, otherwise "the pool's";
    /// Hard limit of a kernel, in place of the pool's.
    hard_limit_ms: Limit = Limit::Default, Ms in 1..=DAY_MS, or unlimited, "hard-limit",
        like 10_000, otherwise "the pool's";
}

/// A new VM has no limits of its own, and thereby the defaults, also when these change later.
const fn initial(_built_in: Limit) -> Limit {
    Limit::Default
}
