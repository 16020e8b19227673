//! What a mutant is.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// One edit that makes the scheduler wrong.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// Its name: that of its file.
    #[serde(skip)]
    pub name: String,
    /// What it breaks, in a sentence.
    pub what: String,
    /// The file, from the root of the repository.
    pub file: String,
    /// Text that stands in it exactly once.
    pub find: String,
    /// What stands there instead.
    pub replace: String,
    /// The proofs that are expected to notice; the others are tried after them.
    pub caught_by: Vec<String>,
}

impl Mutant {
    /// The file's text with the edit made.
    ///
    /// # Errors
    /// If the text to replace is not there exactly once: the code has changed, and the mutant must follow.
    pub fn apply(&self, text: &str) -> Result<String> {
        let found = text.matches(self.find.trim_end_matches('\n')).count();
        ensure!(
            found == 1,
            "{} has the text that {} replaces {found} times; bring the mutant up to date",
            self.file,
            self.name
        );
        Ok(text.replacen(
            self.find.trim_end_matches('\n'),
            self.replace.trim_end_matches('\n'),
            1,
        ))
    }
}

/// All mutants of a folder, by name.
pub(super) fn load(folder: &Path) -> Result<Vec<Mutant>> {
    let mut mutants = vec![];
    let listing = std::fs::read_dir(folder)
        .with_context(|| format!("the mutants are not in {}", folder.display()))?;
    for entry in listing {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let mut mutant: Mutant =
            toml::from_str(&text).with_context(|| format!("{} is no mutant", path.display()))?;
        let name = path.file_stem().unwrap_or_default();
        mutant.name = name.to_string_lossy().into_owned();
        mutants.push(mutant);
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_fits_the_code_as_it_is() {
        let repository = crate::mutants::repository();
        let mutants = load(&repository.join("daemon/sim/mutants")).unwrap();
        assert!(mutants.len() >= 10, "{} mutants", mutants.len());
        for mutant in mutants {
            let text = std::fs::read_to_string(repository.join(&mutant.file)).unwrap();
            assert_ne!(mutant.apply(&text).unwrap(), text, "{}", mutant.name);
        }
    }

    #[test]
    fn a_text_that_is_not_there_once_is_stale() {
        let mutant = Mutant {
            name: "m".to_owned(),
            what: String::new(),
            file: "f".to_owned(),
            find: "a".to_owned(),
            replace: "b".to_owned(),
            caught_by: vec![],
        };
        assert_eq!(mutant.apply("xax").unwrap(), "xbx");
        assert!(mutant.apply("aa").is_err() && mutant.apply("x").is_err());
    }
}
