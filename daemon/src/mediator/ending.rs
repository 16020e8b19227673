//! The end of a session: the guest is told why, its data connection is shut, the worker is killed,
//! and the session is gone only when the kernel says that the process is.

use vgpu_proto::cuda::CuResult;
use vgpu_proto::worker::ToWorker;
use vgpu_sched::{Event, GpuHealth, GpuId, SessionId};

use super::actor::Actor;
use super::handle::Note;
use super::reactor::{Due, now_ns};
use super::session::{Phase, Session};
use crate::events::{EndCause, Report};
use crate::model::UsageDelta;
use crate::system::shut_down;
use crate::worker::cgroup::WorkerCgroup;
use crate::worker::spawn::Worker;

/// A worker whose guest ended in good order has this long to do the same.
const GRACE_NS: u64 = 300 * vgpu_sched::MILLIS;

/// How often it is looked whether what a dead worker left behind is gone.
const CLEAR_NS: u64 = 5 * vgpu_sched::MILLIS;

/// Killed workers of a GPU whose memory is looked for at the next check.
const KILLED_MOST: usize = 1_024;

/// Messages of a dead worker that are still read.
const LAST_WORDS: usize = 1_024;

impl Actor {
    /// Ends a session: once, whatever else happens to it afterwards.
    pub(super) fn end(&mut self, id: u64, cause: EndCause, code: CuResult, text: &str) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.is_ending() {
            return;
        }
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
            let verify_ns = self.registry.config.worker.kill_verify_ms * vgpu_sched::MILLIS;
            self.reactor
                .at(begun.saturating_add(verify_ns), Due::Stuck(id));
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

    /// The worker had its time.
    pub(super) fn kill_now(&mut self, id: u64) {
        if let Some(worker) = self.sessions.get(&id).and_then(|s| s.worker.as_ref()) {
            worker.kill();
        }
    }

    /// The worker closed its control socket. It ends by itself now, or is made to.
    pub(super) fn closed(&mut self, id: u64) {
        if self.sessions.get(&id).is_some_and(|s| s.worker.is_some()) {
            self.reactor.at(now_ns() + GRACE_NS, Due::Kill(id));
        }
    }

    /// A killed worker should be gone by now and is not: neither SIGKILL nor the driver helps.
    pub(super) fn is_stuck(&mut self, id: u64) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let gpus: Vec<GpuId> = session.gpus.iter().map(|gpu| gpu.id).collect();
        let reason = stuck(session);
        tracing::error!(session = id, "{reason}");
        for gpu in gpus {
            self.report_suspect(gpu, reason.clone());
            self.feed(Event::GpuState {
                gpu,
                health: GpuHealth::Suspect,
            });
        }
    }

    /// The sentence about a killed worker on this GPU that is still there.
    pub(super) fn stuck_on(&self, gpu: GpuId) -> Option<String> {
        let on_it = |s: &&Session| s.is_on(gpu) && s.is_ending() && s.worker.is_some();
        self.sessions.values().find(on_it).map(stuck)
    }

    /// Workers on this GPU that were killed and are still there.
    pub(super) fn dying_on(&self, gpu: GpuId) -> Vec<u32> {
        let on_it = |s: &&Session| s.is_on(gpu) && s.is_ending();
        let dying = self.sessions.values().filter(on_it);
        dying
            .filter_map(|s| s.worker.as_ref())
            .flat_map(remains)
            .collect()
    }

    /// The kernel says that a worker is gone.
    pub(super) fn died(&mut self, id: u64) {
        let Some(worker) = self.sessions.get(&id).and_then(|s| s.worker.as_ref()) else {
            return;
        };
        let Some(exit) = worker.process.ended() else {
            return;
        };
        // What it said before: a fault, or why it ended.
        if let Some(session) = self.sessions.get_mut(&id) {
            session.message_rate = super::session::MessageRate::default();
        }
        self.read_worker(id, LAST_WORDS);
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        match (&session.phase, &session.fault) {
            (Phase::Ending(..), _) => {}
            (Phase::Starting, _) => self.worker_failed(id, &format!("its worker {exit}")),
            (Phase::Live, Some((code, text))) => {
                let (code, text) = (*code, text.clone());
                self.end(id, EndCause::Fault, code, &text);
            }
            (Phase::Live, None) => {
                let text = format!("the worker process of this session {exit}");
                self.end(
                    id,
                    EndCause::WorkerDied,
                    CuResult::DEVICE_UNAVAILABLE,
                    &text,
                );
            }
        }
        self.clear(id);
    }

    /// A session's worker is gone: so must be whatever it has started.
    pub(super) fn clear(&mut self, id: u64) {
        let Some(worker) = self.sessions.get(&id).and_then(|s| s.worker.as_ref()) else {
            return;
        };
        if !worker.left_something() {
            return self.gone(id);
        }
        // Otherwise epoll would report its end again and again.
        self.reactor.forget(&worker.process);
        worker.kill();
        self.reactor.at(now_ns() + CLEAR_NS, Due::Clear(id));
    }

    /// A session is over and nothing of it runs any more.
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
                // The cgroup first: without its record no later vgpud would remove it.
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
        let (cause, detail) = match &session.phase {
            Phase::Ending(cause, detail) => (*cause, detail.clone()),
            Phase::Starting | Phase::Live => (EndCause::WorkerDied, "its worker is gone".into()),
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

/// The processes that are left of a worker.
fn remains(worker: &Worker) -> Vec<u32> {
    match worker.process.ended() {
        None => vec![worker.process.pid()],
        Some(_) => worker
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

/// Says on the control connection why, and shuts the data connection. The order matters: a guest
/// that sees its data connection end finds the cause on the other one.
fn tell_guest(session: &mut Session, cause: EndCause, code: CuResult, text: &str) {
    if let Some(ready) = session.ready.take() {
        let _ = ready.send(Err(text.to_owned()));
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
