//! vgpud's own copies of the programs that it runs as other users.
//!
//! A user that may read a program may inspect and trace a process of the same user that runs it. A
//! worker that its guest controls could then take over the next worker of its VM before that worker
//! has protected itself. A copy that no user may read, only execute, is protected from its first
//! instruction on (`would_dump` in the kernel).

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc::MFD_EXEC;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Magic number of executables.
const ELF: &[u8] = b"\x7fELF";

/// Copies by the paths of their originals. A copy is made once: vgpud and its workers are of one
/// version, also after an upgrade has replaced the originals.
#[derive(Debug, Default)]
pub(super) struct Programs(Mutex<HashMap<PathBuf, Program>>);

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// `None`: the program is run from its own path. This is so for a script, which the user that
    /// runs it must be able to read, and for a program that vgpud cannot read.
    copy: Option<Arc<File>>,
    path: PathBuf,
}

impl Program {
    /// The path to run. Valid as long as this value exists, and only in children of vgpud.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match &self.copy {
            Some(copy) => format!("/proc/self/fd/{}", copy.as_raw_fd()).into(),
            None => self.path.clone(),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl Programs {
    pub(super) fn copy(&self, path: &Path) -> io::Result<Program> {
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = copies.get(path) {
            return Ok(program.clone());
        }
        let copy = match File::open(path) {
            Ok(mut original) => copy(&mut original)?.map(Arc::new),
            // If vgpud is not root, its workers have the same user and cannot read the program
            // either.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => None,
            Err(e) => return Err(e),
        };
        let path = path.to_path_buf();
        let program = Program {
            copy,
            path: path.clone(),
        };
        if program.copy.is_some() {
            copies.insert(path, program.clone());
        }
        Ok(program)
    }
}

/// A sealed copy in memory that may only be executed.
fn copy(original: &mut File) -> io::Result<Option<File>> {
    let mut begin = Vec::with_capacity(ELF.len());
    let length = u64::try_from(ELF.len()).unwrap_or(0);
    (&mut *original).take(length).read_to_end(&mut begin)?;
    if begin != ELF {
        return Ok(None);
    }
    original.rewind()?;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Kernels before 6.3 refuse MFD_EXEC and make every memfd executable.
    let file = memfd_create(c"vgpu-worker", flags | MFdFlags::from_bits_retain(MFD_EXEC))
        .or_else(|_| memfd_create(c"vgpu-worker", flags))?;
    let mut file = File::from(file);
    io::copy(original, &mut file)?;
    file.set_permissions(PermissionsExt::from_mode(0o111))?;
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_WRITE;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_does_not_replace_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let installed = dir.path().join("worker");
        std::fs::copy("/bin/true", &installed).unwrap();
        let programs = Programs::default();
        programs.copy(&installed).unwrap();
        // As a package manager does: a new file takes the name of the old file.
        std::fs::copy("/bin/false", dir.path().join("new")).unwrap();
        std::fs::rename(dir.path().join("new"), &installed).unwrap();
        let run = |programs: &Programs| {
            let program = programs.copy(&installed).unwrap();
            let status = std::process::Command::new(program.path()).status().unwrap();
            status.success()
        };
        assert!(run(&programs), "the program of before the upgrade");
        assert!(
            !run(&Programs::default()),
            "the next vgpud has the new program"
        );
    }

    #[test]
    fn a_program_that_vgpud_cannot_read_is_run_where_it_is() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: a test of users needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
        let installed = dir.path().join("true");
        std::fs::copy("/bin/true", &installed).unwrap();
        let mode = |mode| std::fs::set_permissions(&installed, PermissionsExt::from_mode(mode));
        let as_nobody = || {
            std::thread::scope(|scope| {
                let run = || {
                    let (uid, gid) = (
                        rustix::thread::Uid::from_raw(65_534),
                        rustix::thread::Gid::from_raw(65_534),
                    );
                    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                    let program = Programs::default().copy(&installed)?;
                    let status = std::process::Command::new(program.path()).status()?;
                    Ok::<_, io::Error>((program.path(), status.success()))
                };
                scope.spawn(run).join().unwrap()
            })
        };
        mode(0o711).unwrap();
        assert_eq!(as_nobody().unwrap(), (installed.clone(), true));
        mode(0o700).unwrap();
        let refused = as_nobody().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        mode(0o755).unwrap();
        assert_ne!(as_nobody().unwrap().0, installed, "a copy");
    }
}
