//! An error as an answer of HTTP.

use api::{ApiError, ErrorBody, ErrorCode, VERSION};
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;

use super::body;

/// An error that becomes an answer.
pub(super) struct Refusal(ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let supported_versions = match self.0.code {
            ErrorCode::UnknownVersion | ErrorCode::NotFound => vec![VERSION.to_owned()],
            ErrorCode::InvalidBody
            | ErrorCode::InvalidField
            | ErrorCode::PeerNotRoot
            | ErrorCode::MethodNotAllowed
            | ErrorCode::Timeout
            | ErrorCode::OwnerConflict
            | ErrorCode::SecondInterface
            | ErrorCode::AddressInUse
            | ErrorCode::AddressOfHost
            | ErrorCode::BodyTooLarge
            | ErrorCode::AddressNotOwned
            | ErrorCode::EniExcluded
            | ErrorCode::EniNotReady
            | ErrorCode::SetUpFailed
            | ErrorCode::PoolUnknown
            | ErrorCode::PoolExhausted
            | ErrorCode::PoolNotReady
            | ErrorCode::AddressCoolingDown
            | ErrorCode::UnknownEndpoint
            | ErrorCode::UnknownLease
            | ErrorCode::EndpointExists
            | ErrorCode::NotReady
            | ErrorCode::StateNotWritten
            | ErrorCode::Internal
            | ErrorCode::Unknown => Vec::new(),
        };
        let status = status(self.0.code);
        let body = ErrorBody {
            error: self.0,
            supported_versions,
        };
        body::answer(status, &body)
    }
}

/// The HTTP status that goes with a code.
fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::InvalidBody | ErrorCode::InvalidField => StatusCode::BAD_REQUEST,
        ErrorCode::PeerNotRoot => StatusCode::FORBIDDEN,
        ErrorCode::NotFound
        | ErrorCode::UnknownVersion
        | ErrorCode::UnknownEndpoint
        | ErrorCode::UnknownLease => StatusCode::NOT_FOUND,
        ErrorCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        ErrorCode::Timeout => StatusCode::REQUEST_TIMEOUT,
        ErrorCode::OwnerConflict
        | ErrorCode::SecondInterface
        | ErrorCode::AddressInUse
        | ErrorCode::AddressOfHost
        | ErrorCode::AddressCoolingDown
        | ErrorCode::EndpointExists => StatusCode::CONFLICT,
        ErrorCode::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::AddressNotOwned
        | ErrorCode::EniExcluded
        | ErrorCode::EniNotReady
        | ErrorCode::PoolUnknown => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorCode::NotReady
        | ErrorCode::PoolExhausted
        | ErrorCode::PoolNotReady
        | ErrorCode::StateNotWritten => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::SetUpFailed | ErrorCode::Internal | ErrorCode::Unknown => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}
