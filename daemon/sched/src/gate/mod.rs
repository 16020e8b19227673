//! The worker's part of scheduling: decides which operations of a session may be submitted now.
//!
//! vgpud decides which session has the GPU. The worker decides how much of its queue may be
//! unfinished on the device at once. With too much unfinished work, the next VM waits too long
//! after a revoke; with too little, the device idles between two kernels. The measure is *predicted
//! GPU time*, taken from earlier runs of the same operations ([`Predictor`]): a [`Gate`] allows
//! unfinished operations of about [`Config::window_ns`]. The gate is pure, like the rest of this
//! crate: time is an argument, and the worker and the simulator drive the same code.
//!
//! 1. The predicted time of unfinished work stays within the window. An operation that does not fit
//!    behind another is submitted when the other has 200 µs left ([`AHEAD_NS`]). So the device
//!    never idles for lack of work, and after a revoke the next VM waits for one window, or for one
//!    kernel and 200 µs.
//! 2. An operation whose time is unknown, because it never ran, is submitted alone.
//! 3. While others wait, an operation that would end after the slice is not submitted behind other
//!    work. Exception: if the device would idle before the end of the slice, the operation is
//!    submitted 200 µs before the device would idle. So a slice is used to its end and overrun by
//!    at most one operation.
//! 4. A misprediction closes the window to one operation; each correct prediction doubles the
//!    window. So a guest whose kernel runs 1 µs during learning and 50 ms later gets no depth.
//! 5. The window grows by the number of streams whose operations were seen to run at the same time,
//!    because kernels of several streams may run side by side.
//! 6. Beside an overrunner, the window is two time slices of the driver, and the times measured
//!    there are discarded. They include the overrunner's time slices, and the window delays only
//!    the overrunner.
//! 7. After 1 ms without progress (beside an overrunner 3 ms), work of idle streams is submitted,
//!    with all work before it in the queue, even while the lease is being returned. Kernels may
//!    wait for each other; so the gate delays work but never deadlocks. The rule also applies if
//!    all unfinished operations wait for a value in memory.
//!
//! # How to drive a gate
//!
//! Operations have *places* in the session's queue (1, 2, …) and *numbers* in their stream (1, 2,
//! …). Each stream has a [`Flow`]. Markers show completion: [`Gate::completed`] reports that a
//! stream is complete up to a number.
//!
//! ```
//! use vgpu_sched::gate::{Config, Flow, FunctionId, Gate, Key, LeaseView, Verdict, Waiting, Work};
//!
//! let mut gate = Gate::new(Config::default());
//! let mut stream = Flow::default();
//! let mine = LeaseView { closing: false, slice_end_ns: None, beside: false };
//! let function = FunctionId::new(b"module", "f");
//! let kernel = Work::Kernel(Key::kernel(function, [8, 1, 1], [256, 1, 1], 0));
//!
//! // The first launch is unknown: it goes, alone.
//! let Verdict::Submit(estimate) = gate.may_submit(0, 1, kernel, &stream, &mine) else { panic!() };
//! assert!(estimate.is_none());
//! gate.submitted(0, &mut stream, 1, kernel, estimate);
//! assert!(matches!(gate.may_submit(10, 2, kernel, &stream, &mine), Verdict::Wait(_)));
//!
//! // It completes after 20 µs, the prediction from now on: 25 launches fill 500 µs.
//! gate.completed(20_000, &mut stream, 1);
//! let mut number = 1;
//! while let Verdict::Submit(estimate) =
//!     gate.may_submit(20_000, number + 1, kernel, &stream, &mine)
//! {
//!     number += 1;
//!     gate.submitted(20_000, &mut stream, number, kernel, estimate);
//! }
//! assert_eq!(number, 26);
//!
//! // Nothing completes: after a millisecond the work of idle streams is submitted, too,
//! // even if the lease is being given back.
//! let closing = LeaseView { closing: true, ..mine };
//! let later = 20_000 + gate.stall_in(20_000).unwrap();
//! let behind = [Waiting { place: 27, idle: false }, Waiting { place: 28, idle: true }];
//! assert_eq!(gate.relieve(later, behind, false), Some(28));
//! let other = Flow::default();
//! assert!(matches!(gate.may_submit(later, 28, kernel, &other, &closing), Verdict::Submit(_)));
//! assert!(matches!(gate.may_submit(later, 29, kernel, &other, &closing), Verdict::Wait(_)));
//! ```
//!
//! [`lease::Lease`] joins gate and lease: it holds the states of the worker's lease and makes the
//! messages to vgpud. [`Hold`] learns how long a lease is kept without work.

mod estimate;
mod flow;
mod hold;
pub mod lease;
mod parallel;
mod predict;
mod table;
mod window;
mod work;

pub use estimate::Estimate;
pub use flow::Flow;
pub use hold::Hold;
pub use predict::Predictor;
pub use window::{
    AHEAD_NS, BESIDE_NS, Completion, Config, Gate, LeaseView, MARKER_LAUNCHES, MAX_IN_FLIGHT,
    STALL_NS, Verdict, WINDOW_NS, Wait, WaitFor, Waiting,
};
pub use work::{Direction, FunctionId, Key, Work};
