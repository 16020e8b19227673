//! The scheduler from outside: real daemon, real workers, real guests, and the device's own records
//! of its use.
//!
//! Why a slow machine does not break these tests: the device's clock gives each kernel exactly its
//! length without a processor, so the workload does not depend on the processor. The guests keep
//! hundreds of ms of work queued, so that a guest that waits for a processor stays backlogged.
//! Slices are 20 ms: the loss of a worker that is woken late is small against the slice, and vgpud
//! charges the whole turn anyway. A measurement lasts until the device has been *used* for some
//! seconds, however long that takes. The two tolerances below cover the rest.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use vgpu_api::GpuAccount;
use vgpu_tests::device::{self, Kernels, Watch, error_points, normal};
use vgpu_tests::guest::Running;
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::SOON;

/// Tolerance of charged time against a share, in percentage points. The bound is 2C / window, where
/// C is a slice and a kernel: 41 ms of 4 s, 1 point, for each level of the tree.
const CHARGED_POINTS: f64 = 2.5;

/// Tolerance of device time, in percentage points. The loss of a turn before its worker is woken
/// differs among VMs, because a VM with many turns in a row is woken once for all of them. A
/// machine that wakes workers late loses more: the tolerance is then half of the device's loss, but
/// never so large that equal shares would pass.
const DEVICE_POINTS: f64 = 6.0;
const MOST_DEVICE_POINTS: f64 = 10.0;

/// Device time of a measurement.
const BUSY: Duration = Duration::from_secs(4);
/// Interval of samples.
const EVERY: Duration = Duration::from_millis(20);

/// Kernels of 0.5 ms; a batch has 400 of them.
const KERNEL: &str = "medium";
const BATCH: u32 = 400;

/// One device, with VM 1 in pool A.
fn host() -> Result<Host> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("pool set A --slice=20ms --overrun-grace=1s")?;
    Ok(host)
}

fn backlog(host: &Host, vm: u32) -> Result<Running> {
    device::saturate(host, vm, KERNEL, BATCH, 600)
}

/// A number of programs for each VM, all with a backlog.
fn backlogs(host: &Host, vms: &[(u32, usize)]) -> Result<Vec<Running>> {
    vms.iter()
        .flat_map(|(vm, programs)| std::iter::repeat_n(*vm, *programs))
        .map(|vm| backlog(host, vm))
        .collect()
}

/// Measures and compares with weights, by the device's records and by vgpud's account.
fn assert_shares(watch: &Watch<'_>, host: &Host, weights: &[(u32, f64)]) -> Result<()> {
    const TRIES: usize = 5;
    let (vms, weights): (Vec<u32>, Vec<f64>) = weights.iter().copied().unzip();
    let mut seen = Vec::new();
    while seen.len() < TRIES {
        let before = device::charged(host)?;
        let track = watch.record_busy(BUSY, EVERY)?;
        let after = device::charged(host)?;
        let charged: Vec<f64> = vms
            .iter()
            .map(|vm| (after[vm] - before[vm]) as f64)
            .collect();
        let (charged, used) = (normal(&charged), track.shares());
        // Time of turns in which the device was idle may belong to any VM. The tolerance in
        // percentage points is half of that time's share.
        let lost = (track.wall().as_secs_f64() / track.busy().as_secs_f64() - 1.0) * 50.0;
        let most = lost.clamp(DEVICE_POINTS, MOST_DEVICE_POINTS);
        let wanted = normal(&weights);
        let text =
            format!("wanted {wanted:.3?}, charged {charged:.3?}, used {used:.3?} +- {most:.1} %");
        assert!(error_points(&charged, &weights) < CHARGED_POINTS, "{text}");
        if error_points(&used, &weights) < most {
            return Ok(());
        }
        seen.push(text);
    }
    anyhow::bail!("{seen:#?}")
}

#[test]
fn shares_follow_weights_and_every_change_of_them() -> Result<()> {
    let host = host()?;
    host.admin("register-vm --vm-id=2 --pool=A --priority=high")?;
    host.admin("register-vm --vm-id=3 --pool=A --priority=low")?;
    let vms = [(1, 1), (2, 1), (3, 1)];
    let _guests = backlogs(&host, &vms)?;
    let watch = Watch::start(&host, &vms)?;
    assert_shares(&watch, &host, &[(1, 4.0), (2, 16.0), (3, 1.0)])?;
    // While all run, and without a restart: the change applies at once.
    host.admin("vm set 3 --priority=high")?;
    host.admin("vm set 2 --priority=low")?;
    assert_shares(&watch, &host, &[(1, 4.0), (2, 1.0), (3, 16.0)])?;
    host.admin("weights set --high=4")?;
    assert_shares(&watch, &host, &[(1, 4.0), (2, 1.0), (3, 4.0)])
}

#[test]
fn many_programs_get_a_vm_no_more_than_its_share() -> Result<()> {
    let host = host()?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let vms = [(1, 1), (2, 6)];
    let _guests = backlogs(&host, &vms)?;
    let watch = Watch::start(&host, &vms)?;
    assert_shares(&watch, &host, &[(1, 1.0), (2, 1.0)])
}

#[test]
fn pools_on_one_gpu_share_it_by_their_weights() -> Result<()> {
    let host = host()?;
    host.admin("assign-gpu --gpu-id=0 --pool=B --shared")?;
    host.admin("pool set A --weight=300")?;
    host.admin("pool set B --weight=100 --slice=20ms --overrun-grace=1s")?;
    host.admin("register-vm --vm-id=2 --pool=B --priority=high")?;
    host.admin("register-vm --vm-id=3 --pool=B --priority=high")?;
    let vms = [(1, 1), (2, 1), (3, 1)];
    let _guests = backlogs(&host, &vms)?;
    let watch = Watch::start(&host, &vms)?;
    // Classes count only within a pool.
    assert_shares(&watch, &host, &[(1, 6.0), (2, 1.0), (3, 1.0)])
}

#[test]
fn a_cap_on_gpu_time_holds_at_the_device() -> Result<()> {
    const RATE_MS: u64 = 200;
    const BURST_MS: u64 = 40;
    /// Work in flight when the bucket is empty is paid for afterwards.
    const BEYOND_MS: u64 = 10;
    let host = host()?;
    host.admin(&format!(
        "vm set 1 --gpu-ms-per-s={RATE_MS} --gpu-ms-burst={BURST_MS}"
    ))?;
    // Two programs alone: the limit is the VM's, and applies on an idle GPU.
    let vms = [(1, 2)];
    let _guests = backlogs(&host, &vms)?;
    let watch = Watch::start(&host, &vms)?;
    let track = watch.record_busy(Duration::from_millis(600), EVERY)?;
    for window in [100, 500, 1_000, 2_000].map(Duration::from_millis) {
        for (from, to) in track.windows(window) {
            let used = to.busy_ns[0] - from.busy_ns[0];
            // Samples a little more than the window apart; the bound is an upper one on both
            // clocks.
            let wall = to.at_ns - from.at_ns;
            let most = wall * RATE_MS / 1_000 + (BURST_MS + BEYOND_MS) * 1_000_000;
            assert!(used <= most, "{used} ns used in {wall} ns, at most {most}");
        }
    }
    // The limit is removed while the programs run.
    host.admin("vm set 1 --gpu-ms-per-s=none")?;
    watch.record_busy(Duration::from_secs(2), EVERY)?;
    Ok(())
}

/// An answer of the daemon, a consistent snapshot.
pub(super) struct Books {
    /// The snapshot was taken between these times, on CLOCK_MONOTONIC.
    between: (u64, u64),
    pub(super) account: GpuAccount,
    /// Charges of the open sessions, by VM.
    pub(super) sessions: BTreeMap<u64, u64>,
}

pub(super) fn books(host: &Host) -> Result<Books> {
    let before = device::now_ns();
    let status = host.admin_json("status")?;
    let between = (before, device::now_ns());
    let account = serde_json::from_value(status["gpus"][0]["account"].clone())
        .with_context(|| format!("an account in {}", status["gpus"][0]))?;
    let mut sessions = BTreeMap::new();
    for session in status["sessions"].as_array().into_iter().flatten() {
        let number = |name: &str| session[name].as_u64().context(name.to_owned());
        *sessions.entry(number("vm_id")?).or_default() += number("gpu_ns")?;
    }
    Ok(Books {
        between,
        account,
        sessions,
    })
}

#[test]
fn every_nanosecond_is_charged_idle_or_switching() -> Result<()> {
    const KERNEL: (&str, u64) = ("longest", 2_000_000);
    let host = host()?;
    host.admin("register-vm --vm-id=2 --pool=A --priority=high")?;
    let first = books(&host)?;
    assert!(first.account.is_balanced(), "{:?}", first.account);
    assert_eq!(first.account.charged_ns, 0, "nobody has run");

    let guests = [1, 2].map(|vm| device::saturate(&host, vm, KERNEL.0, 100, 600));
    let watch = Watch::start(&host, &[(1, 1), (2, 1)])?;
    let mut best: f64 = 0.0;
    for _ in 0..5 {
        let outer = books(&host)?;
        let from = watch.look()?;
        watch.record_busy(Duration::from_millis(300), EVERY)?;
        let to = watch.look()?;
        let books = books(&host)?;
        for books in [&outer, &books] {
            let account = books.account;
            assert!(account.is_balanced(), "{account:?}");
            let of_sessions: u64 = books.sessions.values().sum();
            assert_eq!(of_sessions, account.charged_ns, "no session has ended yet");
        }
        let wall = books.account.wall_ns - outer.account.wall_ns;
        let (least, most) = (
            books.between.0 - outer.between.1,
            books.between.1 - outer.between.0,
        );
        assert!(
            (least..=most).contains(&wall),
            "{least} <= {wall} <= {most}"
        );
        // The device counts a kernel when it ends, and the charges span from before the first
        // sample to after the last: a VM's use was charged, on any machine.
        for (i, vm) in [1, 2].into_iter().enumerate() {
            let used = to.busy_ns[i] - from.busy_ns[i];
            let charged = books.sessions[&vm] - outer.sessions[&vm];
            assert!(used <= charged + KERNEL.1, "VM {vm}: {used} <= {charged}");
        }
        // The charge may exceed the use: a worker that waits for a processor is charged while the
        // device is idle. With kernels of 2 ms, the difference is a small part. Even on a heavily
        // overloaded machine, it is not four fifths in every attempt.
        let used = (to.busy_ns.iter().sum::<u64>() - from.busy_ns.iter().sum::<u64>()) as f64;
        let charged = (books.account.charged_ns - outer.account.charged_ns) as f64;
        best = best.max(used / charged);
    }
    assert!(best >= 0.2, "{best} of what was charged was used");
    let doctor = host.admin_output("doctor")?;
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(text.contains("gpu-0-account"), "{text}");
    drop(guests);
    host.wait_no_sessions(SOON)?;
    let last = books(&host)?;
    assert!(last.account.is_balanced(), "{:?}", last.account);
    let later = books(&host)?;
    assert_eq!(
        later.account.charged_ns, last.account.charged_ns,
        "nobody runs"
    );
    Ok(())
}
