//! CUDA arrays: memory of one to three dimensions that copies address by element. The layout is
//! plain rows, because only copies read arrays (textures and surfaces are not served).

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::{Array3DDescriptor, channel_bytes};

use super::context;
use super::error::Result;
use super::handle::{Kind, Table};
use super::memory::Use;
use super::pool;
use super::{driver, fault, healthy};

/// Flags for layers, surfaces, cube maps, gather and depth. Copies ignore these flags.
const FLAGS: u32 = 0x1f;
/// Longest side, in elements.
const LONGEST: usize = 1 << 17;

/// An array.
pub struct Array {
    /// CUarray.
    pub handle: u64,
    /// The descriptor of cuArray3DCreate.
    pub shape: Array3DDescriptor,
    /// First address.
    pub addr: u64,
    /// Bytes per row.
    pub pitch: u64,
    context: u64,
    /// Whether the array is a level of a mipmapped array. Only the end of the mipmapped array
    /// destroys its levels.
    level: bool,
}

/// A mipmapped array.
pub struct Mipmap {
    handle: u64,
    context: u64,
    levels: Vec<Arc<Array>>,
}

static ARRAYS: Table<Array> = Table::new(Kind::Array);
static MIPMAPS: Table<Mipmap> = Table::new(Kind::Mipmap);

/// Bytes per element of a format and a number of channels.
///
/// # Errors
/// As [`Shape::element`].
pub fn element(format: u32, channels: u32) -> Result<usize> {
    if !matches!(channels, 1 | 2 | 4) {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok((channels * channel_bytes(format)?) as usize)
}

/// Sizes that an array descriptor determines.
pub trait Shape: Sized {
    /// (rows per slice, slices).
    fn sides(&self) -> (usize, usize);

    /// Bytes per row.
    ///
    /// # Errors
    /// As [`Shape::element`].
    fn pitch(&self) -> Result<usize>;

    /// Bytes per element.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a number of channels other than 1, 2 and 4, or an unknown
    /// format. CUDA_ERROR_NOT_SUPPORTED for a compressed, planar or normalised format.
    fn element(&self) -> Result<usize>;

    /// Checks that an array of this shape can be created.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for impossible sides or flags. CUDA_ERROR_NOT_SUPPORTED for flags
    /// that need textures, surfaces or sparse memory.
    fn check(&self) -> Result;

    /// The shape of the next mipmap level: every used side is halved (at least 1). The number of
    /// layers stays.
    #[must_use]
    fn half(&self) -> Self;
}

impl Shape for Array3DDescriptor {
    fn sides(&self) -> (usize, usize) {
        (self.height.max(1), self.depth.max(1))
    }

    fn pitch(&self) -> Result<usize> {
        Ok(self.width * self.element()?)
    }

    fn element(&self) -> Result<usize> {
        element(self.format, self.channels)
    }

    fn check(&self) -> Result {
        let sides = [self.width, self.height, self.depth];
        let layered = self.flags & 1 != 0;
        if self.width == 0 || sides.iter().any(|s| *s > LONGEST) {
            return Err(CuResult::INVALID_VALUE);
        }
        // A depth without a height is valid for layered arrays only.
        if self.depth > 0 && self.height == 0 && !layered {
            return Err(CuResult::INVALID_VALUE);
        }
        match self.flags & !FLAGS {
            0 => Ok(()),
            0x40 | 0x80 | 0x100 => Err(CuResult::NOT_SUPPORTED),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    fn half(&self) -> Self {
        let half = |n: usize| if n == 0 { 0 } else { (n / 2).max(1) };
        let layered = self.flags & 1 != 0;
        Array3DDescriptor {
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

fn make(shape: Array3DDescriptor, level: bool) -> Result<Arc<Array>> {
    let driver = healthy()?;
    let context = context::current()?;
    shape.check()?;
    let pitch = shape.pitch()? as u64;
    let (rows, slices) = shape.sides();
    let bytes = pitch
        .checked_mul(rows as u64)
        .and_then(|n| n.checked_mul(slices as u64));
    let bytes = bytes.ok_or(CuResult::OUT_OF_MEMORY)?;
    let addr = driver
        .memory
        .alloc(driver, &context.gpu, Use::Array, bytes, context.handle)?;
    Ok(ARRAYS.insert(|handle| {
        Arc::new(Array {
            handle,
            shape,
            addr,
            pitch,
            context: context.handle,
            level,
        })
    }))
}

/// cuArray3DCreate.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an impossible shape, CUDA_ERROR_NOT_SUPPORTED for formats and flags
/// that are not served, CUDA_ERROR_OUT_OF_MEMORY.
pub fn create(shape: Array3DDescriptor) -> Result<u64> {
    make(shape, false).map(|a| a.handle)
}

/// The array that a handle names.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE (strict mode aborts on a stale or forged handle).
pub fn get(handle: u64) -> Result<Arc<Array>> {
    healthy()?;
    ARRAYS.get(handle)
}

fn end(array: &Array) {
    let _ = ARRAYS.remove(array.handle);
    if let Ok(driver) = driver()
        && let Ok(a) = driver.memory.unlist(array.addr, |u| u == Use::Array)
    {
        pool::bury(driver, &a);
    }
}

/// cuArrayDestroy: waits for the work of the context.
///
/// # Errors
/// As [`get`]; a level of a mipmapped array cannot be destroyed alone.
pub fn destroy(handle: u64) -> Result {
    let array = get(handle)?;
    if array.level {
        return Err(CuResult::INVALID_VALUE);
    }
    if let Some(context) = context::find(array.context) {
        context.synchronize()?;
    }
    end(&array);
    fault::check()
}

/// cuMipmappedArrayCreate with at most `levels` levels.
///
/// # Errors
/// As [`create`].
pub fn create_mipmap(shape: Array3DDescriptor, levels: u32) -> Result<u64> {
    let context = context::current()?.handle;
    if levels == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let longest = shape.width.max(shape.height).max(shape.depth).max(1);
    let most = longest.ilog2() + 1;
    let mut made: Vec<Arc<Array>> = Vec::new();
    let mut shape = shape;
    for _ in 0..levels.min(most) {
        match make(shape, true) {
            Ok(a) => made.push(a),
            Err(e) => {
                made.iter().for_each(|a| end(a));
                return Err(e);
            }
        }
        shape = shape.half();
    }
    let mipmap = MIPMAPS.insert(|handle| {
        Arc::new(Mipmap {
            handle,
            context,
            levels: made,
        })
    });
    Ok(mipmap.handle)
}

/// cuMipmappedArrayGetLevel.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE; CUDA_ERROR_INVALID_VALUE past the last level.
pub fn level(handle: u64, level: u32) -> Result<u64> {
    healthy()?;
    let mipmap = MIPMAPS.get(handle)?;
    let found = mipmap.levels.get(level as usize);
    found.map(|a| a.handle).ok_or(CuResult::INVALID_VALUE)
}

/// Checks that a handle is of a live mipmapped array.
///
/// # Errors
/// As [`get`].
pub fn find_mipmap(handle: u64) -> Result {
    healthy()?;
    MIPMAPS.get(handle).map(|_| ())
}

/// cuMipmappedArrayDestroy.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE.
pub fn destroy_mipmap(handle: u64) -> Result {
    healthy()?;
    let mipmap = MIPMAPS.remove(handle)?;
    if let Some(context) = context::find(mipmap.context) {
        context.synchronize()?;
    }
    mipmap.levels.iter().for_each(|a| end(a));
    fault::check()
}

/// Destroys the arrays of a destroyed context; the context frees their memory.
pub fn forget_context(context: u64) {
    for mipmap in MIPMAPS.all() {
        if mipmap.context == context {
            let _ = MIPMAPS.remove(mipmap.handle);
        }
    }
    for array in ARRAYS.all() {
        if array.context == context {
            let _ = ARRAYS.remove(array.handle);
        }
    }
}

impl Array {
    /// Whether a box lies within the array. `at` and `size` are (bytes, rows, slices).
    pub fn contains(&self, at: [usize; 3], size: [usize; 3]) -> bool {
        let (rows, slices) = self.shape.sides();
        let room = [self.pitch as usize, rows, slices];
        (0..3).all(|i| at[i].checked_add(size[i]).is_some_and(|end| end <= room[i]))
    }

    /// Rows per slice.
    pub fn rows(&self) -> usize {
        self.shape.sides().0
    }
}
