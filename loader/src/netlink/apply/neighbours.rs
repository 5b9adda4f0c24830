//! Neighbour entries.

use std::net::IpAddr;

use anyhow::Context;
use ipam::Family;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};

use super::super::address_family;
use super::super::errno::deleted;
use super::super::socket::Socket;
use crate::kernel::Neighbour;

/// Adds a permanent entry, or makes the one of the same address so.
pub(in crate::netlink) async fn add(
    socket: &mut Socket,
    neighbour: &Neighbour,
) -> anyhow::Result<()> {
    let mut message = message(neighbour);
    message.header.state = NeighbourState::Permanent;
    message
        .attributes
        .push(NeighbourAttribute::LinkLayerAddress(
            neighbour.mac.0.to_vec(),
        ));
    socket
        .change(
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
        .await
        .with_context(|| format!("add the neighbour {}", text(neighbour)))
}

/// Removes the entry of an address.
pub(in crate::netlink) async fn delete(
    socket: &mut Socket,
    neighbour: &Neighbour,
) -> anyhow::Result<()> {
    let request = RouteNetlinkMessage::DelNeighbour(message(neighbour));
    deleted(socket.change(request, 0).await)
        .with_context(|| format!("delete the neighbour {}", text(neighbour)))
}

/// Marks a neighbour as used: the kernel resolves a stale one again. One that is gone stays so.
pub(in crate::netlink) async fn use_one(
    socket: &mut Socket,
    ifindex: u32,
    address: IpAddr,
) -> anyhow::Result<()> {
    let mut message = of(ifindex, address);
    message.header.flags = NeighbourFlags::Use;
    deleted(
        socket
            .change(RouteNetlinkMessage::NewNeighbour(message), 0)
            .await,
    )
    .with_context(|| format!("use the neighbour {address} on device {ifindex}"))
}

fn message(neighbour: &Neighbour) -> NeighbourMessage {
    of(neighbour.ifindex, neighbour.address)
}

fn of(ifindex: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = address_family(Family::of(address));
    message.header.ifindex = ifindex;
    message.attributes = vec![NeighbourAttribute::Destination(address.into())];
    message
}

fn text(neighbour: &Neighbour) -> String {
    let Neighbour {
        ifindex,
        address,
        mac,
    } = neighbour;
    format!("{address} ({mac}) on device {ifindex}")
}
