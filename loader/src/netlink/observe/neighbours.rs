//! Permanent neighbour entries.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};

use super::super::errno::RequestError;
use super::super::socket::Socket;
use super::{each, of_present};
use crate::kernel::Neighbour;
use crate::types::MacAddr;

/// Every permanent entry of both families.
pub(in crate::netlink) async fn list(
    socket: &mut Socket,
) -> Result<BTreeSet<Neighbour>, RequestError> {
    dump(socket, NeighbourMessage::default()).await
}

/// Every permanent entry on devices.
pub(super) async fn on(
    socket: &mut Socket,
    devices: &BTreeSet<u32>,
) -> Result<BTreeSet<Neighbour>, RequestError> {
    let mut neighbours = BTreeSet::new();
    for device in each(devices) {
        let mut request = NeighbourMessage::default();
        let filter = device.map(NeighbourAttribute::IfIndex);
        request.attributes.extend(filter);
        neighbours.extend(of_present(dump(socket, request).await)?);
    }
    neighbours.retain(|neighbour| devices.contains(&neighbour.ifindex));
    Ok(neighbours)
}

async fn dump(
    socket: &mut Socket,
    request: NeighbourMessage,
) -> Result<BTreeSet<Neighbour>, RequestError> {
    let request = RouteNetlinkMessage::GetNeighbour(request);
    let messages = socket.dump(request).await?;
    Ok(messages
        .iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewNeighbour(message) => parse(message),
            _ => None,
        })
        .collect())
}

/// A permanent entry with an Ethernet address; `None` for everything else.
fn parse(message: &NeighbourMessage) -> Option<Neighbour> {
    if message.header.state != NeighbourState::Permanent {
        return None;
    }
    let mac = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                <[u8; 6]>::try_from(bytes.as_slice()).ok().map(MacAddr)
            }
            _ => None,
        })?;
    Some(Neighbour {
        ifindex: message.header.ifindex,
        address: address(message)?,
        mac,
    })
}

/// The network address of an entry.
pub(in crate::netlink) fn address(message: &NeighbourMessage) -> Option<IpAddr> {
    message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some((*v4).into()),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some((*v6).into()),
            _ => None,
        })
}
