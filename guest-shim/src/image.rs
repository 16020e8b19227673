//! How long a module image is, given only a pointer to it.
//!
//! Five forms occur: a wrapper (what nvcc embeds) that points to a fatbin, a bare fatbin, an ELF
//! file (a cubin), Tile IR, and PTX text. Only the bytes that say how long the rest is are read, and no size
//! over the wire's limit is believed.

use std::ffi::{CStr, c_void};

use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::MAX_IMAGE;

use crate::Cu;
use crate::session::sys::UserMemory;

/// `__fatBinC_Wrapper_t`: magic, version, pointer to the fatbin.
const WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// A fatbin's header: magic, u16 version, u16 bytes of the header, u64 bytes after it.
const FATBIN_MAGIC: u32 = 0xba55_ed50;
const ELF_MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
/// How Tile IR begins (NVIDIA's "Tile IR", chapter "Binary Format"): these four bytes and `eIR\0`.
const TILE_MAGIC: u32 = u32::from_le_bytes(*b"\x7fTil");

/// The version of a wrapper that ends with an array of the fatbins that its own was linked of (`-rdc=true`).
const LINKED: u32 = 2;
/// Fatbins that one program is linked of at most.
const MAX_PARTS: usize = vgpu_proto::limits::MAX_LINK_INPUTS;

/// An image as a program has it.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    /// Its bytes. For PTX the terminating NUL belongs to them.
    pub(crate) memory: UserMemory,
    /// The fatbins that it was linked of, as far as it tells: what a driver links again where the image has no
    /// code for the device.
    pub(crate) parts: Vec<UserMemory>,
}

/// A value at some offset of memory that the program vouches for.
///
/// # Safety
/// `offset + size_of::<T>()` bytes at `base` are readable; `T` has no invalid values.
unsafe fn read<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: readable by this function's contract; any alignment will do.
    unsafe { base.wrapping_add(offset).cast::<T>().read_unaligned() }
}

/// The image at `image`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for null, CUDA_ERROR_INVALID_IMAGE for none of the forms or a size
/// beyond the limit.
///
/// # Safety
/// `image` is null or points to a complete image of one of the forms.
pub(crate) unsafe fn at(image: *const c_void) -> Cu<Given> {
    if image.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let base: *const u8 = image.cast();
    // SAFETY: every form has at least four bytes but for the shortest texts, which have a NUL
    // within; those are read bytewise.
    let magic = unsafe { magic(base) };
    let mut parts = Vec::new();
    let (base, len) = match magic {
        Some(WRAPPER_MAGIC) => {
            // SAFETY: a wrapper has 24 bytes; it points to a fatbin.
            let data: *const u8 = unsafe { read(base, 8) };
            if data.is_null() {
                return Err(CuResult::INVALID_IMAGE);
            }
            // SAFETY: as above.
            if unsafe { self::magic(data) } != Some(FATBIN_MAGIC) {
                return Err(CuResult::INVALID_IMAGE);
            }
            // SAFETY: as above.
            unsafe {
                parts = self::parts(base)?;
                (data, fatbin_len(data)?)
            }
        }
        // SAFETY: a fatbin, by its magic number.
        Some(FATBIN_MAGIC) => (base, unsafe { fatbin_len(base) }?),
        // SAFETY: an ELF file, by its magic number.
        Some(ELF_MAGIC) => (base, unsafe { elf_len(base) }?),
        // SAFETY: Tile IR, by its magic number.
        Some(TILE_MAGIC) => (base, unsafe { tile_len(base) }?),
        // SAFETY: what is none of these is text that ends with a NUL.
        _ => (base, unsafe { text_len(base) }?),
    };
    let at = base.cast_mut();
    let memory = UserMemory { at, len };
    Ok(Given { memory, parts })
}

/// The fatbins that a wrapper's own was linked of.
///
/// # Safety
/// A complete wrapper lies at `wrapper`; if it is of that version, its array ends with null.
unsafe fn parts(wrapper: *const u8) -> Cu<Vec<UserMemory>> {
    let mut parts = Vec::new();
    // SAFETY: by this function's contract.
    let (version, list) = unsafe { (read::<u32>(wrapper, 4), read::<*const u8>(wrapper, 16)) };
    if version != LINKED || list.is_null() {
        return Ok(parts);
    }
    loop {
        // SAFETY: the array goes on up to its null.
        let part: *const u8 = unsafe { read(list, parts.len() * size_of::<*const u8>()) };
        if part.is_null() {
            return Ok(parts);
        }
        // SAFETY: what is there is a complete fatbin.
        let len = match unsafe { magic(part) } {
            // SAFETY: as above.
            Some(FATBIN_MAGIC) if parts.len() < MAX_PARTS => unsafe { fatbin_len(part) }?,
            _ => return Err(CuResult::INVALID_IMAGE),
        };
        let at = part.cast_mut();
        parts.push(UserMemory { at, len });
    }
}

/// The first four bytes; `None` if a NUL comes before.
///
/// # Safety
/// Bytes at `base` are readable up to the first NUL, or for four.
unsafe fn magic(base: *const u8) -> Option<u32> {
    let mut bytes = [0; 4];
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: no NUL so far.
        *byte = unsafe { read(base, i) };
        if *byte == 0 {
            return None;
        }
    }
    Some(u32::from_le_bytes(bytes))
}

fn bounded(len: u64) -> Cu<usize> {
    if (1..=MAX_IMAGE).contains(&len) {
        Ok(len as usize)
    } else {
        Err(CuResult::INVALID_IMAGE)
    }
}

/// # Safety
/// `base` points to a fatbin's header.
unsafe fn fatbin_len(base: *const u8) -> Cu<usize> {
    // SAFETY: the header has 16 bytes.
    let (header, rest) = unsafe { (read::<u16>(base, 6), read::<u64>(base, 8)) };
    bounded(
        rest.checked_add(u64::from(header))
            .ok_or(CuResult::INVALID_IMAGE)?,
    )
}

/// # Safety
/// `base` points to a complete 64-bit ELF file.
unsafe fn elf_len(base: *const u8) -> Cu<usize> {
    const CLASS_64: u8 = 2;
    const NOBITS: u32 = 8;
    // SAFETY: the file header has 64 bytes.
    let (class, phoff, shoff, phentsize, phnum, shentsize, shnum) = unsafe {
        (
            read::<u8>(base, 4),
            read::<u64>(base, 32),
            read::<u64>(base, 40),
            u64::from(read::<u16>(base, 54)),
            u64::from(read::<u16>(base, 56)),
            u64::from(read::<u16>(base, 58)),
            u64::from(read::<u16>(base, 60)),
        )
    };
    if class != CLASS_64 || (shnum > 0 && shentsize < 64) {
        return Err(CuResult::INVALID_IMAGE);
    }
    let end = |offset: u64, size: u64| -> Cu<u64> {
        offset
            .checked_add(size)
            .filter(|e| *e <= MAX_IMAGE)
            .ok_or(CuResult::INVALID_IMAGE)
    };
    let sections = end(shoff, shentsize * shnum)?;
    let mut len = sections.max(end(phoff, phentsize * phnum)?).max(64);
    for i in 0..shnum {
        let section = (shoff + i * shentsize) as usize;
        // SAFETY: the section table is part of the complete file.
        let (kind, offset, size) = unsafe {
            (
                read::<u32>(base, section + 4),
                read::<u64>(base, section + 24),
                read::<u64>(base, section + 32),
            )
        };
        if kind != NOBITS {
            len = len.max(end(offset, size)?);
        }
    }
    bounded(len)
}

/// The header of 12 bytes, and sections up to the one with the number 0. A section is its number, its size, an alignment if the
/// number's top bit is set, and its bytes, aligned from the start of the whole.
///
/// # Safety
/// `base` points to complete Tile IR.
unsafe fn tile_len(base: *const u8) -> Cu<usize> {
    const HEADER: u64 = 12;
    const ALIGNED: u8 = 0x80;
    let mut at = HEADER;
    loop {
        // SAFETY: a section begins here.
        let number = unsafe { read::<u8>(base, at as usize) };
        at += 1;
        if number == 0 {
            return bounded(at);
        }
        // SAFETY: a section's size follows its number.
        let size = unsafe { variable(base, &mut at) }?;
        if number & ALIGNED != 0 {
            // SAFETY: the alignment follows the size.
            let alignment = unsafe { variable(base, &mut at) }?;
            at = at
                .checked_next_multiple_of(alignment)
                .ok_or(CuResult::INVALID_IMAGE)?;
        }
        at = at.checked_add(size).ok_or(CuResult::INVALID_IMAGE)?;
        bounded(at)?;
    }
}

/// An integer of seven bits a byte, the lowest first; the top bit says that another byte follows.
///
/// # Safety
/// Such an integer lies at `base + at`.
unsafe fn variable(base: *const u8, at: &mut u64) -> Cu<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        // SAFETY: a byte of the integer, by this function's contract.
        let byte = unsafe { read::<u8>(base, *at as usize) };
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(CuResult::INVALID_IMAGE)
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
    use super::*;

    fn len(bytes: &[u8]) -> Cu<usize> {
        // SAFETY: the tests pass complete images.
        unsafe { at(bytes.as_ptr().cast()) }.map(|given| given.memory.len)
    }

    fn fatbin(payload: u64) -> Vec<u8> {
        let mut bytes = FATBIN_MAGIC.to_le_bytes().to_vec();
        bytes.extend(1_u16.to_le_bytes());
        bytes.extend(16_u16.to_le_bytes());
        bytes.extend(payload.to_le_bytes());
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
        assert_eq!(len(&bare), Ok(1016));
        for version in [1_u32, 2] {
            let mut wrapper = WRAPPER_MAGIC.to_le_bytes().to_vec();
            wrapper.extend(version.to_le_bytes());
            wrapper.extend((bare.as_ptr() as u64).to_le_bytes());
            wrapper.extend(0_u64.to_le_bytes());
            // SAFETY: a complete wrapper that points to a complete header.
            let given = unsafe { at(wrapper.as_ptr().cast()) }.expect("a wrapped fatbin");
            let (memory, parts) = (given.memory, given.parts);
            assert!(parts.is_empty());
            assert_eq!((memory.at.cast_const(), memory.len), (bare.as_ptr(), 1016));
        }
        assert_eq!(len(&fatbin(u64::MAX)), Err(CuResult::INVALID_IMAGE));
        assert_eq!(len(&fatbin(MAX_IMAGE)), Err(CuResult::INVALID_IMAGE));
    }

    #[test]
    fn a_wrapper_tells_of_what_it_was_linked() {
        let (bare, parts) = (fatbin(1000), [fatbin(8), fatbin(16)]);
        let with = |version: u32, list: &[*const u8]| {
            let mut wrapper = WRAPPER_MAGIC.to_le_bytes().to_vec();
            wrapper.extend(version.to_le_bytes());
            wrapper.extend((bare.as_ptr() as u64).to_le_bytes());
            wrapper.extend((list.as_ptr() as u64).to_le_bytes());
            // SAFETY: a complete wrapper; what it points to is complete and lives.
            let given = unsafe { at(wrapper.as_ptr().cast()) };
            given.map(|g| g.parts.iter().map(|p| p.len).collect::<Vec<_>>())
        };
        let list = [parts[0].as_ptr(), parts[1].as_ptr(), std::ptr::null()];
        assert_eq!(with(2, &list), Ok(vec![24, 32]));
        assert_eq!(with(1, &list), Ok(vec![]), "a name lies there");
        let refused = Err(CuResult::INVALID_IMAGE);
        assert_eq!(
            with(2, &[c"text".as_ptr().cast(), std::ptr::null()]),
            refused
        );
        assert_eq!(with(2, &[bare.as_ptr(); MAX_PARTS + 1]), refused);
    }

    #[test]
    fn elf_ends_with_its_last_part() {
        let mut file = vec![0_u8; 64 + 2 * 64];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[40..48].copy_from_slice(&64_u64.to_le_bytes()); // section table
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&2_u16.to_le_bytes());
        assert_eq!(len(&file), Ok(192), "the section table is last");
        let section = 64 + 64;
        file[section + 4] = 1;
        file[section + 24..section + 32].copy_from_slice(&192_u64.to_le_bytes());
        file[section + 32..section + 40].copy_from_slice(&100_u64.to_le_bytes());
        assert_eq!(len(&file), Ok(292), "a section is last");
        file[section + 4] = 8;
        assert_eq!(
            len(&file),
            Ok(192),
            "a section without bytes does not count"
        );
        file[section + 4] = 1;
        file[section + 32..section + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(len(&file), Err(CuResult::INVALID_IMAGE));
        file[4] = 1;
        assert_eq!(len(&file), Err(CuResult::INVALID_IMAGE), "32-bit");
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
