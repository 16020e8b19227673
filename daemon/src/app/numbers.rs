//! Session numbers that are never used again, whatever ends the daemon: reserved in blocks on disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Numbers reserved at once. After an unclean end the rest of a block is skipped.
const BLOCK: u64 = 1_000;

/// A new block is reserved when fewer than this are left.
const LOW: u64 = 500;

/// The reservation.
#[derive(Debug)]
pub(super) struct SessionNumbers {
    file: PathBuf,
    first: u64,
    reserved: u64,
}

impl SessionNumbers {
    /// Reserves the first block.
    pub(super) fn open(state_dir: &Path) -> io::Result<SessionNumbers> {
        let file = state_dir.join("next-session");
        let first = match fs::read_to_string(&file) {
            Ok(text) => text.trim().parse().map_err(|_| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{} does not hold a number; remove it", file.display()),
                )
            })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => 1,
            Err(e) => return Err(e),
        };
        let mut numbers = SessionNumbers {
            file,
            first,
            reserved: first,
        };
        numbers.reserve(first.saturating_add(BLOCK))?;
        Ok(numbers)
    }

    /// The first number of this run.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Keeps the reservation ahead of what is used. On a full disk the old one stays, and so may a
    /// number be used again after a restart; that is better than to serve nobody.
    pub(super) fn keep_ahead(&mut self, next: u64) {
        if next.saturating_add(LOW) > self.reserved
            && let Err(e) = self.reserve(next.saturating_add(BLOCK))
        {
            tracing::warn!(
                "cannot reserve session numbers in {}: {e}",
                self.file.display()
            );
        }
    }

    fn reserve(&mut self, until: u64) -> io::Result<()> {
        let temporary = self.file.with_extension("new");
        let mut file = File::create(&temporary)?;
        writeln!(file, "{until}")?;
        file.sync_all()?;
        fs::rename(&temporary, &self.file)?;
        self.reserved = until;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_comes_back_after_any_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = SessionNumbers::open(dir.path()).unwrap();
        assert_eq!(first.first(), 1);
        first.keep_ahead(1 + BLOCK);
        let second = SessionNumbers::open(dir.path()).unwrap();
        assert!(second.first() > 1 + BLOCK, "{}", second.first());
        fs::write(dir.path().join("next-session"), "x").unwrap();
        assert!(SessionNumbers::open(dir.path()).is_err());
    }
}
