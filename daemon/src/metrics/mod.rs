//! Prometheus metrics: `vgpu_*`, in base units, collected at each scrape from the same data as the
//! status screen. Labels are names and numbers from administrators, never text from a guest.

mod families;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

pub(crate) use families::Facts;

pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics as OpenMetrics text.
///
/// # Errors
/// If the text cannot be written.
pub(crate) fn text(facts: Facts) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(facts));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}
