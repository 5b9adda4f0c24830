//! A cloud that is served over HTTP.

use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use ec2_fake::server::{Fake, serve};
use tokio::sync::oneshot;

use crate::fabric::Netns;

/// A cloud, served in a network namespace. Dropping it ends its connections.
#[derive(Debug)]
pub struct Served {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Serves a cloud at an address and a port; port 0 takes a free one.
    ///
    /// # Errors
    /// When nothing can listen there.
    pub fn start(netns: &Netns, address: SocketAddr, cloud: Fake) -> Result<Self> {
        let listener = netns.enter(|| Ok(TcpListener::bind(address)?));
        let listener = listener.with_context(|| format!("listen on {address}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let ended = runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                tokio::select! {
                    // The other end is dropped.
                    _ = stopped => Ok(()),
                    served = serve(listener, cloud) => match served? {},
                }
            });
            if let Err(error) = ended as std::io::Result<()> {
                eprintln!("the cloud ended: {error}");
            }
        });
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed.
            let _ended = thread.join();
        }
    }
}
