//! The path of the fake worker.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The fake worker's program. Workers have users of their own. If those users cannot reach the
/// build directory (for example in root's home), this is a copy in `dir`, which they can reach.
pub(crate) fn fake_worker(dir: &Path) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_vgpud-fake-worker"));
    let closed = |way: &Path| {
        way.metadata()
            .is_ok_and(|meta| meta.permissions().mode() & 0o1 == 0)
    };
    if !nix::unistd::geteuid().is_root() || !built.ancestors().any(closed) {
        return built.to_path_buf();
    }
    let copy = dir.join("fake-worker");
    std::fs::copy(built, &copy).expect("a copy of the fake worker");
    copy
}
