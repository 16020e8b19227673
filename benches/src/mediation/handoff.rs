//! Time in which the GPU passes from one saturating guest to another, by the length of their
//! kernels.

use anyhow::{Context, Result};
use vgpu_tests::device::{self, Kernels, Watch};

use super::{Pace, alone, beside, host};
use crate::report::Figure;

/// Kernel, its length in µs, and XSched's preemption time of such kernels on GV100.
const CASES: [(&str, f64, (f64, &str)); 3] = [
    (
        "short",
        100.0,
        (
            1053.0,
            "XSched Lv1 on GV100, kernels of 100 us: p99 1053 us",
        ),
    ),
    (
        "medium",
        500.0,
        (
            5280.0,
            "XSched Lv1 on GV100, kernels of 500 us: p99 5280 us",
        ),
    ),
    (
        "longest",
        2000.0,
        (
            21160.0,
            "XSched Lv1 on GV100, kernels of 2 ms: p99 21160 us",
        ),
    ),
];

pub(super) fn figures(pace: Pace) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (kernel, length, published) in CASES {
        eprintln!("handoff: kernels of {length} us");
        figures.extend(measure(kernel, length, published, pace)?);
    }
    Ok(figures)
}

fn measure(
    kernel: &str,
    length: f64,
    published: (f64, &'static str),
    pace: Pace,
) -> Result<Vec<Figure>> {
    let host = host(Kernels::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let batch = (100_000.0 / length) as u32;
    let _guests = [1, 2]
        .map(|vm| device::saturate(&host, vm, kernel, batch, 600))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    Watch::start(&host, &[(1, 1), (2, 1)])?;
    std::thread::sleep(pace.time(5));
    let status = host.admin_json("status")?;
    let handoff = &status["gpus"][0]["handoff"];
    let us = |name: &str| {
        let found = handoff[name].as_u64();
        found.with_context(|| format!("no {name} in {handoff}"))
    };
    anyhow::ensure!(us("count")? >= 100, "fewer than 100 handoffs: {handoff}");
    let (p50, p99) = (us("p50_us")? as f64, us("p99_us")? as f64);
    let name = |what: &str| format!("handoff_{what}_{length}us_kernels");
    const ASKED: &str = "from the revoke to the next grant, by vgpud's histogram (<= 12.5 % high)";
    let mut figures = vec![
        alone(name("p50"), p50, "us", ASKED),
        beside(name("p99"), p99, "us", published),
        beside(
            name("p99_less_kernel"),
            p99 - length,
            "us",
            (500.0, "design: kernel + 500 us"),
        ),
    ];
    if let Some(max) = handoff["max_us"].as_u64() {
        figures.push(alone(name("max"), max as f64, "us", ASKED));
    }
    Ok(figures)
}
