//! Initial RAM disks in the kernel's `newc` cpio format, made without root.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// An image under construction.
#[derive(Debug, Default)]
pub struct Image {
    bytes: Vec<u8>,
    inode: u32,
    directories: BTreeSet<String>,
    files: BTreeSet<String>,
}

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const DEVICE: u32 = 0o020_666;

impl Image {
    /// An image with `/dev/console` and `/dev/null` (device nodes need no root inside a cpio).
    pub fn new() -> Image {
        let mut image = Image::default();
        image.directory("dev");
        image.record("dev/console", DEVICE, &[], (5, 1));
        image.record("dev/null", DEVICE, &[], (1, 3));
        image
    }

    /// A directory and its parents.
    pub fn directory(&mut self, path: &str) {
        let mut so_far = String::new();
        for part in path.split('/').filter(|p| !p.is_empty()) {
            if !so_far.is_empty() {
                so_far.push('/');
            }
            so_far.push_str(part);
            if self.directories.insert(so_far.clone()) {
                self.record(&so_far.clone(), DIRECTORY, &[], (0, 0));
            }
        }
    }

    /// A file with these contents.
    pub fn text(&mut self, path: &str, contents: &str) {
        self.put(path, EXECUTABLE, contents.as_bytes());
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, to: &str) {
        self.put(path, LINK, to.as_bytes());
    }

    /// A copy of a file of the host.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn file(&mut self, path: &str, from: &Path) -> Result<()> {
        let bytes = std::fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        self.put(path, EXECUTABLE, &bytes);
        Ok(())
    }

    /// A copy of a file of the host, at the same path.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn same(&mut self, path: &Path) -> Result<()> {
        self.file(path.display().to_string().trim_start_matches('/'), path)
    }

    /// As [`Image::stripped`], with copies of the shared libraries that the program loads, at the
    /// same paths. `found`: further directories in which libraries are searched.
    ///
    /// # Errors
    /// If the file cannot be read, or a library is missing.
    pub fn program(&mut self, path: &str, from: &Path, found: &[PathBuf]) -> Result<()> {
        self.stripped(path, from)?;
        for library in libraries(from, found)? {
            self.same(&library)?;
        }
        Ok(())
    }

    /// A copy of a program or library of the host without debug information, which would fill the
    /// guest's memory.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn stripped(&mut self, path: &str, from: &Path) -> Result<()> {
        let stripped = tempfile::NamedTempFile::new()?;
        let status = Command::new("strip")
            .arg("--strip-debug")
            .arg("-o")
            .arg(stripped.path())
            .arg(from)
            .status()
            .context("running strip (it comes with the C compiler)")?;
        ensure!(status.success(), "strip {}: {status}", from.display());
        self.file(path, stripped.path())
    }

    fn put(&mut self, path: &str, mode: u32, data: &[u8]) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
        if self.files.insert(path.to_owned()) {
            self.record(path, mode, data, (0, 0));
        }
    }

    /// A cpio record: 13 fields of 8 hexadecimal digits, name, data, each padded to 4 bytes.
    fn record(&mut self, name: &str, mode: u32, data: &[u8], device: (u32, u32)) {
        self.inode += 1;
        let fields = [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            data.len() as u32,
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    /// Writes the image.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(mut self, to: &Path) -> Result<()> {
        self.record("TRAILER!!!", 0, &[], (0, 0));
        std::fs::write(to, &self.bytes).with_context(|| format!("writing {}", to.display()))
    }
}

/// The shared libraries (and the loader) of a program, as the dynamic linker of this machine
/// resolves them. Missing libraries are omitted, because the caller adds its own `libcuda.so.1`.
fn libraries(program: &Path, found: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .env("LD_LIBRARY_PATH", std::env::join_paths(found)?)
        .output()
        .context("running ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("statically linked") || text.contains("not a dynamic executable") {
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "ldd {}: {text}", program.display());
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_aligned_and_parents_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i.cpio");
        let mut image = Image::new();
        image.text("a/b/c", "hello");
        image.text("a/b/c", "twice is once");
        image.write(&path).unwrap();
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let at = |name: &str| text.find(name).unwrap();
        assert!(at("a\0") < at("a/b\0") && at("a/b\0") < at("a/b/c\0"));
        assert!(text.contains("hello") && !text.contains("twice"));
        assert!(text.ends_with("TRAILER!!!\0\0\0\0") || text.contains("TRAILER!!!"));
    }
}
