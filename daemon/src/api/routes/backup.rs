//! Backup and restore of the whole database as a file.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body_util::BodyExt;
use http_body_util::channel::Channel;
use vgpu_api::{ApplyReport, ErrorBody, ErrorCode};

use super::super::extract::{Change, DryRun, Writer};
use super::super::failure::Failure;
use super::ApiState;

const MEDIA_TYPE: &str = "application/vnd.sqlite3";
/// Bytes per chunk of the file.
const PIECE: usize = 64 * 1024;
/// Chunks that are read ahead for a slow reader.
const AHEAD: usize = 4;
/// A caller that receives or sends nothing for this time is disconnected.
const STALLED: Duration = Duration::from_secs(30);
/// Largest accepted backup, in bytes. Ten million events take less.
const MOST: u64 = 4 << 30;

/// Returns a copy of the whole state database as an SQLite file. Needs the right to change things.
#[utoipa::path(get, path = "/v1/backup", tag = "host",
    responses((status = 200, content_type = "application/vnd.sqlite3", body = String),
        (status = "default", body = ErrorBody)))]
pub(super) async fn save(_: Writer, State(state): State<ApiState>) -> Result<Response, Failure> {
    let mut file = state.admin.store().backup().await?;
    let length = file.metadata().map_err(|error| unreadable(&error))?.len();
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(AHEAD);
    tokio::spawn(async move {
        loop {
            let (piece, rest) = match tokio::task::spawn_blocking(|| read(file)).await {
                Ok(Ok((piece, rest))) if !piece.is_empty() => (piece, rest),
                // The end of the file, or a failed read. After a failed read the caller gets fewer
                // bytes than announced.
                _ => return,
            };
            file = rest;
            let sent = tokio::time::timeout(STALLED, sender.send_data(piece)).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
    });
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    headers.insert(header::CONTENT_LENGTH, length.into());
    Ok(response)
}

fn read(mut file: File) -> std::io::Result<(Bytes, File)> {
    let mut piece = Vec::with_capacity(PIECE);
    (&mut file).take(PIECE as u64).read_to_end(&mut piece)?;
    Ok((piece.into(), file))
}

/// Replaces the present configuration with that of a backup, while guests run. A session ends if
/// the backup does not have its VM, has the VM in another pool or as another registration, or if
/// the session's GPU leaves the pool.
#[utoipa::path(post, path = "/v1/restore", tag = "host", params(DryRun),
    request_body(content = String, content_type = "application/vnd.sqlite3"),
    responses((status = 200, body = ApplyReport), (status = "default", body = ErrorBody)))]
pub(super) async fn restore(
    change: Change,
    State(state): State<ApiState>,
    mut body: Body,
) -> Result<Json<ApplyReport>, Failure> {
    let _turn = state.restores.clone().try_acquire_owned().map_err(|_| {
        Failure::new(
            ErrorCode::RateLimited,
            "Another backup is being restored.",
            "Try again when that is done.",
        )
    })?;
    let announced = body.size_hint().exact().unwrap_or(0);
    if announced > MOST {
        return Err(too_large());
    }
    let store = state.admin.store().clone();
    let made = off_the_runtime(move || store.incoming(announced)).await?;
    let (incoming, mut file) = made.map_err(|what| unwritable(&what))?;
    let mut length = 0;
    loop {
        let frame = tokio::time::timeout(STALLED, body.frame()).await;
        let frame = frame.map_err(|_| cut_off())?;
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|_| cut_off())?.into_data() else {
            continue;
        };
        length += data.len() as u64;
        if length > MOST {
            return Err(too_large());
        }
        let written = off_the_runtime(move || file.write_all(&data).map(|()| file)).await?;
        file = written.map_err(|error| unwritable(&error.to_string()))?;
    }
    drop(file);
    let report = state
        .admin
        .restore(change.caller.actor(), incoming, change.dry_run)
        .await?;
    Ok(Json(report))
}

fn cut_off() -> Failure {
    Failure::invalid("The file was not sent whole. Nothing was changed.")
}

fn unreadable(error: &std::io::Error) -> Failure {
    Failure::new(
        ErrorCode::Internal,
        format!("The copy cannot be read: {error}."),
        "",
    )
}

fn too_large() -> Failure {
    let message = format!("The file is larger than {} GiB.", MOST >> 30);
    Failure::new(ErrorCode::RequestTooLarge, message, "")
}

fn unwritable(what: &str) -> Failure {
    Failure::new(
        ErrorCode::StoreUnwritable,
        format!("The file cannot be kept beside the state database: {what}."),
        "Nothing was changed. It needs as much space as the file has; free some and try again.",
    )
}

/// Runs blocking work that waits for the disk.
async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string(), ""))
}
