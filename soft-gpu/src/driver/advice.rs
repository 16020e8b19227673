//! Advice for ranges of managed memory (cuMemAdvise, prefetch). The advice is stored and can be
//! queried, but does not move the memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::location::{
    DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT, INVALID as NOWHERE,
};

use super::error::Result;
use super::sync::lock;
use super::{gpu, healthy};

/// CU_DEVICE_CPU and CU_DEVICE_INVALID: results of queries that name a device by number.
const CPU: i32 = -1;
const INVALID: i32 = -2;

/// A location, as in CUmemLocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    /// CUmemLocationType.
    pub kind: u32,
    /// Number of the device or of the NUMA node.
    pub id: i32,
}

impl Spot {
    /// The location that the older functions name by a number: a device, or -1 for the host.
    pub fn of_device(device: i32) -> Spot {
        if device == CPU {
            Spot { kind: HOST, id: 0 }
        } else {
            Spot {
                kind: DEVICE,
                id: device,
            }
        }
    }

    /// Checks that the location exists.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE, or CUDA_ERROR_INVALID_VALUE for another kind.
    pub fn check(self) -> Result {
        match self.kind {
            DEVICE => gpu(self.id).map(|_| ()),
            HOST | HOST_NUMA | HOST_NUMA_CURRENT => Ok(()),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    fn device(self) -> i32 {
        match self.kind {
            DEVICE => self.id,
            NOWHERE => INVALID,
            _ => CPU,
        }
    }
}

const NONE: Spot = Spot {
    kind: NOWHERE,
    id: 0,
};

/// The advice that a program gave for a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Advice {
    read_mostly: bool,
    preferred: Spot,
    /// One bit per device; the highest bit is the host's.
    accessed_by: u64,
    prefetched: Spot,
}

const SILENCE: Advice = Advice {
    read_mostly: false,
    preferred: NONE,
    accessed_by: 0,
    prefetched: NONE,
};

const HOST_BIT: u64 = 1 << 63;

/// Ranges with advice, by start address: (end, advice). The ranges are disjoint.
static SAID: Mutex<BTreeMap<u64, (u64, Advice)>> = Mutex::new(BTreeMap::new());

fn split(said: &mut BTreeMap<u64, (u64, Advice)>, at: u64) {
    let found = said.range(..at).next_back().map(|(s, v)| (*s, *v));
    if let Some((start, (end, advice))) = found
        && end > at
    {
        said.insert(start, (at, advice));
        said.insert(at, (end, advice));
    }
}

fn say(start: u64, end: u64, change: impl Fn(&mut Advice)) {
    let mut said = lock(&SAID);
    split(&mut said, start);
    split(&mut said, end);
    let mut at = start;
    let mut gaps = Vec::new();
    for (s, (e, _)) in said.range(start..end) {
        if *s > at {
            gaps.push((at, *s));
        }
        at = *e;
    }
    if at < end {
        gaps.push((at, end));
    }
    for (s, e) in gaps {
        said.insert(s, (e, SILENCE));
    }
    for (_, (_, advice)) in said.range_mut(start..end) {
        change(advice);
    }
}

/// The advice for each part of a range, in order of addresses.
fn heard(start: u64, end: u64) -> Vec<Advice> {
    let said = lock(&SAID);
    let before = said
        .range(..=start)
        .next_back()
        .filter(|(_, (e, _))| *e > start);
    let mut all: Vec<(u64, u64, Advice)> =
        before.map(|(s, (e, a))| (*s, *e, *a)).into_iter().collect();
    let later = said.range(start + 1..end);
    all.extend(later.map(|(s, (e, a))| (*s, *e, *a)));
    let mut at = start;
    let mut found = Vec::new();
    for (s, e, a) in all {
        if s > at {
            found.push(SILENCE);
        }
        found.push(a);
        at = e;
    }
    if at < end {
        found.push(SILENCE);
    }
    found
}

/// Removes the advice for a range whose memory is freed.
pub fn forget(start: u64, len: u64) {
    let mut said = lock(&SAID);
    if said.is_empty() {
        return;
    }
    let end = start.saturating_add(len);
    split(&mut said, start);
    split(&mut said, end);
    let gone: Vec<u64> = said.range(start..end).map(|(s, _)| *s).collect();
    for s in gone {
        said.remove(&s);
    }
}

/// Checks that a range is managed memory and returns the end of the range.
fn managed(addr: u64, bytes: u64) -> Result<u64> {
    let memory = &healthy()?.memory;
    let end = addr.checked_add(bytes).filter(|_| bytes > 0);
    let end = end.ok_or(CuResult::INVALID_VALUE)?;
    let first = memory.find(addr).filter(|a| a.usage.managed());
    match first {
        Some(a) if end <= a.addr + a.padded => Ok(end),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// cuMemAdvise (CUmem_advise).
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: not managed memory, or unknown advice. CUDA_ERROR_INVALID_DEVICE: no
/// such device.
pub fn advise(addr: u64, bytes: u64, advice: u32, spot: Spot) -> Result {
    let end = managed(addr, bytes)?;
    if matches!(advice, 3 | 5 | 6) {
        spot.check()?;
    }
    let bit = match spot.kind {
        DEVICE => 1u64.checked_shl(spot.id.unsigned_abs()).unwrap_or(0),
        _ => HOST_BIT,
    };
    match advice {
        1 | 2 => say(addr, end, |a| a.read_mostly = advice == 1),
        3 => say(addr, end, |a| a.preferred = spot),
        4 => say(addr, end, |a| a.preferred = NONE),
        5 => say(addr, end, |a| a.accessed_by |= bit),
        6 => say(addr, end, |a| a.accessed_by &= !bit),
        _ => return Err(CuResult::INVALID_VALUE),
    }
    Ok(())
}

/// Checks the arguments of a prefetch, before [`prefetch`] stores the location.
///
/// # Errors
/// As [`advise`].
pub fn check_prefetch(addr: u64, bytes: u64, spot: Spot) -> Result {
    managed(addr, bytes)?;
    spot.check()
}

/// Stores the location to which a range was last prefetched.
///
/// # Errors
/// As [`advise`].
pub fn prefetch(addr: u64, bytes: u64, spot: Spot) -> Result {
    let end = managed(addr, bytes)?;
    spot.check()?;
    say(addr, end, |a| a.prefetched = spot);
    Ok(())
}

/// cuMemRangeGetAttribute (CUmem_range_attribute): at most `room` values.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: not managed memory, an unknown attribute, or too little room.
pub fn range_attribute(addr: u64, bytes: u64, attribute: u32, room: usize) -> Result<Vec<i32>> {
    let end = managed(addr, bytes)?;
    let all = heard(addr, end);
    let common = |of: fn(&Advice) -> Spot| {
        let first = all.first().map_or(NONE, of);
        if all.iter().all(|a| of(a) == first) {
            first
        } else {
            NONE
        }
    };
    let preferred = || common(|a| a.preferred);
    let prefetched = || common(|a| a.prefetched);
    if room == 0 || (attribute != 3 && room != 1) {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(match attribute {
        1 => vec![i32::from(all.iter().all(|a| a.read_mostly))],
        2 => vec![preferred().device()],
        3 => {
            let mask = all.iter().fold(u64::MAX, |m, a| m & a.accessed_by);
            let devices = (0..63).filter(|d| mask & (1 << d) != 0);
            let host = (mask & HOST_BIT != 0).then_some(CPU);
            let mut found: Vec<i32> = devices.chain(host).take(room).collect();
            found.resize(room, INVALID);
            found
        }
        4 => vec![prefetched().device()],
        5 => vec![preferred().kind as i32],
        6 => vec![preferred().id],
        7 => vec![prefetched().kind as i32],
        8 => vec![prefetched().id],
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_split_and_gaps_have_no_advice() {
        let spot = Spot::of_device(0);
        say(100, 200, |a| a.preferred = spot);
        say(150, 300, |a| a.read_mostly = true);
        assert_eq!(heard(100, 150).len(), 1);
        assert!(!heard(100, 150)[0].read_mostly);
        let both = heard(150, 200);
        assert!(both.len() == 1 && both[0].read_mostly && both[0].preferred == spot);
        assert_eq!(heard(250, 400).len(), 2);
        assert_eq!(heard(400, 500), [SILENCE]);
        forget(120, 1000);
        assert_eq!(heard(130, 160), [SILENCE]);
        assert_eq!(heard(100, 120)[0].preferred, spot);
    }
}
