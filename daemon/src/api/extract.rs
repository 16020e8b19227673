//! Extractors of the handlers, with error messages of vgpud.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use vgpu_api::{ErrorCode, IDEMPOTENCY_HEADER};

use super::auth::{Access, Caller};
use super::failure::Failure;

const KEY_LEN: usize = 128;

/// A JSON body. An empty body counts as an empty object.
pub(super) struct Input<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Input<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| {
                if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
                    Failure::new(
                        ErrorCode::RequestTooLarge,
                        "The request is larger than admin.max_body_bytes.",
                        "",
                    )
                } else {
                    Failure::invalid(format!("The request cannot be read: {rejection}."))
                }
            })?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text)
            .map(Input)
            .map_err(|error| Failure::invalid(format!("The request is not right: {error}.")))
    }
}

/// The query parameters of a request.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        Query::from_request_parts(parts, state)
            .await
            .map(|Query(params)| Params(params))
            .map_err(|rejection| Failure::invalid(rejection.body_text()))
    }
}

/// A caller that may read.
pub(super) struct Reader;

/// A caller that may change things.
pub(super) struct Writer {
    pub(super) caller: Caller,
    pub(super) key: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Reader {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        permitted(parts, Access::Read).map(|_| Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Writer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        let caller = permitted(parts, Access::Write)?;
        let key = match parts.headers.get(IDEMPOTENCY_HEADER) {
            None => None,
            Some(value) => Some(
                value
                    .to_str()
                    .ok()
                    .filter(|key| (1..=KEY_LEN).contains(&key.len()))
                    .ok_or_else(|| {
                        Failure::invalid(format!(
                            "{IDEMPOTENCY_HEADER} must be 1 to {KEY_LEN} visible characters."
                        ))
                    })?
                    .to_owned(),
            ),
        };
        Ok(Self { caller, key })
    }
}

fn permitted(parts: &Parts, needed: Access) -> Result<Caller, Failure> {
    let caller =
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
            Failure::new(ErrorCode::Unauthenticated, "It is not known who asks.", "")
        })?;
    if caller.access >= needed {
        return Ok(caller);
    }
    let (message, hint) = match needed {
        Access::Write => (
            format!("{} may look, but not change anything.", caller.name),
            "Changing needs root, a member of the group that admin.write_group names \
             (vgpu-admin), or a `write` token.",
        ),
        _ => (
            format!("{} may not use the admin API.", caller.name),
            "Looking needs a member of the group that admin.read_group names (vgpu).",
        ),
    };
    Err(Failure::new(ErrorCode::PermissionDenied, message, hint))
}
