use super::*;
use crate::model::{AssignmentRecord, PoolRecord};
use crate::store::catalog::tests::gpu;
use vgpu_api::{PoolSettings, Quarantine};
use vgpu_sched::{
    Config, Depth, Event, GpuConfig, GpuHealth, GpuId, HeadCost, PoolConfig, PoolId, Rate,
    Scheduler, SessionId, VmConfig, VmId,
};

const POOL: PoolId = PoolId(1);

/// A scheduler with one GPU and one pool, and the matching catalog.
struct Rig {
    scheduler: Scheduler,
    catalog: Catalog,
    now: u64,
}

impl Rig {
    fn new(policy: Policy) -> Self {
        let mut rig = Self {
            scheduler: Scheduler::new(Config::default()),
            catalog: Catalog::default(),
            now: 0,
        };
        rig.catalog.pools.insert(
            "A".into(),
            PoolRecord {
                name: "A".into(),
                settings: PoolSettings::default(),
                created_unix_ms: 0,
            },
        );
        let (gpu, pool) = (GpuId(0), POOL);
        rig.feed(Event::AddGpu {
            gpu,
            config: GpuConfig::default(),
            health: GpuHealth::Healthy,
        });
        rig.feed(Event::AddPool {
            pool,
            config: PoolConfig {
                policy,
                ..PoolConfig::default()
            },
        });
        rig.feed(Event::AssignGpu { gpu, pool });
        rig
    }

    fn add(&mut self, vm: u32, config: VmConfig) {
        let id = VmId(vm);
        self.feed(Event::AddVm {
            vm: id,
            config,
            past: vgpu_sched::Past::default(),
        });
        self.feed(Event::SessionAdded {
            session: SessionId(u64::from(vm) + 100),
            vm: id,
        });
    }

    fn works(&mut self, vm: u32) {
        self.feed(Event::Runnable {
            session: SessionId(u64::from(vm) + 100),
            depth: Depth { calls: 1, bytes: 0 },
            head: HeadCost::default(),
        });
    }

    fn feed(&mut self, event: Event) {
        self.scheduler.handle(self.now, event, &mut Vec::new());
    }

    fn pass(&mut self, ns: u64) {
        self.now += ns;
        self.feed(Event::Timer);
    }

    fn ask(&self, vm: u32) -> Explain {
        let explained = Explained {
            explanation: self.scheduler.explain(VmId(vm)).expect("known"),
            pool: "A".into(),
        };
        view(&self.catalog, &record(vm), &explained, false)
    }
}

fn record(vm_id: u32) -> VmRecord {
    VmRecord {
        vm_id,
        name: format!("vm{vm_id}"),
        pool: "A".into(),
        priority: Priority::Medium,
        factor_percent: 100,
        generation: 1,
        quarantine: Some(Quarantine {
            reason: "five strikes".into(),
            since_unix_ms: 0,
            automatic: true,
            until_unix_ms: None,
        }),
        ..VmRecord::default()
    }
}

fn class(class: Class) -> VmConfig {
    VmConfig::new(POOL, class)
}

#[test]
fn a_name_that_an_administrator_gave_is_shown() {
    let mut rig = Rig::new(Policy::Weighted);
    rig.add(1, class(Class::Medium));
    rig.works(1);
    let explained = Explained {
        explanation: rig.scheduler.explain(VmId(1)).expect("known"),
        pool: "A".into(),
    };
    let web = VmRecord {
        name: "web".into(),
        ..record(1)
    };
    let answer = view(&rig.catalog, &web, &explained, false);
    assert!(
        answer.summary.starts_with("VM 1 (web) does not wait"),
        "{}",
        answer.summary
    );
}

#[test]
fn a_waiting_vm_is_told_the_holder_the_vms_before_it_and_the_wait() {
    let mut rig = Rig::new(Policy::Weighted);
    for vm in 1..=2 {
        rig.add(vm, class(Class::Medium));
        rig.works(vm);
    }
    rig.add(3, class(Class::High));
    rig.works(3);
    rig.pass(400_000);
    let answer = rig.ask(2);
    assert_eq!(
        answer.summary,
        "VM 2 waits for its turn on GPU 0 (pool A, policy weighted). Its work has waited for 400 us. VM 1 \
         (session 101) has had the GPU for 400 us; 1.6 ms of its present slice are left. Before it: VM 3. In its \
         pool 2 other VMs compete for this GPU; with weight 4 of 24 it may expect 16.6 % of the GPU's \
         time. It is owed 66 us of GPU time. From now it waits 16.0 ms at most while the others give the \
         GPU back as they did so far and none is added, and 92.02 s if every one of them lets its work \
         hang until the pool's contended limit."
    );
    assert_eq!(answer.reason, ExplainReason::Turn);
    assert_eq!(answer.before_vm_ids, [3]);
    assert_eq!(answer.holders[0].session_id, 101);
    assert_eq!(answer.wait_usual_ns, Some(16_000_000));
    assert_eq!((answer.gpu_id, answer.waiting_ns), (Some(0), Some(400_000)));

    let runs = rig.ask(1);
    assert!(
        runs.summary
            .starts_with("VM 1 does not wait: it has GPU 0."),
        "{}",
        runs.summary
    );
    assert_eq!((runs.wait_usual_ns, runs.wait_worst_ns), (Some(0), Some(0)));
}

#[test]
fn a_holder_that_does_not_give_the_gpu_back_is_named_and_no_short_wait_is_promised() {
    let mut rig = Rig::new(Policy::Weighted);
    for vm in 1..=2 {
        rig.add(vm, class(Class::Medium));
        rig.works(vm);
    }
    rig.feed(Event::Progress {
        session: SessionId(101),
        submitted: 1,
        completed: 0,
    });
    rig.pass(2_000_000);
    // Longer than holders took so far, but within the grace.
    rig.pass(5_000_000);
    let answer = rig.ask(2);
    assert!(
        answer.summary.ends_with(
            "at most: VM 1 (session 101) does not give the GPU back as quickly as holders did so far. \
             In the worst case, the pool's contended limit ends the work of each VM that goes before."
        ),
        "{}",
        answer.summary
    );
    assert_eq!(answer.wait_usual_ns, answer.wait_worst_ns);
    assert!(answer.wait_worst_ns > Some(10_000_000_000));

    let hung = no_bound(NoBound::Hung {
        gpu: GpuId(0),
        vm: VmId(1),
        session: SessionId(101),
    });
    assert!(
        hung.starts_with("VM 1 (session 101) does not give GPU 0 back"),
        "{hung}"
    );
}

#[test]
fn a_draining_gpu_is_named() {
    let mut rig = Rig::new(Policy::Weighted);
    let seen = gpu(0);
    rig.catalog.assignments.insert(
        (seen.uuid.clone(), "A".into()),
        AssignmentRecord {
            gpu_uuid: seen.uuid.clone(),
            pool: "A".into(),
            since_unix_ms: 0,
        },
    );
    rig.catalog.gpus.insert(
        seen.uuid.clone(),
        GpuRecord {
            gpu_id: 0,
            seen,
            state: GpuState::Draining,
            state_reason: None,
            first_seen_unix_ms: 0,
            last_seen_unix_ms: 0,
        },
    );
    rig.feed(Event::AddVm {
        vm: VmId(1),
        config: class(Class::Medium),
        past: vgpu_sched::Past::default(),
    });
    rig.feed(Event::GpuState {
        gpu: GpuId(0),
        health: GpuHealth::Draining,
    });
    let answer = rig.ask(1);
    assert_eq!(answer.reason, ExplainReason::Refused);
    let named = "GPU 0 is draining: no program starts on it before `vgpu-admin gpu resume 0`.";
    assert!(answer.summary.contains(named), "{}", answer.summary);
}

#[test]
fn a_limited_vm_is_told_the_limit_and_its_end() {
    let mut rig = Rig::new(Policy::Weighted);
    let mut config = class(Class::Medium);
    config.limits.gpu_time = Some(Rate {
        per_second: 10_000_000,
        burst: 2_000_000,
    });
    rig.add(1, config);
    rig.works(1);
    rig.pass(3_000_000);
    rig.feed(Event::WorkerExited {
        session: SessionId(101),
    });
    rig.feed(Event::SessionAdded {
        session: SessionId(201),
        vm: VmId(1),
    });
    rig.feed(Event::Runnable {
        session: SessionId(201),
        depth: Depth { calls: 1, bytes: 0 },
        head: HeadCost::default(),
    });
    let answer = rig.ask(1);
    assert_eq!(answer.reason, ExplainReason::RateLimit);
    assert_eq!(answer.cap, Some(vgpu_api::Cap::GpuTime));
    let left = answer.cap_left_ns.expect("it ends");
    assert!(left > 100_000_000, "{left}");
    assert_eq!(answer.wait_worst_ns, Some(left), "{answer:?}");
    assert!(
        answer.summary.starts_with(
            "VM 1 is held back by its own limit of GPU time per second: the limit lets "
        ),
        "{}",
        answer.summary
    );
}

#[test]
fn a_wait_without_bound_names_its_reason_and_a_remedy() {
    let mut rig = Rig::new(Policy::Strict);
    rig.add(1, class(Class::Low));
    rig.feed(Event::SetQuarantine {
        vm: VmId(1),
        on: true,
    });
    let answer = rig.ask(1);
    assert_eq!(answer.reason, ExplainReason::Quarantine);
    assert_eq!((answer.wait_usual_ns, answer.wait_worst_ns), (None, None));
    assert!(
        answer
            .summary
            .starts_with("VM 1 is quarantined: five strikes.")
            && answer.summary.contains("vgpu-admin release"),
        "{}",
        answer.summary
    );
    rig.add(2, class(Class::Critical));
    rig.works(2);
    rig.add(3, class(Class::Low));
    rig.works(3);
    rig.feed(Event::SetPool {
        pool: POOL,
        config: PoolConfig {
            policy: Policy::Strict,
            aging: None,
            ..PoolConfig::default()
        },
    });
    let answer = rig.ask(3);
    assert!(
        answer
            .no_bound
            .as_deref()
            .is_some_and(|why| why.contains("aging is off")),
        "{answer:?}"
    );
    rig.feed(Event::GpuState {
        gpu: GpuId(0),
        health: GpuHealth::Unverified,
    });
    let answer = rig.ask(3);
    assert_eq!(answer.reason, ExplainReason::GpuUnavailable);
    assert!(
        answer.summary.contains("is unverified"),
        "{}",
        answer.summary
    );
}

#[test]
fn gangs_and_temporary_quarantines_are_explained() {
    let mut rig = Rig::new(Policy::Weighted);
    let gpu = GpuId(1);
    rig.feed(Event::AddGpu {
        gpu,
        config: GpuConfig::default(),
        health: GpuHealth::Healthy,
    });
    rig.feed(Event::AssignGpu { gpu, pool: POOL });
    let mut only = class(Class::Medium);
    only.gpus = Some([gpu].into());
    rig.add(1, only);
    rig.works(1);
    let mut gang = class(Class::Medium);
    gang.gang = true;
    rig.add(2, gang);
    rig.works(2);
    let answer = rig.ask(2);
    assert_eq!(answer.reason, ExplainReason::Gang);
    assert_eq!(
        (&answer.gang_gpu_ids[..], answer.gang_held),
        (&[0, 1][..], 1)
    );
    assert!(
        answer.summary.starts_with(
            "VM 2 is a gang on GPUs 0 and 1, has 1 of its 2 GPUs reserved and waits for GPU 1 (pool A, \
             policy weighted)."
        ),
        "{}",
        answer.summary
    );
    let mut first = class(Class::Medium);
    first.gpus = Some([GpuId(0)].into());
    rig.add(3, first);
    rig.works(3);
    let answer = rig.ask(3);
    assert!(answer.holders[0].reserved, "{answer:?}");
    assert!(
        answer.summary.contains("a gang, has kept the GPU reserved"),
        "{}",
        answer.summary
    );

    rig.feed(Event::SetPool {
        pool: POOL,
        config: PoolConfig {
            strike_limit: Some(1),
            ..PoolConfig::default()
        },
    });
    rig.feed(Event::Strike { vm: VmId(3) });
    let answer = rig.ask(3);
    assert_eq!(answer.quarantine_left_ns, Some(60_000_000_000));
    assert!(
        answer
            .summary
            .contains("is quarantined for another 60.00 s"),
        "{}",
        answer.summary
    );
}

#[test]
fn numbers_have_readable_units() {
    assert_eq!(duration(350_999), "350 us");
    assert_eq!(duration(12_340_000), "12.3 ms");
    assert_eq!(duration(1_500_000_000), "1.50 s");
    assert_eq!(duration(804_000_000_000), "13.4 min");
    assert_eq!(duration(7_200_000_000_000), "2.0 h");
    assert_eq!(weight(4_000), "4");
    assert_eq!(weight(4_050), "4.05");
    assert_eq!(
        vms((1..=10_u32).collect::<Vec<_>>().into_iter()),
        "VM 1, 2, 3, 4, 5, 6, 7, 8 and 2 more"
    );
}
