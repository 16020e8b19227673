//! Session numbers that are never reused, however vgpud ends: they are reserved in blocks on disk.

use std::path::Path;

use anyhow::Context;

use crate::model::now_unix_ms;
use crate::store::NumberFile;

/// Numbers per reservation. After an unclean end the rest of a block is skipped.
const BLOCK: u64 = 1_000;

/// A new block is reserved when fewer numbers than this are left.
const LOW: u64 = 500;

#[derive(Debug)]
pub(super) struct SessionNumbers {
    file: NumberFile,
    first: u64,
    reserved: u64,
    /// Whether the last reservation failed and was logged.
    told: bool,
}

impl SessionNumbers {
    /// Reserves the first block. If nothing can be written, the numbers of this run start at the
    /// time in ms since 1970, which no earlier run reached.
    ///
    /// # Errors
    /// If the file with the reservation cannot be read or has a wrong content, with a remedy.
    pub(super) fn open(state_dir: &Path) -> anyhow::Result<SessionNumbers> {
        let file = NumberFile::new(state_dir.join("next-session"));
        let first = file.read().with_context(|| {
            format!(
                "Cannot tell which session numbers were used: {} is not as vgpud left it. Put a number \
                 into it that is above every session's in `vgpu-admin events`, or remove it to begin at \
                 1 again",
                file.path().display()
            )
        })?;
        let first = first.unwrap_or(1).max(1);
        let mut numbers = SessionNumbers {
            file,
            first,
            reserved: 0,
            told: false,
        };
        numbers.reserve(first.saturating_add(BLOCK));
        if numbers.reserved == 0 {
            numbers.first = first.max(now_unix_ms());
        }
        Ok(numbers)
    }

    /// The first number of this run.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Keeps the reservation ahead of the used numbers. If it cannot be written (a file system that
    /// needs space to overwrite, and has none), the old reservation stays. A number may then be
    /// reused after a restart, which is better than serving nobody.
    pub(super) fn keep_ahead(&mut self, next: u64) {
        if next.saturating_add(LOW) > self.reserved {
            self.reserve(next.saturating_add(BLOCK));
        }
    }

    fn reserve(&mut self, until: u64) {
        match self.file.write_through(until) {
            Ok(()) => {
                self.reserved = until;
                self.told = false;
            }
            Err(error) if !self.told => {
                self.told = true;
                tracing::warn!(
                    "cannot reserve session numbers in {}: {error}",
                    self.file.path().display()
                );
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn no_number_is_reused_after_any_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = SessionNumbers::open(dir.path()).unwrap();
        assert_eq!(first.first(), 1);
        first.keep_ahead(1 + BLOCK);
        let second = SessionNumbers::open(dir.path()).unwrap();
        assert!(second.first() > 1 + BLOCK, "{}", second.first());
    }

    #[test]
    fn nonsense_is_refused_with_the_file_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("next-session");
        for nonsense in ["x", "18446744073709551000", "9007199254740993"] {
            fs::write(&file, nonsense).unwrap();
            let error = format!("{:#}", SessionNumbers::open(dir.path()).unwrap_err());
            assert!(error.contains(&file.display().to_string()), "{error}");
            assert!(error.contains("remove it"), "{error}");
        }
    }

    #[test]
    fn where_nothing_can_be_written_numbers_begin_above_all_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let first = SessionNumbers::open(&missing).unwrap().first();
        fs::create_dir(&missing).unwrap();
        let mut numbers = SessionNumbers::open(&missing).unwrap();
        assert!(first > 1_000_000_000_000 && numbers.first() == 1);
        numbers.keep_ahead(first);
        assert!(SessionNumbers::open(&missing).unwrap().first() > first);
    }
}
