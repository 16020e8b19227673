//! Which work may still use a block of memory that kernels reach: of which streams, and since when.
//!
//! Only such blocks are looked at for changes. Work is entered before it is sent and counted when it has been; a wait
//! that is over takes out what was counted before it began.

use vgpu_proto::call::ops::Call;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, Stream};

/// More streams than this are not told apart: then only a wait for their context takes them out.
const MOST_STREAMS: usize = 32;

/// In place of streams that are not told apart.
const SOME_STREAM: Stream = Stream(u64::MAX);

/// Work of one stream.
#[derive(Debug)]
struct Use {
    ctx: Ctx,
    stream: Stream,
    /// Being sent.
    sending: u32,
    /// The count of the last that was sent.
    last: u64,
}

/// Work that may use a block, or all blocks.
#[derive(Debug, Default)]
pub(super) struct Uses(Vec<Use>);

impl Uses {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Work is about to be sent.
    pub(super) fn begin(&mut self, ctx: Ctx, stream: Stream) {
        if let Some(found) = self.find(ctx, stream) {
            found.sending += 1;
            return;
        }
        if self.0.len() >= MOST_STREAMS {
            self.gather();
        }
        self.0.push(Use {
            ctx,
            stream,
            sending: 1,
            last: 0,
        });
    }

    /// Work that was begun here has been sent, as the `count`th.
    pub(super) fn end(&mut self, ctx: Ctx, stream: Stream, count: u64) {
        if let Some(found) = self.find(ctx, stream) {
            found.sending -= 1;
            found.last = found.last.max(count);
        }
    }

    /// A wait is over that began at this count.
    pub(super) fn retire(&mut self, over: Over, count: u64) {
        self.0.retain(|used| {
            let waited = match over {
                Over::Stream(ctx, stream) => (ctx, stream) == (used.ctx, used.stream),
                Over::Context(ctx) => ctx == used.ctx,
                Over::Unknown => false,
            };
            !waited || used.sending > 0 || used.last > count
        });
    }

    fn find(&mut self, ctx: Ctx, stream: Stream) -> Option<&mut Use> {
        self.0
            .iter_mut()
            .find(|used| used.ctx == ctx && used.stream == stream)
    }

    /// Streams of which nothing is being sent become one for each context.
    fn gather(&mut self) {
        let mut gathered: Vec<Use> = Vec::new();
        for used in std::mem::take(&mut self.0) {
            let of_context = |g: &&mut Use| g.ctx == used.ctx && g.stream == SOME_STREAM;
            if used.sending > 0 {
                gathered.push(used);
            } else if let Some(found) = gathered.iter_mut().find(of_context) {
                found.last = found.last.max(used.last);
            } else {
                gathered.push(Use {
                    stream: SOME_STREAM,
                    ..used
                });
            }
        }
        self.0 = gathered;
    }
}

/// What has been waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// All work of a stream.
    Stream(Ctx, Stream),
    /// All work of a context.
    Context(Ctx),
    /// Not known here.
    Unknown,
}

/// A call with which the program waits, or asks.
pub(crate) trait Waits: Call {
    /// What is over when it succeeds.
    fn over(&self) -> Over;
}

impl Waits for req::StreamSynchronize {
    fn over(&self) -> Over {
        Over::Stream(self.ctx, self.stream)
    }
}

impl Waits for req::StreamQuery {
    fn over(&self) -> Over {
        Over::Stream(self.ctx, self.stream)
    }
}

impl Waits for req::CtxSynchronize {
    fn over(&self) -> Over {
        Over::Context(self.ctx)
    }
}

impl Waits for req::EventSynchronize {
    fn over(&self) -> Over {
        Over::Unknown
    }
}

impl Waits for req::EventQuery {
    fn over(&self) -> Over {
        Over::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CTX: Ctx = Ctx(7);

    fn of(n: u64) -> Over {
        Over::Stream(CTX, Stream(n))
    }

    #[test]
    fn work_is_over_when_it_was_sent_before_the_wait() {
        let mut uses = Uses::default();
        uses.begin(CTX, Stream(1));
        uses.retire(of(1), u64::MAX);
        assert!(!uses.is_empty(), "it is being sent");
        uses.end(CTX, Stream(1), 5);
        uses.retire(of(1), 4);
        uses.retire(of(2), 9);
        uses.retire(Over::Context(Ctx(8)), 9);
        uses.retire(Over::Unknown, 9);
        assert!(!uses.is_empty(), "other work was waited for");
        uses.retire(of(1), 5);
        assert!(uses.is_empty());
    }

    #[test]
    fn streams_beyond_a_bound_wait_for_their_context() {
        let mut uses = Uses::default();
        for n in 0..10 * MOST_STREAMS as u64 {
            uses.begin(CTX, Stream(n));
            uses.end(CTX, Stream(n), n);
            assert!(uses.0.len() <= MOST_STREAMS + 1);
        }
        for n in 0..10 * MOST_STREAMS as u64 {
            uses.retire(of(n), u64::MAX - 1);
        }
        assert!(!uses.is_empty());
        uses.retire(Over::Context(CTX), u64::MAX - 1);
        assert!(uses.is_empty());
    }
}
