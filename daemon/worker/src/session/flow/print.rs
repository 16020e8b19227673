//! Output of device `printf`: sends it to the guest as soon as it is certain to be complete.

use std::sync::Arc;

use super::streams::Streams;
use crate::driver::Event;
use crate::session::link::Link;

/// The place where the driver may still hold output of device `printf`.
#[derive(Debug, Clone)]
pub(crate) enum Flush {
    /// The work of this stream.
    Stream(u64),
    /// The work of this context.
    Context(u64),
    /// The work before the record of this event.
    Event(Arc<Event>),
}

impl Streams {
    /// Sends output of device `printf` to the guest, as far as the output is certain to be
    /// complete.
    pub(crate) fn print(&self, link: &mut Link, flush: &Flush) {
        if !link.printf.due() {
            return;
        }
        // The driver hands over output in its synchronising calls. The work is complete, so these
        // calls do not wait.
        match flush {
            Flush::Event(event) => drop(event.synchronize()),
            Flush::Stream(stream) => self.touch(|id, _| id == *stream),
            Flush::Context(context) => self.touch(|_, c| c == *context),
        }
        forward(link);
    }

    /// Like [`Streams::print`], for all completed work.
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
            // Synchronising the NULL stream would also wait for the blocking streams of its
            // context.
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
    link.charge_out(printed.text.len());
    link.out.stdout(&printed);
}
