//! Memory for the parameters of kernels that kernels launch.
//!
//! A context takes the memory in chunks from the device, up to `MOST` bytes, and gives the chunks
//! back when no launch uses any. A chunk is used from its start to its end, and again when all
//! parameters in it have been given back.

/// Bytes of a chunk, and of the largest parameters.
const CHUNK: u64 = 64 << 10;

/// Most bytes of a context. 2048 launches, the usual limit of pending launches, have room with 4
/// KiB of parameters each, which is the most that CUDA promises to kernels.
const MOST: u64 = 8 << 20;

/// Parameters are aligned to this many bytes, as CUDA promises.
const ALIGN: u64 = 64;

struct Chunk {
    addr: u64,
    /// Bytes from the start that are or were in use.
    used: u64,
    /// Parameters in use.
    live: u64,
}

/// The chunks of a context.
#[derive(Default)]
pub struct Pool {
    chunks: Vec<Chunk>,
}

impl Pool {
    /// Memory for `bytes` bytes; `None` without room. `chunk` allocates device memory of as many
    /// bytes as its argument says.
    pub fn take(&mut self, bytes: u64, chunk: impl FnOnce(u64) -> Option<u64>) -> Option<u64> {
        if bytes > CHUNK {
            return None;
        }
        let bytes = bytes.max(1).next_multiple_of(ALIGN);
        // The last chunk is the one in use.
        let room = |c: &Chunk| c.used + bytes <= CHUNK;
        if !self.chunks.last().is_some_and(room) {
            match self.chunks.iter().position(|c| c.live == 0) {
                Some(at) => {
                    let empty = self.chunks.remove(at);
                    self.chunks.push(Chunk { used: 0, ..empty });
                }
                None if (self.chunks.len() as u64 + 1) * CHUNK > MOST => return None,
                None => self.chunks.push(Chunk {
                    addr: chunk(CHUNK)?,
                    used: 0,
                    live: 0,
                }),
            }
        }
        let last = self.chunks.last_mut()?;
        let addr = last.addr + last.used;
        last.used += bytes;
        last.live += 1;
        Some(addr)
    }

    /// Takes parameters back.
    pub fn give(&mut self, addr: u64) {
        let of = |c: &&mut Chunk| (c.addr..c.addr + CHUNK).contains(&addr);
        if let Some(chunk) = self.chunks.iter_mut().find(of) {
            chunk.live -= 1;
        }
    }

    /// The addresses of all chunks, for the caller to free, if no launch uses any.
    pub fn idle(&mut self) -> Vec<u64> {
        if self.chunks.iter().any(|c| c.live > 0) {
            return Vec::new();
        }
        self.chunks.drain(..).map(|c| c.addr).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that hands out chunks.
    fn device(next: &mut u64) -> impl FnOnce(u64) -> Option<u64> {
        |bytes| {
            *next += 2 * bytes;
            Some(*next)
        }
    }

    #[test]
    fn a_context_takes_no_more_than_its_bytes_of_whatever_sizes() {
        let (mut pool, mut next, mut all) = (Pool::default(), 0, Vec::new());
        for n in 0.. {
            let Some(addr) = pool.take([1, 4096, 700][n % 3], device(&mut next)) else {
                break;
            };
            assert!(addr.is_multiple_of(ALIGN));
            all.push(addr);
        }
        assert_eq!(pool.chunks.len() as u64, MOST / CHUNK);
        assert!(pool.idle().is_empty(), "in use");
        all.drain(..).for_each(|addr| pool.give(addr));
        assert!(pool.take(CHUNK + 1, device(&mut next)).is_none());
        assert_eq!(pool.idle().len() as u64, MOST / CHUNK);
        assert!(pool.idle().is_empty(), "given back once");
    }

    #[test]
    fn chunks_are_used_again() {
        let (mut pool, mut next) = (Pool::default(), 0);
        for n in 0..100_000u64 {
            let kept = pool.take(1 + n % 4096, device(&mut next)).expect("room");
            let other = pool.take(64, device(&mut next)).expect("room");
            pool.give(kept);
            pool.give(other);
        }
        assert!(pool.chunks.len() <= 2, "{} chunks", pool.chunks.len());
    }

    #[test]
    fn launches_that_wait_have_memory_of_their_own() {
        let (mut pool, mut next) = (Pool::default(), 0);
        let waiting = pool.take(100, device(&mut next)).expect("room");
        for _ in 0..10_000 {
            let addr = pool.take(1000, device(&mut next)).expect("room");
            assert!(addr >= waiting + 100 || addr + 1000 <= waiting);
            pool.give(addr);
        }
        assert!(pool.chunks.len() <= 2, "{} chunks", pool.chunks.len());
    }
}
