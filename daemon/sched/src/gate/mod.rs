//! The worker's half of the scheduling: what of a session's queue may be submitted now.
//!
//! vgpud decides who has the GPU; the worker decides how much of its queue it puts on the device at
//! once. Too much, and the next VM waits for all of it when the lease is asked back; too little, and
//! the device idles between two kernels. The measure is *predicted GPU time*: a [`Gate`] lets so many
//! operations be unfinished as will take about [`Config::window_ns`], by what the same operations took
//! before ([`Predictor`]). It is pure, like the rest of this crate: time is an argument, and the worker
//! and the simulator drive the same code.
//!
//! | rule | why |
//! |---|---|
//! | predicted unfinished time ≤ window; what does not fit beside another goes in when that has 200 µs left ([`AHEAD_NS`]) | the device is never idle for want of work, a revoke costs a window, or a kernel and 200 µs |
//! | an operation never seen before goes alone | nothing is known about it |
//! | nothing that would end after the slice goes in behind something else, while others wait; but one 200 µs before all the rest will be over, where that is before the slice's end | a slice is overrun by at most one operation, and used to its end |
//! | a misprediction closes the window to one operation; it doubles with each one kept | a guest that teaches 1 µs and runs 50 ms gets no depth for it |
//! | the window grows by how many streams were seen to run at once | kernels of several streams may run side by side |
//! | beside an overrunner the window is two turns of the driver, and times teach nothing that outlasts it | the overrunner alone is kept waiting by it, and its turns are in every time |
//! | 1 ms without progress (beside an overrunner 3 ms), also where only waits for a value in memory are unfinished: work of idle streams, and what stands before it, goes in all the same, even while the lease is being given back | kernels may wait for each other: gating delays, it never deadlocks |
//!
//! # Driving it
//!
//! Operations have *places* in the session's queue (1, 2, …) and *numbers* in their stream (1, 2, …).
//! Each stream has a [`Flow`]. Completion is seen at markers: [`Gate::completed`] says that everything up
//! to a number of a stream is over.
//!
//! ```
//! use vgpu_sched::gate::{Config, Flow, FunctionId, Gate, Key, LeaseView, Verdict, Waiting, Work};
//!
//! let mut gate = Gate::new(Config::default());
//! let mut stream = Flow::default();
//! let mine = LeaseView { closing: false, slice_end_ns: None, beside: false };
//! let kernel = Work::Kernel(Key::kernel(FunctionId::new(b"module", "f"), [8, 1, 1], [256, 1, 1], 0));
//!
//! // The first launch is unknown: it goes, alone.
//! let Verdict::Submit(estimate) = gate.may_submit(0, 1, kernel, &stream, &mine) else { panic!() };
//! assert!(estimate.is_none());
//! gate.submitted(0, &mut stream, 1, kernel, estimate);
//! assert!(matches!(gate.may_submit(10, 2, kernel, &stream, &mine), Verdict::Wait(_)));
//!
//! // 20 µs later it is complete: that is what it costs from now on, and 25 of them fill 500 µs.
//! gate.completed(20_000, &mut stream, 1);
//! let mut number = 1;
//! while let Verdict::Submit(estimate) = gate.may_submit(20_000, number + 1, kernel, &stream, &mine) {
//!     number += 1;
//!     gate.submitted(20_000, &mut stream, number, kernel, estimate);
//! }
//! assert_eq!(number, 26);
//!
//! // Nothing completes: after a millisecond the work of idle streams goes in too, even if the lease
//! // is being given back.
//! let closing = LeaseView { closing: true, ..mine };
//! let later = 20_000 + gate.stall_in(20_000).unwrap();
//! let behind = [Waiting { place: 27, idle: false }, Waiting { place: 28, idle: true }];
//! assert_eq!(gate.relieve(later, behind, false), Some(28));
//! let other = Flow::default();
//! assert!(matches!(gate.may_submit(later, 28, kernel, &other, &closing), Verdict::Submit(_)));
//! assert!(matches!(gate.may_submit(later, 29, kernel, &other, &closing), Verdict::Wait(_)));
//! ```
//!
//! [`lease::Lease`] joins gate and lease: which states the worker's lease goes through, and what the
//! worker tells vgpud. [`Hold`] learns how long a lease is kept without work.

mod flow;
mod hold;
pub mod lease;
mod parallel;
mod predict;
mod table;
mod window;
mod work;

pub use flow::Flow;
pub use hold::Hold;
pub use predict::{Estimate, Predictor};
pub use window::{
    AHEAD_NS, BESIDE_NS, Completion, Config, Gate, LeaseView, MARKER_LAUNCHES, MAX_IN_FLIGHT,
    STALL_NS, Verdict, WINDOW_NS, Wait, WaitFor, Waiting,
};
pub use work::{Direction, FunctionId, Key, Work};
