//! Virtual memory management: reservations, physical memory, and mappings of physical memory.
//!
//! Physical memory is a memory file, so that all mappings of it, including later ones, show the
//! same contents.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;

use super::error::Result;
use super::gpu::Gpu;
use super::handle::{Kind, Table};
use super::memory::{Allocation, Use};
use super::sync::lock;
use super::{gpu, healthy, inject, memfile, memory};

/// Sizes and addresses of reservations, physical memory and mappings are multiples of this many
/// bytes.
pub const GRANULARITY: u64 = 2 << 20;

/// Memory that cuMemCreate made, or that was imported.
pub struct Physical {
    handle: u64,
    size: u64,
    gpu: Arc<Gpu>,
    file: File,
    references: AtomicU32,
    /// Whether other processes may import the memory.
    exportable: bool,
    /// Whether this process is charged for the memory. Otherwise the process that created it is
    /// charged.
    charged: bool,
}

impl Drop for Physical {
    fn drop(&mut self) {
        if self.charged {
            self.gpu.shared.release(self.size);
        }
    }
}

static PHYSICAL: Table<Physical> = Table::new(Kind::Physical);
/// Length of each reservation, by start address.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// Physical memory of each mapping, by start address.
static MAPPED: Mutex<BTreeMap<u64, Arc<Physical>>> = Mutex::new(BTreeMap::new());

fn aligned(values: &[u64]) -> Result {
    let good = values.iter().all(|v| v.is_multiple_of(GRANULARITY));
    if good {
        Ok(())
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

/// cuMemAddressReserve. Reserves `wanted` if those addresses are free, otherwise other addresses.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an invalid size or alignment; CUDA_ERROR_OUT_OF_MEMORY.
pub fn reserve(size: u64, alignment: u64, wanted: u64) -> Result<u64> {
    let arena = &healthy()?.arena;
    aligned(&[size])?;
    if size == 0 || (alignment != 0 && !alignment.is_power_of_two()) {
        return Err(CuResult::INVALID_VALUE);
    }
    let there = wanted != 0 && wanted.is_multiple_of(GRANULARITY) && arena.take_at(wanted, size);
    let at = if there {
        Some(wanted)
    } else {
        arena.take(0, size, alignment.max(GRANULARITY))
    };
    let at = at.ok_or(CuResult::OUT_OF_MEMORY)?;
    lock(&RESERVED).insert(at, size);
    Ok(at)
}

/// cuMemAddressFree. The range must be a whole reservation without mappings.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for any other range.
pub fn unreserve(addr: u64, size: u64) -> Result {
    let driver = healthy()?;
    let mut reserved = lock(&RESERVED);
    let whole = reserved.get(&addr) == Some(&size);
    if !whole || lock(&MAPPED).range(addr..addr + size).next().is_some() {
        return Err(CuResult::INVALID_VALUE);
    }
    reserved.remove(&addr);
    driver.arena.give(addr, size);
    Ok(())
}

/// cuMemCreate on a device.
///
/// # Errors
/// CUDA_ERROR_OUT_OF_MEMORY if the device's account has too little room.
pub fn create(device: i32, size: u64, exportable: bool) -> Result<u64> {
    healthy()?;
    aligned(&[size])?;
    let gpu = Arc::clone(gpu(device)?);
    if size == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    if inject::alloc_fails() || !memory::charge(&gpu, size) {
        return Err(CuResult::OUT_OF_MEMORY);
    }
    let file = memfile::create(size, gpu.physical).map_err(|_| {
        gpu.shared.release(size);
        CuResult::OUT_OF_MEMORY
    })?;
    let references = AtomicU32::new(1);
    let physical = PHYSICAL.insert(|handle| {
        Arc::new(Physical {
            handle,
            size,
            gpu,
            file,
            references,
            exportable,
            charged: true,
        })
    });
    Ok(physical.handle)
}

/// cuMemExportToShareableHandle: returns a file descriptor, which the caller closes.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for memory that is not exportable; no free descriptor.
pub fn export(handle: u64) -> Result<RawFd> {
    let physical = get(handle)?;
    if !physical.exportable {
        return Err(CuResult::INVALID_VALUE);
    }
    memfile::duplicate(physical.file.as_raw_fd()).map_err(|_| CuResult::OPERATING_SYSTEM)
}

/// cuMemImportFromShareableHandle. The process that created the memory stays charged for it.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an invalid descriptor; CUDA_ERROR_INVALID_DEVICE if the device of
/// the memory is not visible here.
pub fn import(fd: RawFd) -> Result<u64> {
    let driver = healthy()?;
    let (file, size, physical) = memfile::adopt(fd).ok_or(CuResult::INVALID_VALUE)?;
    let gpu = driver.gpus.iter().find(|g| g.physical == physical);
    let gpu = Arc::clone(gpu.ok_or(CuResult::INVALID_DEVICE)?);
    let physical = PHYSICAL.insert(|handle| {
        Arc::new(Physical {
            handle,
            size,
            gpu,
            file,
            references: AtomicU32::new(1),
            exportable: true,
            charged: false,
        })
    });
    Ok(physical.handle)
}

/// cuMemRelease. The memory stays until its last mapping is removed.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE (strict mode aborts on a stale or forged handle).
pub fn release(handle: u64) -> Result {
    let physical = get(handle)?;
    if physical.references.fetch_sub(1, Ordering::SeqCst) == 1 {
        PHYSICAL.remove(handle)?;
    }
    Ok(())
}

fn get(handle: u64) -> Result<Arc<Physical>> {
    healthy()?;
    PHYSICAL.get(handle).map_err(|_| CuResult::INVALID_VALUE)
}

/// Device of physical memory, and whether the memory is exportable.
///
/// # Errors
/// As [`release`].
pub fn properties(handle: u64) -> Result<(i32, bool)> {
    get(handle).map(|p| (p.gpu.ordinal as i32, p.exportable))
}

/// cuMemRetainAllocationHandle.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if nothing is mapped at `addr`.
pub fn retain(addr: u64) -> Result<u64> {
    healthy()?;
    let mapped = lock(&MAPPED);
    let (start, physical) = mapped
        .range(..=addr)
        .next_back()
        .ok_or(CuResult::INVALID_VALUE)?;
    if addr - start >= physical.size {
        return Err(CuResult::INVALID_VALUE);
    }
    if physical.references.fetch_add(1, Ordering::SeqCst) == 0 {
        PHYSICAL.put(physical.handle, Arc::clone(physical));
    }
    Ok(physical.handle)
}

/// cuMemMap. Maps the whole physical memory to reserved addresses that are not mapped.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE; CUDA_ERROR_NOT_SUPPORTED to map a part of the memory, or at unaligned
/// addresses.
pub fn map(addr: u64, size: u64, handle: u64) -> Result {
    let driver = healthy()?;
    let physical = get(handle)?;
    if size == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    if size != physical.size || aligned(&[addr]).is_err() {
        return Err(CuResult::NOT_SUPPORTED);
    }
    let reserved = lock(&RESERVED);
    let inside = reserved
        .range(..=addr)
        .next_back()
        .is_some_and(|(start, len)| addr - start <= *len && size <= len - (addr - start));
    let mut mapped = lock(&MAPPED);
    let before = mapped.range(..addr.saturating_add(size)).next_back();
    let overlaps = before.is_some_and(|(start, p)| start + p.size > addr);
    if !inside || overlaps {
        return Err(CuResult::INVALID_VALUE);
    }
    replace(addr, size, Some(&physical.file)).map_err(|_| CuResult::OUT_OF_MEMORY)?;
    driver.memory.insert_mapping(Allocation {
        addr,
        size,
        padded: size,
        usage: Use::Mapped(handle),
        device: physical.gpu.ordinal,
        context: 0,
        id: 0,
    });
    mapped.insert(addr, physical);
    Ok(())
}

/// Maps the file, or without a file zeros, at addresses of the arena.
fn replace(addr: u64, size: u64, file: Option<&File>) -> io::Result<()> {
    let (prot, flags, fd) = match file {
        Some(f) => (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            f.as_raw_fd(),
        ),
        // All pages of the arena that were once used stay accessible.
        None => (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
        ),
    };
    let at = addr as *mut libc::c_void;
    // SAFETY: the mapping replaces pages of our own reservation that no live allocation uses.
    let p = unsafe { libc::mmap(at, size as usize, prot, flags | libc::MAP_FIXED, fd, 0) };
    if p == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Start of the reservation that contains an address.
pub fn reservation(addr: u64) -> Option<u64> {
    let reserved = lock(&RESERVED);
    let (start, len) = reserved.range(..=addr).next_back()?;
    (addr - start < *len).then_some(*start)
}

/// Whether a range is reserved and has no mappings.
fn is_free(
    reserved: &BTreeMap<u64, u64>,
    mapped: &BTreeMap<u64, Arc<Physical>>,
    addr: u64,
    size: u64,
) -> bool {
    let Some(end) = addr.checked_add(size).filter(|_| size > 0) else {
        return false;
    };
    let last = |start: &u64, len: u64| start + len;
    let inside = reserved.range(..=addr).next_back();
    let before = mapped.range(..end).next_back();
    inside.is_some_and(|(start, len)| end <= last(start, *len))
        && before.is_none_or(|(start, p)| last(start, p.size) <= addr)
        && aligned(&[addr, size]).is_ok()
}

/// The start addresses of the mappings that together cover exactly `[addr, addr+size)`.
fn covering(mapped: &BTreeMap<u64, Arc<Physical>>, addr: u64, size: u64) -> Result<Vec<u64>> {
    let end = addr
        .checked_add(size)
        .filter(|_| size > 0)
        .ok_or(CuResult::INVALID_VALUE)?;
    let mut reached = addr;
    let mut all = Vec::new();
    while reached < end {
        let physical = mapped.get(&reached).ok_or(CuResult::INVALID_VALUE)?;
        all.push(reached);
        reached += physical.size;
    }
    if reached == end {
        Ok(all)
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

/// cuMemUnmap. The range is whole mappings, or reserved addresses without mappings. As on hardware,
/// the call does not wait for work.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for any other range.
pub fn unmap(addr: u64, size: u64) -> Result {
    let driver = healthy()?;
    let reserved = lock(&RESERVED);
    let mut mapped = lock(&MAPPED);
    if is_free(&reserved, &mapped, addr, size) {
        return Ok(());
    }
    for start in covering(&mapped, addr, size)? {
        let a = driver
            .memory
            .unlist(start, |u| matches!(u, Use::Mapped(_)))?;
        driver.memory.bury(driver, &a);
        replace(a.addr, a.size, None).map_err(|_| CuResult::OPERATING_SYSTEM)?;
        mapped.remove(&start);
    }
    Ok(())
}

/// cuMemSetAccess for one device: allows or forbids access to the mappings.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE unless mappings cover the range exactly.
pub fn set_access(addr: u64, size: u64, device: i32, allowed: bool) -> Result {
    let driver = healthy()?;
    let ordinal = gpu(device)?.ordinal;
    for start in covering(&lock(&MAPPED), addr, size)? {
        let a = driver.memory.find(start).ok_or(CuResult::INVALID_VALUE)?;
        driver.arena.mark(Some(ordinal), a.addr, a.size, allowed);
    }
    Ok(())
}

/// cuMemGetAccess. Returns whether kernels of the device may access the memory at `addr`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE without memory at `addr`.
pub fn access(addr: u64, device: i32) -> Result<bool> {
    let driver = healthy()?;
    driver.memory.find(addr).ok_or(CuResult::INVALID_VALUE)?;
    Ok(driver.arena.live(gpu(device)?.ordinal, addr, 1))
}
