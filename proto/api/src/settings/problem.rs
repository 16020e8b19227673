//! Reasons for which values of settings are refused.

use super::{Limit, Setting, UNLIMITED, Value};

/// A setting and its value.
pub type Row = (&'static Setting, Value);

/// The reason for which values of settings are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The value is out of the range of the setting.
    Range(Row),
    /// The first value is longer than the second, which must be at least as long.
    Order(Row, Row),
    /// A burst without a rate: the setting of the burst, then the setting of the rate.
    NoRate(Row, Row),
    /// Weights, with a sentence that names the class.
    Weights(String),
}

impl Problem {
    /// Returns a sentence for the sender of a request, with options of `vgpu-admin` and fields of
    /// the API. `given`: whether the request sets the value; other values are in force already.
    #[must_use]
    pub fn in_request(&self, given: impl Fn(&Row) -> bool) -> String {
        let text = |row: &Row| {
            let source = if given(row) { "" } else { ", in force now" };
            format!("--{} ({}{source})", row.0.option, row.0.text(&row.1))
        };
        match self {
            Problem::Range((setting, value)) => {
                let range = setting.range("and", |n| setting.unit.text(n));
                let range = range.trim_end_matches("; ");
                let refused = match value {
                    Value::Limit(Limit::Unlimited) => "not unlimited; leave it out".into(),
                    value => format!("not {}", setting.text(value)),
                };
                format!(
                    "--{} must be between {range}, {refused} ({} in JSON).",
                    setting.option, setting.name
                )
            }
            Problem::Order(first, second) => format!(
                "{} must not be longer than {} ({} and {} in JSON).",
                text(first),
                text(second),
                first.0.name,
                second.0.name
            ),
            Problem::NoRate((burst, _), (rate, _)) => format!(
                "--{burst} means nothing while --{rate} is {UNLIMITED}: give --{rate} too, or leave \
                 --{burst} out ({} and {} in JSON).",
                burst.name,
                rate.name,
                burst = burst.option,
                rate = rate.option
            ),
            Problem::Weights(sentence) => sentence.clone(),
        }
    }

    /// Returns the problem without a full stop, with the keys of a table of `vgpud.toml`. `given`:
    /// whether the table sets the value; other values are defaults.
    #[must_use]
    pub fn in_file(&self, table: &str, given: impl Fn(&Row) -> bool) -> String {
        let text = |row: &Row| {
            let source = if given(row) { "" } else { " (the default)" };
            format!("{} = {}{source}", row.0.name, toml_value(row))
        };
        match self {
            Problem::Range(row @ (setting, value)) => {
                let range = setting.range("to", |n| n.to_string());
                let range = range.trim_end_matches("; ");
                let name = setting.name;
                match value {
                    Value::Limit(Limit::Unlimited) => {
                        format!("{table}.{name} must be {range}, not \"{UNLIMITED}\": leave it out")
                    }
                    _ => format!("{table}.{} is out of its range {range}", text(row)),
                }
            }
            Problem::Order(first, second) => format!(
                "{table}.{} must not be longer than {}",
                text(first),
                text(second)
            ),
            Problem::NoRate(burst, rate) => format!(
                "{table}.{} means nothing while {}: set {} too, or leave {} out",
                text(burst),
                text(rate),
                rate.0.name,
                burst.0.name
            ),
            Problem::Weights(sentence) => {
                format!("{table}.weights: {}", sentence.trim_end_matches('.'))
            }
        }
    }
}

/// Returns the value in the syntax of TOML.
fn toml_value((setting, value): &Row) -> String {
    match value {
        Value::Limit(Limit::Unlimited) | Value::Word(_) => format!("{:?}", setting.plain(value)),
        _ => setting.plain(value),
    }
}
