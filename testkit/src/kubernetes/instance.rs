//! A stand-in for the instance's metadata service (`IMDSv2`), in a network namespace.
//!
//! Tokens are needed, and expire; a wrong lifetime is refused. It can be made slow or faulty. The
//! hop limit of a real one is the network's, and is not emulated.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, put};
use tokio::sync::oneshot;

use crate::fabric::Fabric;

/// Lifetimes that a token can have, in seconds.
const TTL: std::ops::RangeInclusive<u64> = 1..=21_600;
/// The MAC of the primary ENI by default.
const MAC: &str = "0a:fa:b0:00:00:01";
const TTL_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";
const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";

/// The service. Dropping it ends it.
#[derive(Debug)]
pub struct MetadataService {
    address: SocketAddr,
    played: Arc<Mutex<Played>>,
    /// Dropped, it ends the service.
    _stop: oneshot::Sender<()>,
}

/// Data of the service, and counts of requests.
#[derive(Debug, Default)]
struct Played {
    data: HashMap<String, String>,
    tokens: HashMap<String, Instant>,
    made: u64,
    requests: usize,
    delay: Duration,
    failures: usize,
}

type Shared = Arc<Mutex<Played>>;

impl MetadataService {
    /// The endpoint on a node of a cluster, as the setting `kubernetes.metadata-endpoint` has it.
    pub const NODE_ENDPOINT: &str = "http://127.0.0.1:1338";
    /// The VPC of the instance.
    pub const VPC: &str = "vpc-0fab0000000000001";
    /// The availability zone of the instance.
    pub const ZONE: &str = "eu-west-1a";

    /// Starts it for a fabric's node, at [`Self::NODE_ENDPOINT`] of the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn start_on_node(fabric: &Fabric) -> Result<Self> {
        let service = Self::start(SocketAddr::from(([127, 0, 0, 1], 1338)))?;
        let (document, mac) = (fabric.document(), fabric.eni(0)?.mac.to_string());
        service.set("instance-id", document["spec"]["instance-id"].as_str());
        let kind = &document["spec"]["eni"]["instance-type"];
        service.set("instance-type", kind.as_str());
        let interface = |mac: &str| format!("network/interfaces/macs/{mac}");
        for name in ["vpc-id", "subnet-id"] {
            let path = |mac: &str| format!("{}/{name}", interface(mac));
            let value = lock(&service.played).data.get(&path(MAC)).cloned();
            service.set(&path(&mac), value.as_deref());
        }
        service.set("mac", Some(&mac));
        Ok(service)
    }

    /// Starts it on an address of the network namespace that the calling thread is in.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn start(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).with_context(|| format!("bind {address}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let played = Arc::new(Mutex::new(Played {
            data: instance(),
            ..Played::default()
        }));
        let (stop, stopped) = oneshot::channel::<()>();
        let app = Router::new()
            .route("/latest/api/token", put(token))
            .route("/latest/meta-data/{*path}", get(datum))
            .with_state(Arc::clone(&played));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::spawn(move || {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                tokio::select! {
                    // The other end is dropped.
                    _ = stopped => Ok(()),
                    served = axum::serve(listener, app) => served,
                }
            })
        });
        Ok(Self {
            address,
            played,
            _stop: stop,
        })
    }

    /// Address of the service.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// As the setting `kubernetes.metadata-endpoint` has it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets the text at a path; `None` removes the path.
    pub fn set(&self, path: &str, value: Option<&str>) {
        let data = &mut lock(&self.played).data;
        match value {
            Some(value) => data.insert(path.to_owned(), value.to_owned()),
            None => data.remove(path),
        };
    }

    /// Delays each answer.
    pub fn be_slow(&self, delay: Duration) {
        lock(&self.played).delay = delay;
    }

    /// Makes the next requests fail with 503.
    pub fn fail(&self, requests: usize) {
        lock(&self.played).failures = requests;
    }

    /// Makes every token invalid.
    pub fn expire(&self) {
        lock(&self.played).tokens.clear();
    }

    /// Number of requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        lock(&self.played).requests
    }

    /// The number of tokens that were given.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        lock(&self.played).made
    }
}

/// Data of the instance that it describes.
fn instance() -> HashMap<String, String> {
    let interface = format!("network/interfaces/macs/{MAC}");
    [
        ("instance-id".to_owned(), "i-0fab000000000001"),
        ("instance-type".to_owned(), "m5.large"),
        ("mac".to_owned(), MAC),
        (format!("{interface}/vpc-id"), MetadataService::VPC),
        (format!("{interface}/subnet-id"), "subnet-0fab0000000000000"),
        (
            "placement/availability-zone".to_owned(),
            MetadataService::ZONE,
        ),
    ]
    .map(|(path, value)| (path, value.to_owned()))
    .into()
}

fn lock(played: &Shared) -> MutexGuard<'_, Played> {
    // A holder of the lock that panicked has left nothing half done.
    played.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a request, and delays it or lets it fail as the test wants.
async fn befall(played: &Shared) -> Result<(), StatusCode> {
    let (delay, fails) = {
        let mut played = lock(played);
        played.requests += 1;
        let fails = played.failures > 0;
        played.failures = played.failures.saturating_sub(1);
        (played.delay, fails)
    };
    tokio::time::sleep(delay).await;
    if fails {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    Ok(())
}

async fn token(State(played): State<Shared>, headers: HeaderMap) -> Result<String, StatusCode> {
    befall(&played).await?;
    let ttl = headers.get(TTL_HEADER).and_then(|ttl| ttl.to_str().ok());
    let ttl = ttl.and_then(|ttl| ttl.parse().ok());
    let ttl = ttl.filter(|ttl| TTL.contains(ttl));
    let ttl = ttl.ok_or(StatusCode::BAD_REQUEST)?;
    let mut played = lock(&played);
    played.made += 1;
    let token = format!("token-{}==", played.made);
    let until = Instant::now() + Duration::from_secs(ttl);
    played.tokens.insert(token.clone(), until);
    Ok(token)
}

async fn datum(
    State(played): State<Shared>,
    Path(path): Path<String>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    befall(&played).await?;
    let played = lock(&played);
    let token = headers
        .get(TOKEN_HEADER)
        .and_then(|token| token.to_str().ok());
    let until = token.and_then(|token| played.tokens.get(token));
    if until.is_none_or(|until| *until <= Instant::now()) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    played.data.get(&path).cloned().ok_or(StatusCode::NOT_FOUND)
}
