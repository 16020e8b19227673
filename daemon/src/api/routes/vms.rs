//! VMs. Every command takes a list and applies to all VMs of the list or to none.

use axum::Json;
use axum::extract::{Path, State};
use vgpu_api::{
    ApplyReport, ErrorBody, MoveRequest, QuarantineRequest, RegisterRequest, Vm, VmIds, VmPatch,
};

use super::super::extract::{Change, DryRun, Input, Reader};
use super::super::failure::Failure;
use super::ApiState;
use crate::store::Command;

type Answer<T> = Result<Json<T>, Failure>;

/// Lists VMs.
#[utoipa::path(get, path = "/v1/vms", tag = "vms",
    responses((status = 200, body = Vec<Vm>), (status = "4XX", body = ErrorBody)))]
pub(super) async fn list(_: Reader, State(state): State<ApiState>) -> Json<Vec<Vm>> {
    Json(state.admin.world().await.vms())
}

/// Shows one VM.
#[utoipa::path(get, path = "/v1/vms/{vm_id}", tag = "vms",
    params(("vm_id" = u32, Path, description = "Number of the VM")),
    responses((status = 200, body = Vm), (status = "4XX", body = ErrorBody)))]
pub(super) async fn show(
    _: Reader,
    State(state): State<ApiState>,
    Path(vm_id): Path<String>,
) -> Answer<Vm> {
    let vm_id = vm_id
        .parse()
        .map_err(|_| Failure::invalid(format!("{vm_id:?} is not the number of a VM.")))?;
    let catalog = state.admin.store().catalog();
    let record = catalog.vm(vm_id)?;
    Ok(Json(state.admin.world().await.vm(record)))
}

/// Registers VMs.
#[utoipa::path(post, path = "/v1/vms", tag = "vms", params(DryRun), request_body = RegisterRequest,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn register(
    change: Change,
    State(state): State<ApiState>,
    Input(request): Input<RegisterRequest>,
) -> Answer<ApplyReport> {
    state.command(change, Command::RegisterVm(request)).await
}

/// Changes VMs, while they run.
#[utoipa::path(patch, path = "/v1/vms", tag = "vms", params(DryRun), request_body = VmPatch,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn change(
    change: Change,
    State(state): State<ApiState>,
    Input(patch): Input<VmPatch>,
) -> Answer<ApplyReport> {
    state.command(change, Command::SetVm(patch)).await
}

/// Removes VMs; their sessions end.
#[utoipa::path(delete, path = "/v1/vms", tag = "vms", params(DryRun), request_body = VmIds,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn unregister(
    change: Change,
    State(state): State<ApiState>,
    Input(request): Input<VmIds>,
) -> Answer<ApplyReport> {
    state.command(change, Command::UnregisterVm(request)).await
}

/// Moves VMs to another pool.
#[utoipa::path(post, path = "/v1/vms/move", tag = "vms", params(DryRun), request_body = MoveRequest,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn move_to(
    change: Change,
    State(state): State<ApiState>,
    Input(request): Input<MoveRequest>,
) -> Answer<ApplyReport> {
    state.command(change, Command::MoveVm(request)).await
}

/// Refuses VMs and ends their sessions, until they are released.
#[utoipa::path(post, path = "/v1/vms/quarantine", tag = "vms",
    params(DryRun), request_body = QuarantineRequest,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn quarantine(
    change: Change,
    State(state): State<ApiState>,
    Input(request): Input<QuarantineRequest>,
) -> Answer<ApplyReport> {
    state.command(change, Command::Quarantine(request)).await
}

/// Serves VMs again and forgets their strikes.
#[utoipa::path(post, path = "/v1/vms/release", tag = "vms", params(DryRun), request_body = VmIds,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn release(
    change: Change,
    State(state): State<ApiState>,
    Input(request): Input<VmIds>,
) -> Answer<ApplyReport> {
    state.command(change, Command::Release(request)).await
}
