//! Refusals name the server. The client passes on the server's message without its URL. So the URL
//! is added to the `message` of the body, for reads and writes alike.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::{Body, Bytes};
use tower::BoxError;

use super::retry_after::{self, Answer};

/// Hands an answer on, with the server's URL in the message of a refusal.
///
/// # Errors
/// When the body of a refusal cannot be read.
pub(super) async fn named<B>(server: Arc<str>, answer: Response<B>) -> Result<Answer, BoxError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (head, body) = answer.into_parts();
    let is_refused = head.status.is_client_error() || head.status.is_server_error();
    if !is_refused {
        let body = body.map_err(Into::into).boxed_unsync();
        return Ok(Response::from_parts(head, body));
    }
    let body = body.collect().await.map_err(Into::into)?.to_bytes();
    let mut status = retry_after::status(head.status, &body);
    let message = status["message"].as_str().unwrap_or_default().trim();
    status["message"] = if message.is_empty() {
        format!("by {server}").into()
    } else {
        format!("{message} (by {server})").into()
    };
    Ok(retry_after::with_body(head, &status))
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::header::CONTENT_LENGTH;
    use serde_json::{Value, json};

    use super::*;

    const SERVER: &str = "https://10.0.0.1:6443/";

    async fn of(code: u16, body: &str) -> Value {
        let answer = Response::builder()
            .status(code)
            .header(CONTENT_LENGTH, body.len())
            .body(Full::from(body.to_owned()));
        let answer = named(SERVER.into(), answer.unwrap()).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn a_refusal_names_the_server() {
        for code in [401, 403, 404, 409, 422, 429, 500, 503] {
            let body = json!({"code": code, "message": "no", "details": {"name": "a"}});
            let answer = of(code, &body.to_string()).await;
            assert_eq!(answer["message"], format!("no (by {SERVER})"), "{code}");
            assert_eq!(answer["code"], code);
            assert_eq!(answer["details"], json!({"name": "a"}));
        }
    }

    #[tokio::test]
    async fn a_refusal_without_a_status_gets_one() {
        let answer = of(502, "Bad Gateway").await;
        assert_eq!(answer["message"], format!("Bad Gateway (by {SERVER})"));
        assert_eq!(answer["code"], 502);
        let answer = of(401, r#"{"kind":"Status","code":401}"#).await;
        assert_eq!(answer["message"], format!("by {SERVER}"));
    }

    #[tokio::test]
    async fn everything_else_is_as_it_was() {
        let body = json!({"message": "an event"});
        assert_eq!(of(200, &body.to_string()).await, body);
    }
}
