//! Memory for one module image that comes in: a worker fills it, and vgpud takes it away again.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

/// Memory for an image. Who counts it is told when its descriptor is closed, wherever that happens.
#[derive(Debug)]
pub struct Room {
    // Fields are dropped in this order: the descriptor is closed when `Told` tells.
    file: File,
    _told: Told,
}

struct Told(Option<Box<dyn FnOnce() + Send + Sync>>);

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell();
        }
    }
}

impl Room {
    /// Memory of `len` bytes, which nobody can make longer: what [`Room::end`] took is gone. `closed` is
    /// called when its descriptor is closed.
    ///
    /// # Errors
    /// When the system gives no descriptor; `closed` is not called.
    pub fn new(len: u64, closed: impl FnOnce() + Send + Sync + 'static) -> io::Result<Room> {
        let fd = memfd_create(
            c"vgpu-image",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )?;
        let len = i64::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        ftruncate(&fd, len)?;
        // No worker may seal it against being made shorter.
        let seals = SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Room {
            file: File::from(fd),
            _told: Told(Some(Box::new(closed))),
        })
    }

    /// The bytes.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Takes the memory from whoever still has a descriptor or a mapping of it. Waits for a worker that
    /// allocates there at the time.
    ///
    /// # Errors
    /// The system's: the memory is still there.
    pub fn end(&self) -> io::Result<()> {
        self.file.set_len(0)
    }
}

impl AsFd for Room {
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
        let room = Room::new(5_000, || ()).unwrap();
        assert_eq!(room.file().metadata().unwrap().len(), 5_000);
        assert!(room.file().set_len(10_000).is_err());
        assert!(room.file().write_all_at(&[1; 5_000], 0).is_ok());
        let beyond = room.file().write_all_at(&[1; 2], 4_999);
        assert!(beyond.is_err(), "beyond the end");
        let worker = room.file().try_clone().unwrap();
        let no_shrink = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK);
        assert!(fcntl(&worker, no_shrink).is_err(), "a worker seals nothing");
        room.end().unwrap();
        assert!(worker.set_len(1).is_err() && worker.write_all_at(&[1], 0).is_err());
        let left = worker.metadata().unwrap();
        assert_eq!((left.len(), left.blocks()), (0, 0));
    }

    #[test]
    fn who_counts_descriptors_is_told_when_the_last_owner_has_closed_it() {
        let (tell, told) = mpsc::channel();
        let room = Arc::new(Room::new(4_096, move || tell.send(()).unwrap()).unwrap());
        let at = PathBuf::from(format!("/proc/self/fd/{}", room.file().as_raw_fd()));
        let other = room.clone();
        drop(room);
        assert!(told.try_recv().is_err());
        drop(other);
        told.try_recv().unwrap();
        let there = std::fs::read_link(at);
        assert!(there.is_err() || !there.unwrap().to_string_lossy().contains("vgpu-image"));
    }
}
