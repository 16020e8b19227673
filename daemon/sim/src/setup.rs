//! The description of a simulation: GPUs, pools, VMs, guests, and the administrator's actions.

use vgpu_sched::{Class, Event, GpuId, MICROS, MILLIS, PoolConfig, PoolId, VmConfig, VmId};

use crate::guest::Load;

/// Delays of the host, outside the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Shortest and longest delay in ns of a message from a worker to vgpud; the delay is uniform.
    pub up_ns: (u64, u64),
    /// The same for a message from vgpud to a worker.
    pub down_ns: (u64, u64),
    /// Time in ns from the firing of a marker until the worker sees it.
    pub wake_ns: u64,
    /// Time in ns from an answer until the guest's next call.
    pub guest_ns: u64,
    /// Time in ns from a kill to the end of the process.
    pub kill_ns: u64,
    /// Duration of a canary in ns.
    pub canary_ns: u64,
    /// Longest delay of a timer in ns.
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
    /// Longest time in ns that the messages of one handoff take: the marker, the release, the
    /// grant.
    #[must_use]
    pub fn handoff_ns(&self) -> u64 {
        self.wake_ns + self.up_ns.1 + self.down_ns.1 + self.timer_late_ns
    }
}

/// Whether and how a worker breaks the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conduct {
    /// Like the production worker.
    #[default]
    Honest,
    /// A worker that its guest has taken over: continues to submit after a revoke and after the
    /// slice's end, as far as vgpud's credit on the lease page goes.
    Deaf,
    /// Reports false progress.
    Boaster,
    /// Never reports that it is idle, and so holds the GPU.
    Hoarder,
    /// Claims this cost in ns of its next operation.
    Claims(u64),
}

/// One guest process and its worker.
#[derive(Debug, Clone)]
pub struct GuestSetup {
    /// Load of the guest.
    pub load: Load,
    /// Conduct of the worker.
    pub conduct: Conduct,
    /// Time at which the guest ends, in ns; `u64::MAX`: never.
    pub ends_ns: u64,
}

/// One VM.
#[derive(Debug, Clone)]
pub struct VmSetup {
    /// Settings of the VM.
    pub config: VmConfig,
    /// Processes of the VM.
    pub guests: Vec<GuestSetup>,
}

/// One GPU.
#[derive(Debug, Clone, Copy)]
pub struct GpuSetup {
    /// Time in ns to load another context.
    pub switch_ns: u64,
    /// Length in ns of a context's turn on the device, if several contexts have work.
    pub turn_ns: u64,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Seed of all random draws.
    pub seed: u64,
    /// GPUs, numbered from 0.
    pub gpus: Vec<GpuSetup>,
    /// Pools, numbered from 0, each with the GPUs that serve it.
    pub pools: Vec<(PoolConfig, Vec<u32>)>,
    /// VMs, numbered from 0.
    pub vms: Vec<VmSetup>,
    /// Delays of the host.
    pub host: Host,
    /// Actions of the administrator, in order of time (ns).
    pub script: Vec<(u64, Event)>,
    /// Whether to record the charged time of each VM as a function of time, for shares in sliding
    /// windows.
    pub track: bool,
}

/// The only pool of most setups.
pub const POOL: PoolId = PoolId(0);
/// The only GPU of most setups.
pub const GPU: GpuId = GpuId(0);

impl Setup {
    /// A setup of one GPU with this switch cost in ns, and one pool.
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

    /// Adds a VM with one honest guest per load. Returns its number.
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

    /// Adds a VM with this weight and one honest guest. Returns the VM's number.
    pub fn weighted(&mut self, weight: u32, load: Load) -> u32 {
        self.vm(weighted(weight), vec![load])
    }

    /// Plans an action of the administrator at time `ns`.
    pub fn at(&mut self, ns: u64, event: Event) {
        self.script.push((ns, event));
        self.script.sort_by_key(|(at, _)| *at);
    }

    /// Plans a new weight for a VM at time `ns`.
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

/// Settings of a VM with this weight.
#[must_use]
pub fn weighted(weight: u32) -> VmConfig {
    VmConfig {
        factor_milli: weight * 1000,
        ..VmConfig::new(POOL, Class::Low)
    }
}
