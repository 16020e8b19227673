//! Copies with stores that bypass the cache.

/// Copies `n` bytes; the ranges do not overlap.
///
/// # Safety
/// `src` is readable and `dst` writable for `n` bytes.
#[cfg(target_arch = "x86_64")]
pub unsafe fn copy(dst: *mut u8, src: *const u8, n: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    const STEP: usize = size_of::<__m128i>();
    let head = dst.align_offset(LINE).min(n);
    let lines = (n - head) / LINE;
    let body = head + lines * LINE;
    // SAFETY: every access lies within the ranges that the caller guarantees. `dst + head` is
    // aligned to a cache line, so each streaming store is aligned. Every x86-64 processor has SSE2.
    unsafe {
        dst.copy_from_nonoverlapping(src, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let parts: [__m128i; LINE / STEP] =
                std::array::from_fn(|i| _mm_loadu_si128(src.add(at + i * STEP).cast()));
            for (i, part) in parts.into_iter().enumerate() {
                _mm_stream_si128(dst.add(at + i * STEP).cast(), part);
            }
        }
        dst.add(body)
            .copy_from_nonoverlapping(src.add(body), n - body);
        // Streaming stores are not ordered with later stores. The fence makes them visible before
        // anything that announces the end of the copy.
        _mm_sfence();
    }
}

/// Copies `n` bytes; the ranges do not overlap.
///
/// # Safety
/// `src` is readable and `dst` writable for `n` bytes.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy(dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the contract of this function.
    unsafe { dst.copy_from_nonoverlapping(src, n) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_alignment_and_length_copies_all_and_no_more() {
        let source: Vec<u8> = (0..700u32).map(|i| (i * 31 % 251) as u8).collect();
        for to in 0..65 {
            for (from, len) in [
                (0, 0),
                (1, 1),
                (3, 63),
                (0, 64),
                (7, 65),
                (5, 500),
                (64, 129),
            ] {
                let mut target = vec![0xee; 700];
                // SAFETY: both ranges lie within their vectors.
                unsafe { super::copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), len) };
                assert!(target[..to].iter().all(|b| *b == 0xee), "{to} {from} {len}");
                assert_eq!(target[to..to + len], source[from..from + len]);
                assert!(target[to + len..].iter().all(|b| *b == 0xee));
            }
        }
    }
}
