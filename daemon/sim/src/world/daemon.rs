//! vgpud's part: acts between the workers and the scheduler as vgpud's `mediator` does, and keeps
//! the simulator's own accounts.

use vgpu_proto::lease::{DaemonEnd, GrantTerms, Holding};
use vgpu_sched::gate::lease::Message;
use vgpu_sched::{
    Action, Credits, Depth, Epoch, Event, GpuId, HeadCost, SessionId, SessionState, Terms, Usage,
    VmId, WaitReason,
};

use super::World;
use crate::books::Held;
use crate::parts::{Happening, Life, Pages, Told};

/// vgpud's record of a session.
#[derive(Debug, Default)]
pub(super) struct Session {
    lease: Option<Lease>,
    /// Whether vgpud knows of waiting work for which it has granted no lease.
    asks: bool,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    epoch: u64,
    credits: Credits,
    hold_ns: u64,
}

impl Pages {
    fn daemon(&self) -> DaemonEnd<'_> {
        DaemonEnd::new(&self.lease, &self.hint)
    }

    fn used(&self) -> Usage {
        let hints = self.hint.read();
        Usage {
            calls: hints.used_calls,
            bytes: hints.used_bytes,
        }
    }
}

fn name(id: u32) -> SessionId {
    SessionId(u64::from(id))
}

fn number(session: SessionId) -> u32 {
    session.0 as u32
}

impl World {
    /// Feeds an event to the scheduler, and carries out all resulting actions.
    pub fn feed(&mut self, event: Event) {
        self.inbox.push_back(event);
        if self.settling {
            return;
        }
        self.settling = true;
        while let Some(event) = self.inbox.pop_front() {
            self.note(|| format!("  event {event:?}"));
            for gpu in &mut self.books.gpus {
                let holders = gpu.leases.len() + usize::from(gpu.reserved.is_some());
                gpu.splits += u64::from(holders > 1);
            }
            let mut actions = std::mem::take(&mut self.actions);
            self.sched.handle(self.now, event, &mut actions);
            self.decisions += 1;
            for action in actions.drain(..) {
                self.carry_out(&action);
            }
            self.actions = actions;
            self.see_parked();
            if self.books.together {
                self.see_reserved();
            }
            self.check();
        }
        self.settling = false;
    }

    /// Reports the holders' progress to the scheduler and feeds a timer event, so that all time is
    /// charged.
    pub(super) fn bring_up_to_date(&mut self) {
        self.report_progress();
        self.feed(Event::Timer);
    }

    pub(super) fn report_progress(&mut self) {
        for gpu in 0..self.books.gpus.len() {
            for index in 0..self.books.gpus[gpu].leases.len() {
                let Some(held) = self.books.gpus[gpu].leases.get(index) else {
                    break;
                };
                let id = held.worker;
                if self.workers[id as usize].gpu != gpu as u32 {
                    continue;
                }
                let hints = self.pages[id as usize].hint.read();
                self.feed(Event::Progress {
                    session: name(id),
                    submitted: hints.submitted,
                    completed: hints.completed,
                });
            }
        }
    }

    /// vgpud reads a message of a worker.
    pub(super) fn heard(&mut self, id: u32, message: Message) {
        if self.workers[id as usize].life != Life::Live {
            return;
        }
        self.note(|| format!("session {id} says {message:?}"));
        match message {
            Message::Runnable(depth) => {
                let event = self.runnable(id, depth);
                self.feed(event);
                let vm = self.workers[id as usize].vm;
                let owes = self.sched.lag_ns(VmId(vm)).is_some_and(|lag| lag < 0);
                let book = &mut self.books.vms[vm as usize];
                if book.waits_since == Some(self.now) {
                    book.woke = !owes;
                }
                self.look_soon();
            }
            Message::Idle { epoch } => self.idle(id, epoch),
            Message::Ending {
                epoch,
                slice_end_ns,
                in_ns,
            } => {
                let (gpu, now) = (self.workers[id as usize].gpu, self.now);
                self.books.charge(gpu, now);
                let lease = self.sessions[id as usize].lease;
                if lease.is_none_or(|lease| lease.epoch != epoch) {
                    return;
                }
                let held = self.books.lease(gpu, id);
                if let Some(held) = held.filter(|held| held.slice_end_ns == slice_end_ns) {
                    held.ending
                        .get_or_insert((now.saturating_add(in_ns), in_ns));
                }
                self.feed(Event::Ending {
                    session: name(id),
                    epoch: Epoch(epoch),
                    slice_end_ns,
                    in_ns,
                });
            }
            Message::Released { epoch, left } => {
                if self.sessions[id as usize]
                    .lease
                    .is_none_or(|l| l.epoch != epoch)
                {
                    return;
                }
                self.lease_back(id, left);
            }
        }
    }

    fn runnable(&mut self, id: u32, depth: Depth) -> Event {
        let hints = self.pages[id as usize].hint.read();
        let session = &mut self.sessions[id as usize];
        if let Some(Lease { epoch, credits, .. }) = session.lease
            && (hints.used_calls >= credits.calls || hints.used_bytes >= credits.bytes)
        {
            return Event::CreditsSpent {
                session: name(id),
                epoch: Epoch(epoch),
                used: self.pages[id as usize].used(),
            };
        }
        let (vm, gpu) = (self.workers[id as usize].vm, self.workers[id as usize].gpu);
        if session.lease.is_none() && !session.asks && depth.calls > 0 {
            session.asks = true;
            self.books.ask(vm, true, self.now);
        }
        self.books.charge(gpu, self.now);
        self.unpark(id);
        Event::Runnable {
            session: name(id),
            depth,
            head: HeadCost {
                gpu_ns: hints.head_ns,
                bytes: hints.head_bytes,
            },
        }
    }

    fn idle(&mut self, id: u32, epoch: u64) {
        let hints = self.pages[id as usize].hint.read();
        let session = &mut self.sessions[id as usize];
        let lease = session.lease.filter(|lease| lease.epoch == epoch);
        let parked = hints.holding == Holding::Parked(epoch);
        let idle_for_ns = if parked {
            lease.map_or(0, |lease| lease.hold_ns)
        } else {
            0
        };
        let was_asking = std::mem::take(&mut session.asks);
        let vm = self.workers[id as usize].vm;
        if was_asking {
            self.books.ask(vm, false, self.now);
        }
        for gpu in self.workers[id as usize].gpus() {
            if let Some(held) = self.books.lease(gpu, id) {
                held.quiet = true;
            }
        }
        self.feed(Event::Idle {
            session: name(id),
            idle_for_ns,
        });
    }

    /// Handles a lease that the worker returned, or that vgpud took while it was parked.
    fn lease_back(&mut self, id: u32, depth: Depth) {
        let Some(lease) = self.sessions[id as usize].lease.take() else {
            return;
        };
        let (vm, gpu) = (self.workers[id as usize].vm, self.workers[id as usize].gpu);
        let also = &self.workers[id as usize].also;
        let active = |gpu: &u32| self.devices[*gpu as usize].is_active(id);
        if active(&gpu) || also.iter().any(active) {
            self.problem(|| {
                format!("session {id} gave its lease back while its work is on the device")
            });
        }
        self.unlease(gpu, id);
        if depth.calls > 0 {
            self.sessions[id as usize].asks = true;
            self.books.ask(vm, true, self.now);
        }
        self.feed(Event::Released {
            session: name(id),
            epoch: Epoch(lease.epoch),
            used: self.pages[id as usize].used(),
            depth,
        });
        self.note_lag(vm);
    }

    /// Removes a lease from the accounts.
    fn unlease(&mut self, gpu: u32, id: u32) {
        for index in 0..self.workers[id as usize].also.len() {
            let gpu = self.workers[id as usize].also[index];
            self.unlease_on(gpu, id);
        }
        self.unlease_on(gpu, id);
        let vm = self.workers[id as usize].vm;
        self.books.waits(vm, self.now);
    }

    fn unlease_on(&mut self, gpu: u32, id: u32) {
        let now = self.now;
        self.step_device(gpu);
        self.books.charge(gpu, now);
        let wanted = self.books.lease(gpu, id).is_some_and(|held| held.wanted);
        self.note_idle(gpu, id, false);
        let busy = self.devices[gpu as usize].busy_ns(id);
        let book = &mut self.books.gpus[gpu as usize];
        let Some(index) = book.leases.iter().position(|held| held.worker == id) else {
            return;
        };
        let held = book.leases.remove(index);
        book.leases
            .iter_mut()
            .for_each(|other| other.begins(now, true));
        if wanted && !held.overrun {
            let over = now.saturating_sub(held.slice_end_ns);
            book.overshoot_ns = book.overshoot_ns.max(over);
        }
        book.idle_per_lease_ns = book.idle_per_lease_ns.max(held.idle_ns);
        book.leased_busy_ns += busy - held.busy_ns;
        if held.overrun {
            book.overruns.push((held.overrun_from_ns, now, held.vm));
            let (own, all) = held.overrun_busy_ns;
            let all = self.devices[gpu as usize].truth().busy_ns - all;
            let sum = self.overrun_busy_ns.get_or_insert((0, 0));
            sum.0 += all - (busy - own);
            sum.1 += all;
        }
        let vm = &mut self.books.vms[held.vm as usize];
        vm.leases -= 1;
        vm.barren_ns = (busy == held.busy_ns).then_some(now);
    }

    /// Starts or ends the measurement of the device's idle time while another session waits for
    /// this lease.
    fn note_idle(&mut self, gpu: u32, id: u32, wanted: bool) {
        let device = &mut self.devices[gpu as usize];
        let (idle, longest) = (device.truth().idle_ns, device.longest_idle_ns());
        device.watch_idle();
        let book = &mut self.books.gpus[gpu as usize];
        if let Some(held) = book.leases.iter_mut().find(|held| held.worker == id) {
            if held.wanted {
                held.idle_ns += idle - held.idle_from_ns;
                book.longest_idle_ns = book.longest_idle_ns.max(longest);
            }
            held.wanted = wanted;
            held.idle_from_ns = idle;
        }
    }

    fn note_lag(&mut self, vm: u32) {
        let lag = self.sched.lag_ns(VmId(vm)).unwrap_or(0).unsigned_abs();
        let book = &mut self.books.vms[vm as usize];
        book.lag_ns = book.lag_ns.max(lag);
    }

    fn carry_out(&mut self, action: &Action) {
        if !matches!(action, Action::SetTimer { .. }) {
            self.note(|| format!("  => {action:?}"));
        }
        match *action {
            Action::Admit {
                session,
                gpu,
                ref also,
                ..
            } => self.admitted(number(session), gpu, also),
            Action::Refuse { session, reason } => {
                self.problem(|| format!("{session} refused: {reason}"));
            }
            Action::Grant(ref terms) => self.grant(terms, false),
            Action::GrantBeside(ref terms) => self.grant(terms, true),
            Action::Beside { session, epoch, .. } => {
                self.pages[number(session) as usize]
                    .daemon()
                    .beside(epoch.0);
            }
            Action::Alone { session, .. } => self.pages[number(session) as usize].daemon().alone(),
            Action::Extend {
                session,
                slice_end_ns,
                ..
            } => self.extend(number(session), slice_end_ns),
            Action::Revoke { session, epoch, .. } => self.revoke(number(session), epoch),
            Action::Want {
                session,
                epoch,
                wanted,
                ..
            } => self.want(number(session), epoch, wanted),
            Action::Credit {
                session, credits, ..
            } => {
                let id = number(session);
                if let Some(lease) = &mut self.sessions[id as usize].lease {
                    lease.credits = credits;
                }
                let end = self.pages[id as usize].daemon();
                end.credit(credits.calls, credits.bytes);
                self.tell(id, Told::Credit);
            }
            Action::SetTimer { at_ns } => {
                let late = self.host.timer_late_ns;
                let late = if late > 0 { self.rng.below(late) } else { 0 };
                self.timer_ns = at_ns.max(self.now).saturating_add(late);
            }
            Action::Kill { session, .. } => self.kill(number(session)),
            Action::Canary { gpu } => {
                self.at(self.now + self.host.canary_ns, Happening::Verified(gpu.0));
            }
            Action::Overrun { session, .. } => self.overrun(number(session)),
            Action::Ignored { reason } => {
                self.problem(|| format!("the scheduler ignored an event: {reason:?}"));
            }
            _ => {}
        }
    }

    fn extend(&mut self, id: u32, slice_end_ns: u64) {
        self.turns += 1;
        self.pages[id as usize].daemon().extend(slice_end_ns);
        // The worker may have stopped submitting because of the end of the slice.
        self.tell(id, Told::Lease);
        let gpu = self.workers[id as usize].gpu;
        if let Some(held) = self.books.lease(gpu, id) {
            held.slice_end_ns = slice_end_ns;
            held.ending = None;
        }
    }

    fn overrun(&mut self, id: u32) {
        self.overruns.push((self.now, id));
        let now = self.now;
        let worker = &self.workers[id as usize];
        for gpu in worker.also.clone().into_iter().chain([worker.gpu]) {
            self.step_device(gpu);
            self.books.charge(gpu, now);
            let leases = &mut self.books.gpus[gpu as usize].leases;
            leases.iter_mut().for_each(|other| other.begins(now, false));
            let device = &self.devices[gpu as usize];
            let busy = (device.busy_ns(id), device.truth().busy_ns);
            if let Some(held) = self.books.lease(gpu, id) {
                held.overrun = true;
                held.overrun_from_ns = now;
                held.overrun_busy_ns = busy;
            }
        }
    }

    fn admitted(&mut self, id: u32, gpu: GpuId, also: &[GpuId]) {
        self.books.together |= !also.is_empty();
        let worker = &mut self.workers[id as usize];
        worker.gpu = gpu.0;
        worker.also = also.iter().map(|gpu| gpu.0).collect();
        worker.life = Life::Live;
        self.pages[id as usize].daemon().name(u64::from(id));
        self.at(self.now, Happening::Arrive(id));
    }

    fn grant(&mut self, terms: &Terms, beside: bool) {
        let now = self.now;
        let id = number(terms.session);
        let (vm, gpu) = (self.workers[id as usize].vm, terms.gpu.0);
        self.step_device(gpu);
        self.books.charge(gpu, now);
        let others = &self.books.gpus[gpu as usize].leases;
        let overruns = others.iter().any(|held| held.overrun);
        let makes_room = others
            .iter()
            .all(|held| held.overrun || held.ending.is_some());
        let ahead = others.first().filter(|held| !held.overrun);
        let ahead = ahead.and_then(|held| held.ending).map(|(at, _)| at);
        if !makes_room || others.len() > 1 || beside != overruns {
            self.problem(|| format!("GPU {gpu} has two leases, and neither overruns nor ends"));
        }
        let session = &mut self.sessions[id as usize];
        if session.lease.is_some() || self.workers[id as usize].life != Life::Live {
            self.problem(|| {
                format!("session {id} is granted a lease although it holds one or is dead")
            });
        }
        let session = &mut self.sessions[id as usize];
        let asked = std::mem::take(&mut session.asks);
        session.lease = Some(Lease {
            epoch: terms.epoch.0,
            credits: terms.credits,
            hold_ns: terms.hold_ns,
        });
        self.devices[gpu as usize].watch_idle();
        for gpu in terms.also.iter().map(|gpu| gpu.0) {
            self.lease_also(gpu, id, terms);
        }
        let device = &self.devices[gpu as usize];
        let held = Held {
            worker: id,
            vm,
            quiet: false,
            parked: false,
            wanted: terms.wanted,
            ending: None,
            ahead,
            overrun: false,
            overrun_from_ns: 0,
            overrun_busy_ns: (0, 0),
            slice_end_ns: terms.slice_end_ns,
            busy_ns: device.busy_ns(id),
            idle_from_ns: device.truth().idle_ns,
            idle_ns: 0,
        };
        self.books.gpus[gpu as usize].leases.push(held);
        let book = &mut self.books.vms[vm as usize];
        book.leases += 1;
        book.grants += 1;
        if asked {
            self.books.ask(vm, false, now);
        } else {
            self.books.waits(vm, now);
        }
        let page = GrantTerms {
            epoch: terms.epoch.0,
            slice_end_ns: terms.slice_end_ns,
            hold_ns: terms.hold_ns,
            window_ns: terms.window_ns,
            credit_calls: terms.credits.calls,
            credit_bytes: terms.credits.bytes,
            beside,
        };
        self.pages[id as usize].daemon().grant(&page, terms.wanted);
        self.tell(id, Told::Lease);
        self.note_lag(vm);
        self.look_soon();
    }

    /// Records a gang's lease for one of its GPUs after the first.
    fn lease_also(&mut self, gpu: u32, id: u32, terms: &Terms) {
        self.step_device(gpu);
        self.books.charge(gpu, self.now);
        if self.books.gpus[gpu as usize]
            .leases
            .iter()
            .any(|held| !held.overrun)
        {
            self.problem(|| format!("GPU {gpu} has two leases without a declared overrun"));
        }
        let device = &self.devices[gpu as usize];
        let vm = self.workers[id as usize].vm;
        let held = Held {
            worker: id,
            vm,
            quiet: false,
            parked: false,
            // Idle time is measured only on the gang's first GPU, because the gang pays for all
            // its GPUs.
            wanted: false,
            ending: None,
            ahead: None,
            overrun: false,
            overrun_from_ns: 0,
            overrun_busy_ns: (0, 0),
            slice_end_ns: terms.slice_end_ns,
            busy_ns: device.busy_ns(id),
            idle_from_ns: 0,
            idle_ns: 0,
        };
        self.books.gpus[gpu as usize].leases.push(held);
        self.books.vms[vm as usize].leases += 1;
    }

    fn revoke(&mut self, id: u32, epoch: Epoch) {
        self.turns += 1;
        let gpu = self.workers[id as usize].gpu;
        self.step_device(gpu);
        self.books.charge(gpu, self.now);
        self.unpark(id);
        let gpus = self.workers[id as usize].gpus();
        let left = gpus.map(|gpu| self.devices[gpu as usize].left_ns(id));
        let left = left.max().unwrap_or(0);
        let book = &mut self.books.vms[self.workers[id as usize].vm as usize];
        book.residue_ns = book.residue_ns.max(left);
        if self.sessions[id as usize]
            .lease
            .is_none_or(|l| l.epoch != epoch.0)
        {
            return;
        }
        let end = self.pages[id as usize].daemon();
        let ends = self
            .books
            .lease(gpu, id)
            .is_some_and(|held| held.ending.is_some());
        if end.revoke(epoch.0) && end.reclaim(epoch.0) {
            self.lease_back(id, Depth::default());
        } else if !ends {
            self.tell(id, Told::Lease);
        }
    }

    fn want(&mut self, id: u32, epoch: Epoch, wanted: bool) {
        let gpu = self.workers[id as usize].gpu;
        self.step_device(gpu);
        self.note_idle(gpu, id, wanted);
        if let Some(held) = self.books.lease(gpu, id).filter(|_| !wanted) {
            held.ending = None;
        }
        if self.sessions[id as usize]
            .lease
            .is_none_or(|l| l.epoch != epoch.0)
        {
            return;
        }
        let end = self.pages[id as usize].daemon();
        if !wanted {
            end.unwant();
        } else if end.want(epoch.0) && end.reclaim(epoch.0) {
            self.lease_back(id, Depth::default());
        }
    }

    fn kill(&mut self, id: u32) {
        self.kills.push((self.now, id));
        self.die(id);
    }

    /// Handles the end of a worker process.
    pub(super) fn gone(&mut self, id: u32) {
        let (vm, gpu) = (self.workers[id as usize].vm, self.workers[id as usize].gpu);
        let also = self.workers[id as usize].also.clone();
        for gpu in also.into_iter().chain([gpu]) {
            self.devices[gpu as usize].remove(self.now, id);
            self.step_device(gpu);
        }
        self.unlease(gpu, id);
        let session = &mut self.sessions[id as usize];
        session.lease = None;
        if std::mem::take(&mut session.asks) {
            self.books.ask(vm, false, self.now);
        }
        self.workers[id as usize].life = Life::Gone;
        self.feed(Event::WorkerExited { session: name(id) });
    }

    /// Marks a lease as used again or revoked, so that the VM pays from now on. The caller has
    /// charged the time before.
    fn unpark(&mut self, id: u32) {
        for gpu in self.workers[id as usize].gpus() {
            if let Some(held) = self.books.lease(gpu, id) {
                (held.quiet, held.parked) = (false, false);
            }
        }
    }

    /// Updates which GPUs are reserved by gangs. A gang pays for the GPUs that it reserves.
    fn see_reserved(&mut self) {
        for gpu in 0..self.books.gpus.len() as u32 {
            let by = self.sched.reserved_by(GpuId(gpu)).map(number);
            let vm = by.map(|id| self.workers[id as usize].vm);
            if vm != self.books.gpus[gpu as usize].reserved {
                self.books.charge(gpu, self.now);
                self.books.reserve(gpu, vm);
            }
        }
    }

    /// Updates which leases of idle sessions the scheduler treats as parked and does not charge.
    fn see_parked(&mut self) {
        let now = self.now;
        for gpu in 0..self.books.gpus.len() {
            for index in 0..self.books.gpus[gpu].leases.len() {
                let held = self.books.gpus[gpu].leases[index];
                if !held.quiet {
                    continue;
                }
                let state = self.sched.session_stats(name(held.worker)).map(|s| s.state);
                let parked = state == Some(SessionState::Parked);
                if parked != held.parked {
                    self.books.charge(gpu as u32, now);
                    self.books.gpus[gpu].leases[index].parked = parked;
                }
            }
        }
    }

    /// Checks that no GPU is without holder while a session could run on it.
    fn check(&mut self) {
        if !self.inbox.is_empty() {
            return;
        }
        for gpu in 0..self.books.gpus.len() {
            if !self.books.gpus[gpu].leases.is_empty() {
                continue;
            }
            for id in 0..self.sessions.len() as u32 {
                let asks = self.sessions[id as usize].asks;
                if asks && self.workers[id as usize].gpu == gpu as u32 {
                    self.check_waiting(id);
                }
            }
        }
    }

    fn check_waiting(&mut self, id: u32) {
        let Some(stats) = self.sched.session_stats(name(id)) else {
            return;
        };
        let held_back = matches!(
            stats.waiting,
            Some(
                WaitReason::RateLimit { .. }
                    | WaitReason::Quarantine
                    | WaitReason::GpuUnavailable { .. }
            )
        );
        // The session may have to wait because a gang reserves one of its GPUs.
        let reserved = |gpu: &u32| {
            let stats = self.sched.gpu_stats(GpuId(*gpu));
            stats.is_some_and(|stats| stats.reserved.is_some() || !stats.holders.is_empty())
        };
        let worker = &self.workers[id as usize];
        let kept = worker.also.iter().chain([&worker.gpu]).any(reserved);
        if stats.state == SessionState::Waiting && !held_back && !kept {
            self.problem(|| format!("session {id} waits for a GPU without a holder: {stats:?}"));
        }
    }

    fn problem(&mut self, text: impl FnOnce() -> String) {
        if self.problems.len() < 20 {
            let text = format!("at {} ns: {}", self.now, text());
            self.problems.push(text);
        }
    }
}
