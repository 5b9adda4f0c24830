//! Neighbour entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::ids::MacAddr;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};

use super::super::errno::RequestError;
use super::super::socket::Socket;
use super::{each, of_present};
use crate::kernel::{Neighbour, Resolved};

/// Entries with an Ethernet address.
#[derive(Default)]
pub(in crate::netlink) struct Neighbours {
    /// The permanent ones.
    pub(in crate::netlink) permanent: BTreeSet<Neighbour>,
    /// All of them, by device and address.
    pub(in crate::netlink) resolved: BTreeMap<(u32, IpAddr), Resolved>,
}

/// Every entry of both families.
pub(in crate::netlink) async fn list(socket: &mut Socket) -> Result<Neighbours, RequestError> {
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
        neighbours.extend(of_present(dump(socket, request).await)?.permanent);
    }
    neighbours.retain(|neighbour| devices.contains(&neighbour.ifindex));
    Ok(neighbours)
}

async fn dump(socket: &mut Socket, request: NeighbourMessage) -> Result<Neighbours, RequestError> {
    let request = RouteNetlinkMessage::GetNeighbour(request);
    let mut neighbours = Neighbours::default();
    for message in socket.dump(request).await? {
        let RouteNetlinkMessage::NewNeighbour(message) = message else {
            continue;
        };
        let (Some(resolved), Some(address)) = (resolved(&message), address(&message)) else {
            continue;
        };
        let ifindex = message.header.ifindex;
        if message.header.state == NeighbourState::Permanent {
            neighbours.permanent.insert(Neighbour {
                ifindex,
                address,
                mac: resolved.mac,
            });
        }
        neighbours.resolved.insert((ifindex, address), resolved);
    }
    Ok(neighbours)
}

/// The resolved neighbour of an entry, if packets are sent by it (`NUD_VALID` in
/// include/net/neighbour.h).
pub(in crate::netlink) fn resolved(message: &NeighbourMessage) -> Option<Resolved> {
    let is_valid = matches!(
        message.header.state,
        NeighbourState::Permanent
            | NeighbourState::Noarp
            | NeighbourState::Reachable
            | NeighbourState::Probe
            | NeighbourState::Stale
            | NeighbourState::Delay
    );
    let mut attributes = message.attributes.iter();
    let mac = attributes.find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok(),
        _ => None,
    })?;
    is_valid.then_some(Resolved {
        mac: MacAddr(mac),
        is_stale: message.header.state == NeighbourState::Stale,
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
