//! How the rest of vgpud speaks with the mediator: messages in, one answer each, never a lock.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam::channel::Sender;
use nix::sys::eventfd::EventFd;
use tokio::sync::{mpsc, oneshot};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::handshake::{DeviceInfo, Hello, Refusal};
use vgpu_proto::look::Looked;
use vgpu_proto::worker::Start;

use crate::config::Config;
use crate::mediation::{Change, Explained, GpuCheck, MediationError};
use crate::model::{DeviceProcess, RuntimeSnapshot, ScannedGpu, VmIdentity};
use crate::worker::spawn::Worker;

/// A guest process that asks to be served.
#[derive(Debug)]
pub struct AdmitRequest {
    /// Whose it is.
    pub identity: VmIdentity,
    /// What it said.
    pub hello: Hello,
    /// How it reached us, for people.
    pub peer: String,
    /// Where its control connection listens for notes.
    pub notes: mpsc::Sender<Note>,
}

/// Said on a session's control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The session is over.
    Ended(CuResult, String),
    /// The host drains.
    Draining(String),
}

/// Admitted: where to start the worker and with what.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// The session's number.
    pub session: u64,
    /// The GPUs it is placed on; several for a gang. Never empty.
    pub gpus: Vec<ScannedGpu>,
    /// The VM's memory quota in bytes; 0: none.
    pub memory_quota: u64,
    /// Bytes of host memory that the VM may pin; 0: no bound.
    pub pinned_bytes: u64,
    /// The guest's depth credits in calls.
    pub depth_calls: u32,
    /// The guest's depth credits in bytes.
    pub depth_bytes: u64,
}

/// Not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The code.
    pub code: Refusal,
    /// The sentence.
    pub text: String,
}

/// A worker that is up.
#[derive(Debug, Clone)]
pub struct Ready {
    /// The host driver's version.
    pub driver_version: u32,
    /// The session's devices.
    pub devices: Vec<DeviceInfo>,
}

/// Why a guest's side of a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestEnd {
    /// It said goodbye.
    Goodbye,
    /// Its control connection ended without a goodbye.
    Vanished,
    /// It broke the protocol on the control connection.
    Broken,
    /// It never opened its data connection.
    NoData,
}

/// The answer to a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pong {
    /// Sessions that are not being ended.
    pub open: usize,
    /// All sessions, those whose workers are not yet verified gone included.
    pub known: usize,
    /// The number that the next session gets.
    pub next_session: u64,
}

/// What the mediator is told or asked.
#[derive(Debug)]
pub(crate) enum Command {
    Apply(Vec<Change>, oneshot::Sender<()>),
    Reconfigure(Arc<Config>, oneshot::Sender<()>),
    Admit(
        Box<AdmitRequest>,
        oneshot::Sender<Result<Admitted, Refused>>,
    ),
    Attach {
        session: u64,
        worker: Box<Worker>,
        start: Start,
        ready: oneshot::Sender<Result<Ready, String>>,
    },
    Abandon {
        session: u64,
        why: Option<String>,
    },
    Data {
        session: u64,
        fd: OwnedFd,
    },
    GuestGone {
        session: u64,
        how: GuestEnd,
    },
    KillSession {
        session: u64,
        reason: String,
        answer: oneshot::Sender<Result<(), MediationError>>,
    },
    Snapshot(oneshot::Sender<RuntimeSnapshot>),
    SchedLog(oneshot::Sender<vgpu_sched::log::View>),
    Explain {
        vm_id: u32,
        answer: oneshot::Sender<Option<Explained>>,
    },
    Look {
        identity: VmIdentity,
        answer: oneshot::Sender<Option<Looked>>,
    },
    CanaryDone {
        gpu_id: u32,
        check: GpuCheck,
        /// The killed processes whose memory was looked for.
        killed: Vec<u32>,
    },
    /// The devices are going to be asked who uses them.
    Audit(oneshot::Sender<()>),
    /// What a device said since.
    DeviceUse {
        gpu_uuid: String,
        processes: Vec<DeviceProcess>,
    },
    /// An image is in its VM's cache, or will not be.
    ImageKept {
        session: u64,
        image: u64,
    },
    /// The memory of an image is gone, and its descriptor closed.
    ImageGone {
        vm: u32,
        session: u64,
        bytes: u64,
    },
    /// The bytes of an image are not those of the hash that this session's worker gave it.
    ImageForged {
        session: u64,
        image: u64,
        vm: VmIdentity,
    },
    /// These GPUs have no worker of an earlier vgpud any more; `left` such workers remain in all.
    Verified {
        gpu_uuids: Vec<String>,
        left: u32,
    },
    Drain {
        reason: String,
    },
    EndAll {
        reason: String,
    },
    Ping(oneshot::Sender<Pong>),
    Stop,
}

/// Speaks with the mediator. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MediatorHandle {
    commands: Sender<Command>,
    wake: Arc<EventFd>,
}

impl MediatorHandle {
    pub(crate) fn new(commands: Sender<Command>, wake: Arc<EventFd>) -> Self {
        Self { commands, wake }
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), MediationError> {
        self.commands
            .send(command)
            .map_err(|_| MediationError::Draining)?;
        // The counter cannot overflow in practice, and a lost wake-up of a counter that is set is
        // none.
        let _ = self.wake.write(1);
        Ok(())
    }

    pub(crate) async fn ask<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, MediationError> {
        let (answer, answered) = oneshot::channel();
        self.send(make(answer))?;
        answered.await.map_err(|_| MediationError::Draining)
    }

    /// Asks for a session.
    ///
    /// # Errors
    /// The refusal to tell the guest.
    pub async fn admit(&self, request: AdmitRequest) -> Result<Admission, Refused> {
        let answer = self.ask(|tx| Command::Admit(Box::new(request), tx)).await;
        let admitted = answer.unwrap_or_else(|_| Err(Refused::draining()))?;
        Ok(Admission {
            handle: self.clone(),
            admitted,
            open: true,
        })
    }

    /// What a VM is told about itself; `None` where it is not registered any more.
    ///
    /// # Errors
    /// The daemon stops.
    pub async fn look(&self, identity: VmIdentity) -> Result<Option<Looked>, MediationError> {
        self.ask(|answer| Command::Look { identity, answer }).await
    }

    /// Hands over a session's data connection.
    pub fn data(&self, session: u64, fd: OwnedFd) {
        // On failure the mediator is gone, and so is the session.
        let _ = self.send(Command::Data { session, fd });
    }

    /// Tells that the guest's side is over.
    pub fn guest_gone(&self, session: u64, how: GuestEnd) {
        let _ = self.send(Command::GuestGone { session, how });
    }
}

impl Refused {
    /// The host could not start a session, for this reason.
    #[must_use]
    pub fn host_failure(why: &str) -> Refused {
        Refused {
            code: Refusal::HostFailure,
            text: format!("the host could not start a session: {why}"),
        }
    }

    /// The daemon stops.
    #[must_use]
    pub fn draining() -> Refused {
        let text = "this host is stopping its GPU service; try again later";
        Refused {
            code: Refusal::Draining,
            text: text.into(),
        }
    }
}

/// An admitted session without a worker. Dropped unused, it is given back.
#[derive(Debug)]
pub struct Admission {
    handle: MediatorHandle,
    admitted: Admitted,
    open: bool,
}

impl Admission {
    /// Where and with what to start the worker.
    #[must_use]
    pub fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    /// Hands the started worker over; the receiver learns when its driver is up, or why not. From
    /// now on the session ends by [`MediatorHandle::guest_gone`].
    #[must_use]
    pub fn attach(
        mut self,
        worker: Worker,
        start: Start,
    ) -> oneshot::Receiver<Result<Ready, String>> {
        self.open = false;
        let (ready, is_ready) = oneshot::channel();
        let session = self.admitted.session;
        let worker = Box::new(worker);
        // On failure the sender is dropped, which the receiver sees.
        let _ = self.handle.send(Command::Attach {
            session,
            worker,
            start,
            ready,
        });
        is_ready
    }

    /// Gives the session back because its worker could not be started.
    pub fn abandon(mut self, why: String) {
        self.open = false;
        let session = self.admitted.session;
        let _ = self.handle.send(Command::Abandon {
            session,
            why: Some(why),
        });
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.open {
            let session = self.admitted.session;
            let _ = self.handle.send(Command::Abandon { session, why: None });
        }
    }
}
