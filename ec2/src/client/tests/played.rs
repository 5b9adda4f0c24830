//! A server that plays answers and records requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

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
    /// A token of the instance's metadata.
    Token(&'static str),
    /// No answer; the connection stays.
    Silence,
    /// No answer; the connection ends.
    Close,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Method and target.
    pub(super) line: String,
    /// Headers by their name in lower case.
    pub(super) headers: BTreeMap<String, String>,
    /// The parameters in the body.
    pub(super) form: Form,
}

/// A server, and the requests that it got.
pub(super) struct Played {
    endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
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
        let replies = Mutex::new(replies.into_iter());
        Self::routing(move |_| replies.lock().unwrap().next().unwrap_or(Reply::Close)).await
    }

    /// A server that answers by request.
    pub(super) async fn routing(
        answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(answer, None).await
    }

    /// A server that answers by request, over TLS.
    pub(super) async fn over_tls(
        tls: TlsAcceptor,
        answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start(answer, Some(tls)).await
    }

    async fn start(
        answer: impl Fn(&Request) -> Reply + Send + Sync + 'static,
        tls: Option<TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = tls.as_ref().map_or("http", |_| "https");
        let endpoint = format!("{scheme}://{}", listener.local_addr().unwrap());
        let requests = Arc::default();
        let seen = Arc::clone(&requests);
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => serve(tls.accept(stream).await?, &*answer, &seen).await,
                        None => serve(stream, &*answer, &seen).await,
                    }
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

    /// The server's URL.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The requests so far.
    pub(super) fn seen(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The parameters of the requests so far.
    pub(super) fn requests(&self) -> Vec<Form> {
        self.seen().into_iter().map(|it| it.form).collect()
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: &(impl Fn(&Request) -> Reply + Sync),
    seen: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    while let Some(request) = request(&mut stream).await? {
        let reply = answer(&request);
        seen.lock().unwrap().push(request);
        match reply {
            Reply::Body(status, body) => {
                stream.write_all(&head(status, "", body.len())).await?;
                stream.write_all(body.as_bytes()).await?;
            }
            Reply::Token(token) => {
                let lifetime = "x-aws-ec2-metadata-token-ttl-seconds: 21600\r\n";
                stream.write_all(&head(200, lifetime, token.len())).await?;
                stream.write_all(token.as_bytes()).await?;
            }
            Reply::Cut(body) => {
                stream.write_all(&head(200, "", body.len())).await?;
                let half = body.as_bytes().get(..body.len() / 2).unwrap_or_default();
                return stream.write_all(half).await;
            }
            Reply::Silence => std::future::pending().await,
            Reply::Close => return Ok(()),
        }
    }
    Ok(())
}

fn head(status: u16, more: &str, length: usize) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} Played\r\n{more}content-type: text/xml\r\n\
         content-length: {length}\r\n\r\n"
    )
    .into_bytes()
}

async fn request(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Option<Request>> {
    let mut text = Vec::new();
    loop {
        if let Some(at) = text.windows(4).position(|it| it == b"\r\n\r\n") {
            let mut request = head_of(&String::from_utf8_lossy(&text[..at]));
            let length = request.headers.get("content-length");
            let end = at + 4 + length.map_or(0, |it| it.parse().unwrap());
            if let Some(body) = text.get(at + 4..end) {
                request.form = form_urlencoded::parse(body).into_owned().collect();
                return Ok(Some(request));
            }
        }
        if stream.read_buf(&mut text).await? == 0 {
            return Ok(None);
        }
    }
}

fn head_of(text: &str) -> Request {
    let mut lines = text.lines();
    let line = lines.next().unwrap_or_default().to_owned();
    let headers = lines.filter_map(|it| it.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    Request {
        line,
        headers: headers.collect(),
        form: Form::new(),
    }
}
