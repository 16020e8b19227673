//! The proofs: each is a family of runs with random settings, drawn from seeds, and bounds that
//! must hold in every run.

mod adversaries;
mod aging;
mod capped_gangs;
mod caps;
mod changes;
mod crowd;
mod gang;
mod latency;
mod mixtures;
mod overrun;
mod poison;
mod reclaim;
mod shares;
mod spin;
mod throughput;
mod topology;

use vgpu_sched::SECONDS;

use crate::found::Found;
use crate::setup::Setup;
use crate::world::World;

/// One run of a proof.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Seed of all random draws.
    pub seed: u64,
    /// Length in simulated seconds.
    pub seconds: u64,
    /// Print every event and decision.
    pub verbose: bool,
}

/// A proof.
#[derive(Debug, Clone, Copy)]
pub struct Proof {
    /// Name on the command line.
    pub name: &'static str,
    /// The statement that the proof shows.
    pub what: &'static str,
    /// Weight of this proof in the number of runs.
    pub part: u64,
    /// The function that makes one run.
    pub run: fn(Plan) -> Found,
}

/// All proofs.
pub static ALL: &[Proof] = &[
    shares::PROOF,
    mixtures::PROOF,
    adversaries::PROOF,
    overrun::PROOF,
    throughput::PROOF,
    reclaim::PROOF,
    latency::PROOF,
    aging::PROOF,
    caps::PROOF,
    changes::PROOF,
    topology::PROOF,
    spin::PROOF,
    gang::PROOF,
    capped_gangs::PROOF,
    poison::PROOF,
    crowd::PROOF,
];

impl Plan {
    /// Simulates a setup until the end of the plan.
    #[must_use]
    pub fn simulate(&self, setup: &Setup) -> World {
        let mut world = self.begin(setup);
        world.run_until(self.end_ns());
        world
    }

    /// A world for the setup, before its first event.
    #[must_use]
    pub fn begin(&self, setup: &Setup) -> World {
        let mut world = World::new(setup);
        if self.verbose {
            world.set_verbose();
        }
        world
    }

    /// End of the plan in simulated ns.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.seconds * SECONDS
    }
}
