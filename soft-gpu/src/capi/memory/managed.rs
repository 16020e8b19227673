//! Managed memory: advice, prefetches, and attributes of ranges.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out, StreamArg};
use vgpu_cuda_abi::structs::Location;

use crate::capi::StreamOf as _;
use crate::capi::memory::batch::not_legacy;
use crate::driver::advice::{self, Spot};
use crate::driver::error::Result;
use crate::driver::graph::capture;

fn spot(l: Location) -> Spot {
    Spot {
        kind: l.kind,
        id: l.id,
    }
}

fn prefetch_to(
    addr: u64,
    bytes: usize,
    spot: Spot,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    capture::forbid(&*stream.get(default)?)?;
    advice::prefetch(addr, bytes as u64, spot)
}

/// Prefetches a batch of ranges. Location `i` of `spots` applies to the ranges from index `from[i]`
/// on.
#[allow(clippy::too_many_arguments)]
fn prefetch_batch(
    addrs: In<u64>,
    sizes: In<usize>,
    count: usize,
    spots: In<Location>,
    from: In<usize>,
    places: usize,
    flags: u64,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    if flags != 0 || count == 0 || places == 0 || places > count || from.get()? != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    capture::forbid(&*not_legacy(stream, default)?)?;
    let mut place = 0;
    let mut all = Vec::with_capacity(count.min(4096));
    for i in 0..count {
        if place + 1 < places && from.at(place + 1)? == i {
            place += 1;
        }
        let range = (addrs.at(i)?, sizes.at(i)? as u64, spot(spots.at(place)?));
        advice::check_prefetch(range.0, range.1, range.2)?;
        all.push(range);
    }
    all.into_iter()
        .try_for_each(|(addr, bytes, spot)| advice::prefetch(addr, bytes, spot))
}

/// Discards a batch of ranges. CUDA leaves the contents undefined, so they stay unchanged here.
fn discard_batch(
    addrs: In<u64>,
    sizes: In<usize>,
    count: usize,
    flags: u64,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    if flags != 0 || count == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    capture::forbid(&*not_legacy(stream, default)?)?;
    let host = Spot::of_device(-1);
    (0..count).try_for_each(|i| advice::check_prefetch(addrs.at(i)?, sizes.at(i)? as u64, host))
}

fn range_attribute(out: Out<i32>, room: usize, id: u32, addr: u64, bytes: usize) -> Result {
    out.check()?;
    if !room.is_multiple_of(4) {
        return Err(CuResult::INVALID_VALUE);
    }
    out.set_all(advice::range_attribute(addr, bytes as u64, id, room / 4)?)
}

exports! {
    fn cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz [default] (addr: u64, bytes: usize, device: i32, stream: StreamArg) {
        prefetch_to(addr, bytes, Spot::of_device(device), stream, default)
    }

    fn cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz [default] (addr: u64, bytes: usize, location: Location, flags: u32, stream: StreamArg) {
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        prefetch_to(addr, bytes, spot(location), stream, default)
    }

    fn cuMemPrefetchBatchAsync / cuMemPrefetchBatchAsync_ptsz [default] (addrs: In<u64>, sizes: In<usize>, count: usize, spots: In<Location>, from: In<usize>, places: usize, flags: u64, stream: StreamArg) {
        prefetch_batch(addrs, sizes, count, spots, from, places, flags, stream, default)
    }

    fn cuMemDiscardAndPrefetchBatchAsync / cuMemDiscardAndPrefetchBatchAsync_ptsz [default] (addrs: In<u64>, sizes: In<usize>, count: usize, spots: In<Location>, from: In<usize>, places: usize, flags: u64, stream: StreamArg) {
        prefetch_batch(addrs, sizes, count, spots, from, places, flags, stream, default)
    }

    fn cuMemDiscardBatchAsync / cuMemDiscardBatchAsync_ptsz [default] (addrs: In<u64>, sizes: In<usize>, count: usize, flags: u64, stream: StreamArg) {
        discard_batch(addrs, sizes, count, flags, stream, default)
    }
}

exports! {
    fn cuMemAdvise(addr: u64, bytes: usize, what: u32, device: i32) {
        advice::advise(addr, bytes as u64, what, Spot::of_device(device))
    }

    fn cuMemAdvise_v2(addr: u64, bytes: usize, what: u32, location: Location) {
        advice::advise(addr, bytes as u64, what, spot(location))
    }

    fn cuMemRangeGetAttribute(out: Out<i32>, room: usize, id: u32, addr: u64, bytes: usize) {
        range_attribute(out, room, id, addr, bytes)
    }

    fn cuMemRangeGetAttributes(
        out: In<Out<i32>>, rooms: In<usize>, ids: In<u32>, count: usize, addr: u64, bytes: usize,
    ) {
        if count == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        (0..count)
            .try_for_each(|i| range_attribute(out.at(i)?, rooms.at(i)?, ids.at(i)?, addr, bytes))
    }
}
