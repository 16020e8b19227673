//! The status screen: GPUs, pools, VMs, priorities, queues and limits.

use std::time::Duration;

use std::io::IsTerminal;

use vgpu_api::{GpuState, HostState, Status, Vm};

use super::gpu::{names, state as gpu_state};
use super::pool::numbers;
use super::vm::{limits, may_use, placed, share, state as vm_state, wait_reason};
use crate::client::Client;
use crate::error::Error;
use crate::output::{Format, Grid, json, or_dash, print, printable};
use crate::units::{show_age, show_bytes, show_count, show_ns};

/// Shows the screen once, or every `every` seconds.
pub(super) async fn run(client: &Client, output: Format, every: Option<u64>) -> Result<(), Error> {
    loop {
        let status: Status = client.get("status").await?;
        match output {
            Format::Json => json(&status)?,
            Format::Csv => print(&vm_grid(&status).render(Format::Csv))?,
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
        "vgpud {} {state}, up {}, {} GPUs, {} pools, {} VMs, {} sessions\n",
        d.version,
        show_age(d.now_unix_ms, d.started_unix_ms),
        status.gpus.len(),
        status.pools.len(),
        status.vms.len(),
        status.sessions.len()
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
        grid.row(vec![
            gpu.gpu_id.to_string(),
            gpu.model.clone(),
            names(&gpu.pools),
            gpu_state(gpu),
            share(gpu.busy_permille),
            memory,
            gpu.holder_vm_id
                .map_or_else(|| "-".into(), |vm| format!("VM {vm}")),
            gpu.sessions.to_string(),
            show_count(gpu.handoffs),
            gpu.uuid.clone(),
        ]);
    }
    grid
}

fn pool_grid(status: &Status) -> Grid {
    let mut grid = Grid::new(&[
        "POOL", "GPUS", "POLICY", "SLICE", "VMS", "WAITING", "QUEUE", "SESSIONS", "+WEIGHTS",
    ]);
    for p in &status.pools {
        grid.row(vec![
            p.pool.name.clone(),
            numbers(&p.pool.gpu_ids),
            p.pool.settings.policy.name().into(),
            show_ns(p.pool.settings.slice_us.saturating_mul(1_000)),
            p.pool.vm_ids.len().to_string(),
            p.waiting_vms.to_string(),
            show_count(p.queue_calls),
            p.sessions.to_string(),
            p.pool.effective_weights.to_string(),
        ]);
    }
    grid
}

fn vm_grid(status: &Status) -> Grid {
    let mut grid = Grid::new(&[
        "VM",
        "POOL",
        "PRIORITY",
        "QUEUE",
        "SHARE",
        "GPU TIME",
        "MEMORY",
        "LIMITS",
        "SESSIONS",
        "STATE",
        "+NAME",
        "+CID",
        "+GPU",
        "+WAIT P50/P99",
        "+STRIKES",
        "+SLICE",
        "+MAY USE",
    ]);
    let mut vms: Vec<&Vm> = status.vms.iter().collect();
    vms.sort_by(|a, b| (&a.pool, a.vm_id).cmp(&(&b.pool, b.vm_id)));
    for vm in vms {
        let state = match vm.waiting {
            Some(reason) => format!("{}, waits for {}", vm_state(vm), wait_reason(reason)),
            None => vm_state(vm),
        };
        grid.row(vec![
            vm.vm_id.to_string(),
            vm.pool.clone(),
            vm.priority.name().into(),
            show_count(vm.queue_calls),
            share(vm.share_permille),
            show_ns(vm.usage.gpu_ns),
            show_bytes(vm.memory_bytes),
            limits(&vm.limits, &vm.effective_limits),
            vm.sessions.to_string(),
            state,
            vm.name.clone(),
            or_dash(vm.cid),
            placed(vm),
            format!("{}/{} us", vm.wait.p50_us, vm.wait.p99_us),
            vm.strikes.to_string(),
            or_dash(vm.slice_us.map(|us| show_ns(us.saturating_mul(1_000)))),
            may_use(vm),
        ]);
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
