//! The status screen: GPUs, pools, VMs, priorities, queues and limits.

use std::time::Duration;

use std::io::IsTerminal;

use vgpu_api::{GpuState, HostState, Status, Vm};

use super::gpu::{names, state as gpu_state};
use super::pool::numbers;
use super::vm::{
    limit_cells, limit_columns, limits, may_use, placed, share, state as vm_state, state_word,
    wait_reason, wait_word,
};
use crate::client::Client;
use crate::error::Error;
use crate::output::{Cell, Format, Grid, json, print, printable};
use crate::times::show_age;
use crate::units::{bytes, count, counted, ns, show_bytes, us};

/// Shows the screen once, or every `every` seconds.
pub(super) async fn run(client: &Client, output: Format, every: Option<u64>) -> Result<(), Error> {
    let mut status: Status = client.get("status").await?;
    if output == Format::Csv {
        print(&vm_grid(&status).csv_header())?;
    }
    loop {
        match output {
            Format::Json => json(&status)?,
            Format::Csv => print(&vm_grid(&status).csv_rows())?,
            Format::Table | Format::Wide => {
                // Clears the screen only on a terminal: a log file gets only the text.
                let clear = every.is_some() && std::io::stdout().is_terminal();
                let head = if clear { "\x1b[H\x1b[2J" } else { "" };
                print(&format!("{head}{}", screen(&status, output)))?;
            }
        }
        match every {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => return Ok(()),
        }
        status = client.get_through_restarts("status").await?;
    }
}

fn screen(status: &Status, format: Format) -> String {
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
    for grid in [gpu_grid(status), pool_grid(status), vm_grid(status)] {
        text.push('\n');
        if grid.is_empty() {
            text.pop();
            continue;
        }
        text.push_str(&grid.render(format));
    }
    if let Some(hint) = next_step(status) {
        text.push_str(&format!("\n{hint}\n"));
    }
    text
}

/// The next step of a new administrator.
fn next_step(status: &Status) -> Option<String> {
    if status.gpus.is_empty() {
        Some("No GPU is known yet. Next: vgpu-admin scan-gpus".into())
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
        Some((gpu_id, _)) => format!(
            "No GPU serves a pool yet. Next: vgpu-admin assign-gpu --gpu-id={gpu_id} --pool=A"
        ),
        None => "No GPU can work: load its driver. Next: vgpu-admin scan-gpus".into(),
    }
}

fn gpu_grid(status: &Status) -> Grid {
    let mut grid = Grid::new(&[
        "GPU", "MODEL", "POOL", "STATE", "BUSY", "MEMORY", "HOLDER", "SESSIONS", "HANDOFFS",
        "+UUID",
    ]);
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
                .map_or_else(|| "-".into(), |vm| format!("VM {vm}").into()),
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

/// The VMs. `-o csv` shows only these.
fn vm_grid(status: &Status) -> Grid {
    let columns = [
        "VM|vm_id",
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
        "+NAME",
        "+CID",
        "+GPU|gpu_ids",
        "+WAIT P50/P99|wait_p50_us",
        "|wait_p99_us",
        "+STRIKES",
        "+SLICE|slice_us",
        "+MAY USE|allowed_gpu_ids",
        "|gang",
    ];
    let columns = columns.into_iter().map(str::to_owned);
    let columns: Vec<String> = columns.chain(limit_columns()).collect();
    let mut grid = Grid::new(&columns);
    let mut vms: Vec<&Vm> = status.vms.iter().collect();
    vms.sort_by(|a, b| (&a.pool, a.vm_id).cmp(&(&b.pool, b.vm_id)));
    for vm in vms {
        let state = match vm.waiting {
            Some(reason) => format!("{}, waits for {}", vm_state(vm), wait_word(reason)),
            None => vm_state(vm),
        };
        let wait = format!("{}/{} us", vm.wait.p50_us, vm.wait.p99_us);
        let cells = [
            vm.vm_id.into(),
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
            Cell::from(&vm.name),
            Cell::maybe(vm.cid),
            placed(vm),
            Cell::new(wait, vm.wait.p50_us),
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

    #[test]
    fn a_gpu_without_a_driver_is_not_to_be_assigned() {
        let without = to_assign([(0, GpuState::NoDriver)].into_iter());
        assert!(!without.contains("assign-gpu"), "{without}");
        assert!(without.contains("scan-gpus"), "{without}");
        let second = to_assign([(0, GpuState::NoDriver), (1, GpuState::Ready)].into_iter());
        assert!(second.contains("--gpu-id=1"), "{second}");
    }
}
