//! The two pages shared with vgpud, which stay mapped until the process ends.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::stat::fstat;
use vgpu_proto::lease::{HintPage, LeasePage, PAGE_BYTES, WorkerEnd};

/// Maps the lease page (read-only) and the hint page.
///
/// # Errors
/// A sentence if a descriptor is not a page that can be mapped.
pub fn map(lease: &OwnedFd, hint: &OwnedFd) -> Result<WorkerEnd<'static>, String> {
    let lease = map_page(lease, ProtFlags::PROT_READ)?;
    let hint = map_page(hint, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
    // SAFETY: a page of at least this size and alignment, never unmapped. All its words are
    // atomics, for which any bits are a valid value. The page is mapped read-only, and the worker's
    // end only loads from it.
    let lease = unsafe { &*lease.cast::<LeasePage>() };
    // SAFETY: as above, and mapped writable.
    let hint = unsafe { &*hint.cast::<HintPage>() };
    Ok(WorkerEnd::new(lease, hint))
}

fn map_page(fd: &OwnedFd, protection: ProtFlags) -> Result<*const u8, String> {
    let len = fstat(fd)
        .map_err(|e| format!("a shared page: {e}"))?
        .st_size;
    if len < PAGE_BYTES as i64 {
        return Err(format!(
            "a shared page of {len} bytes; {PAGE_BYTES} are needed"
        ));
    }
    let size = NonZeroUsize::new(PAGE_BYTES).unwrap_or(NonZeroUsize::MIN);
    // SAFETY: a new shared mapping of a file that is long enough; vgpud has sealed the file's size.
    let page = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, fd.as_fd(), 0) }
        .map_err(|e| format!("cannot map a shared page: {e}"))?;
    Ok(page.as_ptr().cast())
}
