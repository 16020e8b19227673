//! Events and the audit trail.

use std::time::Duration;

use vgpu_proto::api::{AuditPage, Event, EventPage, Severity};

use crate::client::Client;
use crate::error::Error;
use crate::output::{Format, Grid, or_dash, print, printable, show};
use crate::units::show_time;

/// Seconds that the daemon may hold an empty answer back while following.
const FOLLOW_WAIT_S: u64 = 20;

pub(super) async fn events(
    client: &Client,
    output: Format,
    follow: bool,
    since: u64,
    limit: u32,
) -> Result<(), Error> {
    let page: EventPage = client
        .get(&format!("events?since={since}&limit={limit}"))
        .await?;
    if !follow {
        return show(output, &page, |page| grid(&page.events));
    }
    let mut next = page.next_since;
    let mut events = page.events;
    loop {
        for event in &events {
            print(&line(output, event)?)?;
        }
        let path = format!("events?since={next}&limit=1000&wait_s={FOLLOW_WAIT_S}");
        let page: EventPage = client.get(&path).await?;
        if page.events.is_empty() && page.next_since == next {
            // A daemon that does not hold answers back must not be asked in a tight loop.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        next = page.next_since;
        events = page.events;
    }
}

/// One event as one line: JSON lines where JSON was asked for.
fn line(output: Format, event: &Event) -> Result<String, Error> {
    if output == Format::Json {
        let text = serde_json::to_string(event).map_err(|e| Error::Protocol(e.to_string()))?;
        return Ok(text + "\n");
    }
    let message = printable(&event.message);
    Ok(format!(
        "{}  {:7}  {message}\n",
        show_time(event.at_unix_ms),
        severity(event.severity)
    ))
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "ERROR",
    }
}

/// The snake-case name of an event's kind, as in JSON.
fn kind(event: &Event) -> String {
    serde_json::to_value(event.kind)
        .ok()
        .and_then(|v| v.as_str().map(str::to_owned))
        .unwrap_or_else(|| "?".into())
}

fn grid(events: &[Event]) -> Grid {
    let mut grid = Grid::new(&[
        "SEQ",
        "TIME (UTC)",
        "SEVERITY",
        "KIND",
        "VM",
        "+SESSION",
        "EVENT",
    ]);
    for event in events {
        grid.row(vec![
            event.seq.to_string(),
            show_time(event.at_unix_ms),
            severity(event.severity).into(),
            kind(event),
            or_dash(event.vm_id),
            or_dash(event.session_id),
            event.message.clone(),
        ]);
    }
    grid
}

pub(super) async fn audit(
    client: &Client,
    output: Format,
    since: u64,
    limit: u32,
) -> Result<(), Error> {
    let page: AuditPage = client
        .get(&format!("audit?since={since}&limit={limit}"))
        .await?;
    show(output, &page, |page| {
        let mut grid = Grid::new(&[
            "SEQ",
            "TIME (UTC)",
            "WHO",
            "+PID",
            "ACTION",
            "TARGET",
            "DETAIL",
        ]);
        for entry in &page.entries {
            grid.row(vec![
                entry.seq.to_string(),
                show_time(entry.at_unix_ms),
                entry.actor.clone(),
                or_dash(entry.pid),
                entry.action.clone(),
                entry.target.clone(),
                entry.detail.clone(),
            ]);
        }
        grid
    })
}
