//! A server that plays answers and records requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::Client;

/// The parameters of a request.
pub(super) type Form = BTreeMap<String, String>;

/// An answer.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// A status and a body.
    Body(u16, String),
    /// The half of a body, after which the connection ends.
    Cut(String),
    /// No answer; the connection stays.
    Silence,
    /// No answer; the connection ends.
    Close,
}

/// A server, and the requests that it got.
pub(super) struct Played {
    endpoint: String,
    requests: Arc<Mutex<Vec<Form>>>,
}

impl Reply {
    /// The answer of a call that went through.
    pub(super) fn ok(call: &str, content: &str) -> Self {
        Self::Body(
            200,
            format!(
                r#"<?xml version="1.0" encoding="UTF-8"?>
                <{call}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
                <requestId>8f7724cf-496f-496e-8fe3-example</requestId>{content}</{call}Response>"#
            ),
        )
    }

    /// A refusal.
    pub(super) fn error(status: u16, code: &str, message: &str) -> Self {
        Self::Body(
            status,
            format!(
                r#"<?xml version="1.0" encoding="UTF-8"?>
                <Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error>
                </Errors><RequestID>ea966190-f9aa-478e-9ede-example</RequestID></Response>"#
            ),
        )
    }
}

impl Played {
    /// A server that gives these answers, one a request, and then none.
    pub(super) async fn new(replies: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::default();
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            let replies = Arc::new(Mutex::new(replies.into_iter()));
            while let Ok((stream, _)) = listener.accept().await {
                let (replies, seen) = (Arc::clone(&replies), Arc::clone(&seen));
                tokio::spawn(async move {
                    let next = || replies.lock().unwrap().next().unwrap_or(Reply::Close);
                    serve(stream, next, &seen).await
                });
            }
        });
        Self { endpoint, requests }
    }

    /// A client of the server.
    pub(super) fn client(&self) -> Client {
        super::client(&self.endpoint, Duration::from_secs(5))
    }

    /// A client of the server that waits no longer than that.
    pub(super) fn hasty(&self, limit: Duration) -> Client {
        super::client(&self.endpoint, limit)
    }

    /// The requests so far.
    pub(super) fn requests(&self) -> Vec<Form> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    mut next: impl FnMut() -> Reply,
    seen: &Mutex<Vec<Form>>,
) -> std::io::Result<()> {
    while let Some(form) = request(&mut stream).await? {
        seen.lock().unwrap().push(form);
        match next() {
            Reply::Body(status, body) => {
                stream.write_all(&head(status, body.len())).await?;
                stream.write_all(body.as_bytes()).await?;
            }
            Reply::Cut(body) => {
                stream.write_all(&head(200, body.len())).await?;
                let half = body.as_bytes().get(..body.len() / 2).unwrap_or_default();
                return stream.write_all(half).await;
            }
            Reply::Silence => std::future::pending().await,
            Reply::Close => return Ok(()),
        }
    }
    Ok(())
}

fn head(status: u16, length: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} Played\r\ncontent-type: text/xml\r\ncontent-length: {length}\r\n\r\n"
    )
    .into_bytes()
}

async fn request(stream: &mut TcpStream) -> std::io::Result<Option<Form>> {
    let mut text = Vec::new();
    let body = loop {
        if let Some(at) = text.windows(4).position(|it| it == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&text[..at]).to_lowercase();
            let length = head
                .lines()
                .find_map(|it| it.strip_prefix("content-length: "));
            let end = at + 4 + length.map_or(0, |it| it.parse().unwrap());
            if text.len() >= end {
                break text[at + 4..end].to_vec();
            }
        }
        if stream.read_buf(&mut text).await? == 0 {
            return Ok(None);
        }
    };
    let form = form_urlencoded::parse(&body).into_owned();
    Ok(Some(form.collect()))
}
