//! Injected errors and faults (`SOFT_GPU_FAIL_CALL`, `_FAIL_ALLOC`, `_FAULT`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use vgpu_cuda_abi::CuResult;

use super::base_name::base;
use super::config::{Config, FailCall, FaultKind, KernelFault};

#[derive(Default)]
struct Plan {
    calls: Vec<(FailCall, AtomicU64)>,
    faults: Vec<(KernelFault, AtomicU64)>,
    alloc: Option<u64>,
    allocs: AtomicU64,
}

static PLAN: OnceLock<Plan> = OnceLock::new();

/// Takes the injected errors and faults from the settings. Without any, a check costs one load.
pub fn install(config: &Config) {
    let plan = Plan {
        calls: config
            .fail_calls
            .iter()
            .map(|c| (c.clone(), AtomicU64::new(0)))
            .collect(),
        faults: config
            .faults
            .iter()
            .map(|f| (f.clone(), AtomicU64::new(0)))
            .collect(),
        alloc: config.fail_alloc,
        allocs: AtomicU64::new(0),
    };
    if plan.calls.len() + plan.faults.len() > 0 || plan.alloc.is_some() {
        let _ = PLAN.set(plan);
    }
}

fn hit(nth: u64, counter: &AtomicU64) -> bool {
    let now = counter.fetch_add(1, Ordering::Relaxed) + 1;
    nth == 0 || nth == now
}

/// The injected error of this call of `name`.
pub fn call(name: &str) -> Option<CuResult> {
    let plan = PLAN.get()?;
    plan.calls
        .iter()
        .filter(|(c, _)| c.name == name || c.name == base(name))
        .find(|(c, counter)| hit(c.nth, counter))
        .map(|(c, _)| c.code)
}

/// Whether this allocation of device memory must fail.
pub fn alloc_fails() -> bool {
    PLAN.get()
        .is_some_and(|plan| plan.alloc.is_some_and(|nth| hit(nth, &plan.allocs)))
}

/// The injected fault of this launch of `kernel`.
pub fn launch(kernel: &str) -> Option<FaultKind> {
    let plan = PLAN.get()?;
    plan.faults
        .iter()
        .filter(|(f, _)| f.kernel == "*" || f.kernel == kernel)
        .find(|(f, counter)| hit(f.nth, counter))
        .map(|(f, _)| f.kind)
}
