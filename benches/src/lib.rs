//! `make bench`: measured figures beside their baselines.
//!
//! These machines are noisy, so every figure stands beside one measured in the same run: passes of
//! the two alternate, and the ratio is the median over the passes' ratios.

pub mod baseline;
pub mod choose;
pub mod cuda;
pub mod measure;
pub mod mediation;
pub mod report;
pub mod soft;
