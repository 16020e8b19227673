//! Pools and weights.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::Value;
use vgpu_api::{
    ApplyReport, ErrorBody, POOL_SETTINGS, PoolCreate, PoolPatch, PoolStatus, Unit, WeightsPatch,
    WeightsReport,
};

use super::super::extract::{Change, DryRun, Input, Reader, read};
use super::super::failure::Failure;
use super::ApiState;
use crate::store::Command;

type Answer<T> = Result<Json<T>, Failure>;

/// Lists pools with their waiting work.
#[utoipa::path(get, path = "/v1/pools", tag = "pools",
    responses((status = 200, body = Vec<PoolStatus>), (status = "4XX", body = ErrorBody)))]
pub(super) async fn list(_: Reader, State(state): State<ApiState>) -> Json<Vec<PoolStatus>> {
    Json(state.admin.world().await.pools())
}

/// Shows one pool.
#[utoipa::path(get, path = "/v1/pools/{name}", tag = "pools",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, body = PoolStatus), (status = "4XX", body = ErrorBody)))]
pub(super) async fn show(
    _: Reader,
    State(state): State<ApiState>,
    Path(name): Path<String>,
) -> Answer<PoolStatus> {
    state.admin.store().catalog().pool(&name)?;
    let pools = state.admin.world().await.pools();
    let gone = || {
        Failure::new(
            vgpu_api::ErrorCode::PoolNotFound,
            "It was just deleted.",
            "",
        )
    };
    let found = pools.into_iter().find(|status| status.pool.name == name);
    Ok(Json(found.ok_or_else(gone)?))
}

/// Creates a pool.
#[utoipa::path(post, path = "/v1/pools", tag = "pools", params(DryRun), request_body = PoolCreate,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn create(
    change: Change,
    State(state): State<ApiState>,
    Input(mut request): Input<Value>,
) -> Answer<ApplyReport> {
    if let Some(settings) = request.get_mut("settings") {
        state.fill_defaults(settings);
    }
    let request: PoolCreate = read(request.to_string().as_bytes())?;
    state.command(change, Command::CreatePool(request)).await
}

/// Changes a pool's settings, while its VMs run.
#[utoipa::path(patch, path = "/v1/pools/{name}", tag = "pools", request_body = PoolPatch,
    params(("name" = String, Path, description = "The pool"), DryRun),
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn change(
    change: Change,
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Input(mut patch): Input<Value>,
) -> Answer<ApplyReport> {
    state.fill_defaults(&mut patch);
    let patch: PoolPatch = read(patch.to_string().as_bytes())?;
    state
        .command(change, Command::SetPool { name, patch })
        .await
}

/// Deletes a pool that has no VMs; its GPUs become free.
#[utoipa::path(delete, path = "/v1/pools/{name}", tag = "pools",
    params(("name" = String, Path, description = "The pool"), DryRun),
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn delete(
    change: Change,
    State(state): State<ApiState>,
    Path(name): Path<String>,
) -> Answer<ApplyReport> {
    state.command(change, Command::DeletePool { name }).await
}

/// Shows the weights of the classes: the host's, and those of pools that have their own.
#[utoipa::path(get, path = "/v1/weights", tag = "pools",
    responses((status = 200, body = WeightsReport), (status = "4XX", body = ErrorBody)))]
pub(super) async fn weights(_: Reader, State(state): State<ApiState>) -> Json<WeightsReport> {
    let catalog = state.admin.store().catalog();
    let own = |pool: &crate::model::PoolRecord| Some((pool.name.clone(), pool.settings.weights?));
    Json(WeightsReport {
        host: catalog.host_weights,
        pools: catalog.pools.values().filter_map(own).collect(),
    })
}

/// Changes weights of the host or of one pool, while VMs run.
#[utoipa::path(put, path = "/v1/weights", tag = "pools",
    params(DryRun), request_body = WeightsPatch,
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn set_weights(
    change: Change,
    State(state): State<ApiState>,
    Input(patch): Input<WeightsPatch>,
) -> Answer<ApplyReport> {
    state.command(change, Command::SetWeights(patch)).await
}

impl ApiState {
    /// Replaces each `null` among the settings of a pool by the default of the configuration. A
    /// pool without weights of its own uses those of the host, so `null` stays there.
    fn fill_defaults(&self, settings: &mut Value) {
        let Some(fields) = settings.as_object_mut() else {
            return;
        };
        let defaults = self.admin.config().borrow().defaults.pool_settings();
        let Ok(defaults) = serde_json::to_value(defaults) else {
            return;
        };
        let numbers = POOL_SETTINGS.iter().filter(|row| row.unit != Unit::Weights);
        for setting in numbers {
            if let Some(value) = fields.get_mut(setting.name).filter(|value| value.is_null()) {
                *value = defaults[setting.name].clone();
            }
        }
    }
}
