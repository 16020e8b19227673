//! Registered memory: checks that kernels can access the pages, and faults the pages in, as pinning
//! does.

use std::io;

use vgpu_cuda_abi::CuResult;

use super::error::Result;

const PAGE: u64 = 4096;

/// Faults in all pages of `[addr, addr+len)` as writable. If a kernel later accessed a page that
/// does not exist, the process would end.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if the memory does not exist or is not writable.
pub(super) fn populate(addr: u64, len: u64) -> Result {
    let start = addr / PAGE * PAGE;
    let end = addr
        .checked_add(len)
        .and_then(|e| e.checked_next_multiple_of(PAGE));
    let bytes = (end.ok_or(CuResult::INVALID_VALUE)? - start) as usize;
    // SAFETY: the call faults the pages in as a write would, but changes no byte. The operating
    // system checks the range.
    let rc = unsafe { libc::madvise(start as *mut libc::c_void, bytes, libc::MADV_POPULATE_WRITE) };
    if rc == 0 {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        // Linux before 5.14 does not know the call. There, only the existence of the mapping is
        // checked.
        Some(libc::EINVAL | libc::ENOSYS) => mapped(start, bytes),
        Some(libc::ENOMEM | libc::EFAULT) => Err(CuResult::INVALID_VALUE),
        _ => Err(CuResult::OPERATING_SYSTEM),
    }
}

fn mapped(start: u64, bytes: usize) -> Result {
    let mut present = vec![0u8; bytes.div_ceil(PAGE as usize)];
    // SAFETY: `present` has one byte for each page of the range. The operating system checks the
    // range.
    let rc = unsafe { libc::mincore(start as *mut libc::c_void, bytes, present.as_mut_ptr()) };
    if rc == 0 {
        Ok(())
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_memory_cannot_be_registered() {
        let mut data = vec![7u8; 3 * PAGE as usize];
        data[5] = 1;
        assert_eq!(populate(data.as_ptr() as u64 + 5, 2 * PAGE), Ok(()));
        assert_eq!((data[5], data[6]), (1, 7));
        assert_eq!(populate(u64::MAX - 100, 200), Err(CuResult::INVALID_VALUE));
        // SAFETY: a new mapping, which is removed at once, so that the address is not mapped.
        let hole = unsafe {
            let p = libc::mmap(
                std::ptr::null_mut(),
                PAGE as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            libc::munmap(p, PAGE as usize);
            p as u64
        };
        assert_eq!(populate(hole, 100), Err(CuResult::INVALID_VALUE));
    }
}
