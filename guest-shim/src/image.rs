//! Finds the size of a module image, of which a program gives only a pointer.
//!
//! Images have one of five formats: a wrapper (embedded by nvcc) that points to a fatbin, a bare
//! fatbin, an ELF file (a cubin), Tile IR, or PTX text. Only the headers and tables that contain
//! sizes are read. Sizes over the limit of the wire are refused.

use std::ffi::{CStr, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cudart::image::{self, ELF, FATBIN, LINKED, TILE, WRAPPER, magic, read};
use vgpu_proto::limits::MAX_IMAGE;

use crate::Cu;
use crate::log::refusal;
use crate::sys::UserMemory;

/// Largest number of fatbins from which a program is linked.
const MAX_PARTS: usize = vgpu_proto::limits::MAX_LINK_INPUTS;

/// An image in the memory of the program.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    /// The bytes of the image, for PTX with the NUL at the end.
    pub(crate) memory: UserMemory,
    /// The fatbins from which the image was linked, if the image lists them. A driver links these
    /// fatbins again if the image has no code for the device.
    pub(crate) parts: Vec<UserMemory>,
}

/// Finds the image at `given`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for null; CUDA_ERROR_INVALID_IMAGE if the image has none of the formats
/// or a size over the limit.
///
/// # Safety
/// `given` is null, or points to a complete image of one of the formats.
pub(crate) unsafe fn at(given: *const c_void) -> Cu<Given> {
    if given.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let base: *const u8 = given.cast();
    // SAFETY: every format has at least four bytes, except short texts. Short texts end with a NUL,
    // and `magic` reads byte by byte up to the NUL.
    let form = unsafe { magic(base) };
    let mut parts = Vec::new();
    let (base, len) = match form {
        Some(WRAPPER) => {
            // SAFETY: a wrapper has 24 bytes; it points to a fatbin.
            let data: *const u8 = unsafe { read(base, 8) };
            if data.is_null() {
                return Err(CuResult::INVALID_IMAGE);
            }
            // SAFETY: as above.
            if unsafe { magic(data) } != Some(FATBIN) {
                return Err(damaged(
                    "the fatbin wrapper is damaged: it points to no fatbin",
                ));
            }
            // SAFETY: as above.
            unsafe {
                parts = self::parts(base)?;
                (data, fatbin_len(data)?)
            }
        }
        // SAFETY: a fatbin, by its magic number.
        Some(FATBIN) => (base, unsafe { fatbin_len(base) }?),
        // SAFETY: an ELF file, by its magic number.
        Some(ELF) => (base, unsafe { elf_len(base) }?),
        // SAFETY: Tile IR, by its magic number.
        Some(TILE) => (base, unsafe { tile_len(base) }?),
        // SAFETY: every other image is text that ends with a NUL.
        _ => (base, unsafe { text_len(base) }?),
    };
    let at = base.cast_mut();
    let memory = UserMemory { at, len };
    Ok(Given { memory, parts })
}

/// The fatbins from which the fatbin of a wrapper was linked.
///
/// # Safety
/// `wrapper` points to a complete wrapper. If the wrapper's version is [`LINKED`], its array ends
/// with null.
unsafe fn parts(wrapper: *const u8) -> Cu<Vec<UserMemory>> {
    let mut parts = Vec::new();
    // SAFETY: by this function's contract.
    let (version, list) = unsafe { (read::<u32>(wrapper, 4), read::<*const u8>(wrapper, 16)) };
    if version != LINKED || list.is_null() {
        return Ok(parts);
    }
    loop {
        // SAFETY: the array has entries up to its null.
        let part: *const u8 = unsafe { read(list, parts.len() * size_of::<*const u8>()) };
        if part.is_null() {
            return Ok(parts);
        }
        // SAFETY: a non-null entry points to a complete fatbin.
        let len = match unsafe { magic(part) } {
            // SAFETY: as above.
            Some(FATBIN) if parts.len() < MAX_PARTS => unsafe { fatbin_len(part) }?,
            _ => return Err(CuResult::INVALID_IMAGE),
        };
        let at = part.cast_mut();
        parts.push(UserMemory { at, len });
    }
}

fn bounded(len: u64) -> Cu<usize> {
    if (1..=MAX_IMAGE).contains(&len) {
        Ok(len as usize)
    } else {
        Err(CuResult::INVALID_IMAGE)
    }
}

/// Keeps the reason for which an image is refused, for the line on standard error.
fn damaged(why: &str) -> CuResult {
    refusal::keep(CuResult::INVALID_IMAGE, why.as_bytes());
    CuResult::INVALID_IMAGE
}

/// # Safety
/// As for [`image::fatbin_len`].
unsafe fn fatbin_len(base: *const u8) -> Cu<usize> {
    // SAFETY: by this function's contract.
    let len = unsafe { image::fatbin_len(base, MAX_IMAGE) };
    len.map_or_else(
        || {
            Err(damaged(
                "the fatbin is damaged: its parts are not where it says",
            ))
        },
        bounded,
    )
}

/// # Safety
/// `base` points to a complete 64-bit ELF file.
unsafe fn elf_len(base: *const u8) -> Cu<usize> {
    // SAFETY: by this function's contract.
    let len = unsafe { image::elf_len(base, MAX_IMAGE) };
    len.map_or(Err(CuResult::INVALID_IMAGE), bounded)
}

/// # Safety
/// `base` points to complete Tile IR.
unsafe fn tile_len(base: *const u8) -> Cu<usize> {
    // SAFETY: by this function's contract.
    let len = unsafe { image::tile_len(base, MAX_IMAGE) };
    len.map_or(Err(CuResult::INVALID_IMAGE), bounded)
}

/// # Safety
/// `base` points to text that ends with a NUL.
unsafe fn text_len(base: *const u8) -> Cu<usize> {
    // SAFETY: NUL-terminated by this function's contract.
    let text = unsafe { CStr::from_ptr(base.cast()) };
    if text.is_empty() {
        return Err(CuResult::INVALID_IMAGE);
    }
    bounded(text.count_bytes() as u64 + 1)
}

#[cfg(test)]
mod tests {
    use vgpu_cudart::fatbin::{PTX, entry, pack};

    use super::*;

    fn len(bytes: &[u8]) -> Cu<usize> {
        // SAFETY: the tests pass complete images.
        unsafe { at(bytes.as_ptr().cast()) }.map(|given| given.memory.len)
    }

    /// A fatbin with one entry, whose payload has `payload` bytes.
    fn fatbin(payload: usize) -> Vec<u8> {
        pack(&[entry(PTX, 80, 0, &vec![b' '; payload], 0)])
    }

    /// A fatbin whose header announces `size` bytes, and which has no entry.
    fn announcing(size: u64) -> Vec<u8> {
        let mut bytes = pack(&[]);
        bytes[8..16].copy_from_slice(&size.to_le_bytes());
        bytes.resize(256, 0);
        bytes
    }

    #[test]
    fn text_includes_its_nul() {
        assert_eq!(len(b".version 8.0\n\0junk"), Ok(14));
        assert_eq!(len(b"\0"), Err(CuResult::INVALID_IMAGE));
        // SAFETY: null is allowed.
        let nothing = unsafe { at(std::ptr::null()) };
        assert_eq!(nothing.err(), Some(CuResult::INVALID_VALUE));
    }

    #[test]
    fn fatbins_bare_and_wrapped() {
        let bare = fatbin(1000);
        assert_eq!(len(&bare), Ok(1080));
        for version in [1_u32, 2] {
            let mut wrapper = WRAPPER.to_le_bytes().to_vec();
            wrapper.extend(version.to_le_bytes());
            wrapper.extend((bare.as_ptr() as u64).to_le_bytes());
            wrapper.extend(0_u64.to_le_bytes());
            // SAFETY: a complete wrapper that points to a complete header.
            let given = unsafe { at(wrapper.as_ptr().cast()) }.expect("a wrapped fatbin");
            let (memory, parts) = (given.memory, given.parts);
            assert!(parts.is_empty());
            assert_eq!((memory.at.cast_const(), memory.len), (bare.as_ptr(), 1080));
        }
        for size in [1, 64, 1 << 20, MAX_IMAGE, u64::MAX] {
            assert_eq!(
                len(&announcing(size)),
                Err(CuResult::INVALID_IMAGE),
                "{size}"
            );
        }
    }

    #[test]
    fn a_wrapper_tells_of_what_it_was_linked() {
        let (bare, parts) = (fatbin(1000), [fatbin(8), fatbin(16)]);
        let with = |version: u32, list: &[*const u8]| {
            let mut wrapper = WRAPPER.to_le_bytes().to_vec();
            wrapper.extend(version.to_le_bytes());
            wrapper.extend((bare.as_ptr() as u64).to_le_bytes());
            wrapper.extend((list.as_ptr() as u64).to_le_bytes());
            // SAFETY: a complete wrapper, which points to complete fatbins that live.
            let given = unsafe { at(wrapper.as_ptr().cast()) };
            given.map(|g| g.parts.iter().map(|p| p.len).collect::<Vec<_>>())
        };
        let list = [parts[0].as_ptr(), parts[1].as_ptr(), std::ptr::null()];
        assert_eq!(with(2, &list), Ok(vec![88, 96]));
        assert_eq!(with(1, &list), Ok(vec![]), "a name lies there");
        let refused = Err(CuResult::INVALID_IMAGE);
        assert_eq!(
            with(2, &[c"text".as_ptr().cast(), std::ptr::null()]),
            refused
        );
        assert_eq!(with(2, &[bare.as_ptr(); MAX_PARTS + 1]), refused);
    }

    #[test]
    fn tile_ir_ends_with_its_last_section() {
        let mut tile = b"\x7fTileIR\0\x0d\x01\0\0".to_vec();
        tile.extend([1, 3, 9, 9, 9]);
        tile.extend([0x82, 0x81, 0x01, 0x08]); // 129 bytes, aligned to 8
        tile.resize(tile.len().next_multiple_of(8) + 129, 0xcb);
        tile.extend([0, 77, 77]);
        assert_eq!(len(&tile), Ok(tile.len() - 2));
        let refused = Err(CuResult::INVALID_IMAGE);
        let with = |rest: &[u8]| len(&[&tile[..12], rest].concat());
        assert_eq!(
            with(&[1, 255, 255, 255, 255, 255, 255, 255, 127, 0]),
            refused,
            "a size beyond the limit"
        );
        assert_eq!(
            with(&[[1].as_slice(), &[255; 9], &[1, 0]].concat()),
            refused,
            "a size of ten bytes"
        );
        assert_eq!(with(&[0x81, 1, 0, 0]), refused, "aligned to nothing");
    }
}
