//! Options of the settings of pools and VMs, made from their table ([`vgpu_api::Setting`]).

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use serde::Serialize;
use serde_json::{Map, Value as Json};
use vgpu_api::{
    FACTOR_PERCENT, Limit, Patch, PoolPolicy, Priority, Setting, Severity, UNLIMITED, Unit, Value,
    Weights,
};

/// The changes that options ask for; absent options change nothing.
#[derive(Debug, Clone)]
pub(crate) struct Changes<P> {
    /// The new values.
    pub(crate) patch: P,
    /// Settings of a pool that return to their defaults, which only vgpud knows.
    pub(crate) defaults: Vec<&'static str>,
}

impl<P: Serialize> Changes<P> {
    /// The changes as the API takes them.
    pub(crate) fn json(&self) -> Result<Json, String> {
        let mut json = serde_json::to_value(&self.patch).map_err(|e| e.to_string())?;
        for name in &self.defaults {
            json[name] = Json::Null;
        }
        Ok(json)
    }
}

/// The word for the default of vgpud's configuration.
const DEFAULT: &str = "default";

/// The rows that have an option. Weights have a command of their own.
pub(crate) fn rows<P: Patch>() -> impl Iterator<Item = (&'static Setting, Value)> {
    let rows = P::rows().into_iter();
    rows.filter(|(setting, _)| setting.unit != Unit::Weights)
}

/// Returns the option that is named as in the API, and takes a number in the unit of that name.
pub(crate) fn plain_option(setting: &Setting) -> String {
    setting.name.replace('_', "-")
}

impl<P: Patch> Args for Changes<P> {
    fn augment_args(mut command: Command) -> Command {
        for (setting, default) in rows::<P>() {
            let plain = plain_option(setting);
            let option = Arg::new(setting.name)
                .long(setting.option)
                .value_name(setting.unit.placeholder())
                .value_parser(parser(setting, plain == setting.option))
                .help(format!(
                    "{} [{}]",
                    setting.about(),
                    setting.bounds(&default)
                ));
            if plain != setting.option {
                let hidden = Arg::new(plain.clone())
                    .long(plain.clone())
                    .value_parser(parser(setting, true))
                    .conflicts_with(setting.name)
                    .hide(true);
                command = command.arg(hidden);
            }
            command = command.arg(option);
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<P: Patch> FromArgMatches for Changes<P> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let (mut fields, mut defaults) = (Map::new(), Vec::new());
        for (setting, _) in rows::<P>() {
            let plain = || matches.try_get_one(&plain_option(setting)).ok().flatten();
            let given = matches.get_one::<Json>(setting.name).or_else(plain);
            match given {
                Some(Json::Null) if !setting.defaulted => defaults.push(setting.name),
                Some(value) => drop(fields.insert(setting.name.to_owned(), value.clone())),
                None => {}
            }
        }
        let patch = serde_json::from_value(Json::Object(fields));
        patch
            .map(|patch| Changes { patch, defaults })
            .map_err(|e| Error::raw(ErrorKind::ValueValidation, format!("{e}\n")))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        Self::from_arg_matches(matches).map(|changes| *self = changes)
    }
}

fn parser(setting: &'static Setting, plain: bool) -> ValueParser {
    match setting.unit {
        Unit::Policy => {
            let words = PoolPolicy::ALL.iter();
            let words = words.map(|word| PossibleValue::new(word.name()).help(word.about()));
            let default = PossibleValue::new(DEFAULT).help("The default of vgpud's configuration.");
            let words = PossibleValuesParser::new(words.chain([default]));
            let value = |word: String| match word.as_str() {
                DEFAULT => Json::Null,
                _ => Json::String(word),
            };
            words.map(value).into()
        }
        _ => ValueParser::new(move |text: &str| parse(setting, plain, text)),
    }
}

/// Returns the value of a setting for the API. `plain`: a number needs no unit.
fn parse(setting: &Setting, plain: bool, text: &str) -> Result<Json, String> {
    match text {
        // `none` is the word of earlier versions.
        UNLIMITED | "none" if setting.unlimited => return Ok(UNLIMITED.into()),
        DEFAULT => return Ok(Json::Null),
        _ => {}
    }
    let words = match setting.unlimited {
        true => format!(", or `{UNLIMITED}`, or `{DEFAULT}`"),
        false => format!(", or `{DEFAULT}`"),
    };
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = match text.parse::<u64>() {
        Ok(n) if plain && digits => n,
        _ => setting.unit.parse(text).map_err(|why| why + &words)?,
    };
    match number {
        0 if setting.unlimited => Err(format!(
            "`{text}` is not a limit; write `{UNLIMITED}` or a larger value"
        )),
        0 if setting.defaulted && !setting.unlimited => Err(format!(
            "`{text}` is not a limit; leave --{} out, or write `default`",
            setting.option
        )),
        n => Ok(n.into()),
    }
}

/// A clap value parser for whole numbers in a range.
pub(crate) fn whole<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!(
            "`{text}` is not a whole number from {} to {}",
            range.start(),
            range.end()
        )),
    }
}

/// A clap value parser for a weight within a class, in percent. vgpud checks the range.
pub(crate) fn factor(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    number.trim_end().parse().map_err(|_| {
        format!(
            "`{text}` is not a whole number from {} to {}, in percent; write for instance 200 or 200% \
             for twice the weight",
            FACTOR_PERCENT.start(),
            FACTOR_PERCENT.end()
        )
    })
}

/// A clap value parser for a class, by name or by its number: 0 is the lowest.
pub(crate) fn priority() -> impl TypedValueParser<Value = Priority> {
    let mut numbers = 0..;
    let words = Weights::default().each().map(|(class, weight)| {
        let about = class.about().trim_end_matches('.');
        let number = numbers.next().map_or(String::new(), |n: u32| n.to_string());
        let help = format!("{about}; also {number}; weight {weight} by default.");
        PossibleValue::new(class.name()).alias(number).help(help)
    });
    PossibleValuesParser::new(words).map(|word| {
        let mut known = Priority::ALL.iter().copied().enumerate();
        let found =
            known.find(|(number, class)| class.name() == word || number.to_string() == word);
        found.map(|(_, class)| class).unwrap_or_default()
    })
}

/// A clap value parser for a severity.
pub(crate) fn severity() -> impl TypedValueParser<Value = Severity> {
    PossibleValuesParser::new(["info", "warning", "error"]).map(|word| match word.as_str() {
        "error" => Severity::Error,
        "warning" => Severity::Warning,
        _ => Severity::Info,
    })
}

/// A clap value parser for a VM's longest turn, in µs.
pub(crate) fn slice(text: &str) -> Result<u64, String> {
    Unit::Us.parse(text)
}

/// A clap value parser for a VM's longest turn in µs, or `default`.
pub(crate) fn slice_or_default(text: &str) -> Result<Limit, String> {
    match text {
        DEFAULT => Ok(Limit::Default),
        _ => slice(text).map(Limit::Value),
    }
}
