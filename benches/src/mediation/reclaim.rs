//! Measures how soon a GPU serves the next VM if the holder of the lease does not use the GPU.

use std::time::Duration;

use anyhow::{Context, Result};
use vgpu_tests::device::Kernels;

use super::{Pace, alone, beside, host, latencies, p, requests};
use crate::report::Figure;

/// One kernel of 0.1 ms, then a pause.
const REQUEST: (&str, u32) = ("short", 1);
const THINK: Duration = Duration::from_millis(4);

/// Two guests with pauses: each usually finds the GPU idle while the other guest holds the lease.
pub(super) fn figures(pace: Pace) -> Result<Vec<Figure>> {
    eprintln!("reclaim");
    let host = host(Kernels::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let seconds = pace.seconds(5);
    let single = latencies(requests(&host, 1, REQUEST, THINK, seconds)?, seconds)?;
    let both = [1, 2].map(|vm| requests(&host, vm, REQUEST, THINK, seconds));
    let mut wait = f64::NAN;
    let mut shared = Vec::new();
    for guest in both {
        shared.extend(latencies(guest?, seconds)?);
    }
    for vm in [1, 2] {
        let vm = host.vm(vm)?;
        let p99 = vm["wait"]["p99_us"].as_u64().context("a wait")?;
        wait = wait.max(p99 as f64);
    }
    let moves = host.admin_json("status")?["gpus"][0]["handoffs"].as_u64();
    anyhow::ensure!(moves > Some(100), "fewer than 100 handoffs: {moves:?}");
    const XGPU: (f64, &str) = (
        1_000.0,
        "design: <= 1 ms; published: Huawei xGPU <= 100 ms, nvshare 5 s",
    );
    Ok(vec![
        beside("idle_reclaim_wait_p99", wait, "us", XGPU),
        beside(
            "idle_reclaim_request_p99",
            p(&shared, 0.99),
            "us",
            (p(&single, 0.99), "the same request alone, same run"),
        ),
        alone(
            "idle_reclaim_request_p50",
            p(&shared, 0.5),
            "us",
            "one kernel of 0.1 ms and a synchronisation",
        ),
    ])
}
