//! Executes runs on all CPUs. The results are combined in the order of the runs, so they do not
//! depend on the number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::found::Found;
use crate::proofs::{ALL, Plan, Proof};
use crate::report::Report;

/// A planned run.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The proof.
    pub proof: &'static Proof,
    /// Seed and length.
    pub plan: Plan,
}

impl Job {
    /// Command-line arguments that repeat this run.
    #[must_use]
    pub fn place(&self) -> String {
        format!(
            "--scenario {} --seed {} --seconds {}",
            self.proof.name, self.plan.seed, self.plan.seconds
        )
    }
}

/// Plans `runs` runs of `seconds` simulated seconds, divided among all proofs by weight. A proof
/// that gets no run gets two runs of `brief` seconds.
#[must_use]
pub fn plan(runs: u64, seconds: u64, brief: u64) -> Vec<Job> {
    let parts: u64 = ALL.iter().map(|proof| proof.part).sum();
    let mut jobs = Vec::new();
    let mut before = 0;
    let mut made = 0;
    for proof in ALL {
        before += proof.part;
        let upto = runs * before / parts;
        let count = upto - made;
        made = upto;
        let lengths = (0..count).map(|_| seconds);
        let extra = if count == 0 { 2 } else { 0 };
        for (seed, seconds) in lengths.chain((0..extra).map(|_| brief)).enumerate() {
            jobs.push(Job {
                proof,
                plan: Plan {
                    seed: seed as u64,
                    seconds,
                    verbose: false,
                },
            });
        }
    }
    jobs
}

/// Executes the runs on `threads` threads and adds their results to the report.
pub fn run(jobs: &[Job], threads: usize, report: &mut Report) {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel::<(usize, Found)>();
    let mut results: Vec<Option<Found>> = (0..jobs.len()).map(|_| None).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else { return };
                    let found = (job.proof.run)(job.plan);
                    if sender.send((index, found)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (index, found) in receiver {
            results[index] = Some(found);
        }
    });
    for (job, found) in jobs.iter().zip(results) {
        if let Some(found) = found {
            report.add(&job.place(), found);
        }
    }
}
