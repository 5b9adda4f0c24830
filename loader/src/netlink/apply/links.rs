//! Devices.

use anyhow::Context;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage,
};

use super::super::errno::deleted;
use super::super::socket::Socket;

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

/// Removes a device.
pub(in crate::netlink) async fn delete(socket: &mut Socket, ifindex: u32) -> anyhow::Result<()> {
    let request = RouteNetlinkMessage::DelLink(of(ifindex));
    deleted(socket.change(request, 0).await).with_context(|| format!("delete device {ifindex}"))
}

fn of(ifindex: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = ifindex;
    message
}
