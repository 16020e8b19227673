//! Checks that an image ends within the bytes that a guest sent. A driver gets a module's image as
//! a pointer without a length. It follows the pointers and sizes in the image, wherever they lead.

use crate::fatbin;
use crate::image::{ELF, FATBIN, TILE, WRAPPER, elf_len, fatbin_len, tile_len, u32_at};

/// Checks that a driver that follows the headers and tables of the image reads no byte after the
/// image: a fatbin with its entries, an ELF file with its segments and sections, also as an
/// uncompressed entry of a fatbin, Tile IR with its sections, or text. A zero byte must follow the
/// image, which ends a text.
///
/// The contents of sections and of compressed entries are not checked.
///
/// # Errors
/// A sentence about the part that is wrong.
pub fn check(image: &[u8]) -> Result<(), &'static str> {
    match u32_at(image, 0) {
        Some(WRAPPER) => Err(
            "the image is a fatbin wrapper, which has an address instead of the code: send the \
             fatbin at this address",
        ),
        Some(FATBIN) => fatbin(image),
        Some(ELF) => elf(image),
        Some(TILE) => {
            // SAFETY: as many bytes are readable as the image has.
            let len = unsafe { tile_len(image.as_ptr(), image.len() as u64) };
            len.map(drop)
                .ok_or("the Tile IR is damaged: its sections end after the image")
        }
        _ => match image.first() {
            Some(0 | b'\t'..=b'\r' | b' '..=b'~') => Ok(()),
            _ => Err("the image is neither a fatbin, an ELF file, Tile IR nor text"),
        },
    }
}

fn elf(image: &[u8]) -> Result<(), &'static str> {
    // SAFETY: as many bytes are readable as the image has.
    let len = unsafe { elf_len(image.as_ptr(), image.len() as u64) };
    len.map(drop).ok_or(
        "the ELF file is damaged: it is not a 64-bit file, or its segments, sections or tables end \
         after the image",
    )
}

fn fatbin(image: &[u8]) -> Result<(), &'static str> {
    const DAMAGED: &str =
        "the fatbin is damaged: its entries do not fill it, or it ends after the image";
    // SAFETY: as many bytes are readable as the image has.
    let len = unsafe { fatbin_len(image.as_ptr(), image.len() as u64) };
    let whole = len.and_then(|len| image.get(..len as usize));
    for entry in fatbin::each(whole.ok_or(DAMAGED)?) {
        match entry.ok_or(DAMAGED)?.plain() {
            Some(code) if u32_at(code, 0) == Some(ELF) => elf(code)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fatbin::{LZ4, MACHINE_CODE, PTX, entry, pack};

    /// An ELF file with one section, at the end of the file.
    fn elf_file() -> Vec<u8> {
        let mut file = vec![0_u8; 64 + 2 * 64 + 100];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        file[40] = 64;
        file[58] = 64;
        file[60] = 2;
        file[128 + 4] = 1;
        file[128 + 24] = 192;
        file[128 + 32] = 100;
        file
    }

    fn fatbin_file() -> Vec<u8> {
        pack(&[
            entry(PTX, 80, 0, b"a text\0", 0),
            entry(MACHINE_CODE, 80, 0, &elf_file(), 0),
            entry(PTX, 90, LZ4, b"compressed", 24),
        ])
    }

    fn tile_file() -> Vec<u8> {
        [b"\x7fTileIR\0\x0d\x01\0\0".as_slice(), &[1, 3, 9, 9, 9, 0]].concat()
    }

    #[test]
    fn complete_images_pass_and_what_is_cut_off_does_not() {
        for image in [elf_file(), fatbin_file(), tile_file()] {
            assert_eq!(check(&image), Ok(()));
            assert_eq!(check(&[&image[..], b"more"].concat()), Ok(()));
            for cut in 4..image.len() {
                assert!(check(&image[..cut]).is_err(), "cut at {cut}");
            }
        }
        for text in [&b".version 7.0\n\0"[..], b".version", b"\n//", b"\0"] {
            assert_eq!(check(text), Ok(()), "{text:?}");
        }
    }

    #[test]
    fn addresses_and_unknown_forms_are_refused() {
        let mut wrapper = WRAPPER.to_le_bytes().to_vec();
        wrapper.extend([1, 0, 0, 0]);
        wrapper.extend(0x10000_u64.to_le_bytes());
        wrapper.extend([0; 8]);
        assert!(check(&wrapper).unwrap_err().contains("wrapper"));
        // The wrapper of CUDA before 4.0, which also holds addresses.
        for unknown in [&0x1ee5_5a01_u32.to_le_bytes()[..], &[0xff; 50], b""] {
            assert!(check(unknown).is_err(), "{unknown:?}");
        }
    }

    #[test]
    fn parts_behind_the_image_are_refused() {
        const ENTRY: usize = 16;
        let changed = |mut image: Vec<u8>, at: usize, value: &[u8]| {
            image[at..at + value.len()].copy_from_slice(value);
            check(&image)
        };
        // A fatbin of 80 bytes, the header of whose entry reaches behind the image.
        let short = pack(&[entry(PTX, 80, 0, b"", 0)]);
        assert_eq!((short.len(), check(&short)), (80, Ok(())));
        for header in [65_u32, 8 << 10, 64 << 10] {
            let with = changed(short.clone(), ENTRY + 4, &header.to_le_bytes());
            assert!(with.is_err(), "a header of {header}");
        }
        let packed = pack(&[entry(PTX, 80, LZ4, b"compress", 24)]);
        assert!(changed(packed, ENTRY + 16, &9_u32.to_le_bytes()).is_err());
        let holds = pack(&[entry(MACHINE_CODE, 80, 0, &elf_file(), 0)]);
        let in_entry = ENTRY + 64 + 128 + 32;
        assert!(changed(holds, in_entry, &200_u64.to_le_bytes()).is_err());
        // Tables and sections of an ELF file.
        for (at, value) in [
            (32, 1 << 28),
            (40, 1 << 28),
            (40, u64::MAX),
            (128 + 24, 193),
        ] {
            let mut file = elf_file();
            (file[54], file[56]) = (56, 1);
            assert_eq!(check(&file), Ok(()));
            assert!(changed(file, at, &u64::to_le_bytes(value)).is_err(), "{at}");
        }
    }
}
