//! The session of one guest: its thread, what it hears, and what each request does.

mod engine;
mod hear;
mod requests;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use crossbeam::channel::{Receiver, unbounded};
use vgpu_proto::call::ops::Progress;
use vgpu_proto::lease::WorkerEnd;
use vgpu_proto::limits::{DEPTH_BYTES, DEPTH_CALLS};
use vgpu_proto::worker::Start;

use self::engine::Engine;
use super::flow::Flow;
use super::link::{Lease, Link, Out, Printf};
use super::objects::{Done, FoundDevice, Objects, Pool};
use crate::control::{Messages, Vgpud, Waker};
use crate::driver::Block;
use crate::wire::{Reader, Writer};

/// Threads that wait for events. More streams than these are looked at by the session's thread.
const WAITERS: usize = 24;
/// Threads for calls that may block.
const HELPERS: usize = 4;

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

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// The guest broke the protocol.
    pub protocol_error: bool,
    /// What happened.
    pub text: String,
}

impl Ending {
    fn closed(text: impl Into<String>) -> Ending {
        Ending {
            protocol_error: false,
            text: text.into(),
        }
    }

    fn broken(text: impl Into<String>) -> Ending {
        Ending {
            protocol_error: true,
            text: text.into(),
        }
    }
}

/// Serves the guest on `socket` until it goes.
pub fn serve(parts: Parts, socket: OwnedFd) -> Ending {
    let socket = File::from(socket);
    let writer = match prepare(&socket) {
        Ok(writer) => writer,
        Err(e) => return Ending::closed(format!("the guest's socket cannot be used: {e}")),
    };
    let session = match Session::new(parts, writer) {
        Ok(session) => session,
        Err(text) => return Ending::closed(text),
    };
    let mut engine = Engine::new(session, Reader::new(socket));
    let ending = engine.run();
    // Giving things back one by one could wait for a kernel that never ends; the process ends now
    // and the kernel takes all of it.
    std::mem::forget(engine);
    ending
}

fn prepare(socket: &File) -> io::Result<Writer<Block>> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(Writer::new(socket.try_clone()?))
}

/// Everything of a session.
struct Session {
    link: Link,
    objects: Objects,
    flow: Flow,
    control: Messages,
    done: Receiver<Done>,
    waker: Waker,
    /// The answer of vgpud to a request for an image's memory.
    room: Option<(u64, Result<File, String>)>,
}

impl Session {
    /// A session over the guest's socket.
    ///
    /// # Errors
    /// A sentence, if there is no device.
    fn new(parts: Parts, writer: Writer<Block>) -> Result<Session, String> {
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
        let (tell, done) = unbounded();
        let depth = Progress {
            calls: start.depth_calls.into(),
            bytes: start.depth_bytes,
        };
        let mut out = Out::new(writer, depth);
        if let Some((calls, bytes)) = changed {
            out.set_depth(within_bounds(calls, bytes));
        }
        let helpers = Pool::new("helper", HELPERS, tell.clone(), waker.clone());
        Ok(Session {
            objects: Objects::new(&start, devices, vgpud.clone(), helpers)?,
            flow: Flow::new(Pool::new("waiter", WAITERS, tell, waker.clone())),
            link: Link {
                out,
                lease: Lease::new(pages, vgpud.clone()),
                vgpud,
                printf,
                received: Progress { calls: 0, bytes: 0 },
                owing: false,
                poison: None,
            },
            control,
            done,
            waker,
            room: None,
        })
    }

    /// The three owners, which are passed to each other.
    fn owners(&mut self) -> (&mut Flow, &mut Objects, &mut Link) {
        (&mut self.flow, &mut self.objects, &mut self.link)
    }
}

/// What may be untaken, whatever vgpud says.
fn within_bounds(calls: u32, bytes: u64) -> Progress {
    Progress {
        calls: calls.clamp(1, DEPTH_CALLS).into(),
        bytes: bytes.clamp(1, DEPTH_BYTES),
    }
}
