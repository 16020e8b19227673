//! The log on standard error. The level follows the configuration.

use std::io::IsTerminal;

use tracing_subscriber::prelude::*;
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
    match log.format {
        LogFormat::Text => registry.with(layer).try_init()?,
        LogFormat::Json => registry.with(layer.json()).try_init()?,
    }
    Ok(Level {
        handle,
        now: log.level.clone(),
    })
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
