//! `make bench`: measures figures, each beside a baseline.
//!
//! The machines are noisy, so every figure has a baseline that was measured in the same run. Passes
//! of figure and baseline alternate, and the ratio is the median of the passes' ratios.

pub mod baseline;
pub mod choose;
pub mod cuda;
pub mod measure;
pub mod mediation;
pub mod pytorch;
pub mod quantile;
pub mod report;
pub mod soft;
