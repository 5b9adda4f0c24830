//! Cases that are more than requests and answers.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ipam::Family;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use testkit::fabric::eventually::{check, eventually};
use testkit::fabric::traffic::{Asker, Session, uninterrupted};
use testkit::fabric::world::Link;
use testkit::fabric::{Fabric, counters};

use crate::cases::{Backend, CLIENTS, Case};
use crate::model::{Policy, SERVICE_PORT, Transport};
use crate::nftables;
use crate::request::{Request, Source};
use crate::scene::{MTU, Scene, Site, Which};

/// Limit for clients that choose a random backend, until each has been chosen: more are needed with
/// a chance below one in 10^30.
const CHANCES: usize = 200;
/// Requests of one client that must all go to one backend.
const STICKY: usize = 8;
/// MTU of a link that is narrower than all others.
const NARROW: u32 = 1380;
/// Deadline for a packet, or for the error about its end.
const SOON: Duration = Duration::from_secs(3);

/// Sends one request, and returns the client as the server sees it.
fn ask_once(
    scene: &Scene,
    client: Site,
    to: SocketAddr,
    transport: Transport,
) -> Result<SocketAddr> {
    let place = scene.place(client, Family::of(to.ip()))?;
    match transport {
        Transport::Tcp => Ok(Session::open(place, scene.client_port(), to)?.seen()),
        Transport::Udp => Asker::open(place, scene.client_port(), to)?.ask(1),
    }
}

/// True if an error is a refusal.
fn is_refusal(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let by_io = cause.downcast_ref().and_then(io::Error::raw_os_error);
        let by_nix = cause.downcast_ref::<Errno>().map(|errno| *errno as i32);
        let code = by_io.or(by_nix);
        // The kernel reports to a local socket that its packet was rejected.
        [libc::ECONNREFUSED, libc::EPERM].map(Some).contains(&code)
    })
}

/// Expects that a service without backends refuses at once.
pub(crate) fn refused(scene: &Scene, family: Family, transport: Transport) -> Result<()> {
    let service = scene.service(Which::Empty, Policy::Cluster, family)?;
    let cluster_ip = SocketAddr::new(service.address, SERVICE_PORT);
    let mut requests: Vec<_> = CLIENTS.map(|client| (client, cluster_ip)).to_vec();
    requests.push((Site::Node, cluster_ip));
    for eni in [0, 1] {
        let node_port = SocketAddr::new(scene.node_address(eni, family)?, service.node_port());
        let clients = [Site::Peer, Site::Outside].iter().chain(&CLIENTS);
        requests.extend(clients.map(|client| (*client, node_port)));
    }
    for (client, to) in requests {
        match ask_once(scene, client, to, transport) {
            Ok(_) => bail!("{client:?} has an answer of {to}"),
            Err(error) if is_refusal(&error) => {}
            Err(error) => return Err(error.context(format!("{client:?} is refused by {to}"))),
        }
    }
    Ok(())
}

/// The backend of a service that answered a client.
fn backend(scene: &Scene, service: IpAddr, client: Site, transport: Transport) -> Result<Site> {
    let to = SocketAddr::new(service, SERVICE_PORT);
    let seen = ask_once(scene, client, to, transport)?;
    for site in Site::SPREAD {
        if scene.server(site, Family::of(service))?.forget(seen)? {
            return Ok(site);
        }
    }
    bail!("none of the service's backends has answered {seen}")
}

/// Expects that each of several backends has its share.
pub(crate) fn spread(scene: &Scene, family: Family, transport: Transport) -> Result<()> {
    let service = scene.service(Which::Spread, Policy::Cluster, family)?;
    for client in CLIENTS {
        let mut missing = Site::SPREAD.to_vec();
        for _ in 0..CHANCES {
            let chosen = backend(scene, service.address, client, transport)?;
            missing.retain(|site| *site != chosen);
            if missing.is_empty() {
                break;
            }
        }
        ensure!(missing.is_empty(), "{client:?} never met {missing:?}");
    }
    Ok(())
}

/// Expects that a client stays with its backend.
pub(crate) fn sticky(scene: &Scene, family: Family, transport: Transport) -> Result<()> {
    let service = scene.service(Which::Sticky, Policy::Cluster, family)?;
    for client in CLIENTS {
        let first = backend(scene, service.address, client, transport)?;
        for _ in 0..STICKY {
            let next = backend(scene, service.address, client, transport)?;
            ensure!(next == first, "{client:?} went from {first:?} to {next:?}");
        }
    }
    Ok(())
}

/// Expects that a narrower link beyond the VPC is discovered: the error about it passes rules that
/// drop packets without a connection.
pub(crate) fn narrow(scene: &Scene, family: Family, transport: Transport) -> Result<()> {
    let fabric = &scene.fabric;
    for link in [Link::Far, Link::Near] {
        scene.forget_routes()?;
        fabric.set_world_mtu(link, NARROW)?;
        let requests = Case::ClusterIp(Backend::External).requests(scene, family)?;
        let direct = requests.iter().map(|service| {
            let internet = scene.place(Site::Internet, family)?.address;
            let to = SocketAddr::new(internet, Site::Internet.port());
            Ok(Request { to, ..*service })
        });
        let direct = direct.collect::<Result<Vec<_>>>()?;
        let carried = requests.iter().chain(&direct).try_for_each(|request| {
            if transport == Transport::Udp {
                // Both ends must have the MTU before, as a lost datagram is not sent again. The
                // client forgets it, and learns it again from a datagram that only the narrow link
                // refuses.
                request.carry(scene, Transport::Tcp)?;
                scene.forget_pods_routes()?;
                let place = scene.place(request.client, family)?;
                let asker = Asker::open(place, scene.client_port(), request.to)?;
                asker.ask(usize::try_from(NARROW)? + 20)?;
            }
            request.carry(scene, transport)
        });
        fabric.set_world_mtu(link, MTU)?;
        carried.with_context(|| format!("{link:?} takes {NARROW}"))?;
    }
    scene.forget_routes()
}

/// Expects that a packet whose TTL ends has an answer, from the node and from a router beyond it.
pub(crate) fn expired(scene: &Scene, family: Family) -> Result<()> {
    let mut requests = Vec::new();
    for case in [
        Case::ClusterIp(Backend::OtherNode),
        Case::ClusterIp(Backend::External),
    ] {
        requests.extend(case.requests(scene, family)?);
    }
    for server in [Site::Peer, Site::Internet] {
        let to = SocketAddr::new(scene.place(server, family)?.address, server.port());
        requests.extend(CLIENTS.map(|client| Request {
            client,
            to,
            server,
            source: Source::Client,
        }));
    }
    for Request { client, to, .. } in requests {
        for ttl in [1, 2] {
            let expiry = expire(scene, client, to, ttl);
            expiry.with_context(|| format!("a TTL of {ttl} from {client:?} to {to}"))?;
        }
    }
    Ok(())
}

/// Sends a datagram with a TTL that ends, and waits for the error.
fn expire(scene: &Scene, client: Site, to: SocketAddr, ttl: i32) -> Result<()> {
    let place = scene.place(client, Family::of(to.ip()))?;
    let socket = place.netns.enter(|| {
        let socket = UdpSocket::bind((place.address, 0))?;
        match to {
            SocketAddr::V4(_) => {
                setsockopt(&socket, sockopt::Ipv4Ttl, &ttl)?;
                setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
            }
            SocketAddr::V6(_) => {
                setsockopt(&socket, sockopt::Ipv6Ttl, &ttl)?;
                setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
            }
        }
        socket.connect(to)?;
        Ok(socket)
    })?;
    socket.set_read_timeout(Some(SOON))?;
    socket.send(&[7])?;
    let received = uninterrupted(|| socket.recv(&mut [0; 64]));
    let code = received.as_ref().err().and_then(io::Error::raw_os_error);
    ensure!(code == Some(Errno::EHOSTUNREACH as i32), "{received:?}");
    Ok(())
}

/// Expects that pods cannot reach the instance metadata service: their packets are dropped with the
/// reason.
pub(crate) fn metadata_blocked(scene: &Scene, family: Family) -> Result<()> {
    const QUICK: Duration = Duration::from_millis(100);
    let count = || -> Result<u64> {
        let counters = counters::read(&scene.fabric)?;
        let counters = counters.into_iter();
        let blocked = counters.filter(|((_, outcome), _)| outcome == "metadata-blocked");
        Ok(blocked.map(|(_, packets)| packets).sum())
    };
    let address = scene.place(Site::Metadata, family)?.address;
    let to = SocketAddr::new(address, Site::Metadata.port());
    for client in CLIENTS {
        let before = count()?;
        let place = scene.place(client, family)?;
        let connected = place
            .netns
            .enter(|| Ok(TcpStream::connect_timeout(&to, QUICK)?));
        ensure!(connected.is_err(), "{client:?} has reached {to}");
        eventually(SOON, "the drop is counted", || {
            check(count()? > before, || format!("still {before}"))
        })?;
    }
    // The node itself is not affected.
    ask_once(scene, Site::Node, to, Transport::Tcp).map(drop)
}

/// A table that keeps the headers of packets that connection tracking marks INVALID.
const INVALID: &str = "
table inet invalid {
  set v4 {
    typeof ip saddr . ip daddr . ip protocol . @th,0,64 . meta length
    flags dynamic
    size 64
  }
  set v6 {
    typeof ip6 saddr . ip6 daddr . meta l4proto . @th,0,64 . meta length
    flags dynamic
    size 64
  }
  chain received { type filter hook prerouting priority -150; ct state invalid jump keep; }
  chain sent { type filter hook output priority -150; ct state invalid jump keep; }
  chain keep {
    meta nfproto ipv4 add @v4 { ip saddr . ip daddr . ip protocol . @th,0,64 . meta length }
    meta nfproto ipv6 add @v6 { ip6 saddr . ip6 daddr . meta l4proto . @th,0,64 . meta length }
  }
}
";

/// Keeps the headers of packets that connection tracking marks INVALID from now on, and makes it
/// track connections from now on. Otherwise it begins with the first rule that needs it, in the
/// midst of connections of the host, and their ends are INVALID.
pub(crate) fn keep_invalid(fabric: &Fabric) -> Result<()> {
    nftables::apply(&fabric.node, INVALID)
}

/// Expects that connection tracking has marked no packet INVALID.
///
/// That is its state for a connection of which it has seen only one direction, and rules like
/// kube-proxy's drop such packets.
pub(crate) fn nothing_invalid(scene: &Scene) -> Result<()> {
    let statistics = scene.fabric.node.run("conntrack -S")?;
    let words = statistics.split_whitespace();
    let counts: Vec<_> = words
        .filter_map(|word| word.strip_prefix("invalid="))
        .collect();
    if !counts.is_empty() && counts.iter().all(|count| *count == "0") {
        return Ok(());
    }
    let kept = ["v4", "v6"].map(|set| {
        scene
            .fabric
            .node
            .run(&format!("nft list set inet invalid {set}"))
    });
    bail!("{statistics}{kept:?}")
}
