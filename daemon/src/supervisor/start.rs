//! The start of one session's worker.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::launcher::Launcher;
use super::log::WorkerLogs;
use crate::events::{EventSink, Report};
use crate::mediator::{AdmitRequest, Admitted, GuestEnd, MediatorHandle, Ready, Refused};

/// Starts the workers of guests. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Supervisor {
    mediator: MediatorHandle,
    launcher: Arc<Launcher>,
    events: EventSink,
    logs: Arc<WorkerLogs>,
}

/// A session whose worker is ready: the guest may be welcomed.
#[derive(Debug)]
pub struct Started {
    /// The session and its limits.
    pub admitted: Admitted,
    /// Version and devices of the worker's driver.
    pub ready: Ready,
}

impl Supervisor {
    /// A supervisor that asks `mediator` for sessions and starts their workers with `launcher`.
    #[must_use]
    pub fn new(mediator: MediatorHandle, launcher: Arc<Launcher>, events: EventSink) -> Supervisor {
        Supervisor {
            mediator,
            launcher,
            events,
            logs: Arc::default(),
        }
    }

    /// The launcher of the worker processes.
    #[must_use]
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// Admits a guest and starts its worker, within `worker.start_deadline_ms`. `None`: the guest
    /// was no longer `wanted` at its turn, and no process was started.
    ///
    /// # Errors
    /// The refusal for the guest. The session has then ended, or is being ended.
    pub async fn start(
        &self,
        request: AdmitRequest,
        wanted: impl FnOnce() -> bool + Send + 'static,
    ) -> Result<Option<Started>, Refused> {
        let deadline = Duration::from_millis(self.launcher.config().worker.start_deadline_ms);
        let until = Instant::now() + deadline;
        let vm = request.identity;
        let admission = self.mediator.admit(request).await?;
        let admitted = admission.admitted().clone();
        let session = admitted.session;
        let launched = match self.launcher.launch(vm, admitted.clone(), wanted).await {
            Ok(Some(launched)) => launched,
            Ok(None) => return Ok(None),
            Err(why) => {
                let refused = Refused::host_failure(&why);
                admission.abandon(why);
                return Err(refused);
            }
        };
        tokio::spawn(self.logs.clone().relay(launched.log, session, vm.vm_id));
        let ready = admission.attach(launched.worker, launched.start);
        let up = is_up(ready, launched.in_cgroup);
        match timeout(until.saturating_duration_since(Instant::now()), up).await {
            Ok(Ok(ready)) => Ok(Some(Started { admitted, ready })),
            Ok(Err(NotUp::Ended(refused))) => Err(refused),
            Ok(Err(NotUp::Draining)) => Err(Refused::draining()),
            Ok(Err(NotUp::NotInCgroup(why))) => {
                self.mediator.guest_gone(session, GuestEnd::Vanished);
                Err(Refused::host_failure(&why))
            }
            Err(_late) => {
                let why = format!(
                    "the worker was not ready within {} ms (worker.start_deadline_ms)",
                    deadline.as_millis()
                );
                self.events.report(Report::WorkerFailed {
                    vm_id: Some(vm.vm_id),
                    session_id: Some(session),
                    message: format!("Session {session} of VM {}: {why}", vm.vm_id),
                });
                self.mediator.guest_gone(session, GuestEnd::Vanished);
                Err(Refused::host_failure(&why))
            }
        }
    }
}

/// Why a started worker does not serve.
enum NotUp {
    /// The mediator ended the session.
    Ended(Refused),
    /// vgpud stops.
    Draining,
    /// The worker could not be moved into its cgroup. The session still exists.
    NotInCgroup(String),
}

/// Waits until the worker's driver is ready and the worker is in its cgroup. Before both, the
/// worker gets no data of its guest, which starts with the Welcome.
async fn is_up(
    ready: oneshot::Receiver<Result<Ready, Refused>>,
    in_cgroup: oneshot::Receiver<Result<(), String>>,
) -> Result<Ready, NotUp> {
    let ready = ready.await.map_err(|_| NotUp::Draining)?;
    let ready = ready.map_err(NotUp::Ended)?;
    let in_cgroup = in_cgroup.await;
    in_cgroup
        .unwrap_or_else(|_| Err("the move broke off".into()))
        .map_err(NotUp::NotInCgroup)?;
    Ok(ready)
}
