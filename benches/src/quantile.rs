//! Quantiles of samples.

/// Quantile `q` (0 to 1) of `samples`.
pub fn quantile(samples: &mut [f64], q: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = ((samples.len() as f64 * q) as usize).min(samples.len().saturating_sub(1));
    samples.get(index).copied().unwrap_or(f64::NAN)
}
