//! Addresses on devices.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};

use super::super::errno::RequestError;
use super::super::socket::Socket;
use crate::kernel::Address;

/// Every address of both families.
pub(in crate::netlink) async fn list(
    socket: &mut Socket,
) -> Result<BTreeSet<Address>, RequestError> {
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let messages = socket.dump(request).await?;
    Ok(messages
        .iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewAddress(message) => parse(message),
            _ => None,
        })
        .collect())
}

fn parse(message: &AddressMessage) -> Option<Address> {
    // On a point-to-point device IFA_ADDRESS is the peer's and IFA_LOCAL ours; IPv6 has only the
    // former where there is no peer.
    let mut address: Option<IpAddr> = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(local) => address = Some(*local),
            AddressAttribute::Address(other) => address = address.or(Some(*other)),
            _ => {}
        }
    }
    let net = IpNet::new(address?, message.header.prefix_len).ok()?;
    Some(Address {
        ifindex: message.header.index,
        net,
    })
}
