//! Events (list, long poll, stream) and the audit trail.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use http_body_util::channel::{Channel, Sender};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;
use utoipa::IntoParams;
use vgpu_api::{AuditPage, ErrorBody, ErrorCode, Event, EventPage, Severity};

use super::super::extract::{Params, Reader};
use super::super::failure::Failure;
use super::super::service::Admin;
use super::ApiState;
use crate::store::{AuditSelection, Command, Selection};

/// Most events or audit lines per response.
const MOST: usize = 1_000;
/// Longest wait for events in one request, in ms.
const LONGEST_WAIT_MS: u64 = 25_000;
/// Interval of keep-alive messages on an idle stream, which reveal a dead follower.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A follower that does not read for this time is disconnected.
const STALLED: Duration = Duration::from_secs(30);

/// Filter of the list of events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Only events after this number; absent: the newest events.
    since: Option<u64>,
    /// Largest number of entries, up to 1000; default 100.
    limit: Option<usize>,
    /// Only events of at least this severity.
    severity: Option<Severity>,
    /// Only events about this VM.
    vm_id: Option<u32>,
    /// Only events at or after this time.
    from_unix_ms: Option<u64>,
    /// Only events before this time.
    until_unix_ms: Option<u64>,
    /// Longest wait for the first entry if there is none yet, at most 25000 ms.
    wait_ms: Option<u64>,
}

/// Refuses a period that is empty.
pub(super) fn in_order(
    from_unix_ms: Option<u64>,
    until_unix_ms: Option<u64>,
) -> Result<(), Failure> {
    match from_unix_ms.zip(until_unix_ms) {
        Some((from, until)) if from >= until => Err(Failure::invalid(
            "The period is empty: --since (from_unix_ms) must be a time before --until \
             (until_unix_ms).",
        )),
        _ => Ok(()),
    }
}

impl Page {
    fn selection(&self) -> Selection {
        Selection {
            from_unix_ms: self.from_unix_ms,
            until_unix_ms: self.until_unix_ms,
            severity: self.severity,
            vm_id: self.vm_id,
        }
    }

    fn limit(&self) -> usize {
        self.limit.unwrap_or(100).clamp(1, MOST)
    }
}

/// Lists events, oldest first. On request, waits for the next event.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(Page),
    responses((status = 200, body = EventPage), (status = "4XX", body = ErrorBody)))]
pub(super) async fn list(
    _: Reader,
    State(state): State<ApiState>,
    Params(page): Params<Page>,
) -> Result<Json<EventPage>, Failure> {
    in_order(page.from_unix_ms, page.until_unix_ms)?;
    let wait = Duration::from_millis(page.wait_ms.unwrap_or(0).min(LONGEST_WAIT_MS));
    let deadline = Instant::now() + wait;
    let mut latest = state.admin.store().journal().subscribe();
    let mut closing = state.admin.closing();
    let Some(mut since) = page.since else {
        return newest(&state.admin, &page).await;
    };
    let selection = page.selection();
    loop {
        let seen = *latest.borrow_and_update();
        let found = state.admin.store().events(since, MOST).await?;
        let scanned = found.len();
        since = found.last().map_or(since, |event| event.seq);
        let mut events: Vec<Event> = found.into_iter().filter(|e| selection.wants(e)).collect();
        if events.len() > page.limit() {
            events.truncate(page.limit());
            since = events.last().map_or(since, |event| event.seq);
        }
        if !events.is_empty() {
            return Ok(Json(EventPage {
                events,
                next_since: since,
            }));
        }
        if scanned == MOST || since < seen {
            continue;
        }
        let ended = tokio::select! {
            waited = tokio::time::timeout_at(deadline, latest.changed()) => waited.is_err(),
            () = closed(&mut closing) => true,
        };
        if ended {
            return Ok(Json(EventPage {
                events,
                next_since: since,
            }));
        }
    }
}

/// The newest events that fit on the page, oldest first.
async fn newest(admin: &Admin, page: &Page) -> Result<Json<EventPage>, Failure> {
    let newest = *admin.store().journal().subscribe().borrow();
    let mut events = admin
        .store()
        .newest_events(page.limit(), page.selection())
        .await?;
    if events.len() > page.limit() {
        events.drain(..events.len() - page.limit());
    }
    let next_since = events.last().map_or(newest, |event| event.seq.max(newest));
    Ok(Json(EventPage { events, next_since }))
}

/// Start of the stream of events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Follow {
    /// Start after the event of this number. The header `Last-Event-ID` has precedence. Without
    /// both, the stream starts with new events.
    since: Option<u64>,
}

/// Follows events as server-sent events (`id`: the number, `data`: an Event as JSON).
#[utoipa::path(get, path = "/v1/events/stream", tag = "events", params(Follow),
    responses((status = 200, content_type = "text/event-stream", body = String),
        (status = "4XX", body = ErrorBody)))]
pub(super) async fn stream(
    _: Reader,
    State(state): State<ApiState>,
    Params(follow): Params<Follow>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let permit = state.followers.clone().try_acquire_owned().map_err(|_| {
        Failure::new(
            ErrorCode::RateLimited,
            "Too many callers follow the events already.",
            "Use GET /v1/events with wait_ms, or try later.",
        )
    })?;
    let seen = headers
        .get("last-event-id")
        .and_then(|id| id.to_str().ok()?.parse().ok());
    let newest = *state.admin.store().journal().subscribe().borrow();
    let since = seen.or(follow.since).unwrap_or(newest);
    let (sender, body) = Channel::<Bytes, Infallible>::new(16);
    tokio::spawn(async move {
        let _permit = permit;
        send_events(&state.admin, since, sender).await;
    });
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Sends events until the follower goes away or stalls, or vgpud stops.
async fn send_events(admin: &Admin, mut since: u64, mut sender: Sender<Bytes, Infallible>) {
    let mut latest = admin.store().journal().subscribe();
    let mut closing = admin.closing();
    loop {
        latest.borrow_and_update();
        let Ok(events) = admin.store().events(since, MOST).await else {
            return;
        };
        let more = events.len() == MOST;
        for event in events {
            since = event.seq;
            let Ok(data) = serde_json::to_string(&event) else {
                continue;
            };
            let chunk = Bytes::from(format!("id: {}\ndata: {data}\n\n", event.seq));
            if !send(&mut sender, chunk).await {
                return;
            }
        }
        if more {
            continue;
        }
        let waited = tokio::select! {
            waited = tokio::time::timeout(KEEP_ALIVE, latest.changed()) => waited,
            () = closed(&mut closing) => return,
        };
        match waited {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                if !send(&mut sender, Bytes::from_static(b": nothing new\n\n")).await {
                    return;
                }
            }
        }
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

async fn send(sender: &mut Sender<Bytes, Infallible>, chunk: Bytes) -> bool {
    matches!(
        tokio::time::timeout(STALLED, sender.send_data(chunk)).await,
        Ok(Ok(()))
    )
}

/// Filter of the audit trail.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditQuery {
    /// Only lines after this number; absent: the newest lines.
    since: Option<u64>,
    /// Only lines at or after this time.
    from_unix_ms: Option<u64>,
    /// Only lines before this time.
    until_unix_ms: Option<u64>,
    /// Only lines about commands that name this VM.
    vm_id: Option<u32>,
    /// Only lines of this actor (`uid:1000`, `token:robot`, `vgpud`).
    actor: Option<String>,
    /// Only lines of this action (`vm-set`); `refused`: every refused command.
    action: Option<String>,
    /// Only lines whose target contains this text (`pool A`, `refused`).
    target: Option<String>,
    /// Largest number of entries in the answer, at most 1000.
    limit: Option<usize>,
}

/// Whether a caller can have this name.
fn is_caller(name: &str) -> bool {
    match name.split_once(':') {
        Some(("uid", uid)) => uid.parse::<u32>().is_ok(),
        Some(("token", token)) => !token.is_empty(),
        Some(_) => false,
        None => name == "vgpud",
    }
}

/// Lists the audit trail, oldest first.
#[utoipa::path(get, path = "/v1/audit", tag = "events", params(AuditQuery),
    responses((status = 200, body = AuditPage), (status = "4XX", body = ErrorBody)))]
pub(super) async fn audit(
    _: Reader,
    State(state): State<ApiState>,
    Params(query): Params<AuditQuery>,
) -> Result<Json<AuditPage>, Failure> {
    let limit = query.limit.unwrap_or(100).clamp(1, MOST);
    if let Some(actor) = &query.actor
        && !is_caller(actor)
    {
        return Err(Failure::invalid(format!(
            "{actor:?} is no caller: write uid:1000, token:NAME or vgpud."
        )));
    }
    in_order(query.from_unix_ms, query.until_unix_ms)?;
    if let Some(action) = &query.action
        && !Command::ACTIONS.contains(&action.as_str())
    {
        return Err(Failure::invalid(format!(
            "There is no action {action:?}: use {}.",
            Command::ACTIONS.join(", ")
        )));
    }
    let selection = AuditSelection {
        of: Selection {
            from_unix_ms: query.from_unix_ms,
            until_unix_ms: query.until_unix_ms,
            severity: None,
            vm_id: query.vm_id,
        },
        actor: query.actor,
        action: query.action,
        target: query.target,
    };
    let store = state.admin.store();
    let entries = store.audit(query.since, limit, selection).await?;
    let next_since = entries
        .last()
        .map_or(query.since.unwrap_or(0), |entry| entry.seq);
    Ok(Json(AuditPage {
        entries,
        next_since,
    }))
}
