//! The session of one guest: its thread, the messages that it receives, and the execution of each
//! request.

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

/// Number of threads that wait for events. If more streams than this number have work, the
/// session's thread checks the remaining streams itself.
const WAITERS: usize = 24;
/// Number of threads for calls that may block.
const HELPERS: usize = 4;

/// The parts from which a session is built.
pub struct Parts {
    /// The start message of vgpud.
    pub start: Start,
    /// The depth credit that replaces the depth credit in `start`, if vgpud changed the credit in
    /// the meantime.
    pub depth: Option<(u32, u64)>,
    /// The shared pages.
    pub pages: WorkerEnd<'static>,
    /// The devices, at least one.
    pub devices: Vec<FoundDevice>,
    /// Captured output of device `printf`.
    pub printf: Printf,
    /// Sends messages to vgpud.
    pub vgpud: Vgpud,
    /// Receives messages of vgpud.
    pub control: Messages,
    /// Wakes the session's thread.
    pub waker: Waker,
}

/// How and why a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Whether the guest broke the protocol.
    pub protocol_error: bool,
    /// The reason as a sentence.
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

/// Serves the guest on `socket` until the session ends.
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
    // Releasing each object could wait for a kernel that never ends. The process ends now, and the
    // kernel frees everything.
    std::mem::forget(engine);
    ending
}

fn prepare(socket: &File) -> io::Result<Writer<Block>> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    fcntl(socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(Writer::new(socket.try_clone()?))
}

/// The state of a session.
struct Session {
    link: Link,
    objects: Objects,
    flow: Flow,
    control: Messages,
    done: Receiver<Done>,
    waker: Waker,
    /// vgpud's answer to a request for an image's memory: number of the image, and the memory or a
    /// sentence.
    room: Option<(u64, Result<File, String>)>,
}

impl Session {
    /// A session on the guest's socket.
    ///
    /// # Errors
    /// A sentence, if there is no device or the system starts no thread.
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
        let helpers = Pool::new("helper", HELPERS, tell.clone(), waker.clone())?;
        Ok(Session {
            objects: Objects::new(&start, devices, vgpud.clone(), helpers)?,
            flow: Flow::new(Pool::new("waiter", WAITERS, tell, waker.clone())?),
            link: Link {
                out,
                lease: Lease::new(pages, vgpud.clone()),
                vgpud,
                printf,
                received: Progress { calls: 0, bytes: 0 },
                owing: false,
                poison: None,
                after_fault: 0,
            },
            control,
            done,
            waker,
            room: None,
        })
    }

    /// The three parts of the session, which call each other.
    fn owners(&mut self) -> (&mut Flow, &mut Objects, &mut Link) {
        (&mut self.flow, &mut self.objects, &mut self.link)
    }
}

/// The depth credit, limited to its bounds regardless of vgpud's message.
fn within_bounds(calls: u32, bytes: u64) -> Progress {
    Progress {
        calls: calls.clamp(1, DEPTH_CALLS).into(),
        bytes: bytes.clamp(1, DEPTH_BYTES),
    }
}
