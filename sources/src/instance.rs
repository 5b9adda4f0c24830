//! Client of the instance metadata service (`IMDSv2`; AWS, "Use the Instance Metadata Service to
//! access instance metadata"), for the identity of this instance.
//!
//! A token is requested first, and sent with each request. Proxies of the environment are not used,
//! since the service answers only the instance.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use api::ids::MacAddr;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kubernetes::node::node_template::Instance;
use tokio::time::{sleep, timeout};

/// The time limit of connecting.
const CONNECT: Duration = Duration::from_secs(1);
/// The time limit of all requests together, with retries.
const TOTAL: Duration = Duration::from_secs(5);
/// The wait before the second try of a request; twice as long before each further one.
const RETRY: Duration = Duration::from_millis(100);
/// Most tries of one question.
const TRIES: u32 = 5;
/// The validity of a token, in seconds: longer than all requests take.
const TOKEN_TTL: &str = "60";
const TOKEN_TTL_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";
const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";
const TOKEN_PATH: &str = "/latest/api/token";
const DATA_PATH: &str = "/latest/meta-data/";
/// Longest answer, in bytes: that of the MACs of an instance with a hundred ENIs.
const ANSWER_MAX: usize = 2048;
/// The ENIs of the instance, by MAC.
const MACS: &str = "network/interfaces/macs/";

/// Reason for which the metadata service has not identified the instance.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// It does not answer.
    #[error("{path}: no answer: {why}")]
    Unreachable {
        /// The path of the request.
        path: String,
        /// Why.
        why: String,
    },
    /// It refuses.
    #[error("{path}: answered {status}")]
    Refused {
        /// The path of the request.
        path: String,
        /// The status.
        status: StatusCode,
    },
    /// Its answer is not what it has to be.
    #[error("{path}: {value:?} is refused; allowed: {allowed}")]
    Value {
        /// The path of the request.
        path: String,
        /// The answer.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// It takes too long.
    #[error("not all was answered within {TOTAL:?}")]
    Timeout,
}

/// Reads the identity of this instance.
///
/// # Errors
/// If the service does not answer completely within five seconds.
pub async fn ask(service: SocketAddr) -> Result<Instance, InstanceError> {
    let all = timeout(TOTAL, Conversation::new(service).all()).await;
    all.unwrap_or(Err(InstanceError::Timeout))
}

/// Reads the instance's id alone.
///
/// # Errors
/// If the service does not answer within five seconds.
pub async fn id(service: SocketAddr) -> Result<String, InstanceError> {
    let id = async { Conversation::new(service).get("instance-id").await };
    let id = timeout(TOTAL, id).await;
    id.unwrap_or(Err(InstanceError::Timeout))
}

/// Reads the network card of each ENI, by MAC. An ENI without a card in the service is on card 0,
/// as are all ENIs of an instance with one card.
///
/// # Errors
/// If the service does not answer completely within five seconds.
pub async fn cards(service: SocketAddr) -> Result<BTreeMap<MacAddr, u32>, InstanceError> {
    let all = timeout(TOTAL, Conversation::new(service).cards()).await;
    all.unwrap_or(Err(InstanceError::Timeout))
}

/// The questions, over one connection and with one token where nothing goes wrong.
struct Conversation {
    client: Client<HttpConnector, Full<Bytes>>,
    service: SocketAddr,
    token: Option<String>,
}

impl Conversation {
    fn new(service: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            service,
            token: None,
        }
    }

    async fn all(mut self) -> Result<Instance, InstanceError> {
        let mac = self.get("mac").await?;
        let Ok(mac) = mac.parse::<MacAddr>() else {
            return Err(InstanceError::Value {
                path: format!("{DATA_PATH}mac"),
                value: mac,
                allowed: "a MAC address (0a:11:22:33:44:55)",
            });
        };
        let interface = format!("network/interfaces/macs/{mac}");
        Ok(Instance {
            id: self.get("instance-id").await?,
            kind: self.get("instance-type").await?,
            vpc_id: self.get(&format!("{interface}/vpc-id")).await?,
            subnet_id: self.get(&format!("{interface}/subnet-id")).await?,
            availability_zone: self.get("placement/availability-zone").await?,
        })
    }

    async fn cards(mut self) -> Result<BTreeMap<MacAddr, u32>, InstanceError> {
        let path = format!("{DATA_PATH}{MACS}");
        let listed = self.get_bytes(&path).await?;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let mut cards = BTreeMap::new();
        for line in listed.lines() {
            let mac = line.trim_end_matches('/');
            let mac: MacAddr = mac.parse().map_err(|_not_one| InstanceError::Value {
                path: path.clone(),
                value: line.to_owned(),
                allowed: "MAC addresses (0a:11:22:33:44:55/), each on a line",
            })?;
            cards.insert(mac, self.card(mac).await?);
        }
        Ok(cards)
    }

    async fn card(&mut self, mac: MacAddr) -> Result<u32, InstanceError> {
        let what = format!("{MACS}{mac}/network-card");
        match self.get(&what).await {
            Err(InstanceError::Refused { status, .. }) if status == StatusCode::NOT_FOUND => Ok(0),
            answer => {
                let value = answer?;
                value.parse().map_err(|_not_one| InstanceError::Value {
                    path: format!("{DATA_PATH}{what}"),
                    value,
                    allowed: "the index of a network card",
                })
            }
        }
    }

    /// Reads one value, with retries if they may help.
    async fn get(&mut self, what: &str) -> Result<String, InstanceError> {
        let path = format!("{DATA_PATH}{what}");
        let answer = self.get_bytes(&path).await?;
        text(&path, &answer)
    }

    /// Asks one thing, and again where that may help.
    async fn get_bytes(&mut self, path: &str) -> Result<Bytes, InstanceError> {
        let mut wait = RETRY;
        for _ in 1..TRIES {
            match self.try_get(path).await {
                Err(error) if error.is_temporary() => {}
                other => return other,
            }
            sleep(wait).await;
            wait *= 2;
        }
        self.try_get(path).await
    }

    async fn try_get(&mut self, path: &str) -> Result<Bytes, InstanceError> {
        let token = match self.token.clone() {
            Some(token) => token,
            None => self.new_token().await?,
        };
        let answer = self.request(Method::GET, path, TOKEN_HEADER, &token).await;
        match &answer {
            Err(InstanceError::Refused { status, .. }) if *status == StatusCode::UNAUTHORIZED => {
                // It is good no more; the next try has a new one.
                self.token = None;
            }
            _ => self.token = Some(token),
        }
        answer
    }

    async fn new_token(&self) -> Result<String, InstanceError> {
        let token = self
            .request(Method::PUT, TOKEN_PATH, TOKEN_TTL_HEADER, TOKEN_TTL)
            .await?;
        text(TOKEN_PATH, &token)
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        header: &str,
        value: &str,
    ) -> Result<Bytes, InstanceError> {
        let unreachable = |why: &dyn std::error::Error| InstanceError::Unreachable {
            path: path.to_owned(),
            why: innermost(why),
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.service))
            .header(header, value)
            .body(Full::default())
            .map_err(|error| unreachable(&error))?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| unreachable(&error))?;
        let status = answer.status();
        if status != StatusCode::OK {
            let path = path.to_owned();
            return Err(InstanceError::Refused { path, status });
        }
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(|error| unreachable(error.as_ref()))?;
        Ok(body.to_bytes())
    }
}

impl InstanceError {
    /// True if another try may help.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => {
                status.is_server_error()
                    || [StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS].contains(status)
            }
            Self::Value { .. } | Self::Timeout => false,
        }
    }
}

/// An answer, which has to be one word: it goes into an object or a header.
fn text(path: &str, answer: &Bytes) -> Result<String, InstanceError> {
    let value = String::from_utf8_lossy(answer).into_owned();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(value);
    }
    Err(InstanceError::Value {
        path: path.to_owned(),
        value,
        allowed: "one word of ASCII",
    })
}

/// The innermost cause of an error, mostly the kernel's.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_word_goes_into_an_object() {
        let of = |answer: &'static str| text("/a", &Bytes::from_static(answer.as_bytes()));
        assert_eq!(of("i-1").unwrap(), "i-1");
        for wrong in ["", "i-1\n", "<html> no", "i-\u{e9}"] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.starts_with("/a: "), "{error}");
            assert!(error.ends_with("allowed: one word of ASCII"), "{error}");
        }
    }
}
