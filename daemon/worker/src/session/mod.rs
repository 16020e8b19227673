//! One guest program's session.
//!
//! One thread owns all of it: it reads frames, runs what needs no turn, submits the rest in order
//! under the lease, and replies. It makes no call that waits for the GPU: waiting is the business of
//! the threads of `pool`.

mod allocs;
mod arrays;
mod conditions;
mod contexts;
mod dispatch;
mod drains;
mod engine;
mod events;
mod execute;
mod graphs;
mod images;
mod link;
mod links;
mod memory;
mod modules;
mod parking;
mod pool;
mod queue;
mod rows;
mod shadows;
mod staging;
mod streams;
mod table;
mod vmm;

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;

use crossbeam::channel::{Receiver, unbounded};
use vgpu_proto::call::Op;
use vgpu_proto::call::ops::Progress;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::handshake::DeviceInfo;
use vgpu_proto::lease::WorkerEnd;
use vgpu_proto::limits::{DEPTH_BYTES, DEPTH_CALLS};
use vgpu_proto::worker::{FromWorker, Start};

use self::allocs::Allocs;
use self::arrays::Arrays;
use self::contexts::{ContextState, DeviceState};
use self::drains::Drains;
use self::events::Events;
use self::graphs::Graphs;
use self::images::Images;
pub use self::link::Printf;
use self::link::{Lease, Link, Out};
use self::memory::{Ledger, Memory};
use self::modules::{FunctionState, ModuleState};
use self::pool::{Done, Pool};
use self::queue::Queue;
use self::shadows::Shadows;
use self::staging::Staging;
use self::streams::{Action, Streams};
use self::table::{Kind, Table};
use self::vmm::Vmm;
use crate::control::{Messages, Vgpud, Waker};
use crate::driver::{Block, Context, Device};
use crate::wire::Writer;

pub use engine::{Ending, serve};

/// Threads that wait for events. More streams than these are looked at by the session's thread.
const WAITERS: usize = 24;
/// Threads for calls that may block.
const HELPERS: usize = 4;

/// A device as it was found at start: the device, its facts, its primary context.
pub type FoundDevice = (Device, DeviceInfo, std::sync::Arc<Context>);

/// What a session is made of.
pub struct Parts {
    /// What vgpud ordered.
    pub start: Start,
    /// The depth credit in place of the one in `start`, if that was changed meanwhile.
    pub depth: Option<(u32, u64)>,
    /// The shared pages.
    pub pages: WorkerEnd<'static>,
    /// The devices, at least one.
    pub devices: Vec<FoundDevice>,
    /// Where device `printf` goes.
    pub printf: Printf,
    /// To vgpud.
    pub vgpud: Vgpud,
    /// From vgpud.
    pub control: Messages,
    /// Wakes the session's thread.
    pub waker: Waker,
}

/// What work is about.
struct Objects {
    devices: Vec<DeviceState>,
    contexts: Table<ContextState>,
    modules: Table<ModuleState>,
    functions: Table<FunctionState>,
    /// Results of links that the guest has not fetched.
    links: Table<Vec<u8>>,
    graphs: Graphs,
    memory: Memory,
    arrays: Arrays,
    vmm: Vmm,
    shadows: Shadows,
    /// By device, and at last the one of pinned host memory.
    ledgers: Vec<Ledger>,
    quota: u64,
    allocs: Allocs,
    images: Images,
    staging: Staging,
    helpers: Pool,
}

/// The way of work through the session.
struct Flow {
    queue: Queue,
    streams: Streams,
    events: Events,
    drains: Drains,
    /// What streams have passed and what is to be done about it, in order.
    due: VecDeque<Action>,
    /// Pieces of data for the guest that are in flight.
    pieces_out: usize,
    waiters: Pool,
}

/// Everything of a session.
pub struct Session {
    link: Link,
    objects: Objects,
    flow: Flow,
    control: Messages,
    done: Receiver<Done>,
    waker: Waker,
    /// The answer of vgpud to a request for an image's memory.
    room: Option<(u64, std::result::Result<File, String>)>,
}

impl Session {
    /// A session over the guest's socket.
    ///
    /// # Errors
    /// A sentence, if there is no device.
    pub fn new(parts: Parts, writer: Writer<Block>) -> Result<Session, String> {
        let Parts {
            start,
            depth: changed,
            pages,
            devices,
            printf,
            vgpud,
            control,
            waker,
        } = parts;
        let first = devices.first().ok_or("the driver has no device")?;
        let staging = Staging::new(&first.2);
        let ledgers = (0..=devices.len()).map(|_| Ledger::default()).collect();
        let (tell, done) = unbounded();
        let depth = Progress {
            calls: start.depth_calls.into(),
            bytes: start.depth_bytes,
        };
        let mut out = Out::new(writer, depth);
        if let Some((calls, bytes)) = changed {
            out.set_depth(within_bounds(calls, bytes));
        }
        let link = Link {
            out,
            lease: Lease::new(pages, vgpud.clone()),
            vgpud: vgpud.clone(),
            printf,
            received: Progress { calls: 0, bytes: 0 },
            owing: false,
            poison: None,
        };
        let objects = Objects {
            helpers: Pool::new("helper", HELPERS, tell.clone(), waker.clone()),
            devices: devices.into_iter().map(DeviceState::new).collect(),
            contexts: Table::new(Kind::Context),
            modules: Table::new(Kind::Module),
            functions: Table::new(Kind::Function),
            links: Table::new(Kind::Link),
            graphs: Graphs::default(),
            memory: Memory::default(),
            arrays: Arrays::new(),
            vmm: Vmm::new(),
            shadows: Shadows::default(),
            ledgers,
            quota: start.memory_quota,
            allocs: Allocs::default(),
            images: Images::new(Path::new(&start.image_dir), vgpud),
            staging,
        };
        let flow = Flow {
            waiters: Pool::new("waiter", WAITERS, tell, waker.clone()),
            streams: Streams::new(),
            events: Events::new(),
            queue: Queue::default(),
            drains: Drains::default(),
            due: VecDeque::new(),
            pieces_out: 0,
        };
        Ok(Session {
            link,
            objects,
            flow,
            control,
            done,
            waker,
            room: None,
        })
    }

    /// vgpud changed how much the guest may have sent that is not taken.
    fn set_depth(&mut self, calls: u32, bytes: u64) {
        self.link.out.set_depth(within_bounds(calls, bytes));
    }

    /// A driver call about request `id` failed (0: about none). A device fault ends the session's use
    /// of the device; anything else is told to the guest as an asynchronous error.
    fn trouble(&mut self, id: u64, code: CuResult) {
        if code.is_sticky() {
            self.device_failed(code, "returned by a driver call");
        } else {
            self.link.out.async_error(id, code);
        }
    }

    /// As [`Session::trouble`], for a request whose caller waits for the answer.
    fn refuse(&mut self, op: Op, id: u64, code: CuResult) {
        if code.is_sticky() {
            self.device_failed(code, "returned by a driver call");
        }
        self.link.out.status(op, id, code);
    }

    /// The device reported a fault: whatever waits fails with it, and everything from now on.
    fn device_failed(&mut self, code: CuResult, seen: &str) {
        if self.link.poison.is_some() {
            return;
        }
        tracing::warn!("device fault: {code}, {seen}");
        self.link.poison = Some(code);
        let text = format!("{code}, {seen}");
        self.link.vgpud.send(FromWorker::Fault { code, text });
        self.print_all();
        self.link.out.async_error(0, code);
        for action in self.abandon_streams() {
            match action {
                Action::Piece {
                    id, op, last: true, ..
                }
                | Action::Failed { id, op, .. } => self.link.out.status(op, id, code),
                Action::Freed { device, charge } => self.freed_in_vain(device, charge),
                Action::Piece { .. } | Action::Staged(_) | Action::HostFunc { .. } => {}
                // Below, with those that are not yet attached to a stream.
                Action::Drain(_) | Action::Drained(_) => {}
            }
        }
        self.flow.pieces_out = 0;
        self.abandon_queue(code);
        self.abandon_parked(code);
        self.abandon_drains(code);
        self.abandon_allocs(code);
    }
}

/// What may be untaken, whatever vgpud says.
fn within_bounds(calls: u32, bytes: u64) -> Progress {
    Progress {
        calls: calls.clamp(1, DEPTH_CALLS).into(),
        bytes: bytes.clamp(1, DEPTH_BYTES),
    }
}
