use super::*;
use crate::{
    Class, Config, Depth, Epoch, GpuConfig, GpuHealth, GpuId, HeadCost, Memory, Past, Policy,
    PoolConfig, PoolId, Rate, SessionId, Usage, VmConfig, VmId,
};

/// A scheduler with its log, and some VMs that keep it busy.
struct Host {
    scheduler: Scheduler,
    log: DecisionLog,
    now: u64,
    random: u64,
    holders: Vec<(SessionId, Epoch)>,
}

impl Host {
    fn new(bounds: Bounds) -> Self {
        let scheduler = Scheduler::new(Config::default());
        let mut host = Self {
            log: DecisionLog::new(&scheduler, bounds),
            scheduler,
            now: 1_000_000_000_000,
            random: 7,
            holders: Vec::new(),
        };
        for gpu in 0..2 {
            host.feed(Event::AddGpu {
                gpu: GpuId(gpu),
                config: GpuConfig {
                    memory_bytes: 1 << 30,
                    ..GpuConfig::default()
                },
                health: GpuHealth::Healthy,
            });
        }
        for (pool, policy) in [
            (1, Policy::Weighted),
            (2, Policy::Strict),
            (3, Policy::Fifo),
        ] {
            let config = PoolConfig {
                policy,
                ..PoolConfig::default()
            };
            let pool = PoolId(pool);
            host.feed(Event::AddPool { pool, config });
            for gpu in 0..2 {
                let gpu = GpuId(gpu);
                host.feed(Event::AssignGpu { gpu, pool });
            }
        }
        for vm in 0..9 {
            let mut config = VmConfig::new(PoolId(1 + vm % 3), Class::ALL[vm as usize % 4]);
            if vm == 4 {
                config.limits.calls = Some(Rate {
                    per_second: 2_000,
                    burst: 10,
                });
                config.gpus = Some([GpuId(0), GpuId(1)].into());
            }
            let past = Past {
                debt_ns: u64::from(vm) * 1_000,
                ..Past::default()
            };
            let vm = VmId(vm);
            host.feed(Event::AddVm { vm, config, past });
            let session = SessionId(u64::from(vm.0));
            host.feed(Event::SessionAdded { session, vm });
        }
        host
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    fn feed(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.log
            .handle(&mut self.scheduler, self.now, event, &mut actions);
        for action in actions {
            if let Action::Grant(terms) | Action::GrantBeside(terms) = action {
                self.holders.push((terms.session, terms.epoch));
            }
        }
    }

    /// Feeds random events. Most are valid.
    fn work(&mut self, events: u64) {
        for _ in 0..events {
            self.now += self.below(400_000);
            let session = SessionId(self.below(9));
            let depth = Depth {
                calls: 1 + self.below(5),
                bytes: self.below(4_096),
            };
            let event = match self.below(6) {
                0 | 1 => Event::Runnable {
                    session,
                    depth,
                    head: HeadCost::default(),
                },
                2 => Event::Idle {
                    session,
                    idle_for_ns: self.below(200_000),
                },
                3 => Event::Progress {
                    session,
                    submitted: self.now / 100_000,
                    completed: self.now / 100_000,
                },
                4 if !self.holders.is_empty() => {
                    let at = self.below(self.holders.len() as u64) as usize;
                    let (session, epoch) = self.holders.swap_remove(at);
                    let used = Usage {
                        calls: self.now / 1_000_000,
                        bytes: 0,
                    };
                    Event::Released {
                        session,
                        epoch,
                        used,
                        depth,
                    }
                }
                _ => Event::Timer,
            };
            self.feed(event);
        }
    }

    fn lines(&mut self) -> Vec<String> {
        let view = self.log.view(&self.scheduler);
        view.lines().collect::<Result<_, _>>().unwrap()
    }
}

fn replay(lines: &[String]) -> Result<ReplayReport, ReplayError> {
    let mut replay = Replay::new();
    for line in lines {
        replay.line(line)?;
    }
    replay.finish()
}

fn small() -> Bounds {
    Bounds {
        records: 1_500,
        bytes: usize::MAX,
    }
}

#[test]
fn a_log_replays_to_the_same_decisions_and_states() {
    let mut host = Host::new(Bounds::default());
    host.work(4_000);
    let report = replay(&host.lines()).unwrap();
    assert_eq!(report.records, host.log.len() as u64);
    assert!(report.actions > 1_000, "{report:?}");
    assert_eq!((report.first, report.states), (0, 1));
    // The log also replays after a view in the middle.
    host.work(1_000);
    assert_eq!(
        replay(&host.lines()).unwrap().records,
        report.records + 1_000
    );
}

#[test]
fn one_full_segment_at_least_is_always_there_and_no_more_than_two() {
    let mut host = Host::new(small());
    let mut total = host.log.len();
    for step in 0..40 {
        host.work(313);
        total += 313;
        let kept = host.log.len();
        assert!(kept <= 2 * 1_687, "step {step}: {kept}");
        assert!(kept >= total.min(1_500), "step {step}: {kept} of {total}");
    }
    let before = host.log.len();
    host.log.rest(&host.scheduler);
    assert_eq!(host.log.len(), before, "the segment is not full");
    while host.log.current.records < 1_500 {
        host.work(1);
        total += 1;
    }
    host.log.rest(&host.scheduler);
    assert_eq!(
        host.log.len(),
        1_500,
        "a full segment is replaced when nothing waits"
    );
    host.work(1_600);
    total += 1_600;
    let lines = host.lines();
    let report = replay(&lines).unwrap();
    assert_eq!(report.first + report.records, total as u64);
    assert_eq!(report.states, 2, "one between the segments, one at the end");
}

#[test]
fn the_byte_bound_ends_a_segment_too() {
    let bounds = Bounds {
        records: usize::MAX,
        bytes: 200_000,
    };
    let mut host = Host::new(bounds);
    host.work(20_000);
    assert!(host.log.bytes() <= 2 * 226_000, "{}", host.log.bytes());
    assert!(host.log.bytes() >= 200_000, "{}", host.log.bytes());
    replay(&host.lines()).unwrap();
}

#[test]
fn a_changed_decision_is_found_at_its_record() {
    let mut host = Host::new(small());
    host.work(700);
    let mut lines = host.lines();
    let (at, line) = lines
        .iter_mut()
        .enumerate()
        .filter(|(_, line)| line.contains("\"Grant\""))
        .nth(20)
        .unwrap();
    let n: u64 = serde_json::from_str::<serde_json::Value>(line).unwrap()["record"]["n"]
        .as_u64()
        .unwrap();
    *line = line.replacen("\"wanted\":true", "\"wanted\":false", 1);
    if !line.contains("\"wanted\":false") {
        panic!("{line}");
    }
    *line = line.replacen("\"hold_ns\":200000", "\"hold_ns\":200001", 1);
    match replay(&lines) {
        Err(ReplayError::Decision { n: found, line, .. }) => {
            assert_eq!((found, line), (n, at as u64 + 1));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_changed_event_without_visible_consequence_is_found_in_the_state() {
    let mut host = Host::new(small());
    host.work(500);
    let mut lines = host.lines();
    let line = lines
        .iter_mut()
        .find(|line| line.contains("\"debt_ns\":3000"))
        .unwrap();
    *line = line.replace("\"debt_ns\":3000", "\"debt_ns\":3001");
    // The order of events decides which differs first: the state or a decision.
    let error = replay(&lines).unwrap_err();
    assert!(
        matches!(
            error,
            ReplayError::State { .. } | ReplayError::Decision { .. }
        ),
        "{error}"
    );
}

#[test]
fn a_difference_of_states_is_named() {
    let mut host = Host::new(small());
    let mut other = host.scheduler.clone();
    let mut actions = Vec::new();
    other.handle(
        host.now,
        Event::MemoryReserve {
            session: SessionId(3),
            of: Memory::Device,
            bytes: 77,
            tag: 1,
        },
        &mut actions,
    );
    let mut replay = Replay::new();
    replay.line(&host.lines()[0]).unwrap();
    let state = |scheduler: &Scheduler| {
        let line = dump::Line::State(std::borrow::Cow::Borrowed(scheduler));
        serde_json::to_string(&line).unwrap()
    };
    replay.line(&state(&host.scheduler)).unwrap();
    let error = replay.line(&state(&other)).unwrap_err().to_string();
    assert!(
        error.contains("memory") && error.contains("77") && error.contains("gpus"),
        "{error}"
    );
}

#[test]
fn truncated_and_corrupt_logs_say_where() {
    let mut host = Host::new(small());
    host.work(100);
    let lines = host.lines();
    let truncated = replay(&lines[..50]).unwrap_err();
    assert!(
        matches!(truncated, ReplayError::Truncated { line: 50, .. }),
        "{truncated}"
    );
    let mut broken = lines.clone();
    broken[40].truncate(30);
    let corrupt = replay(&broken).unwrap_err();
    assert!(
        corrupt.to_string().starts_with("line 41 cannot be read"),
        "{corrupt}"
    );
    let mut missing = lines.clone();
    missing.remove(40);
    let gap = replay(&missing).unwrap_err();
    assert!(gap.to_string().contains("expected record"), "{gap}");
    let mut more = lines.clone();
    more.push(lines[3].clone());
    assert!(replay(&more).is_err());
    assert_eq!(replay(&[]), Err(ReplayError::NotALog));
    assert_eq!(replay(&["hello".into()]), Err(ReplayError::NotALog));
    assert_eq!(replay(&lines[1..]), Err(ReplayError::NotALog));
    let newer = lines[0].replace("\"format\":1", "\"format\":9");
    let error = replay(&[newer]).unwrap_err();
    assert!(
        matches!(error, ReplayError::Format { found: 9, .. }),
        "{error}"
    );
    let mut elder = lines.clone();
    elder[0] = elder[0].replace(env!("CARGO_PKG_VERSION"), "0.0.1");
    elder[1] = elder[1].replacen("\"config\"", "\"konfig\"", 1);
    let error = replay(&elder).unwrap_err().to_string();
    assert!(error.contains("made by scheduler 0.0.1"), "{error}");
}

#[test]
fn a_state_that_cannot_be_is_an_error_and_not_a_crash() {
    let mut host = Host::new(small());
    host.work(300);
    let mut lines = host.lines();
    let state = &mut lines[1];
    *state = state.replacen("\"next_epoch\":1", "\"next_epoch\":18446744073709551615", 1);
    let error = replay(&lines).unwrap_err();
    assert!(
        matches!(
            error,
            ReplayError::Impossible { .. } | ReplayError::Decision { .. }
        ),
        "{error}"
    );
}
