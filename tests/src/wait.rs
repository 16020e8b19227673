//! Waiting for conditions, never for times.

use std::time::{Duration, Instant};

/// A deadline for things that take well under a second on an idle machine. Generous, because CI
/// runs on two loaded cores.
pub const SOON: Duration = Duration::from_secs(30);

/// Below the ten seconds after which most would end anyhow. What takes milliseconds on an idle machine may take
/// seconds on a busy one.
pub const PROMPTLY: Duration = Duration::from_secs(9);

/// Polls until `condition` gives a value.
///
/// # Errors
/// After `deadline`, naming `what`.
pub fn until<T>(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        anyhow::ensure!(
            start.elapsed() < deadline,
            "{what}: not within {deadline:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
