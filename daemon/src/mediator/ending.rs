//! The end of a session: vgpud tells the guest the reason, shuts the data connection and kills the
//! worker. The session is gone only when the kernel reports the end of the process.

use vgpu_proto::cuda::CuResult;
use vgpu_proto::worker::ToWorker;
use vgpu_sched::{Event, GpuHealth, GpuId, SessionId};

use super::actor::Actor;
use super::handle::{Note, Refused};
use super::reactor::{Due, now_ns};
use super::session::{Dying, EXIT_CHECKS, ExitCheck, Phase, Placed, Reading, Session};
use crate::events::{EndCause, Report};
use crate::model::UsageDelta;
use crate::system::shut_down;
use crate::worker::cgroup::WorkerCgroup;
use crate::worker::process::{Scheduled, family};
use crate::worker::spawn::Worker;

/// Time in ns that a worker has to end by itself after its guest ended in good order.
const GRACE_NS: u64 = 300 * vgpu_sched::MILLIS;

/// Interval of the checks whether the remaining processes of a dead worker are gone, in ns.
const CLEAR_NS: u64 = 5 * vgpu_sched::MILLIS;

/// Most killed workers per GPU whose memory the next check looks for.
const KILLED_MOST: usize = 1_024;

/// Most messages of a dead worker that are still read.
const LAST_WORDS: usize = 1_024;

impl Actor {
    /// Ends a session. Later causes have no effect.
    pub(super) fn end(&mut self, id: u64, cause: EndCause, code: CuResult, text: &str) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.is_ending() {
            return;
        }
        // A worker that ends during its start, or on a GPU that is suspect already, is not the
        // guest's doing. Other causes of a kill are strikes themselves or not the doing of the VM.
        let suspect = |gpu: &Placed| self.suspects.contains_key(&gpu.id);
        let is_breach = matches!(session.phase, Phase::Live)
            && !session.gpus.iter().any(suspect)
            && !matches!(
                cause,
                EndCause::HardLimit
                    | EndCause::SoftLimit
                    | EndCause::Cheating
                    | EndCause::Administrator
                    | EndCause::GpuLost
                    | EndCause::Draining
            );
        session.phase = Phase::Ending(cause, text.to_owned());
        tell_guest(session, cause, code, text);
        let vm = session.vm;
        let mut deadline = None;
        let mut has_worker = false;
        if let Some(worker) = &session.worker {
            has_worker = true;
            let now = now_ns();
            let in_order =
                cause == EndCause::Guest && worker.channel.send(&ToWorker::Shutdown, &[]).is_ok();
            if in_order {
                self.reactor.at(now + GRACE_NS, Due::Kill(id));
                deadline = Some(now + GRACE_NS);
            } else {
                worker.kill();
                deadline = Some(now);
            }
        }
        if let Some(begun) = deadline {
            session.dying = Some(Dying::since(begun, is_breach));
            self.check_exit_again(id, begun);
        }
        if !matches!(
            cause,
            EndCause::Guest | EndCause::Fault | EndCause::WorkerDied
        ) {
            let mut delta = UsageDelta::default();
            delta.add.kills = 1;
            self.events.usage(vm.vm_id, vm.generation, &delta);
        }
        self.feed(Event::SessionRemoved {
            session: SessionId(id),
        });
        if !has_worker {
            self.gone(id);
        }
    }

    /// Kills a worker that did not end by itself within the grace.
    pub(super) fn kill_now(&mut self, id: u64) {
        let worker = self.sessions.get(&id).and_then(|s| s.worker.as_ref());
        // A worker that is gone needs no kill: the mediator is about to read its end.
        let Some(worker) = worker.filter(|worker| !worker.process.is_gone()) else {
            return;
        };
        worker.kill();
        self.end_after_worker(id, "closed its connection to vgpud and did not end");
    }

    /// The worker closed its control socket. The worker ends by itself within the grace, or is
    /// killed.
    pub(super) fn closed(&mut self, id: u64) {
        if self.sessions.get(&id).is_some_and(|s| s.worker.is_some()) {
            self.reactor.at(now_ns() + GRACE_NS, Due::Kill(id));
        }
    }

    /// Time in ns after which a killed worker that does not end counts as stuck in the driver.
    fn verify_ns(&self) -> u64 {
        self.registry.config.worker.kill_verify_ms * vgpu_sched::MILLIS
    }

    fn check_exit_again(&mut self, id: u64, now: u64) {
        let quarter = self.verify_ns() / EXIT_CHECKS;
        self.reactor
            .at(now.saturating_add(quarter), Due::CheckExit(id));
    }

    /// Checks whether a killed worker still exits. A process that is stuck in the driver neither
    /// uses nor waits for a processor. One that does is not stuck: it frees what it had, or gets
    /// little processor time.
    pub(super) fn check_exit(&mut self, id: u64) {
        let (now, verify_ns) = (now_ns(), self.verify_ns());
        let away_ns = self.away_ns(now);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let (Some(dying), Some(worker)) = (&mut session.dying, &session.worker) else {
            return;
        };
        if let Some(for_ns) = away_ns {
            dying.shift(for_ns);
            return self.check_exit_again(id, now);
        }
        if worker.process.is_gone() && !worker.left_something() {
            // The mediator is about to read the end of the worker.
            return self.check_exit_again(id, now);
        }
        let used_ns = worker.cgroup.as_ref().and_then(WorkerCgroup::used_ns);
        let scheduled = Scheduled::of(&remains(worker), used_ns);
        match dying.check(now, scheduled, verify_ns) {
            ExitCheck::Exits => self.feed(Event::WorkerExiting {
                session: SessionId(id),
            }),
            ExitCheck::Unclear => {}
            ExitCheck::Stuck => {
                let is_breach = dying.is_breach;
                session.dying = None;
                return self.is_stuck(id, is_breach);
            }
        }
        self.check_exit_again(id, now);
    }

    /// A killed worker should be gone by now and is not: the process may hang in the driver.
    /// `is_breach`: the VM gets a strike, once until the GPU passes a check.
    fn is_stuck(&mut self, id: u64, is_breach: bool) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let gpus: Vec<GpuId> = session.gpus.iter().map(|gpu| gpu.id).collect();
        let reason = stuck(session);
        tracing::error!(session = id, "{reason}");
        let vm = session.vm;
        let new = gpus.iter().map(|gpu| (vm, *gpu));
        let new: Vec<_> = new
            .filter(|pair| !self.struck_stuck.contains(pair))
            .collect();
        if is_breach && !new.is_empty() {
            self.struck_stuck.extend(new);
            self.strike(vm, "its worker did not end after the kill");
        }
        for gpu in gpus {
            self.report_suspect(gpu, reason.clone());
            self.feed(Event::GpuState {
                gpu,
                health: GpuHealth::Suspect,
            });
        }
    }

    /// The sentence about a killed worker on this GPU that still runs.
    pub(super) fn stuck_on(&self, gpu: GpuId) -> Option<String> {
        let on_it = |s: &&Session| s.is_on(gpu) && s.is_ending() && s.worker.is_some();
        self.sessions.values().find(on_it).map(stuck)
    }

    /// Killed workers on this GPU that still run.
    pub(super) fn dying_on(&self, gpu: GpuId) -> Vec<u32> {
        let on_it = |s: &&Session| s.is_on(gpu) && s.is_ending();
        let dying = self.sessions.values().filter(on_it);
        dying
            .filter_map(|s| s.worker.as_ref())
            .flat_map(remains)
            .collect()
    }

    /// The kernel reports the end of a worker.
    pub(super) fn died(&mut self, id: u64) {
        let Some(worker) = self.sessions.get(&id).and_then(|s| s.worker.as_ref()) else {
            return;
        };
        let Some(exit) = worker.process.ended() else {
            return;
        };
        // Earlier messages of the worker: a fault, or the reason for its end.
        if let Some(session) = self.sessions.get_mut(&id) {
            session.reading = Reading::Last;
        }
        self.read_worker(id, LAST_WORDS);
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if let Some(worker) = &session.worker {
            // A process that the worker started may still hold the other end.
            self.reactor.forget(&worker.channel);
        }
        if exit.is_crash() && self.registry.vm(session.vm).is_some() {
            self.crashes.add(session.vm, now_ns());
        }
        self.end_after_worker(id, &exit.to_string());
        self.clear(id);
    }

    /// Ends a session that is not ending yet, because its worker did `what`.
    fn end_after_worker(&mut self, id: u64, what: &str) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        match (&session.phase, &session.fault) {
            (Phase::Ending(..), _) => {}
            (Phase::Starting, _) => self.worker_failed(id, &format!("its worker {what}")),
            (Phase::Live, Some((code, text))) => {
                let (code, text) = (*code, text.clone());
                self.end(id, EndCause::Fault, code, &text);
            }
            (Phase::Live, None) => {
                let text = format!("the worker process of this session {what}");
                self.end(
                    id,
                    EndCause::WorkerDied,
                    CuResult::DEVICE_UNAVAILABLE,
                    &text,
                );
            }
        }
    }

    /// The worker of a session has ended. Kills the processes that the worker started, and removes
    /// the session once all of them are gone.
    pub(super) fn clear(&mut self, id: u64) {
        let Some(worker) = self.sessions.get(&id).and_then(|s| s.worker.as_ref()) else {
            return;
        };
        if !worker.left_something() {
            return self.gone(id);
        }
        // Without this call, epoll would report the end of the worker's process again and again.
        self.reactor.forget(&worker.process);
        worker.kill();
        self.reactor.at(now_ns() + CLEAR_NS, Due::Clear(id));
    }

    /// A session is over and none of its processes runs any more.
    fn gone(&mut self, id: u64) {
        self.settle_last(id);
        let Some(mut session) = self.sessions.remove(&id) else {
            return;
        };
        self.examine_last(&mut session);
        self.leave_images(&mut session);
        if self.registry.vm(session.vm).is_some() {
            self.meter.ended(&session);
        }
        if let Some(worker) = &mut session.worker {
            self.reactor.forget(&worker.channel);
            self.reactor.forget(&worker.process);
            let (records, pid) = (self.records.clone(), worker.process.pid());
            match worker.cgroup.take() {
                // The cgroup first: without the record no later vgpud would remove the cgroup.
                Some(cgroup) => drop(self.runtime.spawn_blocking(move || {
                    cgroup.remove();
                    records.remove(pid);
                })),
                None => records.remove(pid),
            }
            if matches!(&session.phase, Phase::Ending(cause, _) if *cause != EndCause::Guest) {
                for gpu in &session.gpus {
                    let killed = self.killed.entry(gpu.id).or_default();
                    if killed.len() < KILLED_MOST {
                        killed.insert(worker.process.pid());
                    }
                }
            }
        }
        let (cause, detail) = match (&session.phase, &session.fault) {
            // A program that ends after a device fault ended because of the fault.
            (Phase::Ending(EndCause::Guest, _), Some((_, fault))) => {
                (EndCause::Fault, fault.clone())
            }
            (Phase::Ending(cause, detail), _) => (*cause, detail.clone()),
            (Phase::Starting | Phase::Live, _) => {
                (EndCause::WorkerDied, "its worker is gone".into())
            }
        };
        self.flush_usage(session.vm);
        self.feed(Event::WorkerExited {
            session: SessionId(id),
        });
        self.share_depth(session.vm);
        self.events.report(Report::SessionEnded {
            vm_id: session.vm.vm_id,
            session_id: id,
            gpu_uuid: Some(session.gpu_uuid().to_owned()),
            cause,
            detail,
        });
    }
}

/// The remaining processes of a worker. The worker is the init process of its namespace: while it
/// runs, it waits for the end of all others.
fn remains(worker: &Worker) -> Vec<u32> {
    match worker.process.is_gone() {
        false => family(worker.process.pid()),
        true => worker
            .cgroup
            .as_ref()
            .map_or(Vec::new(), WorkerCgroup::pids),
    }
}

fn stuck(session: &Session) -> String {
    let pid = session.worker.as_ref().map_or(0, |w| w.process.pid());
    let left = session.worker.as_ref().map_or(Vec::new(), remains);
    let who = match left.first() {
        Some(first) if *first != pid => {
            format!(
                "process {first}, which worker {pid} of session {} left behind,",
                session.id
            )
        }
        _ => format!("worker {pid} of session {}", session.id),
    };
    format!("{who} does not end although it was killed; it is stuck in the driver")
}

/// Sends the cause on the control connection, then shuts the data connection. The order matters: a
/// guest that sees the end of its data connection finds the cause on the control connection.
fn tell_guest(session: &mut Session, cause: EndCause, code: CuResult, text: &str) {
    if let Some(ready) = session.ready.take() {
        let _ = ready.send(Err(Refused::host_failure(text)));
    }
    let data = session.data.take();
    if cause != EndCause::Guest {
        session.note(Note::Ended(code, text.to_owned()));
        if let Some(data) = data {
            shut_down(&data);
        }
    }
    session.notes = None;
}
