//! Memory files: physical memory that processes can share by file descriptor.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

/// Prefix of the name of a memory file. The physical index of the device follows.
const NAME: &str = "soft-gpu-device-";
/// Seals that forbid a change of the size, because other processes map the file.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Creates a memory file of `size` bytes for physical device `physical`.
///
/// # Errors
/// The error of the operating system.
pub fn create(size: u64, physical: usize) -> io::Result<File> {
    let name = format!("{NAME}{physical}\0");
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a NUL-terminated name; the result is a new descriptor of our own.
    let fd = checked(unsafe { libc::memfd_create(name.as_ptr().cast(), flags) })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(size)?;
    // SAFETY: a descriptor of our own, and a number.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(file)
}

/// Returns a new descriptor of the same file. The caller closes the descriptor.
///
/// # Errors
/// The error of the operating system.
pub fn duplicate(fd: RawFd) -> io::Result<RawFd> {
    // SAFETY: the call returns a new descriptor, or fails for an invalid descriptor.
    checked(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })
}

/// Opens the memory file behind a descriptor that another process exported. Returns the file, the
/// size in bytes and the physical index of the device; `None` unless [`create`] made the file. The
/// caller keeps `fd`.
pub fn adopt(fd: RawFd) -> Option<(File, u64, usize)> {
    let own = duplicate(fd).ok()?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(own) };
    // SAFETY: a descriptor of our own.
    let seals = checked(unsafe { libc::fcntl(own, libc::F_GET_SEALS) }).ok()?;
    let path = std::fs::read_link(format!("/proc/self/fd/{own}")).ok()?;
    let name = path.to_str()?.strip_prefix("/memfd:")?;
    let number = name.strip_suffix(" (deleted)").unwrap_or(name);
    let physical = number.strip_prefix(NAME)?.parse().ok()?;
    let size = file.metadata().ok()?.len();
    (seals & SEALS == SEALS).then_some((file, size, physical))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_soft_gpu_are_adopted() {
        let file = create(1 << 21, 3).expect("memory");
        let (same, size, physical) = adopt(file.as_raw_fd()).expect("it is one");
        assert_eq!((size, physical), (1 << 21, 3));
        assert!(same.set_len(4096).is_err(), "the size is sealed");
        let other = File::open("/proc/self/exe").expect("there is one");
        assert!(adopt(other.as_raw_fd()).is_none());
        assert!(adopt(-1).is_none());
    }
}
