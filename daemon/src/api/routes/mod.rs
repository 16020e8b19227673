//! One function per route. `docs/openapi.json` is generated from their annotations, and a test
//! compares the two.

mod backup;
mod events;
mod gpus;
mod host;
mod pools;
mod sched;
mod sessions;
mod usage;
mod vms;

use std::sync::Arc;

use axum::Router;
use tokio::sync::Semaphore;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use vgpu_api::ErrorCode;

use super::failure::Failure;
use super::service::Admin;

/// Most followers of the event stream at the same time: each keeps a connection.
const FOLLOWERS: usize = 32;

/// Most readers of the decision log at the same time: each keeps a view of the log in memory.
const DUMPS: usize = 2;

#[derive(Clone)]
pub(super) struct ApiState {
    pub(super) admin: Arc<Admin>,
    pub(super) followers: Arc<Semaphore>,
    pub(super) dumps: Arc<Semaphore>,
    pub(super) restores: Arc<Semaphore>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "vgpud admin API",
        description = "Administration of a vGPU host: GPUs, pools, VMs, sessions, events. Served on \
                       /run/vgpu/admin.sock (looking: group vgpu; changing: root or group \
                       vgpu-admin), and on TCP with bearer tokens where that is configured. Every \
                       failure is an ErrorBody. A command may carry an `Idempotency-Key` header; \
                       repeated under the same key it is answered as the first time.",
        license(name = "MIT OR Apache-2.0")
    ),
    components(schemas(vgpu_api::ErrorBody))
)]
struct Document;

fn documented() -> OpenApiRouter<ApiState> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(gpus::list))
        .routes(routes!(gpus::scan))
        .routes(routes!(gpus::show, gpus::forget))
        .routes(routes!(gpus::check))
        .routes(routes!(gpus::resume))
        .routes(routes!(gpus::drain))
        .routes(routes!(gpus::assignments, gpus::assign))
        .routes(routes!(gpus::unassign))
        .routes(routes!(pools::list, pools::create))
        .routes(routes!(pools::show, pools::change, pools::delete))
        .routes(routes!(pools::weights, pools::set_weights))
        .routes(routes!(
            vms::list,
            vms::register,
            vms::change,
            vms::unregister
        ))
        .routes(routes!(vms::move_to))
        .routes(routes!(vms::quarantine))
        .routes(routes!(vms::release))
        .routes(routes!(vms::show))
        .routes(routes!(sched::explain_vm))
        .routes(routes!(usage::export))
        .routes(routes!(usage::reset))
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::show))
        .routes(routes!(sessions::kill))
        .routes(routes!(events::list))
        .routes(routes!(events::stream))
        .routes(routes!(events::audit))
        .routes(routes!(sched::log))
        .routes(routes!(host::status))
        .routes(routes!(host::doctor))
        .routes(routes!(host::reload))
        .routes(routes!(backup::save))
        .routes(routes!(backup::restore))
        .routes(routes!(host::document))
        .routes(routes!(host::metrics))
        .routes(routes!(host::healthz))
}

/// The OpenAPI description, generated from the handlers.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    documented().into_openapi()
}

/// The description as in `docs/openapi.json`.
///
/// # Errors
/// If the description cannot be written as JSON.
pub fn openapi_json() -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&openapi()).map(|text| text + "\n")
}

/// The router without access control.
pub(super) fn router(admin: Arc<Admin>) -> Router {
    let state = ApiState {
        admin,
        followers: Arc::new(Semaphore::new(FOLLOWERS)),
        dumps: Arc::new(Semaphore::new(DUMPS)),
        // All restores write to the same file.
        restores: Arc::new(Semaphore::new(1)),
    };
    let (router, _) = documented().split_for_parts();
    router
        .fallback(|| async {
            Failure::new(
                ErrorCode::RouteNotFound,
                "There is no such route.",
                "GET /v1/openapi.json lists them.",
            )
        })
        .method_not_allowed_fallback(|| async {
            Failure::new(
                ErrorCode::MethodNotAllowed,
                "The route exists, but not with this method.",
                "GET /v1/openapi.json lists them.",
            )
        })
        .with_state(state)
}
