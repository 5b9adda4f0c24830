//! A node in a VPC of its own, with one real pod, and the pod's servers.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ipam::Family;
use testkit::fabric::eventually::check;
use testkit::fabric::traffic::uninterrupted;
use testkit::fabric::{Fabric, Place, Pod, source_check};

use crate::live::lane::Lane;

/// The ENI of the measured pod's address: a secondary one, as for most pods.
pub const ENI: u8 = 1;
/// A server of the VPC, in no subnet of an ENI.
const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 254, 10);
/// A server beyond the VPC.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(8, 8, 8, 10);
/// The time that a first packet may take, including neighbour discovery.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Destination of a lane's traffic, which decides if it is masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Traffic {
    /// Within the VPC: the pod's address is kept.
    Exempt,
    /// Out of the VPC: masqueraded.
    Masqueraded,
}

impl Traffic {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Exempt, Self::Masqueraded];

    fn server(self) -> IpAddr {
        match self {
            Self::Exempt => INSIDE.into(),
            Self::Masqueraded => OUTSIDE.into(),
        }
    }
}

/// The source that a server must see, and the ENI of its packets.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Kind of traffic.
    pub traffic: Traffic,
    /// The source.
    pub source: IpAddr,
    /// The ENI.
    pub eni: u8,
}

/// A node, its VPC, its pod.
#[derive(Debug)]
pub struct Site {
    /// The node and the VPC.
    pub fabric: Fabric,
    /// The pod.
    pub pod: Arc<Pod>,
}

impl Site {
    /// Adds the servers to a fabric.
    ///
    /// # Errors
    /// When the router refuses.
    pub fn new(fabric: Fabric, pod: Arc<Pod>) -> Result<Self> {
        let router = &fabric.vpc.router;
        // An algorithm that every kernel has. Others pace by timers, whose interrupts come at
        // random.
        let control = [("ipv4/tcp_congestion_control", "reno")];
        for netns in [router, &fabric.node, &pod.netns] {
            netns.sysctls(&control)?;
        }
        for server in [INSIDE, OUTSIDE] {
            router.ip(&format!("addr add {server}/32 dev lo"))?;
        }
        Ok(Self { fabric, pod })
    }

    /// The server of a kind of traffic.
    #[must_use]
    pub fn server(&self, traffic: Traffic) -> Place<'_> {
        Place {
            netns: &self.fabric.vpc.router,
            address: traffic.server(),
        }
    }

    /// The path from the pod to a server.
    #[must_use]
    pub fn lane(&self, traffic: Traffic) -> Lane<'_> {
        Lane {
            client: self.pod.at(Family::V4),
            server: self.server(traffic),
        }
    }

    /// The path from a process on the node itself to a server.
    ///
    /// # Errors
    /// When the node has no primary ENI.
    pub fn direct(&self) -> Result<Lane<'_>> {
        Ok(Lane {
            client: self.fabric.node_at(Family::V4)?,
            server: self.server(Traffic::Exempt),
        })
    }

    /// Sends one datagram, waits for the answer, and returns the source that the server saw.
    ///
    /// # Errors
    /// When it, or the answer, does not arrive.
    pub fn ask(&self, traffic: Traffic) -> Result<IpAddr> {
        source_seen(self.lane(traffic)).with_context(|| format!("{traffic:?} traffic"))
    }

    /// Proves on the source-checking fabric that packets leave correctly, in both directions, and
    /// then lifts the checks.
    ///
    /// # Errors
    /// When a server sees another source, packets take another ENI, or a foreign source was
    /// counted.
    pub fn prove(&mut self, expected: &[Expected]) -> Result<()> {
        for of in expected {
            let lane = self.lane(of.traffic);
            source_check::forget_flows(&self.fabric.vpc.router)?;
            let seen = self.ask(of.traffic)?;
            check(seen == of.source, || {
                format!(
                    "{:?} traffic of the pod is seen as {seen}'s, not as {}'s",
                    of.traffic, of.source
                )
            })?;
            let (from, to) = (lane.client.address, lane.server.address);
            let enis = self.fabric.enis_between(from, to)?;
            check(enis == BTreeSet::from([of.eni]), || {
                format!(
                    "{:?} traffic left by ENIs {enis:?}, not by {}",
                    of.traffic, of.eni
                )
            })?;
        }
        self.fabric.lift_checks()
    }
}

/// Sends a datagram, waits for the answer, and returns the client's address as the server saw it.
fn source_seen(lane: Lane<'_>) -> Result<IpAddr> {
    let bind = |place: Place<'_>| {
        place.netns.enter(|| {
            let socket = UdpSocket::bind((place.address, 0))?;
            socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
            Ok(socket)
        })
    };
    let (server, client) = (bind(lane.server)?, bind(lane.client)?);
    let mut buffer = [0; 8];
    client.send_to(b"who", server.local_addr()?)?;
    let (_, seen) = uninterrupted(|| server.recv_from(&mut buffer)).context("nothing arrived")?;
    server.send_to(b"you", seen)?;
    let (_, answerer) = uninterrupted(|| client.recv_from(&mut buffer)).context("no answer")?;
    check(answerer == server.local_addr()?, || {
        format!("{answerer} answered for {}", lane.server.address)
    })?;
    Ok(seen.ip())
}
