//! The scheduler's decisions: the explanation for one VM, and the decision log.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body_util::channel::{Channel, Sender};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use vgpu_api::{ErrorBody, ErrorCode, Explain};
use vgpu_sched::log::View;

use super::super::auth::{Access, Caller};
use super::super::explain;
use super::super::extract::Reader;
use super::super::failure::Failure;
use super::ApiState;
use crate::views::shut_sentences;

/// Approximate bytes per chunk of the log.
const PIECE: usize = 64 * 1024;
/// Chunks that are written ahead for a slow reader.
const AHEAD: usize = 4;
/// A reader that takes nothing for this time is disconnected.
const STALLED: Duration = Duration::from_secs(30);

/// A caller that may change things. Readers do not get the log, because it shows when and how much
/// each VM worked.
pub(super) struct Administrator;

impl<S: Send + Sync> FromRequestParts<S> for Administrator {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        let caller = parts.extensions.get::<Caller>();
        if caller.is_some_and(|caller| caller.access >= Access::Write) {
            return Ok(Self);
        }
        Err(Failure::new(
            ErrorCode::PermissionDenied,
            "The decision log is for administrators.",
            "It needs root, a member of the group that admin.write_group names (vgpu-admin), or a \
             `write` token.",
        ))
    }
}

/// Explains why a VM waits (or does not), and how long the VM waits at most.
#[utoipa::path(get, path = "/v1/vms/{vm_id}/explain", tag = "vms",
    params(("vm_id" = u32, Path, description = "Number of the VM")),
    responses((status = 200, body = Explain), (status = "default", body = ErrorBody)))]
pub(super) async fn explain_vm(
    _: Reader,
    State(state): State<ApiState>,
    Path(vm_id): Path<String>,
) -> Result<Json<Explain>, Failure> {
    let vm_id = vm_id
        .parse()
        .map_err(|_| Failure::invalid(format!("{vm_id:?} is not the number of a VM.")))?;
    let catalog = state.admin.store().catalog();
    let record = catalog.vm(vm_id)?;
    let explained = state.admin.explain(vm_id).await?;
    let world = state.admin.world().await;
    let (vm, limits) = (world.vm(record), world.limits(record));
    let mut shut = world.snapshot.listener_problems;
    shut.retain(|problem| problem.vm_id == vm_id);
    // Without a CID and without a working socket no program can connect.
    let closed = shut.iter().filter(|problem| !problem.listens).count();
    let cut_off = vm.cid.is_none() && closed >= vm.socket_paths.len();
    let mut answer = explain::view(&catalog, record, &explained, cut_off);
    let next = explain::next_program(&limits, &vm, explained.explanation.pinned_room);
    for sentence in next.into_iter().chain(shut_sentences(&shut)) {
        answer.summary.push(' ');
        answer.summary.push_str(&sentence);
    }
    Ok(Json(answer))
}

/// Dumps the scheduler's decision log: one JSON value per line. `vgpu-sim replay` repeats the
/// decisions.
#[utoipa::path(get, path = "/v1/sched/log", tag = "host",
    responses((status = 200, content_type = "application/x-ndjson", body = String),
        (status = "default", body = ErrorBody)))]
pub(super) async fn log(
    _: Administrator,
    State(state): State<ApiState>,
) -> Result<Response, Failure> {
    let permit = state.dumps.clone().try_acquire_owned().map_err(|_| {
        Failure::new(
            ErrorCode::RateLimited,
            "The decision log is being read already.",
            "Try again when that is done.",
        )
    })?;
    let view = state.admin.sched_log().await?;
    let (sender, body) = Channel::<Bytes, Infallible>::new(AHEAD);
    let (pieces, written) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || write(&view, &pieces, permit));
    tokio::spawn(send(written, sender));
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Writes the log as text, at the speed of the reader. An incomplete log has no end line, which
/// every reader checks.
fn write(view: &View, pieces: &mpsc::Sender<Bytes>, _permit: OwnedSemaphorePermit) {
    let mut piece = String::with_capacity(PIECE + PIECE / 8);
    for line in view.lines() {
        match line {
            Ok(line) => piece.push_str(&line),
            Err(error) => {
                tracing::error!("the decision log cannot be written: {error}");
                return;
            }
        }
        piece.push('\n');
        if piece.len() >= PIECE {
            let full = std::mem::replace(&mut piece, String::with_capacity(PIECE + PIECE / 8));
            if pieces.blocking_send(Bytes::from(full)).is_err() {
                return;
            }
        }
    }
    let _ = pieces.blocking_send(Bytes::from(piece));
}

async fn send(mut pieces: mpsc::Receiver<Bytes>, mut body: Sender<Bytes, Infallible>) {
    while let Some(piece) = pieces.recv().await {
        let sent = tokio::time::timeout(STALLED, body.send_data(piece)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}
