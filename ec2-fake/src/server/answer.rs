//! One request and its answer.

use std::io;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};
use jiff::Timestamp;

use super::body::Sent;
use super::fake::Fake;
use super::signature::{Authorization, Scope, Signed};
use crate::error::{Failure, Result};
use crate::fault::Delivery;
use crate::server::wire;

/// Bytes of a request's body; a call with 1,000 ids has 50,000.
const LONGEST_BODY: usize = 1 << 20;

/// An answer that is ready to be sent.
struct Written {
    status: u16,
    body: Vec<u8>,
    delivery: Delivery,
}

/// Answers a request. An error ends the connection without an answer.
pub(super) async fn answer(fake: &Fake, request: Request<Incoming>) -> io::Result<Response<Sent>> {
    let id = fake.request_id();
    let (head, body) = request.into_parts();
    let head = Request::from_parts(head, ());
    let called = match Limited::new(body, LONGEST_BODY).collect().await {
        Ok(body) => called(fake, &head, &body.to_bytes(), &id)?,
        Err(error) => Err(Failure::new(
            "MalformedQueryString",
            format!("the request's body: {error}"),
        )),
    };
    let written = match called {
        Ok(written) => written,
        Err(failure) => {
            let written = refused(&failure, &id)?;
            fake.note_refusal(failure);
            written
        }
    };
    let body = match written.delivery {
        Delivery::Lost => return Err(io::ErrorKind::ConnectionAborted.into()),
        Delivery::Late(millis) => {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Sent::whole(written.body)
        }
        Delivery::Cut => Sent::half(written.body),
        Delivery::Garbage => Sent::whole(b"<html>Bad Gateway</html>".to_vec()),
        Delivery::Whole => Sent::whole(written.body),
    };
    let response = Response::builder()
        .status(written.status)
        .header(CONTENT_TYPE, "text/xml;charset=UTF-8")
        .header("x-amzn-requestid", id);
    response.body(body).map_err(io::Error::other)
}

/// Makes the call that a request stands for. A failure is a request that stands for none.
fn called(fake: &Fake, head: &Request<()>, body: &[u8], id: &str) -> io::Result<Result<Written>> {
    let read = || {
        let caller = caller(fake, head, body)?;
        let form = if head.method() == Method::GET {
            head.uri().query().unwrap_or_default().as_bytes()
        } else {
            body
        };
        Ok((caller, wire::request(form)?))
    };
    let (caller, request) = match read() {
        Ok(read) => read,
        Err(failure) => return Ok(Err(failure)),
    };
    fake.with(|cloud, now| {
        let reply = cloud.call(now, &caller, &request);
        let written = match &reply.outcome {
            Ok(answer) => Written {
                status: StatusCode::OK.as_u16(),
                body: wire::answer(cloud, &request.call, answer, id)?,
                delivery: Delivery::Whole,
            },
            Err(failure) => refused(failure, id)?,
        };
        Ok(Ok(Written {
            delivery: reply.delivery,
            ..written
        }))
    })
}

/// The access key of a request's caller. If the world names no principal, any caller is accepted,
/// and signatures are not checked.
fn caller(fake: &Fake, head: &Request<()>, body: &[u8]) -> Result<String> {
    let (method, path) = (head.method(), head.uri().path());
    if ![Method::GET, Method::POST].contains(method) || path != "/" {
        return Err(Failure::new(
            "UnsupportedOperation",
            format!("{method} {path}: expected GET or POST of /"),
        ));
    }
    let authorization = Authorization::read(head.headers());
    fake.peek(|cloud| {
        if cloud.has_no_principals() {
            return Ok(authorization.map_or_else(|_| String::new(), |it| it.key));
        }
        let authorization = authorization?;
        let principal = cloud.principal(&authorization.key).ok_or_else(|| {
            Failure::new(
                "AuthFailure",
                "AWS was not able to validate the provided access credentials",
            )
        })?;
        let signed = Signed {
            method,
            query: head.uri().query().unwrap_or_default(),
            headers: head.headers(),
            body,
        };
        let scope = Scope {
            region: cloud.settings().region.clone(),
            service: "ec2",
        };
        authorization.verify(&signed, &principal.secret, &scope, Timestamp::now())?;
        Ok(authorization.key)
    })
}

fn refused(failure: &Failure, id: &str) -> io::Result<Written> {
    Ok(Written {
        status: failure.status(),
        body: wire::failure(failure, id)?,
        delivery: Delivery::Whole,
    })
}
