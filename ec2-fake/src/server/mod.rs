//! EC2's protocol over TCP.

mod answer;
mod body;
mod fake;
mod signature;
#[cfg(test)]
mod tests;
mod wire;

use std::convert::Infallible;
use std::io;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub use self::fake::{Fake, OnEffect};

/// Serves a fake until the future is dropped. Connections end with it.
///
/// # Errors
/// When no connection can be accepted.
pub async fn serve(listener: TcpListener, fake: Fake) -> io::Result<Infallible> {
    let mut connections = JoinSet::new();
    let mut clock = JoinSet::new();
    let ticking = fake.clone();
    clock.spawn(async move { ticking.tick().await });
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                connections.spawn(connection(stream, fake.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, fake: Fake) {
    let service = service_fn(|request| answer::answer(&fake, request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // A connection that ends early is the effect of a fault, or the client's choice.
    drop(connection.await);
}
