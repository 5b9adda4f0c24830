//! JSON bodies, in and out, with bounds on size and time.

use std::time::Duration;

use api::{ApiError, ErrorCode};
use axum::body::Body;
use axum::response::Response;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest body that a request may have, in bytes. The largest valid one, those of [`MAX_LIST`] aside,
/// is below 2 KiB.
pub(super) const MAX_BODY: usize = 64 * 1024;
/// Largest body of a request in which a container runtime names all that it runs.
pub(super) const MAX_LIST: usize = 16 << 20;

/// Reads a body that must be one JSON value of type `T`.
///
/// The content type is ignored: the API has only JSON, and `curl --data` names a wrong one.
pub(super) async fn read<T: DeserializeOwned>(body: Body, time: Duration) -> Result<T, ApiError> {
    read_up_to(body, time, MAX_BODY).await
}

/// As [`read`], with another limit.
pub(super) async fn read_up_to<T: DeserializeOwned>(
    body: Body,
    time: Duration,
    most: usize,
) -> Result<T, ApiError> {
    let collected = tokio::time::timeout(time, Limited::new(body, most).collect())
        .await
        .map_err(|_elapsed| {
            ApiError::new(
                ErrorCode::Timeout,
                format!("the body did not arrive within {time:?}"),
            )
        })?;
    let bytes = collected.map_err(|error| {
        if error.is::<LengthLimitError>() {
            ApiError::new(
                ErrorCode::BodyTooLarge,
                format!("the body is larger than {most} bytes"),
            )
        } else {
            ApiError::new(
                ErrorCode::InvalidBody,
                format!("the body did not arrive whole: {error}"),
            )
        }
    })?;
    parse(&bytes.to_bytes())
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        // An unknown part of the path is "?" at its end, and the whole document is ".".
        let path = path.trim_end_matches(['?', '.']);
        let error = ApiError::new(ErrorCode::InvalidBody, error.inner().to_string());
        if path.is_empty() {
            error
        } else {
            error.at(path)
        }
    })?;
    deserializer.end().map_err(|error| {
        ApiError::new(
            ErrorCode::InvalidBody,
            format!("something follows the JSON value: {error}"),
        )
    })?;
    Ok(value)
}

/// An answer with a JSON body that ends in a newline, so that a terminal stays readable.
pub(super) fn answer(status: StatusCode, value: &impl Serialize) -> Response {
    let (status, mut bytes) = match serde_json::to_vec(value) {
        Ok(bytes) => (status, bytes),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            let fallback = br#"{"error":{"code":"internal","message":"the answer is not JSON"}}"#;
            (StatusCode::INTERNAL_SERVER_ERROR, fallback.to_vec())
        }
    };
    bytes.push(b'\n');
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    response
}
