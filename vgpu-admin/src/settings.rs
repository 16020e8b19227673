//! Options of the settings of pools and VMs, made from their table ([`vgpu_api::Setting`]).

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use serde_json::{Map, Value as Json};
use vgpu_api::{Limit, Patch, PoolPolicy, Priority, Setting, UNLIMITED, Unit, Value, Weights};

/// The changes that options ask for; absent options change nothing.
#[derive(Debug, Clone)]
pub(crate) struct Changes<P>(pub(crate) P);

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
        let mut fields = Map::new();
        for (setting, _) in rows::<P>() {
            let plain = || matches.try_get_one(&plain_option(setting)).ok().flatten();
            let given = matches.get_one::<Json>(setting.name).or_else(plain);
            fields.extend(given.map(|value| (setting.name.to_owned(), value.clone())));
        }
        let patch = serde_json::from_value(Json::Object(fields));
        patch
            .map(Changes)
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
            PossibleValuesParser::new(words).map(Json::String).into()
        }
        _ => ValueParser::new(move |text: &str| parse(setting, plain, text)),
    }
}

/// Returns the value of a setting for the API. `plain`: a number needs no unit.
fn parse(setting: &Setting, plain: bool, text: &str) -> Result<Json, String> {
    match text {
        // `none` is the word of earlier versions.
        UNLIMITED | "none" if setting.unlimited => return Ok(UNLIMITED.into()),
        "default" if setting.defaulted => return Ok(Json::Null),
        _ => {}
    }
    let words = [
        (setting.unlimited, UNLIMITED),
        (setting.defaulted, "default"),
    ];
    let words = words.iter().filter(|(allowed, _)| *allowed);
    let words: String = words.map(|(_, word)| format!(", or `{word}`")).collect();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = match text.parse::<u64>() {
        Ok(n) if plain && digits => n,
        _ => setting.unit.parse(text).map_err(|why| why + &words)?,
    };
    match number {
        0 if setting.unlimited && !digits => Err(format!(
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

/// A clap value parser for a class.
pub(crate) fn priority() -> impl TypedValueParser<Value = Priority> {
    let words = Weights::default().each().map(|(class, weight)| {
        let about = class.about().trim_end_matches('.');
        PossibleValue::new(class.name()).help(format!("{about}; weight {weight} by default."))
    });
    PossibleValuesParser::new(words).map(|word| {
        let mut known = Priority::ALL.iter().copied();
        known.find(|class| class.name() == word).unwrap_or_default()
    })
}

/// A clap value parser for a VM's longest turn, in µs.
pub(crate) fn slice(text: &str) -> Result<u64, String> {
    Unit::Us.parse(text)
}

/// A clap value parser for a VM's longest turn in µs, or `default`.
pub(crate) fn slice_or_default(text: &str) -> Result<Limit, String> {
    match text {
        "default" => Ok(Limit::Default),
        _ => slice(text).map(Limit::Value),
    }
}
