//! Extractors of the handlers, with error messages of vgpud.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;
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
        read(text).map(Input)
    }
}

/// Reads a JSON body.
pub(super) fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, Failure> {
    let read = serde_json::from_slice(text);
    read.map_err(|error| Failure::invalid(unreadable(text, &error)))
}

/// Describes a body that does not fit the request. serde names no field if a value has the wrong
/// type.
fn unreadable(text: &[u8], error: &serde_json::Error) -> String {
    let said = in_words(&error.to_string());
    let typed = error.is_data() && said.starts_with("invalid ");
    match field_before(text, error).filter(|_| typed) {
        Some(field) => format!("The request is not right: {field}: {said}."),
        None => format!("The request is not right: {said}."),
    }
}

/// Returns the last field name before the position of the error.
fn field_before(text: &[u8], error: &serde_json::Error) -> Option<String> {
    let before = error.line().saturating_sub(1);
    let line: usize = text
        .split_inclusive(|byte| *byte == b'\n')
        .take(before)
        .map(<[u8]>::len)
        .sum();
    let read = text.get(..line + error.column()).unwrap_or(text);
    let read = String::from_utf8_lossy(read);
    let colons = read.rmatch_indices(':');
    let names = colons.filter_map(|(at, _)| {
        let name = read[..at].trim_end().strip_suffix('"')?;
        let name = name.rsplit('"').next()?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        (!name.is_empty() && name.chars().all(plain)).then(|| name.to_owned())
    });
    names.into_iter().next()
}

/// Replaces Rust's words for numbers by plain words.
fn in_words(said: &str) -> String {
    let mut said = said.replace("invalid digit found in string", "not a whole number");
    for number in ["u64", "u32", "u16"] {
        said = said.replace(
            &format!("expected {number}"),
            "expected a whole number in the range of the field",
        );
    }
    said
}

/// The query parameters of a request.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        Query::from_request_parts(parts, state)
            .await
            .map(|Query(params)| Params(params))
            .map_err(|rejection| Failure::invalid(in_words(&rejection.body_text())))
    }
}

/// A caller that may read.
pub(super) struct Reader;

/// A caller that may change things.
pub(super) struct Writer {
    pub(super) caller: Caller,
    pub(super) key: Option<String>,
}

/// A caller that may change things, or wants to know what would change.
pub(super) struct Change {
    pub(super) caller: Caller,
    pub(super) key: Option<String>,
    pub(super) dry_run: bool,
}

/// The parameter of a command.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DryRun {
    /// `true`: change nothing, and say what the command would do and which sessions would end.
    dry_run: Option<bool>,
}

impl<S: Send + Sync> FromRequestParts<S> for Reader {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        permitted(parts, Access::Read).map(|_| Self)
    }
}

/// The caller and the idempotency key of a change.
fn change(parts: &Parts) -> Result<(Caller, Option<String>), Failure> {
    let caller = permitted(parts, Access::Write)?;
    let Some(value) = parts.headers.get(IDEMPOTENCY_HEADER) else {
        return Ok((caller, None));
    };
    let key = value.to_str().ok();
    let key = key.filter(|key| (1..=KEY_LEN).contains(&key.len()));
    let refused = || {
        Failure::invalid(format!(
            "{IDEMPOTENCY_HEADER} must be 1 to {KEY_LEN} visible characters."
        ))
    };
    Ok((caller, Some(key.ok_or_else(refused)?.to_owned())))
}

impl<S: Send + Sync> FromRequestParts<S> for Writer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        let (caller, key) = change(parts)?;
        // A parameter that is not read must not be taken for a dry run.
        match parts.uri.query() {
            None | Some("") => Ok(Self { caller, key }),
            Some(_) => Err(Failure::invalid(
                "This request takes no parameters in its address, not even `dry_run`.",
            )),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Change {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let Params(DryRun { dry_run }) = Params::from_request_parts(parts, state).await?;
        let (caller, key) = change(parts)?;
        let dry_run = dry_run.unwrap_or(false);
        Ok(Self {
            caller,
            key,
            dry_run,
        })
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

#[cfg(test)]
mod tests {
    use vgpu_api::{PoolCreate, PoolPatch};

    use super::*;

    fn said<T: DeserializeOwned>(text: &str) -> String {
        let error = serde_json::from_str::<T>(text).err().expect("it is wrong");
        unreadable(text.as_bytes(), &error)
    }

    #[test]
    fn a_value_of_a_wrong_type_is_refused_with_its_field() {
        assert_eq!(
            said::<PoolPatch>(r#"{"weight": 5, "slice_us": null}"#),
            "The request is not right: slice_us: invalid type: null, expected a whole number in the \
             range of the field at line 1 column 30."
        );
        let nested = "{\"name\": \"A\",\n \"settings\": {\"weight\": \"x: y\", \"slice_us\": 5}}";
        let refused = said::<PoolCreate>(nested);
        assert!(refused.contains("right: weight: invalid type"), "{refused}");
        let refused = said::<PoolPatch>(r#"{"weights": {"low": -1}}"#);
        assert!(refused.contains("right: low: invalid value"), "{refused}");
        for text in ["{", "[", "\"é\":", "5", r#"{"a":"#] {
            assert!(said::<PoolPatch>(text).starts_with("The request is not right: "));
        }
        let refused = said::<PoolPatch>(r#"{"slize": 1}"#);
        assert!(
            refused.contains("right: unknown field `slize`"),
            "{refused}"
        );
    }
}
