//! CUDA arrays: memory of one to three dimensions that copies address by element. The layout is
//! plain rows, because only copies read arrays (textures and surfaces are not served).

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::ArrayShape;

use super::context;
use super::error::Result;
use super::handle::{Kind, Table};
use super::memory::Use;
use super::pool;
use super::{driver, fault, healthy};

/// Longest side of a software device's arrays, in elements.
const LONGEST: u64 = 1 << 17;

/// An array.
pub struct Array {
    /// CUarray.
    pub handle: u64,
    /// The shape with which the array was created.
    pub shape: ArrayShape,
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

fn make(shape: ArrayShape, level: bool) -> Result<Arc<Array>> {
    let driver = healthy()?;
    let context = context::current()?;
    shape.check()?;
    if [shape.width, shape.height, shape.depth]
        .iter()
        .any(|side| *side > LONGEST)
    {
        return Err(CuResult::INVALID_VALUE);
    }
    let [pitch, rows, slices] = shape.room()?;
    let bytes = pitch.checked_mul(rows).and_then(|n| n.checked_mul(slices));
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
pub fn create(shape: ArrayShape) -> Result<u64> {
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
pub fn create_mipmap(shape: ArrayShape, levels: u32) -> Result<u64> {
    let context = context::current()?.handle;
    if levels == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let mut made: Vec<Arc<Array>> = Vec::new();
    let mut shape = shape;
    for _ in 0..shape.levels(levels) {
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
    /// Rows per slice.
    pub fn rows(&self) -> u64 {
        self.shape.height.max(1)
    }
}
