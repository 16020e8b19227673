//! One guest program's session.
//!
//! One thread owns all of it: it reads frames, runs what needs no turn, submits the rest in order
//! under the lease, and replies. It makes no call that waits for the GPU: waiting is the business
//! of the threads of `objects::pool`.
//!
//! | module | owns |
//! |---|---|
//! | `serve` | the session of the three below, its thread, and what each request does |
//! | `flow` | the queue, the execution, streams and events, what waits for the end of work |
//! | `objects` | contexts, modules, memory, arrays, graphs |
//! | `link` | the answers for the guest, the lease with its credit, the messages for vgpud |
//!
//! `serve` calls `flow` and `objects`, `flow` calls `objects`, and all three answer over `link`.
//! Each gets the owners below it as arguments, and calls no owner above it.

mod flow;
mod link;
mod objects;
mod serve;

pub use self::link::Printf;
pub use self::objects::FoundDevice;
pub use self::serve::{Ending, Parts, serve};
