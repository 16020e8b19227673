//! Shapes of CUDA arrays: the rules that the guest's library, the worker and soft-gpu check.
//!
//! Arrays hold data for copies; textures and surfaces are not served. The rules for shapes are
//! those of `cuArray3DCreate`; only the driver knows the largest sides.

use crate::CuResult;

/// `CUDA_ARRAY_DESCRIPTOR`: the shape of an array of at most two dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ArrayDescriptor {
    /// Elements in a row.
    pub width: u64,
    /// Number of rows; 0 for one dimension.
    pub height: u64,
    /// `CUarray_format`.
    pub format: u32,
    /// Channels per element: 1, 2 or 4.
    pub channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`: the shape of any array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "bincode", derive(bincode::Encode, bincode::Decode))]
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

/// Size in bytes of a channel of this `CUarray_format`.
///
/// # Errors
/// CUDA_ERROR_NOT_SUPPORTED for compressed, planar and normalised formats, which need textures;
/// CUDA_ERROR_INVALID_VALUE for any other number.
fn channel_bytes(format: u32) -> Result<u32, CuResult> {
    match format {
        // 8, 16 and 32 bits: unsigned, signed and floating point.
        0x01 | 0x08 => Ok(1),
        0x02 | 0x09 | 0x10 => Ok(2),
        0x03 | 0x0a | 0x20 => Ok(4),
        0x50..=0x5e | 0x91..=0xb5 | 0xc0..=0xc8 => Err(CuResult::NOT_SUPPORTED),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// Size in bytes of an element of this `CUarray_format` and number of channels.
///
/// # Errors
/// CUDA_ERROR_NOT_SUPPORTED for compressed, planar and normalised formats, which need textures;
/// CUDA_ERROR_INVALID_VALUE for any other format and for a number of channels other than 1, 2 and
/// 4.
pub fn element_bytes(format: u32, channels: u32) -> Result<u64, CuResult> {
    let channel = channel_bytes(format)?;
    match channels {
        1 | 2 | 4 => Ok(u64::from(channel * channels)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

impl From<ArrayDescriptor> for ArrayShape {
    fn from(of: ArrayDescriptor) -> Self {
        Self {
            width: of.width,
            height: of.height,
            depth: 0,
            format: of.format,
            channels: of.channels,
            flags: 0,
        }
    }
}

impl From<ArrayShape> for ArrayDescriptor {
    fn from(of: ArrayShape) -> Self {
        Self {
            width: of.width,
            height: of.height,
            format: of.format,
            channels: of.channels,
        }
    }
}

impl ArrayShape {
    /// Checks that an array of this shape can be created. An invalid flag or shape comes before a
    /// format that is not served, and such a format before such a flag.
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
        // Six square faces, or six in each layer.
        let faces = match layered {
            true => self.depth > 0 && self.depth.is_multiple_of(6),
            false => self.depth == 6,
        };
        if self.flags & CUBEMAP != 0 && !(faces && self.width == self.height) {
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
    /// As [`element_bytes`].
    pub fn element(&self) -> Result<u64, CuResult> {
        element_bytes(self.format, self.channels)
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
    fn shapes_are_checked_as_cuda_documents() {
        const BAD: Result<(), CuResult> = Err(CuResult::INVALID_VALUE);
        const OTHER: Result<(), CuResult> = Err(CuResult::NOT_SUPPORTED);
        const BOTH: u32 = LAYERED | CUBEMAP;
        // Sides, format, channels, flags.
        let cases = [
            ([5, 3, 0], 0x20, 2, 0, Ok(())),
            ([0, 3, 0], 0x20, 2, 0, BAD),
            ([u64::MAX, 3, 0], 0x20, 2, 0, BAD),
            ([LONGEST, 0, 0], 0x20, 2, 0, Ok(())),
            ([LONGEST + 1, 0, 0], 0x20, 2, 0, BAD),
            // A depth without a height is the number of layers.
            ([5, 0, 2], 0x20, 2, 0, BAD),
            ([5, 0, 2], 0x20, 2, LAYERED, Ok(())),
            // Channels and formats.
            ([5, 3, 0], 0x20, 0, 0, BAD),
            ([5, 3, 0], 0x20, 3, 0, BAD),
            ([5, 3, 0], 0x20, 4, 0, Ok(())),
            ([5, 3, 0], 7, 2, 0, BAD),
            ([5, 3, 0], 0xb0, 2, 0, OTHER),
            ([5, 3, 0], 0xb0, 3, 0, OTHER),
            // Faces of a cube, with and without layers.
            ([4, 4, 6], 0x20, 2, CUBEMAP, Ok(())),
            ([4, 4, 12], 0x20, 2, CUBEMAP, BAD),
            ([4, 4, 12], 0x20, 2, BOTH, Ok(())),
            ([4, 4, 0], 0x20, 2, CUBEMAP, BAD),
            ([4, 4, 0], 0x20, 2, BOTH, BAD),
            ([4, 3, 6], 0x20, 2, CUBEMAP, BAD),
            // Flags: every served one; each that is not served, alone or with others; none.
            ([5, 5, 6], 0x20, 2, SERVED_FLAGS, Ok(())),
            ([5, 3, 0], 0x20, 2, 0x20, OTHER),
            ([5, 3, 0], 0x20, 2, 0x40, OTHER),
            ([5, 3, 0], 0x20, 2, OTHER_FLAGS, OTHER),
            ([5, 3, 0], 0x20, 2, 0x42, OTHER),
            ([5, 3, 0], 0x20, 2, 0x200, BAD),
            ([5, 3, 0], 0x20, 2, 0x240, BAD),
            // Which error comes first.
            ([5, 3, 0], 0xb0, 2, 0x200, BAD),
            ([5, 3, 0], 7, 2, 0x40, BAD),
            ([5, 3, 0], 0x20, 3, 0x40, BAD),
        ];
        for ([width, height, depth], format, channels, flags, due) in cases {
            let shape = ArrayShape {
                width,
                height,
                depth,
                format,
                channels,
                flags,
            };
            assert_eq!(shape.check(), due, "{shape:?}");
        }
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
        // Layers are not halved and bring no levels.
        let layers = ArrayShape {
            depth: 100,
            flags: LAYERED,
            ..whole
        };
        assert_eq!((layers.levels(100), layers.half().depth), (5, 100));
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
