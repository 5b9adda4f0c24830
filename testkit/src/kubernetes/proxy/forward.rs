//! Forwards requests, and passes answers back.

use std::io;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use futures_util::{StreamExt as _, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Full, StreamBody};
use hyper::body::{Bytes, Incoming};
use hyper::header::HOST;
use hyper::http::{request, response};
use hyper::{Request as HttpRequest, Response};
use kube::client::Body;
use serde_json::Value;
use tokio::sync::watch;

use super::rules::Hold;
use super::{Does, Request, Shared, Watches, locked};

/// Answer to a request.
type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// Answers a request by the rules or by the server.
///
/// # Errors
/// When the connection must end.
pub(super) async fn answer(shared: &Shared, request: HttpRequest<Incoming>) -> Result<Answer> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let request = Request {
        method: head.method.clone(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let mut caught = {
        let mut rules = locked(&shared.rules);
        rules.iter_mut().find_map(|rule| rule.catches(&request))
    };
    match &mut caught {
        Some(Does::Answer(code, headers, body)) => {
            shared.note(&request, None);
            return made(*code, headers, body);
        }
        Some(Does::Lose {
            is_forwarded: false,
        }) => {
            shared.note(&request, None);
            bail!("the request is lost");
        }
        Some(Does::Hold(Hold {
            is_forwarded, wait, ..
        })) if !*is_forwarded => {
            if let Err(given_up) = wait.here(&request).await {
                shared.note(&request, None);
                return Err(given_up);
            }
            caught = None;
        }
        None | Some(Does::Lose { is_forwarded: true } | Does::Hold(_)) => {}
    }
    let answer = forward(shared, head, body).await;
    let code = answer.as_ref().map(|answer| answer.status().as_u16());
    shared.note(&request, code.ok());
    match caught {
        Some(Does::Hold(mut hold)) => hold.wait.here(&request).await?,
        Some(Does::Lose { .. }) => bail!("the answer is lost"),
        Some(Does::Answer(..)) | None => {}
    }
    let (head, body) = answer?.into_parts();
    if request.is_watch() {
        return Ok(watched(head, body, shared.watches.subscribe()));
    }
    Ok(Response::from_parts(
        head,
        body.map_err(io::Error::other).boxed_unsync(),
    ))
}

async fn forward(shared: &Shared, head: request::Parts, body: Bytes) -> Result<Response<Body>> {
    let mut request = HttpRequest::from_parts(head, Body::from(body));
    request.headers_mut().remove(HOST);
    if shared.is_strict.load(Ordering::Relaxed) && !request.method().is_safe() {
        let uri = request.uri();
        let separator = if uri.query().is_some() { '&' } else { '?' };
        *request.uri_mut() = format!("{uri}{separator}fieldValidation=Strict").parse()?;
    }
    Ok(shared.client.send(request).await?)
}

/// An answer of the proxy's own.
fn made(code: u16, headers: &[(&'static str, String)], body: &Value) -> Result<Answer> {
    let mut response = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    let body = Full::new(Bytes::from(format!("{body}\n")));
    Ok(response.body(body.map_err(|never| match never {}).boxed_unsync())?)
}

/// Frames of a watch, until the watch is ended or frozen.
fn watched(head: response::Parts, body: Body, mut watches: watch::Receiver<Watches>) -> Answer {
    let begun = *watches.borrow_and_update();
    let state = Some((BodyStream::new(body), watches));
    let frames = stream::unfold(state, move |state| async move {
        let (mut body, mut watches) = state?;
        loop {
            let now = *watches.borrow_and_update();
            if now.ended != begun.ended {
                return Some((Err(io::Error::other("the watch is ended")), None));
            }
            tokio::select! {
                _changed = watches.changed() => {}
                frame = body.next(), if now.frozen == begun.frozen => {
                    let frame = frame?.map_err(io::Error::other);
                    return Some((frame, Some((body, watches))));
                }
            }
        }
    });
    Response::from_parts(head, StreamBody::new(frames).boxed_unsync())
}
