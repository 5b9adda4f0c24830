//! `Retry-After` (RFC 9110 section 10.2.3): the API server, and proxies in front of it, request a
//! wait in a header, but the client passes on only the body. So the seconds are written into the
//! body's `details.retryAfterSeconds`, where the server itself writes them if it has them.

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes};
use hyper::header::{CONTENT_LENGTH, RETRY_AFTER};
use hyper::http::response::Parts;
use hyper::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};
use tower::BoxError;

/// The answer that is handed on.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Hands an answer on, with the seconds that its header has.
///
/// # Errors
/// When the body of one with such a header cannot be read.
pub(crate) async fn with_wait<B>(answer: Response<B>) -> Result<Answer, BoxError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (head, body) = answer.into_parts();
    let Some(seconds) = seconds(head.status, &head.headers) else {
        return Ok(Response::from_parts(
            head,
            body.map_err(Into::into).boxed_unsync(),
        ));
    };
    let body = body.collect().await.map_err(Into::into)?.to_bytes();
    let mut status = status(head.status, &body);
    if !status["details"].is_object() {
        status["details"] = json!({});
    }
    status["details"]["retryAfterSeconds"] = seconds.into();
    Ok(with_body(head, &status))
}

/// An answer with another body than it came with.
pub(super) fn with_body(mut head: Parts, body: &Value) -> Answer {
    // The body has another length now.
    head.headers.remove(CONTENT_LENGTH);
    let body = Full::from(body.to_string()).map_err(|never| match never {});
    Response::from_parts(head, body.boxed_unsync())
}

/// The seconds that a refusal requests. A date is not parsed: no API server sends one.
fn seconds(status: StatusCode, headers: &HeaderMap) -> Option<u32> {
    // After any other refusal the outcome of a write is unknown, and our own pace applies.
    let is_busy = status == StatusCode::TOO_MANY_REQUESTS;
    let value = headers.get(RETRY_AFTER).filter(|_| is_busy)?;
    value.to_str().ok()?.trim().parse().ok()
}

/// The body of a refusal; one that is no `Status` becomes one.
pub(crate) fn status(code: StatusCode, body: &[u8]) -> Value {
    let there = serde_json::from_slice(body).ok().filter(Value::is_object);
    there.unwrap_or_else(|| {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": code.as_u16(), "message": String::from_utf8_lossy(body),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of(code: u16, header: &str, body: &str) -> Value {
        let answer = Response::builder()
            .status(code)
            .header(RETRY_AFTER, header)
            .header(CONTENT_LENGTH, body.len())
            .body(Full::from(body.to_owned()));
        let answer = with_wait(answer.unwrap()).await.unwrap();
        let is_changed = !answer.headers().contains_key(CONTENT_LENGTH);
        let now = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(is_changed, now != body.as_bytes());
        serde_json::from_slice(&now).unwrap_or_default()
    }

    #[tokio::test]
    async fn the_seconds_of_the_header_are_in_the_body() {
        let full = r#"{"kind":"Status","code":429,"details":{"retryAfterSeconds":1,"name":"a"}}"#;
        let answer = of(429, "7", full).await;
        assert_eq!(
            answer["details"],
            json!({"retryAfterSeconds": 7, "name": "a"})
        );
        let bare = of(429, " 3 ", r#"{"kind":"Status","code":429}"#).await;
        assert_eq!(bare["details"], json!({"retryAfterSeconds": 3}));
        let text = of(429, "2", "too busy").await;
        assert_eq!(text["details"]["retryAfterSeconds"], 2);
        assert_eq!(
            (&text["message"], &text["code"]),
            (&json!("too busy"), &json!(429))
        );
    }

    #[tokio::test]
    async fn everything_else_is_as_it_was() {
        for (code, header) in [
            (200, "7"),
            (409, "7"),
            (429, "soon"),
            (429, "-1"),
            (503, "7"),
        ] {
            let answer = of(code, header, r#"{"code":1}"#).await;
            assert_eq!(answer, json!({"code": 1}), "{code} {header:?}");
        }
    }
}
