//! Sessions.

use axum::Json;
use axum::extract::{Path, State};
use serde::Deserialize;
use utoipa::IntoParams;
use vgpu_api::{ApplyReport, ErrorBody, ErrorCode, KillRequest, Session};

use super::super::extract::{Change, DryRun, Input, Params, Reader};
use super::super::failure::Failure;
use super::ApiState;
use super::events::in_order;

/// Filter of the list of sessions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Filter {
    /// Only sessions of this VM.
    vm_id: Option<u32>,
    /// Only those that began at or after this time.
    from_unix_ms: Option<u64>,
    /// Only those that began before this time.
    until_unix_ms: Option<u64>,
}

/// Lists open sessions.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(Filter),
    responses((status = 200, body = Vec<Session>), (status = "4XX", body = ErrorBody)))]
pub(super) async fn list(
    _: Reader,
    State(state): State<ApiState>,
    Params(filter): Params<Filter>,
) -> Result<Json<Vec<Session>>, Failure> {
    in_order(filter.from_unix_ms, filter.until_unix_ms)?;
    if let Some(vm_id) = filter.vm_id {
        state.admin.store().catalog().vm(vm_id)?;
    }
    let mut sessions = state.admin.world().await.sessions();
    sessions.retain(|session| {
        let began = session.since_unix_ms;
        filter.vm_id.is_none_or(|vm_id| session.vm_id == vm_id)
            && filter.from_unix_ms.is_none_or(|from| began >= from)
            && filter.until_unix_ms.is_none_or(|until| began < until)
    });
    Ok(Json(sessions))
}

/// Shows one session.
#[utoipa::path(get, path = "/v1/sessions/{session_id}", tag = "sessions",
    params(("session_id" = u64, Path, description = "Number of the session")),
    responses((status = 200, body = Session), (status = "4XX", body = ErrorBody)))]
pub(super) async fn show(
    _: Reader,
    State(state): State<ApiState>,
    Path(session_id): Path<String>,
) -> Result<Json<Session>, Failure> {
    let session_id = number(&session_id)?;
    let sessions = state.admin.world().await.sessions();
    let found = sessions
        .into_iter()
        .find(|session| session.session_id == session_id);
    found.map(Json).ok_or_else(|| {
        Failure::new(
            ErrorCode::SessionNotFound,
            format!("No session {session_id} is open."),
            "`vgpu-admin session list` shows those that are.",
        )
    })
}

/// Ends a session: its guest program gets an error, its worker is killed.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/kill", tag = "sessions",
    request_body = KillRequest,
    params(("session_id" = u64, Path, description = "Number of the session"), DryRun),
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn kill(
    change: Change,
    State(state): State<ApiState>,
    Path(session_id): Path<String>,
    Input(request): Input<KillRequest>,
) -> Result<Json<ApplyReport>, Failure> {
    let session_id = number(&session_id)?;
    let reason = request.reason.unwrap_or_default();
    Ok(Json(
        state
            .admin
            .kill_session(change.caller.actor(), session_id, reason, change.dry_run)
            .await?,
    ))
}

fn number(text: &str) -> Result<u64, Failure> {
    text.parse()
        .map_err(|_| Failure::invalid(format!("{text:?} is not the number of a session.")))
}
