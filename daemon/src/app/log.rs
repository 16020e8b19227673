//! The log on standard error. The level follows the configuration. The journal of systemd gets each
//! line with a priority, so that `journalctl -p warning` finds warnings. Text lines have no time
//! there, because the journal adds one; JSON lines keep the field `timestamp`.

use std::io::IsTerminal;

use tracing::{Event, Level as Severity, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::Handle;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config::{Log, LogFormat};

/// The present level, which a reload changes.
#[derive(Debug)]
pub(super) struct Level {
    handle: Handle<EnvFilter, Registry>,
    now: String,
}

pub(super) fn start(log: &Log) -> anyhow::Result<Level> {
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(&log.level)?);
    let terminal = std::io::stderr().is_terminal();
    let layer = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(terminal);
    let registry = tracing_subscriber::registry().with(filter);
    match (log.format, journal_reads_stderr()) {
        (LogFormat::Text, false) => registry.with(layer).try_init()?,
        (LogFormat::Json, false) => registry.with(layer.json()).try_init()?,
        (LogFormat::Text, true) => {
            let layer = layer.without_time().map_event_format(WithPriority);
            registry.with(layer).try_init()?;
        }
        (LogFormat::Json, true) => {
            let layer = layer.json().map_event_format(WithPriority);
            registry.with(layer).try_init()?;
        }
    }
    Ok(Level {
        handle,
        now: log.level.clone(),
    })
}

/// Whether standard error is a stream of systemd's journal: `JOURNAL_STREAM` has the stream's
/// device and inode (systemd.exec(5)).
fn journal_reads_stderr() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stat = nix::sys::stat::fstat(std::io::stderr());
    stat.is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// A format that begins each line with the priority of syslog (`<4>`), which the journal reads and
/// removes (sd-daemon(3)).
struct WithPriority<F>(F);

impl<S, N, F> FormatEvent<S, N> for WithPriority<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

fn priority(severity: Severity) -> u8 {
    match severity {
        Severity::ERROR => 3,
        Severity::WARN => 4,
        Severity::INFO => 6,
        Severity::DEBUG | Severity::TRACE => 7,
    }
}

impl Level {
    /// Applies the level of a configuration, if it has changed.
    pub(super) fn set(&mut self, log: &Log) {
        if self.now == log.level {
            return;
        }
        let changed = EnvFilter::try_new(&log.level)
            .map_err(|e| e.to_string())
            .and_then(|filter| self.handle.reload(filter).map_err(|e| e.to_string()));
        match changed {
            Ok(()) => self.now.clone_from(&log.level),
            Err(e) => tracing::warn!("the log level stays {}: {e}", self.now),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no writer panics").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_journal_gets_a_priority_and_no_time() {
        let lines = Lines::default();
        let to = lines.clone();
        let layer = fmt::layer()
            .with_ansi(false)
            .with_writer(move || to.clone())
            .without_time()
            .map_event_format(WithPriority);
        tracing::subscriber::with_default(Registry::default().with(layer), || {
            tracing::error!("broken");
            tracing::info!(vm = 7, "fine");
        });
        let text = String::from_utf8(lines.0.lock().expect("no writer panics").clone());
        let text = text.expect("a log is text");
        let [first, second] = text.lines().collect::<Vec<_>>()[..] else {
            panic!("{text}");
        };
        assert!(
            first.starts_with("<3>ERROR") && first.ends_with("broken"),
            "{text}"
        );
        assert!(
            second.starts_with("<6> INFO") && second.ends_with("fine vm=7"),
            "{text}"
        );
    }
}
