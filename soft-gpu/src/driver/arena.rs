//! The reserved address space of device memory.
//!
//! Device addresses are host addresses inside one arena at a fixed base, so that another process (a
//! guest) can reserve the same addresses. Region 0 is for memory that the host and kernels can both
//! reach (pinned, managed). Region `i + 1` belongs to device `i`. Pages are PROT_NONE until an
//! allocation first needs them. Each device has a map with one byte per granule, which says whether
//! kernels of the device may access the granule.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use super::range::Ranges;
use super::sync::lock;
use crate::exec::contract::{ArenaView, GRANULE, Outside};

/// First address of the arena: far from the places where Linux puts programs, heaps and libraries,
/// and outside the shadow memory of the address and thread sanitizers.
pub const BASE: u64 = 0x2000_0000_0000;

/// Pages are made accessible in steps of this many bytes.
const COMMIT_STEP: u64 = 2 << 20;

/// Registered memory of the host that kernels of all devices may access, because addressing is
/// unified.
pub static OUTSIDE: Outside = Outside::new();

struct Region {
    start: u64,
    len: u64,
    state: Mutex<RegionState>,
}

struct RegionState {
    ranges: Ranges,
    committed_to: u64,
}

/// The reserved address space of this process.
pub struct Arena {
    len: u64,
    regions: Vec<Region>,
    maps: Vec<*const AtomicU8>,
}

// SAFETY: the maps are mapped for the whole process and only touched through atomics.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

fn map(at: u64, len: u64, prot: i32, flags: i32) -> io::Result<*mut libc::c_void> {
    let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping. An address, if given, is a hint that replaces no mapping.
    let p = unsafe { libc::mmap(at as *mut libc::c_void, len as usize, prot, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(p)
    }
}

impl Arena {
    /// Reserves regions for `devices` devices of `memory` bytes each. The first `skipped` bytes of
    /// a device's region get no allocations, but at most half of the region is left out.
    /// # Errors
    /// The operating system's error if it refuses the reservation at [`BASE`].
    pub fn reserve(devices: usize, memory: u64, skipped: u64) -> io::Result<Arena> {
        let span = (memory * 4).next_power_of_two().max(256 << 30);
        let len = span * (devices as u64 + 1);
        let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
        let at = map(BASE, len, libc::PROT_NONE, fixed)?;
        if at as u64 != BASE {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let maps = (0..devices)
            .map(|_| {
                // MAP_SHARED, although no other process maps this memory: Linux counts private
                // memory against RLIMIT_DATA when it is mapped, even if it is never used.
                let write = libc::PROT_READ | libc::PROT_WRITE;
                map(0, len / GRANULE, write, libc::MAP_SHARED)
                    .map(|p| p.cast_const().cast::<AtomicU8>())
            })
            .collect::<io::Result<_>>()?;
        let regions = (0..=devices as u64)
            .map(|i| {
                let start = BASE + i * span;
                let ranges = Ranges::new(start + skipped, span - skipped);
                let state = Mutex::new(RegionState {
                    ranges,
                    committed_to: start + skipped,
                });
                Region {
                    start,
                    len: span,
                    state,
                }
            })
            .collect();
        Ok(Arena { len, regions, maps })
    }

    /// The memory that the interpreter may access on behalf of `device`.
    pub fn view(&self, device: usize) -> ArenaView {
        ArenaView {
            base: BASE,
            len: self.len,
            granules: self.maps[device],
            outside: Some(&OUTSIDE),
        }
    }

    /// Whether an address lies inside the reservation, allocated or not.
    pub fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(BASE) < self.len
    }

    /// Takes a range in `region` without making its pages accessible.
    pub fn take(&self, region: usize, len: u64, align: u64) -> Option<u64> {
        lock(&self.regions[region].state).ranges.take(len, align)
    }

    /// Takes exactly this range, in any region. Returns false if a part of the range is taken, or
    /// lies outside of the regions.
    pub fn take_at(&self, addr: u64, len: u64) -> bool {
        match self.region_of(addr, len) {
            Some(region) => lock(&region.state).ranges.take_at(addr, len),
            None => false,
        }
    }

    fn region_of(&self, addr: u64, len: u64) -> Option<&Region> {
        self.regions
            .iter()
            .find(|r| addr >= r.start && len <= r.len && addr - r.start <= r.len - len)
    }

    /// Gives a taken range back to the address space.
    pub fn give(&self, addr: u64, len: u64) {
        if let Some(region) = self.region_of(addr, len) {
            lock(&region.state).ranges.give(addr, len);
        }
    }

    /// Makes the pages of `[addr, addr+len)` readable and writable.
    ///
    /// # Errors
    /// The operating system's error (out of memory under strict overcommit).
    pub fn commit(&self, addr: u64, len: u64) -> io::Result<()> {
        let Some(region) = self.region_of(addr, len) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut state = lock(&region.state);
        let end = (addr + len).next_multiple_of(COMMIT_STEP);
        if end > state.committed_to {
            let (from, bytes) = (state.committed_to, end - state.committed_to);
            // SAFETY: inside our own reservation; the call only widens the access rights.
            let rc = unsafe {
                libc::mprotect(
                    from as *mut libc::c_void,
                    bytes as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                )
            };
            if rc != 0 {
                return Err(io::Error::last_os_error());
            }
            state.committed_to = end;
        }
        if len >= 2 * COMMIT_STEP {
            // Huge pages make the first access to large buffers cheap. An error is ignored.
            // SAFETY: pages of our own reservation.
            unsafe {
                libc::madvise(
                    addr as *mut libc::c_void,
                    len as usize & !4095,
                    libc::MADV_HUGEPAGE,
                )
            };
        }
        Ok(())
    }

    /// Discards the contents of the whole pages inside `[addr, addr+len)`.
    pub fn discard(&self, addr: u64, len: u64) {
        let start = addr.next_multiple_of(4096);
        let end = (addr + len) & !4095;
        if end > start && self.region_of(start, end - start).is_some() {
            // SAFETY: pages of our own reservation that no live allocation shares.
            unsafe {
                libc::madvise(
                    start as *mut libc::c_void,
                    (end - start) as usize,
                    libc::MADV_DONTNEED,
                )
            };
        }
    }

    /// Allows (`live`) or forbids access to the granules, for kernels of `device` or of all
    /// devices.
    pub fn mark(&self, device: Option<usize>, addr: u64, len: u64, live: bool) {
        let first = (addr - BASE) / GRANULE;
        let last = (addr - BASE + len).div_ceil(GRANULE);
        for (i, cells) in self.maps.iter().enumerate() {
            if device.is_some_and(|d| d != i) {
                continue;
            }
            for g in first..last {
                // SAFETY: the map has one byte for every granule of the arena and
                // `[addr, addr+len)` lies inside it.
                let cell = unsafe { &*cells.add(g as usize) };
                cell.store(u8::from(live), Ordering::Release);
            }
        }
    }

    /// Whether kernels of `device` may access all of `[addr, addr+len)`.
    pub fn live(&self, device: usize, addr: u64, len: u64) -> bool {
        len == 0 || (self.contains(addr) && self.view(device).live(addr, len))
    }
}
