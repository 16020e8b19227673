//! The cost of one scheduling decision: runs the production scheduler in a loop.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result};
use vgpu_sched::{
    Action, Class, Config, Depth, Event, GpuConfig, GpuHealth, GpuId, HeadCost, Past, PoolConfig,
    PoolId, Scheduler, SessionId, Terms, Usage, VmConfig, VmId,
};

use crate::quantile::quantile;

/// A measurement has this number of batches; each batch has `BATCH` decisions. The result is the
/// median of the batches.
const BATCHES: usize = 50;
const BATCH: usize = 200;

const BACKLOG: Depth = Depth {
    calls: 100,
    bytes: 0,
};

/// Cost of decisions in ns while all VMs wait.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Choice of the next session.
    pub choose: f64,
    /// A whole handoff: from the release to the next grant, with accounts and timers.
    pub handoff: f64,
}

/// Measures both costs among `vms` waiting VMs.
///
/// # Errors
/// If the scheduler does not grant, which would be a fault of the scheduler.
pub fn cost(vms: u32) -> Result<Cost> {
    let mut bench = Bench::new(vms)?;
    let (mut choose, mut handoff) = (Vec::new(), Vec::new());
    for _ in 0..BATCHES {
        let mut spent = 0;
        for _ in 0..BATCH {
            spent += bench.hand_over()?;
        }
        handoff.push(spent as f64 / BATCH as f64);
        let start = Instant::now();
        for _ in 0..BATCH {
            black_box(bench.scheduler.choose_next(black_box(GpuId(0))));
        }
        choose.push(start.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    Ok(Cost {
        choose: quantile(&mut choose, 0.5),
        handoff: quantile(&mut handoff, 0.5),
    })
}

struct Bench {
    scheduler: Scheduler,
    now_ns: u64,
    holder: Terms,
    actions: Vec<Action>,
}

impl Bench {
    fn new(vms: u32) -> Result<Bench> {
        let (gpu, pool) = (GpuId(0), PoolId(0));
        let mut scheduler = Scheduler::new(Config::default());
        let mut actions = Vec::new();
        let config = GpuConfig {
            memory_bytes: 1 << 40,
            ..GpuConfig::default()
        };
        let mut events = vec![
            Event::AddGpu {
                gpu,
                config,
                health: GpuHealth::Healthy,
            },
            Event::AddPool {
                pool,
                config: PoolConfig::default(),
            },
            Event::AssignGpu { gpu, pool },
        ];
        for i in 1..=vms {
            let class = Class::ALL[(i % 3) as usize];
            let config = VmConfig::new(pool, class);
            let (vm, session) = (VmId(i), SessionId(i.into()));
            events.push(Event::AddVm {
                vm,
                config,
                past: Past::default(),
            });
            events.push(Event::SessionAdded { session, vm });
            events.push(Event::Runnable {
                session,
                depth: BACKLOG,
                head: HeadCost::default(),
            });
        }
        for event in events {
            scheduler.handle(0, event, &mut actions);
        }
        let holder = granted(&actions).context("no session was granted the GPU")?;
        Ok(Bench {
            scheduler,
            now_ns: 0,
            holder,
            actions,
        })
    }

    /// Runs one slice and its end. Returns the time in ns that the scheduler took to handle the
    /// release.
    fn hand_over(&mut self) -> Result<u128> {
        self.now_ns += 2_000_000;
        self.actions.clear();
        self.scheduler
            .handle(self.now_ns, Event::Timer, &mut self.actions);
        let released = Event::Released {
            session: self.holder.session,
            epoch: self.holder.epoch,
            used: Usage {
                calls: 10,
                bytes: 0,
            },
            depth: BACKLOG,
        };
        self.actions.clear();
        self.now_ns += 1_000;
        let start = Instant::now();
        self.scheduler
            .handle(self.now_ns, released, &mut self.actions);
        let spent = start.elapsed().as_nanos();
        self.holder = granted(&self.actions).context("no grant follows a release")?;
        Ok(spent)
    }
}

fn granted(actions: &[Action]) -> Option<Terms> {
    actions.iter().find_map(|action| match action {
        Action::Grant(terms) => Some(terms.clone()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_loop_hands_over() {
        for vms in [1, 3] {
            assert!(super::cost(vms).unwrap().handoff > 0.0);
        }
    }
}
