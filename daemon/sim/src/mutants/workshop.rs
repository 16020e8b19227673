//! The copy of the sources in which mutants are built, one at a time.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Fate, Mutant};

/// Packages that are copied. Mutants may edit only these packages.
const PACKAGES: [&str; 2] = ["daemon/sched", "daemon/sim"];
/// A mutant that runs longer than this counts as endless.
const PATIENCE: Duration = Duration::from_secs(120);

/// A profile that compiles quickly but still runs fast enough. Debug assertions are on.
const PROFILE: &str = "\
[profile.dev]
opt-level = 1
debug = false
incremental = true
";

/// The copy of the sources.
pub(super) struct Workshop {
    repository: PathBuf,
    folder: PathBuf,
}

/// A program built from the copy.
pub(super) struct Built {
    program: PathBuf,
    /// Build time.
    pub(super) took: Duration,
}

impl Workshop {
    /// Updates the copy from the repository.
    pub(super) fn open(repository: &Path) -> Result<Self> {
        let folder = repository.join("target/sim/mutants");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let workshop = Self {
            repository: repository.to_path_buf(),
            folder,
        };
        workshop.write_manifest()?;
        let lock = fs::read(workshop.repository.join("Cargo.lock"))?;
        put(&workshop.folder.join("Cargo.lock"), &lock)?;
        for package in PACKAGES {
            let (from, to) = (
                workshop.repository.join(package),
                workshop.folder.join(package),
            );
            put(&to.join("Cargo.toml"), &fs::read(from.join("Cargo.toml"))?)?;
            mirror(&from.join("src"), &to.join("src"))?;
        }
        Ok(workshop)
    }

    /// Writes the repository's manifest with only the two copied packages as members. Dependencies
    /// on other packages are paths into the repository, so that these packages are compiled only
    /// once.
    fn write_manifest(&self) -> Result<()> {
        let text = fs::read_to_string(self.repository.join("Cargo.toml"))?;
        let mut manifest: toml::Table = text.parse().context("the workspace's Cargo.toml")?;
        manifest.remove("profile");
        let workspace = manifest
            .get_mut("workspace")
            .and_then(toml::Value::as_table_mut)
            .context("Cargo.toml has no workspace")?;
        workspace.insert(
            "members".to_owned(),
            PACKAGES.map(toml::Value::from).to_vec().into(),
        );
        let dependencies = workspace
            .get_mut("dependencies")
            .and_then(toml::Value::as_table_mut)
            .context("Cargo.toml has no workspace dependencies")?;
        for dependency in dependencies
            .iter_mut()
            .filter_map(|(_, d)| d.as_table_mut())
        {
            let Some(path) = dependency.get("path").and_then(toml::Value::as_str) else {
                continue;
            };
            if !PACKAGES.contains(&path) {
                let absolute = self.repository.join(path).to_string_lossy().into_owned();
                dependency.insert("path".to_owned(), absolute.into());
            }
        }
        let text = format!("{manifest}\n{PROFILE}");
        put(&self.folder.join("Cargo.toml"), text.as_bytes())
    }

    /// Makes an edit in the copy, builds the program, and undoes the edit.
    pub(super) fn make(&mut self, mutant: &Mutant) -> Result<Built> {
        let inside = PACKAGES
            .iter()
            .any(|package| Path::new(&mutant.file).starts_with(Path::new(package).join("src")));
        ensure!(inside, "{} is not in a copied package", mutant.file);
        let path = self.folder.join(&mutant.file);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", mutant.file))?;
        fs::write(&path, mutant.apply(&text)?)?;
        let built = self.build(&mutant.name);
        fs::write(&path, text)?;
        built
    }

    /// Builds the program and saves it under this name.
    pub(super) fn build(&mut self, name: &str) -> Result<Built> {
        let begun = Instant::now();
        let target = self.folder.join("target");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args([
                "build",
                "--offline",
                "--quiet",
                "-p",
                "vgpu-sim",
                "--bin",
                "vgpu-sim",
            ])
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", &target)
            // Mutants differ by a few lines, so most of each is already compiled.
            .env("CARGO_INCREMENTAL", "1")
            .env_remove("RUSTFLAGS")
            .output()
            .context("cannot run cargo")?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let errors = text.lines().skip_while(|line| !line.starts_with("error"));
            let first: Vec<&str> = errors.take(8).collect();
            bail!("the copy does not build: {}", first.join(" "));
        }
        let program = self.folder.join(format!("{name}.bin"));
        fs::copy(target.join("debug/vgpu-sim"), &program)?;
        Ok(Built {
            program,
            took: begun.elapsed(),
        })
    }
}

impl Built {
    /// Runs the quick proofs, those in `named` first, until one fails. Then removes the program.
    pub(super) fn run(&self, named: &[String]) -> Result<(Fate, Duration)> {
        let begun = Instant::now();
        let result = self.wait(named);
        let removed = fs::remove_file(&self.program);
        let fate = result?;
        removed?;
        Ok((fate, begun.elapsed()))
    }

    fn wait(&self, named: &[String]) -> Result<Fate> {
        let told = self.program.with_extension("out");
        let mut child = Command::new(&self.program)
            .arg("--first-failure")
            .args(named)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&told)?)
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run a mutant")?;
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                fs::remove_file(&told)?;
                return Ok(Fate::Endless);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = fs::read_to_string(&told)?;
        fs::remove_file(&told)?;
        if status.success() {
            return Ok(Fate::Survived);
        }
        let caught = text
            .lines()
            .find_map(|line| line.strip_prefix("caught by "));
        let Some((by, what)) = caught.and_then(|line| line.split_once(": ")) else {
            bail!("a mutant ended with {status} without a reason");
        };
        Ok(Fate::Caught {
            by: by.to_owned(),
            what: what.to_owned(),
        })
    }
}

/// Copies `from` to `to`. Files with equal content are not written, so that they are not compiled
/// again.
fn mirror(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            mirror(&entry.path(), &target)?;
        } else {
            put(&target, &fs::read(entry.path())?)?;
        }
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !from.join(entry.file_name()).exists() {
            let path = entry.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?;
            } else {
                fs::remove_file(path)?;
            }
        }
    }
    Ok(())
}

/// Writes a file unless it already has this content.
fn put(path: &Path, content: &[u8]) -> Result<()> {
    match fs::read(path) {
        Ok(old) if old == content => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
        }
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    }
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}
