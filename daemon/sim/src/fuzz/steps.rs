//! Turns a gene into one step of a run.

use vgpu_sched::{
    Depth, Epoch, Event, GpuHealth, GpuId, HeadCost, MICROS, PoolId, SECONDS, SessionId,
    SessionState, Usage, VmId,
};

use super::make::{self, odds, pick, weighted};
use super::world::World;
use super::{Verdict, ensure};
use crate::rng::Rng;

/// If this many timer events follow at one time, the scheduler's timer counts as firing without
/// end.
const SPIN: u32 = 5;

impl World {
    /// Takes the step that the gene decides.
    pub(super) fn step(&mut self, gene: u64) -> Verdict {
        let mut r = Rng::new(gene);
        let r = &mut r;
        match weighted(r, &self.character.steps) {
            0 => {
                self.wait(r);
                Ok(())
            }
            1 => self.go_to_timer(r, false),
            2 => self.go_to_timer(r, true),
            3 => {
                self.may_have_been_away(r)?;
                self.feed(Event::Timer)
            }
            4 => self.admin(r),
            5 => {
                let vm = VmId(r.below(make::VMS) as u32);
                self.start(vm)
            }
            6 => self.honest(r),
            7 => self.lie(r),
            8 => self.held(r),
            9 => self.forge(r),
            10 => self.reap(r),
            _ => self.verify(r),
        }
    }

    fn wait(&mut self, r: &mut Rng) {
        let most = if odds(r, 1, 8) {
            5 * SECONDS
        } else {
            self.character.scale_ns
        };
        let passed = r.below(most);
        self.model.pass(self.model.now + passed);
    }

    fn may_have_been_away(&mut self, r: &mut Rng) -> Verdict {
        if !odds(r, 1, 8) {
            return Ok(());
        }
        let for_ns = r.below(4 * self.character.scale_ns);
        self.feed(Event::Away { for_ns })
    }

    /// Advances the clock to the next timer (or, if `late`, beyond it) and feeds timer events until
    /// none is due.
    fn go_to_timer(&mut self, r: &mut Rng, late: bool) -> Verdict {
        let next = self.sched.next_timer_ns();
        let now = self.model.now;
        if next != u64::MAX && next < now + 100 * SECONDS {
            let beyond = if late {
                r.below(self.character.scale_ns)
            } else {
                0
            };
            self.model.pass(next.max(now) + beyond);
        }
        self.may_have_been_away(r)?;
        if odds(r, 1, 10) {
            // Another event comes before the timer event.
            return Ok(());
        }
        let mut rounds = 0;
        while self.sched.next_timer_ns() <= self.model.now {
            self.feed(Event::Timer)?;
            rounds += 1;
            ensure!(rounds < SPIN, "the timer fires without end");
        }
        Ok(())
    }

    pub(super) fn start(&mut self, vm: VmId) -> Verdict {
        self.next_session += 1;
        let session = SessionId(self.next_session);
        self.feed(Event::SessionAdded { session, vm })
    }

    /// Feeds a random event of the administrator or the probe.
    fn admin(&mut self, r: &mut Rng) -> Verdict {
        let gpu = make::any_gpu(r);
        let pool = PoolId(r.below(make::POOLS) as u32);
        let vm = VmId(r.below(make::VMS) as u32);
        let wild = self.character.wild;
        let on = odds(r, 1, 2);
        let event = match weighted(
            r,
            &[2, 2, 1, 3, 1, 2, 6, 1, 3, 1, 2, 4, 8, 2, 3, 1, 3, 3, 2],
        ) {
            0 => Event::AddGpu {
                gpu,
                config: make::gpu(r),
                health: make::health(r),
            },
            1 => Event::SetGpu {
                gpu,
                config: make::gpu(r),
            },
            2 => Event::RemoveGpu { gpu },
            3 => Event::GpuState {
                gpu,
                health: make::health(r),
            },
            4 => Event::Verified { gpu, ok: on },
            5 => Event::AddPool {
                pool,
                config: make::pool(r, wild),
            },
            6 => Event::SetPool {
                pool,
                config: make::pool(r, wild),
            },
            7 => Event::RemovePool { pool },
            8 => Event::AssignGpu { gpu, pool },
            9 => Event::UnassignGpu { gpu, pool },
            10 => Event::SetClassWeights {
                weights: make::weights(r),
            },
            11 => Event::AddVm {
                vm,
                config: make::vm(r, wild),
                past: make::past(r),
            },
            12 => Event::SetVm {
                vm,
                config: make::vm(r, wild),
            },
            13 => Event::RemoveVm { vm },
            14 => Event::SetQuarantine {
                vm,
                on: on && odds(r, 1, 2),
            },
            15 => Event::Strike { vm },
            16 => Event::ResetStats {
                vm: on.then_some(vm),
            },
            17 => Event::PinnedLeft {
                vm,
                bytes: if on { make::amount(r, 400) } else { 0 },
            },
            _ => {
                // A session number that was used before.
                let session = pick(r, &self.model.ever).unwrap_or(SessionId(0));
                Event::SessionAdded { session, vm }
            }
        };
        self.feed(event)
    }

    /// Feeds the next event of an honest worker.
    fn honest(&mut self, r: &mut Rng) -> Verdict {
        let live: Vec<SessionId> = self
            .model
            .sessions
            .iter()
            .filter(|(_, session)| session.served())
            .map(|(&id, _)| id)
            .collect();
        let Some(id) = pick(r, &live) else {
            return Ok(());
        };
        let Some(session) = self.model.sessions.get(&id).cloned() else {
            return Ok(());
        };
        let (in_flight, depth) = (session.in_flight(), session.depth);
        let Some(holder) = self.model.holder(id) else {
            let calls = if depth == 0 || odds(r, 1, 4) {
                r.between(1, 4)
            } else {
                depth
            };
            return self.feed(runnable(id, calls));
        };
        let (epoch, credits, revoked) = (holder.epoch, holder.credits, holder.revoked_ns.is_some());
        let left = credits.calls.saturating_sub(session.used.calls);
        let used = Usage {
            calls: session.used.calls + r.below(left.min(4) + 1),
            bytes: session.used.bytes
                + r.below(credits.bytes.saturating_sub(session.used.bytes).min(99) + 1),
        };
        let event = if in_flight > 0 {
            if odds(r, 1, 8) {
                return Ok(());
            }
            if odds(r, 1, 4) {
                let event = self.ending(r, id, epoch);
                return self.feed(event);
            }
            Event::Progress {
                session: id,
                submitted: session.submitted,
                completed: session.completed + r.between(1, in_flight),
            }
        } else if revoked {
            Event::Released {
                session: id,
                epoch,
                used,
                depth: calls(depth),
            }
        } else if depth > 0 && left == 0 {
            Event::CreditsSpent {
                session: id,
                epoch,
                used,
            }
        } else if depth > 0 {
            match r.below(6) {
                0 => Event::Idle {
                    session: id,
                    idle_for_ns: 0,
                },
                1 => Event::CreditsSpent {
                    session: id,
                    epoch,
                    used,
                },
                _ => Event::Progress {
                    session: id,
                    submitted: session.submitted + r.between(1, 3),
                    completed: session.completed,
                },
            }
        } else if session.said_idle && odds(r, 1, 2) {
            runnable(id, r.between(1, 4))
        } else {
            Event::Idle {
                session: id,
                idle_for_ns: make::amount(r, 300 * MICROS),
            }
        };
        self.feed(event)
    }

    /// Feeds any report of a worker, true or false.
    fn lie(&mut self, r: &mut Rng) -> Verdict {
        let Some(session) = self.any_session(r) else {
            return Ok(());
        };
        let event = match weighted(r, &[1, 8, 3, 4, 1, 2, 1, 2, 1]) {
            0 => Event::SessionRemoved { session },
            1 => Event::Runnable {
                session,
                depth: Depth {
                    calls: r.below(4),
                    bytes: r.bits(),
                },
                head: HeadCost {
                    gpu_ns: make::nanos(r),
                    bytes: r.bits(),
                },
            },
            2 => Event::Idle {
                session,
                idle_for_ns: make::nanos(r),
            },
            3 => Event::Progress {
                session,
                submitted: make::amount(r, 9),
                completed: make::amount(r, 9),
            },
            4 => Event::WorkerExited { session },
            5 => Event::MemoryReserve {
                session,
                of: make::memory(r),
                bytes: make::amount(r, 400),
                tag: r.below(3),
            },
            6 => Event::WorkerExiting { session },
            7 => Event::Used {
                session,
                used: any_usage(r),
            },
            _ => Event::MemoryRelease {
                session,
                of: make::memory(r),
                bytes: make::amount(r, 400),
            },
        };
        self.feed(event)
    }

    /// An announced end of a holder's work: mostly soon, and mostly for the present slice.
    fn ending(&self, r: &mut Rng, session: SessionId, epoch: Epoch) -> Event {
        let slice_end_ns = match self.model.holder(session) {
            Some(holder) if odds(r, 7, 8) => holder.slice_end_ns,
            _ => r.bits(),
        };
        Event::Ending {
            session,
            epoch,
            slice_end_ns,
            in_ns: make::amount(r, 400 * MICROS),
        }
    }

    /// Feeds a report about a lease: with probability 1/n an announced end, with nearly the same
    /// probability a report that the credit is used up, otherwise the release.
    fn returns(&mut self, r: &mut Rng, session: SessionId, epoch: Epoch, n: u64) -> Verdict {
        let used = any_usage(r);
        if odds(r, 1, n) {
            let event = self.ending(r, session, epoch);
            return self.feed(event);
        }
        self.feed(if odds(r, 1, n) {
            Event::CreditsSpent {
                session,
                epoch,
                used,
            }
        } else {
            Event::Released {
                session,
                epoch,
                used,
                depth: calls(r.below(3)),
            }
        })
    }

    /// Feeds a report of a holder about its lease, regardless of a revoke.
    fn held(&mut self, r: &mut Rng) -> Verdict {
        let all = self.leases();
        let Some((session, epoch)) = pick(r, &all) else {
            return Ok(());
        };
        self.returns(r, session, epoch, 2)
    }

    /// Feeds a report with the epoch of another session's lease, of an old lease, or of no lease.
    fn forge(&mut self, r: &mut Rng) -> Verdict {
        let Some(session) = self.any_session(r) else {
            return Ok(());
        };
        let held: Vec<Epoch> = self.leases().into_iter().map(|(_, epoch)| epoch).collect();
        let epoch = match r.below(3) {
            0 => pick(r, &held).unwrap_or(Epoch(0)),
            1 => Epoch(r.below(self.model.last_epoch + 2)),
            _ => Epoch(r.bits()),
        };
        self.returns(r, session, epoch, 3)
    }

    /// Feeds the exit of a worker that was killed or whose guest has ended, or the news that the
    /// worker still exits.
    fn reap(&mut self, r: &mut Rng) -> Verdict {
        let over: Vec<SessionId> = self
            .model
            .sessions
            .iter()
            .filter(|(_, session)| !session.served())
            .map(|(&id, _)| id)
            .collect();
        match pick(r, &over) {
            Some(session) if odds(r, 1, 3) => self.feed(Event::WorkerExiting { session }),
            Some(session) => self.feed(Event::WorkerExited { session }),
            None => Ok(()),
        }
    }

    fn verify(&mut self, r: &mut Rng) -> Verdict {
        let asked: Vec<GpuId> = self
            .model
            .gpus
            .iter()
            .filter(|(_, gpu)| gpu.canary || gpu.health == GpuHealth::Unverified)
            .map(|(&id, _)| id)
            .collect();
        match pick(r, &asked) {
            Some(gpu) => self.feed(Event::Verified {
                gpu,
                ok: odds(r, 7, 8),
            }),
            None => Ok(()),
        }
    }

    /// A random session, mostly present, sometimes ended. A session with a lease that was granted
    /// before the previous lease ended, or that gathers GPUs, is chosen more often, because these
    /// states are short.
    fn any_session(&self, r: &mut Rng) -> Option<SessionId> {
        let mut leases = self.model.leases.values();
        if let Some(ahead) = leases.find(|lease| lease.ahead.is_some())
            && odds(r, 1, 2)
        {
            return Some(ahead.session);
        }
        let live: Vec<SessionId> = self.model.sessions.keys().copied().collect();
        let gathers = |id: &SessionId| {
            let stats = self.sched.session_stats(*id);
            stats.is_some_and(|stats| stats.state == SessionState::Gathering)
        };
        if let Some(gathering) = live.iter().copied().find(gathers)
            && odds(r, 1, 4)
        {
            return Some(gathering);
        }
        if odds(r, 1, 8) || live.is_empty() {
            pick(r, &self.model.ever)
        } else {
            pick(r, &live)
        }
    }

    fn leases(&self) -> Vec<(SessionId, Epoch)> {
        let leases = self.model.leases.values();
        leases.map(|lease| (lease.session, lease.epoch)).collect()
    }
}

fn calls(calls: u64) -> Depth {
    Depth { calls, bytes: 0 }
}

fn runnable(session: SessionId, depth: u64) -> Event {
    Event::Runnable {
        session,
        depth: calls(depth),
        head: HeadCost::default(),
    }
}

fn any_usage(r: &mut Rng) -> Usage {
    Usage {
        calls: make::amount(r, 200),
        bytes: make::amount(r, 200),
    }
}
