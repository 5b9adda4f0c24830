//! Failures of a request that writes, as the writer has to act on them.

use std::time::Duration;

use crate::retry;

/// The outcome of a write that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing was written: the object has another version, or there is one already (409).
    Conflict,
    /// Nothing was written: there is no such object (404).
    Absent,
    /// Nothing was written: the server is too busy, and wants to be left alone for this long (429).
    Busy(Duration),
    /// Nothing was written: the server refuses it (any other 4xx).
    Refused,
    /// The server may have written it: no answer, or an error of the server.
    Unknown,
}

impl From<&kube::Error> for Failure {
    fn from(error: &kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self::Unknown;
        };
        match status.code {
            404 => Self::Absent,
            409 => Self::Conflict,
            429 => Self::Busy(retry::requested(error).unwrap_or_default()),
            400..=499 => Self::Refused,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_refusal_shows_that_nothing_was_written() {
        let of = |code: u16| {
            let details = json!({"retryAfterSeconds": 7});
            let status = json!({"code": code, "details": details});
            let error = kube::Error::Api(serde_json::from_value(status).unwrap());
            Failure::from(&error)
        };
        assert_eq!(of(404), Failure::Absent);
        assert_eq!(of(409), Failure::Conflict);
        assert_eq!(of(429), Failure::Busy(Duration::from_secs(7)));
        for code in [400, 401, 403, 422] {
            assert_eq!(of(code), Failure::Refused, "{code}");
        }
        for code in [500, 502, 503, 504] {
            assert_eq!(of(code), Failure::Unknown, "{code}");
        }
        let late = kube::Error::Service("no answer within 10s".into());
        assert_eq!(Failure::from(&late), Failure::Unknown);
    }
}
