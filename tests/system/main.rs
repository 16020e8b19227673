//! Whole-system tests: real vgpud, real workers, real guest programs over real sockets, on strict
//! soft-gpu. One binary, a module a subject.

mod accounts;
mod admin;
mod bystanders;
mod calls;
mod caps;
mod changes;
mod confinement;
mod containment;
mod decisions;
mod disks;
mod drivers;
mod failures;
mod forms;
mod gangs;
mod graphs;
mod guests;
mod hostile;
mod images;
mod in_force;
mod limits;
mod looks;
mod overruns;
mod owners;
mod promises;
mod quarantines;
mod reach;
mod rules;
mod shares;
mod starved;
mod steps;
mod surface;
mod truth;
mod usage;
mod waiting;
mod watchdog;
