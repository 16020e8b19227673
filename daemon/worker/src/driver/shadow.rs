//! Copies of guest memory that kernels access, at the same addresses as in the guest program.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use vgpu_proto::changes::{LINE, Shared, parts};
use vgpu_proto::cuda::CuResult;

use super::{Context, Result, Slot, raw};

/// `CU_MEMHOSTREGISTER_PORTABLE`, `DEVICEMAP`: accessible to kernels of every context.
const FLAGS: u32 = 0x01 | 0x02;

const PAGE: u64 = 4096;

/// Memory of this process at an address that the guest chose, page-locked and mapped for every
/// context. The device may write to it at any time.
#[derive(Debug)]
pub struct Shadow {
    at: u64,
    len: usize,
    /// The mapping, in whole pages: first address, number of bytes.
    pages: (u64, usize),
    context: Arc<Context>,
    _slot: Slot,
}

impl Shadow {
    /// Creates zeroed memory. `context` may be any context, and is kept alive.
    ///
    /// # Errors
    /// CUDA_ERROR_ALREADY_MAPPED if this process uses the addresses; CUDA_ERROR_NOT_SUPPORTED if
    /// the device maps the memory at another address; the error of the driver, if it cannot
    /// page-lock more.
    pub fn new(context: &Arc<Context>, slot: Slot, at: u64, len: u64) -> Result<Shadow> {
        let first = at & !(PAGE - 1);
        let end = at
            .checked_add(len)
            .and_then(|end| end.checked_next_multiple_of(PAGE));
        let bytes = (end.ok_or(CuResult::INVALID_VALUE)? - first) as usize;
        map(first, bytes)?;
        let registered = register(context, first, bytes);
        if registered.is_err() {
            unmap(first, bytes);
        }
        registered?;
        Ok(Shadow {
            at,
            len: len as usize,
            pages: (first, bytes),
            context: Arc::clone(context),
            _slot: slot,
        })
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Pointer to a line of the memory, and the number of bytes of the line.
    fn line(&self, line: usize) -> (*mut u8, usize) {
        let start = line.saturating_mul(LINE).min(self.len);
        (
            (self.at + start as u64) as *mut u8,
            (self.len - start).min(LINE),
        )
    }
}

impl Shared for Shadow {
    fn len(&self) -> usize {
        self.len
    }

    fn load(&self, line: usize) -> [u8; LINE] {
        let (from, count) = self.line(line);
        let mut bytes = [0; LINE];
        let words = from.cast::<u64>();
        if count == LINE && words.is_aligned() {
            for (i, bytes) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                // SAFETY: a word of a whole line of memory that lives as long as this value;
                // volatile, because the device writes it concurrently.
                *bytes = unsafe { ptr::read_volatile(words.add(i)) }.to_ne_bytes();
            }
            return bytes;
        }
        for (i, byte) in bytes.iter_mut().enumerate().take(count) {
            // SAFETY: as above, for a byte: of the last, shorter line, or where no word starts.
            *byte = unsafe { ptr::read_volatile(from.add(i)) };
        }
        bytes
    }

    fn same(&self, start: usize, bytes: &[u8]) -> bool {
        let here = start.checked_add(bytes.len());
        let at = (self.at + start as u64) as *const c_void;
        // SAFETY: reads the same number of bytes of both, here within this memory, which the device
        // may write meanwhile: either answer is then right, as of a moment earlier or later.
        here.is_some_and(|end| end <= self.len)
            && unsafe { libc::memcmp(at, bytes.as_ptr().cast(), bytes.len()) } == 0
    }

    fn store(&self, line: usize, mask: u64, bytes: &[u8; LINE]) {
        let (to, _) = self.line(line);
        for part in parts(mask, to.addr()) {
            let value = part.value(bytes);
            // SAFETY: within the line, as in `load`, and aligned; no reference into the memory
            // exists in this process.
            unsafe {
                match part.len {
                    8 => ptr::write_volatile(to.add(part.at).cast(), value),
                    4 => ptr::write_volatile(to.add(part.at).cast(), value as u32),
                    2 => ptr::write_volatile(to.add(part.at).cast(), value as u16),
                    _ => ptr::write_volatile(to.add(part.at), value as u8),
                }
            }
        }
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        let (first, bytes) = self.pages;
        if self.context.bind().is_ok() {
            // SAFETY: registered by `new`; the session has waited for the work that may use the
            // memory.
            let gone = unsafe { raw::cuMemHostUnregister(first as *mut c_void) };
            // Memory that the driver still has stays until the end of the process.
            if gone.is_ok() {
                unmap(first, bytes);
            }
        }
    }
}

fn map(at: u64, len: usize) -> Result<()> {
    let wanted = at as *mut c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping, which does not replace anything because of NOREPLACE.
    let got = unsafe {
        libc::mmap(
            wanted,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if got == wanted {
        return Ok(());
    }
    if got == libc::MAP_FAILED {
        return Err(match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EEXIST) => CuResult::ALREADY_MAPPED,
            _ => CuResult::OUT_OF_MEMORY,
        });
    }
    // Kernels before 4.17 take the address as a hint.
    unmap(got as u64, len);
    Err(CuResult::ALREADY_MAPPED)
}

fn unmap(at: u64, len: usize) {
    // SAFETY: a mapping of this module that neither the driver nor other code uses.
    unsafe { libc::munmap(at as *mut c_void, len) };
}

fn register(context: &Arc<Context>, at: u64, len: usize) -> Result<()> {
    context.bind()?;
    // SAFETY: our own mapping, which outlives its registration.
    unsafe { raw::cuMemHostRegister_v2(at as *mut c_void, len, FLAGS) }?;
    let mut device: sys::CUdeviceptr = 0;
    // SAFETY: writes one address.
    let found = unsafe { raw::cuMemHostGetDevicePointer_v2(&mut device, at as *mut c_void, 0) };
    if found.is_ok() && device == at {
        return Ok(());
    }
    // SAFETY: registered just now, and no work uses it.
    let _ = unsafe { raw::cuMemHostUnregister(at as *mut c_void) };
    found.and(Err(CuResult::NOT_SUPPORTED))
}
