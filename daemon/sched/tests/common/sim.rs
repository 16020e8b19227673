//! The simulator of `vgpu-sim`, with VMs numbered by the tests, and without delays of the host: the
//! bounds of these tests are those of the scheduler alone.

use vgpu_sched::{Class, Event, PoolConfig, Scheduler, VmConfig, VmId};
use vgpu_sim::dist::Length;
pub(crate) use vgpu_sim::guest::Load;
use vgpu_sim::measure::accounting_error;
pub(crate) use vgpu_sim::setup::Conduct;
use vgpu_sim::setup::{GuestSetup, Host, Setup, VmSetup};
use vgpu_sim::world::World;

use super::POOL;

/// Kernels of this length in ns, without end.
pub(crate) fn backlog(kernel_ns: u64) -> Load {
    Load::backlog(Length::Const(kernel_ns))
}

/// Bursts of kernels of this length in ns, with pauses between.
pub(crate) fn bursts(kernel_ns: u64, burst: u64, pause_ns: u64) -> Load {
    Load::looping(burst, Length::Const(kernel_ns), Length::Const(pause_ns))
}

/// [`bursts`] with this number of kernels and this pause, or without end.
pub(crate) fn load(kernel_ns: u64, of: Option<(u64, u64)>) -> Load {
    match of {
        None => backlog(kernel_ns),
        Some((burst, pause_ns)) => bursts(kernel_ns, burst, pause_ns),
    }
}

/// A simulation: VMs and guests are added before the first [`Sim::run_until`].
pub(crate) struct Sim {
    setup: Setup,
    world: Option<World>,
}

impl Sim {
    /// A host with this pool, served by one GPU. `switch_ns`: time in ns to load another context.
    pub(crate) fn new(pool: PoolConfig, switch_ns: u64) -> Self {
        let mut setup = Setup::new(0, switch_ns, pool);
        setup.host = Host {
            up_ns: (0, 0),
            down_ns: (0, 0),
            wake_ns: 0,
            guest_ns: 0,
            timer_late_ns: 0,
            ..Host::default()
        };
        setup.track = false;
        // The tests' pool is number 1.
        setup.pools.insert(0, (PoolConfig::default(), Vec::new()));
        let world = None;
        Self { setup, world }
    }

    /// Sets the turn in ns of a context on a GPU where several contexts have work.
    pub(crate) fn turns_of(&mut self, ns: u64) {
        self.setup.gpus[0].turn_ns = ns;
    }

    /// Adds GPUs to the pool until `gpus` serve it.
    pub(crate) fn gpus(&mut self, gpus: u32) {
        self.setup.gpus = vec![self.setup.gpus[0]; gpus as usize];
        self.setup.pools[POOL.0 as usize].1 = (0..gpus).collect();
    }

    /// Adds a pool that the first GPU serves.
    pub(crate) fn add_pool(&mut self, pool: PoolConfig) {
        self.setup.pools.push((pool, vec![0]));
    }

    pub(crate) fn add_vm(&mut self, vm: u32, class: Class) {
        self.add_vm_with(vm, VmConfig::new(POOL, class));
    }

    pub(crate) fn add_vm_with(&mut self, vm: u32, config: VmConfig) {
        // VMs that no test names have no guests.
        let nobody = VmSetup {
            config: VmConfig::new(POOL, Class::Low),
            guests: Vec::new(),
        };
        let vms = &mut self.setup.vms;
        vms.resize(vms.len().max(vm as usize + 1), nobody);
        vms[vm as usize].config = config;
    }

    /// Adds a session of a VM with this load.
    pub(crate) fn start(&mut self, vm: u32, load: Load) {
        self.start_as(vm, load, Conduct::Honest);
    }

    pub(crate) fn start_as(&mut self, vm: u32, load: Load, conduct: Conduct) {
        assert!(self.world.is_none(), "guests are added before the run");
        self.setup.vms[vm as usize].guests.push(GuestSetup {
            load,
            conduct,
            ends_ns: u64::MAX,
        });
    }

    pub(crate) fn world(&mut self) -> &mut World {
        self.world.get_or_insert_with(|| World::new(&self.setup))
    }

    /// Runs up to a time in ns.
    pub(crate) fn run_until(&mut self, end: u64) {
        let world = self.world();
        world.run_until(end);
        assert_eq!(world.problems, Vec::<String>::new());
    }

    /// As [`Sim::run_until`], `ns` from now on.
    pub(crate) fn run_for(&mut self, ns: u64) {
        let end = self.world().now + ns;
        self.run_until(end);
    }

    pub(crate) fn feed(&mut self, event: Event) {
        self.world().feed(event);
    }

    pub(crate) fn sched(&self) -> &Scheduler {
        &self.world.as_ref().expect("it runs").sched
    }

    /// Charged time of a VM in ns.
    pub(crate) fn gpu_ns(&self, vm: u32) -> u64 {
        self.sched()
            .vm_stats(VmId(vm))
            .expect("the VM is known")
            .gpu_ns
    }

    /// Number of completed operations of a VM.
    pub(crate) fn completed(&self, vm: u32) -> u64 {
        self.world.as_ref().expect("it runs").completed(vm)
    }

    /// Times in ns of all submissions of a VM that has limits.
    pub(crate) fn submissions(&self, vm: u32) -> Vec<u64> {
        let world = self.world.as_ref().expect("it runs");
        world.books.vms[vm as usize]
            .used
            .iter()
            .map(|used| used.0)
            .collect()
    }

    /// Longest wait of a VM in ns, with the present wait.
    pub(crate) fn longest_wait(&self, vm: u32) -> u64 {
        let ended = self
            .sched()
            .vm_stats(VmId(vm))
            .expect("the VM is known")
            .wait;
        let since = self
            .sched()
            .explain(VmId(vm))
            .and_then(|e| e.waiting_since_ns);
        let now = self.world.as_ref().expect("it runs").now;
        ended.max_ns().max(since.map_or(0, |since| now - since))
    }

    /// Checks that the accounts of the scheduler, the simulator and the devices agree.
    pub(crate) fn check_accounts(&mut self) {
        assert_eq!(accounting_error(self.world()), 0);
    }
}
