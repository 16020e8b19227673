//! Checks whether workers are confined on this host, for `vgpu-admin doctor`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use vgpu_api::DoctorCheck;

use crate::probe::{Attempt, DRIVER, Prober, Verdict};

const NAME: &str = "worker-confinement";

/// The beginning of the probe's text about a library that cannot be loaded.
const NOT_LOADED: &str = "cannot load ";

/// On which devices the workers of this host run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looked {
    /// Software devices, whose workers are confined more.
    SoftDevices,
    /// GPUs with a driver.
    Gpus,
    /// GPUs that only the PCI bus shows. The driver does not start, whatever the confinement is.
    GpusWithoutDriver,
    /// No GPU is known. If the driver's library cannot be loaded, the check of the library tells.
    Nothing,
}

/// Longest wait of a caller, including the wait for other callers. Less than the timeout of the
/// API.
const MOST: Duration = Duration::from_secs(12);

/// The last result, and the start of its check.
type Last = Option<(Instant, DoctorCheck)>;

/// Runs one check at a time. Callers that come during a check share the next one.
#[derive(Debug, Default)]
pub(super) struct Confinement(Arc<Mutex<Last>>);

impl Confinement {
    pub(super) async fn check(&self, prober: &Prober, on: Looked) -> DoctorCheck {
        let looked = tokio::time::timeout(MOST, self.look(prober.clone(), on)).await;
        looked.unwrap_or_else(|_| unseen(&format!("no answer within {} s", MOST.as_secs())))
    }

    async fn look(&self, prober: Prober, on: Looked) -> DoctorCheck {
        let asked = Instant::now();
        // The checking thread holds the lock, even if the caller has gone away.
        let mut last = self.0.clone().lock_owned().await;
        if let Some((begun, check)) = &*last
            && *begun >= asked
        {
            return check.clone();
        }
        let look = move || {
            let begun = Instant::now();
            let seen = prober.confinement(on == Looked::SoftDevices);
            let check = seen.map_or_else(|why| unseen(&why), |seen| describe(seen, on));
            *last = Some((begun, check.clone()));
            check
        };
        let looked = tokio::task::spawn_blocking(look).await;
        looked.unwrap_or_else(|e| unseen(&e.to_string()))
    }
}

fn unseen(why: &str) -> DoctorCheck {
    DoctorCheck::warning(
        NAME,
        format!("It cannot be seen whether workers are confined: {why}."),
        "Mend what the message names (worker.probe_binary in vgpud.toml), and ask again.",
    )
}

fn describe(mut seen: Vec<Attempt>, on: Looked) -> DoctorCheck {
    let counts = |attempt: &Attempt| match on {
        _ if attempt.name != DRIVER || attempt.verdict == Verdict::Holds => true,
        Looked::SoftDevices | Looked::Gpus => true,
        Looked::GpusWithoutDriver => false,
        Looked::Nothing => !attempt.reason.starts_with(NOT_LOADED),
    };
    let tried = seen.len();
    seen.retain(counts);
    let driver_counts = seen.len() == tried;
    let of = |verdict| {
        seen.iter()
            .filter(move |attempt| attempt.verdict == verdict)
    };
    let holding: Vec<&str> = of(Verdict::Holds).map(|a| a.name.as_str()).collect();
    let with_reasons = |verdict| -> String {
        let lines: Vec<String> = of(verdict)
            .map(|attempt| format!("{} ({})", attempt.name, attempt.reason))
            .collect();
        lines.join("; ")
    };
    let (open, cannot) = (
        with_reasons(Verdict::DoesNotHold),
        with_reasons(Verdict::CannotHere),
    );
    let mut message = String::new();
    if !open.is_empty() {
        message += &format!("Of a worker's confinement does not hold: {open}. ");
    }
    if !cannot.is_empty() {
        message += &format!("This host cannot confine workers in: {cannot}. ");
    }
    message += &format!(
        "A program in a worker's place finds as it must be: {}.",
        holding.join(", ")
    );
    if !driver_counts {
        message.insert_str(
            0,
            "The start of the driver does not count: no GPU of this host has a driver. ",
        );
    }
    let mut cures: Vec<&str> = seen.iter().map(|attempt| attempt.cure.as_str()).collect();
    cures.sort_unstable();
    cures.dedup();
    let cures = cures.join(" ").trim().to_owned();
    match (open.is_empty(), cannot.is_empty()) {
        (false, _) => DoctorCheck::error(NAME, message, cures),
        (true, false) => DoctorCheck::warning(NAME, message, cures),
        (true, true) => DoctorCheck::ok(NAME, message),
    }
}

#[cfg(test)]
mod tests {
    use vgpu_api::CheckStatus;

    use super::*;

    fn attempt(name: &str, verdict: Verdict, cure: &str) -> Attempt {
        Attempt {
            name: name.into(),
            verdict,
            reason: format!("why {name}"),
            cure: cure.into(),
        }
    }

    #[test]
    fn a_failed_confinement_differs_from_an_unavailable_one() {
        let mut seen = vec![attempt("mount", Verdict::Holds, "")];
        let good = describe(seen.clone(), Looked::Gpus);
        assert_eq!((good.status, good.hint), (CheckStatus::Ok, None));
        seen.push(attempt("files-in-tmp", Verdict::CannotHere, "Boot."));
        let check = describe(seen.clone(), Looked::Gpus);
        assert_eq!(check.status, CheckStatus::Warning);
        assert_eq!(check.hint.as_deref(), Some("Boot."));
        seen.push(attempt("bpf", Verdict::DoesNotHold, "Set."));
        let check = describe(seen, Looked::Gpus);
        assert_eq!(check.status, CheckStatus::Error);
        assert_eq!(check.hint.as_deref(), Some("Boot. Set."));
        assert!(check.message.contains("does not hold: bpf (why bpf)."));
        assert!(check.message.contains("in: files-in-tmp (why"));
        assert!(check.message.ends_with("as it must be: mount."));
    }

    #[test]
    fn a_driver_that_is_not_there_is_no_fault_of_the_confinement() {
        let seen = vec![
            attempt("mount", Verdict::Holds, ""),
            attempt(DRIVER, Verdict::DoesNotHold, "See the kernel's log."),
        ];
        let driven = describe(seen.clone(), Looked::Gpus);
        assert_eq!(driven.status, CheckStatus::Error, "{driven:?}");
        let check = describe(seen.clone(), Looked::Nothing);
        assert_eq!(
            check.status,
            CheckStatus::Error,
            "it may be the fault: {check:?}"
        );
        let check = describe(seen, Looked::GpusWithoutDriver);
        assert_eq!((check.status, &check.hint), (CheckStatus::Ok, &None));
        assert!(check.message.contains("does not count"), "{check:?}");
    }
}
