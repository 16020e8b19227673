//! Compares charged GPU time with the device's own clock, for `vgpu-admin doctor`.

use std::collections::BTreeMap;

use vgpu_api::{DoctorCheck, Session};

use crate::model::DeviceProcess;

/// The device's clock may exceed the charge of a VM by this fraction and this time. Charging starts
/// and ends with messages and polls that come slightly after the facts.
const TOLERANCE_PERMILLE: u64 = 20;
const TOLERANCE_NS: u64 = 20_000_000;

/// Times of the open sessions of a VM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Times {
    used_ns: u64,
    charged_ns: u64,
}

/// Compares, for each VM, the use of its workers by the device's clock with the charge of its
/// sessions, which was read afterwards. `None`: no device has a clock, or no session runs.
///
/// A charge above the use is normal: it contains the hold, the time of a switch, and the drain. Use
/// above the charge is GPU time that nobody was charged for.
pub(super) fn check(processes: &[DeviceProcess], sessions: &[Session]) -> Option<DoctorCheck> {
    const NAME: &str = "device-clock";
    let mut used: BTreeMap<u32, u64> = BTreeMap::new();
    for process in processes {
        let sum = used.entry(process.pid).or_default();
        *sum = sum.saturating_add(process.busy_ns?);
    }
    let mut vms: BTreeMap<u32, Times> = BTreeMap::new();
    for session in sessions {
        let Some(used_ns) = session.worker_pid.and_then(|pid| used.get(&pid)) else {
            continue;
        };
        let times = vms.entry(session.vm_id).or_default();
        times.used_ns = times.used_ns.saturating_add(*used_ns);
        times.charged_ns = times.charged_ns.saturating_add(session.gpu_ns);
    }
    if vms.is_empty() {
        return None;
    }
    let wrong = vms.values().any(|times| !is_within(*times));
    let seconds = |ns: u64| ns as f64 / 1e9;
    let lines: Vec<String> = vms
        .iter()
        .map(|(vm, t)| {
            let mark = if is_within(*t) { "" } else { " (!)" };
            format!(
                "VM {vm} used {:.3} s and was charged {:.3} s{mark}",
                seconds(t.used_ns),
                seconds(t.charged_ns)
            )
        })
        .collect();
    let message = format!(
        "By the device's own clock {}. Use may be beyond the charge by {} % and {} ms.",
        lines.join(", "),
        TOLERANCE_PERMILLE / 10,
        TOLERANCE_NS / 1_000_000
    );
    let hint =
        "Time that a VM got and did not pay for: please report it with `vgpu-admin sched log`.";
    Some(match wrong {
        true => DoctorCheck::error(NAME, message, hint),
        false => DoctorCheck::ok(NAME, message),
    })
}

fn is_within(times: Times) -> bool {
    let allowed = times.used_ns / 1_000 * TOLERANCE_PERMILLE + TOLERANCE_NS;
    times.used_ns <= times.charged_ns.saturating_add(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_api::{CheckStatus, SessionState};

    fn process(pid: u32, busy_ms: u64) -> DeviceProcess {
        DeviceProcess {
            pid,
            memory_bytes: 0,
            busy_ns: Some(busy_ms * 1_000_000),
            open_ns: None,
        }
    }

    fn session(vm_id: u32, pid: u32, charged_ms: u64) -> Session {
        Session {
            session_id: u64::from(pid),
            vm_id,
            guest_pid: 1,
            program: "x".into(),
            gpu_id: None,
            gpu_uuid: None,
            more_gpu_ids: Vec::new(),
            state: SessionState::Running,
            waiting: None,
            peer: String::new(),
            worker_pid: Some(pid),
            since_unix_ms: 0,
            gpu_ns: charged_ms * 1_000_000,
            memory_bytes: 0,
            queue_calls: 0,
            queue_bytes: 0,
            calls: 0,
            bytes: 0,
        }
    }

    #[test]
    fn use_beyond_the_charge_is_a_fault_and_less_is_not() {
        // VM 1 has two sessions, VM 2 uses two devices, and process 99 is not a worker.
        let processes = [
            process(10, 1_000),
            process(11, 500),
            process(20, 400),
            process(20, 300),
            process(99, 9_000),
        ];
        let check_with = |charged| {
            let sessions = [
                session(1, 10, 1_100),
                session(1, 11, 420),
                session(2, 20, charged),
            ];
            check(&processes, &sessions).unwrap()
        };
        let good = check_with(690);
        assert_eq!(good.status, CheckStatus::Ok, "{}", good.message);
        let says = "VM 1 used 1.500 s and was charged 1.520 s, VM 2 used 0.700 s";
        assert!(good.message.contains(says), "{}", good.message);
        let bad = check_with(660);
        assert_eq!(bad.status, CheckStatus::Error, "{}", bad.message);
        assert!(bad.message.contains("charged 0.660 s (!)") && bad.hint.is_some());
    }

    #[test]
    fn without_a_clock_or_programs_there_is_no_check() {
        let no_clock = DeviceProcess {
            busy_ns: None,
            open_ns: None,
            ..process(10, 0)
        };
        assert!(check(&[no_clock], &[session(1, 10, 5)]).is_none());
        assert!(check(&[process(10, 5)], &[]).is_none());
    }
}
