//! One number in a small file that is overwritten in place, which works even on a full disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Largest valid number. No counter of vgpud reaches it (1,000 per second for 285,000 years), and
/// the numbers of JavaScript are exact up to here.
pub(crate) const MOST: u64 = 1 << 53;

/// The digits of a `u64` and a line end: every number takes the same space.
const LEN: usize = 21;

#[derive(Debug)]
pub(crate) struct NumberFile {
    path: PathBuf,
}

impl NumberFile {
    /// The file at `path`, which need not exist.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the number; `None` if there is no file.
    ///
    /// # Errors
    /// If the file cannot be read, or (`InvalidData`) does not hold a number up to [`MOST`].
    pub(crate) fn read(&self) -> io::Result<Option<u64>> {
        let mut text = Vec::new();
        match File::open(&self.path) {
            Ok(file) => file.take(LEN as u64 + 1).read_to_end(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let number = std::str::from_utf8(&text)
            .ok()
            .and_then(|text| text.trim_ascii_end().parse().ok())
            .filter(|number| *number <= MOST && text.len() <= LEN);
        number.map(Some).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it does not hold a number from 0 to {MOST}"),
            )
        })
    }

    /// Writes `number` to the file. The file gets its full size when it is created, so that later
    /// writes need no space on file systems that overwrite in place. A power cut may undo the
    /// write.
    ///
    /// # Errors
    /// If the file cannot be written; the earlier number stays.
    pub(crate) fn write(&self, number: u64) -> io::Result<()> {
        self.put(number).map(drop)
    }

    /// As [`NumberFile::write`], and a power cut does not undo the write.
    ///
    /// # Errors
    /// As [`NumberFile::write`].
    pub(crate) fn write_through(&self, number: u64) -> io::Result<()> {
        self.put(number)?.sync_data()
    }

    fn put(&self, number: u64) -> io::Result<File> {
        let text = format!("{number:020}\n");
        match OpenOptions::new().write(true).open(&self.path) {
            Ok(file) => file.write_all_at(text.as_bytes(), 0).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(&text),
            Err(error) => Err(error),
        }
    }

    fn create(&self, text: &str) -> io::Result<File> {
        let temporary = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&temporary, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map(|()| file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_nonsense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = NumberFile::new(dir.path().join("number"));
        assert_eq!(file.read().unwrap(), None);
        for number in [0, 7, MOST, 41] {
            file.write(number).unwrap();
            assert_eq!(file.read().unwrap(), Some(number));
            assert_eq!(fs::metadata(file.path()).unwrap().len(), LEN as u64);
        }
        // The format of earlier versions.
        fs::write(file.path(), "1001\n").unwrap();
        assert_eq!(file.read().unwrap(), Some(1_001));
        file.write(2_001).unwrap();
        assert_eq!(file.read().unwrap(), Some(2_001));
        let long = format!("{}1", "0".repeat(1_000));
        for nonsense in [
            "",
            "x",
            "-1",
            "1 2",
            "18446744073709551615",
            "9007199254740993",
            &long,
        ] {
            fs::write(file.path(), nonsense).unwrap();
            let error = file.read().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{nonsense:?}");
        }
        fs::write(file.path(), [0xff; 8]).unwrap();
        assert!(file.read().is_err());
    }
}
