//! The status screen: GPUs, pools, VMs, priorities, queues and limits.

use std::io::IsTerminal;
use std::time::Duration;

use serde::de::IgnoredAny;
use vgpu_api::{GpuState, HostState, Priority, Status, Vm};
use vgpu_proto::text::counted;

use super::gpu::{names, state as gpu_state};
use super::pool::numbers;
use super::vm::{
    Names, has_name, limit_cells, limit_columns, limits, may_use, placed, share, state as vm_state,
    state_word, wait_quantiles, wait_reason, wait_word,
};
use super::vm_numbers;
use crate::client::{Client, segment};
use crate::error::Error;
use crate::output::{Cell, Format, Grid, json, print, printable};
use crate::times::show_age;
use crate::units::{bytes, count, ns, show_bytes, us};
use crate::vm_ids::Vms;

/// Largest number of VMs of which a table shows idle ones too.
const MANY: usize = 40;

/// The VMs and the pool that the screen shows.
#[derive(Debug, Default)]
pub(super) struct Only {
    vms: Option<Vec<u32>>,
    pool: Option<String>,
    /// Show idle VMs, however many.
    all: bool,
}

impl Only {
    /// # Errors
    /// If no such VM or pool exists.
    pub(super) async fn new(
        client: &Client,
        named: Option<Vms>,
        pool: Option<String>,
        all: bool,
    ) -> Result<Only, Error> {
        if let Some(pool) = &pool {
            let _: IgnoredAny = client.get(&format!("pools/{}", segment(pool))).await?;
        }
        let vms = match named {
            Some(named) => Some(vm_numbers(client, &named).await?),
            None => None,
        };
        for vm_id in vms.iter().flatten() {
            let _: IgnoredAny = client.get(&format!("vms/{vm_id}")).await?;
        }
        Ok(Only { vms, pool, all })
    }

    fn apply(&self, mut status: Status) -> Status {
        if let Some(pool) = &self.pool {
            status.gpus.retain(|gpu| gpu.pools.contains(pool));
            status.pools.retain(|p| p.pool.name == *pool);
            status.vms.retain(|vm| vm.pool == *pool);
        }
        if let Some(ids) = &self.vms {
            status.vms.retain(|vm| ids.binary_search(&vm.vm_id).is_ok());
        }
        if self.pool.is_some() || self.vms.is_some() {
            let vms = &status.vms;
            let shown = |vm_id| vms.iter().any(|vm| vm.vm_id == vm_id);
            status.sessions.retain(|session| shown(session.vm_id));
        }
        status
    }

    /// Whether the table of VMs leaves idle ones out.
    fn cuts(&self, status: &Status) -> bool {
        !self.all && self.vms.is_none() && status.vms.len() > MANY
    }
}

/// Shows the screen once, or every `every` seconds.
pub(super) async fn run(
    client: &Client,
    output: Format,
    every: Option<u64>,
    only: &Only,
) -> Result<(), Error> {
    let mut status = only.apply(client.get("status").await?);
    if output == Format::Csv {
        print(&vm_grid(&status.vms).csv_header())?;
    }
    loop {
        match output {
            Format::Json => json(&status)?,
            Format::Csv => print(&vm_grid(&status.vms).csv_rows())?,
            Format::Table | Format::Wide => {
                // Clears the screen only on a terminal: a log file gets only the text.
                let clear = every.is_some() && std::io::stdout().is_terminal();
                let head = if clear { "\x1b[H\x1b[2J" } else { "" };
                print(&format!("{head}{}", screen(&status, output, only)))?;
            }
        }
        match every {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => return Ok(()),
        }
        status = only.apply(client.get_through_restarts("status").await?);
    }
}

fn screen(status: &Status, format: Format, only: &Only) -> String {
    let d = &status.daemon;
    let state = match d.state {
        HostState::Starting => "starting",
        HostState::Serving => "serving",
        HostState::Draining => "DRAINING",
    };
    let mut text = format!(
        "vgpud {} {state}, up {}, {}, {}, {}, {}\n",
        d.version,
        show_age(d.now_unix_ms, d.started_unix_ms),
        counted(status.gpus.len(), "GPU"),
        counted(status.pools.len(), "pool"),
        counted(status.vms.len(), "VM"),
        counted(status.sessions.len(), "session")
    );
    for warning in &d.warnings {
        text.push_str(&format!("warning: {}\n", printable(warning)));
    }
    let mut grids = vec![gpu_grid(status), pool_grid(status)];
    let mut note = None;
    if only.cuts(status) {
        let busy: Vec<&Vm> = status.vms.iter().filter(|vm| is_busy(vm)).collect();
        grids.extend([class_grid(&status.vms), vm_grid(busy.iter().copied())]);
        note = Some(format!(
            "{} of {} are idle and not shown: `vgpu-admin status --all` shows them.",
            status.vms.len() - busy.len(),
            counted(status.vms.len(), "VM")
        ));
    } else {
        grids.push(vm_grid(&status.vms));
    }
    for grid in grids.iter().filter(|grid| !grid.is_empty()) {
        text.push('\n');
        text.push_str(&grid.render(format));
    }
    if let Some(note) = note {
        text.push_str(&format!("\n{note}\n"));
    }
    if let Some(hint) = next_step(status) {
        text.push_str(&format!("\n{hint}\n"));
    }
    text
}

/// The next step of a new administrator.
fn next_step(status: &Status) -> Option<String> {
    if status.gpus.is_empty() {
        Some(match status.daemon.warnings.is_empty() {
            true => "No GPU is known yet. Next: vgpu-admin scan-gpus".into(),
            false => {
                "No GPU is known. Next: mend what the warnings name, then vgpu-admin scan-gpus"
                    .into()
            }
        })
    } else if status.gpus.iter().all(|g| g.pools.is_empty()) {
        Some(to_assign(status.gpus.iter().map(|g| (g.gpu_id, g.state))))
    } else if status.vms.is_empty() {
        Some(
            "No VM is registered yet. Next: vgpu-admin register-vm --vm-id=1 --pool=A --cid=…"
                .into(),
        )
    } else {
        None
    }
}

/// The next step if no GPU serves a pool.
fn to_assign(mut gpus: impl Iterator<Item = (u32, GpuState)>) -> String {
    let usable = |state| !matches!(state, GpuState::NoDriver | GpuState::Vanished);
    match gpus.find(|(_, state)| usable(*state)) {
        Some((gpu_id, _)) => {
            format!("No GPU serves a pool yet. Next: vgpu-admin assign-gpu {gpu_id} --pool=A")
        }
        None => "No GPU can work: load its driver. Next: vgpu-admin scan-gpus".into(),
    }
}

fn gpu_grid(status: &Status) -> Grid {
    let mut grid = Grid::new(&[
        "GPU", "MODEL", "POOL", "STATE", "BUSY", "MEMORY", "HOLDER", "SESSIONS", "HANDOFFS",
        "+UUID",
    ]);
    let vms = Names::of(&status.vms);
    for gpu in &status.gpus {
        let memory = match gpu.memory_used_bytes {
            Some(used) => format!("{}/{}", show_bytes(used), show_bytes(gpu.memory_bytes)),
            None => show_bytes(gpu.memory_bytes),
        };
        grid.row([
            gpu.gpu_id.into(),
            Cell::from(&gpu.model),
            names(&gpu.pools).into(),
            gpu_state(gpu).into(),
            share(gpu.busy_permille),
            memory.into(),
            gpu.holder_vm_id
                .map_or_else(|| "-".into(), |vm| format!("VM {}", vms.show(vm)).into()),
            gpu.sessions.into(),
            count(gpu.handoffs),
            Cell::from(&gpu.uuid),
        ]);
    }
    grid
}

fn pool_grid(status: &Status) -> Grid {
    let mut grid = Grid::new(&[
        "POOL", "GPUS", "POLICY", "SLICE", "VMS", "WAITING", "QUEUE", "SESSIONS", "+WEIGHTS",
    ]);
    for p in &status.pools {
        grid.row([
            Cell::from(&p.pool.name),
            numbers(&p.pool.gpu_ids).into(),
            p.pool.settings.policy.name().into(),
            us(p.pool.settings.slice_us),
            p.pool.vm_ids.len().into(),
            p.waiting_vms.into(),
            count(p.queue_calls),
            p.sessions.into(),
            p.pool.effective_weights.to_string().into(),
        ]);
    }
    grid
}

/// Whether a program of a VM waits. A quarantine or a quota holds also VMs without a program.
fn waits(vm: &Vm) -> bool {
    vm.sessions > 0 && vm.waiting.is_some()
}

/// Whether a VM runs, waits, or is not served.
fn is_busy(vm: &Vm) -> bool {
    vm.sessions > 0 || vm.waiting.is_some() || vm.quarantine.is_some()
}

/// Totals of the VMs of each class that has some.
fn class_grid(vms: &[Vm]) -> Grid {
    let mut grid = Grid::new(&[
        "PRIORITY", "VMS", "RUNNING", "WAITING", "QUEUE", "SHARE", "GPU TIME", "MEMORY", "SESSIONS",
    ]);
    for class in Priority::ALL.iter().rev() {
        let vms: Vec<&Vm> = vms.iter().filter(|vm| vm.priority == *class).collect();
        if vms.is_empty() {
            continue;
        }
        let number = |is: fn(&Vm) -> bool| vms.iter().filter(|vm| is(vm)).count();
        let sum = |of: fn(&Vm) -> u64| vms.iter().map(|vm| of(vm)).fold(0, u64::saturating_add);
        let shares = vms.iter().map(|vm| vm.share_permille);
        grid.row([
            class.name().into(),
            vms.len().into(),
            number(|vm| vm.sessions > 0).into(),
            number(waits).into(),
            count(sum(|vm| vm.queue_calls)),
            share(shares.fold(0, u32::saturating_add)),
            ns(sum(|vm| vm.usage.gpu_ns)),
            bytes(sum(|vm| vm.memory_bytes)),
            sum(|vm| vm.sessions.into()).into(),
        ]);
    }
    grid
}

/// The VMs. `-o csv` shows only these.
fn vm_grid<'a>(vms: impl IntoIterator<Item = &'a Vm>) -> Grid {
    let mut vms: Vec<&Vm> = vms.into_iter().collect();
    vms.sort_by(|a, b| (&a.pool, a.vm_id).cmp(&(&b.pool, b.vm_id)));
    let columns = [
        "VM|vm_id",
        match vms.iter().any(|vm| has_name(vm)) {
            true => "NAME",
            false => "+NAME",
        },
        "POOL",
        "PRIORITY",
        "QUEUE|queue_calls",
        "SHARE|share_permille",
        "GPU TIME|gpu_ns",
        "MEMORY|memory_bytes",
        "LIMITS|",
        "SESSIONS",
        "STATE",
        "|waits_for",
        "+CID",
        "+GPU|gpu_ids",
        "+WAIT P50/P95/P99|wait_p50_us",
        "|wait_p95_us",
        "|wait_p99_us",
        "+STRIKES",
        "+SLICE|slice_us",
        "+MAY USE|allowed_gpu_ids",
        "|gang",
    ];
    let columns = columns.into_iter().map(str::to_owned);
    let columns: Vec<String> = columns.chain(limit_columns()).collect();
    let mut grid = Grid::new(&columns);
    for vm in vms {
        let state = match vm.waiting.filter(|_| waits(vm)) {
            Some(reason) => format!("{}, waits for {}", vm_state(vm), wait_word(reason)),
            None => vm_state(vm),
        };
        let wait = wait_quantiles(&vm.wait);
        let cells = [
            vm.vm_id.into(),
            Cell::from(&vm.name),
            Cell::from(&vm.pool),
            vm.priority.name().into(),
            count(vm.queue_calls),
            share(vm.share_permille),
            ns(vm.usage.gpu_ns),
            bytes(vm.memory_bytes),
            limits(&vm.limits, &vm.effective_limits).into(),
            vm.sessions.into(),
            Cell::new(state, state_word(vm)),
            Cell::maybe(vm.waiting.map(wait_reason)),
            Cell::maybe(vm.cid),
            placed(vm),
            Cell::new(wait, vm.wait.p50_us),
            vm.wait.p95_us.into(),
            vm.wait.p99_us.into(),
            vm.strikes.into(),
            Cell::maybe(vm.slice_us.map(us)),
            may_use(vm),
            vm.gang.into(),
        ];
        grid.row(cells.into_iter().chain(limit_cells(vm)));
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` VMs without sessions, the first three of pool B, the first one of class high.
    fn many(count: u32) -> Status {
        let vm = |vm_id: u32| {
            let (pool, class) = (
                if vm_id <= 3 { "B" } else { "A" },
                if vm_id == 1 { "high" } else { "low" },
            );
            let wait = serde_json::json!({"count": 0, "p50_us": 0, "p95_us": 0, "p99_us": 0});
            serde_json::json!({
                "vm_id": vm_id, "name": format!("idle-{vm_id}"), "pool": pool, "priority": class,
                "factor_percent": 100, "gang": false, "generation": 1, "socket_paths": [],
                "limits": {}, "effective_limits": {}, "state": "active", "strikes": 0,
                "quarantines": 0, "demoted": false, "registered_unix_ms": 0, "more_gpu_ids": [],
                "sessions": 0, "queue_calls": 0, "queue_bytes": 0, "memory_bytes": 0,
                "pinned_bytes": 0, "share_permille": 0, "wait": wait, "usage": {
                    "gpu_ns": 0, "wait_ns": 0, "throttled_ns": 0, "calls": 0, "bytes_in": 0,
                    "bytes_out": 0, "sessions": 0, "kills": 0, "soft_limits": 0, "refusals": 0,
                    "rate_limited": 0},
            })
        };
        let vms: Vec<_> = (1..=count).map(vm).collect();
        serde_json::from_value(serde_json::json!({
            "daemon": {"version": "1", "state": "serving", "pid": 1, "started_unix_ms": 1,
                "now_unix_ms": 2, "warnings": [], "weights": vgpu_api::Weights::default()},
            "gpus": [], "pools": [], "vms": vms, "sessions": [], "recent_events": []
        }))
        .unwrap()
    }

    #[test]
    fn of_many_vms_only_those_that_run_or_wait_are_shown_and_totals() {
        let mut status = many(271);
        status.vms[6].sessions = 2;
        status.vms[7].sessions = 1;
        status.vms[7].waiting = Some(vgpu_api::WaitReason::Turn);
        // Without a program nothing waits.
        status.vms[8].waiting = Some(vgpu_api::WaitReason::Quota);
        let text = screen(&status, Format::Wide, &Only::default());
        assert!(text.lines().count() < 20, "{text}");
        let shown = |name: &str| text.contains(&format!("{name} "));
        assert!(
            shown("idle-7") && shown("idle-8") && shown("idle-9") && !shown("idle-10"),
            "{text}"
        );
        assert!(
            text.contains("268 of 271 VMs are idle and not shown"),
            "{text}"
        );
        assert!(text.contains("status --all"), "{text}");
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let low = text
            .lines()
            .map(words)
            .find(|line| line.first().is_some_and(|w| w == "low"));
        assert_eq!(low.unwrap()[..4], ["low", "270", "2", "1"], "{text}");
        let all = Only {
            all: true,
            ..Only::default()
        };
        let text = screen(&status, Format::Wide, &all);
        assert!(
            text.contains("idle-271") && !text.contains("not shown"),
            "{text}"
        );
        let few = screen(&many(40), Format::Wide, &Only::default());
        assert!(
            few.contains("idle-40") && !few.contains("not shown"),
            "{few}"
        );
    }

    #[test]
    fn names_are_shown_where_an_administrator_gave_some() {
        let mut status = many(2);
        let text = screen(&status, Format::Table, &Only::default());
        assert!(text.contains("NAME") && text.contains("idle-2"), "{text}");
        assert_eq!(Names::of(&status.vms).show(2), "2 (idle-2)");
        for vm in &mut status.vms {
            vm.name = format!("vm{}", vm.vm_id);
        }
        let text = screen(&status, Format::Table, &Only::default());
        assert!(!text.contains("NAME"), "{text}");
        assert_eq!(Names::of(&status.vms).show(2), "2");
    }

    #[test]
    fn a_host_without_gpus_names_the_warnings_first() {
        let mut status = many(1);
        assert!(next_step(&status).unwrap().contains("is known yet"));
        status.daemon.warnings = vec!["The last scan for GPUs: no answer.".into()];
        assert!(next_step(&status).unwrap().contains("the warnings"));
    }

    #[test]
    fn a_screen_is_limited_to_a_pool_or_to_vms() {
        let vms = |only: Only| {
            only.apply(many(50))
                .vms
                .iter()
                .map(|vm| vm.vm_id)
                .collect::<Vec<_>>()
        };
        let pool = || Some("B".to_owned());
        assert_eq!(
            vms(Only {
                pool: pool(),
                ..Only::default()
            }),
            [1, 2, 3]
        );
        assert_eq!(
            vms(Only {
                vms: Some(vec![2, 50]),
                ..Only::default()
            }),
            [2, 50]
        );
        let both = Only {
            vms: Some(vec![2, 50]),
            pool: pool(),
            all: false,
        };
        assert_eq!(vms(both), [2]);
    }

    #[test]
    fn a_gpu_without_a_driver_is_not_to_be_assigned() {
        let without = to_assign([(0, GpuState::NoDriver)].into_iter());
        assert!(!without.contains("assign-gpu"), "{without}");
        assert!(without.contains("scan-gpus"), "{without}");
        let second = to_assign([(0, GpuState::NoDriver), (1, GpuState::Ready)].into_iter());
        assert!(second.contains("assign-gpu 1 "), "{second}");
    }
}
