//! The host as a whole: status, doctor, reload, metrics, health.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use vgpu_api::{DoctorReport, ErrorBody, ErrorCode, ReloadReport, Status};

use super::super::extract::{Reader, Writer};
use super::super::failure::Failure;
use super::ApiState;
use crate::metrics::{self, Facts};

/// Returns all data of the status screen.
#[utoipa::path(get, path = "/v1/status", tag = "host",
    responses((status = 200, body = Status), (status = "4XX", body = ErrorBody)))]
pub(super) async fn status(_: Reader, State(state): State<ApiState>) -> Json<Status> {
    Json(state.admin.status().await)
}

/// Checks this host: faults and their remedies.
#[utoipa::path(get, path = "/v1/doctor", tag = "host",
    responses((status = 200, body = DoctorReport), (status = "4XX", body = ErrorBody)))]
pub(super) async fn doctor(_: Reader, State(state): State<ApiState>) -> Json<DoctorReport> {
    Json(state.admin.doctor().await)
}

/// Reads the configuration file again and applies the whole file, or nothing if the file is not
/// valid.
#[utoipa::path(post, path = "/v1/reload", tag = "host",
    responses((status = 200, body = ReloadReport), (status = "default", body = ErrorBody)))]
pub(super) async fn reload(
    writer: Writer,
    State(state): State<ApiState>,
) -> Result<Json<ReloadReport>, Failure> {
    Ok(Json(state.admin.reload(writer.caller.actor()).await?))
}

/// Returns this description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "host",
    responses((status = 200, content_type = "application/json", body = String)))]
pub(super) async fn document(_: Reader) -> Result<Response, Failure> {
    let text = super::openapi_json()
        .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string(), ""))?;
    Ok(typed("application/json", text))
}

/// Prometheus metrics (OpenMetrics text).
#[utoipa::path(get, path = "/metrics", tag = "host",
    responses((status = 200, content_type = "application/openmetrics-text", body = String)))]
pub(super) async fn metrics(_: Reader, State(state): State<ApiState>) -> Result<Response, Failure> {
    let (admin, store) = (&state.admin, state.admin.store());
    let world = admin.world().await;
    let status = admin.status_of(&world);
    let facts = Facts::new(world, status, store.journal(), store.health());
    let text = metrics::text(facts)
        .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string(), ""))?;
    Ok(typed(metrics::CONTENT_TYPE, text))
}

/// Says whether the daemon works. Needs no permission and reveals nothing else.
#[utoipa::path(get, path = "/healthz", tag = "host",
    responses((status = 200, content_type = "text/plain", body = String),
        (status = 503, content_type = "text/plain", body = String)))]
pub(super) async fn healthz(State(state): State<ApiState>) -> Response {
    match state.admin.unhealthy().await {
        None => typed("text/plain", "ok\n".into()),
        Some(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ok; see `vgpu-admin doctor`\n",
        )
            .into_response(),
    }
}

fn typed(content_type: &'static str, text: String) -> Response {
    (
        [(header::CONTENT_TYPE, HeaderValue::from_static(content_type))],
        text,
    )
        .into_response()
}
