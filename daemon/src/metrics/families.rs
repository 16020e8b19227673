//! The metric families.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use vgpu_api::{Gpu, GpuAccount, GpuState, PoolStatus, Status, Vm, VmState};

use crate::events::{EventCount, Journal};
use crate::model::{Histogram, VmRuntime};
use crate::store::StoreHealth;
use crate::views::World;

/// Upper bounds of exported buckets in ns. Finer buckets are summed up.
const BOUNDS_NS: [u64; 16] = [
    10_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    30_000_000_000,
];

type Labels = Vec<(&'static str, String)>;

/// The data of a scrape, as of one moment.
#[derive(Debug)]
pub(crate) struct Facts {
    gpus: Vec<Gpu>,
    pools: Vec<PoolStatus>,
    vms: Vec<Vm>,
    world: World,
    events: Vec<EventCount>,
    events_lost: u64,
    store: StoreHealth,
    warnings: usize,
    started_unix_ms: u64,
}

impl Facts {
    /// Collects the data of a scrape. `status` must come from the same `world`.
    pub(crate) fn new(world: World, status: Status, journal: &Journal, store: StoreHealth) -> Self {
        Self {
            gpus: status.gpus,
            pools: status.pools,
            vms: status.vms,
            world,
            events: journal.counts(),
            events_lost: journal.lost(),
            store,
            warnings: status.daemon.warnings.len(),
            started_unix_ms: status.daemon.started_unix_ms,
        }
    }
}

impl Collector for Facts {
    fn encode(&self, encoder: DescriptorEncoder) -> Result<(), Error> {
        let mut families = Families { encoder };
        self.host(&mut families)?;
        self.gpus(&mut families)?;
        self.pools(&mut families)?;
        self.vms(&mut families)?;
        self.vm_usage(&mut families)?;
        self.scheduler(&mut families)
    }
}

impl Facts {
    fn host(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        out.gauges(
            "vgpu_build_info",
            "Version of vgpud; always 1.",
            [(version, 1.0)],
        )?;
        out.gauges(
            "vgpu_start_time_seconds",
            "When vgpud started, in seconds since 1970.",
            [(vec![], self.started_unix_ms as f64 / 1_000.0)],
        )?;
        out.gauges(
            "vgpu_warnings",
            "Conditions that need an administrator (see vgpu-admin status).",
            [(vec![], self.warnings as f64)],
        )?;
        let writable = if self.store.problem.is_none() {
            1.0
        } else {
            0.0
        };
        out.gauges(
            "vgpu_store_writable",
            "1 while the state database can be written.",
            [(vec![], writable)],
        )?;
        out.counters(
            "vgpu_store_commits",
            "Transactions of the state database.",
            [(vec![], self.store.commits as f64)],
        )?;
        out.counters(
            "vgpu_store_failures",
            "Failed transactions of the state database.",
            [(vec![], self.store.failures as f64)],
        )?;
        let events = self.events.iter().map(|event| {
            let labels = vec![
                ("kind", event.kind.name().to_owned()),
                ("cause", event.label.to_owned()),
            ];
            (labels, event.count as f64)
        });
        out.counters("vgpu_events", "Events by kind and cause.", events)?;
        out.counters(
            "vgpu_events_lost",
            "Events that could not be saved before they were forgotten.",
            [(vec![], self.events_lost as f64)],
        )?;
        process(out)
    }

    fn gpus(&self, out: &mut Families<'_>) -> Result<(), Error> {
        self.gpu_info(out)?;
        self.gpu_gauge(out, "vgpu_gpu_up", "1 while the GPU takes work.", |gpu| {
            f64::from(u8::from(gpu.state == GpuState::Ready))
        })?;
        self.gpu_gauge(
            out,
            "vgpu_gpu_memory_total_bytes",
            "Memory of the GPU.",
            |gpu| gpu.memory_bytes as f64,
        )?;
        self.gpu_gauge(
            out,
            "vgpu_gpu_sessions",
            "Open sessions on the GPU.",
            |gpu| f64::from(gpu.sessions),
        )?;
        self.gpu_gauge(
            out,
            "vgpu_gpu_busy_ratio",
            "Part of the last second with a lease held.",
            |gpu| f64::from(gpu.busy_permille) / 1_000.0,
        )?;
        self.gpu_measured(
            out,
            "vgpu_gpu_memory_used_bytes",
            "Device memory lent to VMs.",
            |gpu| Some(gpu.memory_used_bytes? as f64),
        )?;
        self.gpu_measured(
            out,
            "vgpu_gpu_temperature_celsius",
            "Core temperature, by the last scan.",
            |gpu| Some(f64::from(gpu.health.temperature_celsius?)),
        )?;
        self.gpu_measured(
            out,
            "vgpu_gpu_power_watts",
            "Power draw, by the last scan.",
            |gpu| Some(f64::from(gpu.health.power_milliwatts?) / 1_000.0),
        )?;
        self.gpu_accounts(out)
    }

    fn gpu_accounts(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let handoffs = self.gpus.iter();
        let handoffs = handoffs.map(|gpu| (gpu_labels(gpu), gpu.handoffs as f64));
        out.counters(
            "vgpu_gpu_handoffs",
            "Lease moves between sessions.",
            handoffs,
        )?;
        self.gpu_time(
            out,
            "vgpu_gpu_busy_seconds",
            "Time charged to VMs, with the switches between them.",
            |account| account.charged_ns,
        )?;
        self.gpu_time(
            out,
            "vgpu_gpu_idle_seconds",
            "Time in which nobody had work.",
            |account| account.idle_ns,
        )?;
        self.gpu_time(
            out,
            "vgpu_gpu_switch_seconds",
            "Time with work waiting and no lease granted; switches between VMs are in busy.",
            |account| account.switch_ns,
        )
    }

    fn gpu_info(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let info = self.gpus.iter().map(|gpu| {
            let mut labels = gpu_labels(gpu);
            labels.push(("model", gpu.model.clone()));
            labels.push(("driver", gpu.driver.clone().unwrap_or_default()));
            labels.push(("pci_bus_id", gpu.pci_address.clone().unwrap_or_default()));
            labels.push(("pools", gpu.pools.join(",")));
            (labels, 1.0)
        });
        out.gauges("vgpu_gpu_info", "A GPU of this host; always 1.", info)
    }

    /// A gauge with a value for each GPU.
    fn gpu_gauge(
        &self,
        out: &mut Families<'_>,
        name: &str,
        help: &str,
        value: fn(&Gpu) -> f64,
    ) -> Result<(), Error> {
        let gpus = self.gpus.iter();
        out.gauges(name, help, gpus.map(|gpu| (gpu_labels(gpu), value(gpu))))
    }

    /// A gauge of measurements. A value that was not measured is absent, not 0.
    fn gpu_measured(
        &self,
        out: &mut Families<'_>,
        name: &str,
        help: &str,
        value: fn(&Gpu) -> Option<f64>,
    ) -> Result<(), Error> {
        let gpus = self.gpus.iter();
        let values = gpus.filter_map(|gpu| Some((gpu_labels(gpu), value(gpu)?)));
        out.gauges(name, help, values)
    }

    /// A counter of seconds: a part of each GPU's account, in ns there.
    fn gpu_time(
        &self,
        out: &mut Families<'_>,
        name: &str,
        help: &str,
        part: fn(&GpuAccount) -> u64,
    ) -> Result<(), Error> {
        let values = self.gpus.iter().map(|gpu| {
            let ns = gpu.account.as_ref().map_or(0, part);
            (gpu_labels(gpu), seconds(ns))
        });
        out.counters(name, help, values)
    }

    fn pools(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let mut gauge = |name, help, value: fn(&PoolStatus) -> f64| {
            let values = self.pools.iter();
            out.gauges(
                name,
                help,
                values.map(|status| (vec![("pool", status.pool.name.clone())], value(status))),
            )
        };
        gauge("vgpu_pool_gpus", "GPUs that serve the pool.", |s| {
            s.pool.gpu_ids.len() as f64
        })?;
        gauge("vgpu_pool_vms", "VMs in the pool.", |s| {
            s.pool.vm_ids.len() as f64
        })?;
        gauge("vgpu_pool_sessions", "Open sessions of the pool.", |s| {
            f64::from(s.sessions)
        })?;
        gauge(
            "vgpu_pool_queue_calls",
            "Calls that wait in the pool.",
            |s| s.queue_calls as f64,
        )?;
        gauge("vgpu_pool_waiting_vms", "VMs with work that wait.", |s| {
            f64::from(s.waiting_vms)
        })
    }

    fn vms(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let info = self.vms.iter().map(|vm| {
            let mut labels = vm_labels(vm);
            labels.push(("vm_id", vm.vm_id.to_string()));
            labels.push(("pool", vm.pool.clone()));
            labels.push(("priority", vm.priority.name().to_owned()));
            labels.push(("cid", vm.cid.map(|cid| cid.to_string()).unwrap_or_default()));
            (labels, 1.0)
        });
        out.gauges("vgpu_vm_info", "A registered VM; always 1.", info)?;
        let mut gauge = |name, help, value: fn(&Vm) -> f64| {
            out.gauges(
                name,
                help,
                self.vms.iter().map(|vm| (vm_labels(vm), value(vm))),
            )
        };
        gauge("vgpu_vm_quarantined", "1 while the VM is refused.", |vm| {
            if vm.state == VmState::Quarantined {
                1.0
            } else {
                0.0
            }
        })?;
        gauge("vgpu_vm_strikes", "Strikes not yet forgotten.", |vm| {
            f64::from(vm.strikes)
        })?;
        gauge("vgpu_vm_sessions", "Open sessions.", |vm| {
            f64::from(vm.sessions)
        })?;
        gauge("vgpu_vm_queue_depth", "Calls that wait.", |vm| {
            vm.queue_calls as f64
        })?;
        gauge("vgpu_vm_queue_bytes", "Bytes that wait.", |vm| {
            vm.queue_bytes as f64
        })?;
        gauge("vgpu_vm_memory_used_bytes", "Device memory held.", |vm| {
            vm.memory_bytes as f64
        })?;
        gauge(
            "vgpu_vm_gpu_share_ratio",
            "Part of its GPU's time in the last second.",
            |vm| f64::from(vm.share_permille) / 1_000.0,
        )?;
        let quotas = self.vms.iter().filter_map(|vm| {
            let quota = vm.effective_limits.memory_bytes.value()?;
            Some((vm_labels(vm), quota as f64))
        });
        let help = "Device memory quota; absent for a VM without one.";
        out.gauges("vgpu_vm_memory_limit_bytes", help, quotas)
    }

    fn vm_usage(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let mut counter = |name, help, value: fn(&Vm) -> f64| {
            out.counters(
                name,
                help,
                self.vms.iter().map(|vm| (vm_labels(vm), value(vm))),
            )
        };
        counter("vgpu_vm_gpu_time_seconds", "GPU time charged.", |vm| {
            seconds(vm.usage.gpu_ns)
        })?;
        counter(
            "vgpu_vm_wait_seconds",
            "Time ready and waiting for a turn.",
            |vm| seconds(vm.usage.wait_ns),
        )?;
        counter(
            "vgpu_vm_throttled_seconds",
            "Time held back by its own limits.",
            |vm| seconds(vm.usage.throttled_ns),
        )?;
        counter("vgpu_vm_calls", "Calls carried out.", |vm| {
            vm.usage.calls as f64
        })?;
        counter("vgpu_vm_sessions_started", "Sessions started.", |vm| {
            vm.usage.sessions as f64
        })?;
        counter("vgpu_vm_kills", "Sessions ended by the daemon.", |vm| {
            vm.usage.kills as f64
        })?;
        counter("vgpu_vm_soft_limits", "Turns past the soft limit.", |vm| {
            vm.usage.soft_limits as f64
        })?;
        counter(
            "vgpu_vm_rejected",
            "Connections refused before a session began.",
            |vm| vm.usage.refusals as f64,
        )?;
        counter(
            "vgpu_vm_rate_limited",
            "Calls that waited for a token bucket.",
            |vm| vm.usage.rate_limited as f64,
        )?;
        let copied = self.vms.iter().flat_map(|vm| {
            [("in", vm.usage.bytes_in), ("out", vm.usage.bytes_out)].map(|(direction, bytes)| {
                let mut labels = vm_labels(vm);
                labels.push(("direction", direction.to_owned()));
                (labels, bytes as f64)
            })
        });
        out.counters(
            "vgpu_vm_copied_bytes",
            "Payload bytes from (in) and to the guest.",
            copied,
        )?;
        let running = |pick: fn(&VmRuntime) -> &Histogram| {
            self.vms
                .iter()
                .filter_map(move |vm| Some((vm_labels(vm), pick(self.world.running_vm(vm.vm_id)?))))
        };
        out.histograms(
            "vgpu_vm_queue_wait_seconds",
            "Waiting for a turn.",
            running(|vm| &vm.wait),
        )?;
        out.histograms(
            "vgpu_vm_service_seconds",
            "Length of turns.",
            running(|vm| &vm.service),
        )
    }

    fn scheduler(&self, out: &mut Families<'_>) -> Result<(), Error> {
        let snapshot = &self.world.snapshot;
        out.counters(
            "vgpu_sched_decisions",
            "Decisions of the scheduler.",
            [(vec![], snapshot.decisions as f64)],
        )?;
        out.histograms(
            "vgpu_sched_decision_seconds",
            "Time one decision took.",
            [(vec![], &snapshot.decision_time)],
        )?;
        out.histograms(
            "vgpu_sched_handoff_seconds",
            "From a revoke to the next holder's grant.",
            [(vec![], &snapshot.handoff_time)],
        )?;
        out.gauges(
            "vgpu_leftover_workers",
            "Workers of an earlier daemon not yet verified gone.",
            [(vec![], f64::from(snapshot.orphaned_workers))],
        )
    }
}

/// Memory and descriptors of vgpud itself, by the names that all exporters use.
fn process(out: &mut Families<'_>) -> Result<(), Error> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| {
        let kib = line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?;
        kib.parse::<f64>().ok()
    });
    if let Some(kib) = resident {
        let help = "Memory of vgpud in RAM.";
        out.gauges(
            "process_resident_memory_bytes",
            help,
            [(vec![], kib * 1_024.0)],
        )?;
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        let help = "Open files of vgpud.";
        out.gauges("process_open_fds", help, [(vec![], open.count() as f64)])?;
    }
    Ok(())
}

fn gpu_labels(gpu: &Gpu) -> Labels {
    vec![("gpu", gpu.gpu_id.to_string()), ("uuid", gpu.uuid.clone())]
}

fn vm_labels(vm: &Vm) -> Labels {
    vec![("vm", vm.name.clone())]
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

struct Families<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Families<'_> {
    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Result<(), Error> {
        self.family(name, help, MetricType::Gauge, values, |value, out| {
            ConstGauge::new(value).encode(out)
        })
    }

    /// `name` is without `_total`, which the text format appends.
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Result<(), Error> {
        self.family(name, help, MetricType::Counter, values, |value, out| {
            ConstCounter::new(value).encode(out)
        })
    }

    fn histograms<'h>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels, &'h Histogram)>,
    ) -> Result<(), Error> {
        self.family(
            name,
            help,
            MetricType::Histogram,
            values,
            |histogram, mut out| {
                let buckets = rebucket(histogram);
                let sum = histogram.sum_ns() as f64 / 1e9;
                out.encode_histogram::<Labels>(sum, histogram.count(), &buckets, None)
            },
        )
    }

    fn family<V>(
        &mut self,
        name: &str,
        help: &str,
        metric_type: MetricType,
        values: impl IntoIterator<Item = (Labels, V)>,
        write: impl Fn(V, MetricEncoder<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let help = help.trim_end_matches('.');
        let mut family = self
            .encoder
            .encode_descriptor(name, help, None, metric_type)?;
        for (labels, value) in values {
            if labels.is_empty() {
                return write(value, family);
            }
            write(value, family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Counts per exported bound. The last bucket has no bound.
fn rebucket(histogram: &Histogram) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> = BOUNDS_NS.iter().map(|ns| (seconds(*ns), 0)).collect();
    buckets.push((f64::INFINITY, 0));
    for (upper_ns, count) in histogram.buckets() {
        let index = BOUNDS_NS.partition_point(|bound| *bound < upper_ns);
        buckets[index].1 += u64::from(count);
    }
    buckets
}
