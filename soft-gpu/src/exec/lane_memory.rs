//! Reads the memory of a lane.

use super::env::Env;
use super::ops::memory::host_address;
use super::warp::Warp;

/// Longest string, in bytes, that device code may print at once.
const MAX_TEXT: u64 = 64 * 1024;

/// The memory as one lane sees it, to read text and arguments.
pub(crate) struct LaneMemory<'a> {
    w: &'a Warp,
    env: &'a Env<'a>,
    lane: usize,
}

impl<'a> LaneMemory<'a> {
    /// The memory of this lane.
    pub(crate) fn new(w: &'a Warp, env: &'a Env<'a>, lane: usize) -> LaneMemory<'a> {
        LaneMemory { w, env, lane }
    }

    /// Reads `N` bytes at a generic address. An invalid address is the error.
    pub(crate) fn bytes<const N: usize>(&self, addr: u64) -> Result<[u8; N], u64> {
        let mut out = [0u8; N];
        for (k, b) in out.iter_mut().enumerate() {
            *b = self.byte(addr.wrapping_add(k as u64))?;
        }
        Ok(out)
    }

    fn byte(&self, addr: u64) -> Result<u8, u64> {
        let p = host_address(self.w, self.env, self.lane, addr, 1, false).ok_or(addr)?;
        // SAFETY: `host_address` checked that the byte is readable.
        Ok(unsafe { p.read_volatile() })
    }

    /// Reads a NUL-terminated string, of at most 64 KiB.
    pub(crate) fn text(&self, addr: u64) -> Result<Vec<u8>, u64> {
        let mut out = Vec::new();
        for k in 0..MAX_TEXT {
            match self.byte(addr.wrapping_add(k))? {
                0 => break,
                b => out.push(b),
            }
        }
        Ok(out)
    }
}
