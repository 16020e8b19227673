//! Fatbins: files with code for several architectures, each entry plain or compressed. All bytes
//! are untrusted.

use std::borrow::Cow;
use std::io::Read as _;

use crate::image::{FATBIN, u16_at, u32_at, u64_at};

/// Kind of an entry that contains PTX.
pub const PTX: u16 = 1;
/// Kind of an entry that contains machine code (an ELF file).
pub const MACHINE_CODE: u16 = 2;
/// Flag of an entry: the code runs on exactly this compute capability (`sm_90a`).
pub const EXACT: u64 = 0x10_0000;
/// Flag of an entry: the code runs on this and later capabilities with the same major number
/// (`sm_100f`). Also valid for PTX.
pub const FAMILY: u64 = 0x20_0000;
/// Flag of an entry: the payload is an LZ4 block.
pub const LZ4: u64 = 0x2000;
/// Flag of an entry: the payload is a zstd frame.
pub const ZSTD: u64 = 0x8000;
/// Largest factor by which an LZ4 block grows: one byte of a match's length stands for 255 bytes.
const LZ4_GROWTH: usize = 255;

/// An entry of a fatbin: code for one architecture.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// [`PTX`], [`MACHINE_CODE`], or another kind.
    pub kind: u16,
    /// The target compute capability: 90 is 9.0.
    pub sm: u32,
    /// [`EXACT`], [`FAMILY`], and other flags.
    pub flags: u64,
    uncompressed: u64,
    payload: &'a [u8],
}

/// Whether code for `sm`, with these flags of a fatbin's entry, runs on a device of capability
/// `cc`.
#[must_use]
pub fn runs(sm: u32, flags: u64, cc: (u32, u32)) -> bool {
    let of = (sm / 10, sm % 10);
    if flags & EXACT != 0 {
        of == cc
    } else if flags & FAMILY != 0 {
        of.0 == cc.0 && of.1 <= cc.1
    } else {
        of <= cc
    }
}

/// The entries of a complete fatbin; `None` if the fatbin is damaged.
#[must_use]
pub fn entries(fatbin: &[u8]) -> Option<Vec<Entry<'_>>> {
    each(fatbin).collect()
}

/// The entries of a complete fatbin in turn. The last is `None` if the fatbin is damaged there.
pub(crate) fn each(fatbin: &[u8]) -> impl Iterator<Item = Option<Entry<'_>>> {
    let mut at = u16_at(fatbin, 6).map(usize::from);
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended || at == Some(fatbin.len()) {
            return None;
        }
        let entry = at.and_then(|at| next(fatbin, at));
        ended = entry.is_none();
        at = entry.map(|(_, end)| end);
        Some(entry.map(|(entry, _)| entry))
    })
}

/// The entry at an offset, and the offset of its end.
fn next(fatbin: &[u8], at: usize) -> Option<(Entry<'_>, usize)> {
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
    let entry = Entry {
        kind: u16_at(head, 0)?,
        sm: u32_at(head, 28)?,
        flags,
        uncompressed: if packed { u64_at(head, 56)? } else { 0 },
        payload,
    };
    let end = at.checked_add(header.checked_add(size).filter(|n| *n > 0)?)?;
    Some((entry, end))
}

impl<'a> Entry<'a> {
    /// The code of an entry that is not compressed.
    pub(crate) fn plain(&self) -> Option<&'a [u8]> {
        (self.flags & (LZ4 | ZSTD) == 0).then_some(self.payload)
    }

    /// The uncompressed code; `None` if the entry is damaged or the code has more than `most`
    /// bytes.
    #[must_use]
    pub fn unpacked(&self, most: usize) -> Option<Cow<'a, [u8]>> {
        let packed = self.payload;
        let size = usize::try_from(self.uncompressed).ok()?;
        if self.flags & LZ4 != 0 {
            // An LZ4 block cannot grow by more than this factor, so a damaged header cannot cause a
            // large allocation.
            let possible = packed.len().saturating_mul(LZ4_GROWTH).min(most);
            let code =
                (size <= possible).then(|| lz4_flex::block::decompress(packed, size).ok())??;
            (code.len() == size).then_some(Cow::Owned(code))
        } else if self.flags & ZSTD != 0 {
            let frames = ruzstd::decoding::StreamingDecoder::new(packed).ok()?;
            let mut code = Vec::new();
            frames.take(most as u64 + 1).read_to_end(&mut code).ok()?;
            (code.len() == size && size <= most).then_some(Cow::Owned(code))
        } else {
            (packed.len() <= most).then_some(Cow::Borrowed(packed))
        }
    }

    /// As [`Entry::unpacked`], for PTX: without the NULs at the end of the text.
    #[must_use]
    pub fn text(&self, most: usize) -> Option<Cow<'a, [u8]>> {
        let code = self.unpacked(most)?;
        let end = code.iter().position(|b| *b == 0).unwrap_or(code.len());
        Some(match code {
            Cow::Borrowed(code) => Cow::Borrowed(code.get(..end)?),
            Cow::Owned(mut code) => {
                code.truncate(end);
                Cow::Owned(code)
            }
        })
    }
}

/// Makes an entry of a fatbin, for tests and benchmarks. `uncompressed`: size of the payload in
/// bytes once decompressed.
#[must_use]
pub fn entry(kind: u16, sm: u32, flags: u64, payload: &[u8], uncompressed: u64) -> Vec<u8> {
    let mut entry = vec![0; 64];
    let padded = payload.len().next_multiple_of(8);
    entry[0..2].copy_from_slice(&kind.to_le_bytes());
    entry[4..8].copy_from_slice(&64_u32.to_le_bytes());
    entry[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
    entry[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    entry[28..32].copy_from_slice(&sm.to_le_bytes());
    entry[40..48].copy_from_slice(&flags.to_le_bytes());
    entry[56..64].copy_from_slice(&uncompressed.to_le_bytes());
    entry.extend_from_slice(payload);
    entry.resize(64 + padded, 0);
    entry
}

/// Makes a fatbin of entries, for tests and benchmarks.
#[must_use]
pub fn pack(entries: &[Vec<u8>]) -> Vec<u8> {
    let body = entries.concat();
    let mut fatbin = FATBIN.to_le_bytes().to_vec();
    fatbin.extend([1, 0, 16, 0]);
    fatbin.extend_from_slice(&(body.len() as u64).to_le_bytes());
    fatbin.extend_from_slice(&body);
    fatbin
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1 << 20;

    /// A fatbin with one entry of PTX.
    fn fatbin(flags: u64, payload: &[u8], uncompressed: u64) -> Vec<u8> {
        pack(&[entry(PTX, 80, flags, payload, uncompressed)])
    }

    fn text(fatbin: &[u8]) -> Option<Vec<u8>> {
        Some(entries(fatbin)?.first()?.text(MOST)?.into_owned())
    }

    #[test]
    fn decompresses_lz4_with_overlap() {
        // Token: 1 literal, a match of 4 + 15 + 1 = 20 bytes at distance 1, then 3 literals.
        let packed = [0x1f, b'a', 1, 0, 1, 0x30, b'x', b'y', b'z'];
        let want = [vec![b'a'; 21], b"xyz".to_vec()].concat();
        assert_eq!(text(&fatbin(LZ4, &packed, 24)), Some(want));
        assert_eq!(text(&fatbin(LZ4, &packed, 23)), None);
        assert_eq!(text(&fatbin(LZ4, &[0x1f, b'a', 1, 0], 1 << 19)), None);
    }

    #[test]
    fn decompresses_zstd_as_nvcc_of_cuda_13_makes_it() {
        let want = b".version 8.4\n.target sm_80\n".repeat(400);
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        let packed = ruzstd::encoding::compress_to_vec(&want[..], level);
        assert!(packed.len() < want.len() / 4);
        let len = want.len() as u64;
        for announced in [len - 1, len + 1, u64::MAX] {
            assert_eq!(text(&fatbin(ZSTD, &packed, announced)), None, "{announced}");
        }
        let good = fatbin(ZSTD, &packed, len);
        let entry = entries(&good).expect("whole")[0];
        assert!(entry.unpacked(want.len() - 1).is_none(), "too much");
        assert_eq!(text(&good), Some(want));
    }

    #[test]
    fn text_ends_with_its_nul_and_damaged_fatbins_have_no_entries() {
        let good = fatbin(0, b"text\0\0\0\0", 0);
        assert_eq!(text(&good).as_deref(), Some(&b"text"[..]));
        for cut in 17..good.len() {
            assert!(entries(&good[..cut]).is_none(), "cut at {cut}");
        }
    }
}
