//! `vgpu-sim`: runs the proofs, prints a table and writes a report.

fn main() {}
