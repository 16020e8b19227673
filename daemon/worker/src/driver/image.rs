//! A module image mapped from its file, followed by zero bytes.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

const PAGE: usize = 4096;

/// Read-only view of a file, followed by at least one zero byte, because PTX text must end with
/// NUL.
#[derive(Debug)]
pub struct MappedImage {
    base: NonNull<std::ffi::c_void>,
    mapped: NonZeroUsize,
    len: usize,
}

// SAFETY: read-only memory.
unsafe impl Send for MappedImage {}
// SAFETY: as above.
unsafe impl Sync for MappedImage {}

impl MappedImage {
    /// Maps the first `len` bytes of `file`, which must not be shorter.
    ///
    /// # Errors
    /// An empty or shorter file, or an error of the system.
    pub fn map(file: &File, len: usize) -> io::Result<MappedImage> {
        let Some(length) = NonZeroUsize::new(len) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an empty image",
            ));
        };
        if file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a truncated image",
            ));
        }
        let mapped = len.next_multiple_of(PAGE).saturating_add(PAGE);
        let mapped = NonZeroUsize::new(mapped).unwrap_or(length);
        // SAFETY: a fresh private reservation. Its last page stays zero.
        let base =
            unsafe { mmap_anonymous(None, mapped, ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE) }?;
        // From here on the image owns the reservation, so that an error below unmaps it.
        let image = MappedImage { base, mapped, len };
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
        let at = NonZeroUsize::new(base.as_ptr() as usize);
        // SAFETY: replaces the first pages of our own reservation.
        unsafe { mmap(at, length, ProtFlags::PROT_READ, flags, file.as_fd(), 0) }?;
        Ok(image)
    }

    /// The image without the zero bytes.
    ///
    /// The file belongs to vgpud, and no process shortens the file while it is mapped. It is a file
    /// of the cache, or memory of an image, which vgpud frees only after this process has unmapped
    /// it and has reported this to vgpud.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` readable bytes, mapped for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len) }
    }
}

impl Drop for MappedImage {
    fn drop(&mut self) {
        // SAFETY: the whole of our own reservation; no borrow is left.
        let _ = unsafe { munmap(self.base, self.mapped.get()) };
    }
}
