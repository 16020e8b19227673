//! Unfinished work of this process on a device, and the submission time of the oldest of it.
//!
//! A process adds device time to its account when its threads run. On a busy host, this may be long
//! after the time was used, and stopped threads add nothing. A reader of the account therefore
//! needs a bound for the missing time: the device time since the submission of the oldest
//! unfinished work.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::gpu::Gpu;
use super::share::Shared;
use super::sync::{lock, now_ns};

/// The submission times (CLOCK_MONOTONIC ns) of this process's unfinished work on one device.
#[derive(Debug, Default)]
pub struct Open(Mutex<Works>);

#[derive(Debug, Default)]
struct Works {
    next: u64,
    since: BTreeMap<u64, u64>,
}

impl Open {
    fn begin(&self, shared: &Shared) -> u64 {
        let mut works = lock(&self.0);
        let number = works.next;
        works.next += 1;
        // The time is read under the lock, so that the lowest number belongs to the oldest work.
        let now = now_ns();
        works.since.insert(number, now);
        if works.since.len() == 1 {
            shared.mine().open_ns.store(now, Ordering::SeqCst);
        }
        number
    }

    fn end(&self, number: u64, shared: &Shared) {
        let mut works = lock(&self.0);
        let was_oldest = works.since.keys().next() == Some(&number);
        works.since.remove(&number);
        if was_oldest {
            let oldest = works.since.values().next().copied().unwrap_or(0);
            shared.mine().open_ns.store(oldest, Ordering::SeqCst);
        }
    }
}

/// Work that counts as unfinished from just before its submission until its device time is on the
/// account.
pub struct Unfinished {
    gpu: Arc<Gpu>,
    number: u64,
}

impl Unfinished {
    /// Starts the submission of work on this device. Times of the work must be taken after this
    /// call, so that none is earlier than the submission time that readers of the account see.
    pub fn on(gpu: &Arc<Gpu>) -> Unfinished {
        Unfinished {
            gpu: Arc::clone(gpu),
            number: gpu.open.begin(&gpu.shared),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.gpu.open.end(self.number, &self.gpu.shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unfinished_work_is_published() {
        let shared = Shared::private(1).expect("a device");
        let open = Open::default();
        let told = || shared.mine().open_ns.load(Ordering::SeqCst);
        assert_eq!(told(), 0);
        let before = now_ns();
        let [a, b, c] = [(); 3].map(|()| open.begin(&shared));
        let first = told();
        assert!(first >= before);
        open.end(b, &shared);
        assert_eq!(told(), first, "older work is unfinished");
        open.end(a, &shared);
        let third = told();
        assert!(third >= first && third != 0);
        open.end(c, &shared);
        assert_eq!(told(), 0);
    }
}
