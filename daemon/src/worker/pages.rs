//! The two shared pages of a worker, created and mapped.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::ftruncate;
use vgpu_proto::lease::{DaemonEnd, HintPage, LeasePage, PAGE_BYTES};

/// Both pages of one worker: mapped into vgpud, and as descriptors for the worker.
///
/// The files of the lease page and the hint page are sealed: the worker can neither shrink a file
/// (an access of vgpud would then be fatal) nor write to the lease page.
#[derive(Debug)]
pub struct Pages {
    lease: Page,
    hints: Page,
}

impl Pages {
    /// Creates two pages.
    ///
    /// # Errors
    /// If memory, mappings or descriptors run out.
    pub fn new() -> io::Result<Pages> {
        // Mapped before the seal is set: F_SEAL_FUTURE_WRITE forbids all later writable mappings.
        let lease = Page::new(c"vgpu-lease", SealFlag::F_SEAL_FUTURE_WRITE)?;
        let hints = Page::new(c"vgpu-hints", SealFlag::empty())?;
        Ok(Pages { lease, hints })
    }

    /// vgpud's page, which the worker can only read.
    #[must_use]
    pub fn lease_fd(&self) -> &OwnedFd {
        &self.lease.fd
    }

    /// The worker's page, which both sides can write.
    #[must_use]
    pub fn hints_fd(&self) -> &OwnedFd {
        &self.hints.fd
    }

    /// vgpud's end of both pages.
    #[must_use]
    pub fn end(&self) -> DaemonEnd<'_> {
        // SAFETY: the mapping is a whole page, page-aligned, zero-filled or written by atomics
        // only, and lives as long as `self`; both types consist of atomics alone, for which every
        // bit pattern is valid and which may be shared with another process that writes to them.
        // The seals keep the file at its size, so that no access faults.
        let (lease, hints) = unsafe {
            (
                self.lease.at.cast::<LeasePage>().as_ref(),
                self.hints.at.cast::<HintPage>().as_ref(),
            )
        };
        DaemonEnd::new(lease, hints)
    }
}

#[derive(Debug)]
struct Page {
    fd: OwnedFd,
    at: NonNull<c_void>,
}

// SAFETY: the mapping belongs to this value alone and is only read and written through atomics.
unsafe impl Send for Page {}
// SAFETY: as above; a shared reference gives access to atomics only.
unsafe impl Sync for Page {}

impl Page {
    fn new(name: &std::ffi::CStr, seal: SealFlag) -> io::Result<Page> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create(name, flags)?;
        ftruncate(&fd, PAGE_BYTES.try_into().map_err(io::Error::other)?)?;
        let length = NonZeroUsize::new(PAGE_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let at = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, &fd, 0)? };
        let page = Page { fd, at };
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL | seal;
        fcntl(&page.fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(page)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `Page::new` with this length. No reference to it is left,
        // because every reference borrows `self`.
        let unmapped = unsafe { munmap(self.at, PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use vgpu_proto::lease::{GrantTerms, Hints};

    #[test]
    fn pages_are_sealed_against_the_worker() {
        let pages = Pages::new().unwrap();
        assert_eq!(pages.end().hints(), Hints::default());
        let terms = GrantTerms {
            epoch: 3,
            slice_end_ns: 4,
            hold_ns: 5,
            window_ns: 8,
            credit_calls: 6,
            credit_bytes: 7,
            beside: false,
        };
        pages.end().grant(&terms, false);

        for fd in [pages.lease_fd(), pages.hints_fd()] {
            assert_eq!(ftruncate(fd, 0), Err(Errno::EPERM), "cannot be shrunk");
        }
        assert_eq!(
            nix::unistd::write(pages.lease_fd(), b"x"),
            Err(Errno::EPERM)
        );
        assert_eq!(nix::unistd::write(pages.hints_fd(), b"x"), Ok(1));

        let length = NonZeroUsize::new(PAGE_BYTES).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping replaces nothing; the kernel must refuse this mapping.
        let mapped = unsafe {
            mmap(
                None,
                length,
                access,
                MapFlags::MAP_SHARED,
                pages.lease_fd(),
                0,
            )
        };
        assert_eq!(
            mapped.map(|_| ()),
            Err(Errno::EPERM),
            "vgpud's page cannot be mapped writable"
        );
    }
}
