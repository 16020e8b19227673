//! Device `printf`: the driver writes it to this process's standard output, which is a file in
//! memory; what appears there goes to the guest.

use std::os::fd::OwnedFd;

use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::pread;

use crate::driver::flush_stdio;

/// Bytes forwarded while the guest does not read; what comes beyond is dropped and counted.
const PENDING_LIMIT: usize = 4 << 20;

/// The captured output.
#[derive(Debug)]
pub struct Printf {
    file: OwnedFd,
    read: i64,
    dropped: u64,
    /// A loaded module may print.
    armed: bool,
    /// Kernels were launched since the last look.
    launched: bool,
}

impl Printf {
    /// Puts a file in memory in the place of standard output.
    ///
    /// # Errors
    /// The system's.
    pub fn capture() -> nix::Result<Printf> {
        let file = memfd_create(c"device-printf", MFdFlags::MFD_CLOEXEC)?;
        // Appending lets the part that was read be cut out without racing against the writer.
        fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
        nix::unistd::dup2_stdout(&file)?;
        Ok(Printf {
            file,
            read: 0,
            dropped: 0,
            armed: false,
            launched: false,
        })
    }

    /// A module that may print was loaded.
    pub fn arm(&mut self) {
        self.armed = true;
    }

    /// A kernel was launched.
    pub fn launched(&mut self) {
        self.launched = true;
    }

    /// May there be output that nobody has looked for?
    pub fn due(&self) -> bool {
        self.armed && self.launched
    }

    /// What was printed since the last call. `pending` bytes wait for the guest to read already.
    pub fn collect(&mut self, pending: usize) -> Vec<u8> {
        self.launched = false;
        flush_stdio();
        let mut text = Vec::new();
        let mut piece = [0u8; 16 * 1024];
        let start = self.read;
        while let Ok(n @ 1..) = pread(&self.file, &mut piece, self.read) {
            self.read += n as i64;
            let room = PENDING_LIMIT.saturating_sub(pending + text.len());
            let keep = n.min(room);
            self.dropped += (n - keep) as u64;
            text.extend_from_slice(&piece[..keep]);
            if n < piece.len() {
                break;
            }
        }
        if self.read > start {
            let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // Only the memory is at stake; without it the pages stay until the session ends.
            let _ = fallocate(&self.file, flags, start, self.read - start);
        }
        if self.dropped > 0 && pending + text.len() < PENDING_LIMIT / 2 {
            let note = format!(
                "\n[vgpu: {} bytes of device printf were dropped]\n",
                self.dropped
            );
            self.dropped = 0;
            text.extend_from_slice(note.as_bytes());
        }
        text
    }
}

/// May a module of this image print? The name of the device runtime's function stands in PTX and in
/// uncompressed binaries; a fat binary may be compressed and is taken to print, as is one so large
/// that the search would take long.
pub(crate) fn may_print(image: &[u8]) -> bool {
    const FATBIN_MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
    const SEARCHED: usize = 32 << 20;
    image.len() > SEARCHED
        || image.starts_with(&FATBIN_MAGIC)
        || find(image, b"vprintf")
        || find(image, b"__assertfail")
}

fn find(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_print_are_told_apart() {
        assert!(may_print(b".extern .func (.param .b32 r) vprintf"));
        assert!(may_print(b"\x50\xed\x55\xba compressed"));
        assert!(!may_print(b".visible .entry add()"));
        assert!(!may_print(b""));
    }
}
