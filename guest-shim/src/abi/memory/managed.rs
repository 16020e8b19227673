//! Managed memory: one address for the program and for kernels.
//!
//! A managed allocation is a block of the program's memory that kernels reach from its creation on
//! (see [`crate::state::pinned`]). Program and kernels use the block in turn, because devices of
//! guests have no `CONCURRENT_MANAGED_ACCESS`. Work sees the bytes that the program wrote before
//! the work was submitted. The program sees the bytes that work wrote after it has waited for that
//! work. A request to move the memory to a device is refused, as CUDA does on such devices.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out};
use vgpu_cuda_abi::numbers::attach::{GLOBAL, HOST, SINGLE};
use vgpu_cuda_abi::numbers::location::{
    DEVICE as ON_DEVICE, HOST as ON_HOST, HOST_NUMA_CURRENT as ON_NUMA_CURRENT,
};

use crate::abi::memory::batch::not_legacy;
use crate::ffi::exports;
use crate::state::advice::Hint;
use crate::state::current::{live, shim};
use crate::state::pinned::{self, Label, Origin};
use crate::state::streams::resolve;
use crate::state::{Shim, capture};
use crate::{Cu, log};

/// `CU_DEVICE_CPU`, `CU_DEVICE_INVALID`.
const CPU: c_int = -1;
const NOWHERE: c_int = -2;

exports! {
    /// Allocates managed memory.
    fn cuMemAllocManaged(out: Out<u64>, size: usize, flags: u32) {
        let shim = live()?;
        out.check()?;
        capture::unsafe_call(shim)?;
        let context = shim.contexts.current()?;
        if size == 0 || !matches!(flags, GLOBAL | HOST) {
            return Err(CuResult::INVALID_VALUE);
        }
        let label = Label { flags, ctx: context.handle.0, device: context.device };
        let block = shim.pinned.allocate(size, Origin::Managed, label)?;
        if let Err(code) = shim.map(&block) {
            pinned::release(&shim.pinned.take(block.base, Origin::Managed)?);
            return Err(code);
        }
        out.set(block.place)
    }

    /// Chooses the streams that may use the memory. Here, all streams may use it, so the call is
    /// only checked.
    fn cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz [mode] (
        stream: u64,
        address: u64,
        length: usize,
        flags: u32
    ) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        capture::forbid(shim, &target)?;
        let (block, _) = shim.pinned.placed(address).ok_or(CuResult::INVALID_VALUE)?;
        let whole = length == 0 || (address == block.place && length == block.size);
        // The NULL stream cannot be the single stream.
        let single = flags == SINGLE && target.info.is_some();
        let known = matches!(flags, GLOBAL | HOST) || single;
        if block.origin != Origin::Managed || !whole || !known {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(())
    }

    /// Prefetches to the host, where the memory already is. A device is refused.
    fn cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz [mode] (
        address: u64,
        count: usize,
        device: c_int,
        stream: u64
    ) {
        let shim = live()?;
        capture::forbid(shim, &resolve(shim, stream, mode)?)?;
        managed(shim, address, count)?;
        Place::of_device(shim, device)?.host()
    }

    /// Stores advice.
    fn cuMemAdvise(address: u64, count: usize, advice: u32, device: c_int) {
        let shim = live()?;
        let range = managed(shim, address, count)?;
        advise(shim, range, advice, || Place::of_device(shim, device))
    }

    /// Stores advice. The caller passes the location structure as one word.
    fn cuMemAdvise_v2(address: u64, count: usize, advice: u32, place: u64) {
        let shim = live()?;
        let range = managed(shim, address, count)?;
        advise(shim, range, advice, || Place::of(shim, place))
    }

    /// Prefetches to the host, where the memory already is. A device is refused.
    fn cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz [mode] (
        address: u64,
        count: usize,
        place: u64,
        flags: u32,
        stream: u64
    ) {
        let shim = live()?;
        capture::forbid(shim, &resolve(shim, stream, mode)?)?;
        managed(shim, address, count)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        Place::of(shim, place)?.host()
    }

    /// Always refused, as on devices that do not share managed memory with processors.
    fn cuMemPrefetchBatchAsync / cuMemPrefetchBatchAsync_ptsz [mode] (
        addresses: In<u64>,
        sizes: In<usize>,
        count: usize,
        places: In<c_void>,
        from: In<usize>,
        kinds: usize,
        flags: u64,
        stream: u64
    ) {
        let batch = (addresses, sizes, count);
        refuse_prefetches(batch, (places, from, kinds), flags, (stream, mode))
    }

    /// Always refused, as on devices that do not share managed memory with processors.
    fn cuMemDiscardBatchAsync / cuMemDiscardBatchAsync_ptsz [mode] (
        addresses: In<u64>,
        sizes: In<usize>,
        count: usize,
        flags: u64,
        stream: u64
    ) {
        refuse_batch(live()?, (addresses, sizes, count), flags, (stream, mode))
    }

    /// Always refused, as on devices that do not share managed memory with processors.
    fn cuMemDiscardAndPrefetchBatchAsync / cuMemDiscardAndPrefetchBatchAsync_ptsz [mode] (
        addresses: In<u64>,
        sizes: In<usize>,
        count: usize,
        places: In<c_void>,
        from: In<usize>,
        kinds: usize,
        flags: u64,
        stream: u64
    ) {
        let batch = (addresses, sizes, count);
        refuse_prefetches(batch, (places, from, kinds), flags, (stream, mode))
    }

    /// The advice that applies to all of a range.
    fn cuMemRangeGetAttribute(
        data: Out<c_void>,
        size: usize,
        attribute: u32,
        address: u64,
        count: usize
    ) {
        let range = managed(shim()?, address, count)?;
        tell(data, size, attribute, &range)
    }

    /// Several attributes of a range.
    fn cuMemRangeGetAttributes(
        data: In<Out<c_void>>,
        sizes: In<usize>,
        attributes: In<u32>,
        number: usize,
        address: u64,
        count: usize
    ) {
        let range = managed(shim()?, address, count)?;
        data.check()?;
        sizes.check()?;
        attributes.check()?;
        if number == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        for i in 0..number {
            tell(data.at(i)?, sizes.at(i)?, attributes.at(i)?, &range)?;
        }
        Ok(())
    }
}

/// Checks that a range is managed memory.
fn managed(shim: &Shim, address: u64, count: usize) -> Cu<Range<u64>> {
    let placed = shim.pinned.placed(address);
    let managed = placed.filter(|(block, _)| block.origin == Origin::Managed);
    let (block, at) = managed.ok_or(CuResult::INVALID_VALUE)?;
    if count == 0 || count > block.size - (at - block.base) {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(address..address + count as u64)
}

/// A location that a program names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Host,
    Device,
}

impl Place {
    fn of_device(shim: &Shim, device: c_int) -> Cu<Place> {
        match device {
            CPU => Ok(Place::Host),
            _ => shim.devices.get(device).map(|_| Place::Device),
        }
    }

    /// Parses a `CUmemLocation`: the kind is in the lower half of the word, the number in the upper
    /// half.
    fn of(shim: &Shim, place: u64) -> Cu<Place> {
        match place as u32 {
            ON_DEVICE => shim
                .devices
                .get((place >> 32) as c_int)
                .map(|_| Place::Device),
            ON_HOST..=ON_NUMA_CURRENT => Ok(Place::Host),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Succeeds for the host, where all managed memory is.
    fn host(self) -> Cu {
        match self {
            Place::Host => Ok(()),
            // As for any device without CONCURRENT_MANAGED_ACCESS.
            Place::Device => Err(CuResult::INVALID_DEVICE),
        }
    }
}

/// Stores advice; `advice` is a `CUmem_advise`.
fn advise(shim: &Shim, range: Range<u64>, advice: u32, place: impl Fn() -> Cu<Place>) -> Cu {
    let (hint, holds) = match advice {
        1 | 2 => (Hint::ReadMostly, advice == 1),
        3 | 4 => (Hint::PreferHost, advice == 3),
        5 | 6 => (Hint::AccessedByHost, advice == 5),
        _ => return Err(CuResult::INVALID_VALUE),
    };
    // Other kinds of advice ignore the location.
    if matches!(advice, 3 | 5 | 6) {
        place()?.host()?;
    }
    shim.advice.say(range, hint, holds);
    Ok(())
}

/// Writes a `CUmem_range_attribute` of a range.
fn tell(data: Out<c_void>, size: usize, attribute: u32, range: &Range<u64>) -> Cu {
    const ACCESSED_BY: u32 = 3;
    let shim = shim()?;
    data.check()?;
    let room = size / size_of::<c_int>();
    let several = attribute == ACCESSED_BY;
    if !size.is_multiple_of(size_of::<c_int>()) || room == 0 || (room > 1 && !several) {
        return Err(CuResult::INVALID_VALUE);
    }
    let holds = |hint| shim.advice.holds(range.clone(), hint);
    let host = || holds(Hint::PreferHost);
    let first = match attribute {
        1 => holds(Hint::ReadMostly).into(),
        2 if host() => CPU,
        ACCESSED_BY if holds(Hint::AccessedByHost) => CPU,
        // The kind of the preferred location.
        5 if host() => ON_HOST as c_int,
        // No range was prefetched to another location.
        2..=4 => NOWHERE,
        5..=8 => 0,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    let others = std::iter::repeat_n(NOWHERE, room - 1);
    data.of().set_all(std::iter::once(first).chain(others))
}

/// Refuses a batch of prefetches, after checking the arguments. `places`: locations; `from`: for
/// each location, the index of the first prefetch; `kinds`: number of locations.
fn refuse_prefetches(
    batch: (In<u64>, In<usize>, usize),
    (places, from, kinds): (In<c_void>, In<usize>, usize),
    flags: u64,
    stream: (u64, DefaultStream),
) -> Cu {
    let shim = live()?;
    places.check()?;
    from.check()?;
    if kinds == 0 || kinds > batch.2 {
        return Err(CuResult::INVALID_VALUE);
    }
    refuse_batch(shim, batch, flags, stream)
}

fn refuse_batch(
    shim: &Shim,
    (addresses, sizes, count): (In<u64>, In<usize>, usize),
    flags: u64,
    (stream, mode): (u64, DefaultStream),
) -> Cu {
    static SAID: AtomicBool = AtomicBool::new(false);
    addresses.check()?;
    sizes.check()?;
    if count == 0 || flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    not_legacy(shim, stream, mode)?;
    for i in 0..count {
        managed(shim, addresses.at(i)?, sizes.at(i)?)?;
    }
    log::once(
        &SAID,
        "managed memory is not moved to devices (CUDA_ERROR_NOT_SUPPORTED); \
         it need not be: kernels reach it where it is",
    );
    Err(CuResult::NOT_SUPPORTED)
}
