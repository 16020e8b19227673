//! Plans: the processes of a suite, and how they are made.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::events::Dialect;
use super::follow::{Unit, without_the_caller_s};
use super::install::Venv;
use crate::host::Driver;
use crate::paths;

/// A compute capability newer than any machine code in NVIDIA's libraries, so that they use their
/// PTX.
pub(super) const PTX_ONLY: &str = "13.0";

/// Time after which a test counts as hung. Generous, because some tests compile and interpret for
/// half a minute, on busy machines.
pub(super) const PATIENCE: Duration = Duration::from_secs(240);

/// The contents of a suite.
#[derive(Debug, Default)]
pub struct Plan {
    /// Processes of the suite.
    pub units: Vec<Unit>,
    /// Directories with libraries other than `libcuda.so`.
    pub libraries: Vec<PathBuf>,
    /// Directories with libraries for the direct row only, which are searched first.
    pub direct_libraries: Vec<PathBuf>,
    /// Common prefix of the names of tests, which reports omit.
    pub prefix: &'static str,
    /// `SOFT_GPU_*` variables of the software device for the suite, in the direct and the remoted
    /// row.
    pub device: Vec<(String, String)>,
    /// Environment variables of the clients on a software device, in both rows.
    pub soft_env: Vec<(OsString, OsString)>,
    /// Whether both rows must do the same work on the software device; the units then run alone.
    pub same_work: bool,
    /// Units without work on the device; with `same_work`, all other units must have recorded work.
    pub idle: &'static [&'static str],
}

impl Plan {
    /// Whether the work of both rows is compared. On a GPU, work is not recorded.
    pub fn compares(&self, driver: Driver) -> bool {
        self.same_work && driver == Driver::Soft
    }
}

/// The test files below a directory, as relative paths; the largest first, because they take
/// longest.
pub(super) fn test_files(dir: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        let entries =
            std::fs::read_dir(&next).with_context(|| format!("reading {}", next.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                left.push(path);
            } else if name.starts_with("test_") && name.ends_with(".py") {
                let size = path.metadata()?.len();
                let relative = path.strip_prefix(dir)?.to_string_lossy().into_owned();
                files.push((std::cmp::Reverse(size), relative));
            }
        }
    }
    ensure!(!files.is_empty(), "no tests in {}", dir.display());
    files.sort();
    Ok(files.into_iter().map(|(_, file)| file).collect())
}

/// A unit of pytest: `words` follow the options that all suites share.
pub(super) fn pytest(venv: &Venv, name: &str, words: &[OsString]) -> Unit {
    let first = [
        "-m",
        "pytest",
        "-p",
        "vgpu_events",
        "-p",
        "no:cacheprovider",
    ]
    .map(OsString::from);
    let style = ["-q", "--tb=short"].map(OsString::from);
    let mut all = vec![venv.python.clone().into_os_string()];
    all.extend(first.into_iter().chain(style).chain(words.iter().cloned()));
    Unit {
        name: name.to_owned(),
        dialect: Dialect::Pytest,
        words: all,
        dir: paths::root(),
        env: vec![
            (
                "PYTHONPATH".into(),
                paths::root().join("tests/clients").into(),
            ),
            // A checkout has a folder with the name of the package that is not the package.
            ("PYTHONSAFEPATH".into(), "1".into()),
        ],
        tests: Vec::new(),
        parallel: false,
        patience: PATIENCE,
        alone: false,
    }
}

/// The tests of a libtest binary.
pub(super) fn list_tests(binary: &Path) -> Result<Vec<String>> {
    let output = without_the_caller_s(&mut Command::new(binary))
        .args(["--list", "--format=terse"])
        .output()
        .with_context(|| format!("listing the tests of {}", binary.display()))?;
    ensure!(
        output.status.success(),
        "listing tests: {}",
        crate::guest::describe(&output)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.map(str::to_owned).collect())
}
