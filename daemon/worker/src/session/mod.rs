//! One guest program's session.
//!
//! One thread owns the whole session: it reads frames, executes requests that need no lease,
//! submits the requests that need a lease in order under the lease, and replies. The thread makes
//! no call that waits for the GPU; threads of `objects::pool` make these calls.
//!
//! | module | owns |
//! |---|---|
//! | `serve` | the session with the parts below, its thread, the execution of each request |
//! | `flow` | the queue, its execution, streams and events, requests that wait for completion |
//! | `objects` | contexts, modules, memory, arrays, graphs |
//! | `link` | answers to the guest, the lease with its credit, messages to vgpud |
//!
//! `serve` calls `flow` and `objects`, `flow` calls `objects`, and all three send over `link`. Each
//! part gets the parts below it as arguments and calls no part above it.

mod flow;
mod link;
mod objects;
mod serve;

pub use self::link::Printf;
pub use self::objects::FoundDevice;
pub use self::serve::{Ending, Parts, serve};
