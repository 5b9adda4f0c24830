//! One client's requests, and all checks of the answers.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use ipam::Family;
use testkit::fabric::traffic::{Asker, Session};

use crate::model::Transport;
use crate::scene::{Scene, Site};

/// Bytes of a stream, in each direction: many windows.
const BULK: usize = 1 << 20;
/// Bytes of a datagram that must be fragmented on every link.
const LARGE: usize = 4000;
/// Bytes of a small datagram.
const SMALL: usize = 7;
/// Exchanges in addition to those.
const EXCHANGES: usize = 3;

/// Source that a server must see.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// The client, by its own address and port.
    Client,
    /// The node, by one of its addresses, which netfilter chooses.
    Node,
    /// This address: our translation.
    Address(IpAddr),
}

/// A client that sends to an address and port, and the server that must answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) client: Site,
    pub(crate) to: SocketAddr,
    pub(crate) server: Site,
    pub(crate) source: Source,
}

impl Request {
    fn family(&self) -> Family {
        Family::of(self.to.ip())
    }

    /// Description of the request for a message.
    pub(crate) fn label(&self, transport: Transport) -> String {
        format!(
            "{} from {:?} to {}, which {:?} serves",
            transport.name(),
            self.client,
            self.to,
            self.server
        )
    }

    /// Opens a connection, and checks that the right server has the right client.
    pub(crate) fn open(&self, scene: &Scene) -> Result<Session> {
        let session = Session::open(
            scene.place(self.client, self.family())?,
            scene.client_port(),
            self.to,
        )?;
        self.check(scene, session.own()?, session.seen())?;
        Ok(session)
    }

    /// Exchanges small and large data between client and server.
    pub(crate) fn carry(&self, scene: &Scene, transport: Transport) -> Result<()> {
        let label = || self.label(transport);
        match transport {
            Transport::Tcp => {
                let mut session = self.open(scene).with_context(label)?;
                for _ in 0..EXCHANGES {
                    session.exchange().with_context(label)?;
                }
                session.bulk(BULK).with_context(label)
            }
            Transport::Udp => {
                let place = scene.place(self.client, self.family())?;
                let asker = Asker::open(place, scene.client_port(), self.to)?;
                let own = asker.socket().local_addr()?;
                for bytes in [SMALL, LARGE, SMALL] {
                    let seen = asker.ask(bytes).with_context(label)?;
                    self.check(scene, own, seen).with_context(label)?;
                }
                Ok(())
            }
        }
    }

    /// Checks that the right server answered, and that it saw the right source.
    fn check(&self, scene: &Scene, own: SocketAddr, seen: SocketAddr) -> Result<()> {
        let family = self.family();
        match self.source {
            Source::Client => ensure!(seen == own, "{own} was seen as {seen}"),
            Source::Address(address) => {
                ensure!(
                    seen.ip() == address,
                    "{own} was seen as {seen}, not as {address}"
                );
            }
            Source::Node => {
                let node = [0, 1].map(|eni| scene.node_address(eni, family));
                let node = node.into_iter().collect::<Result<Vec<_>>>()?;
                ensure!(
                    node.contains(&seen.ip()),
                    "{own} was seen as {seen}, not as any of {node:?}"
                );
            }
        }
        let server = scene.server(self.server, family)?;
        ensure!(
            server.forget(seen)?,
            "another server than {:?} answered {seen}",
            self.server
        );
        Ok(())
    }
}
