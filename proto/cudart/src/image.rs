//! Images of device code in a program's memory: finds the kind and the size of an image from its
//! headers and tables.
//!
//! A function that finds a size takes `most`, an upper bound of the size in bytes, and reads
//! nothing at or after `base + most`. [`crate::whole`] relies on that.

/// `__fatBinC_Wrapper_t`, which nvcc embeds: magic, u32 version, pointer to a fatbin, another
/// pointer.
pub const WRAPPER: u32 = 0x4662_43b1;
/// Magic number of a fatbin. Header: magic, u16 version, u16 size of the header, u64 size of the
/// rest; sizes in bytes.
pub const FATBIN: u32 = 0xba55_ed50;
/// Smallest header of a fatbin's entry, in bytes.
pub const ENTRY: u64 = 64;
/// Upper bound of the header of a fatbin's entry, in bytes. Toolkits write 64 bytes, followed by
/// the entry's name and options.
const LARGEST_ENTRY_HEADER: u64 = 64 << 10;
/// First four bytes of an ELF file, which contains machine code.
pub const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
/// Magic number of Tile IR (NVIDIA's "Tile IR", chapter "Binary Format"): these four bytes and
/// `eIR\0`.
pub const TILE: u32 = u32::from_le_bytes(*b"\x7fTil");
/// The version of a wrapper whose second pointer leads to the fatbins from which the wrapper's own
/// fatbin was linked (`-rdc=true`): an array that ends with null.
pub const LINKED: u32 = 2;

/// Reads a value at an offset from `base`, in memory that the caller guarantees to be readable.
///
/// # Safety
/// `offset + size_of::<T>()` bytes at `base` are readable; `T` has no invalid values.
pub unsafe fn read<T: Copy>(base: *const u8, offset: usize) -> T {
    // SAFETY: readable by this function's contract; no alignment is needed.
    unsafe { base.wrapping_add(offset).cast::<T>().read_unaligned() }
}

/// The first four bytes of an image; `None` if `base` is null or one of these bytes is NUL.
///
/// # Safety
/// `base` is null, or the bytes at `base` are readable: four bytes, or all bytes up to the first
/// NUL.
pub unsafe fn magic(base: *const u8) -> Option<u32> {
    if base.is_null() {
        return None;
    }
    let mut bytes = [0; 4];
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: there was no NUL so far.
        *byte = unsafe { read(base, i) };
        if *byte == 0 {
            return None;
        }
    }
    Some(u32::from_le_bytes(bytes))
}

/// Size of a fatbin in bytes. `None` if the entries do not fill the size that the header announces,
/// or if the header announces more than `most` bytes. Reads only the headers of the entries, and
/// nothing after a damaged entry.
///
/// # Safety
/// `base` points to `most` readable bytes, or to a fatbin, whose announced size and entries may be
/// wrong. If the announced size is too large, the first [`ENTRY`] bytes after the entries are
/// readable.
pub unsafe fn fatbin_len(base: *const u8, most: u64) -> Option<u64> {
    const HEADER: u64 = 16;
    if most < HEADER {
        return None;
    }
    // SAFETY: the header has 16 bytes.
    let (header, rest) = unsafe { (u64::from(read::<u16>(base, 6)), read::<u64>(base, 8)) };
    let len = rest.checked_add(header).filter(|len| *len <= most)?;
    if header < HEADER {
        return None;
    }
    let mut at = header;
    while at < len {
        if len - at < ENTRY {
            return None;
        }
        // SAFETY: an entry begins here, or the fatbin is shorter than its header announces, and
        // then these bytes are readable by this function's contract.
        let (header, size) = unsafe {
            let entry = base.wrapping_add(usize::try_from(at).ok()?);
            (u64::from(read::<u32>(entry, 4)), read::<u64>(entry, 8))
        };
        if !(ENTRY..=LARGEST_ENTRY_HEADER).contains(&header) {
            return None;
        }
        at = at.checked_add(header.checked_add(size)?)?;
    }
    (at == len).then_some(len)
}

/// Size of an ELF file in bytes, up to the end of its last part: header, tables, segments and
/// sections. `None` if the file is not a 64-bit file, or has more than `most` bytes.
///
/// # Safety
/// `base` points to a complete ELF file, or to `most` readable bytes.
pub unsafe fn elf_len(base: *const u8, most: u64) -> Option<u64> {
    const CLASS_64: u8 = 2;
    const IDENTIFICATION: u64 = 16;
    const HEADER: u64 = 64;
    const SEGMENT: u64 = 56;
    const SECTION: u64 = 64;
    const NOBITS: u32 = 8;
    // SAFETY: every ELF file begins with 16 bytes of identification; byte 4 is the class.
    if most < IDENTIFICATION || unsafe { read::<u8>(base, 4) } != CLASS_64 || most < HEADER {
        return None;
    }
    // SAFETY: a 64-bit ELF file has a header of 64 bytes.
    let (phoff, shoff, phentsize, phnum, shentsize, mut shnum) = unsafe {
        (
            read::<u64>(base, 32),
            read::<u64>(base, 40),
            u64::from(read::<u16>(base, 54)),
            u64::from(read::<u16>(base, 56)),
            u64::from(read::<u16>(base, 58)),
            u64::from(read::<u16>(base, 60)),
        )
    };
    let end = |offset: u64, size: u64| offset.checked_add(size).filter(|end| *end <= most);
    if shnum == 0 && shoff != 0 {
        // A number of sections that 16 bits cannot hold is the size of the first section.
        end(shoff, SECTION)?;
        // SAFETY: the first section ends within `most` bytes, and is part of the complete file.
        shnum = unsafe { read::<u64>(base, shoff as usize + 32) };
    }
    // A number of segments that 16 bits cannot hold would be elsewhere; no cubin has so many.
    let small = (phnum > 0 && phentsize < SEGMENT) || (shnum > 0 && shentsize < SECTION);
    if small || phnum == u64::from(u16::MAX) {
        return None;
    }
    let sections = end(shoff, shentsize.checked_mul(shnum)?)?;
    let mut len = sections.max(end(phoff, phentsize * phnum)?).max(HEADER);
    for i in 0..phnum {
        let segment = (phoff + i * phentsize) as usize;
        // SAFETY: the table of segments ends within `most` bytes, and is part of the complete file.
        let (offset, size) = unsafe {
            (
                read::<u64>(base, segment + 8),
                read::<u64>(base, segment + 32),
            )
        };
        len = len.max(end(offset, size)?);
    }
    for i in 0..shnum {
        let section = (shoff + i * shentsize) as usize;
        // SAFETY: as above, the table of sections.
        let (kind, offset, size) = unsafe {
            (
                read::<u32>(base, section + 4),
                read::<u64>(base, section + 24),
                read::<u64>(base, section + 32),
            )
        };
        // Section 0 has no bytes. Its size may be the number of sections.
        if kind != NOBITS && i > 0 {
            len = len.max(end(offset, size)?);
        }
    }
    Some(len)
}

/// Size of Tile IR in bytes: a header of 12 bytes, and sections up to the section with number 0. A
/// section consists of its number, its size, an alignment if the top bit of the number is set, and
/// its data. The data is aligned relative to the start of the image. `None` if the sections are
/// damaged or end after `most` bytes.
///
/// # Safety
/// `base` points to complete Tile IR, or to `most` readable bytes.
pub unsafe fn tile_len(base: *const u8, most: u64) -> Option<u64> {
    const HEADER: u64 = 12;
    const ALIGNED: u8 = 0x80;
    let mut at = HEADER;
    loop {
        // SAFETY: a section begins here.
        let number = unsafe { byte(base, &mut at, most) }?;
        if number == 0 {
            return Some(at);
        }
        // SAFETY: a section's size follows its number.
        let size = unsafe { variable(base, &mut at, most) }?;
        if number & ALIGNED != 0 {
            // SAFETY: the alignment follows the size.
            let alignment = unsafe { variable(base, &mut at, most) }?;
            at = at.checked_next_multiple_of(alignment)?;
        }
        at = at.checked_add(size)?;
    }
}

/// Reads an integer of seven bits per byte, lowest bits first. The top bit of a byte says that
/// another byte follows. Moves `at` past the integer.
///
/// # Safety
/// `base + at` points to a complete integer of this form, or `base` to `most` readable bytes.
unsafe fn variable(base: *const u8, at: &mut u64, most: u64) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        // SAFETY: a byte of the integer, by this function's contract.
        let byte = unsafe { byte(base, at, most) }?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Reads a byte and moves `at` past it. `None` at `most` and after.
///
/// # Safety
/// If `at` is less than `most`, `base + at` is readable.
unsafe fn byte(base: *const u8, at: &mut u64, most: u64) -> Option<u8> {
    if *at >= most {
        return None;
    }
    // SAFETY: by this function's contract.
    let byte = unsafe { read::<u8>(base, usize::try_from(*at).ok()?) };
    *at += 1;
    Some(byte)
}

/// The little-endian u16 at an offset; `None` past the end.
pub fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

/// The little-endian u32 at an offset; `None` past the end.
pub fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

/// The little-endian u64 at an offset; `None` past the end.
pub fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(file: &[u8]) -> Option<u64> {
        // SAFETY: the tests pass complete files.
        unsafe { elf_len(file.as_ptr(), 1 << 20) }
    }

    #[test]
    fn elf_ends_with_its_last_part() {
        let mut file = vec![0_u8; 64 + 2 * 64];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[40..48].copy_from_slice(&64_u64.to_le_bytes()); // table of sections
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&2_u16.to_le_bytes());
        assert_eq!(elf(&file), Some(192), "the table of sections is last");
        let section = 64 + 64;
        file[section + 4] = 1;
        file[section + 24..section + 32].copy_from_slice(&192_u64.to_le_bytes());
        file[section + 32..section + 40].copy_from_slice(&100_u64.to_le_bytes());
        assert_eq!(elf(&file), Some(292), "a section is last");
        file[section + 4] = 8;
        assert_eq!(elf(&file), Some(192), "a section without bytes");
        file[section + 4] = 1;
        file[section + 32..section + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(elf(&file), None, "beyond every limit");
        file[4] = 1;
        assert_eq!(elf(&file), None, "32-bit");
    }

    #[test]
    fn elf_ends_with_its_segments_and_may_have_many_sections() {
        let mut file = vec![0_u8; 64 + 56];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[32..40].copy_from_slice(&64_u64.to_le_bytes()); // table of segments
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&1_u16.to_le_bytes());
        assert_eq!(elf(&file), Some(120));
        file[64 + 8..64 + 16].copy_from_slice(&120_u64.to_le_bytes());
        file[64 + 32..64 + 40].copy_from_slice(&1000_u64.to_le_bytes());
        assert_eq!(elf(&file), Some(1120), "a segment is last");
        file[54..56].copy_from_slice(&55_u16.to_le_bytes());
        assert_eq!(elf(&file), None, "segments overlap");

        let many = 70_000_usize;
        let mut file = vec![0_u8; 64 + many * 64];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[40..48].copy_from_slice(&64_u64.to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[64 + 32..64 + 40].copy_from_slice(&(many as u64).to_le_bytes());
        let len = file.len() as u64;
        // SAFETY: a complete file.
        let of = |most| unsafe { elf_len(file.as_ptr(), most) };
        assert_eq!((of(len), of(len - 1)), (Some(len), None));
    }

    #[test]
    fn of_a_32_bit_file_no_more_is_read_than_it_has() {
        const PAGE: usize = 4096;
        const HEADER: usize = 52;
        // SAFETY: a new mapping of two pages. The second page is not readable, and the test writes
        // only to the first page.
        let file = unsafe {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(std::ptr::null_mut(), 2 * PAGE, both, private, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let end = pages.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(end.cast(), PAGE, libc::PROT_NONE), 0);
            let file = end.sub(HEADER);
            file.copy_from(b"\x7fELF\x01".as_ptr(), 5);
            file
        };
        // SAFETY: a complete 32-bit ELF file, which is only a header.
        assert_eq!(unsafe { elf_len(file, 1 << 20) }, None);
    }

    #[test]
    fn the_entries_of_a_fatbin_fill_its_size() {
        use crate::fatbin::{PTX, entry, pack};
        const MOST: u64 = 1 << 20;
        let good = pack(&[entry(PTX, 80, 0, b"a text", 0), entry(PTX, 90, 0, b"b", 0)]);
        let with = |at: usize, value: &[u8]| {
            // Any bytes may follow a complete fatbin.
            let mut bytes = [good.as_slice(), &[0; 64]].concat();
            bytes[at..at + value.len()].copy_from_slice(value);
            // SAFETY: a fatbin, followed by more bytes.
            unsafe { fatbin_len(bytes.as_ptr(), MOST) }
        };
        let len = good.len() as u64;
        assert_eq!(with(0, &[]), Some(len));
        let sizes = [
            0,
            1,
            len - 17,
            len - 15,
            len + 48,
            1 << 19,
            1 << 40,
            u64::MAX,
        ];
        for size in sizes.into_iter().skip(1) {
            assert_eq!(with(8, &size.to_le_bytes()), None, "the fatbin has {size}");
        }
        assert_eq!(with(8, &[0; 8]), Some(16), "without an entry");
        for size in sizes {
            assert_eq!(
                with(16 + 8, &size.to_le_bytes()),
                None,
                "an entry has {size}"
            );
        }
        for header in [0, 16, 63, 65, 1 << 30, u32::MAX] {
            assert_eq!(
                with(16 + 4, &header.to_le_bytes()),
                None,
                "a header of {header}"
            );
        }
        // SAFETY: a complete fatbin.
        assert_eq!(unsafe { fatbin_len(good.as_ptr(), len - 1) }, None);
    }

    #[test]
    fn a_short_text_has_no_magic() {
        // SAFETY: four bytes, or fewer that end with a NUL.
        let of = |bytes: &[u8]| unsafe { magic(bytes.as_ptr()) };
        assert_eq!(of(b"ab\0"), None);
        assert_eq!(of(b"\x7fELF"), Some(ELF));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { magic(std::ptr::null()) }, None);
    }
}
