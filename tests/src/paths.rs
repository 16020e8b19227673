//! Paths of built files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};

/// The repository's root.
pub fn root() -> PathBuf {
    // The folder tests/ lies directly below the root.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

/// The directory of this build's binaries (`target/debug`, `target/release`).
///
/// # Errors
/// If this executable is not in a cargo target directory.
pub fn build_dir() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe().context("finding this executable")?;
    let dir = exe
        .parent()
        .context("this executable lies in no directory")?;
    // Tests are in deps/, binaries next to it.
    let dir = if dir.ends_with("deps") {
        dir.parent().unwrap_or(dir)
    } else {
        dir
    };
    Ok(dir.to_path_buf())
}

/// Whether other users cannot access the directory.
pub fn is_closed(dir: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    dir.ancestors().any(|way| {
        way.metadata()
            .is_ok_and(|meta| meta.permissions().mode() & 0o1 == 0)
    })
}

/// A file of the build.
///
/// # Errors
/// If the file does not exist, with the command that builds it.
pub fn built(name: &str) -> anyhow::Result<PathBuf> {
    let path = build_dir()?.join(name);
    ensure!(
        path.exists(),
        "{} is not built; run `make build` first",
        path.display()
    );
    Ok(path)
}

/// A directory that holds `library` under the name `libcuda.so.1` and nothing else, for
/// LD_LIBRARY_PATH.
///
/// # Errors
/// If the library is not built, or the directory cannot be created.
pub fn library_dir(library: &str, dir: &str) -> anyhow::Result<PathBuf> {
    linked(library, dir, &["libcuda.so.1", "libcuda.so"])
}

fn linked(library: &str, dir: &str, names: &[&str]) -> anyhow::Result<PathBuf> {
    let library = built(library)?;
    let dir = build_dir()?.join(dir);
    std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    for name in names {
        let link = dir.join(name);
        if std::fs::read_link(&link).ok().as_deref() != Some(&*library) {
            // Created under a temporary name and renamed, because several processes and threads do
            // this at the same time.
            static LINKS: AtomicU64 = AtomicU64::new(0);
            let number = LINKS.fetch_add(1, Ordering::Relaxed);
            let temporary = dir.join(format!("{name}.{}.{number}", std::process::id()));
            let _ = std::fs::remove_file(&temporary);
            std::os::unix::fs::symlink(&library, &temporary)
                .and_then(|()| std::fs::rename(&temporary, &link))
                .with_context(|| format!("linking {}", link.display()))?;
        }
    }
    Ok(dir)
}

/// The directory with the guest library as `libcuda.so.1`.
///
/// # Errors
/// As [`library_dir`].
pub fn shim_dir() -> anyhow::Result<PathBuf> {
    library_dir("libcuda.so", "guest-lib")
}

/// The directory with soft-gpu as `libcuda.so.1`.
///
/// # Errors
/// As [`library_dir`].
pub fn soft_gpu_dir() -> anyhow::Result<PathBuf> {
    library_dir("libsoft_gpu.so", "soft-gpu-lib")
}

/// The directory with the guests' management library as `libnvidia-ml.so.1`.
///
/// # Errors
/// As [`library_dir`].
pub fn nvml_dir() -> anyhow::Result<PathBuf> {
    linked("libnvidia_ml.so", "nvml-lib", &["libnvidia-ml.so.1"])
}
