//! vgpud's own copies of the programs that it starts as others.
//!
//! Who may read a program may look into a process that runs it and is of the same user: a worker
//! that its guest has taken over could seize the next worker of its VM before that one has closed
//! itself. A copy that nobody may read, only run, is closed from its first instruction on
//! (`would_dump` in the kernel).

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc::MFD_EXEC;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// How executables begin.
const ELF: &[u8] = b"\x7fELF";

/// Copies by the path of their originals.
#[derive(Debug, Default)]
pub(super) struct Programs(Mutex<HashMap<PathBuf, (Stamp, Program)>>);

/// What differs once a program was installed anew: device, inode, size, time of change.
type Stamp = (u64, u64, u64, i64, i64);

/// A program to be run.
#[derive(Debug, Clone)]
pub struct Program {
    /// `None`: it is run where it is. A script, which whoever runs it must read; or a program that
    /// vgpud itself cannot read.
    copy: Option<Arc<File>>,
    path: PathBuf,
}

impl Program {
    /// Where it is run, as long as this is there, by vgpud's children only.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match &self.copy {
            Some(copy) => format!("/proc/self/fd/{}", copy.as_raw_fd()).into(),
            None => self.path.clone(),
        }
    }
}

impl fmt::Display for Program {
    /// Its original's path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl Programs {
    pub(super) fn copy(&self, path: &Path) -> io::Result<Program> {
        let mut original = match File::open(path) {
            // Of a vgpud that is not root: neither can its workers read it, which are of its user.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(Program {
                    copy: None,
                    path: path.to_path_buf(),
                });
            }
            opened => opened?,
        };
        let meta = original.metadata()?;
        let (ctime, ctime_ns) = (meta.ctime(), meta.ctime_nsec());
        let stamp = (meta.dev(), meta.ino(), meta.size(), ctime, ctime_ns);
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, program)) = copies.get(path)
            && *of == stamp
        {
            return Ok(program.clone());
        }
        let program = Program {
            copy: copy(&mut original)?.map(Arc::new),
            path: path.to_path_buf(),
        };
        copies.insert(path.to_path_buf(), (stamp, program.clone()));
        Ok(program)
    }
}

/// A sealed copy in memory, with no right but to be run.
fn copy(original: &mut File) -> io::Result<Option<File>> {
    let mut begin = Vec::with_capacity(ELF.len());
    let length = u64::try_from(ELF.len()).unwrap_or(0);
    (&mut *original).take(length).read_to_end(&mut begin)?;
    if begin != ELF {
        return Ok(None);
    }
    original.rewind()?;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Kernels before 6.3 refuse MFD_EXEC and let every such file be executed.
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
