//! Waits for conditions, never for fixed times.

use std::time::{Duration, Instant};

pub use vgpu_wire::SOON;

/// Shorter than the 10 s after which most conditions hold anyway. An action of milliseconds on an
/// idle machine may take seconds on a busy one.
pub const PROMPTLY: Duration = Duration::from_secs(9);

/// Polls until `condition` returns a value.
///
/// # Errors
/// After `deadline`, with `what` in the message.
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
