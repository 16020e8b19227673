//! The interface of the mediator for the rest of vgpud: commands with at most one answer each, and
//! no locks.

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
use crate::system::guarded::Guarded;
use crate::worker::spawn::Worker;

/// A request of a guest process for a session.
#[derive(Debug)]
pub struct AdmitRequest {
    /// VM of the guest process.
    pub identity: VmIdentity,
    /// Hello message of the guest.
    pub hello: Hello,
    /// Address of the guest, for administrators.
    pub peer: String,
    /// Sender of notes to the guest's control connection.
    pub notes: mpsc::Sender<Note>,
}

/// A note on a session's control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// The session is over, with code and reason.
    Ended(CuResult, String),
    /// The host drains, with the reason.
    Draining(String),
}

/// An admitted session: where to start the worker, and with which settings.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// Number of the session.
    pub session: u64,
    /// GPUs of the session; several for a gang. Never empty.
    pub gpus: Vec<ScannedGpu>,
    /// Memory quota of the VM in bytes; `None`: no quota.
    pub memory_quota: Option<u64>,
    /// Bytes of host memory that the VM may pin; `None`: no limit.
    pub pinned_bytes: Option<u64>,
    /// Depth credits of the guest in calls.
    pub depth_calls: u32,
    /// Depth credits of the guest in bytes.
    pub depth_bytes: u64,
}

/// A refused session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Code of the refusal.
    pub code: Refusal,
    /// Sentence for the guest.
    pub text: String,
}

/// A worker that is ready.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Version of the host's CUDA driver.
    pub driver_version: u32,
    /// Devices of the session.
    pub devices: Vec<DeviceInfo>,
}

/// How the guest's side of a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestEnd {
    /// The guest said goodbye.
    Goodbye,
    /// The control connection ended without a goodbye.
    Vanished,
    /// The guest broke the protocol on the control connection.
    Broken,
    /// The guest never opened its data connection.
    NoData,
}

/// The answer to a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pong {
    /// Sessions that are not being ended.
    pub open: usize,
    /// All sessions, including those whose workers are not yet verified gone.
    pub known: usize,
    /// Number of the next session.
    pub next_session: u64,
}

/// A command for the mediator.
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
        ready: oneshot::Sender<Result<Ready, Refused>>,
    },
    Abandon {
        session: u64,
        why: Option<String>,
    },
    Data {
        session: u64,
        fd: Guarded,
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
        /// The killed processes whose memory the check looked for.
        killed: Vec<u32>,
    },
    /// vgpud is about to ask the devices which processes use them.
    Audit(oneshot::Sender<()>),
    /// Answer of a device since the audit began.
    DeviceUse {
        gpu_uuid: String,
        processes: Vec<DeviceProcess>,
    },
    /// An image is in the cache of its VM, or cannot be cached.
    ImageKept {
        session: u64,
        image: u64,
    },
    /// The memory of an image is freed, and the descriptor is closed.
    ImageGone {
        vm: u32,
        session: u64,
        bytes: u64,
    },
    /// The bytes of an image do not match the hash that this session's worker gave.
    ImageForged {
        session: u64,
        image: u64,
        vm: VmIdentity,
    },
    /// These GPUs have no worker of an earlier vgpud any more. On all GPUs together, `left` workers
    /// of an earlier vgpud remain.
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

/// Sends commands to the mediator. Cheap to clone.
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
        // The counter cannot overflow in practice, and a counter that is already set wakes the
        // mediator as well.
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

    /// Requests a session.
    ///
    /// # Errors
    /// The refusal for the guest.
    pub async fn admit(&self, request: AdmitRequest) -> Result<Admission, Refused> {
        let answer = self.ask(|tx| Command::Admit(Box::new(request), tx)).await;
        let admitted = answer.unwrap_or_else(|_| Err(Refused::draining()))?;
        Ok(Admission {
            handle: self.clone(),
            admitted,
            open: true,
        })
    }

    /// Describes a VM for its own guests; `None` if the VM is not registered any more.
    ///
    /// # Errors
    /// If vgpud is stopping.
    pub async fn look(&self, identity: VmIdentity) -> Result<Option<Looked>, MediationError> {
        self.ask(|answer| Command::Look { identity, answer }).await
    }

    /// Passes a session's data connection to the mediator.
    pub fn data(&self, session: u64, fd: Guarded) {
        // On failure the mediator has ended, and so has the session.
        let _ = self.send(Command::Data { session, fd });
    }

    /// Reports the end of the guest's side.
    pub fn guest_gone(&self, session: u64, how: GuestEnd) {
        let _ = self.send(Command::GuestGone { session, how });
    }
}

impl Refused {
    /// The refusal of a session that the host could not start, for this reason.
    #[must_use]
    pub fn host_failure(why: &str) -> Refused {
        Refused {
            code: Refusal::HostFailure,
            text: format!("the host could not start a session: {why}"),
        }
    }

    /// The refusal while vgpud is stopping.
    #[must_use]
    pub fn draining() -> Refused {
        let text = "this host is stopping its GPU service; try again later";
        Refused {
            code: Refusal::Draining,
            text: text.into(),
        }
    }
}

/// An admitted session without a worker. An admission that is dropped unused ends the session.
#[derive(Debug)]
pub struct Admission {
    handle: MediatorHandle,
    admitted: Admitted,
    open: bool,
}

impl Admission {
    /// Where and with which settings to start the worker.
    #[must_use]
    pub fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    /// Passes the started worker to the mediator. The returned receiver gets the version and the
    /// devices of the driver once the driver is ready, or the reason why not. From now on
    /// [`MediatorHandle::guest_gone`] ends the session.
    #[must_use]
    pub fn attach(
        mut self,
        worker: Worker,
        start: Start,
    ) -> oneshot::Receiver<Result<Ready, Refused>> {
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

    /// Ends the session because the worker could not be started.
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
