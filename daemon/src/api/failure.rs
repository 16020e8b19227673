//! Failures as HTTP responses.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use vgpu_api::{ErrorBody, ErrorCode, ErrorDetail, GpuSource};

use crate::mediation::{CheckFound, GpuCheck, MediationError};
use crate::model::GpuRecord;
use crate::store::command::refuse;

/// A response that reports a failure.
#[derive(Debug)]
pub(super) struct Failure(pub(super) ErrorDetail);

impl From<ErrorDetail> for Failure {
    fn from(detail: ErrorDetail) -> Self {
        Self(detail)
    }
}

impl Failure {
    pub(super) fn new(
        code: ErrorCode,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self(refuse(code, message, hint))
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message, "")
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = self.0.code;
        let status =
            StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(ErrorBody { error: self.0 })).into_response();
        let headers = response.headers_mut();
        match code {
            ErrorCode::Unauthenticated => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ErrorCode::RateLimited => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// The error of a command whose task panicked or was cancelled.
pub(super) fn broke_off(error: &tokio::task::JoinError) -> ErrorDetail {
    let message = format!("The command broke off: {error}.");
    refuse(ErrorCode::Internal, message, "The daemon's log says more.")
}

/// Converts a failure of the mediation to an error for administrators.
pub(super) fn of_mediation(error: &MediationError) -> ErrorDetail {
    match error {
        MediationError::NoSession(id) => refuse(
            ErrorCode::SessionNotFound,
            format!("No session {id} is open."),
            "`vgpu-admin session list` shows those that are.",
        ),
        MediationError::NoGpu(uuid) => refuse(
            ErrorCode::GpuNotFound,
            format!("The mediation knows no GPU {uuid}."),
            "Look with `vgpu-admin scan-gpus`.",
        ),
        MediationError::Probe(what) => refuse(
            ErrorCode::ScanFailed,
            format!("The GPU probe failed: {what}."),
            "Nothing was changed. The daemon's log and `vgpu-admin doctor` say more.",
        ),
        MediationError::Draining => refuse(
            ErrorCode::Draining,
            "The daemon is stopping.",
            "Nothing more is changed.",
        ),
        MediationError::Failed(what) => refuse(
            ErrorCode::Internal,
            format!("The mediation failed: {what}."),
            "The daemon's log says more.",
        ),
    }
}

/// The answer to `gpu resume` of a GPU whose check did not pass.
pub(super) fn not_resumed(gpu: &GpuRecord, check: &GpuCheck) -> ErrorDetail {
    let way_out = match (check.found, gpu.seen.source) {
        (CheckFound::MemoryFull, _) => {
            "Programs hold the memory of the GPU: end some of them (`vgpu-admin session list`), then try again."
        }
        (CheckFound::WorkerLeft, _) => {
            "Try again when the process has ended. If the process never ends, reboot the host."
        }
        (CheckFound::HostFull, _) => {
            "The host has no free process numbers or no memory: look at what runs there, then try again."
        }
        (_, GpuSource::Soft) => "It is a software device: look at vgpud's log, then try again.",
        (_, GpuSource::Nvml | GpuSource::Sysfs) => {
            "Reset the GPU (`nvidia-smi --gpu-reset`) or reboot the host, then try again."
        }
    };
    let outcome = match check.found.is_about_the_gpu() {
        true => "failed its check",
        false => "could not be checked",
    };
    let what = format!("GPU {} {outcome}: {}", gpu.gpu_id, check.message);
    refuse(ErrorCode::GpuUnusable, what, way_out)
}
