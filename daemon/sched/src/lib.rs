//! The scheduler of vgpud. It decides which session may use which GPU, when and for how long, and
//! how to handle a session that does not return a GPU.
//!
//! The scheduler is a pure state machine: [`Scheduler::handle`] takes the time, one [`Event`] and a
//! list to which it appends [`Action`]s. It reads no clock, does no I/O, starts no thread, and uses
//! only integers and ordered collections. So the same events give the same actions in the daemon,
//! in the simulator and in a replay. `docs/scheduling.md` describes the algorithm, its bounds and
//! every setting.
//!
//! # The life of a lease
//!
//! 1. A session that has work sends [`Event::Runnable`]. If its GPU is free, [`Action::Grant`]
//!    follows.
//! 2. While no other session waits, the holder keeps the lease and no message is sent.
//! 3. When another session waits, the holder learns this ([`Action::Want`]). At the end of the
//!    slice the lease is revoked ([`Action::Revoke`]), or extended if the holder's VM is next
//!    again.
//! 4. The holder drains its submitted work and sends [`Event::Released`] with the epoch of the
//!    lease. The next session gets its lease after that release, after the death of the worker,
//!    after a declared overrun, or shortly before the end that the holder announced
//!    ([`Event::Ending`]).
#![forbid(unsafe_code)]

mod action;
mod bucket;
mod config;
mod depth;
mod eevdf;
mod event;
pub mod gate;
mod histogram;
mod id;
pub mod log;
mod model;
mod ordered;
mod promise;
mod runqueue;
mod scheduler;
mod serial;
mod shortest;
mod stats;
mod timers;

/// Time in ns between the grant of the next lease and the announced end of the holder's work: the
/// time from a decision to a submission on another processor (docs/benchmarks.md, "Where a handoff
/// goes"). If the grant came earlier, the driver would divide the GPU between both sessions for the
/// difference.
pub const LET_IN_NS: u64 = 150 * MICROS;

/// A VM gets a lease before the previous lease is released only if the VM itself recently returned
/// its GPUs within this time, in ns.
pub(crate) const QUICK_NS: u64 = 1_500 * MICROS;

/// Time in ns after the announced end for which the holder's work may still run beside the next
/// session. After this time the announcement was wrong, and the lease of the next session is
/// revoked.
pub const LATE_NS: u64 = 250 * MICROS;

pub use action::{Action, Credits, Ignored, KillCause, MemoryRefusal, Refusal, StrikeCause, Terms};
pub use config::{
    Aging, Class, ClassWeights, Config, GpuConfig, GpuHealth, LimitOverride, Limits, MICROS,
    MILLIS, Policy, PoolConfig, Rate, SECONDS, VmConfig,
};
pub use depth::{Depth, HeadCost};
pub use event::{Event, Memory, Past, Quarantine, Usage};
pub use histogram::Histogram;
pub use id::{Epoch, GpuId, PoolId, SessionId, VmId};
pub use scheduler::{Explanation, Holder, NoBound, Reason, Scheduler, WaitBound, pinned_share};
pub use stats::{Account, Cap, GpuStats, SessionState, SessionStats, VmStats, WaitReason};
