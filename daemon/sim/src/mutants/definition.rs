//! The definition of a mutant.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// One edit that makes the scheduler wrong.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// Name: the file's name without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// The fault, in one sentence.
    pub what: String,
    /// Path of the edited file, from the root of the repository.
    pub file: String,
    /// Text that occurs in the file exactly once.
    pub find: String,
    /// The replacement.
    pub replace: String,
    /// Proofs that are expected to notice the mutant. These proofs run before the other proofs.
    pub caught_by: Vec<String>,
}

impl Mutant {
    /// Applies the edit to the text of the file.
    ///
    /// # Errors
    /// If `find` does not occur exactly once: the code has changed, and the mutant must be adapted.
    pub fn apply(&self, text: &str) -> Result<String> {
        let found = text.matches(self.find.trim_end_matches('\n')).count();
        ensure!(
            found == 1,
            "{} has the text that the mutant {} replaces {found} times instead of once; adapt the mutant",
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
        .with_context(|| format!("cannot read the mutants in {}", folder.display()))?;
    for entry in listing {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let mut mutant: Mutant = toml::from_str(&text)
            .with_context(|| format!("{} is not a valid mutant", path.display()))?;
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
