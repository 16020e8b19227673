//! Records, by stream, the unfinished work that may use a block of mirrored memory.
//!
//! Only blocks in use are compared for changes. Work is recorded before it is sent, and gets its
//! number when it was sent. The end of a wait removes the work whose number is not above the number
//! at which the wait began.

use vgpu_proto::call::ops::Call;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, Stream};

/// Largest number of streams that are recorded separately. The work of other streams is removed
/// only by a wait for the context.
const MOST_STREAMS: usize = 32;

/// Stands for all streams of a context that are not recorded separately.
const SOME_STREAM: Stream = Stream(u64::MAX);

/// Work of one stream.
#[derive(Debug)]
struct Use {
    ctx: Ctx,
    stream: Stream,
    /// Number of units of work that are being sent now.
    sending: u32,
    /// Number of the last unit that was sent.
    last: u64,
}

/// A list of unfinished work, by stream. Each mirrored block has a list of the work that may use
/// this block. One more list has the work that may use any mirrored block.
#[derive(Debug, Default)]
pub(super) struct Uses(Vec<Use>);

impl Uses {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that work is about to be sent.
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

    /// Records that the work recorded by [`Uses::begin`] was sent, as unit number `count`.
    pub(super) fn end(&mut self, ctx: Ctx, stream: Stream, count: u64) {
        if let Some(found) = self.find(ctx, stream) {
            found.sending -= 1;
            found.last = found.last.max(count);
        }
    }

    /// Removes the work that a completed wait covers. `count` is the number of units of work that
    /// were sent when the wait began.
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

    /// Merges the streams of each context on which no work is being sent.
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

/// The work for which a completed wait has waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// All work of a stream.
    Stream(Ctx, Stream),
    /// All work of a context.
    Context(Ctx),
    /// Unknown: no work is removed from the record.
    Unknown,
}

/// A call that waits for work, or that queries whether work is complete.
pub(crate) trait Waits: Call {
    /// The scope of the wait if the call succeeds.
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
