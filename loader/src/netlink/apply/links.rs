//! Devices.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use anyhow::{Context, bail};
use api::ids::MacAddr;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoKind, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage, Prop, State,
};

use super::super::errno::deleted;
use super::super::observe;
use super::super::socket::Socket;

/// The time that the kernel may take to activate a device, on a node where hundreds are made at
/// once.
const ACTIVATION: Duration = Duration::from_secs(5);
/// Interval of checks.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Sets a device's MTU.
pub(in crate::netlink) async fn set_mtu(
    socket: &mut Socket,
    ifindex: u32,
    mtu: u32,
) -> anyhow::Result<()> {
    let mut message = of(ifindex);
    message.attributes.push(LinkAttribute::Mtu(mtu));
    socket
        .change(RouteNetlinkMessage::SetLink(message), 0)
        .await
        .with_context(|| format!("set the MTU of device {ifindex} to {mtu}"))
}

/// Sets a device's Ethernet address.
pub(in crate::netlink) async fn set_mac(
    socket: &mut Socket,
    ifindex: u32,
    mac: MacAddr,
) -> anyhow::Result<()> {
    let mut message = of(ifindex);
    let address = LinkAttribute::Address(mac.0.to_vec());
    message.attributes.push(address);
    socket
        .change(RouteNetlinkMessage::SetLink(message), 0)
        .await
        .with_context(|| format!("set the MAC of device {ifindex} to {mac}"))
}

/// Sets a device up.
pub(in crate::netlink) async fn set_up(socket: &mut Socket, ifindex: u32) -> anyhow::Result<()> {
    let mut message = of(ifindex);
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    socket
        .change(RouteNetlinkMessage::SetLink(message), 0)
        .await
        .with_context(|| format!("set device {ifindex} up"))
}

/// Waits until the other end of a veth pair carries packets; other devices have none.
///
/// A device that gets its carrier after it was set up is activated by a work item
/// (`linkwatch_event` in `net/core/link_watch.c`), which waits its turn for the lock that every
/// change to a device takes. Until then it drops what it is to send, and counts nothing. Of a pair
/// that is the end that was set up first: the pod's.
pub(in crate::netlink) async fn peer_activated(
    socket: &mut Socket,
    ifindex: u32,
) -> anyhow::Result<()> {
    let Some(peer) = get(socket, of(ifindex)).await?.as_ref().and_then(peer) else {
        return Ok(());
    };
    let waiting = async {
        // A kernel that handles its work items before it answers (6.9) needs only one request.
        while get(socket, peer.clone())
            .await?
            .is_some_and(|link| is_waiting(&link))
        {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(ACTIVATION, waiting).await {
        Ok(seen) => seen,
        Err(_elapsed) => bail!("the other end of device {ifindex} is not activated"),
    }
}

/// True if a device has a carrier and is not operational (RFC 2863) yet.
fn is_waiting(link: &LinkMessage) -> bool {
    let operational = LinkAttribute::OperState(State::Up);
    link.header.flags.contains(LinkFlags::LowerUp) && !link.attributes.contains(&operational)
}

/// The request for the other end of a veth pair, in whatever namespace that is.
fn peer(link: &LinkMessage) -> Option<LinkMessage> {
    let mut attributes = link.attributes.iter();
    let veth = attributes.any(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => info.contains(&LinkInfo::Kind(InfoKind::Veth)),
        _ => false,
    });
    let index = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Link(index) => Some(*index),
            _ => None,
        });
    let mut peer = of(index.filter(|_| veth)?);
    let namespace = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::LinkNetNsId(id) => Some(LinkAttribute::IfNetnsId(*id)),
            _ => None,
        });
    peer.attributes.extend(namespace);
    Some(peer)
}

/// Reads a device; `None` if it or its namespace is gone.
async fn get(socket: &mut Socket, request: LinkMessage) -> anyhow::Result<Option<LinkMessage>> {
    let ifindex = request.header.index;
    let mut request = request;
    request.attributes.push(observe::without_statistics());
    let answer = match socket.get(RouteNetlinkMessage::GetLink(request)).await {
        Err(error) if error.is_gone() => return Ok(None),
        other => other.with_context(|| format!("look at device {ifindex}"))?,
    };
    Ok(answer.into_iter().find_map(|message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    }))
}

/// Puts a device into an interface group.
pub(in crate::netlink) async fn set_group(
    socket: &mut Socket,
    ifindex: u32,
    group: u32,
) -> anyhow::Result<()> {
    let mut message = of(ifindex);
    message.attributes.push(LinkAttribute::Group(group));
    socket
        .change(RouteNetlinkMessage::SetLink(message), 0)
        .await
        .with_context(|| format!("put device {ifindex} into group {group}"))
}

/// Keeps the kernel from giving a device a link-local address. Takes effect when the device is set
/// up; where the family is off there is nothing to keep.
pub(in crate::netlink) async fn without_link_local(
    socket: &mut Socket,
    ifindex: u32,
) -> anyhow::Result<()> {
    let mut message = of(ifindex);
    let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    message
        .attributes
        .push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(
            vec![mode],
        )]));
    match socket
        .change(RouteNetlinkMessage::SetLink(message), 0)
        .await
    {
        Err(error) if error.is_family_missing() => Ok(()),
        other => other.with_context(|| format!("keep device {ifindex} without link-local address")),
    }
}

/// Gives a device one more name, by which requests find it too.
pub(in crate::netlink) async fn add_name(
    socket: &mut Socket,
    ifindex: u32,
    name: &str,
) -> anyhow::Result<()> {
    let message = RouteNetlinkMessage::NewLinkProp(with_name(ifindex, name));
    socket
        .change(message, NLM_F_CREATE | NLM_F_EXCL)
        .await
        .with_context(|| format!("give device {ifindex} the alternative name {name}"))
}

/// Gives a device its alternative name as its only one. A device that is up cannot be renamed before
/// Linux 6.2, so it is set down for that.
pub(in crate::netlink) async fn rename(
    socket: &mut Socket,
    ifindex: u32,
    name: &str,
) -> anyhow::Result<()> {
    let set = |message| RouteNetlinkMessage::SetLink(message);
    let mut down = of(ifindex);
    down.header.change_mask = LinkFlags::Up;
    let mut named = of(ifindex);
    named
        .attributes
        .push(LinkAttribute::IfName(name.to_owned()));
    let what = || format!("give device {ifindex} the name {name}");
    let removed = RouteNetlinkMessage::DelLinkProp(with_name(ifindex, name));
    socket.change(set(down), 0).await.with_context(what)?;
    socket.change(removed, 0).await.with_context(what)?;
    socket.change(set(named), 0).await.with_context(what)
}

fn with_name(ifindex: u32, name: &str) -> LinkMessage {
    let mut message = of(ifindex);
    let name = Prop::AltIfName(name.to_owned());
    message.attributes.push(LinkAttribute::PropList(vec![name]));
    message
}

/// Removes a device.
pub(in crate::netlink) async fn delete(socket: &mut Socket, ifindex: u32) -> anyhow::Result<()> {
    let request = RouteNetlinkMessage::DelLink(of(ifindex));
    deleted(socket.change(request, 0).await).with_context(|| format!("delete device {ifindex}"))
}

/// Removes devices together. For each request, the kernel waits until no CPU uses its devices any
/// more (`unregister_netdevice_many` in net/core/dev.c).
///
/// A request names several devices by a group alone, so they are put into one that no other device
/// has: a number by chance.
pub(in crate::netlink) async fn delete_together(
    socket: &mut Socket,
    ifindexes: &[u32],
) -> anyhow::Result<()> {
    let number = RandomState::new().build_hasher().finish();
    let group = u32::try_from(number >> 33)?.max(1);
    for ifindex in ifindexes {
        if let Err(error) = set_group(socket, *ifindex, group).await {
            tracing::debug!("{error:#}");
        }
    }
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::Group(group));
    let request = RouteNetlinkMessage::DelLink(message);
    deleted(socket.change(request, 0).await)
        .with_context(|| format!("delete the devices of group {group}"))
}

fn of(ifindex: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = ifindex;
    message
}
