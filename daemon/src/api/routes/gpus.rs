//! GPUs and assignments.

use axum::Json;
use axum::extract::{Path, State};
use vgpu_api::{
    ApplyReport, AssignRequest, Assignment, ErrorBody, Gpu, GpuCheckReport, ScanReport,
    UnassignRequest,
};

use super::super::extract::{Change, DryRun, Input, Reader, Writer};
use super::super::failure::Failure;
use super::ApiState;
use crate::store::Command;

type Answer<T> = Result<Json<T>, Failure>;

/// Lists GPUs.
#[utoipa::path(get, path = "/v1/gpus", tag = "gpus",
    responses((status = 200, body = Vec<Gpu>), (status = "4XX", body = ErrorBody)))]
pub(super) async fn list(_: Reader, State(state): State<ApiState>) -> Json<Vec<Gpu>> {
    Json(state.admin.world().await.gpus())
}

/// Shows one GPU.
#[utoipa::path(get, path = "/v1/gpus/{gpu}", tag = "gpus",
    params(("gpu" = String, Path, description = "Number or UUID")),
    responses((status = 200, body = Gpu), (status = "4XX", body = ErrorBody)))]
pub(super) async fn show(
    _: Reader,
    State(state): State<ApiState>,
    Path(gpu): Path<String>,
) -> Answer<Gpu> {
    let catalog = state.admin.store().catalog();
    let record = catalog.gpu(&gpu)?;
    Ok(Json(state.admin.world().await.gpu(record)))
}

/// Scans for GPUs and updates the known GPUs.
#[utoipa::path(post, path = "/v1/gpus/scan", tag = "gpus",
    responses((status = 200, body = ScanReport), (status = "default", body = ErrorBody)))]
pub(super) async fn scan(writer: Writer, State(state): State<ApiState>) -> Answer<ScanReport> {
    Ok(Json(state.admin.scan(writer.caller.actor()).await?))
}

/// Runs a canary kernel on a GPU. A GPU that fails becomes suspect.
#[utoipa::path(post, path = "/v1/gpus/{gpu}/check", tag = "gpus",
    params(("gpu" = String, Path, description = "Number or UUID")),
    responses((status = 200, body = GpuCheckReport), (status = "default", body = ErrorBody)))]
pub(super) async fn check(
    writer: Writer,
    State(state): State<ApiState>,
    Path(gpu): Path<String>,
) -> Answer<GpuCheckReport> {
    Ok(Json(
        state.admin.check_gpu(writer.caller.actor(), &gpu).await?,
    ))
}

/// Checks a suspect or draining GPU. If the check passes, the GPU takes work again.
#[utoipa::path(post, path = "/v1/gpus/{gpu}/resume", tag = "gpus",
    params(("gpu" = String, Path, description = "Number or UUID")),
    responses((status = 200, body = GpuCheckReport), (status = "default", body = ErrorBody)))]
pub(super) async fn resume(
    writer: Writer,
    State(state): State<ApiState>,
    Path(gpu): Path<String>,
) -> Answer<GpuCheckReport> {
    let actor = writer.caller.actor();
    Ok(Json(state.admin.resume_gpu(actor, writer.key, &gpu).await?))
}

/// Lets a GPU (or `all`) finish what runs, and gives it nothing new.
#[utoipa::path(post, path = "/v1/gpus/{gpu}/drain", tag = "gpus",
    params(("gpu" = String, Path, description = "Number or UUID"), DryRun),
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn drain(
    change: Change,
    State(state): State<ApiState>,
    Path(gpu): Path<String>,
) -> Answer<ApplyReport> {
    state.command(change, Command::DrainGpu { gpu }).await
}

/// Forgets a GPU that vanished.
#[utoipa::path(delete, path = "/v1/gpus/{gpu}", tag = "gpus",
    params(("gpu" = String, Path, description = "Number or UUID"), DryRun),
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn forget(
    change: Change,
    State(state): State<ApiState>,
    Path(gpu): Path<String>,
) -> Answer<ApplyReport> {
    state.command(change, Command::ForgetGpu { gpu }).await
}

/// Lists which GPU serves which pool.
#[utoipa::path(get, path = "/v1/assignments", tag = "gpus",
    responses((status = 200, body = Vec<Assignment>), (status = "4XX", body = ErrorBody)))]
pub(super) async fn assignments(_: Reader, State(state): State<ApiState>) -> Json<Vec<Assignment>> {
    let catalog = state.admin.store().catalog();
    let mut list: Vec<Assignment> = catalog
        .assignments
        .values()
        .filter_map(|assignment| {
            Some(Assignment {
                gpu_id: catalog.gpus.get(&assignment.gpu_uuid)?.gpu_id,
                gpu_uuid: assignment.gpu_uuid.clone(),
                pool: assignment.pool.clone(),
                since_unix_ms: assignment.since_unix_ms,
            })
        })
        .collect();
    list.sort_by(|a, b| (a.gpu_id, &a.pool).cmp(&(b.gpu_id, &b.pool)));
    Json(list)
}

/// Lets a GPU serve a pool.
#[utoipa::path(post, path = "/v1/assignments", tag = "gpus",
    params(DryRun), request_body = AssignRequest,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn assign(
    change: Change,
    State(state): State<ApiState>,
    Input(request): Input<AssignRequest>,
) -> Answer<ApplyReport> {
    state.command(change, Command::AssignGpu(request)).await
}

/// Takes a GPU out of its pools.
#[utoipa::path(post, path = "/v1/assignments/remove", tag = "gpus",
    params(DryRun), request_body = UnassignRequest,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn unassign(
    change: Change,
    State(state): State<ApiState>,
    Input(request): Input<UnassignRequest>,
) -> Answer<ApplyReport> {
    state.command(change, Command::UnassignGpu(request)).await
}

impl ApiState {
    pub(super) async fn command(&self, change: Change, command: Command) -> Answer<ApplyReport> {
        let (actor, dry_run) = (change.caller.actor(), change.dry_run);
        let report = self.admin.report(actor, change.key, command, dry_run);
        Ok(Json(report.await?))
    }
}
