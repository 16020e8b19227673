//! Device resources. Only multiprocessors are reported, and every context and stream has all of
//! them. Splits are computed. Contexts on a part of the multiprocessors (green contexts) are not
//! served.

use std::ffi::{c_int, c_uint};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::device_attribute as attribute;
use vgpu_cuda_abi::numbers::resource::{
    RESOURCE_TYPE_SM as MULTIPROCESSORS,
    SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING as IGNORE_COSCHEDULING,
    SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE as MAX_POTENTIAL_CLUSTER_SIZE,
};
use vgpu_cuda_abi::structs::DevResource;

use crate::Cu;
use crate::ffi::exports;
use crate::state::Shim;
use crate::state::current::shim;
use crate::state::streams::resolve;

const SPLIT_FLAGS: c_uint = IGNORE_COSCHEDULING | MAX_POTENTIAL_CLUSTER_SIZE;
/// Number of multiprocessors in a pair, the smallest unit that the hardware can split off.
const FINEST: u32 = 2;

/// The multiprocessors of a device.
fn resource(shim: &Shim, device: c_int, kind: u32) -> Cu<DevResource> {
    let device = shim.devices.get(device)?;
    if kind != MULTIPROCESSORS {
        return Err(CuResult::INVALID_RESOURCE_TYPE);
    }
    let get = |id| device.attribute(id).map(|n| n.max(0) as u32);
    let (smallest, alignment) = granularity(get(attribute::COMPUTE_CAPABILITY_MAJOR)?);
    Ok(DevResource {
        kind,
        internal: [0; 92],
        count: get(attribute::MULTIPROCESSOR_COUNT)?,
        smallest,
        alignment,
        flags: 0,
        domain: 0,
        rest: [0; 5],
        next: 0,
    })
}

/// A part of a resource. A part without multiprocessors is marked as an invalid resource.
fn part(of: &DevResource, count: u32) -> DevResource {
    let kind = if count == 0 { 0 } else { of.kind };
    DevResource { kind, count, ..*of }
}

/// Minimum and alignment of the number of multiprocessors in a part, by compute capability, from
/// CUDA's documentation of `cuDevSmResourceSplitByCount`.
fn granularity(major: u32) -> (u32, u32) {
    match major {
        0..=7 => (2, 2),
        8 => (4, 2),
        _ => (8, 8),
    }
}

/// Splits multiprocessors into at most `most` parts of at least `least` multiprocessors. Returns
/// the number of parts, and the number of multiprocessors in each part.
fn split(all: &DevResource, least: u32, most: u32) -> Cu<(u32, u32)> {
    if all.smallest == 0 || all.alignment == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let each = least
        .max(all.smallest)
        .checked_next_multiple_of(all.alignment);
    let each = each.filter(|each| *each <= all.count);
    let each = each.ok_or(CuResult::INVALID_RESOURCE_CONFIGURATION)?;
    Ok(((all.count / each).min(most), each))
}

exports! {
    /// The multiprocessors of a device.
    fn cuDeviceGetDevResource(device: c_int, out: Out<DevResource>, kind: u32) {
        out.set(resource(shim()?, device, kind)?)
    }

    /// The multiprocessors of a context's device.
    fn cuCtxGetDevResource(ctx: u64, out: Out<DevResource>, kind: u32) {
        let shim = shim()?;
        let device = shim.contexts.named(ctx)?.device;
        out.set(resource(shim, device, kind)?)
    }

    /// The multiprocessors of a stream's device.
    fn cuStreamGetDevResource / cuStreamGetDevResource_ptsz [mode] (
        stream: u64,
        out: Out<DevResource>,
        kind: u32
    ) {
        let shim = shim()?;
        let device = resolve(shim, stream, mode)?.ctx.device;
        out.set(resource(shim, device, kind)?)
    }

    /// Splits multiprocessors into parts of at least the given number. Without an output array,
    /// returns only the number of possible parts.
    fn cuDevSmResourceSplitByCount(
        out: Out<DevResource>,
        parts: Out<c_uint>,
        input: In<DevResource>,
        remaining: Out<DevResource>,
        flags: c_uint,
        least: c_uint
    ) {
        shim()?;
        parts.check()?;
        input.check()?;
        let (mut all, wanted) = (input.get()?, parts.get()?);
        if all.kind != MULTIPROCESSORS {
            return Err(CuResult::INVALID_RESOURCE_TYPE);
        }
        if flags & !SPLIT_FLAGS != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
                if flags & IGNORE_COSCHEDULING != 0 {
            (all.smallest, all.alignment) = (FINEST, FINEST);
        }
        let most = if out.is_null() { u32::MAX } else { wanted };
        let (found, each) = split(&all, least, most)?;
        parts.set(found)?;
        if !out.is_null() {
            out.set_all((0..found).map(|_| part(&all, each)))?;
            remaining.set_if_wanted(part(&all, all.count - found * each));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_and_fit() {
        let all = DevResource {
            kind: MULTIPROCESSORS,
            internal: [0; 92],
            count: 22,
            smallest: 4,
            alignment: 2,
            flags: 0,
            domain: 0,
            rest: [0; 5],
            next: 0,
        };
        assert_eq!(split(&all, 0, u32::MAX), Ok((5, 4)));
        assert_eq!(split(&all, 5, u32::MAX), Ok((3, 6)));
        assert_eq!(split(&all, 5, 2), Ok((2, 6)));
        for least in [23, u32::MAX] {
            let none = Err(CuResult::INVALID_RESOURCE_CONFIGURATION);
            assert_eq!(split(&all, least, 1), none);
        }
        assert!(
            split(
                &DevResource {
                    alignment: 0,
                    ..all
                },
                1,
                1
            )
            .is_err()
        );
    }
}
