//! Carries out the scheduler's decisions: on the lease pages, by message and by kill.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use vgpu_api::GpuState;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::lease::GrantTerms;
use vgpu_proto::worker::ToWorker;
use vgpu_sched::{Action, Credits, Depth, Epoch, Event, GpuId, KillCause, SessionId, Terms};

use super::actor::Actor;
use super::handle::Command;
use super::reactor::now_ns;
use super::session::{Lease, Session};
use crate::events::{EndCause, Report};
use crate::mediation::{CheckFound, GpuCheck};

impl Actor {
    /// Carries out an action. Answers ([`Actor::ask`]) and strikes are handled elsewhere.
    pub(super) fn carry_out(&mut self, action: Action) {
        match action {
            Action::Grant(terms) => self.grant(&terms, false),
            Action::GrantBeside(terms) => self.grant(&terms, true),
            Action::Alone { session, epoch, .. } => {
                if let Some((session, _)) = self.holder(session, epoch)
                    && let Some(worker) = &session.worker
                {
                    worker.pages.end().alone();
                }
            }
            Action::Beside { session, epoch, .. } => {
                if let Some((session, _)) = self.holder(session, epoch)
                    && let Some(worker) = &session.worker
                {
                    worker.pages.end().beside(epoch.0);
                }
            }
            Action::Extend {
                session,
                epoch,
                slice_end_ns,
                ..
            } => self.extend(session, epoch, slice_end_ns),
            Action::Revoke { session, epoch, .. } => self.revoke(session, epoch),
            Action::Want {
                session,
                epoch,
                wanted,
                ..
            } => self.want(session, epoch, wanted),
            Action::Credit {
                session,
                epoch,
                credits,
            } => self.credit(session, epoch, credits),
            Action::SetTimer { at_ns } => self.set_timer(at_ns),
            Action::Kill { session, cause } => self.kill(session, cause),
            Action::Canary { gpu } => self.run_canary(gpu),
            Action::GpuSuspect { gpu } => self.suspect(gpu),
            Action::SoftLimit {
                session, kept_ns, ..
            } => self.soft_limit(session, kept_ns),
            Action::Overrun { session, .. } => {
                // A VM can cause this many times a second.
                tracing::debug!(
                    session = session.0,
                    "a turn outlasts its slice; the next VM runs beside it"
                );
            }
            Action::Ignored { reason } => {
                tracing::debug!(?reason, "the scheduler ignored an event");
            }
            Action::QuarantineOver { vm } => self.quarantine_over(vm),
            other => tracing::error!(?other, "vgpud does not know this action of the scheduler"),
        }
    }

    /// Sends a message to a session's worker. A worker whose socket is full is ended, because a
    /// lost message cannot be repeated. This is no breach: a worker that is stopped or gets no CPU
    /// time does the same.
    pub(super) fn send(&mut self, id: u64, message: &ToWorker) {
        self.send_with(id, message, &[]);
    }

    /// As [`Actor::send`], and passes the descriptors that belong to the message.
    pub(super) fn send_with(&mut self, id: u64, message: &ToWorker, fds: &[BorrowedFd<'_>]) {
        let Some(worker) = self.sessions.get(&id).and_then(|s| s.worker.as_ref()) else {
            return;
        };
        match worker.channel.send(message, fds) {
            // The socket is closed: the worker's death will be reported.
            Ok(()) | Err(crate::worker::channel::SendError::Closed) => {}
            Err(e) => {
                let (cause, code) = (EndCause::WorkerDied, CuResult::DEVICE_UNAVAILABLE);
                self.end(id, cause, code, &e.to_string());
            }
        }
    }

    fn holder(&mut self, session: SessionId, epoch: Epoch) -> Option<(&mut Session, Lease)> {
        let session = self.sessions.get_mut(&session.0)?;
        let lease = session.lease.filter(|lease| lease.epoch == epoch.0)?;
        Some((session, lease))
    }

    fn grant(&mut self, terms: &Terms, beside: bool) {
        let Some(session) = self.sessions.get_mut(&terms.session.0) else {
            return;
        };
        let Some(worker) = &session.worker else {
            return;
        };
        let end = worker.pages.end();
        let epoch = terms.epoch.0;
        session.lease = Some(Lease {
            epoch,
            credits: terms.credits,
            hold_ns: terms.hold_ns,
            parked: false,
            ending: false,
        });
        session.held.begin(now_ns());
        let page = GrantTerms {
            epoch,
            slice_end_ns: terms.slice_end_ns,
            hold_ns: terms.hold_ns,
            window_ns: terms.window_ns,
            credit_calls: terms.credits.calls,
            credit_bytes: terms.credits.bytes,
            beside,
        };
        end.grant(&page, terms.wanted);
        let slice_ns = terms.slice_end_ns.saturating_sub(now_ns());
        self.send(terms.session.0, &ToWorker::Grant { epoch, slice_ns });
        self.schedule_progress();
    }

    /// The holder of the lease gets the next turn too. The worker may already have stopped for the
    /// end of the slice, so a message wakes the worker.
    fn extend(&mut self, session: SessionId, epoch: Epoch, slice_end_ns: u64) {
        let Some((held, _)) = self.holder(session, epoch) else {
            return;
        };
        let Some(worker) = &held.worker else { return };
        worker.pages.end().extend(slice_end_ns);
        if let Some(lease) = &mut held.lease {
            lease.ending = false;
        }
        let slice_ns = slice_end_ns.saturating_sub(now_ns());
        let epoch = epoch.0;
        self.send(session.0, &ToWorker::Grant { epoch, slice_ns });
    }

    fn revoke(&mut self, session: SessionId, epoch: Epoch) {
        let Some((held, lease)) = self.holder(session, epoch) else {
            return;
        };
        let Some(worker) = &held.worker else { return };
        let end = worker.pages.end();
        if end.revoke(epoch.0) && end.reclaim(epoch.0) {
            self.reclaimed(session, epoch);
        } else if !lease.ending {
            // An ending lease needs no revoke message: the worker is about to release the lease,
            // and reads the revoke word on the lease page.
            self.send(session.0, &ToWorker::Revoke { epoch: epoch.0 });
        }
    }

    /// A parked lease was taken back. The worker had nothing in flight and sends no message about
    /// it.
    fn reclaimed(&mut self, session: SessionId, epoch: Epoch) {
        let Some((held, _)) = self.holder(session, epoch) else {
            return;
        };
        held.lease = None;
        held.held.end(now_ns());
        let used = held.used();
        self.feed(Event::Released {
            session,
            epoch,
            used,
            depth: Depth::default(),
        });
    }

    fn want(&mut self, session: SessionId, epoch: Epoch, wanted: bool) {
        let Some((held, _)) = self.holder(session, epoch) else {
            return;
        };
        let Some(worker) = &held.worker else { return };
        let end = worker.pages.end();
        if !wanted {
            end.unwant();
        } else if end.want(epoch.0) && end.reclaim(epoch.0) {
            self.reclaimed(session, epoch);
        }
    }

    fn credit(&mut self, session: SessionId, epoch: Epoch, credits: Credits) {
        let Some((held, lease)) = self.holder(session, epoch) else {
            return;
        };
        held.lease = Some(Lease { credits, ..lease });
        let Some(worker) = &held.worker else { return };
        worker.pages.end().credit(credits.calls, credits.bytes);
        let Credits { calls, bytes } = credits;
        self.send(session.0, &ToWorker::Credit { calls, bytes });
    }

    fn kill(&mut self, session: SessionId, cause: KillCause) {
        let (why, code) = match cause {
            KillCause::LaunchTimeout | KillCause::ContendedLimit => {
                (EndCause::HardLimit, CuResult::LAUNCH_TIMEOUT)
            }
            KillCause::SoftLimit => (EndCause::SoftLimit, CuResult::LAUNCH_TIMEOUT),
            KillCause::LeaseNotReturned => (EndCause::Cheating, CuResult::LAUNCH_TIMEOUT),
            KillCause::GpuLost => (EndCause::GpuLost, CuResult::DEVICE_UNAVAILABLE),
            _ => (EndCause::Administrator, CuResult::DEVICE_UNAVAILABLE),
        };
        let text = self.kill_text(session, cause);
        self.end(session.0, why, code, &text);
    }

    /// The cause of a kill as a sentence, with the value of the limit.
    fn kill_text(&self, session: SessionId, cause: KillCause) -> String {
        let text = cause.to_string();
        let vm = self.sessions.get(&session.0).map(|session| session.vm);
        let vm = vm.and_then(|vm| self.registry.vm(vm));
        let limit = vm.and_then(|vm| {
            let limits = self.registry.limits(vm);
            match cause {
                KillCause::SoftLimit => Some(("soft limit", limits.soft_limit_ms.value()?)),
                KillCause::LaunchTimeout => Some(("hard limit", limits.hard_limit_ms.value()?)),
                KillCause::ContendedLimit => {
                    let pool = &self.registry.pools.get(&vm.pool)?.record.settings;
                    Some(("contended limit", pool.contended_limit_ms))
                }
                _ => None,
            }
        });
        match limit {
            Some((name, ms)) => text.replacen(name, &format!("{name} ({ms} ms)"), 1),
            None => text,
        }
    }

    fn soft_limit(&mut self, session: SessionId, kept_ns: u64) {
        let Some(session) = self.sessions.get(&session.0) else {
            return;
        };
        self.events.report(Report::SoftLimit {
            vm_id: session.vm.vm_id,
            session_id: session.id,
            gpu_uuid: session.gpu_uuid().to_owned(),
            after: Duration::from_nanos(kept_ns),
        });
    }

    fn run_canary(&mut self, gpu: GpuId) {
        let Some(record) = self.registry.gpu(gpu).cloned() else {
            return;
        };
        let (canary, handle) = (self.canary.clone(), self.handle.clone());
        let killed = self.killed_on(gpu);
        self.runtime.spawn(async move {
            let gpu_id = record.gpu_id;
            let check = canary(record, killed.clone()).await;
            let _ = handle.send(Command::CanaryDone {
                gpu_id,
                check,
                killed,
            });
        });
    }

    pub(super) fn killed_on(&self, gpu: GpuId) -> Vec<u32> {
        let killed = self.killed.get(&gpu);
        killed.into_iter().flatten().copied().collect()
    }

    /// `killed`: the processes whose memory the check looked for.
    pub(super) fn canary_done(&mut self, gpu: GpuId, check: GpuCheck, killed: &[u32]) {
        // Sessions that end hold memory too.
        let held = self.sessions.values().any(|s| s.is_on(gpu));
        if check.found == CheckFound::MemoryFull && !held && self.full.insert(gpu) {
            // The programs that held the memory may have ended since the check.
            self.run_canary(gpu);
            return;
        }
        self.full.remove(&gpu);
        let message = check.message;
        let ok = match check.found {
            CheckFound::Passed => {
                self.canary_said.remove(&gpu);
                self.memory_is_back(gpu, killed);
                true
            }
            // Counts as passed. Otherwise a VM could make a GPU suspect by using up the GPU's
            // memory or the host's process numbers.
            CheckFound::MemoryFull if held => {
                tracing::warn!(
                    gpu = gpu.0,
                    "the GPU was not checked after a kill, because programs hold all of its memory"
                );
                true
            }
            CheckFound::HostFull => {
                tracing::warn!(
                    gpu = gpu.0,
                    "the GPU was not checked after a kill: {message}"
                );
                true
            }
            CheckFound::MemoryFull | CheckFound::WorkerLeft | CheckFound::Failed => {
                tracing::warn!(gpu = gpu.0, "the check after a kill failed: {message}");
                self.canary_said.insert(gpu, message);
                false
            }
        };
        self.feed(Event::Verified { gpu, ok });
    }

    pub(super) fn memory_is_back(&mut self, gpu: GpuId, killed: &[u32]) {
        if let Some(waiting) = self.killed.get_mut(&gpu) {
            waiting.retain(|pid| !killed.contains(pid));
        }
    }

    fn suspect(&mut self, gpu: GpuId) {
        let said = self.canary_said.remove(&gpu);
        let reason = said.or_else(|| self.stuck_on(gpu)).unwrap_or_else(|| {
            format!(
                "a killed worker was not verified gone, with its memory back, within {} ms",
                self.registry.config.worker.kill_verify_ms
            )
        });
        self.report_suspect(gpu, reason);
    }

    /// Reports a suspect GPU, and stores the reason for the guests that are refused from now on. A
    /// GPU is reported only once until its next check.
    pub(super) fn report_suspect(&mut self, gpu: GpuId, reason: String) {
        if self.suspects.contains_key(&gpu) {
            return;
        }
        let Some(record) = self.registry.gpus.get_mut(&gpu.0) else {
            return;
        };
        // The registry needs the new state too: otherwise the store's later report that the GPU is
        // ready would not count as a change.
        record.state = GpuState::Suspect;
        record.state_reason = Some(reason.clone());
        self.events.report(Report::GpuSuspect {
            gpu_uuid: record.seen.uuid.clone(),
            reason: reason.clone(),
        });
        self.suspects.insert(gpu, reason);
    }
}
