//! The scheduler of vgpud: who may use which GPU, when, for how long, and what happens to those who
//! do not give it back.
//!
//! A pure state machine: [`Scheduler::handle`] takes the time, one [`Event`] and a list to which it
//! appends [`Action`]s. It reads no clock, does no I/O, starts no thread and uses integers and ordered
//! collections only, so the same events give the same actions, in the daemon, in a simulator and in a
//! replay. `docs/scheduling.md` describes the algorithm, its bounds, and every setting.
//!
//! # The life of a lease
//!
//! 1. A session that has work says [`Event::Runnable`]. If its GPU is free, [`Action::Grant`] follows.
//! 2. While nobody else waits, the holder keeps the lease and nothing is said.
//! 3. When somebody does, the holder is told ([`Action::Want`]), and at the end of its slice the lease is
//!    asked back ([`Action::Revoke`]) or extended, if its VM is still the next.
//! 4. The holder drains what it submitted and says [`Event::Released`] with the lease's epoch. Only that,
//!    the death of its worker, or a declared overrun lets the next one in; and shortly before that, the
//!    holder's word when it will be ([`Event::Ending`]).
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

/// So long before a holder's work ends, by its word, the next one is let in: what it takes a decision to
/// become a submission, where that goes over another processor (docs/benchmarks.md, "Where a handoff goes").
/// Earlier would leave the device's driver to share the GPU between the two for so long.
pub const LET_IN_NS: u64 = 150 * MICROS;

/// Whoever took longer lately to give a GPU back is not let in before it is free.
pub(crate) const QUICK_NS: u64 = 1_500 * MICROS;

/// So long after its work should have been over a holder that let the next one in has the device to itself
/// again: what still runs then is something else than what was predicted.
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
