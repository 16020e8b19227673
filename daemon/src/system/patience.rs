//! File operations with a deadline, in threads of their own: a file system that does not answer
//! must delay neither operations elsewhere nor the rest of vgpud.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::resolved;

/// Time that a file system gets for one operation.
const DEADLINE: Duration = Duration::from_secs(2);
/// Time instead of [`DEADLINE`] if the place missed that deadline within [`LATELY`].
const SHORT_DEADLINE: Duration = Duration::from_millis(200);
/// Time after a missed [`DEADLINE`] for which the short deadline applies. A missed short deadline
/// does not extend this time, so a file system that is only slow gets the long deadline again.
const LATELY: Duration = Duration::from_secs(60);
/// Most threads of one call of [`Patience::ask_all`] at a time.
const AT_ONCE: usize = 64;

/// Why a file operation gave no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// The file system does not answer.
    Silent,
    /// vgpud itself failed. The sentence has no full stop.
    Failed(String),
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("its file system does not answer"),
            Self::Failed(what) => f.write_str(what),
        }
    }
}

/// Runs file operations in threads of their own, with a deadline. Each operation belongs to a
/// place: a path that stands for the file systems that are likely to fail together.
#[derive(Debug, Clone, Default)]
pub struct Patience {
    places: Arc<Mutex<Places>>,
}

#[derive(Debug, Default)]
struct Places {
    /// By place: number of threads that missed their deadline and still work.
    stuck: HashMap<PathBuf, usize>,
    /// By place: time of the last missed [`DEADLINE`].
    silent: HashMap<PathBuf, Instant>,
    /// By path: the last result of [`Patience::resolved`].
    led: HashMap<PathBuf, PathBuf>,
}

/// A thread that does the operations of one place, one after another.
struct Line<T> {
    place: PathBuf,
    /// Index, end and result of each finished operation.
    answers: Receiver<Done<T>>,
    left: usize,
    allowed: Duration,
    begun: Instant,
}

type Done<T> = (usize, Instant, Result<T, NoAnswer>);

impl Patience {
    /// The result of one operation at a place.
    ///
    /// # Errors
    /// As [`Patience::ask_all`].
    pub fn ask<T: Send + 'static>(
        &self,
        place: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let mut answers = self.ask_all(vec![(place.to_owned(), work)]);
        answers.pop().unwrap_or(Err(NoAnswer::Silent))
    }

    /// The results of operations, in their order. The operations of one place run one after
    /// another, and different places run in parallel: places that do not answer delay the call by
    /// one deadline per 64 places. The result of an operation that misses its deadline is dropped
    /// in the operation's thread. A result that stands for a change of the file system undoes the
    /// change in its `Drop`.
    ///
    /// # Errors
    /// Per operation: it missed its deadline, an earlier operation at its place still runs, or
    /// vgpud itself failed.
    pub fn ask_all<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
        &self,
        works: Vec<(PathBuf, W)>,
    ) -> Vec<Result<T, NoAnswer>> {
        let mut answers: Vec<_> = works.iter().map(|_| Err(NoAnswer::Silent)).collect();
        let mut by_place: BTreeMap<PathBuf, Vec<(usize, W)>> = BTreeMap::new();
        for (n, (place, work)) in works.into_iter().enumerate() {
            by_place.entry(place).or_default().push((n, work));
        }
        let mut lines = by_place.into_iter().peekable();
        while lines.peek().is_some() {
            let mut begun = Vec::new();
            for (place, works) in lines.by_ref().take(AT_ONCE) {
                let numbers: Vec<usize> = works.iter().map(|(n, _)| *n).collect();
                match self.begin(place, works) {
                    Ok(line) => begun.push(line),
                    Err(why) => numbers
                        .into_iter()
                        .for_each(|n| answers[n] = Err(why.clone())),
                }
            }
            for line in begun {
                self.wait(line, &mut answers);
            }
        }
        answers
    }

    fn begin<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
        &self,
        place: PathBuf,
        works: Vec<(usize, W)>,
    ) -> Result<Line<T>, NoAnswer> {
        let begun = Instant::now();
        let allowed = {
            let places = self.places();
            if places.stuck.contains_key(&place) {
                return Err(NoAnswer::Silent);
            }
            match places.silent.get(&place) {
                Some(since) if begun.duration_since(*since) < LATELY => SHORT_DEADLINE,
                _ => DEADLINE,
            }
        };
        let (done, answers) = channel();
        let left = works.len();
        let (patience, at) = (self.clone(), place.clone());
        let thread = std::thread::Builder::new().name("file-work".into());
        thread
            .spawn(move || patience.work(&at, works, &done))
            .map_err(|error| NoAnswer::Failed(format!("vgpud cannot start a thread: {error}")))?;
        Ok(Line {
            place,
            answers,
            left,
            allowed,
            begun,
        })
    }

    fn work<T, W: FnOnce() -> T>(
        &self,
        place: &Path,
        works: Vec<(usize, W)>,
        done: &Sender<Done<T>>,
    ) {
        for (n, work) in works {
            let result = catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
                NoAnswer::Failed("vgpud failed at it (a panic, which its log shows)".into())
            });
            // Sends while the lock is held: a caller whose deadline has passed checks the channel
            // once more before the caller counts this thread as stuck.
            let places = self.places();
            let sent = done.send((n, Instant::now(), result));
            drop(places);
            if let Err(late) = sent {
                // The drop of the result may call the file system and panic.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(late)));
                let mut places = self.places();
                if let Some(threads) = places.stuck.get_mut(place) {
                    *threads -= 1;
                    if *threads == 0 {
                        places.stuck.remove(place);
                    }
                }
                return;
            }
        }
    }

    fn wait<T>(&self, mut line: Line<T>, answers: &mut [Result<T, NoAnswer>]) {
        let mut since = line.begun;
        while line.left > 0 {
            let until = since + line.allowed;
            let answer = line
                .answers
                .recv_timeout(until.saturating_duration_since(Instant::now()));
            let (n, at, result) = match answer {
                Ok(done) => done,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let mut places = self.places();
                    match line.answers.try_recv() {
                        Ok(done) => done,
                        Err(_) => {
                            places.give_up(&line.place, line.allowed);
                            // Drops the receiver while the lock is held, so that the thread of the
                            // late call sees that the receiver is gone.
                            drop(line.answers);
                            return;
                        }
                    }
                }
            };
            answers[n] = result;
            since = at;
            line.left -= 1;
        }
    }

    /// The paths without symbolic links, as by [`resolved`]. If a file system does not answer: the
    /// last known result. `None`: [`resolved`] failed, or no result is known.
    #[must_use]
    pub fn resolved(&self, paths: &[PathBuf]) -> Vec<Option<PathBuf>> {
        let work = |path: &PathBuf| {
            let asked = path.clone();
            (path.clone(), move || resolved(&asked).ok())
        };
        let answers = self.ask_all(paths.iter().map(work).collect());
        let mut places = self.places();
        let known = paths.iter().zip(answers).map(|(path, answer)| {
            match answer {
                Ok(Some(real)) => places.led.insert(path.clone(), real),
                Ok(None) => places.led.remove(path),
                Err(_) => None,
            };
            places.led.get(path).cloned()
        });
        known.collect()
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn give_up(&mut self, place: &Path, allowed: Duration) {
        *self.stuck.entry(place.to_owned()).or_default() += 1;
        if allowed == DEADLINE {
            self.silent.retain(|_, since| since.elapsed() < LATELY);
            self.silent.insert(place.to_owned(), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// An operation that hangs until the sender is dropped.
    fn hang() -> (Sender<()>, impl FnOnce() + Send + 'static) {
        let (release, hangs) = channel::<()>();
        let work = move || {
            let _ = hangs.recv();
        };
        (release, work)
    }

    #[test]
    fn a_file_system_that_does_not_answer_holds_nothing_else_up() {
        let patience = Patience::default();
        let (dead, alive) = (Path::new("/dead"), Path::new("/alive"));
        let (release, work) = hang();
        assert_eq!(patience.ask(dead, work), Err(NoAnswer::Silent));
        // The second call does not wait, and starts no second thread there.
        assert_eq!(patience.ask(dead, || ()), Err(NoAnswer::Silent));
        let until = Instant::now() + SOON;
        while patience.ask(alive, || 7) != Ok(7) {
            assert!(Instant::now() < until, "the others go on");
        }
        drop(release);
        while patience.ask(dead, || 8) != Ok(8) {
            assert!(Instant::now() < until, "it answers again");
            std::thread::yield_now();
        }
    }

    #[test]
    fn many_that_do_not_answer_cost_one_deadline() {
        let patience = Patience::default();
        let (releases, works): (Vec<_>, Vec<_>) = (0..30)
            .map(|n| {
                let (release, work) = hang();
                (release, (PathBuf::from(format!("/dead/{n}")), work))
            })
            .unzip();
        let begun = Instant::now();
        let answers = patience.ask_all(works);
        assert!(
            answers
                .iter()
                .all(|answer| *answer == Err(NoAnswer::Silent))
        );
        assert!(begun.elapsed() < 10 * DEADLINE, "{:?}", begun.elapsed());
        drop(releases);
    }

    #[test]
    fn a_place_that_does_not_answer_takes_no_time_from_the_others() {
        let patience = Patience::default();
        let (_release, work) = hang();
        let _ = patience.ask(Path::new("/dead"), work);
        let (_release, work) = hang();
        let begun = Instant::now();
        let _ = patience.ask(Path::new("/slow"), work);
        assert!(begun.elapsed() >= DEADLINE, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_place_is_stuck_until_its_last_thread_is_done() {
        let patience = Patience::default();
        let place = Path::new("/dead");
        // Both threads start before either misses its deadline.
        let asks: Vec<_> = (0..2)
            .map(|_| {
                let (release, work) = hang();
                let line = patience.begin(place.to_owned(), vec![(0, work)]).unwrap();
                (release, line)
            })
            .collect();
        let mut releases = Vec::new();
        for (release, line) in asks {
            patience.wait(line, &mut [Err(NoAnswer::Silent)]);
            releases.push(release);
        }
        let stuck = || patience.places().stuck.get(place).copied();
        assert_eq!(stuck(), Some(2));
        drop(releases.pop());
        let until = Instant::now() + SOON;
        while stuck() == Some(2) {
            assert!(Instant::now() < until);
        }
        assert_eq!(stuck(), Some(1));
        assert_eq!(patience.ask(place, || ()), Err(NoAnswer::Silent));
        drop(releases);
        while stuck().is_some() {
            assert!(Instant::now() < until);
        }
    }

    #[test]
    fn what_comes_too_late_is_undone_before_the_place_is_asked_again() {
        struct Undone(Arc<Mutex<bool>>);
        impl Drop for Undone {
            fn drop(&mut self) {
                *self.0.lock().unwrap() = true;
            }
        }
        let (patience, place) = (Patience::default(), Path::new("/late"));
        let (release, hangs) = hang();
        let undone = Arc::new(Mutex::new(false));
        let late = Undone(undone.clone());
        let work = move || {
            hangs();
            late
        };
        assert!(patience.ask(place, work).is_err());
        assert!(!*undone.lock().unwrap());
        drop(release);
        let until = Instant::now() + SOON;
        while patience.ask(place, || ()).is_err() {
            assert!(Instant::now() < until);
        }
        assert!(*undone.lock().unwrap());
    }

    #[test]
    fn a_panic_is_vgpuds_own_failure() {
        let patience = Patience::default();
        let failed = patience.ask(Path::new("/x"), || -> () { panic!("as the test says") });
        let Err(NoAnswer::Failed(what)) = failed else {
            panic!("{failed:?}");
        };
        assert!(what.contains("vgpud failed"), "{what}");
        assert_eq!(patience.ask(Path::new("/x"), || 1), Ok(1));
    }

    #[test]
    fn where_a_path_led_is_remembered_while_its_file_system_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        std::os::unix::fs::symlink("real", base.join("link")).unwrap();
        let (patience, asked) = (Patience::default(), [base.join("link")]);
        assert_eq!(patience.resolved(&asked), [Some(base.join("real"))]);
        let (_release, work) = hang();
        let _ = patience.ask(&asked[0], work);
        assert_eq!(patience.resolved(&asked), [Some(base.join("real"))]);
        assert_eq!(
            Patience::default()
                .resolved(&[base.join("real/none")])
                .len(),
            1
        );
    }
}
