//! File systems that do not answer: one that is dead under one VM's socket must hold up neither the other sockets nor
//! the rest of vgpud.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::shut::Shut;

/// How long a file system may take to answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// And how long while another one does not.
const SHORT_DEADLINE: Duration = Duration::from_millis(200);

/// Has file work done in threads of its own, and does not wait for ever.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience {
    /// Directories in which a thread has been at work for longer than it may.
    stuck: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Patience {
    /// What the work in a directory gives.
    ///
    /// # Errors
    /// The work is not done in time, or earlier work there is not done yet. The work goes on; what it gives is dropped.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        dir: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Shut> {
        let deadline = {
            let stuck = self.stuck();
            match (stuck.contains(dir), stuck.is_empty()) {
                (true, _) => return Err(Shut::silent()),
                (false, true) => DEADLINE,
                (false, false) => SHORT_DEADLINE,
            }
        };
        let (done, answer) = channel();
        let (freed, place) = (self.clone(), dir.to_owned());
        let thread = std::thread::Builder::new().name("vm-sockets".into());
        thread.spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // Under the lock: whoever gives up looks once more before the directory counts as stuck.
            let mut stuck = freed.stuck();
            let _ = done.send(result.ok());
            stuck.remove(&place);
        })?;
        let answer = match answer.recv_timeout(deadline) {
            Err(RecvTimeoutError::Timeout) => {
                let mut stuck = self.stuck();
                let late = answer.try_recv();
                if late.is_err() {
                    stuck.insert(dir.to_owned());
                }
                late.ok()
            }
            other => other.ok(),
        };
        answer.flatten().ok_or_else(Shut::silent)
    }

    fn stuck(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_file_system_that_does_not_answer_holds_nothing_else_up() {
        let patience = Patience::default();
        let (dead, alive) = (Path::new("/dead"), Path::new("/alive"));
        let (release, hangs) = channel::<()>();
        let hang = move || {
            let _ = hangs.recv();
        };
        let silent = Shut::silent();
        assert_eq!(patience.ask(dead, hang), Err(silent.clone()));
        // Nobody waits for it a second time, and no second thread comes to hang there.
        let refused = patience.ask(dead, || ());
        assert_eq!(refused, Err(silent));
        let until = Instant::now() + Duration::from_secs(60);
        while patience.ask(alive, || 7).ok() != Some(7) {
            assert!(Instant::now() < until, "the others go on");
        }
        drop(release);
        while patience.ask(dead, || 8).ok() != Some(8) {
            assert!(Instant::now() < until, "it answers again");
            std::thread::yield_now();
        }
    }
}
