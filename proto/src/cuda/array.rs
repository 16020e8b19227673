//! Shapes of CUDA arrays: the rules that guest and worker both check.
//!
//! Arrays hold data for copies; textures and surfaces are not served. The rules for shapes are
//! those of `cuArray3DCreate`; only the driver knows the largest sides.

use vgpu_cuda_abi::structs::channel_bytes;

use super::CuResult;
use crate::codec::{Decode, Encode};

/// `CUDA_ARRAY3D_DESCRIPTOR`, with the same layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[repr(C)]
pub struct ArrayShape {
    /// Elements in a row.
    pub width: u64,
    /// Number of rows; 0 for one dimension.
    pub height: u64,
    /// Number of slices or layers; 0 for at most two dimensions.
    pub depth: u64,
    /// `CUarray_format`.
    pub format: u32,
    /// Channels per element: 1, 2 or 4.
    pub channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub flags: u32,
}

const LAYERED: u32 = 0x01;
const CUBEMAP: u32 = 0x04;
/// Served `CUDA_ARRAY3D_*` flags: LAYERED, SURFACE_LDST, CUBEMAP, TEXTURE_GATHER, DEPTH_TEXTURE.
const SERVED_FLAGS: u32 = 0x1f;
/// Valid `CUDA_ARRAY3D_*` flags that are not served: COLOR_ATTACHMENT, SPARSE, DEFERRED_MAPPING,
/// VIDEO_ENCODE_DECODE.
const OTHER_FLAGS: u32 = 0x1e0;
/// Upper bound of the sides of an array, in elements, on every device.
const LONGEST: u64 = 1 << 28;
/// Largest number of levels of a mipmapped array, for a side of 2^28.
pub const MAX_LEVELS: u32 = 29;

impl ArrayShape {
    /// Checks that an array of this shape can be created.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an invalid shape; CUDA_ERROR_NOT_SUPPORTED for a valid format
    /// or flag that is not served.
    pub fn check(&self) -> Result<(), CuResult> {
        let sides = [self.width, self.height, self.depth];
        let layered = self.flags & LAYERED != 0;
        if self.width == 0 || sides.iter().any(|side| *side > LONGEST) {
            return Err(CuResult::INVALID_VALUE);
        }
        // Without rows, only layers are valid.
        if self.depth > 0 && self.height == 0 && !layered {
            return Err(CuResult::INVALID_VALUE);
        }
        let faces = self.width == self.height && self.depth > 0 && self.depth.is_multiple_of(6);
        if self.flags & CUBEMAP != 0 && !faces {
            return Err(CuResult::INVALID_VALUE);
        }
        if self.flags & !(SERVED_FLAGS | OTHER_FLAGS) != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        self.element()?;
        if self.flags & OTHER_FLAGS != 0 {
            return Err(CuResult::NOT_SUPPORTED);
        }
        Ok(())
    }

    /// Size of an element in bytes.
    ///
    /// # Errors
    /// As [`ArrayShape::check`], about format and channels.
    pub fn element(&self) -> Result<u64, CuResult> {
        let channel = channel_bytes(self.format)?;
        match self.channels {
            1 | 2 | 4 => Ok(u64::from(channel * self.channels)),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Bytes in a row, rows in a slice, and slices: each at least 1 for a valid shape.
    ///
    /// # Errors
    /// As [`ArrayShape::element`].
    pub fn room(&self) -> Result<[u64; 3], CuResult> {
        let row = self.width.checked_mul(self.element()?);
        let row = row.ok_or(CuResult::INVALID_VALUE)?;
        Ok([row, self.height.max(1), self.depth.max(1)])
    }

    /// Whether a box is part of the array. `at` and `size`: bytes, rows and slices.
    pub fn contains(&self, at: [u64; 3], size: [u64; 3]) -> bool {
        let Ok(room) = self.room() else { return false };
        (0..3).all(|i| at[i].checked_add(size[i]).is_some_and(|end| end <= room[i]))
    }

    /// Device memory of the array in bytes, rounded up to tiles of 64 bytes by 8 rows; `None` on
    /// overflow.
    pub fn bytes(&self) -> Option<u64> {
        let [row, rows, slices] = self.room().ok()?;
        let rows = if self.height == 0 {
            rows
        } else {
            rows.checked_next_multiple_of(8)?
        };
        row.checked_next_multiple_of(64)?
            .checked_mul(rows)?
            .checked_mul(slices)
    }

    /// Number of levels of a mipmapped array of this shape, if `wanted` levels are requested.
    pub fn levels(&self, wanted: u32) -> u32 {
        let depth = if self.flags & LAYERED == 0 {
            self.depth
        } else {
            0
        };
        let longest = self.width.max(self.height).max(depth).max(1);
        wanted.min(longest.ilog2() + 1)
    }

    /// The shape of the next level: half the size in every dimension.
    pub fn half(&self) -> ArrayShape {
        let half = |n: u64| if n == 0 { 0 } else { (n / 2).max(1) };
        let layered = self.flags & LAYERED != 0;
        ArrayShape {
            width: half(self.width),
            height: half(self.height),
            depth: if layered {
                self.depth
            } else {
                half(self.depth)
            },
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: ArrayShape = ArrayShape {
        width: 5,
        height: 3,
        depth: 0,
        format: 0x20,
        channels: 2,
        flags: 0,
    };

    #[test]
    fn rooms_and_boxes() {
        assert_eq!(FLOATS.check(), Ok(()));
        assert_eq!(FLOATS.room(), Ok([40, 3, 1]));
        assert_eq!(FLOATS.bytes(), Some(64 * 8));
        assert!(FLOATS.contains([0; 3], [40, 3, 1]));
        assert!(FLOATS.contains([8, 2, 0], [32, 1, 1]));
        for (at, size) in [
            ([1, 0, 0], [40, 1, 1]),
            ([0, 3, 0], [1, 1, 1]),
            ([0, 0, 1], [1, 1, 1]),
            ([u64::MAX, 0, 0], [2, 1, 1]),
            ([0, 0, 0], [1, 1, 2]),
        ] {
            assert!(!FLOATS.contains(at, size), "{at:?} {size:?}");
        }
    }

    #[test]
    fn shapes_that_are_none() {
        use CuResult as R;
        let with = |change: fn(&mut ArrayShape)| {
            let mut shape = FLOATS;
            change(&mut shape);
            shape.check()
        };
        assert_eq!(with(|s| s.width = 0), Err(R::INVALID_VALUE));
        assert_eq!(with(|s| s.width = u64::MAX), Err(R::INVALID_VALUE));
        assert_eq!(with(|s| s.channels = 3), Err(R::INVALID_VALUE));
        assert_eq!(with(|s| s.format = 7), Err(R::INVALID_VALUE));
        assert_eq!(with(|s| s.format = 0xb0), Err(R::NOT_SUPPORTED));
        assert_eq!(with(|s| s.flags = 0x40), Err(R::NOT_SUPPORTED));
        assert_eq!(with(|s| s.flags = 1 << 20), Err(R::INVALID_VALUE));
        assert_eq!(
            with(|s| (s.height, s.depth) = (0, 2)),
            Err(R::INVALID_VALUE)
        );
        assert_eq!(
            with(|s| (s.height, s.depth, s.flags) = (0, 2, LAYERED)),
            Ok(())
        );
        assert_eq!(with(|s| s.flags = CUBEMAP), Err(R::INVALID_VALUE));
        let cube = |s: &mut ArrayShape| (s.width, s.height, s.depth, s.flags) = (4, 4, 6, CUBEMAP);
        assert_eq!(with(cube), Ok(()));
    }

    #[test]
    fn levels_halve() {
        let whole = ArrayShape {
            width: 20,
            height: 6,
            ..FLOATS
        };
        assert_eq!(whole.levels(100), 5);
        assert_eq!(whole.levels(2), 2);
        let small = whole.half().half().half();
        assert_eq!((small.width, small.height, small.depth), (2, 1, 0));
        assert!(
            ArrayShape {
                width: LONGEST,
                ..FLOATS
            }
            .levels(u32::MAX)
                <= MAX_LEVELS
        );
    }
}
