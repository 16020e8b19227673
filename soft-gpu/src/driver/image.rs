//! Module images: finds the PTX in what a client passes, which is a bare pointer.
//!
//! Layouts are those observed of clients (docs of the fatbin format are not public): a wrapper
//! points to a fatbin, whose entries are PTX or ELF, plain or compressed.

use std::io::Read as _;

use super::error::CuError;

const WRAPPER_MAGIC: u32 = 0x4662_43b1;
const FATBIN_MAGIC: u32 = 0xba55_ed50;
const ELF_MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
const KIND_PTX: u16 = 1;
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
/// An LZ4 block grows by this factor at most: a byte of a match's length stands for 255 bytes.
const LZ4_GROWTH: usize = 255;
/// No PTX entry is larger once decompressed; a bound on what a damaged header can ask for.
const MAX_PTX: usize = 512 << 20;

/// Why an image has no PTX for us: the CUresult and a sentence for the log.
pub type Refusal = (CuError, String);

fn no_binary(why: impl Into<String>) -> Refusal {
    (CuError::NO_BINARY_FOR_GPU, why.into())
}

/// Copies the PTX out of the image at `pointer`, for a device of capability `cc`.
///
/// # Errors
/// CUDA_ERROR_NO_BINARY_FOR_GPU without PTX, CUDA_ERROR_INVALID_IMAGE for a damaged image.
///
/// # Safety
/// `pointer` is a module image as cuModuleLoadData takes it: NUL-terminated PTX, an ELF, a fatbin
/// or a fatbin wrapper.
pub unsafe fn ptx_at(pointer: *const u8, cc: (u32, u32)) -> Result<Vec<u8>, Refusal> {
    if pointer.is_null() {
        return Err((
            CuError::INVALID_VALUE,
            "the image pointer is null".to_owned(),
        ));
    }
    // SAFETY: every kind of image has a byte; text may be shorter than a magic number, so the
    // first bytes are read one by one up to a NUL.
    let magic = unsafe { peek_magic(pointer) };
    match magic {
        Some(WRAPPER_MAGIC) => {
            // SAFETY: a wrapper is {u32 magic, u32 version, pointer data, pointer}.
            let data = unsafe { pointer.add(8).cast::<*const u8>().read_unaligned() };
            // SAFETY: the wrapper's data is a fatbin (or an ELF); it is not another wrapper.
            match unsafe { peek_magic(data) } {
                Some(WRAPPER_MAGIC) | None => Err((
                    CuError::INVALID_IMAGE,
                    "the fatbin wrapper is damaged".into(),
                )),
                // SAFETY: as of this function; recursion ends as wrappers do not nest.
                _ => unsafe { ptx_at(data, cc) },
            }
        }
        Some(FATBIN_MAGIC) => {
            // SAFETY: a fatbin header is {u32 magic, u16 version, u16 header size, u64 size} and
            // header size + size bytes follow from its start.
            let bytes = unsafe {
                let header = u64::from(pointer.add(6).cast::<u16>().read_unaligned());
                let size = pointer.add(8).cast::<u64>().read_unaligned();
                std::slice::from_raw_parts(pointer, header.saturating_add(size) as usize)
            };
            fatbin_ptx(bytes, cc)
        }
        Some(ELF_MAGIC) => Err(no_binary(
            "the image is a cubin (machine code); the soft device needs PTX: compile with \
             -gencode arch=compute_80,code=compute_80, or ask NVRTC for PTX",
        )),
        _ => {
            // SAFETY: what is none of the above is NUL-terminated text.
            let text = unsafe { std::ffi::CStr::from_ptr(pointer.cast()) };
            Ok(text.to_bytes().to_vec())
        }
    }
}

/// The first four bytes, or `None` for a shorter text or null.
unsafe fn peek_magic(pointer: *const u8) -> Option<u32> {
    if pointer.is_null() {
        return None;
    }
    let mut bytes = [0; 4];
    for (i, b) in bytes.iter_mut().enumerate() {
        // SAFETY: the bytes before this one were not the terminating NUL of a text.
        *b = unsafe { pointer.add(i).read() };
        if *b == 0 {
            return None;
        }
    }
    Some(u32::from_le_bytes(bytes))
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?))
}

struct Entry<'a> {
    kind: u16,
    sm: u32,
    flags: u64,
    uncompressed: u64,
    payload: &'a [u8],
}

fn entries(fatbin: &[u8]) -> Option<Vec<Entry<'_>>> {
    let mut at = usize::from(u16_at(fatbin, 6)?);
    let mut all = Vec::new();
    while at < fatbin.len() {
        let head = fatbin.get(at..)?;
        let header = u32_at(head, 4)? as usize;
        let size = usize::try_from(u64_at(head, 8)?).ok()?;
        let body = head.get(header..header.checked_add(size)?)?;
        let (flags, compressed) = (u64_at(head, 40)?, u32_at(head, 16)? as usize);
        let packed = flags & (LZ4 | ZSTD) != 0;
        let payload = if packed {
            body.get(..compressed)?
        } else {
            body
        };
        let uncompressed = if packed { u64_at(head, 56)? } else { 0 };
        all.push(Entry {
            kind: u16_at(head, 0)?,
            sm: u32_at(head, 28)?,
            flags,
            uncompressed,
            payload,
        });
        at = at.checked_add(header.checked_add(size).filter(|n| *n > 0)?)?;
    }
    Some(all)
}

/// The best PTX of a fatbin: the newest that the device can run.
///
/// # Errors
/// As [`ptx_at`].
pub fn fatbin_ptx(fatbin: &[u8], cc: (u32, u32)) -> Result<Vec<u8>, Refusal> {
    let damaged = || (CuError::INVALID_IMAGE, "the fatbin is damaged".to_owned());
    let all = entries(fatbin).ok_or_else(damaged)?;
    let device = cc.0 * 10 + cc.1;
    let Some(best) = all
        .iter()
        .filter(|e| e.kind == KIND_PTX && e.sm <= device)
        .max_by_key(|e| e.sm)
    else {
        let have: Vec<String> = all
            .iter()
            .map(|e| {
                format!(
                    "{}_{}",
                    if e.kind == KIND_PTX { "compute" } else { "sm" },
                    e.sm
                )
            })
            .collect();
        return Err(no_binary(format!(
            "the fatbin has no PTX for compute_{device} or older (it has: {}); compile with \
             -gencode arch=compute_{device},code=compute_{device}",
            have.join(", ")
        )));
    };
    let mut text = unpacked(best).ok_or_else(damaged)?;
    if let Some(end) = text.iter().position(|b| *b == 0) {
        text.truncate(end);
    }
    Ok(text)
}

/// An entry's payload as it was before compression; `None` for a damaged one.
fn unpacked(entry: &Entry<'_>) -> Option<Vec<u8>> {
    let packed = entry.payload;
    let size = usize::try_from(entry.uncompressed).ok()?;
    if entry.flags & LZ4 != 0 {
        // No block grows more than that, so that no room is made for what a damaged header announces.
        let possible = packed.len().saturating_mul(LZ4_GROWTH).min(MAX_PTX);
        let text = (size <= possible).then(|| lz4_flex::block::decompress(packed, size).ok())??;
        (text.len() == size).then_some(text)
    } else if entry.flags & ZSTD != 0 {
        let frames = ruzstd::decoding::StreamingDecoder::new(packed).ok()?;
        let mut text = Vec::new();
        frames
            .take(MAX_PTX as u64 + 1)
            .read_to_end(&mut text)
            .ok()?;
        (text.len() == size && size <= MAX_PTX).then_some(text)
    } else {
        Some(packed.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u16, sm: u32, flags: u64, payload: &[u8], uncompressed: u64) -> Vec<u8> {
        let mut e = vec![0; 64];
        e[0..2].copy_from_slice(&kind.to_le_bytes());
        e[4..8].copy_from_slice(&64u32.to_le_bytes());
        let padded = payload.len().next_multiple_of(8);
        e[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        e[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        e[28..32].copy_from_slice(&sm.to_le_bytes());
        e[40..48].copy_from_slice(&flags.to_le_bytes());
        e[56..64].copy_from_slice(&uncompressed.to_le_bytes());
        e.extend_from_slice(payload);
        e.resize(64 + padded, 0);
        e
    }

    fn fatbin(entries: &[Vec<u8>]) -> Vec<u8> {
        let body: Vec<u8> = entries.concat();
        let mut f = FATBIN_MAGIC.to_le_bytes().to_vec();
        f.extend_from_slice(&1u16.to_le_bytes());
        f.extend_from_slice(&16u16.to_le_bytes());
        f.extend_from_slice(&(body.len() as u64).to_le_bytes());
        f.extend_from_slice(&body);
        f
    }

    #[test]
    fn picks_the_newest_ptx_that_fits() {
        let f = fatbin(&[
            entry(2, 80, 0, b"elf", 0),
            entry(1, 70, 0, b"old\0", 0),
            entry(1, 80, 0, b"right\0", 0),
            entry(1, 90, 0, b"new\0", 0),
        ]);
        assert_eq!(fatbin_ptx(&f, (8, 0)).as_deref(), Ok(&b"right"[..]));
        assert_eq!(
            fatbin_ptx(&f, (6, 0)).map_err(|e| e.0),
            Err(CuError::NO_BINARY_FOR_GPU)
        );
        // SAFETY: `f` is a whole fatbin.
        let through_pointer = unsafe { ptx_at(f.as_ptr(), (9, 0)) };
        assert_eq!(through_pointer.as_deref(), Ok(&b"new"[..]));
    }

    #[test]
    fn decompresses_lz4_with_overlap() {
        // Token: 1 literal, match of 4 + 15 + 1 = 20 at distance 1, then 3 literals.
        let packed = [0x1f, b'a', 1, 0, 1, 0x30, b'x', b'y', b'z'];
        let want = [vec![b'a'; 21], b"xyz".to_vec()].concat();
        let f = fatbin(&[entry(1, 52, LZ4, &packed, 24)]);
        assert_eq!(fatbin_ptx(&f, (8, 0)), Ok(want));
        let wrong = fatbin(&[entry(1, 52, LZ4, &packed, 23)]);
        assert_eq!(
            fatbin_ptx(&wrong, (8, 0)).map_err(|e| e.0),
            Err(CuError::INVALID_IMAGE)
        );
    }

    #[test]
    fn decompresses_zstd_as_nvcc_of_cuda_13_makes_it() {
        let text = b".version 8.4\n.target sm_80\n".repeat(400);
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let packed = ruzstd::encoding::compress_to_vec(&text[..], level);
        assert!(packed.len() < text.len() / 4);
        let len = text.len() as u64;
        let f = fatbin(&[entry(1, 80, ZSTD, &packed, len)]);
        assert_eq!(fatbin_ptx(&f, (8, 0)), Ok(text));
        for announced in [len - 1, len + 1, u64::MAX] {
            let wrong = fatbin(&[entry(1, 80, ZSTD, &packed, announced)]);
            let refused = fatbin_ptx(&wrong, (8, 0)).map_err(|e| e.0);
            assert_eq!(refused, Err(CuError::INVALID_IMAGE), "{announced}");
        }
        let announced = fatbin(&[entry(1, 80, LZ4, &[0x1f, b'a', 1, 0], 1 << 28)]);
        let refused = fatbin_ptx(&announced, (8, 0)).map_err(|e| e.0);
        assert_eq!(refused, Err(CuError::INVALID_IMAGE));
    }

    #[test]
    fn damaged_fatbins_are_refused_not_read() {
        let good = fatbin(&[entry(1, 80, 0, b"text\0", 0)]);
        for cut in 17..good.len() {
            assert!(fatbin_ptx(&good[..cut], (8, 0)).is_err(), "cut at {cut}");
        }
    }
}
