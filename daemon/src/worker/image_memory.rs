//! Memory of a module image that a guest sends: the worker fills it, and vgpud frees it.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

/// Memory of one image. When the descriptor is closed, calls the function given to
/// [`ImageMemory::new`] on the thread that closes it.
#[derive(Debug)]
pub struct ImageMemory {
    // Fields are dropped in this order: `OnClose` runs after the descriptor is closed.
    file: File,
    _on_close: OnClose,
}

struct OnClose(Option<Box<dyn FnOnce() + Send + Sync>>);

impl fmt::Debug for OnClose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnClose")
    }
}

impl Drop for OnClose {
    fn drop(&mut self) {
        if let Some(closed) = self.0.take() {
            closed();
        }
    }
}

impl ImageMemory {
    /// Creates memory of `len` bytes, which no process can enlarge again after
    /// [`ImageMemory::free`]. `closed` is called when the descriptor is closed.
    ///
    /// # Errors
    /// If the system cannot create the descriptor; `closed` is not called.
    pub fn new(len: u64, closed: impl FnOnce() + Send + Sync + 'static) -> io::Result<ImageMemory> {
        let fd = memfd_create(
            c"vgpu-image",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        let len = i64::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        ftruncate(&fd, len)?;
        // Sealed against further seals: otherwise a worker could add a seal against shrinking.
        let seals = SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(ImageMemory {
            file: File::from(fd),
            _on_close: OnClose(Some(Box::new(closed))),
        })
    }

    /// The file with the bytes.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Frees the memory, also for processes that still have a descriptor or a mapping of it. Waits
    /// for a worker that allocates pages of it at the time.
    ///
    /// # Errors
    /// Of ftruncate(2): the memory still exists.
    pub fn free(&self) -> io::Result<()> {
        self.file.set_len(0)
    }
}

impl AsFd for ImageMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::mpsc;

    #[test]
    fn memory_for_an_image_keeps_its_size() {
        let memory = ImageMemory::new(5_000, || ()).unwrap();
        assert_eq!(memory.file().metadata().unwrap().len(), 5_000);
        assert!(memory.file().set_len(10_000).is_err());
        assert!(memory.file().write_all_at(&[1; 5_000], 0).is_ok());
        let beyond = memory.file().write_all_at(&[1; 2], 4_999);
        assert!(beyond.is_err(), "beyond the end");
        let worker = memory.file().try_clone().unwrap();
        let no_shrink = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK);
        assert!(
            fcntl(&worker, no_shrink).is_err(),
            "a worker cannot add seals"
        );
        memory.free().unwrap();
        assert!(worker.set_len(1).is_err() && worker.write_all_at(&[1], 0).is_err());
        let left = worker.metadata().unwrap();
        assert_eq!((left.len(), left.blocks()), (0, 0));
    }

    #[test]
    fn the_callback_runs_after_the_last_owner_closed_the_descriptor() {
        let (tell, told) = mpsc::channel();
        let memory = Arc::new(ImageMemory::new(4_096, move || tell.send(()).unwrap()).unwrap());
        let at = PathBuf::from(format!("/proc/self/fd/{}", memory.file().as_raw_fd()));
        let other = memory.clone();
        drop(memory);
        assert!(told.try_recv().is_err());
        drop(other);
        told.try_recv().unwrap();
        let there = std::fs::read_link(at);
        assert!(there.is_err() || !there.unwrap().to_string_lossy().contains("vgpu-image"));
    }
}
