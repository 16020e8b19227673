//! Usage reports of VMs for export.

use vgpu_api::{LatencyBucket, LatencyHistogram, UsageReport};

use crate::model::{Histogram, UsageRecord, VmRecord};
use crate::views::World;

pub(super) fn report(world: &World, record: &VmRecord, usage: &UsageRecord) -> UsageReport {
    let same = usage.generation == record.generation;
    let usage = if same { *usage } else { UsageRecord::default() };
    let runtime = world.running_vm(record.vm_id);
    let distribution =
        |of: Option<&Histogram>| of.map_or_else(LatencyHistogram::default, histogram);
    UsageReport {
        vm_id: record.vm_id,
        name: record.name.clone(),
        pool: record.pool.clone(),
        since_unix_ms: usage.since_unix_ms.max(record.registered_unix_ms),
        usage: usage.total,
        wait: distribution(runtime.map(|vm| &vm.wait)),
        turn: distribution(runtime.map(|vm| &vm.service)),
        memory_bytes: runtime.map_or(0, |vm| vm.memory_bytes),
        pinned_bytes: runtime.map_or(0, |vm| vm.pinned_bytes),
    }
}

fn histogram(histogram: &Histogram) -> LatencyHistogram {
    LatencyHistogram {
        count: histogram.count(),
        sum_ns: u64::try_from(histogram.sum_ns()).unwrap_or(u64::MAX),
        p50_ns: histogram.quantile_ns(500),
        p95_ns: histogram.quantile_ns(950),
        p99_ns: histogram.quantile_ns(990),
        max_ns: histogram.max_ns(),
        buckets: histogram
            .buckets()
            .map(|(up_to_ns, count)| LatencyBucket {
                up_to_ns,
                count: count.into(),
            })
            .collect(),
    }
}
