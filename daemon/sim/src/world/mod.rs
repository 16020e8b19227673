//! The simulated host: events in order of time.

mod daemon;
mod worker;
mod workers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use vgpu_sched::gate::lease::Message;
use vgpu_sched::{
    Action, Config, Event, GpuConfig, GpuHealth, GpuId, PoolId, Scheduler, SessionId, VmId,
};

use crate::books::Books;
use crate::device::{Device, Fired};
use crate::guest::Guest;
use crate::parts::{Happening, Life, Pages, Told};
use crate::rng::Rng;
use crate::setup::{Host, Setup};
use worker::Worker;

/// Interval in ns at which vgpud reads the hint pages of the holders (`mediator::actor`).
const LOOK_NS: u64 = 5 * vgpu_sched::MILLIS;

/// The simulated host.
pub struct World {
    /// Current time in ns.
    pub now: u64,
    /// The production scheduler.
    pub sched: Scheduler,
    /// The simulator's own accounts of leases.
    pub books: Books,
    /// Devices, by GPU number.
    pub devices: Vec<Device>,
    /// Workers, by session number.
    pub workers: Vec<Worker>,
    /// Descriptions of violated invariants.
    pub problems: Vec<String>,
    /// Number of operations submitted so far.
    pub operations: u64,
    /// Number of events given to the scheduler so far.
    pub decisions: u64,
    /// Time and session of every kill.
    pub kills: Vec<(u64, u32)>,
    /// Time and session of every declared overrun.
    pub overruns: Vec<(u64, u32)>,
    /// Number of turns that were extended or revoked.
    pub turns: u64,
    /// Largest change of a VM's lag by an action of the administrator, in ns.
    pub lag_moved_ns: u128,
    /// Busy time in ns during declared overruns: of all VMs except the overrunners, and of all VMs.
    pub overrun_busy_ns: Option<(u64, u64)>,
    pages: Vec<Pages>,
    sessions: Vec<daemon::Session>,
    host: Host,
    inbox: VecDeque<Event>,
    actions: Vec<Action>,
    settling: bool,
    timer_ns: u64,
    looking: bool,
    rng: Rng,
    heap: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    serial: u64,
    scheduled: Vec<u64>,
    fired: Vec<Fired>,
    ends: Vec<u64>,
    script: Vec<Event>,
    verbose: bool,
}

impl World {
    /// A host at time 0.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let guests = setup.vms.iter().map(|vm| vm.guests.len()).sum::<usize>();
        let mut world = Self {
            now: 0,
            sched: Scheduler::new(Config::default()),
            books: Books::new(setup.vms.len(), setup.gpus.len(), setup.track),
            devices: Vec::new(),
            workers: Vec::with_capacity(guests),
            problems: Vec::new(),
            operations: 0,
            decisions: 0,
            kills: Vec::new(),
            overruns: Vec::new(),
            turns: 0,
            lag_moved_ns: 0,
            overrun_busy_ns: None,
            pages: Vec::with_capacity(guests),
            sessions: Vec::with_capacity(guests),
            host: setup.host,
            inbox: VecDeque::new(),
            actions: Vec::new(),
            settling: false,
            timer_ns: u64::MAX,
            looking: false,
            rng: Rng::part(setup.seed, u64::MAX - 1),
            heap: BinaryHeap::new(),
            serial: 0,
            scheduled: vec![u64::MAX; setup.gpus.len()],
            fired: Vec::new(),
            ends: Vec::new(),
            script: setup
                .script
                .iter()
                .map(|(_, event)| event.clone())
                .collect(),
            verbose: false,
        };
        world.build(setup);
        world
    }

    fn build(&mut self, setup: &Setup) {
        for (index, gpu) in setup.gpus.iter().enumerate() {
            self.devices.push(Device::new(gpu.switch_ns, gpu.turn_ns));
            self.feed(Event::AddGpu {
                gpu: GpuId(index as u32),
                config: GpuConfig {
                    memory_bytes: 80 << 30,
                    context_bytes: 0,
                    overcommit: false,
                },
                health: GpuHealth::Healthy,
            });
        }
        for (index, (config, gpus)) in setup.pools.iter().enumerate() {
            let pool = PoolId(index as u32);
            let config = config.clone();
            self.feed(Event::AddPool { pool, config });
            for &gpu in gpus {
                let gpu = GpuId(gpu);
                self.feed(Event::AssignGpu { gpu, pool });
            }
        }
        for (index, vm) in setup.vms.iter().enumerate() {
            self.feed(Event::AddVm {
                vm: VmId(index as u32),
                config: vm.config.clone(),
                past: vgpu_sched::Past::default(),
            });
            let limits = &vm.config.limits;
            self.books.vms[index].limited = limits.calls.is_some() || limits.bytes.is_some();
            for guest in &vm.guests {
                let id = self.workers.len() as u32;
                let rng = Rng::part(setup.seed, u64::from(id));
                let from = guest.load.from_ns;
                let program = Guest::new(guest.load.clone(), rng);
                self.workers
                    .push(Worker::new(index as u32, program, guest.conduct));
                self.pages.push(Pages::default());
                self.sessions.push(daemon::Session::default());
                self.ends.push(guest.ends_ns);
                self.at(from, Happening::Start(id));
                if guest.ends_ns != u64::MAX {
                    self.at(guest.ends_ns, Happening::End(id));
                }
            }
        }
        for (index, (at, _)) in setup.script.iter().enumerate() {
            self.at(*at, Happening::Script(index as u32));
        }
    }

    /// Prints every decision from now on.
    pub fn set_verbose(&mut self) {
        self.verbose = true;
    }

    pub(crate) fn note(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>14} {}", self.now, text());
        }
    }

    /// Schedules an event.
    fn at(&mut self, time: u64, what: Happening) {
        self.serial += 1;
        self.heap.push(Reverse((time, self.serial, what)));
    }

    /// Runs the simulation up to time `end`.
    pub fn run_until(&mut self, end: u64) {
        loop {
            let next = self.heap.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at);
            let at = next.min(self.timer_ns);
            if at > end {
                break;
            }
            self.now = self.now.max(at);
            if next <= self.timer_ns {
                let Some(Reverse((_, _, what))) = self.heap.pop() else {
                    break;
                };
                self.happen(what);
            } else {
                self.timer_ns = u64::MAX;
                self.bring_up_to_date();
            }
        }
        self.now = end;
        self.bring_up_to_date();
        for gpu in 0..self.devices.len() as u32 {
            self.step_device(gpu);
            self.books.charge(gpu, end);
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Start(id) => self.start(id),
            Happening::End(id) => self.end(id),
            Happening::Arrive(id) => self.arrive(id),
            Happening::Marker(id, stream, ops) => self.marker(id, stream, ops),
            Happening::Wake(id) => self.woke(id),
            Happening::Hear(id, told) => self.hear(id, told),
            Happening::Heard(id, message) => self.heard(id, message),
            Happening::Device(gpu) => {
                if self.scheduled[gpu as usize] == self.now {
                    self.scheduled[gpu as usize] = u64::MAX;
                }
                if self.devices[gpu as usize].next_ns() <= self.now {
                    self.step_device(gpu);
                }
            }
            Happening::Gone(id) => self.gone(id),
            Happening::Verified(gpu) => self.feed(Event::Verified {
                gpu: GpuId(gpu),
                ok: true,
            }),
            Happening::Look => self.look(),
            Happening::Script(index) => {
                let event = self.script[index as usize].clone();
                self.note(|| format!("administrator: {event:?}"));
                self.change(event);
            }
        }
    }

    /// Feeds an action of the administrator, and records how much the lags of the VMs change.
    fn change(&mut self, event: Event) {
        self.feed(Event::Timer);
        let vms = 0..self.books.vms.len() as u32;
        let lags = |sched: &Scheduler| -> Vec<i128> {
            let lag = |vm| sched.lag_ns(VmId(vm)).unwrap_or(0);
            vms.clone().map(lag).collect()
        };
        let before = lags(&self.sched);
        self.feed(event);
        for (before, after) in before.into_iter().zip(lags(&self.sched)) {
            self.lag_moved_ns = self.lag_moved_ns.max(before.abs_diff(after));
        }
    }

    /// Advances a device to the present time, sends the fired markers to the workers, and schedules
    /// the device's next change.
    fn step_device(&mut self, gpu: u32) {
        let index = gpu as usize;
        let mut fired = std::mem::take(&mut self.fired);
        self.devices[index].step(self.now, &mut fired);
        for done in fired.drain(..) {
            let gang = !self.workers[done.context as usize].also.is_empty();
            if gang && !self.gang_done(done.context, gpu) {
                continue;
            }
            self.at(
                self.now + self.host.wake_ns,
                Happening::Marker(done.context, done.stream, done.ops),
            );
        }
        self.fired = fired;
        let next = self.devices[index].next_ns();
        // An event that is scheduled earlier will schedule this change.
        if next < self.scheduled[index] {
            self.scheduled[index] = next;
            self.at(next, Happening::Device(gpu));
        }
    }

    fn look(&mut self) {
        self.looking = false;
        self.report_progress();
        if self.books.gpus.iter().any(|gpu| !gpu.leases.is_empty()) {
            self.look_soon();
        }
    }

    fn look_soon(&mut self) {
        if !self.looking {
            self.looking = true;
            self.at(self.now + LOOK_NS, Happening::Look);
        }
    }

    /// Sends a message of a worker to vgpud. Messages of one worker arrive in order.
    fn say(&mut self, id: u32, message: Message) {
        let (low, high) = self.host.up_ns;
        let delay = self.rng.between(low, high);
        let worker = &mut self.workers[id as usize];
        worker.up_at_ns = worker.up_at_ns.max(self.now + delay);
        let at = worker.up_at_ns;
        self.at(at, Happening::Heard(id, message));
    }

    /// Sends a notification of vgpud to a worker. Notifications to one worker arrive in order.
    fn tell(&mut self, id: u32, told: Told) {
        let (low, high) = self.host.down_ns;
        let delay = self.rng.between(low, high);
        let worker = &mut self.workers[id as usize];
        worker.down_at_ns = worker.down_at_ns.max(self.now + delay);
        let at = worker.down_at_ns;
        self.at(at, Happening::Hear(id, told));
    }

    fn hear(&mut self, id: u32, told: Told) {
        if self.workers[id as usize].life != Life::Live {
            return;
        }
        if told == Told::Lease {
            self.refresh(id);
        }
        self.pump(id);
    }

    fn start(&mut self, id: u32) {
        let vm = VmId(self.workers[id as usize].vm);
        self.feed(Event::SessionAdded {
            session: SessionId(u64::from(id)),
            vm,
        });
    }

    /// A guest process ends by itself: the worker sees this and exits.
    fn end(&mut self, id: u32) {
        if self.workers[id as usize].life != Life::Live {
            return;
        }
        self.feed(Event::SessionRemoved {
            session: SessionId(u64::from(id)),
        });
        self.die(id);
    }

    /// Stops a worker at once. Its work on the device ends with the process.
    fn die(&mut self, id: u32) {
        let worker = &mut self.workers[id as usize];
        if matches!(worker.life, Life::Dying | Life::Gone) {
            return;
        }
        worker.life = Life::Dying;
        self.at(self.now + self.host.kill_ns, Happening::Gone(id));
    }

    /// Number of operations of a VM that are known to be complete.
    #[must_use]
    pub fn completed(&self, vm: u32) -> u64 {
        let of_vm = self.workers.iter().filter(|worker| worker.vm == vm);
        of_vm.map(|worker| worker.completed).sum()
    }

    /// GPU of a VM's first process.
    #[must_use]
    pub fn gpu_of(&self, vm: u32) -> u32 {
        let mut of_vm = self.workers.iter().filter(|worker| worker.vm == vm);
        of_vm.next().map_or(0, |worker| worker.gpu)
    }

    /// Longest time in ns that the messages of one handoff take.
    #[must_use]
    pub fn handoff_ns(&self) -> u64 {
        self.host.handoff_ns()
    }

    /// Time in ns for which contexts used the GPU without a lease.
    #[must_use]
    pub fn stolen_ns(&self, gpu: usize) -> u64 {
        let book = &self.books.gpus[gpu];
        let device = &self.devices[gpu];
        let held = book.leases.iter();
        let running: u64 = held
            .map(|held| device.busy_ns(held.worker) - held.busy_ns)
            .sum();
        device.truth().busy_ns - book.leased_busy_ns - running
    }

    /// Time in ns for which a VM's contexts were on the devices.
    #[must_use]
    pub fn busy_ns(&self, vm: u32) -> u64 {
        let ids = 0..self.workers.len() as u32;
        let of_vm = ids.filter(|&id| self.workers[id as usize].vm == vm);
        of_vm
            .map(|id| self.devices[self.workers[id as usize].gpu as usize].busy_ns(id))
            .sum()
    }

    /// Times in ns from arrival to completion of all requests of a VM.
    #[must_use]
    pub fn latencies(&self, vm: u32) -> Vec<u64> {
        let of_vm = self.workers.iter().filter(|worker| worker.vm == vm);
        of_vm
            .flat_map(|worker| worker.guest.latency.iter().copied())
            .collect()
    }
}
