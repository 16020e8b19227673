//! A limit: a value, no limit, or the default.

use serde::{Deserialize, Serialize};

/// The word for "no limit" in JSON, in files, on the command line and in tables.
pub const UNLIMITED: &str = "unlimited";

/// A limit. As JSON: a number from 1, `"unlimited"`, or `null` for the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Option<Written>", into = "Option<Written>")]
pub enum Limit {
    /// The default holds: of the configuration, of the pool, or of the table of settings.
    #[default]
    Default,
    /// No limit.
    Unlimited,
    /// This limit, in the unit of the setting; at least 1.
    Value(u64),
}

impl Limit {
    /// The value; `None` without a limit.
    #[must_use]
    pub const fn value(self) -> Option<u64> {
        match self {
            Limit::Value(n) => Some(n),
            Limit::Default | Limit::Unlimited => None,
        }
    }

    /// This limit, or `other` in place of the default.
    #[must_use]
    pub fn or(self, other: Limit) -> Limit {
        match self {
            Limit::Default => other,
            limit => limit,
        }
    }
}

/// A limit in JSON and in files, except the default.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a limit is a whole number from 1 or \"unlimited\""
)]
enum Written {
    Number(u64),
    Word(String),
}

impl TryFrom<Option<Written>> for Limit {
    type Error = String;

    fn try_from(written: Option<Written>) -> Result<Limit, String> {
        match written {
            None => Ok(Limit::Default),
            Some(Written::Number(0)) => Err(format!(
                "a limit is a whole number from 1 or {UNLIMITED:?}, not 0"
            )),
            Some(Written::Number(n)) => Ok(Limit::Value(n)),
            Some(Written::Word(word)) if word == UNLIMITED => Ok(Limit::Unlimited),
            Some(Written::Word(word)) => Err(format!(
                "a limit is a whole number from 1 or {UNLIMITED:?}, not {word:?}"
            )),
        }
    }
}

impl From<Limit> for Option<Written> {
    fn from(limit: Limit) -> Option<Written> {
        match limit {
            Limit::Default => None,
            Limit::Unlimited => Some(Written::Word(UNLIMITED.into())),
            Limit::Value(n) => Some(Written::Number(n)),
        }
    }
}
