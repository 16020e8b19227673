//! Request latency of a high-priority guest, alone and beside saturating low-priority guests.

use std::time::Duration;

use anyhow::Result;
use vgpu_tests::device::{self, Kernels, Watch};
use vgpu_tests::host::Host;

use super::{Pace, beside, host, latencies, p, requests};
use crate::report::Figure;

/// A request: ten kernels of 0.5 ms. The pause after it has about the same length.
const REQUEST: (&str, u32) = ("medium", 10);
const THINK: Duration = Duration::from_millis(5);
/// Kernels of the other guests: also 0.5 ms, with 100 ms of them queued.
const NEIGHBOUR: (&str, u32) = ("medium", 200);

const XSCHED: (f64, &str) = (
    1.134,
    "XSched Lv1, fixed priority beside one on GV100, p99: 1.134",
);
const GATE_ONLY: (f64, &str) = (
    1.308,
    "Tally without kernel transformation, 12 pairs on A100, p99: 1.308 (time-slicing: 2.38)",
);

pub(super) fn figures(pace: Pace) -> Result<Vec<Figure>> {
    let host = host(Kernels::default())?;
    host.admin("vm set 1 --priority=high")?;
    host.admin("register-vm --vm-id=2-4 --pool=A --priority=low")?;
    let mut figures = Vec::new();
    eprintln!("latency: alone");
    let alone = measure(&host, 0, pace)?;
    for policy in ["weighted", "strict"] {
        host.admin(&format!("pool set A --policy={policy}"))?;
        for (neighbours, published) in [(1, XSCHED), (3, GATE_ONLY)] {
            eprintln!("latency: {policy}, beside {neighbours}");
            let there = measure(&host, neighbours, pace)?;
            let name = |what: &str| format!("high_{what}_{policy}_beside_{neighbours}");
            const SAME: &str = "alone, same run; requests of 10 kernels of 0.5 ms, pauses of 5 ms";
            for (what, q) in [("p50", 0.5), ("p99", 0.99)] {
                figures.push(beside(name(what), p(&there, q), "us", (p(&alone, q), SAME)));
            }
            figures.push(beside(
                name("p99_inflation"),
                p(&there, 0.99) / p(&alone, 0.99),
                "x",
                published,
            ));
        }
    }
    Ok(figures)
}

/// Latencies in µs of VM 1's requests beside `neighbours` saturating VMs.
fn measure(host: &Host, neighbours: u32, pace: Pace) -> Result<Vec<f64>> {
    let vms: Vec<u32> = (2..).take(neighbours as usize).collect();
    let _neighbours = vms
        .iter()
        .map(|vm| device::saturate(host, *vm, NEIGHBOUR.0, NEIGHBOUR.1, 600))
        .collect::<Result<Vec<_>>>()?;
    let watched: Vec<_> = vms.iter().map(|vm| (*vm, 1)).collect();
    Watch::start(host, &watched)?;
    let seconds = pace.seconds(6);
    let samples = latencies(requests(host, 1, REQUEST, THINK, seconds)?, seconds)?;
    drop(_neighbours);
    host.wait_no_sessions(vgpu_tests::wait::SOON)?;
    Ok(samples)
}
