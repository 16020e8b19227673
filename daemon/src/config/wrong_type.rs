//! Sentences about values of a wrong type, in place of the words of `serde`.

use super::Config;

/// Values that are larger than the range of every key, for keys of 64 and of 32 bits.
const TOO_LARGE: [u64; 2] = [i64::MAX.unsigned_abs(), u32::MAX as u64];

/// Returns the sentence about a value of a wrong type: key, expected value with its range, and the
/// given value. Returns other messages unchanged. `at`: the place of the value in `text`.
pub(super) fn told(message: &str, text: &str, at: usize) -> String {
    sentence(message, text, at).unwrap_or_else(|| message.to_owned())
}

fn sentence(message: &str, text: &str, at: usize) -> Option<String> {
    let (given, expected) = message.split_once(", expected ")?;
    let wrong = ["invalid type: ", "invalid value: "];
    let given = wrong.iter().find_map(|begin| given.strip_prefix(begin))?;
    let named = ["string ", "integer ", "floating point ", "boolean "];
    let given = named
        .iter()
        .find_map(|kind| given.strip_prefix(kind))
        .unwrap_or(given);
    let key = key_at(text, at)?;
    let expected = match expected {
        "u16" | "u32" | "u64" | "usize" | "i64" => match range_of(&key) {
            Some(range) => format!("a whole number from {range}"),
            None => "a whole number".to_owned(),
        },
        "a boolean" => "true or false".to_owned(),
        "a string" | "path string" => "a text in quotes".to_owned(),
        "a sequence" => "a list in brackets".to_owned(),
        other => other.to_owned(),
    };
    Some(format!(
        "{key} must be {expected}, not {}",
        given.trim_matches('`')
    ))
}

/// The dotted key whose value begins at `at`; `None` if the value does not follow its key on the
/// same line.
fn key_at(text: &str, at: usize) -> Option<String> {
    let before = text.get(..at)?;
    let (above, line) = before.rsplit_once('\n').unwrap_or(("", before));
    let key = line
        .split_once('=')
        .filter(|(_, rest)| rest.trim().is_empty())?
        .0;
    let header = |line: &str| Some(line.trim().strip_prefix('[')?.split_once(']')?.0.to_owned());
    let table = above.lines().rev().find_map(header);
    Some(match table {
        Some(table) => format!("{table}.{}", key.trim()),
        None => key.trim().to_owned(),
    })
}

/// The range of a key, for instance `0 to 3600`. The checks of the configuration have the ranges.
fn range_of(key: &str) -> Option<String> {
    TOO_LARGE.iter().find_map(|value| {
        let config: Config = toml::from_str(&format!("{key} = {value}")).ok()?;
        let begin = format!("{key} = {value} is out of its range ");
        let problems = config.problems();
        problems
            .iter()
            .find_map(|problem| problem.strip_prefix(&begin).map(str::to_owned))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn refused(text: &str) -> String {
        let error = Config::parse(text, Path::new("f")).unwrap_err();
        error.to_string()
    }

    #[test]
    fn a_value_of_a_wrong_type_is_told_with_key_range_and_value() {
        for (text, said) in [
            (
                "[daemon]\ndrain_s = \"long\"\n",
                "f:2 is wrong: daemon.drain_s must be a whole number from 0 to 3600, not \"long\"",
            ),
            (
                "[daemon]\ndrain_s = -1\n",
                "daemon.drain_s must be a whole number from 0 to 3600, not -1",
            ),
            (
                "[daemon]\ndrain_s = 1.5\n",
                "daemon.drain_s must be a whole number from 0 to 3600, not 1.5",
            ),
            (
                "admin.max_connections = true\n",
                "admin.max_connections must be a whole number from 1 to 4096, not true",
            ),
            (
                "[listen]\nvsock = 1\n",
                "listen.vsock must be true or false, not 1",
            ),
            (
                "[listen]\nhybrid_dirs = \"/x\"\n",
                "listen.hybrid_dirs must be a list in brackets, not \"/x\"",
            ),
            (
                "[daemon]\nstate_dir = 7\n",
                "daemon.state_dir must be a text in quotes, not 7",
            ),
        ] {
            let error = refused(text);
            assert!(error.contains(said), "{error}");
        }
        // A value on another line than its key is told with its own line.
        let list = refused("[listen]\nhybrid_dirs = [\n 1,\n]\n");
        assert!(list.contains("f:3 is wrong"), "{list}");
    }
}
