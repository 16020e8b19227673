//! Workers that an earlier vgpud left behind: ended, and verified gone, before their GPUs are used.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::mediator::{Command, MediatorHandle};
use crate::worker::leftover::{LeftOver, WorkerBook};

/// They end by themselves when vgpud's end of their control socket closes; this long they may.
const GRACE: Duration = Duration::from_millis(500);

/// After the kill, wait this long before serving without their GPUs.
const KILL: Duration = Duration::from_secs(2);

const LOOK: Duration = Duration::from_millis(10);
const LOOK_LATER: Duration = Duration::from_secs(1);

/// Those that have not ended yet.
#[derive(Debug)]
pub(super) struct LeftOvers {
    book: WorkerBook,
    left: Vec<LeftOver>,
}

impl LeftOvers {
    /// Ends what is left over, and waits a while for it.
    pub(super) async fn end(book: &WorkerBook) -> anyhow::Result<LeftOvers> {
        let left = book
            .left_over()
            .context("cannot read the book of workers")?;
        let mut all = LeftOvers {
            book: book.clone(),
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
        while !self.look() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Strikes out those that are gone. True: none is left.
    fn look(&mut self) -> bool {
        let book = &self.book;
        self.left.retain(|worker| {
            let gone = worker.is_gone();
            if gone {
                book.strike_out_left(worker);
            }
            !gone
        });
        self.left.is_empty()
    }

    /// The GPUs that they were started for.
    pub(super) fn gpus(&self) -> BTreeSet<String> {
        self.left
            .iter()
            .flat_map(|worker| worker.gpu_uuids.iter().cloned())
            .collect()
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.left.len()).unwrap_or(u32::MAX)
    }

    /// Goes on looking, and tells the mediator when a GPU is free of them.
    pub(super) fn watch(mut self, mediator: MediatorHandle) {
        if self.left.is_empty() {
            return;
        }
        tokio::spawn(async move {
            while !self.left.is_empty() {
                tokio::time::sleep(LOOK_LATER).await;
                let (before, count) = (self.gpus(), self.count());
                self.look();
                if self.count() == count {
                    continue;
                }
                let after = self.gpus();
                let gpu_uuids = before.difference(&after).cloned().collect();
                if mediator
                    .tell(Command::Verified {
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
    async fn a_worker_that_does_not_end_by_itself_is_killed_and_struck_out() {
        let dir = tempfile::tempdir().unwrap();
        let book = WorkerBook::open(dir.path()).unwrap();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        book.enter(child.id(), None, &["GPU-a".to_owned()], 5)
            .unwrap();
        let left = LeftOvers::end(&book).await.unwrap();
        assert_eq!((left.count(), left.gpus().len()), (0, 0));
        assert!(book.left_over().unwrap().is_empty());
        let _ = child.wait();
    }
}
