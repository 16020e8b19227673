//! Settings of pools and VMs.
//!
//! [`table`] has one row per setting: name, type, default, unit, range, option of the command line
//! and description. These are made from the rows:
//!
//! - the types of requests and answers, with their descriptions in `docs/openapi.json`;
//! - the checks of values ([`Setting::allows`], [`Problem`]);
//! - options and tables of `vgpu-admin`;
//! - the tables `[defaults.pool]` and `[defaults.vm]` in `docs/configuration.md` and
//!   `systemd/vgpud.toml`.

mod limit;
mod problem;
mod rules;
mod schema;
mod table;
#[cfg(test)]
mod tests;
mod unit;

use std::ops::RangeInclusive;

pub use limit::{Limit, UNLIMITED};
pub use problem::{Problem, Row};
pub use rules::{check_pool_settings, check_vm_limits, in_request, pool_problems, vm_problems};
pub(crate) use table::WEIGHTS;
pub use table::{POOL_SETTINGS, PoolPatch, PoolSettings, VM_LIMITS, VmLimits, VmLimitsPatch};
pub use unit::Unit;

use crate::{PoolPolicy, Weights};

/// A row of the table of settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Name in JSON and in `vgpud.toml`.
    pub name: &'static str,
    /// Option of `vgpu-admin`, without `--`.
    pub option: &'static str,
    /// Unit of the value.
    pub unit: Unit,
    /// Allowed numbers, in the unit.
    pub range: RangeInclusive<u64>,
    /// Whether the setting can be unlimited.
    pub unlimited: bool,
    /// Whether the setting can refer to the default (`null` in JSON).
    pub defaulted: bool,
    /// Example of a value, in the unit, for a setting whose default is not a number.
    pub example: Option<u64>,
    /// The default in words, if the default depends on other settings; otherwise empty.
    pub otherwise: &'static str,
    /// Description, without range and default.
    about: &'static str,
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number, in the unit of the setting.
    Number(u64),
    /// A limit, in the unit of the setting.
    Limit(Limit),
    /// Any other value, as text.
    Word(String),
}

impl Setting {
    /// Description, as sentences without range and default.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.about.trim_start()
    }

    /// Text of a value, as `vgpu-admin` reads the value.
    #[must_use]
    pub fn text(&self, value: &Value) -> String {
        self.say(value, |n| self.unit.text(n))
    }

    /// Text of a value in JSON and files, without quotation marks.
    #[must_use]
    pub fn plain(&self, value: &Value) -> String {
        self.say(value, |n| n.to_string())
    }

    fn say(&self, value: &Value, number: impl Fn(u64) -> String) -> String {
        match value {
            Value::Number(n) | Value::Limit(Limit::Value(n)) => number(*n),
            Value::Limit(Limit::Unlimited) => UNLIMITED.into(),
            Value::Limit(Limit::Default) if self.otherwise.is_empty() => "the default".into(),
            Value::Limit(Limit::Default) => self.otherwise.into(),
            Value::Word(word) => word.clone(),
        }
    }

    /// Range and default for the command line: `100us to 1s; default: 2ms`.
    #[must_use]
    pub fn bounds(&self, default: &Value) -> String {
        let range = self.range("to", |n| self.unit.text(n));
        format!("{range}default: {}", self.text(default))
    }

    /// Range and default in the unit of the name: `100 to 1000000; default: 2000`.
    #[must_use]
    pub fn plain_bounds(&self, default: &Value) -> String {
        let range = self.range("to", |n| n.to_string());
        format!("{range}default: {}", self.plain(default))
    }

    fn range(&self, joint: &str, number: impl Fn(u64) -> String) -> String {
        let [least, most] = [self.range.start(), self.range.end()].map(|n| number(*n));
        match self.unit {
            Unit::Policy | Unit::Weights => String::new(),
            _ if self.unlimited => format!("{least} {joint} {most}, or {UNLIMITED}; "),
            _ => format!("{least} {joint} {most}; "),
        }
    }

    /// Whether a value is allowed.
    #[must_use]
    pub fn allows(&self, value: &Value) -> bool {
        match value {
            Value::Number(n) | Value::Limit(Limit::Value(n)) => self.range.contains(n),
            Value::Limit(Limit::Unlimited) => self.unlimited,
            Value::Limit(Limit::Default) => self.defaulted,
            Value::Word(_) => true,
        }
    }
}

macro_rules! value {
    ($($type:ty: $given:ident => $value:expr;)*) => {$(
        impl From<$type> for Value {
            fn from($given: $type) -> Value {
                $value
            }
        }
    )*};
}

value! {
    u32: n => Value::Number(n.into());
    u64: n => Value::Number(n);
    Limit: limit => Value::Limit(limit);
    PoolPolicy: policy => Value::Word(policy.name().into());
    Option<Weights>: own => Value::Word(own.map_or("the host's".into(), |own| own.to_string()));
}

/// The changes of a request, made from a table of settings.
pub trait Patch: serde::de::DeserializeOwned {
    /// The rows of the table, each with its built-in default.
    fn rows() -> Vec<(&'static Setting, Value)>;
}
