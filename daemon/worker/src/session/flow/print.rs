//! Output of device `printf`: when it is certain to be there, it goes to the guest.

use std::sync::Arc;

use super::streams::Streams;
use crate::driver::Event;
use crate::session::link::Link;

/// Where the driver may still hold output of device `printf` that is now due.
#[derive(Debug, Clone)]
pub(crate) enum Flush {
    /// In this stream.
    Stream(u64),
    /// In this context.
    Context(u64),
    /// Before this event.
    Event(Arc<Event>),
}

impl Streams {
    /// Forwards what device `printf` wrote, as far as it is certain to be there.
    pub(crate) fn print(&self, link: &mut Link, flush: &Flush) {
        if !link.printf.due() {
            return;
        }
        // The driver hands output over in its synchronising calls; here nothing is left to wait
        // for.
        match flush {
            Flush::Event(event) => drop(event.synchronize()),
            Flush::Stream(stream) => self.touch(|id, _| id == *stream),
            Flush::Context(context) => self.touch(|_, c| c == *context),
        }
        forward(link);
    }

    /// As [`Streams::print`], for everything that is complete.
    pub(crate) fn print_all(&self, link: &mut Link) {
        if link.printf.due() {
            self.touch(|_, _| true);
            forward(link);
        }
    }

    fn touch(&self, pick: impl Fn(u64, u64) -> bool) {
        let idle = |c: u64| {
            !self
                .active
                .iter()
                .any(|id| self.table.get(*id).is_some_and(|s| s.context == c))
        };
        for (id, stream) in self.table.iter() {
            // Synchronising the NULL stream would wait for the blocking ones too.
            let still = stream.drained() && (stream.name != 0 || idle(stream.context));
            if still
                && pick(id, stream.context)
                && let Some(driver) = &stream.driver
            {
                let _ = driver.synchronize();
            }
        }
    }
}

fn forward(link: &mut Link) {
    let printed = link.printf.collect(link.out.queued());
    link.out.stdout(&printed);
}
