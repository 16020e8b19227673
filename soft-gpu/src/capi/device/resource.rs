//! CUdevResource: a part of a device's multiprocessors, and the functions that split it.

use std::sync::atomic::{AtomicU32, Ordering};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::resource::{
    RESOURCE_TYPE_SM as MULTIPROCESSORS,
    SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING as IGNORE_COSCHEDULING,
    SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE as MAX_POTENTIAL_CLUSTER_SIZE,
};
use vgpu_cuda_abi::structs::{DevResource, GroupParams};

use crate::driver::error::Result;
use crate::driver::gpu::Gpu;
use crate::driver::part::{self, Grain, Group, Part};
use crate::driver::{gpu, green, healthy};

/// Accepted flags of cuDevSmResourceSplitByCount. The second is a hint for clusters, which are not
/// served.
const SPLIT_FLAGS: u32 = IGNORE_COSCHEDULING | MAX_POTENTIAL_CLUSTER_SIZE;
/// Marks a structure that this driver filled in. The tag lies in the bytes reserved for the driver.
const TAG: u32 = u32::from_le_bytes(*b"soft");
/// Most groups of one split: more than a device has multiprocessors.
const MOST_GROUPS: u32 = 64;

/// CUdevResource.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Resource {
    kind: u32,
    tag: u32,
    /// The multiprocessors, one bit each.
    bits: u32,
    device: i32,
    /// Number of the split that made this part; 0 for a resource that no split made.
    split: u32,
    internal: [u8; 76],
    count: u32,
    smallest: u32,
    alignment: u32,
    flags: u32,
    domain: u32,
    rest: [u32; 5],
    next: u64,
}

const _: () = assert!(size_of::<Resource>() == size_of::<DevResource>());

static SPLITS: AtomicU32 = AtomicU32::new(1);

fn grain_of(gpu: &Gpu) -> Grain {
    Grain::of(gpu.compute_capability.0)
}

impl Resource {
    fn new(gpu: &Gpu, part: Part, grain: Grain, split: u32) -> Resource {
        Resource {
            kind: MULTIPROCESSORS,
            tag: TAG,
            bits: part.bits(),
            device: gpu.ordinal as i32,
            split,
            internal: [0; 76],
            count: part.count(),
            smallest: grain.smallest,
            alignment: grain.alignment,
            flags: 0,
            domain: 0,
            rest: [0; 5],
            next: 0,
        }
    }

    /// The multiprocessors that a split left over. An empty remainder is an invalid resource (kind
    /// 0).
    fn rest(gpu: &Gpu, part: Part, grain: Grain, split: u32) -> Resource {
        let mut rest = Resource::new(gpu, part, grain, split);
        if part.count() == 0 {
            rest.kind = 0;
        }
        rest
    }

    /// Writes the multiprocessors of a device, a context or a stream to `out`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_RESOURCE_TYPE for any other kind of resource.
    pub fn tell(out: Out<Resource>, kind: u32, gpu: &Gpu, part: Part) -> Result {
        if kind != MULTIPROCESSORS {
            return Err(CuResult::INVALID_RESOURCE_TYPE);
        }
        out.set(Resource::new(gpu, part, grain_of(gpu), 0))
    }

    /// The device and the multiprocessors of the resource.
    fn read(&self) -> Result<(&'static Gpu, Part)> {
        if self.kind != MULTIPROCESSORS {
            return Err(CuResult::INVALID_RESOURCE_TYPE);
        }
        let part = Part::from_bits(self.bits).filter(|p| p.count() == self.count);
        let part = part.filter(|_| self.tag == TAG);
        let part = part.ok_or(CuResult::INVALID_VALUE)?;
        Ok((gpu(self.device)?, part))
    }
}

/// Writes the parts of a split to `result`, and the remainder to `rest`.
fn hand_out(
    (result, rest): (Out<Resource>, Out<Resource>),
    (gpu, grain): (&Gpu, Grain),
    (parts, left): (Vec<Part>, Part),
) -> Result {
    let split = SPLITS.fetch_add(1, Ordering::Relaxed);
    if !result.is_null() {
        let parts = parts.iter();
        result.set_all(parts.map(|part| Resource::new(gpu, *part, grain, split)))?;
    }
    rest.set_if_wanted(Resource::rest(gpu, left, grain, split));
    Ok(())
}

/// Joins the resources of one description. They must be of one device and one split, without
/// overlap.
fn join(resources: In<Resource>, count: u32) -> Result<(i32, Part)> {
    let first = resources.get()?;
    let (gpu, mut all) = first.read()?;
    for i in 1..count {
        let next = resources.at(i as usize)?;
        let (_, part) = next.read()?;
        let alike = (next.device, next.alignment) == (first.device, first.alignment)
            && next.split == first.split
            && next.split != 0;
        let joined = all.with(part).filter(|_| alike);
        all = joined.ok_or(CuResult::INVALID_RESOURCE_CONFIGURATION)?;
    }
    Ok((gpu.ordinal as i32, all))
}

exports! {
    fn cuDevSmResourceSplitByCount(
        result: Out<Resource>, groups: Out<u32>, input: In<Resource>, rest: Out<Resource>, flags: u32, least: u32,
    ) {
        healthy()?;
        groups.check()?;
        let (gpu, whole) = input.get()?.read()?;
        if flags & !SPLIT_FLAGS != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let mut grain = grain_of(gpu);
        if flags & IGNORE_COSCHEDULING != 0 {
            grain = grain.finest();
        }
        let most = if result.is_null() { u32::MAX } else { groups.get()? };
        let made = part::by_count(whole, grain, least, most)?;
        groups.set(made.0.len() as u32)?;
        hand_out((result, rest), (gpu, grain), made)
    }

    fn cuDevSmResourceSplit(
        result: Out<Resource>, count: u32, input: In<Resource>, rest: Out<Resource>, flags: u32,
        params: Out<GroupParams>,
    ) {
        healthy()?;
        params.check()?;
        let (gpu, whole) = input.get()?.read()?;
        if flags != 0 || !(1..=MOST_GROUPS).contains(&count) {
            return Err(CuResult::INVALID_VALUE);
        }
        let given = params.input();
        let given = (0..count as usize).map(|i| given.at(i)).collect::<Result<Vec<_>>>()?;
        let mut groups: Vec<Group> = given
            .iter()
            .map(|g| Group { count: g.count, together: g.together, flags: g.flags })
            .collect();
        let made = part::in_groups(whole, grain_of(gpu), &mut groups, !result.is_null())?;
        let told = given.iter().zip(&groups);
        params.set_all(told.map(|(given, found)| GroupParams { count: found.count, ..*given }))?;
        hand_out((result, rest), (gpu, grain_of(gpu)), made)
    }

    fn cuDevResourceGenerateDesc(out: Out<u64>, resources: In<Resource>, count: u32) {
        healthy()?;
        out.check()?;
        if count == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let (device, part) = join(resources, count)?;
        out.set(green::describe(device, part)?)
    }
}
