//! Ends the workers that an earlier vgpud left, and verifies their end before their GPUs are used.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::mediator::{Command, MediatorHandle};
use crate::worker::records::{Orphan, WorkerRecords};

/// Time that orphans get to end by themselves: they do so when vgpud's end of their control socket
/// closes.
const GRACE: Duration = Duration::from_millis(500);

/// Time that vgpud waits after the kill before it serves without the GPUs of the orphans.
const KILL: Duration = Duration::from_secs(2);

/// Intervals of the checks: at the start of vgpud, and in [`Orphans::watch`].
const CHECK: Duration = Duration::from_millis(10);
const CHECK_LATER: Duration = Duration::from_secs(1);

/// Workers of an earlier vgpud that have not ended yet.
#[derive(Debug)]
pub(super) struct Orphans {
    records: WorkerRecords,
    left: Vec<Orphan>,
}

impl Orphans {
    /// Ends the workers in `records`, and waits at most [`GRACE`] and [`KILL`] for their end.
    pub(super) async fn end(records: &WorkerRecords) -> anyhow::Result<Orphans> {
        let left = records
            .orphans()
            .context("cannot read the records of workers")?;
        let mut all = Orphans {
            records: records.clone(),
            left,
        };
        if all.left.is_empty() {
            return Ok(all);
        }
        tracing::warn!("{} workers of an earlier vgpud still run", all.left.len());
        all.wait(GRACE).await;
        for worker in &all.left {
            worker.kill();
        }
        all.wait(KILL).await;
        for worker in &all.left {
            tracing::error!(
                pid = worker.pid,
                session = worker.session,
                gpus = worker.gpu_uuids.join(","),
                "a worker of an earlier vgpud does not end although it was killed; its GPU is not used"
            );
        }
        Ok(all)
    }

    async fn wait(&mut self, most: Duration) {
        let until = Instant::now() + most;
        while !self.check() && Instant::now() < until {
            tokio::time::sleep(CHECK).await;
        }
    }

    /// Removes the records of workers that have ended. Returns whether none is left.
    fn check(&mut self) -> bool {
        let records = &self.records;
        self.left.retain(|worker| {
            let gone = worker.is_gone();
            if gone {
                records.remove_orphan(worker);
            }
            !gone
        });
        self.left.is_empty()
    }

    /// The GPUs of the remaining workers.
    pub(super) fn gpus(&self) -> BTreeSet<String> {
        self.left
            .iter()
            .flat_map(|worker| worker.gpu_uuids.iter().cloned())
            .collect()
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.left.len()).unwrap_or(u32::MAX)
    }

    /// Keeps checking in a task, and reports to the mediator which GPUs have no orphan any more.
    pub(super) fn watch(mut self, mediator: MediatorHandle) {
        if self.left.is_empty() {
            return;
        }
        tokio::spawn(async move {
            while !self.left.is_empty() {
                tokio::time::sleep(CHECK_LATER).await;
                let (before, count) = (self.gpus(), self.count());
                self.check();
                if self.count() == count {
                    continue;
                }
                let after = self.gpus();
                let gpu_uuids = before.difference(&after).cloned().collect();
                if mediator
                    .send(Command::Verified {
                        gpu_uuids,
                        left: self.count(),
                    })
                    .is_err()
                {
                    return;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[tokio::test]
    async fn a_worker_that_does_not_end_by_itself_is_killed_and_its_record_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = WorkerRecords::open(dir.path()).unwrap();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        records
            .enter(child.id(), None, &["GPU-a".to_owned()], 5)
            .unwrap();
        let left = Orphans::end(&records).await.unwrap();
        assert_eq!((left.count(), left.gpus().len()), (0, 0));
        assert!(records.orphans().unwrap().is_empty());
        let _ = child.wait();
    }
}
