//! One guest program's session.
//!
//! One thread owns all of it: it reads frames, runs what needs no turn, submits the rest in order
//! under the lease, and replies. It makes no call that waits for the GPU: waiting is the business of
//! the threads of `objects::pool`.
//!
//! | module | what it owns |
//! |---|---|
//! | `link` | the answers for the guest, the lease with its credit, what vgpud is told |
//! | `objects` | contexts, modules, memory, arrays, graphs: what a guest's calls are about |
//! | `flow` | the queue, execution, streams and events, what waits for work |
//! | `serve` | the session of these three, its thread, and what each request does |
//!
//! `serve` calls `flow` and `objects`, `flow` calls `objects`, all of them answer over `link`; each gets
//! those below it as arguments, and none calls what is above it.

mod flow;
mod link;
mod objects;
mod serve;

pub use self::link::Printf;
pub use self::objects::FoundDevice;
pub use self::serve::{Ending, Parts, serve};
