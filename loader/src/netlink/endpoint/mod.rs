//! A pod's devices: a veth pair born in its final namespaces with final names and MACs, and all
//! that the pod's end needs.
//!
//! The host's end stays down: it is set up by a step of its own, when the program that guards it is
//! there. That the pair is finished is noted in the host end's group, as the very last thing
//! ([`crate::observation::ownership::finished_device`]).
//!
//! The host's end gets no link-local address: the pod's gateway is answered for by a permanent
//! neighbour entry, and without one there is no duplicate address detection and no router
//! solicitation for each pod. The pod's end keeps its own, which applications may use. Router
//! advertisements are off in the pod: its routes are ours. Where the pod has no IPv6 address, the
//! family is left as the runtime made it.

pub(super) mod device_name;
pub(super) mod inspect;
pub(super) mod pod_routes;

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use anyhow::{Context, bail};
use api::ids::MacAddr;
use ipam::Family;
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
};

use self::pod_routes::Maker;
use super::netns::NetNs;
use super::socket::{self, Socket};
use super::{apply, observe, sysctl};
use crate::constants;
use crate::intent::Endpoint;
use crate::intent::pod_routes::PodRoutes;
use crate::kernel::{Address, Link, LinkKind, Neighbour};
use crate::observation::ownership::{finished_device, intact_device};

/// Index of the loopback device in every namespace (`LOOPBACK_IFINDEX` in include/net/flow.h).
const LOOPBACK: u32 = 1;

/// Creates an endpoint's devices and everything inside its namespace. Leftovers of an earlier
/// attempt are removed first. If a step fails, all of it is removed. A finished device that lacks
/// only its MAC gets that back, so the pod keeps its interface.
pub(super) async fn create(
    host: &mut Socket,
    endpoint: &Endpoint,
    routes: &PodRoutes,
    protocol: u8,
) -> anyhow::Result<()> {
    let id = endpoint.id();
    let there = observe::by_name(host, &id.device())
        .await
        .with_context(|| format!("look for a device {}", id.device()))?;
    if let Some(link) = &there
        && finished_device(link) == Some(id)
        && intact_device(link).is_none()
    {
        return apply::links::set_mac(host, link.ifindex, id.host_mac()).await;
    }
    let netns = NetNs::open(&endpoint.netns)?;
    if let Some(was) = endpoint.about.namespace
        && netns.id().context("look at the netns")?.is_other_than(was)
    {
        bail!(
            "{} is another network namespace than the one that the pod was added with",
            endpoint.netns.display()
        );
    }
    let mut pod = connect(&netns)?;
    remove(host, &id.device(), id.host_mac(), there).await?;
    remove_leftover(&mut pod, &endpoint.owner.interface, id.pod_mac()).await?;
    let device = device_name::claim(host, endpoint).await?;
    make_pair(host, endpoint, &netns, &device).await?;
    let pod_end = PodEnd {
        pod: &mut pod,
        netns: &netns,
        endpoint,
        routes,
        protocol,
    };
    let made = finish(host, &device, pod_end).await;
    if made.is_err()
        && let Err(error) = remove_leftover(host, &device, id.host_mac()).await
    {
        tracing::warn!(device, %error, "an incomplete pod device remains");
    }
    made
}

/// A netlink socket in the pod's namespace.
fn connect(netns: &NetNs) -> anyhow::Result<Socket> {
    let inner = netns.run(socket::connect)?;
    inner
        .and_then(Socket::new)
        .context("open a netlink socket in the pod")
}

/// Removes what an earlier attempt left: a veth end of our name and our MAC.
async fn remove_leftover(socket: &mut Socket, name: &str, mac: MacAddr) -> anyhow::Result<()> {
    let found = observe::by_name(socket, name)
        .await
        .with_context(|| format!("look for a device {name}"))?;
    remove(socket, name, mac, found).await
}

/// Removes the device that has this name.
async fn remove(
    socket: &mut Socket,
    name: &str,
    mac: MacAddr,
    found: Option<Link>,
) -> anyhow::Result<()> {
    match found {
        None => Ok(()),
        Some(link) if link.kind == LinkKind::Veth && link.mac == Some(mac) => {
            apply::links::delete(socket, link.ifindex).await
        }
        Some(link) => {
            let has = link.mac.map_or("none".to_owned(), |mac| mac.to_string());
            bail!(
                "a device {name} is there already and is not ours: its MAC is {has}, ours would \
                 be {mac}"
            )
        }
    }
}

/// Makes the pair in one request, so that no name or MAC is ever changed: udev and the pod see
/// each end once, as it stays.
async fn make_pair(
    host: &mut Socket,
    endpoint: &Endpoint,
    netns: &NetNs,
    device: &str,
) -> anyhow::Result<()> {
    let id = endpoint.id();
    let end = |name: String, mac: MacAddr| {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name),
            LinkAttribute::Address(mac.0.to_vec()),
            LinkAttribute::Mtu(endpoint.mtu),
            // A veth uses one queue of each kind. By default it has one for each CPU, and removes
            // them with a wait for all CPUs (`veth_init_queues` in drivers/net/veth.c).
            LinkAttribute::NumTxQueues(1),
            LinkAttribute::NumRxQueues(1),
        ];
        message
    };
    let mut peer = end(endpoint.owner.interface.clone(), id.pod_mac());
    peer.attributes
        .push(LinkAttribute::NetNsFd(netns.file().as_raw_fd()));
    let mut message = end(device.to_owned(), id.host_mac());
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    host.change(
        RouteNetlinkMessage::NewLink(message),
        NLM_F_CREATE | NLM_F_EXCL,
    )
    .await
    .with_context(|| {
        format!(
            "make the veth pair {device} and {} in {}",
            endpoint.owner.interface,
            endpoint.netns.display()
        )
    })
}

/// The pod's end of a pair, with all that its configuration needs.
struct PodEnd<'a> {
    pod: &'a mut Socket,
    netns: &'a NetNs,
    endpoint: &'a Endpoint,
    routes: &'a PodRoutes,
    protocol: u8,
}

/// Brings a new pair to where the host's end has only to be set up, and notes that it is.
async fn finish(host: &mut Socket, device: &str, pod_end: PodEnd<'_>) -> anyhow::Result<()> {
    let endpoint = pod_end.endpoint;
    let outside = ifindex(host, device).await?;
    let own = endpoint.id().device();
    if own != device {
        apply::links::add_name(host, outside, &own).await?;
    }
    apply::links::without_link_local(host, outside).await?;
    configure(pod_end)
        .await
        .with_context(|| format!("configure {} in the pod", endpoint.owner.interface))?;
    apply::links::set_group(host, outside, constants::DEVICE_GROUP).await
}

/// Configures the pod's end.
async fn configure(pod_end: PodEnd<'_>) -> anyhow::Result<()> {
    let PodEnd {
        pod,
        netns,
        endpoint,
        routes,
        protocol,
    } = pod_end;
    let interface = &endpoint.owner.interface;
    let device = ifindex(pod, interface).await?;
    apply::links::set_up(pod, LOOPBACK).await?;
    let families = Family::ALL.map(|family| (family, addresses(endpoint, family)));
    if families
        .iter()
        .any(|(family, addresses)| *family == Family::V6 && !addresses.is_empty())
    {
        // This precedes setting the device up, so that it never solicits a router. Container
        // runtimes turn the family off by default.
        netns.run(|| {
            for (name, value) in [("accept_ra", "0"), ("disable_ipv6", "0")] {
                sysctl::write(&sysctl::path(Family::V6, Some(interface), name), value)?;
            }
            anyhow::Ok(())
        })??;
    }
    apply::links::set_up(pod, device).await?;
    for (family, addresses) in families {
        if addresses.is_empty() {
            continue;
        }
        for address in addresses {
            let net = IpNet::new(address, family.host_length())?;
            let ifindex = device;
            apply::addresses::add(pod, &Address { ifindex, net }).await?;
        }
        let neighbour = Neighbour {
            ifindex: device,
            address: gateway(family),
            mac: endpoint.id().host_mac(),
        };
        apply::neighbours::add(pod, &neighbour).await?;
        let maker = Maker::new(endpoint, routes, device, protocol);
        for (route, mtu) in maker.all(family)? {
            apply::routes::add_new(pod, &route, mtu).await?;
        }
    }
    Ok(())
}

pub(super) fn addresses(endpoint: &Endpoint, family: Family) -> Vec<IpAddr> {
    let all = endpoint.addresses.iter().copied();
    all.filter(|address| Family::of(*address) == family)
        .collect()
}

/// The pod's gateway: an address that no device has, answered for by a neighbour entry.
pub(super) fn gateway(family: Family) -> IpAddr {
    match family {
        Family::V4 => constants::POD_GATEWAY_V4.into(),
        Family::V6 => constants::POD_GATEWAY_V6.into(),
    }
}

async fn ifindex(socket: &mut Socket, name: &str) -> anyhow::Result<u32> {
    let link = observe::by_name(socket, name)
        .await
        .with_context(|| format!("look for the device {name}"))?;
    Ok(link
        .with_context(|| format!("device {name} no longer exists"))?
        .ifindex)
}
