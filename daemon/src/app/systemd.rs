//! Notifies systemd: ready, reloading, stopping, alive. Without systemd nothing happens.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::mediator::{Command, MediatorHandle};

pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(e) => tracing::debug!("cannot tell systemd of the reload: {e}"),
    }
}

/// Reports that vgpud stops, and the longest time that this takes.
pub(super) fn stopping(most: Duration) {
    let micros = u32::try_from(most.as_micros()).unwrap_or(u32::MAX);
    tell(&[
        NotifyState::Stopping,
        NotifyState::ExtendTimeoutUsec(micros),
    ]);
}

/// Feeds systemd's watchdog, if it is on, while the mediator answers.
pub(super) async fn feed_watchdog(mediator: MediatorHandle) {
    let Some(period) = sd_notify::watchdog_enabled() else {
        return;
    };
    let half = period / 2;
    let mut tick = tokio::time::interval(half);
    loop {
        tick.tick().await;
        // The tick proves that the runtime works; the answer proves that the mediator works.
        match tokio::time::timeout(half, mediator.ask(Command::Ping)).await {
            Ok(Ok(_)) => tell(&[NotifyState::Watchdog]),
            Ok(Err(_)) => return,
            Err(_late) => tracing::error!("the mediator does not answer; the watchdog is not fed"),
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        tracing::debug!("cannot notify systemd: {e}");
    }
}
