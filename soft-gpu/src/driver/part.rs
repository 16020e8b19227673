//! Parts of a device: sets of multiprocessors, and the two ways to split a set.

use vgpu_cuda_abi::CuResult;

use super::error::Result;
use crate::exec::contract::MULTIPROCESSORS;

/// A set of a device's multiprocessors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part(u32);

const _: () = assert!(MULTIPROCESSORS < 32);

impl Part {
    /// The whole device.
    pub const ALL: Part = Part((1 << MULTIPROCESSORS) - 1);

    /// The set with these bits; `None` for an empty set or an unknown multiprocessor.
    pub fn from_bits(bits: u32) -> Option<Part> {
        (bits != 0 && bits & !Part::ALL.0 == 0).then_some(Part(bits))
    }

    /// One bit per multiprocessor.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Number of multiprocessors in the set.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the multiprocessor with this number is in the set.
    pub fn has(self, number: usize) -> bool {
        self.0 >> number & 1 == 1
    }

    /// The union of both sets; `None` if they overlap.
    pub fn with(self, other: Part) -> Option<Part> {
        (self.0 & other.0 == 0).then_some(Part(self.0 | other.0))
    }

    /// Removes and returns the first `n` multiprocessors; `None` if there are fewer.
    fn take(&mut self, n: u32) -> Option<Part> {
        if n > self.count() {
            return None;
        }
        let mut left = self.0;
        for _ in 0..n {
            left &= left.wrapping_sub(1);
        }
        let taken = Part(self.0 ^ left);
        self.0 = left;
        Some(taken)
    }
}

/// Granularity of the parts of a device, in multiprocessors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grain {
    /// Fewest multiprocessors in a part of a split by count.
    pub smallest: u32,
    /// The number of multiprocessors of a part is a multiple of this number. Each such group is
    /// scheduled together.
    pub alignment: u32,
    /// Most multiprocessors that a split may require to be scheduled together.
    most_together: u32,
}

/// The smallest unit in hardware: a pair of multiprocessors.
const FINEST: u32 = 2;

impl Grain {
    /// The granularity for a major compute capability, as CUDA's documentation of
    /// `cuDevSmResourceSplitByCount` and of green contexts defines it.
    pub fn of(major: u32) -> Grain {
        let (smallest, alignment, most_together) = match major {
            0..=7 => (2, 2, 2),
            8 => (4, 2, 2),
            _ => (8, 8, 32),
        };
        Grain {
            smallest,
            alignment,
            most_together,
        }
    }

    /// The granularity of a split that does not require multiprocessors to be scheduled together.
    pub fn finest(self) -> Grain {
        Grain {
            smallest: FINEST,
            alignment: FINEST,
            ..self
        }
    }
}

/// `cuDevSmResourceSplitByCount`: returns at most `most` parts of equal size, with at least `least`
/// multiprocessors each, and the remaining multiprocessors.
///
/// # Errors
/// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if not even one part fits.
pub fn by_count(whole: Part, grain: Grain, least: u32, most: u32) -> Result<(Vec<Part>, Part)> {
    let each = least
        .max(grain.smallest)
        .checked_next_multiple_of(grain.alignment);
    let each = each.filter(|each| *each <= whole.count());
    let each = each.ok_or(CuResult::INVALID_RESOURCE_CONFIGURATION)?;
    let mut left = whole;
    let number = (whole.count() / each).min(most);
    let parts = (0..number).filter_map(|_| left.take(each)).collect();
    Ok((parts, left))
}

/// `CU_DEV_SM_RESOURCE_GROUP_BACKFILL`.
const BACKFILL: u32 = 1;

/// Requirements of one group of `cuDevSmResourceSplit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Number of multiprocessors. 0: as many as possible, and the split stores the number here.
    pub count: u32,
    /// Number of multiprocessors that are scheduled together. 0: the alignment of the device.
    pub together: u32,
    /// CUdevSmResourceGroup_flags.
    pub flags: u32,
}

impl Group {
    /// The number of multiprocessors that the group gets out of `left`, the remainder of `whole`.
    fn resolve(&self, grain: Grain, whole: Part, left: Part) -> Result<u32> {
        let together = match self.together {
            0 => grain.alignment,
            n => n,
        };
        let fits = together.is_multiple_of(FINEST) && together <= grain.most_together;
        if !fits || self.flags & !BACKFILL != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let backfill = self.flags & BACKFILL != 0;
        let count = match self.count {
            0 if backfill => left.count(),
            0 => left.count() / together * together,
            n => n,
        };
        let odd = !self.count.is_multiple_of(FINEST);
        let ragged = !backfill && !count.is_multiple_of(together);
        if odd || ragged || count > whole.count() {
            return Err(CuResult::INVALID_VALUE);
        }
        let impossible = count > left.count() || (self.count > 0 && count < together);
        match impossible {
            true => Err(CuResult::INVALID_RESOURCE_CONFIGURATION),
            false => Ok(count),
        }
    }
}

/// `cuDevSmResourceSplit`: returns one part per group, and the remaining multiprocessors. Stores
/// the counts of the groups that had the count 0. `made` says that the program wants the parts and
/// not only the counts; then no part may be empty.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a request that the device never supports;
/// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if too few multiprocessors are left. After an error,
/// all counts are unchanged.
pub fn in_groups(
    whole: Part,
    grain: Grain,
    groups: &mut [Group],
    made: bool,
) -> Result<(Vec<Part>, Part)> {
    let mut left = whole;
    let mut parts = Vec::with_capacity(groups.len());
    for group in groups.iter() {
        let count = group.resolve(grain, whole, left)?;
        let part = left.take(count).filter(|p| !made || p.count() > 0);
        parts.push(part.ok_or(CuResult::INVALID_RESOURCE_CONFIGURATION)?);
    }
    for (group, part) in groups.iter_mut().zip(&parts) {
        group.count = part.count();
    }
    Ok((parts, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPERE: u32 = 8;

    fn counts((parts, left): (Vec<Part>, Part)) -> (Vec<u32>, u32) {
        (parts.iter().map(|p| p.count()).collect(), left.count())
    }

    #[test]
    fn equal_parts_are_disjoint_aligned_and_fit() {
        let grain = Grain::of(AMPERE);
        let split = |least, most| by_count(Part::ALL, grain, least, most).map(counts);
        assert_eq!(split(0, u32::MAX), Ok((vec![4; 4], 0)));
        assert_eq!(split(5, u32::MAX), Ok((vec![6; 2], 4)));
        assert_eq!(split(5, 1), Ok((vec![6], 10)));
        assert_eq!(split(16, 9), Ok((vec![16], 0)));
        for least in [17, u32::MAX] {
            let none = Err(CuResult::INVALID_RESOURCE_CONFIGURATION);
            assert_eq!(split(least, 1), none);
        }
        let fine = by_count(Part::ALL, grain.finest(), 1, 99).map(counts);
        assert_eq!(fine, Ok((vec![2; 8], 0)));
        let (parts, left) = by_count(Part::ALL, grain, 6, 2).expect("it splits");
        let all = parts.iter().try_fold(left, |all, p| all.with(*p));
        assert_eq!(all, Some(Part::ALL));
    }

    #[test]
    fn groups_get_the_requested_multiprocessors_in_order() {
        let grain = Grain::of(AMPERE);
        let group = |count, together, flags| Group {
            count,
            together,
            flags,
        };
        let split = |groups: &[Group], made| {
            let mut groups = groups.to_vec();
            let split = in_groups(Part::ALL, grain, &mut groups, made).map(counts);
            split.map(|(parts, left)| {
                assert_eq!(parts, groups.iter().map(|g| g.count).collect::<Vec<_>>());
                (parts, left)
            })
        };
        assert_eq!(split(&[group(0, 0, 0)], true), Ok((vec![16], 0)));
        assert_eq!(split(&[group(10, 2, 0)], true), Ok((vec![10], 6)));
        let two = [group(8, 2, 0), group(0, 2, BACKFILL)];
        assert_eq!(split(&two, true), Ok((vec![8, 8], 0)));
        let none_left = [group(16, 0, 0), group(0, 0, 0)];
        assert_eq!(split(&none_left, false), Ok((vec![16, 0], 0)));
        let short = Err(CuResult::INVALID_RESOURCE_CONFIGURATION);
        assert_eq!(split(&none_left, true), short);
        assert_eq!(split(&[group(10, 0, 0), group(8, 0, 0)], true), short);
        for bad in [
            group(3, 0, 0),
            group(18, 0, 0),
            group(4, 4, 0),
            group(4, 3, 0),
            group(4, 0, 2),
        ] {
            assert_eq!(split(&[bad], true), Err(CuResult::INVALID_VALUE), "{bad:?}");
        }
        let hopper = in_groups(Part::ALL, Grain::of(9), &mut [group(12, 0, BACKFILL)], true);
        assert_eq!(hopper.map(counts), Ok((vec![12], 4)));
        let ragged = in_groups(Part::ALL, Grain::of(9), &mut [group(12, 0, 0)], true);
        assert_eq!(ragged.map(counts), Err(CuResult::INVALID_VALUE));
    }
}
