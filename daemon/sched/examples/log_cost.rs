//! Measures the cost of the decision log: `cargo run -p vgpu-sched --release --example log_cost`.
//! The same events go to a scheduler without log and to a scheduler with log, in alternating
//! rounds. Prints the difference per event, and the cost of the snapshot at the start of a segment.

use std::time::Instant;

use vgpu_sched::log::{Bounds, DecisionLog};
use vgpu_sched::{
    Action, Class, Config, Depth, Epoch, Event, GpuConfig, GpuHealth, GpuId, HeadCost, Past,
    PoolConfig, PoolId, Scheduler, SessionId, Usage, VmConfig, VmId,
};

const EVENTS: u64 = 400_000;
const ROUNDS: usize = 9;

/// A host whose VMs all have work: leases are revoked at the end of each slice and returned at
/// once.
struct Host {
    scheduler: Scheduler,
    log: Option<DecisionLog>,
    actions: Vec<Action>,
    now: u64,
    held: Option<(SessionId, Epoch)>,
}

impl Host {
    fn new(vms: u32) -> Self {
        let mut host = Self {
            scheduler: Scheduler::new(Config::default()),
            log: None,
            actions: Vec::new(),
            now: 1 << 40,
            held: None,
        };
        let (gpu, pool) = (GpuId(0), PoolId(1));
        host.feed(Event::AddGpu {
            gpu,
            config: GpuConfig {
                memory_bytes: 1 << 40,
                ..GpuConfig::default()
            },
            health: GpuHealth::Healthy,
        });
        let config = PoolConfig::default();
        host.feed(Event::AddPool { pool, config });
        host.feed(Event::AssignGpu { gpu, pool });
        for vm in 0..vms {
            let (vm, session) = (VmId(vm), SessionId(u64::from(vm)));
            host.feed(Event::AddVm {
                vm,
                config: VmConfig::new(pool, Class::ALL[vm.0 as usize % 4]),
                past: Past::default(),
            });
            host.feed(Event::SessionAdded { session, vm });
            host.feed(Event::Runnable {
                session,
                depth: Depth { calls: 1, bytes: 0 },
                head: HeadCost::default(),
            });
        }
        host
    }

    fn feed(&mut self, event: Event) {
        self.actions.clear();
        match &mut self.log {
            Some(log) => log.handle(&mut self.scheduler, self.now, event, &mut self.actions),
            None => self.scheduler.handle(self.now, event, &mut self.actions),
        }
        for action in &self.actions {
            match action {
                Action::Grant(terms) => self.held = Some((terms.session, terms.epoch)),
                Action::Revoke { .. } => self.now += 50_000,
                _ => {}
            }
        }
    }

    /// Feeds many events: progress, ends of slices, releases. Returns the mean time per event in
    /// ns, including the starts of segments.
    fn run(&mut self) -> f64 {
        let begun = Instant::now();
        for n in 0..EVENTS {
            match n % 3 {
                0 => {
                    self.now += 2_000_000;
                    self.feed(Event::Timer);
                }
                1 => {
                    let Some((session, epoch)) = self.held else {
                        continue;
                    };
                    self.feed(Event::Released {
                        session,
                        epoch,
                        used: Usage::default(),
                        depth: Depth { calls: 1, bytes: 0 },
                    });
                }
                _ => {
                    let Some((session, _)) = self.held else {
                        continue;
                    };
                    self.feed(Event::Progress {
                        session,
                        submitted: n,
                        completed: n,
                    });
                }
            }
        }
        begun.elapsed().as_nanos() as f64 / EVENTS as f64
    }
}

/// The minimum: the measured value with the least disturbance.
fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

fn main() {
    println!(
        "{:>6} {:>12} {:>12} {:>12} {:>14} {:>10}",
        "VMs", "alone ns", "logged ns", "log ns", "snapshot us", "log MiB"
    );
    for vms in [4, 64, 256, 4096] {
        let (mut alone, mut logged) = (Vec::new(), Vec::new());
        let mut plain = Host::new(vms);
        let mut with = Host::new(vms);
        with.log = Some(DecisionLog::new(&with.scheduler, Bounds::default()));
        for _ in 0..ROUNDS {
            alone.push(plain.run());
            logged.push(with.run());
        }
        let clones = (0..ROUNDS).map(|_| {
            let begun = Instant::now();
            let clone = with.scheduler.clone();
            let took = begun.elapsed().as_nanos() as f64 / 1e3;
            drop(std::hint::black_box(clone));
            took
        });
        let snapshot = least(clones);
        let bytes = with.log.as_ref().map_or(0, DecisionLog::bytes);
        let (alone, logged) = (least(alone), least(logged));
        println!(
            "{vms:>6} {alone:>12.0} {logged:>12.0} {:>12.0} {snapshot:>14.0} {:>10.1}",
            logged - alone,
            bytes as f64 / f64::from(1 << 20)
        );
    }
}
