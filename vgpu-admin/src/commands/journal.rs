//! Events and the audit trail.

use vgpu_api::{AuditPage, Event, EventPage, Severity};

use crate::client::Client;
use crate::error::Error;
use crate::output::{Format, Grid, or_dash, print, printable, show};
use crate::units::show_time;

/// Longest time for which the daemon may delay an empty answer in follow mode, in ms.
const FOLLOW_WAIT_MS: u64 = 20_000;

/// Largest number of lines in an answer of the API.
const PAGE: u32 = 1_000;

/// A selection of events.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Only events after this number; `None`: the newest events.
    pub(super) since: Option<u64>,
    /// Only events about this VM.
    pub(super) vm_id: Option<u32>,
    /// Largest number of events.
    pub(super) limit: u32,
}

impl Wanted {
    fn query(self) -> String {
        let mut query = format!("limit={}", self.limit);
        if let Some(since) = self.since {
            query.push_str(&format!("&since={since}"));
        }
        if let Some(vm) = self.vm_id {
            query.push_str(&format!("&vm_id={vm}"));
        }
        query
    }
}

pub(super) async fn events(
    client: &Client,
    output: Format,
    follow: bool,
    wanted: Wanted,
) -> Result<(), Error> {
    let page: EventPage = client.get(&format!("events?{}", wanted.query())).await?;
    if !follow {
        return show(output, &page, |page| grid(&page.events));
    }
    let mut next = page.next_since;
    let mut events = page.events;
    loop {
        for event in &events {
            print(&line(output, event)?)?;
        }
        let after = Wanted {
            since: Some(next),
            limit: PAGE,
            ..wanted
        };
        let path = format!("events?{}&wait_ms={FOLLOW_WAIT_MS}", after.query());
        let page: EventPage = client.get(&path).await?;
        next = page.next_since;
        events = page.events;
    }
}

/// An event as a line: JSON lines if JSON was requested.
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

/// The snake-case name of an event kind, as in JSON.
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
    since: Option<u64>,
    limit: u32,
) -> Result<(), Error> {
    let wanted = Wanted {
        since,
        vm_id: None,
        limit,
    };
    let page: AuditPage = client.get(&format!("audit?{}", wanted.query())).await?;
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
