//! Fetches the packages of the client suites into `target/clients`, with pinned versions.
//!
//! Nothing is installed into the system. A failed fetch is [`Missing`]: the report lists the suites
//! that need it as skipped, with the reason.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::paths;

/// Something that this machine lacks and cannot fetch, with the reason for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Missing(pub String);

/// The directory of everything that is fetched.
#[derive(Debug, Clone)]
pub struct Kit {
    dir: PathBuf,
    /// The interpreter that `VGPU_CLIENTS_PYTHON` names: its packages serve in place of the pinned
    /// ones, and nothing is fetched.
    interpreter: Option<PathBuf>,
}

/// A Python environment.
#[derive(Debug, Clone)]
pub struct Venv {
    /// The interpreter.
    pub python: PathBuf,
    /// The directory of the packages.
    pub packages: PathBuf,
}

impl Venv {
    /// The environment of an interpreter.
    fn of(python: &Path) -> Result<Venv> {
        let packages = output(Command::new(python).args([
            "-c",
            "import sysconfig; print(sysconfig.get_path('purelib'))",
        ]))?;
        Ok(Venv {
            python: python.to_owned(),
            packages: packages.trim().into(),
        })
    }

    /// The directories with NVIDIA's libraries, for programs that do not find them by themselves.
    pub fn nvrtc_dirs(&self) -> Vec<PathBuf> {
        let dirs = ["cuda_nvrtc/lib", "cu13/lib"].map(|dir| self.packages.join("nvidia").join(dir));
        dirs.into_iter().filter(|dir| dir.is_dir()).collect()
    }
}

/// The inputs of a directory in the kit.
#[derive(Debug)]
pub struct Made {
    stamp: PathBuf,
    of: String,
}

impl Made {
    /// Whether the directory was made from these inputs.
    pub fn is_current(&self) -> bool {
        std::fs::read_to_string(&self.stamp).is_ok_and(|of| of == self.of)
    }

    /// Records that the directory was made from these inputs.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn say(&self) -> Result<()> {
        std::fs::write(&self.stamp, &self.of)
            .with_context(|| format!("writing {}", self.stamp.display()))
    }
}

impl Kit {
    /// The kit of this checkout.
    pub fn of_checkout() -> Kit {
        Kit {
            dir: paths::root().join("target/clients"),
            interpreter: std::env::var_os("VGPU_CLIENTS_PYTHON").map(PathBuf::from),
        }
    }

    /// Whether the suites take the packages of this machine, whatever their versions.
    pub fn uses_own_packages(&self) -> bool {
        self.interpreter.is_some()
    }

    /// The directory of the kit.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A Python environment with exactly the packages in `tests/clients/requirements/<name>.txt`,
    /// or with those of this machine's interpreter.
    ///
    /// # Errors
    /// [`Missing`] without Python or the packages; otherwise pip's error.
    pub fn venv(&self, name: &str) -> Result<Venv> {
        if let Some(python) = &self.interpreter {
            return Venv::of(python);
        }
        let list = source(&format!("requirements/{name}.txt"));
        let dir = self.dir.join(format!("venv-{name}"));
        let python = dir.join("bin/python");
        let made = self.made_of(&dir, &[&list, &source("nvrtc_ptx.c")])?;
        if !made.is_current() {
            println!(
                "clients: installing {} into {}",
                list.display(),
                dir.display()
            );
            std::fs::create_dir_all(&self.dir)?;
            fetch(
                Command::new("python3")
                    .args(["-m", "venv", "--clear"])
                    .arg(&dir),
            )?;
            fetch(
                Command::new(&python)
                    .args(["-m", "pip", "install", "-q", "--disable-pip-version-check"])
                    .args(["--only-binary", ":all:", "-r"])
                    .arg(&list),
            )?;
        }
        let venv = Venv::of(&python)?;
        if !made.is_current() {
            for dir in venv.nvrtc_dirs() {
                wrap_nvrtc(&dir)?;
            }
            made.say()?;
        }
        Ok(venv)
    }

    /// A package of PyPI, unpacked without its dependencies.
    ///
    /// # Errors
    /// [`Missing`] if it cannot be fetched.
    pub fn wheel(&self, package: &str, version: &str) -> Result<PathBuf> {
        let dir = self.dir.join(format!("{package}-{version}"));
        if !dir.is_dir() {
            if self.interpreter.is_some() {
                let why = format!(
                    "{} is absent, and VGPU_CLIENTS_PYTHON forbids fetching it",
                    dir.display()
                );
                return Err(Missing(why).into());
            }
            let new = self.dir.join(format!("{package}.new"));
            let _ = std::fs::remove_dir_all(&new);
            println!("clients: fetching {package} {version}");
            let pip = self.venv("nvcc")?.python;
            fetch(
                Command::new(pip)
                    .args(["-m", "pip", "install", "-q", "--disable-pip-version-check"])
                    .args(["--only-binary", ":all:", "--no-deps", "--target"])
                    .arg(&new)
                    .arg(format!("{package}=={version}")),
            )?;
            std::fs::rename(&new, &dir)?;
        }
        Ok(dir)
    }

    /// The inputs of a directory: whether the directory was made from these files in their present
    /// state.
    ///
    /// # Errors
    /// If one of the files cannot be read.
    pub fn made_of(&self, dir: &Path, files: &[&Path]) -> Result<Made> {
        let mut hash = blake3::Hasher::new();
        for file in files {
            let bytes =
                std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            hash.update(&bytes);
        }
        Ok(Made {
            stamp: dir.join("made"),
            of: hash.finalize().to_hex().to_string(),
        })
    }

    /// cudarc's published source with a separate build directory.
    ///
    /// # Errors
    /// If cargo does not know cudarc, which cannot happen, because the worker is built with it.
    pub fn cudarc(&self, version: &str) -> Result<PathBuf> {
        let copy = self.dir.join(format!("cudarc-{version}"));
        let metadata = output(
            Command::new(cargo())
                .args(["metadata", "--format-version=1", "--locked"])
                .current_dir(paths::root()),
        )?;
        let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
        let is_it = |p: &&serde_json::Value| p["name"] == "cudarc" && p["version"] == version;
        let manifest = metadata["packages"]
            .as_array()
            .and_then(|packages| packages.iter().find(is_it))
            .and_then(|package| package["manifest_path"].as_str())
            .with_context(|| format!("the workspace does not use cudarc {version}"))?;
        let published = Path::new(manifest)
            .parent()
            .context("a manifest lies in a directory")?;
        if !copy.join("Cargo.toml").exists() {
            std::fs::create_dir_all(&self.dir)?;
            run(Command::new("cp")
                .args(["-r", "--no-preserve=mode"])
                .arg(published)
                .arg(&copy))?;
            // The copy lies within this workspace, but is not a member.
            let manifest = copy.join("Cargo.toml");
            let text = std::fs::read_to_string(&manifest)? + "\n[workspace]\n";
            std::fs::write(&manifest, text)?;
        }
        Ok(copy)
    }

    /// Builds a package's library tests and returns the test binary.
    ///
    /// # Errors
    /// [`Missing`] if the dependencies cannot be fetched; otherwise cargo's error.
    pub fn test_binary(&self, source: &Path, features: &str) -> Result<PathBuf> {
        let mut command = Command::new(cargo());
        command
            .args([
                "test",
                "--lib",
                "--no-run",
                "--message-format=json",
                "--no-default-features",
            ])
            .args(["--features", features])
            .current_dir(source)
            .env("CARGO_TARGET_DIR", self.dir.join("cargo"));
        println!("clients: building the tests of {}", source.display());
        let messages = fetch(&mut command)?;
        messages
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
            .next_back()
            .context("cargo built no test binary")
    }

    /// A checkout of a repository of NVIDIA at a tag or commit, for files that no published package
    /// has. `variable` may name a directory with checkouts, each under its tag or the first eight
    /// digits of its commit.
    ///
    /// # Errors
    /// [`Missing`] if the repository cannot be fetched.
    pub fn checkout(&self, variable: &str, repository: &str, at: &str) -> Result<PathBuf> {
        const COMMIT: usize = 40;
        let name = if at.len() == COMMIT { &at[..8] } else { at };
        if let Some(dir) = std::env::var_os(variable) {
            let checkout = PathBuf::from(&dir).join(name);
            ensure!(
                checkout.is_dir(),
                "{variable} is {}, and there is no directory {name} in it; set it to a folder with checkouts of \
                 https://github.com/NVIDIA/{repository}, each in a directory with the name of its tag or the first eight \
                 digits of its commit (of cuda-samples, one checkout for all versions will do, too)",
                dir.display()
            );
            return Ok(checkout);
        }
        let dir = self.dir.join(format!("{repository}-{name}"));
        if !dir.is_dir() {
            let new = self.dir.join(format!("{repository}.new"));
            let _ = std::fs::remove_dir_all(&new);
            println!("clients: fetching {repository} {name}");
            std::fs::create_dir_all(&new)?;
            let git = || {
                let mut git = Command::new("git");
                git.current_dir(&new);
                git
            };
            run(git().args(["init", "-q"]))?;
            fetch(
                git()
                    .args(["fetch", "-q", "--depth=1"])
                    .arg(format!("https://github.com/NVIDIA/{repository}"))
                    .arg(at),
            )
            .map_err(|e| match e.downcast::<Missing>() {
                Ok(Missing(why)) => Missing(format!(
                    "no published package carries these tests, and their repository cannot be had: {why}"
                ))
                .into(),
                Err(e) => e,
            })?;
            run(git().args(["checkout", "-q", "FETCH_HEAD"]))?;
            std::fs::rename(&new, &dir)?;
        }
        Ok(dir)
    }
}

/// Replaces NVRTC by a wrapper, which returns PTX instead of machine code if a variable asks for
/// that.
fn wrap_nvrtc(dir: &Path) -> Result<()> {
    let is_nvrtc = |name: &str| {
        name.strip_prefix("libnvrtc.so.")
            .is_some_and(|version| version.bytes().all(|b| b.is_ascii_digit()))
    };
    let entries = std::fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()?;
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_nvrtc(&name) {
            continue;
        }
        let real = name.replace("libnvrtc.", "libnvrtc-real.");
        std::fs::rename(entry.path(), dir.join(&real))?;
        // The wrapper needs the library under its new name, not under the name in the library
        // itself. So the wrapper is linked with an empty library of the new name.
        let stand_in = tempfile::tempdir()?;
        let empty = stand_in.path().join("empty.c");
        std::fs::write(&empty, "")?;
        run(Command::new("cc")
            .args(["-shared", "-o"])
            .arg(stand_in.path().join(&real))
            .arg(&empty)
            .arg(format!("-Wl,-soname,{real}")))?;
        run(Command::new("cc")
            .args([
                "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
            ])
            .arg(dir.join(&name))
            .arg(source("nvrtc_ptx.c"))
            .args([format!("-Wl,-soname,{name}"), "-Wl,--no-as-needed".into()])
            .arg(format!("-L{}", stand_in.path().display()))
            .args([
                format!("-l:{real}"),
                "-Wl,-rpath,$ORIGIN".into(),
                "-ldl".into(),
            ]))?;
    }
    Ok(())
}

/// A file in `tests/clients`.
pub fn source(name: &str) -> PathBuf {
    paths::root().join("tests/clients").join(name)
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Phrases in messages of package managers that mean "cannot be fetched here", as opposed to a
/// fault.
const NOT_TO_BE_HAD: &[&str] = &[
    "No matching distribution",
    "Could not resolve host",
    "Could not find a version",
    "Connection",
    "failed to download",
    "failed to fetch",
    "Network is unreachable",
    "timed out",
    "ensurepip",
    "unable to access",
];

/// Runs a command that fetches, and returns its standard output.
pub(super) fn fetch(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let result = command.stdin(Stdio::null()).output();
    let output = match result {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Missing(format!("{program} is not installed")).into());
        }
        Err(e) => return Err(e).with_context(|| format!("running {program}")),
    };
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    let told = said
        .lines()
        .find(|line| NOT_TO_BE_HAD.iter().any(|words| line.contains(words)));
    match told {
        Some(line) => Err(Missing(line.trim().to_owned()).into()),
        None => bail!("{}: {}\n{said}", words(command), output.status),
    }
}

fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {}", words(command)))?;
    ensure!(
        output.status.success(),
        "{}: {}",
        words(command),
        crate::guest::describe(&output)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command to its end.
///
/// # Errors
/// The message of the command, if it failed.
pub fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

fn words(command: &Command) -> String {
    let all = std::iter::once(command.get_program()).chain(command.get_args());
    all.map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_had_is_told_from_what_is_wrong() {
        let run = |script: &str| fetch(Command::new("sh").args(["-c", script]));
        let missing = |script: &str| run(script).is_err_and(|e| e.is::<Missing>());
        assert!(missing(
            "echo 'fatal: Could not resolve host: example' >&2; exit 128"
        ));
        assert!(!missing("echo 'conflicting requirements' >&2; exit 1"));
        assert!(run("echo fetched").is_ok_and(|said| said == "fetched\n"));
        assert!(fetch(&mut Command::new("/nowhere/python3")).is_err_and(|e| e.is::<Missing>()));
    }
}
