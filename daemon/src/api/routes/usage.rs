//! Usage of VMs: export and reset.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use vgpu_api::{ApplyReport, ErrorBody, UsageReport, UsageReset};

use super::super::extract::{Change, DryRun, Input, Params, Reader};
use super::super::failure::Failure;
use super::super::usage;
use super::ApiState;
use crate::store::Command;

/// Filter of the usage reports.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Whose {
    /// Only the usage of this VM.
    vm_id: Option<u32>,
}

/// Exports the usage of VMs, with the distributions of their waits and turns.
#[utoipa::path(get, path = "/v1/usage", tag = "vms", params(Whose),
    responses((status = 200, body = Vec<UsageReport>), (status = "4XX", body = ErrorBody)))]
pub(super) async fn export(
    _: Reader,
    State(state): State<ApiState>,
    Params(whose): Params<Whose>,
) -> Result<Json<Vec<UsageReport>>, Failure> {
    let world = state.admin.world().await;
    if let Some(vm_id) = whose.vm_id {
        world.catalog.vm(vm_id)?;
    }
    let journal = state.admin.store().journal();
    let wanted = world
        .catalog
        .vms
        .values()
        .filter(|vm| whose.vm_id.is_none_or(|wanted| wanted == vm.vm_id));
    Ok(Json(
        wanted
            .map(|vm| usage::report(&world, vm, &journal.usage_of(vm.vm_id)))
            .collect(),
    ))
}

/// Sets the usage totals of VMs to zero. Debts, strikes and limits stay.
#[utoipa::path(post, path = "/v1/usage/reset", tag = "vms",
    params(DryRun), request_body = UsageReset,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn reset(
    change: Change,
    State(state): State<ApiState>,
    Input(request): Input<UsageReset>,
) -> Result<Json<ApplyReport>, Failure> {
    state.command(change, Command::ResetUsage(request)).await
}
