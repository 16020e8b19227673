//! Admits guest programs, or says why not.

use std::collections::HashSet;

use tokio::sync::oneshot;
use vgpu_api::GpuState;
use vgpu_proto::handshake::Refusal;
use vgpu_proto::text::printable;
use vgpu_sched::{Event, SessionId};

use super::actor::Actor;
use super::claims::Claim;
use super::handle::{AdmitRequest, Admitted, Refused};
use super::held::Held;
use super::images::Images;
use super::reactor::now_ns;
use super::registry;
use super::session::{About, Phase, Placed, Reading, Session};
use super::unrequested::Unrequested;
use crate::events::Report;
use crate::model::{GpuRecord, UsageDelta, VmRecord, counted, now_unix_ms};

impl Actor {
    pub(super) fn admit(
        &mut self,
        request: AdmitRequest,
        answer: oneshot::Sender<Result<Admitted, Refused>>,
    ) {
        let result = self.try_admit(request);
        let session = result.as_ref().ok().map(|admitted| admitted.session);
        if answer.send(result).is_err()
            && let Some(session) = session
        {
            self.abandon(session, None);
        }
    }

    fn try_admit(&mut self, request: AdmitRequest) -> Result<Admitted, Refused> {
        if self.draining.is_some() {
            return Err(Refused::draining());
        }
        let Some(vm) = self.registry.vm(request.identity).cloned() else {
            let text = format!(
                "VM {} is not registered on this host",
                request.identity.vm_id
            );
            return Err(Refused {
                code: Refusal::UnknownVm,
                text,
            });
        };
        if let Some(quarantine) = vm.quarantine_text(now_unix_ms()) {
            let text = format!("VM {} is quarantined: {quarantine}", vm.vm_id);
            return Err(Refused {
                code: Refusal::Quarantined,
                text,
            });
        }
        if let Some(text) = self.crashes.refusal(request.identity, now_ns()) {
            return Err(Refused {
                code: Refusal::Busy,
                text,
            });
        }
        let id = self.next_session;
        self.next_session += 1;
        let vm_id = registry::vm_id(request.identity);
        let placed = match self.add_session(SessionId(id), vm_id) {
            Ok(gpus) => gpus,
            Err(Some(reason)) => return Err(self.explained(refused(reason), &vm)),
            Err(None) => {
                let text = "the scheduler gave no answer; see vgpud's log".to_owned();
                return Err(Refused {
                    code: Refusal::HostFailure,
                    text,
                });
            }
        };
        let gpus: Vec<GpuRecord> = placed
            .iter()
            .filter_map(|gpu| self.registry.gpu(*gpu).cloned())
            .collect();
        if gpus.is_empty() || gpus.len() != placed.len() {
            self.feed(Event::SessionRemoved {
                session: SessionId(id),
            });
            self.feed(Event::WorkerExited {
                session: SessionId(id),
            });
            let text = "the GPU is gone".to_owned();
            return Err(Refused {
                code: Refusal::NoGpu,
                text,
            });
        }
        let admitted = self.admitted(id, &vm, &gpus);
        let identity = request.identity;
        self.enter(id, &gpus, request);
        self.share_depth(identity);
        Ok(admitted)
    }

    /// Appends to a refusal for lack of a GPU why the GPUs of the VM's pool cannot be used.
    fn explained(&self, mut refused: Refused, vm: &VmRecord) -> Refused {
        if refused.code == Refusal::SessionLimit {
            refused.text = self.session_limit_text(vm);
            return refused;
        }
        if refused.code != Refusal::NoGpu {
            return refused;
        }
        let may_have = |gpu: &GpuRecord| {
            self.registry.is_assigned(&gpu.seen.uuid, &vm.pool) && vm.may_use(&gpu.seen.uuid)
        };
        if !self.registry.gpus.values().any(may_have)
            && let Some(gpu) = GpuRecord::none_served(self.registry.gpus.values()).first()
        {
            let why = gpu.without_driver();
            refused.text = format!(
                "no GPU serves this VM's pool, and no driver serves any GPU of this host: {}",
                why.trim_end_matches('.')
            );
            return refused;
        }
        let of_pool = |gpu: &&GpuRecord| self.registry.is_assigned(&gpu.seen.uuid, &vm.pool);
        let barred: Vec<_> = self.registry.gpus.values().filter(of_pool).collect();
        if !barred.is_empty() && !barred.iter().any(|gpu| may_have(gpu)) {
            refused.text = format!(
                "this VM may use none of the GPUs that serve its pool {}; the host's administrator lets it: \
                 vgpu-admin vm set {} --gpus=all",
                vm.pool, vm.vm_id
            );
            return refused;
        }
        for gpu in self.registry.gpus.values() {
            if !may_have(gpu) {
                continue;
            }
            let id = gpu.gpu_id;
            // The reason names processes and sessions of other VMs.
            if gpu.state == GpuState::Suspect {
                refused.text += &format!(
                    "; GPU {id} is suspect; the host's administrator sees why: vgpu-admin status"
                );
            } else if gpu.state == GpuState::Draining {
                refused.text += &format!(
                    "; an administrator drains GPU {id}: it starts no programs before the administrator resumes it"
                );
            } else if let Some(reason) = &gpu.state_reason {
                refused.text += &format!("; GPU {id} takes nothing new: {reason}");
            }
        }
        refused
    }

    fn admitted(&self, session: u64, vm: &VmRecord, gpus: &[GpuRecord]) -> Admitted {
        let limits = self.registry.limits(vm);
        let (depth_calls, depth_bytes) = self.depth_of(session);
        Admitted {
            session,
            gpus: gpus.iter().map(|gpu| gpu.seen.clone()).collect(),
            memory_quota: limits.memory_bytes.value(),
            pinned_bytes: limits.pinned_bytes.value(),
            depth_calls,
            depth_bytes,
        }
    }

    pub(super) fn enter(&mut self, id: u64, gpus: &[GpuRecord], request: AdmitRequest) {
        let program = printable(&request.hello.program, 64);
        let gpus: Vec<Placed> = gpus.iter().map(Placed::on).collect();
        self.events.report(Report::SessionStarted {
            vm_id: request.identity.vm_id,
            session_id: id,
            gpu_uuid: gpus.first().map(|gpu| gpu.uuid.clone()).unwrap_or_default(),
            program: program.clone(),
        });
        let mut delta = UsageDelta::default();
        delta.add.sessions = 1;
        self.events
            .usage(request.identity.vm_id, request.identity.generation, &delta);
        let about = About {
            guest_pid: request.hello.pid,
            program,
            peer: request.peer,
            since_unix_ms: now_unix_ms(),
        };
        let session = Session {
            id,
            vm: request.identity,
            begun_ns: now_ns(),
            claimed: Claim::default(),
            gpus,
            phase: Phase::Starting,
            worker: None,
            ready: None,
            notes: Some(request.notes),
            data: None,
            lease: None,
            shortages: HashSet::new(),
            held: Held::default(),
            unrequested: Unrequested::default(),
            images: Images::default(),
            pinned_by_us: 0,
            depth: self.depth_of(id),
            fault: None,
            about,
            reading: Reading::Counted,
            dying: None,
        };
        self.sessions.insert(id, session);
    }

    /// The refusal of a program at its VM's limit of sessions, with the programs that run. A guest
    /// learns only of programs of its own VM.
    fn session_limit_text(&self, vm: &VmRecord) -> String {
        /// Most programs that are named.
        const NAMED: usize = 4;
        let identity = vm.identity();
        let open = self.sessions.values().filter(|s| s.vm == identity);
        let names: Vec<String> = open
            .map(|s| {
                let program = printable(&s.about.program, 64);
                format!("{program} (pid {})", s.about.guest_pid)
            })
            .collect();
        let limit = self.registry.limits(vm).sessions.value();
        let limit = limit.unwrap_or(names.len() as u64);
        let more = match names.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!(
            "VM {} runs {} of {}: {}{more}; end one, or ask the host's administrator for more \
             (vgpu-admin vm set --sessions)",
            vm.vm_id,
            names.len(),
            counted(limit, "program"),
            names[..names.len().min(NAMED)].join(", "),
        )
    }
}

fn refused(reason: vgpu_sched::Refusal) -> Refused {
    let code = match reason {
        vgpu_sched::Refusal::UnknownVm => Refusal::UnknownVm,
        vgpu_sched::Refusal::Quarantined => Refusal::Quarantined,
        vgpu_sched::Refusal::TooManySessions { .. } => Refusal::SessionLimit,
        vgpu_sched::Refusal::NoGpu
        | vgpu_sched::Refusal::GpuUnavailable
        | vgpu_sched::Refusal::NoMemory => Refusal::NoGpu,
        vgpu_sched::Refusal::DuplicateSession => Refusal::HostFailure,
    };
    Refused {
        code,
        text: reason.to_string(),
    }
}
