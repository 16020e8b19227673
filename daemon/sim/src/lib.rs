//! A deterministic discrete-event simulator of GPUs, workers and guests around the production scheduler
//! ([`vgpu_sched`]), and the proofs that it runs: shares, bounds, accounts, containment.
//! `make sim` runs all of them.
#![forbid(unsafe_code)]
