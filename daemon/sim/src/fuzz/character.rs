//! Frequencies and lengths of the steps of one run.

use vgpu_sched::{MICROS, MILLIS, SECONDS};

use super::make::{odds, pick};
use crate::rng::Rng;

/// The character of a run: which steps are frequent, and how long waits are.
#[derive(Debug, Clone)]
pub(super) struct Character {
    /// Weights of the kinds of steps in [`World::step`](super::world::World::step).
    pub(super) steps: [u64; 12],
    /// Longest usual wait, in ns.
    pub(super) scale_ns: u64,
    /// Whether the times of settings may have any value.
    pub(super) wild: bool,
    /// Number of events after which a clone of the scheduler handles the same events, for
    /// comparison.
    pub(super) clone_at: u64,
}

impl Character {
    pub(super) fn new(seed: u64) -> Self {
        let mut r = Rng::new(seed);
        let steps = match r.below(4) {
            //      wait timer late early admin start honest lie held forge reap verify
            0 => [4, 6, 1, 1, 1, 2, 40, 0, 0, 1, 4, 2],
            1 => [4, 6, 1, 1, 2, 3, 15, 8, 5, 3, 3, 1],
            2 => [4, 6, 1, 1, 6, 3, 10, 4, 3, 2, 3, 1],
            _ => [4, 6, 1, 1, 3, 3, 2, 12, 6, 3, 1, 1],
        };
        Self {
            steps,
            scale_ns: *pick(
                &mut r,
                &[
                    &(200 * MICROS),
                    &(3 * MILLIS),
                    &(50 * MILLIS),
                    &(5 * SECONDS),
                ],
            )
            .unwrap_or(&MILLIS),
            wild: odds(&mut r, 1, 2),
            clone_at: if odds(&mut r, 1, 4) {
                r.below(500)
            } else {
                u64::MAX
            },
        }
    }
}
