//! Finds the pages of a block that the program has written. The kernel write-protects the pages. At
//! the first write to a page, the kernel removes the protection without a fault in the program
//! (`userfaultfd` with asynchronous write protection). The kernel later reports the written pages
//! (`PAGEMAP_SCAN`). Both exist since Linux 6.7. System calls of the program may write to these
//! pages as before. Writes by a device of the guest (`O_DIRECT`) are not reported, because the
//! kernel reports only writes by processors. If the system lacks or forbids the mechanism, all
//! pages count as written.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use vgpu_door::beyond_standard;

/// Smallest block that is watched, in bytes. Comparing a smaller block is faster than a request for
/// its written pages.
const LEAST: usize = 64 * 1024;

const PAGE: usize = 4096;

/// Largest number of regions in one answer of the kernel.
const REGIONS: usize = 256;

/// Constants of `linux/userfaultfd.h`.
mod uffd {
    pub(super) const USER_MODE_ONLY: libc::c_int = 1;
    pub(super) const API: u64 = 0xaa;
    pub(super) const WP_UNPOPULATED: u64 = 1 << 13;
    pub(super) const WP_ASYNC: u64 = 1 << 15;
    pub(super) const MODE_WP: u64 = 1 << 1;
    pub(super) const PROTECT: u64 = 1;
    pub(super) const IOCTL_API: libc::c_ulong = 0xc018_aa3f;
    pub(super) const IOCTL_REGISTER: libc::c_ulong = 0xc020_aa00;
    pub(super) const IOCTL_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
}

/// Constants of `linux/fs.h`.
mod scan {
    pub(super) const IOCTL: libc::c_ulong = 0xc060_6610;
    pub(super) const PROTECT_MATCHING: u64 = 1;
    pub(super) const CHECK_ASYNC: u64 = 2;
    pub(super) const WRITTEN: u64 = 2;

    /// `struct pm_scan_arg`.
    #[repr(C)]
    #[derive(Debug, Default)]
    pub(super) struct Arg {
        pub(super) size: u64,
        pub(super) flags: u64,
        pub(super) start: u64,
        pub(super) end: u64,
        pub(super) walk_end: u64,
        pub(super) regions: u64,
        pub(super) regions_len: u64,
        pub(super) max_pages: u64,
        pub(super) inverted: u64,
        pub(super) all_of: u64,
        pub(super) any_of: u64,
        pub(super) returned: u64,
    }

    /// `struct page_region`.
    #[repr(C)]
    #[derive(Debug, Clone, Copy, Default)]
    pub(super) struct Region {
        pub(super) start: u64,
        pub(super) end: u64,
        pub(super) categories: u64,
    }
}

const _: () = assert!(size_of::<scan::Arg>() == 96 && size_of::<scan::Region>() == 24);

/// The process-wide descriptors of the mechanism.
#[derive(Debug)]
struct Kernel {
    faults: OwnedFd,
    pages: File,
}

impl Kernel {
    fn open() -> Option<Kernel> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | uffd::USER_MODE_ONLY;
        // SAFETY: the call creates a descriptor and touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the descriptor is new and has no other owner.
        let faults = beyond_standard(unsafe { OwnedFd::from_raw_fd(fd) }).ok()?;
        let mut api = [uffd::API, uffd::WP_ASYNC | uffd::WP_UNPOPULATED, 0];
        ioctl(&faults, uffd::IOCTL_API, &mut api)?;
        let pages = File::open("/proc/self/pagemap").ok()?;
        let pages = beyond_standard(pages.into()).ok()?.into();
        Some(Kernel { faults, pages })
    }

    fn get() -> Option<&'static Kernel> {
        static KERNEL: OnceLock<Option<Kernel>> = OnceLock::new();
        KERNEL.get_or_init(Kernel::open).as_ref()
    }
}

fn ioctl<T>(fd: &impl AsRawFd, request: libc::c_ulong, arg: &mut T) -> Option<i32> {
    // SAFETY: each request gets the structure that it is defined for. The callers keep the memory
    // alive that the structure points to.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(arg)) };
    (done >= 0).then_some(done)
}

/// A block whose written pages are reported until the block is unmapped.
#[derive(Debug)]
pub(super) struct Watched {
    kernel: &'static Kernel,
    at: usize,
    len: usize,
}

impl Watched {
    /// Watches anonymous memory from now on; earlier writes are not reported. `None`: the memory
    /// cannot be watched, so all of it always counts as written.
    pub(super) fn new(at: usize, len: usize) -> Option<Watched> {
        if len < LEAST || !at.is_multiple_of(PAGE) {
            return None;
        }
        let len = len.next_multiple_of(PAGE);
        let kernel = Kernel::get()?;
        let mut register = [at as u64, len as u64, uffd::MODE_WP, 0];
        ioctl(&kernel.faults, uffd::IOCTL_REGISTER, &mut register)?;
        let mut protect = [at as u64, len as u64, uffd::PROTECT];
        ioctl(&kernel.faults, uffd::IOCTL_WRITEPROTECT, &mut protect)?;
        Some(Watched { kernel, at, len })
    }

    /// Reports the ranges of bytes whose pages were written since the last call, or all bytes if
    /// the kernel fails to answer.
    pub(super) fn written(&self, mut each: impl FnMut(Range<usize>)) {
        let mut regions = [scan::Region::default(); REGIONS];
        let end = (self.at + self.len) as u64;
        let mut from = self.at as u64;
        while from < end {
            let mut arg = scan::Arg {
                size: size_of::<scan::Arg>() as u64,
                flags: scan::PROTECT_MATCHING | scan::CHECK_ASYNC,
                start: from,
                end,
                regions: regions.as_mut_ptr() as u64,
                regions_len: REGIONS as u64,
                all_of: scan::WRITTEN,
                returned: scan::WRITTEN,
                ..scan::Arg::default()
            };
            let found = ioctl(&self.kernel.pages, scan::IOCTL, &mut arg);
            let Some(found) = found.filter(|_| arg.walk_end > from) else {
                return each(from as usize - self.at..self.len);
            };
            for region in regions.iter().take(found as usize) {
                each(region.start as usize - self.at..region.end as usize - self.at);
            }
            from = arg.walk_end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 3 << 20;
    const NONE: [usize; 0] = [];

    fn mapping() -> usize {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as usize
    }

    fn write(at: usize, value: u8) {
        // SAFETY: within the test's mapping.
        unsafe { (at as *mut u8).write_volatile(value) };
    }

    fn pages(watched: &Watched) -> Vec<usize> {
        let mut all = Vec::new();
        watched.written(|bytes| all.extend(bytes.step_by(PAGE).map(|at| at / PAGE)));
        all
    }

    #[test]
    fn pages_that_were_written_are_told_once() {
        let at = mapping();
        // Some pages exist in memory before the test, some do not.
        for page in 0..300 {
            write(at + page * PAGE, 1);
        }
        let Some(watched) = Watched::new(at, LEN - 100) else {
            eprintln!(
                "SKIPPED: this system does not tell which pages were written (Linux 6.7, userfaultfd)"
            );
            return;
        };
        assert_eq!(pages(&watched), NONE);
        write(at + 5 * PAGE + 17, 2);
        write(at + 700 * PAGE, 2);
        assert_eq!(pages(&watched), [5, 700]);
        assert_eq!(pages(&watched), NONE, "protected again");
        // A write by the kernel on behalf of the program.
        let mut pipe = [0; 2];
        // SAFETY: two new descriptors; the read goes to a page of the mapping.
        unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            assert_eq!(libc::write(pipe[1], b"abc".as_ptr().cast(), 3), 3);
            let page = (at + 6 * PAGE) as *mut libc::c_void;
            assert_eq!(libc::read(pipe[0], page, 3), 3);
            let _ = pipe.map(|fd| libc::close(fd));
        }
        assert_eq!(pages(&watched), [6]);
        // More regions than fit into one answer of the kernel.
        let odd: Vec<usize> = (0..LEN / PAGE).filter(|page| page % 2 == 1).collect();
        for page in &odd {
            write(at + page * PAGE, 3);
        }
        assert!(odd.len() > REGIONS);
        assert_eq!(pages(&watched), odd);
        // SAFETY: the test's own mapping.
        unsafe { libc::munmap(at as *mut libc::c_void, LEN) };
    }

    #[test]
    fn small_blocks_and_parts_of_pages_are_not_watched() {
        let at = mapping();
        assert!(Watched::new(at, LEAST - 1).is_none());
        assert!(Watched::new(at + 1, LEN / 2).is_none());
        // SAFETY: the test's own mapping.
        unsafe { libc::munmap(at as *mut libc::c_void, LEN) };
    }
}
