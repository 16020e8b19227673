//! What is simulated: GPUs, pools, VMs, their guests, and what the administrator does meanwhile.

use vgpu_sched::{Class, Event, GpuId, MICROS, MILLIS, PoolConfig, PoolId, VmConfig, VmId};

use crate::guest::Load;

/// Times of the host that are not the scheduler's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// From a worker's message to vgpud's hearing it: the second at most, evenly drawn.
    pub up_ns: (u64, u64),
    /// From vgpud's message to the worker's hearing it.
    pub down_ns: (u64, u64),
    /// From a marker's firing to the worker's knowing it.
    pub wake_ns: u64,
    /// From an answer to the guest's next call.
    pub guest_ns: u64,
    /// From a kill to the death.
    pub kill_ns: u64,
    /// How long a canary takes.
    pub canary_ns: u64,
    /// Timers fire late by up to this.
    pub timer_late_ns: u64,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            up_ns: (4 * MICROS, 8 * MICROS),
            down_ns: (4 * MICROS, 8 * MICROS),
            wake_ns: 5 * MICROS,
            guest_ns: 10 * MICROS,
            kill_ns: 20 * MILLIS,
            canary_ns: 50 * MILLIS,
            timer_late_ns: 2 * MICROS,
        }
    }
}

impl Host {
    /// The messages of one handoff at the longest: the marker, the release, the grant.
    #[must_use]
    pub fn handoff_ns(&self) -> u64 {
        self.wake_ns + self.up_ns.1 + self.down_ns.1 + self.timer_late_ns
    }
}

/// How a worker keeps to the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conduct {
    /// As ours do.
    #[default]
    Honest,
    /// Never gives a lease back that it is asked for, and submits on.
    Deaf,
    /// Claims progress that there is not.
    Boaster,
    /// Never says that it has nothing to do.
    Hoarder,
}

/// One guest process and its worker.
#[derive(Debug, Clone)]
pub struct GuestSetup {
    /// What it does.
    pub load: Load,
    /// How its worker behaves.
    pub conduct: Conduct,
    /// When it ends; `u64::MAX`: never.
    pub ends_ns: u64,
}

/// One VM.
#[derive(Debug, Clone)]
pub struct VmSetup {
    /// Its settings.
    pub config: VmConfig,
    /// Its processes.
    pub guests: Vec<GuestSetup>,
}

/// One GPU.
#[derive(Debug, Clone, Copy)]
pub struct GpuSetup {
    /// What loading another context costs.
    pub switch_ns: u64,
    /// How long the driver lets one of several contexts run.
    pub turn_ns: u64,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Everything random comes from this.
    pub seed: u64,
    /// Numbered from 0.
    pub gpus: Vec<GpuSetup>,
    /// Numbered from 0, each with the GPUs that serve it.
    pub pools: Vec<(PoolConfig, Vec<u32>)>,
    /// Numbered from 0.
    pub vms: Vec<VmSetup>,
    /// Delays.
    pub host: Host,
    /// What the administrator does, in order of time.
    pub script: Vec<(u64, Event)>,
    /// Remember every VM's charged time at every change (for shares in sliding windows).
    pub track: bool,
}

/// The only pool of most setups.
pub const POOL: PoolId = PoolId(0);
/// The only GPU of most setups.
pub const GPU: GpuId = GpuId(0);

impl Setup {
    /// One GPU with this switch cost, one pool.
    #[must_use]
    pub fn new(seed: u64, switch_ns: u64, pool: PoolConfig) -> Self {
        let gpu = GpuSetup {
            switch_ns,
            turn_ns: MILLIS,
        };
        Self {
            seed,
            gpus: vec![gpu],
            pools: vec![(pool, vec![0])],
            vms: Vec::new(),
            host: Host::default(),
            script: Vec::new(),
            track: true,
        }
    }

    /// Adds a VM with one honest guest per load; its number.
    pub fn vm(&mut self, config: VmConfig, loads: Vec<Load>) -> u32 {
        let guests = loads
            .into_iter()
            .map(|load| GuestSetup {
                load,
                conduct: Conduct::Honest,
                ends_ns: u64::MAX,
            })
            .collect();
        self.vms.push(VmSetup { config, guests });
        self.vms.len() as u32 - 1
    }

    /// Adds a VM of this weight (relative to others made so) with one honest guest.
    pub fn weighted(&mut self, weight: u32, load: Load) -> u32 {
        self.vm(weighted(weight), vec![load])
    }

    /// At this time the administrator does this.
    pub fn at(&mut self, ns: u64, event: Event) {
        self.script.push((ns, event));
        self.script.sort_by_key(|(at, _)| *at);
    }

    /// The same guests all at another VM's weight.
    pub fn reweigh(&mut self, ns: u64, vm: u32, weight: u32) {
        let config = VmConfig {
            factor_milli: weight * 1000,
            ..self.vms[vm as usize].config.clone()
        };
        self.at(
            ns,
            Event::SetVm {
                vm: VmId(vm),
                config,
            },
        );
    }
}

/// Settings of a VM of this weight.
#[must_use]
pub fn weighted(weight: u32) -> VmConfig {
    VmConfig {
        factor_milli: weight * 1000,
        ..VmConfig::new(POOL, Class::Low)
    }
}
